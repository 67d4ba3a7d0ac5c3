"""hypercorn on trio: its one method that meets every connection is wrapped, and its stream says
when a phase begins.

One rule: *what ends a connection is the end of its socket*. hypercorn shields what it sends from
cancellation, so a peer that takes nothing could not be cut otherwise; its tasks meet a closed
resource, which they know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from ..driver.driver import Driver
from ..driver.watched import Watched
from ..policy import IdlePolicy, Phase
from ..policy.min_rate import NoSweep
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
    Attributes:
        policy: Which timeout is in force.
    """

    __slots__ = ("_server", "_socket", "policy")

    policy: IdlePolicy

    def __init__(self, driver: Driver, uid: int, server: Any, stream: Any) -> None:
        super().__init__(driver, uid)
        self._server = server
        self._socket = socket_of(stream)
        self.receiving: bool | None = True

    @property
    def descriptor(self) -> int:
        return int(self._socket.fileno())

    def _cut(self, reason: str) -> None:
        self._socket.close()

    def look(self) -> None:
        """A phase may have begun: before the next bytes are awaited, and after something was sent."""
        phase = hypercorn(self._server)
        if phase is Phase.KEEP_ALIVE and hypercorn_waits(self._server):
            phase = Phase.HEADERS
        elif phase is Phase.KEEP_ALIVE and self.policy.phase is Phase.FIRST_BYTE:
            return
        self.enter(phase)

    def enter(self, phase: Phase) -> None:
        """It waits for *phase* from now on."""
        if self.lease.alive:
            self.policy.enter(phase, self._driver.now())


def hypercorn_waits(server: Any) -> bool:
    """Whether a part of a request's head has come."""
    inner = getattr(getattr(server, "protocol", None), "protocol", None)
    found = getattr(getattr(inner, "connection", None), "trailing_data", None)
    return bool(found and found[0])


class Stream:
    """The *inner* stream of *connection*; what passes is noted."""

    def __init__(self, inner: Any, connection: Served, now: Callable[[], float]) -> None:
        self._inner = inner
        self._connection = connection
        self._now = now

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        connection = self._connection
        connection.look()
        data: bytes = await self._inner.receive_some(max_bytes)
        connection.policy.bytes_in(len(data), self._now())
        return data

    async def send_all(self, data: Any) -> None:
        """As the inner stream's, a piece at a time."""
        connection = self._connection
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            connection.enter(Phase.WRITE)
            await self._inner.send_all(view[start : start + PIECE])
            connection.policy.bytes_out(PIECE, self._now())
        connection.look()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def guarded_run(run: Any, self: Any) -> None:
    """In the place of *run* of *self*, hypercorn's `TCPServer` on trio: serve its connection,
    guarded.
    """
    reaper = await running_reaper()
    stream = self.stream
    connection: Served = reaper.driver.watch(
        lambda uid: Served(reaper.driver, uid, self, stream),
        socket_of(stream),
        reaper.config.timeouts.first_byte,
        reason=Phase.FIRST_BYTE.value,
    )
    now = reaper.driver.now
    connection.policy = IdlePolicy(reaper.config, connection, now(), NoSweep(), int)
    self.stream = Stream(stream, connection, now)
    try:
        await run(self)
    finally:
        connection.leave()
        del connection.policy  # a circle
