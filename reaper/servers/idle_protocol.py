"""A connection of uvicorn's while it is silent: before its first byte, and when it has rested between two requests.

The rule of this module: *silence costs a transport, a lease, and nothing of uvicorn's*. Its protocol, parser and flow
control are made when bytes come, and dropped when none have come for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, ClassVar, NamedTuple

from ..asyncio import transports
from ..driver.sockets import TCP_NOTSENT_LOWAT
from ..policy import Phase
from .guarded import FRESH, Fresh, Guarded
from .waiting import Shared, Waiting

UNSENT_BYTES = 131072
"""What the kernel may hold that is not even on its way; the rest waits in the transport, where it is seen."""


class Origin(NamedTuple):
    """What uvicorn gives to each of its protocols; one for all connections of a server."""

    kind: type[Any]
    config: Any
    server_state: Any
    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop | None


class IdleProtocol(Guarded, asyncio.Protocol):
    """In the place of uvicorn's protocol while nothing moves.

    Args:
        shared: Of its server.
        origin: What to make the other of.
    Attributes:
        half_closed: Whether the peer sends no more.
    """

    __slots__ = ("__weakref__", "half_closed", "origin", "transport")

    RESTS: ClassVar[Phase] = Phase.KEEP_ALIVE

    def __init__(self, shared: Shared, origin: Origin) -> None:
        self.shared = shared
        self.origin: Origin = origin
        self.half_closed: bool = False
        self._over = True  # until there is a connection

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.origin.server_state.connections.add(self)
        found = transports.socket_of(transport)
        if found is not None and found.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # the peer is gone already
                found.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._begin(self.shared.first_byte, Phase.FIRST_BYTE.value)
        self.waiting: Waiting | Fresh | None = FRESH
        self._age = self.shared.age(self)
        if self.shared.greeting is not None:
            self.shared.greeting.greeted(self)
        if self.shared.leave_by is not None:  # it came, or shook hands, while the server stops
            self.shutdown()

    def rest(self, before: Guarded) -> None:
        """Take the place of *before*, a protocol of uvicorn's between two requests. Its peer's silence goes on."""
        self.transport: Any = before.transport
        self._begin(self.shared.keep_alive, Phase.KEEP_ALIVE.value, before)
        before.hand_over(self)
        connections = self.origin.server_state.connections
        connections.discard(before)
        connections.add(self)
        self.transport.set_protocol(self)

    def wake(self) -> Any:
        """Have uvicorn's protocol in its place from now on; that one."""
        kind, config, server_state, app_state, loop = self.origin
        made = object.__new__(kind)
        made.__init__(config, server_state, app_state, loop)
        made.take_over(self)
        server_state.connections.discard(self)
        return made

    def data_received(self, data: bytes) -> None:
        self.wake().data_received(data)

    def eof_received(self) -> None:
        """The peer sends no more; the loop closes."""
        self.half_closed = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.origin.server_state.connections.discard(self)
        self._left(by_peer=exc is not None or self.half_closed)

    def shutdown(self) -> None:
        if not self._over:
            self.wake().shutdown()

    def grew_old(self) -> None:
        self.wake().grew_old()

    def phase(self) -> Phase:
        return Phase.FIRST_BYTE if self.waiting is FRESH else Phase.KEEP_ALIVE

    def _rests_in(self, phase: Phase) -> bool:
        return True

    @property
    def client(self) -> Any:
        """The peer's address, as uvicorn knows it."""
        found = self.transport.get_extra_info("peername")
        return found if isinstance(found, tuple) else None  # the name of a Unix socket is none of a client
