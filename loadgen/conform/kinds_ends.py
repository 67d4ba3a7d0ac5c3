"""The kinds of clients that are there when a server ends what it serves: told to stop,
or because a connection is too old, or has asked too often.

One rule: *a close that is announced loses nothing*. A client that was told so asks no
more on that connection; one that was not, and whose request is on its way, is answered.
"""

from __future__ import annotations

from dataclasses import replace

from ..plan.acts import (
    HELLO,
    Act,
    Ask,
    At,
    Begin,
    Body,
    Busy,
    Deaf,
    Done,
    Hear,
    Kind,
    Pings,
    Rest,
    Send,
    Shake,
    Shut,
    Take,
    Until,
    Up,
    Want,
)
from ..plan.requests import frame, get, post
from .kinds import HALF_HEAD, HEAD_OF_POST, HTTP_DIES, HTTP_LIVES, OPENED

FAR, FURTHER = 0.02, 0.08
"""Seconds that everything travels in each direction."""
ANSWERED: tuple[Act, ...] = (Send(get()), Until(1))
POSTS = Ask("/echo", "POST", end=False)
SERVER_ENDS = Kind(
    acts=(),
    name="at a stop: ends when its last client has gone",
    limit="a stop",
    speaks="server",
    world="stop",
)
"""No kind of clients: how long the process is there that nobody needs any more."""


def _at_a_stop(
    name: str,
    *acts: Act,
    answers: tuple[Want, ...] = (),
    hears: tuple[bytes, ...] = (),
    limit: str = "",
    speaks: str = "http",
    lag: float = 0.0,
    window: int = 0,
    quick: bool = False,
) -> Kind:
    return Kind(
        name=f"at a stop: {name}",
        speaks=speaks,
        acts=acts,
        answers=answers,
        hears=hears,
        limit=limit,
        lag=lag,
        window=window,
        quick=quick,
        world="stop",
    )


STOPS = (
    _at_a_stop(
        "waits for a route of 0.6 s",
        *(At(-0.3), Send(get("/slow?0.6"))),
        answers=(HELLO,),
        quick=True,
    ),
    _at_a_stop(
        "waits for an answer that pauses for 0.6 s",
        *(At(-0.3), Send(get("/pause?0.6"))),
        answers=(Want(b"firstafter"),),
        quick=True,
    ),
    _at_a_stop(
        "sends the second half of its body 0.3 s later",
        *(At(-0.3), Send(HEAD_OF_POST + b"01234"), At(0.3), Send(b"56789")),
        answers=(Want(b"0123456789"),),
        quick=True,
    ),
    _at_a_stop(
        "sends the second half of its head 0.3 s later",
        *(At(-0.3), Send(HALF_HEAD), At(0.3), Send(get()[-9:])),
        answers=(HELLO,),
    ),
    _at_a_stop(
        "waits for a route of 0.6 s, and has pipelined two requests behind it",
        *(At(-0.3), Send(get("/slow?0.6") + get() + post())),
        answers=(HELLO,) * 3,
    ),
    _at_a_stop(
        "half-closes, and waits for a route of 0.6 s",
        *(At(-0.3), Send(get("/slow?0.6")), Shut()),
        answers=(HELLO,),
    ),
    _at_a_stop(
        "takes 6 MB slowly, for a second",
        *(At(-0.4), Deaf(), Send(get("/some?6000000"))),
        *(Take(size=1_500_000, every=0.35, total=5_900_000), Hear()),
        answers=(Want(6_000_000),),
        window=65536,
    ),
    _at_a_stop(
        "listens to events, and none is cut in two",
        *(At(-0.5), Send(get("/events?6"))),
        answers=(Want(None, ends=b"\n\n"),),
    ),
    _at_a_stop(
        "asks all the time at a distance of 40 ms",
        *(At(-0.5), Busy(1.5)),
        lag=FAR,
    ),
    _at_a_stop(
        "asks all the time at a distance of 160 ms",
        *(At(-0.5), Busy(1.5)),
        lag=FURTHER,
    ),
    _at_a_stop("says nothing after an answer", At(-0.5), *ANSWERED, limit="a stop", quick=True),
    _at_a_stop("has connected, and said nothing", At(-0.5), limit="a stop", quick=True),
    _at_a_stop("has sent half a head", At(-0.5), Send(HALF_HEAD), limit="headers", quick=True),
    _at_a_stop("has sent half a body", At(-0.5), Send(HEAD_OF_POST + b"01234"), limit="body"),
    _at_a_stop(
        "has taken half of an answer, and takes no more",
        *(At(-0.5), Deaf(), Send(get("/some?7000000"))),
        limit="write",
        window=4096,
    ),
    _at_a_stop(
        "TLS: has sent half of the first bytes of its handshake",
        *(Shake(None), At(-0.3)),
        limit="a stop",
        speaks="tls",
        quick=True,
    ),
    _at_a_stop(
        "TLS: waits for a route of 0.6 s",
        *(At(-0.3), Send(get("/slow?0.6"))),
        answers=(HELLO,),
        speaks="tls",
        quick=True,
    ),
    _at_a_stop(
        "TLS: says nothing after an answer",
        *(At(-0.5), *ANSWERED),
        limit="a stop",
        speaks="tls",
        quick=True,
    ),
    _at_a_stop(
        "WebSocket: says nothing",
        *(At(-0.5), *OPENED),
        limit="a stop",
        speaks="websocket",
        quick=True,
    ),
    _at_a_stop(
        "HTTP/2: waits for a route of 0.6 s",
        *(At(-0.3), Begin(), Ask("/slow?0.6")),
        answers=(HELLO,),
        speaks="http2",
        quick=True,
    ),
    _at_a_stop(
        "HTTP/2: sends the second half of its body 0.3 s later",
        *(At(-0.3), Begin(), POSTS, Body(0, b"01", end=False), At(0.3), Body(0, b"23")),
        answers=(Want(b"0123"),),
        speaks="http2",
    ),
    _at_a_stop(
        "HTTP/2: asks all the time at a distance of 40 ms",
        *(At(-0.5), Begin(), Busy(1.5)),
        speaks="http2",
        lag=FAR,
    ),
    _at_a_stop(
        "HTTP/2: asks all the time at a distance of 160 ms",
        *(At(-0.5), Begin(), Busy(1.5)),
        speaks="http2",
        lag=FURTHER,
    ),
    _at_a_stop(
        "HTTP/2: says nothing after an answer",
        *(At(-0.5), Begin(), Ask(), Done(0)),
        limit="a stop",
        speaks="http2",
        quick=True,
    ),
)


def _aged(
    name: str,
    *acts: Act,
    answers: tuple[Want, ...] = (),
    hears: tuple[bytes, ...] = (),
    limit: str = "",
    since: int | None = None,
    speaks: str = "http",
    lag: float = 0.0,
    window: int = 0,
) -> Kind:
    return Kind(
        name=name,
        speaks=speaks,
        acts=acts,
        answers=answers,
        hears=hears,
        limit=limit,
        since=since,
        lag=lag,
        window=window,
        world="ends",
    )


OLD = "at `max_age`: "
GONE = "with `abandoned`: "
AGES = (
    _aged(f"{OLD}asks all the time at a distance of 40 ms", Busy(2.2, every=0.1), lag=FAR),
    _aged(f"{OLD}asks all the time at a distance of 160 ms", Busy(2.2), lag=FURTHER),
    _aged(
        "at `max_requests`: asks twelve times and more at a distance of 40 ms",
        Busy(1.2),
        lag=FAR,
    ),
    _aged(
        f"{OLD}has a request on its way at a distance of 160 ms",
        *ANSWERED,
        *(Rest(0.68), Send(get())),
        answers=(HELLO,) * 2,
        lag=FURTHER,
    ),
    _aged(f"{OLD}waits for a route of 1.6 s", Send(get("/slow?1.6")), answers=(HELLO,)),
    _aged(
        f"{OLD}waits for an answer that pauses for 1.6 s",
        Send(get("/pause?1.6")),
        answers=(Want(b"firstafter"),),
    ),
    _aged(
        f"{OLD}sends its body in three pieces, 0.7 s apart",
        *(Send(HEAD_OF_POST + b"012"), Rest(0.7), Send(b"345"), Rest(0.7), Send(b"6789")),
        answers=(Want(b"0123456789"),),
    ),
    _aged(f"{OLD}says nothing after an answer", *ANSWERED, limit="max_age", since=0),
    _aged(
        f"{OLD}HTTP/2: asks all the time at a distance of 40 ms",
        *(Begin(), Busy(2.2, every=0.1)),
        speaks="http2",
        lag=FAR,
    ),
    _aged(
        f"{OLD}HTTP/2: asks all the time at a distance of 160 ms",
        *(Begin(), Busy(2.2)),
        speaks="http2",
        lag=FURTHER,
    ),
    _aged(
        f"{OLD}HTTP/2: waits for a route of 1.6 s",
        *(Begin(), Ask("/slow?1.6")),
        answers=(HELLO,),
        speaks="http2",
    ),
    _aged(
        f"{OLD}HTTP/2: says nothing after an answer",
        *(Begin(), Ask(), Done(0)),
        limit="max_age",
        since=0,
        speaks="http2",
    ),
    _aged(
        f"{GONE}half-closes, and waits for a route of 0.9 s",
        *(Send(get("/slow?0.9")), Shut()),
        answers=(HELLO,),
    ),
    _aged(
        f"{GONE}half-closes after three pipelined requests, and waits",
        *(Send(get("/slow?0.4") + post() + get()), Shut()),
        answers=(HELLO,) * 3,
    ),
    _aged(
        f"{GONE}half-closes, and waits for an answer that pauses for 0.9 s",
        *(Send(get("/pause?0.9")), Shut()),
        answers=(Want(b"firstafter"),),
    ),
)

OWN = "at the server's own limit of requests: "
OWN_LIMITS = tuple(
    Kind(
        name=f"{OWN}asks all the time at a distance of {round(2000 * lag)} ms",
        speaks="http",
        acts=(Busy(2.0),),
        lag=lag,
        world="own",
    )
    for lag in (FAR, FURTHER)
)
"""For servers that count requests themselves: each connection's, or the process's."""

_OVER_TLS = (
    "comes in a crowd, and asks again in the last 150 ms of `keep_alive`",
    "asks again in the last 150 ms of `keep_alive`",
    "begins in the last 150 ms of `first_byte`",
    "ends its head in the last 150 ms of `headers`",
    "sends its body in pieces, 0.7 s apart",
    "uploads a megabyte at once",
    "waits for a route of 1.6 s",
    "pipelines three requests",
    "half-closes after its request",
    "half-closes, and waits for a route of 0.6 s",
    "takes 6 MB slowly for two timeouts",
    "listens to events, 0.4 s apart, for two timeouts",
    "asks at a distance of 20 ms, in the last 150 ms of `keep_alive`",
    "connects, and sends nothing",
    "sends half a head",
    "sends half a body",
    "says nothing after an answer",
    "takes nothing of 7 MB",
    "half-closes after an answer",
)
"""The kinds of HTTP/1.1 that come over TLS, too; there an end of file is a
`close_notify`.
"""
CROWD_OF_TLS = 20
"""As `CROWD`: each handshake costs a client a millisecond, and late answers are its
own.
"""
TLS = (
    *(
        replace(kind, name=f"TLS: {kind.name}", speaks="tls", crowd=min(kind.crowd, CROWD_OF_TLS))
        for kind in (*HTTP_LIVES, *HTTP_DIES)
        if kind.name in _OVER_TLS
    ),
    Kind(
        name="TLS: sends the first bytes of its handshake in two halves, 0.5 s apart",
        speaks="tls",
        acts=(Shake(0.5), Send(get())),
        answers=(HELLO,),
        quick=True,
    ),
    Kind(
        name="TLS: sends half of the first bytes of its handshake",
        speaks="tls",
        acts=(Shake(None),),
        limit="handshake",
        since=0,
        quick=True,
    ),
)

TUNNEL: tuple[Act, ...] = (Begin(), Ask("/ws", "CONNECT", end=False), Up(0))
TUNNELS = (
    Kind(
        name="WebSocket over HTTP/2: speaks, and is answered",
        speaks="websocket2",
        acts=(*TUNNEL, Body(0, frame(b"one"), end=False), Until(text=b"one")),
        hears=(b"one",),
        quick=True,
    ),
    Kind(
        name="WebSocket over HTTP/2: speaks in the last 150 ms of `tunnel`",
        speaks="websocket2",
        acts=(
            *(*TUNNEL, Rest(0.85), Body(0, frame(b"one"), end=False), Until(text=b"one")),
            *(Rest(0.85), Body(0, frame(b"two"), end=False)),
        ),
        hears=(b"one", b"two"),
        quick=True,
    ),
    Kind(
        name="WebSocket over HTTP/2: takes a big message",
        speaks="websocket2",
        acts=(*TUNNEL, Body(0, frame(b"big"), end=False)),
        gets=1_000_000,
    ),
    Kind(
        name="WebSocket over HTTP/2: speaks while another stream is answered",
        speaks="websocket2",
        acts=(*TUNNEL, Ask("/slow?0.6"), Body(0, frame(b"one"), end=False), Done(1)),
        hears=(b"one",),
    ),
    Kind(
        name="WebSocket over HTTP/2: says nothing",
        speaks="websocket2",
        acts=TUNNEL,
        limit="tunnel",
        quick=True,
    ),
    Kind(
        name="WebSocket over HTTP/2: says nothing after an answer",
        speaks="websocket2",
        acts=(*TUNNEL, Body(0, frame(b"one"), end=False), Until(text=b"one")),
        limit="tunnel",
    ),
    Kind(
        name="WebSocket over HTTP/2: says nothing, and sends PINGs of HTTP/2",
        speaks="websocket2",
        acts=(*TUNNEL, Body(0, frame(b"one"), end=False), Until(text=b"one"), Pings(20, every=0.2)),
        limit="tunnel",
        since=5,
    ),
)
