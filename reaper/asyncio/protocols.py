"""A protocol of your own whose connection is closed when it goes silent."""

from __future__ import annotations

import asyncio
from typing import Any

from ..driver.watched import Watched
from .closing import close
from .reaper import AsyncioReaper, reaper_of
from .transports import descriptor_of, peer_has_shut, socket_of


class TransportConnection(Watched):
    """A watched connection that has no task: its transport is closed."""

    __slots__ = ("_reaper", "transport")

    def __init__(self, reaper: AsyncioReaper, uid: int, transport: Any) -> None:
        super().__init__(reaper.driver, uid)
        self._reaper = reaper
        self.transport: Any = transport
        self.receiving: bool | None = True  # until it says `in_use`

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it is closed."""
        return descriptor_of(self.transport)

    def lost(self, exc: BaseException | None) -> None:
        """Its transport is closed: by its peer if there was an error, or it has shut its side before."""
        self.hung_up: bool = self.hung_up or exc is not None or peer_has_shut(self.transport)
        self.leave()

    def _cut(self, reason: str) -> None:
        close(self._reaper, self.transport)


class Protocol(asyncio.Protocol):
    """A protocol whose connection is closed when nothing has been received for `idle` seconds.

    Derive from it, and call `super()` in `connection_made`, `data_received` and `connection_lost`, and in
    `eof_received` if you have one. While a request is being worked on: `with self.connection.in_use(): ...`, or
    `suspend()` and `resume()` of it.

    Attributes:
        idle: Seconds of silence allowed; 0 switches the timeout off; None takes the reaper's own `idle`.
        reaper: Watches; None: the loop's own.
        connection: What it watches, from `connection_made` on.
    """

    idle: float | None = None
    reaper: AsyncioReaper | None = None
    connection: TransportConnection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch."""
        reaper = reaper_of() if self.reaper is None else self.reaper
        self.connection = reaper.driver.watch(
            lambda uid: TransportConnection(reaper, uid, transport), socket_of(transport), self.idle
        )

    def data_received(self, data: bytes) -> None:
        """Touch."""
        self.connection.touch()

    def eof_received(self) -> bool | None:
        """The peer sends no more."""
        self.connection.hung_up = True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no longer."""
        self.connection.lost(exc)
