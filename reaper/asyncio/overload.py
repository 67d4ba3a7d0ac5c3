"""What a connection hears that is one too many: `limits.max_connections` are open, or
descriptors or memory have run out (`reaper.pressure`).

The rule of this module: *a client that is refused is told so, at a bounded cost*. A
refused connection gets no protocol of the server's. It has `timeouts.linger` seconds to
say what it wants, and is answered 503; a WebSocket is opened and closed with 1013, "try
again later", because a browser shows its script no other refusal. Over HTTP/2 the
answer is GOAWAY, which names no stream: so the client knows that nothing was done, and
may ask elsewhere or again. At most `REFUSALS` are answered at the same time; further
ones are reset.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from typing import Any

from . import closing
from .reaper import AsyncioReaper

REFUSALS = 64
"""Refused connections of one loop that are answered at the same time."""

HEAD_BYTES = 16384
"""A refused client that has sent more than this without the end of a head is answered,
too.
"""

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"connection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"
)

TRY_AGAIN_LATER = b"\x88\x02" + (1013).to_bytes(2, "big")
"""A WebSocket close frame, code 1013."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
GOODBYE = b"\0\0\0\4\0\0\0\0\0\0\0\10\7\0\0\0\0\0" + bytes(8)
"""SETTINGS, which has to come first, and GOAWAY: last stream 0, NO_ERROR (RFC 9113,
6.8).
"""

ACCEPT_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3

_KEY = re.compile(rb"\r\nsec-websocket-key:[ \t]*([!-~]+)[ \t]*\r\n", re.IGNORECASE)


def refuse(
    reaper: AsyncioReaper,
    transport: Any,
    *,
    http: bool,
    heard: bytes = b"",
    writer: object = None,
) -> None:
    """Refuse the connection of *transport*, which has just been made.

    Args:
        http: Whether its client speaks HTTP; otherwise the connection is closed without
            an answer.
        heard: What has been read of it already.
        writer: The `StreamWriter` that its server has for it. One that nobody holds
            closes its transport; before CPython 3.14, when it is collected.
    """
    reaper.refused += 1
    if not http or reaper.refusing >= REFUSALS:
        closing.reset(transport)
        return
    refusal = Refusal(reaper, writer)
    transport.set_protocol(refusal)
    refusal.connection_made(transport)
    if heard:
        refusal.data_received(heard)


def head_of(heard: bytes) -> bytes | None:
    """The head with which what was *heard* begins, or as much of it as is looked at;
    None: more of it has to come.
    """
    end = heard.find(b"\r\n\r\n")
    if end >= 0:
        return heard[: end + 4]
    return heard if len(heard) > HEAD_BYTES else None


def answer_to(head: bytes) -> bytes:
    """What a client is told that has sent *head*, or the beginning of one."""
    if head == PREFACE:
        return GOODBYE
    key = _KEY.search(head)
    if key is None or not head.endswith(b"\r\n\r\n"):
        return BUSY
    accept = base64.b64encode(hashlib.sha1(key[1] + ACCEPT_KEY, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %s\r\n\r\n%s" % (accept, TRY_AGAIN_LATER)
    )


class Refusal(asyncio.Protocol):
    """The protocol of a connection that is refused.

    Args:
        reaper: Of the loop; it counts the refusals under way.
        writer: Held as long as this.
    """

    __slots__ = ("_answered", "_heard", "_reaper", "_timer", "_transport", "_writer")

    def __init__(self, reaper: AsyncioReaper, writer: object = None) -> None:
        self._reaper = reaper
        self._writer = writer
        self._heard = b""
        self._answered = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._reaper.refusing += 1
        seconds = self._reaper.config.timeouts.linger or self._reaper.core.tick
        self._timer = self._reaper.loop.call_later(seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # read, and thrown away: unread bytes would make the close a reset
        self._heard += data
        head = head_of(self._heard)
        if head is not None:
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        self._answered = True
        self._heard = b""
        self._transport.write(answer_to(head))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:  # TLS
            closing.close(self._reaper, self._transport, b"")

    def _give_up(self) -> None:
        farewell = b"" if self._answered else BUSY
        closing.close(self._reaper, self._transport, farewell)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._reaper.refusing -= 1
