"""The kinds of clients that speak HTTP/2, spoken at once without TLS."""

from __future__ import annotations

from dataclasses import replace

from ..clients import Speech
from ..http2 import kinds
from ..plan.acts import (
    HELLO,
    Act,
    Again,
    Ask,
    Begin,
    Body,
    Cancel,
    Deaf,
    Done,
    Kind,
    Leaves,
    Open,
    Pings,
    Rest,
    Send,
    Settings,
    Settled,
    Shut,
    Trailers,
    Want,
)
from .kinds import CROWD, LEAVERS, NEAR

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, CONTINUATION = 0, 1, 2, 9
END_STREAM, END_HEADERS = 1, 4


def _frame(kind: int, data: bytes, flags: int = 0) -> bytes:
    """A frame of the first stream."""
    return len(data).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 1]) + data


def _answered(number: int) -> bytes:
    """The PING that answers our PING of that *number*, from 0 on."""
    return b"\0\0\x08\x06\x01\0\0\0\0" + number.to_bytes(8, "big")


HALF = _frame(HEADERS, b"\x82\x86", END_STREAM)
"""A block of headers that has only begun: `:method GET`, `:scheme http`."""
REST = b"\x84\x01\x09localhost"
"""The rest of it: `:path /`, and `:authority`."""
ENDED = _frame(CONTINUATION, REST, END_HEADERS)
MOVES_NOTHING = _frame(PRIORITY, bytes(4) + b"\6") + b"\0\0\4\x08\0\0\0\0\0" + b"\0\0\0\1"
"""PRIORITY of the first stream, and a byte more of the connection's window."""
POST = Ask("/echo", "POST", end=False)
ASKED: tuple[Act, ...] = (Begin(), Ask(), Done(0))


def http2(
    name: str,
    *acts: Act,
    answers: tuple[Want, ...] = (),
    hears: tuple[bytes, ...] = (),
    limit: str = "",
    since: int | None = None,
    quick: bool = False,
    lag: float = 0.0,
    alone: bool = False,
    crowd: int = 1,
    done: bool = False,
) -> Kind:
    """A kind that speaks HTTP/2."""
    return Kind(
        name=f"HTTP/2: {name}",
        speaks="http2",
        acts=acts,
        answers=answers,
        hears=hears,
        limit=limit,
        since=since,
        quick=quick,
        lag=lag,
        alone=alone,
        crowd=crowd,
        done=done,
    )


HTTP2 = (
    http2("asks once", Begin(), Ask(), answers=(HELLO,), quick=True),
    http2("asks ten times at once", Begin(), *[Ask()] * 10, answers=(HELLO,) * 10, quick=True),
    http2(
        "asks again in the last 150 ms of `keep_alive`",
        *ASKED,
        *(Rest(NEAR), Ask(), Done(1), Rest(NEAR), Ask()),
        answers=(HELLO,) * 3,
        quick=True,
    ),
    http2(
        "comes in a crowd, and asks again in the last 150 ms of `keep_alive`",
        *(*ASKED, Rest(NEAR), Ask()),
        answers=(HELLO,) * 2,
        crowd=CROWD,
    ),
    http2(
        "begins in the last 150 ms of `first_byte`",
        Rest(NEAR),
        Begin(),
        Ask(),
        answers=(HELLO,),
    ),
    http2(
        "ends its head in the last 150 ms of `headers`",
        Begin(),
        Settled(),
        Send(HALF),
        Rest(NEAR),
        Send(ENDED),
        answers=(HELLO,),
    ),
    http2(
        "begins its body in the last 150 ms of `body`",
        *(Begin(), POST, Rest(NEAR), Body(0, b"hello")),
        answers=(HELLO,),
        quick=True,
    ),
    http2(
        "sends its body in pieces, 0.7 s apart",
        *(Begin(), POST, Rest(0.7), Body(0, b"he", end=False)),
        *(Rest(0.7), Body(0, b"l", end=False), Rest(0.7), Body(0, b"lo")),
        answers=(HELLO,),
        quick=True,
    ),
    http2(
        "sends padded DATA and trailers",
        *(Begin(), POST, Body(0, b"he", end=False, padding=40)),
        *(Rest(0.4), Body(0, b"llo", end=False, padding=0), Trailers(0)),
        answers=(HELLO,),
        quick=True,
    ),
    http2("waits for a route of 1.6 s", Begin(), Ask("/slow?1.6"), answers=(HELLO,), quick=True),
    http2(
        "waits for an answer that pauses for 1.6 s",
        Begin(),
        Ask("/pause?1.6"),
        answers=(Want(b"firstafter"),),
        quick=True,
    ),
    http2(
        "has sent a body that a late route reads after 1.6 s",
        *(Begin(), Ask("/late?1.6", "POST", end=False), Body(0, b"hello")),
        answers=(HELLO,),
    ),
    http2(
        "waits for slow routes and asks others meanwhile",
        *(Begin(), Ask("/slow?1.6"), Rest(0.5), Ask(), Rest(0.5), Ask()),
        answers=(HELLO,) * 3,
    ),
    http2(
        "listens to events, 0.4 s apart, for two timeouts",
        Begin(),
        Ask("/events?6"),
        answers=(Want(72),),
        quick=True,
    ),
    http2("takes 300 kB", Begin(), Ask("/some?300000"), answers=(Want(300_000),)),
    http2(
        "sends its preface in two pieces, 0.5 s apart",
        *(Send(PREFACE[:10]), Rest(0.5), Send(PREFACE[10:] + b"\0\0\0\4\0\0\0\0\0"), Ask()),
        answers=(HELLO,),
        quick=True,
    ),
    http2(
        "uploads 300 kB on three streams",
        *(Begin(), POST, POST, POST),
        *(Body(number, b"u" * 60_000, end=False) for number in range(3)),
        *(Rest(0.4), Body(0, b"u" * 4_000), Body(1, b"u" * 4_000), Body(2, b"u" * 4_000)),
        answers=(Want(64_000),) * 3,
    ),
    http2(
        "opens its windows by 16 KiB, 0.3 s apart",
        *(Begin(opens=False), Ask("/some?120000"), Open(16_384, every=0.3, count=5)),
        answers=(Want(120_000),),
        quick=True,
    ),
    http2(
        "takes ten streams of 60 kB slowly over the window that they share",
        Begin(window=10**6, opens=False),
        *[Ask("/some?60000")] * 10,
        Open(36_000, every=0.2, count=16),
        answers=(Want(60_000),) * 10,
        quick=True,
    ),
    http2(
        "takes ten streams at once beside a slow one, and opens their windows later, by bits",
        *(Begin(window=10**6, lags=0.6, piece=32), Open(10**6)),
        *(Ask("/slow?1.6"), *[Ask("/some?6000")] * 10),
        answers=(HELLO, *[Want(6_000)] * 10),
    ),
    http2(
        "takes ten streams over the window that they share, which it opens by bits, 0.3 s late",
        Begin(window=10**6, lags=0.3, piece=64),
        *[Ask("/some?30000")] * 10,
        answers=(Want(30_000),) * 10,
    ),
    http2(
        "takes two streams of 300 kB slowly over the window that they share",
        Begin(window=10**6, opens=False),
        *[Ask("/some?300000")] * 2,
        Open(34_000, every=0.2, count=17),
        answers=(Want(300_000),) * 2,
        quick=True,
    ),
    http2(
        "opens its window by SETTINGS",
        *(Begin(window=1_000, opens=False), Ask("/some?50000"), Rest(0.7), Settings(60_000)),
        answers=(Want(50_000),),
    ),
    http2(
        "sends a PING for each DATA that comes, as gRPC does",
        Begin(pings=True),
        Ask("/drops?250"),
        answers=(Want(2_500),),
        quick=True,
    ),
    http2(
        "sends a PING every 100 ms while it waits",
        *(Begin(), Ask("/slow?1.6"), Pings(15, every=0.1)),
        answers=(HELLO,),
        hears=tuple(_answered(number) for number in range(15)),
    ),
    http2(
        "cancels one of three streams",
        *(Begin(), Ask("/slow?0.6"), Ask("/slow?0.6"), Ask("/slow?0.6"), Rest(0.2), Cancel(1)),
        answers=(HELLO, Want(None, status=0), HELLO),
        quick=True,
    ),
    http2(
        "cancels an upload, and asks again",
        *(Begin(), POST, Body(0, b"he", end=False), Rest(0.3), Cancel(0), Rest(0.3), Ask()),
        answers=(Want(None, status=0), HELLO),
    ),
    http2(
        "sends its last DATA in the last 150 ms while another stream ends",
        *(Begin(), POST, Ask(), Rest(NEAR), Body(0, b"hello")),
        answers=(HELLO,) * 2,
    ),
    http2(
        "asks at a distance of 300 ms, after 0.4 s",
        *(*ASKED, Rest(0.4), Ask(), Done(1), Rest(0.4), POST, Body(2, b"hello")),
        answers=(HELLO,) * 3,
        lag=0.15,
    ),
    http2("connects, and sends nothing", limit="first_byte", since=0, quick=True),
    http2("sends half a preface", Send(PREFACE[:10]), limit="first_byte"),
    http2("exchanges settings, and never asks", Begin(), limit="keep_alive", quick=True),
    http2(
        "begins a block of headers",
        *(Begin(), Settled(), Send(HALF)),
        limit="headers",
        quick=True,
    ),
    http2(
        "begins a block of headers after an answer",
        *(*ASKED, Rest(0.5), Send(HALF.replace(b"\0\0\0\1", b"\0\0\0\3"))),
        limit="headers",
        quick=True,
    ),
    http2(
        "sends half a body",
        Begin(),
        POST,
        Body(0, b"he", end=False),
        limit="body",
        quick=True,
    ),
    http2(
        "drips a block of headers in empty frames",
        *(Begin(), Settled(), Send(HALF), Again((Send(_frame(CONTINUATION, b"")),), every=0.25)),
        limit="headers",
        since=3,
    ),
    http2("sends no body", Begin(), POST, limit="body"),
    http2(
        "sends no body, but empty DATA",
        *(Begin(), POST, Again((Send(_frame(DATA, b"")),), every=0.25)),
        limit="body",
        since=2,
    ),
    http2("half-closes in the middle of a body", Begin(), POST, Shut(), limit="body", done=True),
    http2(
        "never opens its window",
        Begin(window=1_000, opens=False),
        Ask("/some?50000"),
        limit="write",
        quick=True,
    ),
    http2(
        "never opens its window, and sends PINGs",
        *(Begin(window=1_000, opens=False), Ask("/some?50000"), Pings(20, every=0.2)),
        limit="write",
        since=2,
    ),
    http2(
        "never opens its window, and sends PRIORITY, and opens the connection's by a byte",
        *(Begin(window=1_000, opens=False), Ask("/some?50000")),
        Again((Send(MOVES_NOTHING),), every=0.2),
        limit="write",
        since=2,
    ),
    http2(
        "takes nothing from the kernel",
        *(Begin(window=2**30, opens=False), Open(2**30), Deaf(), Ask("/some?7000000")),
        limit="write",
    ),
    http2("says nothing after an answer", *ASKED, limit="keep_alive", quick=True),
    http2(
        "says nothing after a route of 1.3 s",
        *(Begin(), Ask("/slow?1.3"), Done(0)),
        limit="keep_alive",
    ),
    http2(
        "sends PINGs alone after an answer",
        *(*ASKED, Pings(20, every=0.2)),
        limit="keep_alive",
        since=3,
        quick=True,
    ),
    http2(
        "says nothing after an answer, while a child of the server holds its socket",
        *(Begin(), Ask("/fork?6"), Done(0)),
        limit="keep_alive",
        alone=True,
        quick=True,
    ),
)

LEFT_HTTP2 = (
    http2(
        "ask, say goodbye, and leave at once",
        *(Begin(), Ask("/told?3"), Done(0)),
        Leaves((Begin(), Ask("/tell?3")), LEAVERS),
        *(Ask(), Done(1), Rest(1.0), Ask("/told?3")),
        answers=(Want(None), HELLO, Want(str(LEAVERS).encode())),
        quick=True,
    ),
)
"""As `LEFT` of `kinds`: `conform` does not judge them."""

FLOODS = tuple(
    replace(
        kinds(Speech("http2"))[name],
        name=f"HTTP/2: {words}",
        limit="flood",
        alone=True,
        done=True,
    )
    for name, words in (
        ("rapid_reset", "resets 4,000 requests a second"),
        ("ping_flood", "sends 4,000 PINGs a second"),
        ("settings_flood", "sends 4,000 SETTINGS a second"),
    )
)
"""Dead ones that `conform` does not judge: what is too much, no limit of time says, and
they are no good beside others.
"""
