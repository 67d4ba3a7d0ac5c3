"""A WebSocket that uvicorn has taken over from HTTP, guarded.

The rule of this module: *bytes in either direction are a sign of life*. Bytes that come
are noted. What the client took is asked of the kernel, which stamps it, when the
connection is due.
"""

from __future__ import annotations

import asyncio
import functools
import math
from typing import Any, ClassVar

from ...asyncio import transports
from ...core.lease import Lease
from ...policy import Phase
from ...policy.min_rate import patience
from ...policy.phases import tunnel_lifespan
from ...policy.reasons import DRAIN, MAX_AGE, TUNNEL_AGE
from .base import Guarded
from .shared import Shared

RESTARTS = b"\x88\x02\x03\xf4"
"""A closing frame with the code 1012: the server restarts, and the client may come
back.
"""


class Counted:
    """Counts what is written to a transport, because the kernel does not say how many
    bytes its client has taken in all.

    The kernel tells the queue of a Unix socket by the memory it takes, so small
    messages look larger than they are. When the queue is empty, all has been taken.

    Attributes:
        written: Bytes that were written.
        taken: How many of them the client has certainly taken.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written: int = 0
        self.taken: int = 0

    def count(self) -> None:
        """Look how much has been taken by now."""
        self.taken = max(self.taken, self.written - transports.queued(self._transport))

    def write(self, data: Any) -> None:
        self.count()
        self.written += len(data)
        self._transport.write(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@functools.cache
def tunnel(base: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """The WebSocket protocol class *base*, one of uvicorn's or another, guarded."""
    return type(f"Guarded{base.__name__}", (GuardedTunnel, base), {"__slots__": ()})


class GuardedTunnel(Guarded):
    """What a guarded WebSocket adds to uvicorn's protocol. uvicorn sends the pings; an
    answer to one counts as activity.
    """

    __slots__ = ("_before", "_old", "_paused", "_stalled", "_taken", "_took")

    RESTS: ClassVar[Phase] = Phase.TUNNEL

    def __init__(self, *arguments: Any, shared: Shared, before: Guarded, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shared = shared
        self._before: Guarded | None = before
        self._paused = False
        self._old: Lease | None = None  # due when the tunnel is `timeouts.tunnel_age` old

    def connection_made(self, transport: Any) -> None:
        if transports.is_unix(transport):
            transport = Counted(transport)
        super().connection_made(transport)  # type: ignore[misc]
        before, self._before = self._before, None
        assert before is not None
        self.transport = transport
        self._stalled = self.shared.driver.clock.stalled
        self._taken = 0
        self._took = -math.inf  # when it was first seen to have taken so much
        self._takes()
        self._begin(self.shared.tunnel, Phase.TUNNEL.value, before)
        self.lease.touch()
        before.hand_over(self)
        if seconds := tunnel_lifespan(self.shared.config):
            self._old = self.shared.driver.deadline(self, seconds, TUNNEL_AGE)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # type: ignore[misc]
        self._left(by_peer=exc is not None)

    def data_received(self, data: bytes) -> None:
        self.lease.touch()
        super().data_received(data)  # type: ignore[misc]

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._paused = True
        self.look()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._paused = False

    def phase(self) -> Phase:
        closing = self.transport.is_closing() and transports.buffered(self.transport)
        return Phase.WRITE if self._paused or closing else Phase.TUNNEL

    def pardon(self, lease: Any) -> bool:
        """Bytes that the client has taken count as activity, too; the kernel knows when
        that was.
        """
        if super().pardon(lease):
            return True
        if lease is not self.lease or self.waiting is not None:
            return False
        return self._takes()

    def _takes(self) -> bool:
        """Whether the client takes what it is sent: it has taken something since this
        was last asked, or everything, and not too long ago.
        """
        clock, limit = self.shared.driver.clock, self.shared.tunnel or math.inf
        # Seconds in which this process stood still; the kernel counts them, and nobody
        # is charged.
        stalled, self._stalled = clock.stalled - self._stalled, clock.stalled
        info, queued, before = (
            transports.tcp_info(self.transport),
            transports.queued(self.transport),
            self._taken,
        )
        now = self.shared.driver.now()
        if isinstance(self.transport, Counted):
            self.transport.count()
            self._taken = self.transport.taken
            return self._taken > before
        if info is None:
            return False
        self._taken = info.acknowledged
        if not queued:
            return info.sent_ago - stalled < limit
        if self._taken > before:
            self._took = now - max(info.acked_ago - stalled, 0.0)
        least = self.shared.config.limits.min_out_rate
        return now - self._took < patience(limit, least, info.hidden)

    def shutdown(self) -> None:
        """The server stops. uvicorn sends the closing frame, with 1012, within
        `drain_window`, and the drain has a deadline.
        """
        self.leave(DRAIN)
        if seconds := self.shared.goes_in():
            self.shared.reaper.loop.call_later(seconds, self.told)
        else:
            self.told()

    def told(self) -> None:
        """Send the closing frame, if the connection has not ended meanwhile."""
        if not self._over:
            super().shutdown()  # type: ignore[misc]

    def grew_old(self) -> None:
        self.reap(MAX_AGE)

    def _farewell(self, reason: str) -> bytes:
        """See the base class. A client that goes because of its connection's age is
        told that it may come back.
        """
        return RESTARTS if reason in (MAX_AGE, TUNNEL_AGE) else b""

    def _let_go(self) -> None:
        super()._let_go()
        if self._old is not None:
            self._old.release()
            self._old = None  # its hook refers to this object: a circle otherwise

    def _rests_in(self, phase: Phase) -> bool:
        return phase is Phase.TUNNEL
