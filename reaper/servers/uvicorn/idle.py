"""The protocol of a silent connection: before its first byte, and when it has rested
between two requests.

The rule of this module: *silence costs a transport, a lease, and nothing of uvicorn's*.
Protocol, parser and flow control are made when bytes come, and dropped when none have
come for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, ClassVar

from ...asyncio import transports
from ...asyncio.overload import refuse
from ...driver.sockets import TCP_NOTSENT_LOWAT
from ...policy import Phase
from .base import Guarded, age_of
from .shared import Origin, Shared

UNSENT_BYTES = 131072
"""Bytes that may wait unsent in the kernel; the rest waits in the transport, where it
is seen.
"""


class IdleProtocol(Guarded, asyncio.Protocol):
    """Takes the place of uvicorn's protocol while a connection is silent.

    Args:
        shared: Of the server.
        origin: The arguments of uvicorn's protocol.
    Attributes:
        half_closed: Whether the client sends no more.
    """

    __slots__ = ("__weakref__", "half_closed", "origin", "transport")

    RESTS: ClassVar[Phase] = Phase.KEEP_ALIVE

    def __init__(self, shared: Shared, origin: Origin) -> None:
        self.shared = shared
        self.origin: Origin = origin
        self.half_closed: bool = False
        self._over = True  # until there is a connection

    def connection_made(self, transport: Any) -> None:
        if not self.shared.reaper.welcomes():
            refuse(self.shared.reaper, transport, http=True)
            return
        self.transport = transport
        self.origin.server_state.connections.add(self)
        found = transports.socket_of(transport)
        if found is not None and found.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # the client is gone already
                found.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._begin(self.shared.first_byte, Phase.FIRST_BYTE.value)
        self.shared.reaper.relieve(transport)
        self._age = age_of(self)
        if self.shared.leave_by is not None:  # it came, or shook hands, while the server stops
            self.told()

    def rest(self, before: Guarded) -> None:
        """Take the place of *before*, a protocol of uvicorn's between two requests. The
        silence of the client goes on.
        """
        self.transport: Any = before.transport
        self._begin(self.shared.keep_alive, Phase.KEEP_ALIVE.value, before)
        before.hand_over(self)
        connections = self.origin.server_state.connections
        connections.discard(before)
        connections.add(self)
        self.transport.set_protocol(self)

    def wake(self) -> Any:
        """Put a protocol of uvicorn's in the place of this one, and return it."""
        kind, config, server_state, app_state, loop = self.origin
        made = object.__new__(kind)  # its own `__new__` makes an `IdleProtocol`
        made.__init__(config, server_state, app_state, loop)
        made.take_over(self)
        server_state.connections.discard(self)
        return made

    def data_received(self, data: bytes) -> None:
        fresh = self.phase() is Phase.FIRST_BYTE
        made = self.wake()
        made.data_received(data)
        if fresh:
            made.has_spoken()

    def eof_received(self) -> None:
        """The client sends no more; the loop closes the connection."""
        self.half_closed = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.origin.server_state.connections.discard(self)
        self._left(by_peer=exc is not None or self.half_closed)

    def shutdown(self) -> None:
        """uvicorn says that the server stops."""
        if not self._over:
            self.stop_in_turn()

    def told(self) -> None:
        """uvicorn's protocol is told: it knows how to end a connection."""
        if not self._over:
            self.wake().told()

    def grew_old(self) -> None:
        self.wake().grew_old()

    def phase(self) -> Phase:
        return self._believed()

    def _rests_in(self, phase: Phase) -> bool:
        return True

    @property
    def client(self) -> Any:
        """The client's address, as uvicorn knows it; None where the socket is a Unix
        socket, whose name is not the client's.
        """
        found = self.transport.get_extra_info("peername")
        return found if isinstance(found, tuple) else None
