"""The kinds of clients, as data: what each sends and when, what it has to hear, and
which limit ends it.

Every limit of the guarded servers is `LIMIT` seconds, so a rest that is longer than
that is a claim as well: nothing here is waited for at the client's cost.
"""

from __future__ import annotations

from ..plan.acts import (
    HELLO,
    Act,
    Deaf,
    Drip,
    Hear,
    Kind,
    Leaves,
    Rest,
    Send,
    Shut,
    Take,
    Until,
    Want,
)
from ..plan.requests import GOODBYE, PING, frame, get, post

LIMIT = 1.0
"""Seconds of every timeout of the guarded servers."""
TICK = 0.25
NEAR = 0.85
"""Seconds of a rest that ends in the last 150 ms of a timeout."""
LONG = 1.6
"""Seconds longer than every timeout and a tick."""


CHUNKED = get("/echo", "Transfer-Encoding: chunked", method="POST")
HALF_HEAD = get()[:-9]
CLOSE = get("/", "Connection: close")
HEAD_OF_POST = get("/echo", "Content-Length: 10", method="POST")
EXPECTS = get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST")
EXPECTS_LATE = EXPECTS.replace(b"/echo", b"/late?1.3")
CONTINUES = b"HTTP/1.1 100"
MEGABYTE = b"m" * 1_000_000


def rests(count: int, seconds: float, what: bytes = get()) -> tuple[Act, ...]:
    """*count* requests, each asked so long after the answer to the last one."""
    acts: list[Act] = [Send(what), Until(1)]
    for number in range(2, count + 1):
        acts += [Rest(seconds), Send(what), Until(number)]
    return tuple(acts)


CROWD = 100
"""How many come one upon the other: so many that the threads of a server overtake each
other.
"""

HTTP_LIVES = (
    Kind(name="asks once, and says close", acts=(Send(CLOSE),), answers=(HELLO,), quick=True),
    Kind(
        name="says close, and takes 300 kB after 0.4 s",
        acts=(Deaf(), Send(get("/some?300000", "Connection: close")), Rest(0.4), Hear()),
        answers=(Want(300_000),),
        window=8192,
        quick=True,
    ),
    Kind(
        name="asks once in HTTP/1.0",
        acts=(Send(get(version="1.0")),),
        answers=(HELLO,),
    ),
    Kind(name="asks five times at once", acts=rests(5, 0.0), answers=(HELLO,) * 5, quick=True),
    Kind(
        name="asks again in the last 150 ms of `keep_alive`",
        acts=rests(3, NEAR),
        answers=(HELLO,) * 3,
        quick=True,
    ),
    Kind(
        name="posts in the last 150 ms of `keep_alive`",
        acts=rests(3, NEAR, post()),
        answers=(HELLO,) * 3,
    ),
    Kind(
        name="begins in the last 150 ms of `first_byte`",
        acts=(Rest(NEAR), Send(get())),
        answers=(HELLO,),
        quick=True,
    ),
    Kind(
        name="ends its head in the last 150 ms of `headers`",
        acts=(Send(HALF_HEAD), Rest(NEAR), Send(get()[-9:])),
        answers=(HELLO,),
        quick=True,
    ),
    Kind(
        name="takes its time with the second head, too",
        acts=(*rests(1, 0), Rest(0.6), Send(HALF_HEAD), Rest(0.7), Send(get()[-9:])),
        answers=(HELLO,) * 2,
        quick=True,
    ),
    Kind(
        name="comes in a crowd, and asks again in the last 150 ms of `keep_alive`",
        acts=rests(2, NEAR),
        answers=(HELLO,) * 2,
        crowd=CROWD,
    ),
    Kind(
        name="drips its head, byte by byte",
        acts=(Drip(get(), every=0.018),),
        answers=(HELLO,),
    ),
    Kind(
        name="sends a head of 6,000 bytes in two pieces",
        acts=(
            Send(get("/", "X-Big: " + "b" * 6000)[:3000]),
            Rest(0.4),
            Send(get("/", "X-Big: " + "b" * 6000)[3000:]),
        ),
        answers=(HELLO,),
    ),
    Kind(
        name="begins its body in the last 150 ms of `body`",
        acts=(Send(HEAD_OF_POST), Rest(NEAR), Send(b"0123456789")),
        answers=(Want(b"0123456789"),),
        quick=True,
    ),
    Kind(
        name="sends its body in pieces, 0.7 s apart",
        acts=(Send(HEAD_OF_POST), Drip(b"0123456789", every=0.7, size=3)),
        answers=(Want(b"0123456789"),),
        quick=True,
    ),
    Kind(
        name="takes its time with head and body",
        acts=(
            Send(HEAD_OF_POST[:20]),
            Rest(0.7),
            Send(HEAD_OF_POST[20:]),
            Rest(0.8),
            Send(b"0123456789"),
        ),
        answers=(Want(b"0123456789"),),
    ),
    Kind(
        name="sends chunks, 0.7 s apart",
        acts=(Send(CHUNKED), Drip(b"2\r\nab\r\n" * 3, every=0.7, size=7), Send(b"0\r\n\r\n")),
        answers=(Want(b"ababab"),),
    ),
    Kind(
        name="sends chunks and trailers",
        acts=(
            *(Send(CHUNKED + b"2\r\nab\r\n"), Rest(0.5), Send(b"0\r\nX-Sum: 1\r\n\r\n")),
            *(Until(1), Send(get())),
        ),
        answers=(Want(b"ab"), HELLO),
    ),
    Kind(
        name="sends no chunk but the last",
        acts=(Send(CHUNKED + b"0\r\n\r\n"), Until(1), Send(get())),
        answers=(Want(b""), HELLO),
    ),
    Kind(
        name="uploads a megabyte at once",
        acts=(Send(post(body=MEGABYTE)), Until(1), Send(get())),
        answers=(Want(len(MEGABYTE)), HELLO),
    ),
    Kind(
        name="uploads slowly for two timeouts",
        acts=(
            Send(get("/echo", "Content-Length: 140000", method="POST")),
            Drip(b"u" * 140_000, every=0.3, size=20_000),
        ),
        answers=(Want(140_000),),
    ),
    Kind(
        name="waits for a route of 1.6 s",
        acts=(Send(get("/slow?1.6")), Until(1), Rest(0.5), Send(get())),
        answers=(HELLO,) * 2,
        quick=True,
    ),
    Kind(
        name="waits for an answer that pauses for 1.6 s",
        acts=(Send(get("/pause?1.6")), Until(1), Rest(0.5), Send(get())),
        answers=(Want(b"firstafter"), HELLO),
        quick=True,
    ),
    Kind(
        name="has sent a body that a late route reads after 1.6 s",
        acts=(Send(post("/late?1.6")), Until(1), Send(get())),
        answers=(HELLO,) * 2,
        quick=True,
    ),
    Kind(
        name="has sent 700 kB that a late route reads after 1.6 s",
        acts=(Send(post("/late?1.6", MEGABYTE[:700_000])), Until(1), Send(get())),
        answers=(Want(700_000), HELLO),
    ),
    Kind(
        name="sends its body 0.5 s after a late route began, which reads after 1.6 s",
        acts=(
            Send(get("/late?1.6", "Content-Length: 5", method="POST")),
            Rest(0.5),
            Send(b"hello"),
        ),
        answers=(HELLO,),
    ),
    Kind(
        name="waits for `100 Continue`",
        acts=(Send(EXPECTS), Until(text=CONTINUES), Send(b"hello"), Until(1), Send(get())),
        answers=(HELLO,) * 2,
        quick=True,
    ),
    Kind(
        name="waits for `100 Continue` of a route that reads after 1.3 s",
        acts=(Send(EXPECTS_LATE), Until(text=CONTINUES), Send(b"hello")),
        answers=(HELLO,),
        quick=True,
    ),
    Kind(
        name="sends its body in the last 150 ms of `body` after a late `100 Continue`",
        acts=(Send(EXPECTS_LATE), Until(text=CONTINUES), Rest(NEAR), Send(b"hello")),
        answers=(HELLO,),
    ),
    Kind(
        name="is answered before its body is read",
        acts=(Send(post("/early")), Until(1), Rest(0.5), Send(get())),
        answers=(HELLO,) * 2,
    ),
    Kind(
        name="asks by HEAD, then by GET",
        acts=(Send(get(method="HEAD")), Until(1), Rest(0.5), Send(get())),
        answers=(Want(None, head=True), HELLO),
    ),
    Kind(
        name="sends an empty line before its second request",
        acts=(Send(get()), Until(1), Send(b"\r\n"), Rest(0.3), Send(get())),
        answers=(HELLO,) * 2,
    ),
    Kind(
        name="pipelines three requests",
        acts=(Send(get() * 3), Until(3), Rest(0.5), Send(get())),
        answers=(HELLO,) * 4,
        quick=True,
    ),
    Kind(
        name="pipelines three requests that have different answers",
        acts=(Send(post(body=b"first") + get() + post(body=b"third")),),
        answers=(Want(b"first"), HELLO, Want(b"third")),
        quick=True,
    ),
    Kind(
        name="pipelines behind a route of 1.3 s",
        acts=(Send(get("/slow?1.3") + get() * 2),),
        answers=(HELLO,) * 3,
        quick=True,
    ),
    Kind(
        name="pipelines two POSTs behind a route of 1.3 s",
        acts=(Send(get("/slow?1.3") + post() * 2),),
        answers=(HELLO,) * 3,
    ),
    Kind(
        name="pipelines two requests and half of a third",
        acts=(Send(get() * 2 + HALF_HEAD), Until(2), Rest(0.6), Send(get()[-9:])),
        answers=(HELLO,) * 3,
    ),
    Kind(
        name="pipelines half a request behind a route of 1.3 s, and ends it 0.6 s after that",
        acts=(Send(get("/slow?1.3") + HALF_HEAD), Until(1), Rest(0.6), Send(get()[-9:])),
        answers=(HELLO,) * 2,
        quick=True,
    ),
    Kind(
        name="half-closes after its request",
        acts=(Send(get()), Shut()),
        answers=(HELLO,),
        quick=True,
    ),
    Kind(
        name="half-closes after its POST",
        acts=(Send(post()), Shut()),
        answers=(HELLO,),
    ),
    Kind(
        name="half-closes after three pipelined requests",
        acts=(Send(get() * 3), Shut()),
        answers=(HELLO,) * 3,
        quick=True,
    ),
    Kind(
        name="half-closes, and waits for a route of 0.6 s",
        acts=(Send(get("/slow?0.6")), Shut()),
        answers=(HELLO,),
        quick=True,
    ),
    Kind(
        name="half-closes, and waits for an answer that pauses for 0.6 s",
        acts=(Send(get("/pause?0.6")), Shut()),
        answers=(Want(b"firstafter"),),
    ),
    Kind(
        name="half-closes, and takes a megabyte",
        acts=(Send(get("/some?1000000")), Shut()),
        answers=(Want(1_000_000),),
    ),
    Kind(
        name="takes 6 MB slowly for two timeouts",
        acts=(
            Deaf(),
            Send(get("/some?6000000")),
            Take(size=1_000_000, every=0.35, total=5_900_000),
            Hear(),
        ),
        answers=(Want(6_000_000),),
        window=65536,
        quick=True,
    ),
    Kind(
        name="takes 6 MB after 0.7 s of deafness",
        acts=(Deaf(), Send(get("/some?6000000")), Rest(0.7), Hear()),
        answers=(Want(6_000_000),),
        window=65536,
    ),
    Kind(
        name="listens to events, 0.4 s apart, for two timeouts",
        acts=(Send(get("/events?6")),),
        answers=(Want(72),),
        quick=True,
    ),
    Kind(
        name="asks at a distance of 20 ms, in the last 150 ms of `keep_alive`",
        acts=rests(3, 0.82),
        answers=(HELLO,) * 3,
        lag=0.01,
    ),
    Kind(
        name="posts at a distance of 300 ms, after 0.4 s",
        acts=rests(4, 0.4, post()),
        answers=(HELLO,) * 4,
        lag=0.15,
        quick=True,
    ),
    Kind(
        name="waits for `100 Continue` at a distance of 300 ms",
        acts=(Send(EXPECTS), Until(text=CONTINUES), Send(b"hello"), Until(1), Send(get())),
        answers=(HELLO,) * 2,
        lag=0.15,
    ),
)

AGAIN = rests(1, 0)

HIDDEN = (
    Kind(
        name="takes a little all the time, behind a buffer that hides it",
        acts=(
            Deaf(),
            Send(get("/some?6000000")),
            # by pieces, so that its buffer often hides it for 1.6 s: longer than any
            # `write` of the kit's, and less than what that buffer explains
            Take(size=28_000, every=0.4, total=420_000),
            Hear(),
        ),
        answers=(Want(6_000_000),),
        window=65536,
        quick=True,
    ),
)
"""Live ones that `conform` does not judge: whether such a client is to live depends on
the least rate of the server, which nobody can see.
"""
LEAVERS = 20
"""Clients that come together, and leave."""


def _left(speaks: str, name: str, number: int, *, whole: bool = False) -> Kind:
    """Some tell the server *number*, say goodbye and leave at once; before and after
    that it is asked how many it has heard.
    """
    return Kind(
        name=name,
        speaks=speaks,
        acts=(
            *(Send(get(f"/told?{number}")), Until(1)),
            Leaves((Send(get(f"/tell?{number}")),), LEAVERS, whole),
            *(Send(get()), Until(2), Rest(1.0), Send(get(f"/told?{number}"))),
        ),
        answers=(Want(None), HELLO, Want(str(LEAVERS).encode())),
        quick=True,
    )


LEFT = (
    _left("http", "ask, say goodbye, and leave at once", 1),
    _left("tls", "TLS: ask, say goodbye, and leave at once", 2),
    _left("tls", "TLS: ask and say goodbye in one piece, and leave at once", 4, whole=True),
)
"""Live ones that `conform` does not judge: no RFC says that who has left is to be
heard, and only a server that counts can say whether it was.
"""
HTTP_DIES = (
    Kind(
        name="connects, and sends nothing",
        acts=(),
        limit="first_byte",
        since=0,
        quick=True,
    ),
    Kind(
        name="sends half a head",
        acts=(Send(HALF_HEAD),),
        limit="headers",
        says=408,
        quick=True,
    ),
    Kind(name="sends one byte", acts=(Send(b"G"),), limit="headers", says=408),
    Kind(
        name="sends half a head in the last 150 ms of `first_byte`",
        acts=(Rest(NEAR), Send(HALF_HEAD)),
        limit="headers",
        says=408,
    ),
    Kind(
        name="drips a head that never ends",
        acts=(Drip(HALF_HEAD[:-2] + b"x" * 200, every=0.1),),
        limit="headers",
        since=1,
        says=408,
        quick=True,
    ),
    Kind(
        name="sends half of its second head",
        acts=(*AGAIN, Send(HALF_HEAD)),
        limit="headers",
        says=408,
        quick=True,
    ),
    Kind(
        name="sends half of its second head after 0.6 s",
        acts=(*AGAIN, Rest(0.6), Send(HALF_HEAD)),
        limit="headers",
        says=408,
        quick=True,
    ),
    Kind(
        name="sends half of its second head in one segment with the first",
        acts=(Send(get() + HALF_HEAD), Until(1)),
        limit="headers",
        says=408,
        quick=True,
    ),
    Kind(
        name="drips its second head, which never ends",
        acts=(*AGAIN, Drip(HALF_HEAD[:-2] + b"x" * 200, every=0.1)),
        limit="headers",
        since=3,
        says=408,
    ),
    Kind(
        name="sends no body",
        acts=(Send(HEAD_OF_POST),),
        limit="body",
        says=408,
        quick=True,
    ),
    Kind(
        name="sends half a body",
        acts=(Send(HEAD_OF_POST + b"01234"),),
        limit="body",
        says=408,
        quick=True,
    ),
    Kind(
        name="sends half a body after an answer",
        acts=(*AGAIN, Send(HEAD_OF_POST + b"01234")),
        limit="body",
        says=408,
    ),
    Kind(
        name="sends half a chunk",
        acts=(Send(CHUNKED + b"5\r\nab"),),
        limit="body",
        says=408,
    ),
    Kind(
        name="never sends the last chunk",
        acts=(Send(CHUNKED + b"2\r\nab\r\n"),),
        limit="body",
        says=408,
    ),
    Kind(
        name="is told to continue, and sends no body",
        acts=(Send(EXPECTS), Until(text=CONTINUES)),
        limit="body",
        says=408,
    ),
    Kind(
        name="says nothing after an answer",
        acts=AGAIN,
        limit="keep_alive",
        quick=True,
    ),
    Kind(
        name="says nothing after three pipelined answers",
        acts=(Send(get() * 3), Until(3)),
        limit="keep_alive",
    ),
    Kind(
        name="says nothing after a POST",
        acts=(Send(post()), Until(1)),
        limit="keep_alive",
    ),
    Kind(
        name="says nothing after a route of 1.3 s",
        acts=(Send(get("/slow?1.3")), Until(1)),
        limit="keep_alive",
        quick=True,
    ),
    Kind(
        name="says nothing after a second answer",
        acts=rests(2, 0.6),
        limit="keep_alive",
    ),
    Kind(
        name="says nothing after an answer that came before its body was read",
        acts=(Send(post("/early")), Until(1)),
        limit="keep_alive",
    ),
    Kind(
        name="takes nothing of 7 MB",
        acts=(Deaf(), Send(get("/some?7000000"))),
        limit="write",
        window=4096,
        quick=True,
    ),
    Kind(
        name="half-closes, and has never asked",
        acts=(Shut(),),
        limit="first_byte",
        done=True,
    ),
    Kind(
        name="half-closes in the middle of a head",
        acts=(Send(HALF_HEAD), Shut()),
        limit="headers",
        done=True,
    ),
    Kind(
        name="half-closes in the middle of a body",
        acts=(Send(HEAD_OF_POST + b"01234"), Shut()),
        limit="body",
        done=True,
        quick=True,
    ),
    Kind(
        name="half-closes after an answer",
        acts=(*AGAIN, Shut()),
        limit="keep_alive",
        done=True,
    ),
    Kind(
        name="says nothing after an answer, while a child of the server holds its socket",
        acts=(Send(get("/fork?6")), Until(1)),
        limit="keep_alive",
        alone=True,
        quick=True,
    ),
)

UPGRADE = get(
    "/ws",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
SWITCHED = b"HTTP/1.1 101"
OPENED = (Send(UPGRADE), Until(text=b"\r\n\r\n"))

WEBSOCKETS = (
    Kind(
        name="WebSocket: speaks, and is answered",
        speaks="websocket",
        acts=(*OPENED, Send(frame(b"one")), Until(text=b"one"), Send(frame(b"two"))),
        hears=(SWITCHED, b"one", b"two"),
        quick=True,
    ),
    Kind(
        name="WebSocket: speaks in the last 150 ms of `tunnel`",
        speaks="websocket",
        acts=(
            *OPENED,
            *(Rest(NEAR), Send(frame(b"one")), Until(text=b"one")),
            *(Rest(NEAR), Send(frame(b"two"))),
        ),
        hears=(SWITCHED, b"one", b"two"),
        quick=True,
    ),
    Kind(
        name="WebSocket: pings in the last 150 ms of `tunnel`",
        speaks="websocket",
        acts=(
            *OPENED,
            *(Rest(NEAR), Send(frame(b"1", PING)), Rest(NEAR), Send(frame(b"2", PING))),
        ),
        hears=(SWITCHED, b"\x8a\x011", b"\x8a\x012"),
    ),
    Kind(
        name="WebSocket: sends a message in two frames, 0.7 s apart",
        speaks="websocket",
        acts=(*OPENED, Send(frame(b"half", last=False)), Rest(0.7), Send(frame(b"whole", 0))),
        hears=(SWITCHED, b"halfwhole"),
    ),
    Kind(
        name="WebSocket: sends half a frame, and the rest after 0.7 s",
        speaks="websocket",
        acts=(*OPENED, Send(frame(b"whole")[:8]), Rest(0.7), Send(frame(b"whole")[8:])),
        hears=(SWITCHED, b"whole"),
    ),
    Kind(
        name="WebSocket: takes a big message slowly",
        speaks="websocket",
        acts=(
            *OPENED,
            *(Deaf(), Send(frame(b"big")), Take(size=200_000, every=0.35, total=900_000), Hear()),
        ),
        hears=(SWITCHED,),
        gets=1_000_000,
        window=8192,
        quick=True,
    ),
    Kind(
        name="WebSocket: says goodbye",
        speaks="websocket",
        acts=(*OPENED, Send(frame(b"\x03\xe8", GOODBYE))),
        hears=(SWITCHED, b"\x88\x02\x03\xe8"),
    ),
    Kind(
        name="WebSocket: says nothing",
        speaks="websocket",
        acts=OPENED,
        limit="tunnel",
        quick=True,
    ),
    Kind(
        name="WebSocket: says nothing after an answer",
        speaks="websocket",
        acts=(*OPENED, Send(frame(b"one")), Until(text=b"one")),
        limit="tunnel",
        quick=True,
    ),
    Kind(
        name="WebSocket: sends half a frame",
        speaks="websocket",
        acts=(*OPENED, Send(frame(b"whole")[:8])),
        limit="tunnel",
    ),
)

LEFT_OTHERS = (
    Kind(
        name="WebSocket: speak, say goodbye, and leave at once",
        speaks="websocket",
        acts=(
            *(*OPENED, Send(frame(b"told"))),
            Leaves((*OPENED, Send(frame(b"tell"))), LEAVERS),
            *(Send(frame(b"one")), Until(text=b"one")),
            *(Rest(1.0), Send(frame(b"told"))),
        ),
        hears=(SWITCHED, b"one", str(LEAVERS).encode()),
        quick=True,
    ),
    Kind(
        name="lines: speak, say goodbye, and leave at once",
        speaks="lines",
        acts=(
            *(Send(b"told\n"), Until(text=b"\n")),
            Leaves((Send(b"tell\n"),), LEAVERS),
            *(Send(b"one\n"), Until(text=b"one\n"), Rest(1.0), Send(b"told\n")),
        ),
        hears=(b"one\n", str(LEAVERS).encode() + b"\n"),
        quick=True,
    ),
)
"""The same of what is no HTTP."""
LINES = (
    Kind(
        name="lines: speaks, and is answered",
        speaks="lines",
        acts=(Send(b"one\n"), Until(text=b"one\n"), Send(b"two\n")),
        hears=(b"one\ntwo\n",),
        quick=True,
    ),
    Kind(
        name="lines: speaks in the last 150 ms of `idle`",
        speaks="lines",
        acts=(
            *(Rest(NEAR), Send(b"one\n"), Until(text=b"one\n"), Rest(NEAR)),
            *(Send(b"two\n"), Until(text=b"two\n"), Rest(NEAR), Send(b"six\n")),
        ),
        hears=(b"one\ntwo\nsix\n",),
        quick=True,
    ),
    Kind(
        name="lines: sends half a line, and the rest after 0.7 s",
        speaks="lines",
        acts=(Send(b"ha"), Rest(0.7), Send(b"lf\n")),
        hears=(b"half\n",),
        quick=True,
    ),
    Kind(
        name="lines: half-closes after its line",
        speaks="lines",
        acts=(Send(b"one\n"), Shut()),
        hears=(b"one\n",),
        quick=True,
    ),
    Kind(
        name="lines: sends a megabyte, and takes it",
        speaks="lines",
        acts=(Send(MEGABYTE + b"\n"),),
        gets=len(MEGABYTE) + 1,
        quick=True,
    ),
    Kind(
        name="lines: speaks at a distance of 300 ms",
        speaks="lines",
        acts=(Send(b"one\n"), Until(text=b"one\n"), Rest(0.4), Send(b"two\n")),
        hears=(b"one\ntwo\n",),
        lag=0.15,
        quick=True,
    ),
    Kind(
        name="lines: connects, and sends nothing",
        speaks="lines",
        acts=(),
        limit="idle",
        since=0,
        quick=True,
    ),
    Kind(
        name="lines: says nothing after an answer",
        speaks="lines",
        acts=(Send(b"one\n"), Until(text=b"one\n")),
        limit="idle",
        quick=True,
    ),
    Kind(
        name="lines: sends half a line",
        speaks="lines",
        acts=(Send(b"ha"),),
        limit="idle",
        quick=True,
    ),
    Kind(
        name="lines: says nothing, while a child of the server holds its socket",
        speaks="lines",
        acts=(Send(b"fork\n"), Until(text=b"forked\n")),
        limit="idle",
        alone=True,
        quick=True,
    ),
)
