"""Two worlds for the tests of attach: real sockets and the real kernel, and a fake one
in virtual time.

Both have the same methods, and tests/attach/test_kernel.py puts the same questions to
both.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reaper.attach.kernel import Found, Linux, Listener, Sighted
from reaper.attach.netlink import Address, cookie_of
from reaper.attach.sockets import cookie, end
from reaper.attach.tcpinfo import ESTABLISHED, Snapshot


@dataclass
class FakeSocket:
    """A connection as the fake kernel knows it."""

    ident: bytes
    inode: int
    opened: float
    heard: float
    spoke: float
    stuck: float | None = None
    """Since when something has been queued and nothing taken."""
    received: int = 0
    acked: int = 0
    unread: int = 0
    queued: int = 0
    open: bool = True
    waits: bool = False
    """Whether it asked last: known of a socket in hand alone."""
    outgoing: bool | None = False
    """None: it is too busy to tell, or the kernel has miscounted."""
    miscounted: bool = False
    segments: int = 0


@dataclass
class FakeWorld:
    """Connections, and a clock that moves on demand.

    *takes*: seconds that each look takes; *jiffy*: seconds in which it reckons, 0: with
    infinite precision.
    """

    now: float = 1000.0
    takes: float = 0.0
    jiffy: float = 0.0
    port: int = 6379
    sockets: list[FakeSocket] = field(default_factory=list)
    looks: int = 0
    shut: list[FakeSocket] = field(default_factory=list)
    host: str = "127.0.0.1"

    @property
    def listener(self) -> Listener:
        return Listener(Address(self.host, self.port), socket.AF_INET)

    def connect(self) -> FakeSocket:
        number = len(self.sockets) + 1
        ident = struct.pack(
            "!HH4s12x4s12x", self.port, 20000 + number % 40000, b"\x7f\0\0\1", b"\x7f\0\0\2"
        )
        cookie = struct.pack("=IQ", 0, number)
        made = FakeSocket(ident + cookie, 5000 + number, self.now, self.now, self.now)
        self.sockets.append(made)
        return made

    def send(self, sock: FakeSocket, count: int = 1) -> None:
        sock.heard, sock.waits = self.now, True
        sock.received += count
        sock.segments += 1

    def leave_unread(self, sock: FakeSocket) -> None:
        self.send(sock, 3)
        sock.unread += 3

    def answer(self, sock: FakeSocket, count: int = 1) -> None:
        sock.spoke, sock.waits = self.now, False
        if sock.queued:
            sock.queued += count
        else:
            sock.acked += count

    def stall(self, sock: FakeSocket) -> None:
        sock.spoke, sock.waits = self.now, False
        sock.stuck = sock.stuck or self.now
        sock.queued += 100_000

    def take(self, sock: FakeSocket) -> None:
        sock.acked, sock.queued, sock.stuck = sock.acked + sock.queued, 0, None

    def hang_up(self, sock: FakeSocket) -> None:
        sock.open = False

    def sees_the_end(self, sock: FakeSocket) -> bool:
        return sock in self.shut

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def ident(self, sock: FakeSocket) -> bytes:
        return sock.ident

    def close(self) -> None:
        pass

    # -- as Linux and Hands

    def _snapshot(self, sock: FakeSocket) -> Snapshot | None:
        if not sock.open:
            return None
        before = self.now
        self.now += self.takes
        return Snapshot(
            ESTABLISHED, self._ago(sock.heard), self._ago(sock.spoke), sock.received, sock.acked,
            sock.unread, sock.queued, before, self.now, outgoing=sock.outgoing,
            sent=sock.acked + sock.queued, segments_in=sock.segments, miscounted=sock.miscounted,
        )  # fmt: skip

    def _ago(self, instant: float) -> float:
        j = self.jiffy
        return (int(self.now / j) - int(instant / j)) * j if j else self.now - instant

    def dump(self, listeners: Sequence[Listener], info: bool) -> Iterator[Found]:
        for sock in list(self.sockets):
            if sock.open:
                yield Found(
                    sock.ident, sock.inode, sock.queued, self._snapshot(sock) if info else None
                )

    def survey(self, listeners: Sequence[Listener], sighted: Sighted) -> Iterator[Found | None]:
        for found in self.dump(listeners, True):
            seen = found.snapshot
            assert seen is not None
            heard = seen.before - seen.received_ago - 0.008 if seen.received else 0.0
            yield None if sighted(found.ident, seen.before, heard, found.queued, 0) else found

    def look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        self.looks += len(idents)
        by_ident = {sock.ident: sock for sock in self.sockets}
        return [self._snapshot(by_ident[ident]) if ident in by_ident else None for ident in idents]

    def glance(
        self, idents: Sequence[bytes], sighted: Sighted
    ) -> Iterator[tuple[bytes, Snapshot | None]]:
        for ident, seen in zip(idents, self.look(idents), strict=True):
            if seen is not None:
                heard = seen.before - seen.received_ago - 0.008 if seen.received else 0.0
                if sighted(ident, seen.before, heard, seen.queued, 0):
                    continue
            yield ident, seen

    def end(self, ident: bytes, inode: int, again: Callable[[Snapshot], bool]) -> str:
        (seen,) = self.look([ident])
        self.looks -= 1
        if seen is None:
            return "gone"
        sock = next(sock for sock in self.sockets if sock.ident == ident)
        if not again(seen._replace(answered=not sock.waits)):
            return "averted"
        assert sock.open, "closed twice"
        sock.open = False
        self.shut.append(sock)
        return "closed"


class Pair(NamedTuple):
    """The client's and the server's end of a real connection."""

    client: socket.socket
    server: socket.socket


class RealWorld:
    """Real connections over the loopback, both ends in this process, seen by the real
    kernel.
    """

    def __init__(self) -> None:
        self._kept = ExitStack()
        self.close = self._kept.close
        self._listening = self._kept.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.kernel = self._kept.enter_context(closing(Linux()))
        self.pairs: list[Pair] = []
        self.look, self.dump = self.kernel.look, self.kernel.dump
        self.survey, self.glance = self.kernel.survey, self.kernel.glance

    @property
    def listener(self) -> Listener:
        return Listener(Address(*self._listening.getsockname()), socket.AF_INET)

    @property
    def now(self) -> float:
        return time.monotonic()

    def connect(self) -> Pair:
        client = self._kept.enter_context(
            socket.create_connection(self._listening.getsockname(), 20)
        )
        server = self._kept.enter_context(self._listening.accept()[0])
        server.settimeout(20)
        self.pairs.append(Pair(client, server))
        return self.pairs[-1]

    def send(self, pair: Pair, count: int = 1) -> None:
        pair.client.sendall(b"x" * count)
        received = 0
        while received < count:
            received += len(pair.server.recv(count))

    def leave_unread(self, pair: Pair) -> None:
        pair.client.sendall(b"xxx")
        assert select.select([pair.server], [], [], 5)[0]

    def answer(self, pair: Pair, count: int = 1) -> None:
        pair.server.sendall(b"y" * count)
        assert pair.client.recv(count)

    def stall(self, pair: Pair) -> None:
        pair.server.setblocking(False)
        with pair.server.dup() as sock:
            while True:
                try:
                    sock.send(b"z" * 65536)
                except BlockingIOError:
                    break

    def hang_up(self, pair: Pair) -> None:
        pair.client.close()
        pair.server.close()

    def sees_the_end(self, pair: Pair) -> bool:
        return bool(select.select([pair.client], [], [], 5)[0]) and pair.client.recv(1) == b""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def ident(self, pair: Pair) -> bytes:
        port = pair.client.getsockname()[1]
        for found in self.dump([self.listener], False):
            if struct.unpack_from("!H", found.ident, 2)[0] == port:
                return found.ident
        raise LookupError

    def end(self, ident: bytes, inode: int, again: Callable[[Snapshot], bool]) -> str:
        for pair in self.pairs:
            if pair.server.fileno() >= 0 and cookie(pair.server.fileno()) == cookie_of(ident):
                return end(os.dup(pair.server.fileno()), ident, again, time.monotonic)
        return "gone"


World = Any
"""A `FakeWorld` or a `RealWorld`; what they return is used by the same methods
alone.
"""
