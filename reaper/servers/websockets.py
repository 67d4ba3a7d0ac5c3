"""The server of websockets, guarded: `serve(..., create_connection=reaper.websockets.connection(idle=300))`.

The rule of this module: *messages count, pings do not*, and of a message every byte: those of an unfinished one that
come, and those of a long one that the peer takes. The pings of websockets itself find out that the peer is alive.
Tried with websockets 14.0 to 17.4.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State

from ..asyncio import transports
from ..asyncio.closing import close
from ..asyncio.protocols import TransportConnection
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..core.ticks import check_timeout

MESSAGES: frozenset[Opcode] = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})

LONG = 16384
"""Bytes; whether the peer takes a message longer than that is looked at."""


class _Silent(TransportConnection):
    """Closes with the goodbye of the protocol; websockets itself bounds how long that may take."""

    __slots__ = ("_progress", "goodbye", "websocket")

    goodbye: asyncio.Task[None]
    websocket: ServerConnection

    def __init__(self, reaper: AsyncioReaper, uid: int, transport: Any) -> None:
        super().__init__(reaper, uid, transport)
        self._progress: transports.Progress | None = None

    def _cut(self, reason: str) -> None:
        if self.websocket.state is State.CONNECTING:  # there is nobody to say goodbye to
            close(self._reaper, self.transport)
            return
        goodbye = self.websocket.close(CloseCode.GOING_AWAY, f"reaped: {reason}")
        self.goodbye = asyncio.get_running_loop().create_task(goodbye)

    def long_one_sent(self) -> None:
        """A message was written that its peer needs time to take."""
        if self._progress is None:
            self._progress = transports.Progress(self.transport)
            self._reaper.sweep.add(self)

    def charge(self, now: float) -> None:
        """As a member of the sweep: whether the peer has taken something."""
        if self._progress is None or not self.lease.alive or not transports.queued(self.transport):
            self._progress = None
            self._reaper.sweep.discard(self)
        elif self._progress.taken():
            self.touch()


class GuardedConnection(ServerConnection):
    """A connection of websockets' that is closed when nothing of a message has passed for `idle` seconds.

    Attributes:
        idle: Seconds; 0 switches the timeout off; None takes the config's `timeouts.tunnel`.
        reaper: Watches; None: the loop's own.
        watch: What watches it.
    """

    idle: float | None = None
    reaper: AsyncioReaper | None = None
    watch: _Silent

    def connection_made(self, transport: Any) -> None:
        reaper = reaper_of() if self.reaper is None else self.reaper
        idle = reaper.config.timeouts.tunnel if self.idle is None else self.idle
        self.watch = reaper.driver.watch(
            lambda uid: _Silent(reaper, uid, transport), transports.socket_of(transport), idle, reason="tunnel"
        )
        self.watch.websocket = self
        super().connection_made(transport)

    def process_event(self, event: Any) -> None:
        """A frame, or the request that opens the connection."""
        if not isinstance(event, Frame) or event.opcode in MESSAGES:
            self.watch.touch()
        super().process_event(event)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.protocol.state is State.OPEN and self.protocol.reader.buffer:
            self.watch.touch()  # part of a message

    def send_data(self) -> None:
        """What is to be sent goes out; `websockets.broadcast` comes by here too."""
        # The low half of a frame's first byte is its opcode; of an HTTP response's, 8.
        said = sum(len(data) for data in self.protocol.writes if data and data[0] & 0x0F in MESSAGES)
        super().send_data()
        if said:
            self.watch.touch()
            if said > LONG:
                self.watch.long_one_sent()

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.lost(exc)
        super().connection_lost(exc)


def connection(idle: float | None = None, *, reaper: AsyncioReaper | None = None) -> type[GuardedConnection]:
    """A class for `websockets.asyncio.server.serve(..., create_connection=...)`.

    Args:
        idle: Seconds in which nothing of a message passes, either way; 0 switches the timeout off; None takes the
            config's `timeouts.tunnel`.
        reaper: Watches; None: the loop's own.
    Raises:
        InvalidArgument: idle is NaN, negative or infinite.
    """
    if idle is not None and idle != 0:
        check_timeout("idle", idle)
    return type("GuardedConnection", (GuardedConnection,), {"idle": idle, "reaper": reaper})
