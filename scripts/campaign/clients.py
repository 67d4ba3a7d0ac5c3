"""Clients of a server under trial: healthy ones that keep an account of what was lost, and attackers.

One rule: *a client is lost if the server ended it although it kept the server's rules*. What a client does by itself is
never counted against the server.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 20.0
"""Seconds for an answer; the servers are paused for less."""

Address = tuple[str, int]


@dataclass
class Account:
    """What healthy clients saw."""

    asked: int = 0
    late: int = 0
    """Not judged: the client itself was so late with its request that the server may have closed before."""
    lost: list[str] = field(default_factory=list)
    worst: float = 0.0
    """Seconds that the slowest answer took."""

    def answered(self, began: float) -> None:
        self.worst = max(self.worst, time.monotonic() - began)

    @property
    def losses(self) -> dict[str, int]:
        """How often each kind of loss happened."""
        return dict(Counter(self.lost))


LATE = "late: the client took too long itself"
OWN_LAG = 1.0
"""Seconds from connect(2) to the request; from here on the client is not judged. Servers on trial wait for 2 s."""


async def ask(address: Address, target: str = "/") -> str:
    """One request on a connection of its own; "" if it was answered with 200, else what went wrong."""
    began = time.monotonic()
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), PATIENCE)
    except (OSError, TimeoutError) as error:
        return f"connect: {type(error).__name__}"
    try:
        writer.write(f"GET {target} HTTP/1.1\r\nHost: campaign\r\nConnection: close\r\n\r\n".encode())
        if time.monotonic() - began > OWN_LAG:
            return LATE
        said = await asyncio.wait_for(reader.read(), PATIENCE)
    except (OSError, TimeoutError) as error:
        return f"answer: {type(error).__name__}"
    finally:
        await finish(writer)
    if not said:
        return "answer: closed before the first byte"
    status = said.split(None, 2)[1:2]
    return "" if status == [b"200"] else f"status {status[0].decode() if status else said[:20]!r}"


async def finish(writer: asyncio.StreamWriter) -> None:
    """Close it, whatever state it is in."""
    writer.close()
    with suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)


async def keep_asking(address: Address, until: Callable[[], bool], account: Account, pause: float = 0.0) -> None:
    """Requests one after the other, each on a connection of its own, until *until()* is true."""
    while not until():
        account.asked += 1
        began = time.monotonic()
        problem = await ask(address)
        if problem == LATE:
            account.late += 1
        elif problem:
            account.lost.append(problem)
        account.answered(began)
        await asyncio.sleep(pause)


class Talker:
    """A client of the echo server, or of the HTTP server with keep-alive, that says something every *interval*."""

    def __init__(self, address: Address, account: Account, interval: float, *, http: bool = False) -> None:
        self.address = address
        self.account = account
        self.interval = interval
        self.port = 0
        """Its own, to tell by which worker it is served."""
        self.lost = ""
        self._said = b"GET / HTTP/1.1\r\nHost: campaign\r\n\r\n" if http else b"x" * 64
        self._http = http

    async def talk(self, until: Callable[[], bool]) -> None:
        """Until *until()* is true, or the server ends it: then `lost` says how."""
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*self.address), PATIENCE)
        except (OSError, TimeoutError) as error:
            self._lose(f"connect: {type(error).__name__}")
            return
        self.port = writer.get_extra_info("sockname")[1]
        try:
            while not until():
                began = time.monotonic()
                self.account.asked += 1
                writer.write(self._said)
                await asyncio.wait_for(self._answer(reader), PATIENCE)
                self.account.answered(began)
                await asyncio.sleep(self.interval * random.uniform(0.5, 1.0))
        except (OSError, EOFError, TimeoutError) as error:
            self._lose(f"talk: {type(error).__name__}")
        finally:
            await finish(writer)

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        if not self._http:
            await reader.readexactly(len(self._said))
            return
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))

    def _lose(self, why: str) -> None:
        self.lost = why
        self.account.lost.append(why)


# ---- attackers: each holds a connection as long as the server lets it ---------------------------------------------

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

POST = b"POST /upload HTTP/1.1\r\nHost: campaign\r\n"


async def _silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def _drip(writer: asyncio.StreamWriter, first: bytes, piece: bytes, pause: float) -> None:
    writer.write(first)
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


async def _headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _drip(writer, b"GET / HTTP/1.1\r\n", b"X-A: b\r\n", 0.4)


async def _second_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\nHost: campaign\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await _drip(writer, b"GET / HTTP/1.1\r\n", b"X-A: b\r\n", 0.4)


async def _body(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _drip(writer, POST + b"Content-Length: 100000\r\n\r\n", b"x", 0.4)


async def _stalled_body(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 500)
    await asyncio.sleep(3600)


async def _chunks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _drip(writer, POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"e" * 200 + b"\r\nx\r\n", 0.4)


async def _one_byte_chunks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _drip(writer, POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 2000, 0.2)


async def _unread(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /download?bytes=20000000 HTTP/1.1\r\nHost: campaign\r\n\r\n")
    await asyncio.sleep(3600)


async def _half_closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /download?bytes=20000000 HTTP/1.1\r\nHost: campaign\r\n\r\n")
    writer.write_eof()
    await asyncio.sleep(3600)


async def _ghost(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /sleep?s=60 HTTP/1.1\r\nHost: campaign\r\n\r\n")
    await writer.drain()
    connected: socket.socket = writer.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _drip(writer, b"", random.randbytes(200), 0.3)


async def _pipelined(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await _drip(writer, b"", b"GET /download?bytes=65536 HTTP/1.1\r\nHost: campaign\r\n\r\n" * 20, 0.5)


ATTACKS: dict[str, Attack] = {
    "silent": _silent,
    "dripped headers": _headers,
    "dripped headers of a second request": _second_headers,
    "dripped body": _body,
    "stalled body": _stalled_body,
    "chunk extensions": _chunks,
    "one-byte chunks": _one_byte_chunks,
    "unread answer": _unread,
    "half-closed, unread answer": _half_closed,
    "reset request": _ghost,
    "garbage": _garbage,
    "pipelined, unread": _pipelined,
}
"""Those that hold nothing, one byte, or a window of the server's, and those that make it work."""


async def attack(address: Address, kind: str, until: Callable[[], bool]) -> None:
    """One attacker, who connects again whenever the server has ended the connection, until *until()* is true."""
    while not until():
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), PATIENCE)
        except (OSError, TimeoutError):
            await asyncio.sleep(1.0)
            continue
        # What its own kernel has taken outlives an attacker: megabytes that a server reads long after the attack.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        held = asyncio.ensure_future(ATTACKS[kind](reader, writer))
        gone = asyncio.ensure_future(_gone(writer))
        try:
            while not until() and not held.done() and not gone.done():
                await asyncio.wait({held, gone}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (held, gone):
                each.cancel()
                with suppress(asyncio.CancelledError, OSError, EOFError, asyncio.LimitOverrunError):
                    await each
            writer.transport.abort()
        await asyncio.sleep(0.2)


async def _gone(writer: asyncio.StreamWriter) -> None:
    """Returns when the server has ended the connection, also where nothing is read."""
    connected: socket.socket = writer.get_extra_info("socket")
    while connected.fileno() >= 0:
        with suppress(OSError):
            state = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            if state != 1 and state != 4 and state != 5:  # ESTABLISHED, FIN_WAIT1, FIN_WAIT2: it is held
                return
        await asyncio.sleep(0.5)
