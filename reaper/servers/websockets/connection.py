"""The server of websockets, guarded:
`serve(..., create_connection=reaper.websockets.connection(idle=300))`.

The rule of this module: *messages are activity, pings are not*. Every byte of a message
counts: one of an unfinished message that comes, and one of a long message that the
client takes, at the least rates of `limits`. The pings of websockets itself find out
whether the client is alive. Tried with websockets 14.0 to 17.4.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import replace
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State

from ...asyncio import transports
from ...asyncio.closing import close
from ...asyncio.connection import Connection
from ...asyncio.overload import refuse
from ...asyncio.reaper import AsyncioReaper, reaper_of, serving_reaper
from ...driver.served import tried
from ...driver.watched import check_idle
from ...policy.min_rate import Allowance, patience
from ...policy.phases import STALL_TICKS
from ..configured import warn

MESSAGES: frozenset[Opcode] = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})

log: logging.Logger = logging.getLogger("websockets.server")

_WARNED: weakref.WeakSet[AsyncioReaper] = weakref.WeakSet()
"""The reapers whose settings the log has named, and which of them have no effect here.
"""

LEAST = 4096
"""Bytes of a frame that are worth not being held while its client is silent."""

LONG = 16384
"""Bytes; whether the client takes a longer message is checked while it does."""


class _Silent(Connection):
    """Closes a connection with the closing frame of the protocol. websockets itself
    bounds how long that may take.
    """

    __slots__ = ("_inbound", "_outbound", "_progress", "_reaper", "_took", "goodbye", "websocket")

    goodbye: asyncio.Task[None]

    def __init__(
        self, reaper: AsyncioReaper, uid: int, transport: Any, websocket: ServerConnection
    ) -> None:
        super().__init__(reaper.driver, uid, transport)
        self._reaper = reaper
        self.websocket: ServerConnection = websocket
        self.receiving: bool | None = True
        self._inbound: Allowance | None = None
        self._outbound: Allowance | None = None
        self._progress: transports.Progress | None = None
        self._took = 0.0  # when the client last took some of a long message

    def _cut(self, reason: str) -> None:
        if self.websocket.state is State.CONNECTING:  # there is nobody to say goodbye to
            close(self._reaper, self.transport)
            return
        goodbye = self.websocket.close(CloseCode.GOING_AWAY, f"reaped: {reason}")
        self.goodbye = asyncio.get_running_loop().create_task(goodbye)

    def part_came(self, count: int) -> None:
        """*count* bytes came of a message that is not complete."""
        now = self._reaper.driver.now()
        if self._inbound is None:
            limits = self._reaper.config.limits
            self._inbound = self._allowed(limits.min_in_rate, limits.min_in_grace, now)
        if self._kept(self._inbound, count, now):
            self.touch()

    def completed(self) -> None:
        """The message that came is complete."""
        self._inbound = None

    def long_one_sent(self) -> None:
        """A long message was written: the client needs time to take it."""
        if self._progress is None:
            limits = self._reaper.config.limits
            self._took = now = self._reaper.driver.now()
            self._progress = transports.Progress(self.transport)
            self._outbound = self._allowed(limits.min_out_rate, limits.min_out_grace, now)
            if self._outbound is not None:
                self._outbound.earn(self._progress.hidden, now)
            self._reaper.sweep.add(self)

    def charge(self, now: float) -> None:
        """As a member of the sweep: look whether the client has taken something."""
        if self._progress is None or not self.lease.alive or not transports.queued(self.transport):
            self._progress = self._outbound = None
            self._reaper.sweep.discard(self)
        elif count := self._progress.taken():
            self._took = now
            if self._kept(self._outbound, count, now):
                self.touch()
        elif self._hides(now):
            self.touch()

    def _hides(self, now: float) -> bool:
        """Whether its buffer may hide that the client reads."""
        rate, idle = self._reaper.config.limits.min_out_rate, self.lease.timeout
        if idle is None or self._progress is None:
            return False
        return now - self._took < patience(idle, rate, self._progress.hidden) - idle

    def _allowed(self, rate: float, grace: float, now: float) -> Allowance | None:
        if not rate:
            return None
        made = Allowance(rate, grace, 0.0, STALL_TICKS * self._reaper.core.tick)
        made.start(now)
        return made

    def _kept(self, allowance: Allowance | None, count: int, now: float) -> bool:
        if allowance is None:
            return True
        allowance.earn(count, now)
        return allowance.left(now) > 0


class GuardedConnection(ServerConnection):
    """A connection of a websockets server that is closed when no byte of a message has
    passed for `idle` seconds.

    Attributes:
        idle: Seconds; 0 switches the timeout off; None takes the config's
            `timeouts.tunnel`.
        reaper: Watches the connection; None: the loop's own.
        watch: The connection as the reaper knows it.
    """

    idle: float | None = None
    reaper: AsyncioReaper | None = None
    watch: _Silent

    def connection_made(self, transport: Any) -> None:
        reaper = reaper_of() if self.reaper is None else self.reaper
        if reaper not in _WARNED:
            _WARNED.add(reaper)
            warn(reaper.config, "websockets", log)
        if tried(reaper.welcomes) is False:
            refuse(reaper, transport, http=True)
            return
        idle = reaper.config.timeouts.tunnel if self.idle is None else self.idle
        self.watch = reaper.driver.watch(
            lambda uid: _Silent(reaper, uid, transport, self),
            transports.socket_of(transport),
            idle,
            reason="tunnel",
        )
        reaper.relieve(transport)
        self._lean = reaper.config.reaper.release_buffers
        super().connection_made(transport)

    def process_event(self, event: Any) -> None:
        """A frame has come, or the request that opens the connection."""
        if not isinstance(event, Frame) or event.opcode in MESSAGES:
            self.watch.touch()
            if self._lean and len(getattr(event, "data", b"")) > LEAST:
                # The parser refers to the last frame until the next one comes. It is
                # through with this one, so what goes on is another with its data.
                event, parsed = replace(event), event
                parsed.data = b""
        super().process_event(event)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.protocol.state is State.OPEN:
            if self.protocol.reader.buffer:
                self.watch.part_came(len(data))
            else:
                self.watch.completed()

    def send_data(self) -> None:
        """Send what is to be sent; `websockets.broadcast` calls this, too."""
        # The low half of a frame's first byte is its opcode; of an HTTP response's, 8.
        said = sum(
            len(data) for data in self.protocol.writes if data and data[0] & 0x0F in MESSAGES
        )
        super().send_data()
        if said:
            self.watch.touch()
            if said > LONG:
                self.watch.long_one_sent()

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.lost(exc)
        super().connection_lost(exc)


def connection(
    idle: float | None = None, *, reaper: AsyncioReaper | None = None
) -> type[GuardedConnection]:
    """A class for `websockets.asyncio.server.serve(..., create_connection=...)`.

    Args:
        idle: Seconds in which no byte of a message passes, either way; 0 switches the
            timeout off; None takes the config's `timeouts.tunnel`.
        reaper: Watches the connections; None: the loop's own.
    Raises:
        InvalidArgument: by name and value.
    """
    check_idle(idle)
    serving_reaper(reaper, None, {})
    return type("GuardedConnection", (GuardedConnection,), {"idle": idle, "reaper": reaper})
