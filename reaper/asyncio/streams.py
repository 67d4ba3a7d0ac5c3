"""The reader of a stream whose connection is closed when it goes silent.

The rule of this module: *the handler need know nothing of it*. Bytes that come touch the connection, however it reads
them; a call that waits for bytes says so, which is how a drain tells the idle from the busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from .connection import Connection


class WatchedReader(asyncio.StreamReader):
    """A reader that tells its connection of the bytes that come, and of the calls that wait for them.

    Attributes:
        connection: The `Connection`; None until the handler begins.
    """

    connection: Connection | None = None

    def feed_data(self, data: Any) -> None:
        """Bytes came."""
        if self.connection is not None:
            self.connection.touch()
        super().feed_data(data)

    def feed_eof(self) -> None:
        """No more will come."""
        if self.connection is not None:
            self.connection.hung_up = True
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        """The connection is lost."""
        if self.connection is not None:
            self.connection.hung_up = True
        super().set_exception(exc)

    async def read(self, n: int = -1) -> bytes:
        """As asyncio's."""
        return await self._receiving(super().read(n))

    async def readexactly(self, n: int) -> bytes:
        """As asyncio's."""
        return await self._receiving(super().readexactly(n))

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """As asyncio's; `readline` comes by here too."""
        return await self._receiving(super().readuntil(separator))

    async def _receiving(self, reading: Awaitable[bytes]) -> bytes:
        connection = self.connection
        if connection is None:
            return await reading
        connection.waits_for_bytes(True)
        try:
            return await reading
        finally:
            connection.waits_for_bytes(False)
