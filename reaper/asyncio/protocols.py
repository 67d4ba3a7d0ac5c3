"""A protocol of your own whose connection is closed when it goes silent."""

from __future__ import annotations

import asyncio
from functools import partial

from ..driver.watched import check_idle
from .closing import close
from .connection import Connection
from .reaper import AsyncioReaper, reaper_of
from .transports import socket_of


class Protocol(asyncio.Protocol):
    """A protocol whose connection is closed when nothing has been received for `idle`
    seconds.

    Derive from it, and call `super()` in `connection_made`, `data_received` and
    `connection_lost`, and in `eof_received` if you have one. While a request is being
    worked on: `with self.connection.in_use(): ...`, or `suspend()` and `resume()` of
    it.

    Attributes:
        idle: Seconds of silence allowed; 0 switches the timeout off; None takes the
            reaper's own `idle`.
        reaper: Watches; None: the loop's own.
        connection: What it watches, from `connection_made` on.
    """

    idle: float | None = None
    reaper: AsyncioReaper | None = None
    connection: Connection

    def __init_subclass__(cls, **arguments: object) -> None:
        """Refuse an `idle` that no connection could be watched by. Raises
        InvalidArgument.
        """
        super().__init_subclass__(**arguments)
        check_idle(cls.idle)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Watch the connection from now on."""
        reaper = reaper_of() if self.reaper is None else self.reaper
        driver, cut = reaper.driver, partial(close, reaper)
        self.connection = driver.watch(
            lambda uid: Connection(driver, uid, transport, cut), socket_of(transport), self.idle
        )
        reaper.relieve(transport)

    def data_received(self, data: bytes) -> None:
        """Touch the connection."""
        self.connection.touch()

    def eof_received(self) -> bool | None:
        """Note that the peer will send no more."""
        self.connection.hung_up = True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch the connection no longer."""
        self.connection.lost(exc)
