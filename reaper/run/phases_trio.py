"""hypercorn on trio: its one method that meets every connection is wrapped, and its stream says when a phase begins.

One rule: *what ends a connection is the end of its socket*. hypercorn shields what it sends from cancellation, so a
peer that takes nothing could not be cut otherwise; its tasks meet a closed resource, which they know.
"""

from __future__ import annotations

from typing import Any

import trio

from ..core.lease import Lease
from ..driver.driver import Driver
from ..driver.watched import Watched
from ..policy import Phase
from ..trio.connection import socket_of
from ..trio.reaper import TrioReaper
from .phases import hypercorn
from .report import load

PIECE = 65536
"""Bytes sent at a time: a client that takes one is alive."""

_OF_RUN: trio.lowlevel.RunVar[TrioReaper] = trio.lowlevel.RunVar("reaper.run")


async def running_reaper() -> TrioReaper:
    """The one of this trio run, which runs until it ends."""
    try:
        reaper = _OF_RUN.get()
    except LookupError:
        reaper = TrioReaper(load())
        _OF_RUN.set(reaper)
        trio.lowlevel.spawn_system_task(reaper.run)
    while not reaper.running:
        await trio.lowlevel.checkpoint()
    return reaper


class Served(Watched):
    """A connection of hypercorn's.

    Args:
        server: Its `TCPServer`.
        stream: The server's, TLS or not.
    """

    __slots__ = ("_begun", "_headers", "_phase", "_server", "_socket", "_timeouts")

    def __init__(self, reaper: TrioReaper, uid: int, server: Any, stream: Any) -> None:
        driver: Driver = reaper.driver
        super().__init__(driver, uid)
        self._server = server
        self._socket = socket_of(stream)
        self._timeouts = reaper.config.timeouts
        self._phase: Phase | None = Phase.FIRST_BYTE
        self._begun = False
        self._headers: Lease | None = None
        self.receiving: bool | None = True

    @property
    def descriptor(self) -> int:
        return int(self._socket.fileno())

    def _cut(self, reason: str) -> None:
        self._socket.close()

    def came(self) -> None:
        """Bytes came. Only those of a body or a tunnel extend what holds."""
        self._begun = True
        if self._phase in (Phase.BODY, Phase.TUNNEL):
            self.touch()

    def look(self) -> None:
        """A phase may have begun: before the next bytes are awaited, and after something was sent."""
        phase = hypercorn(self._server)
        if phase is Phase.KEEP_ALIVE:
            waits = hypercorn_waits(self._server)
            phase = Phase.HEADERS if waits else Phase.KEEP_ALIVE if self._begun else Phase.FIRST_BYTE
        if phase is self._phase or not self.lease.alive:
            return
        self._phase = phase
        if self._headers is not None:
            self._headers.release()
            self._headers = None
        if phase is Phase.IN_FLIGHT:
            self.suspend()
            return
        self.resume()
        self.touch()
        self.retime(0.0 if phase is Phase.HEADERS else getattr(self._timeouts, phase.value), phase.value)
        if phase is Phase.HEADERS and self._timeouts.headers:
            self._headers = self.deadline(self._timeouts.headers, "headers")

    def sending(self) -> None:
        """The peer is to take something."""
        self._phase = None
        self.resume()
        self.touch()
        self.retime(self._timeouts.write, "write")


def hypercorn_waits(server: Any) -> bool:
    """Whether a part of a request's head has come."""
    inner = getattr(getattr(server, "protocol", None), "protocol", None)
    found = getattr(getattr(inner, "connection", None), "trailing_data", None)
    return bool(found and found[0])


class Stream:
    """The stream of *connection*, which notes what passes. What it has not is its *inner* stream's."""

    def __init__(self, inner: Any, connection: Served) -> None:
        self._inner = inner
        self._connection = connection

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        connection = self._connection
        connection.look()
        data: bytes = await self._inner.receive_some(max_bytes)
        connection.came()
        return data

    async def send_all(self, data: Any) -> None:
        """As the inner stream's, a piece at a time."""
        connection = self._connection
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            connection.sending()
            await self._inner.send_all(view[start : start + PIECE])
        connection.look()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def guarded_run(run: Any, self: Any) -> None:
    """In the place of *run* of *self*, hypercorn's `TCPServer` on trio: serve its connection, guarded."""
    reaper = await running_reaper()
    stream = self.stream
    connection: Served = reaper.driver.watch(
        lambda uid: Served(reaper, uid, self, stream),
        socket_of(stream),
        reaper.config.timeouts.first_byte,
        reason=Phase.FIRST_BYTE.value,
    )
    self.stream = Stream(stream, connection)
    try:
        await run(self)
    finally:
        connection.leave()
