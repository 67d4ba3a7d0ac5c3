"""The server of websockets, guarded: `serve(..., create_connection=reaper.websockets.connection(idle=300))`.

The rule of this module: *messages count, pings do not*. That the peer is alive is found out by the pings of websockets
itself; here a connection is closed on which nothing has been said.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode, Frame, Opcode

from ..asyncio import transports
from ..asyncio.protocols import TransportConnection
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..core.ticks import check_timeout

MESSAGES: frozenset[Opcode] = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})


class _Silent(TransportConnection):
    """Closes with the goodbye of the protocol; websockets itself bounds how long that may take."""

    __slots__ = ("goodbye", "websocket")

    goodbye: asyncio.Task[None]
    websocket: ServerConnection

    def _cut(self, reason: str) -> None:
        self.goodbye = asyncio.get_running_loop().create_task(
            self.websocket.close(CloseCode.GOING_AWAY, f"reaped: {reason}")
        )


class GuardedConnection(ServerConnection):
    """A connection of websockets' that is closed when no message has passed for `idle` seconds.

    Attributes:
        idle: Seconds; 0 switches the timeout off; None takes the config's `timeouts.tunnel`.
        reaper: Watches; None: the loop's own.
        watch: What watches it.
    """

    idle: float | None = None
    reaper: AsyncioReaper | None = None
    watch: _Silent

    def connection_made(self, transport: Any) -> None:
        """Begin to watch."""
        reaper = reaper_of() if self.reaper is None else self.reaper
        driver = reaper.driver
        idle = reaper.config.timeouts.tunnel if self.idle is None else self.idle
        self.watch = driver.watch(
            lambda uid: _Silent(driver, uid, transport), transports.socket_of(transport), idle, reason="tunnel"
        )
        self.watch.websocket = self
        super().connection_made(transport)

    def process_event(self, event: Any) -> None:
        """A frame, or the request that opens the connection."""
        if not isinstance(event, Frame) or event.opcode in MESSAGES:
            self.watch.touch()
        super().process_event(event)

    async def send(self, message: Any, *arguments: Any, **options: Any) -> None:
        """As websockets'."""
        self.watch.touch()
        await super().send(message, *arguments, **options)

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no longer."""
        self.watch.hung_up = exc is not None
        self.watch.leave()
        super().connection_lost(exc)


def connection(idle: float | None = None, *, reaper: AsyncioReaper | None = None) -> type[GuardedConnection]:
    """A class for `websockets.asyncio.server.serve(..., create_connection=...)`.

    Args:
        idle: Seconds in which no message passes, either way; 0 switches the timeout off; None takes the config's
            `timeouts.tunnel`.
        reaper: Watches; None: the loop's own.
    Raises:
        InvalidArgument: idle is NaN, negative or infinite.
    """
    if idle is not None and idle != 0:
        check_timeout("idle", idle)
    return type("GuardedConnection", (GuardedConnection,), {"idle": idle, "reaper": reaper})
