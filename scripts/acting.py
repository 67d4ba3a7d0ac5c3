"""A client of the load generator that does its acts when it is told to: for who does
something else between two of them.

One rule: *it hears only while it acts*. Between two acts it reads nothing, and what has
come waits in its kernel.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from loadgen.drive.wire import Tls
from loadgen.plan.acts import Act, Kind
from loadgen.playing.client import Client
from loadgen.playing.play import client_of

PATIENCE = 60.0
"""Seconds for all that it is told at once."""


class Actor:
    """A client on *sock*, which is connected, and closed with it; it *speaks* what a
    `Kind` may.

    Attributes:
        client: What it has heard, and all else that such a client knows.

    Raises:
        Gone: the connection ended before an act could be done.
        TimeoutError: one could not be done in time.
    """

    def __init__(self, sock: socket.socket, speaks: str = "http", tls: Tls | None = None) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._runner = asyncio.Runner()
        self.client: Any = None
        self._run(self._begin(Kind(name="acts", speaks=speaks, acts=()), tls))

    async def _begin(self, kind: Kind, tls: Tls | None) -> None:
        client: Client = client_of(kind, self.sock, 0.0, tls)
        await client.shake()
        client.hear()
        self.client = client

    def do(self, *acts: Act) -> None:
        """Do *acts*, one after the other."""

        async def all_of_them() -> None:
            for act in acts:
                await self.client.do(act)

        self._run(all_of_them())

    def until(self, holds: Callable[[], bool]) -> None:
        """Hear until *holds*."""
        self._run(self.client.until(holds))

    def rests(self) -> str:
        """Hear until the server ends the connection, and return how."""
        self._run(self.client.over.wait())
        return str(self.client.seen.how)

    def _run(self, act: Coroutine[Any, Any, object]) -> None:
        async def soon() -> None:
            async with asyncio.timeout(PATIENCE):
                await act

        self._runner.run(soon())

    def close(self) -> None:
        """Leave."""
        self._runner.close()  # before its descriptor is another's
        self.sock.close()
