"""A protocol of asyncio that sends back what it hears, and how a guard may see it."""

from __future__ import annotations

import asyncio
from typing import Any

from reaper.asyncio.guards import OnTransport
from reaper.policy import Phase


class Echo(asyncio.Protocol):
    """It calls what stands behind it in the order of classes: a guard may be mixed
    in.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


class Resting(OnTransport):
    """A connection of a server that always waits for a request."""

    def phase(self) -> Phase:
        return Phase.KEEP_ALIVE
