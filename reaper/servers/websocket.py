"""A WebSocket that uvicorn has taken over from HTTP, guarded.

The rule of this module: *both directions are life*. Bytes that come are noted; bytes that the peer took are asked for
when it is due, of the kernel, which stamps them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, ClassVar

from ..asyncio import transports
from ..policy import NOT_TAKEN, TOO_OLD, Phase
from .guarded import Guarded
from .waiting import Shared, Waiting

log: logging.Logger = logging.getLogger("uvicorn.error")


@functools.cache
def tunnel(base: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """The WebSocket protocol class *base*, one of uvicorn's or another, guarded."""
    return type(f"Guarded{base.__name__}", (GuardedTunnel, base), {"__slots__": ()})


class GuardedTunnel(Guarded):
    """What a WebSocket protocol adds to uvicorn's. The pings are uvicorn's; an answer to one counts as activity."""

    __slots__ = ("_before", "_paused")

    RESTS: ClassVar[Phase] = Phase.TUNNEL

    def __init__(self, *arguments: Any, shared: Shared, before: Guarded, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shared = shared
        self._before: Guarded | None = before
        self._paused = False

    def connection_made(self, transport: Any) -> None:
        """Go on watching."""
        super().connection_made(transport)  # type: ignore[misc]
        before, self._before = self._before, None
        assert before is not None
        self.transport = transport
        self._begin(self.shared.tunnel, Phase.TUNNEL.value, before)
        self.lease.touch()
        before.hand_over(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no longer."""
        super().connection_lost(exc)  # type: ignore[misc]
        self._left(by_peer=exc is not None)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.lease.touch()
        super().data_received(data)  # type: ignore[misc]

    def pause_writing(self) -> None:
        """The peer does not take what is sent to it."""
        super().pause_writing()  # type: ignore[misc]
        self._paused = True
        self.look()

    def resume_writing(self) -> None:
        """It has taken enough of it."""
        super().resume_writing()  # type: ignore[misc]
        self._paused = False

    def phase(self) -> Phase:
        """What it waits for."""
        closing = self.transport.is_closing() and transports.buffered(self.transport)
        return Phase.WRITE if self._paused or closing else Phase.TUNNEL

    def pardon(self, lease: Any) -> bool:
        """Bytes that the peer has taken are no silence either; the kernel knows when they went out."""
        if super().pardon(lease):
            return True
        if lease is not self.lease or isinstance(self.waiting, Waiting):
            return False
        info, limit = transports.tcp_info(self.transport), self.shared.tunnel
        taken = info is not None and (limit is None or info.sent_ago < limit)
        return taken and not transports.queued(self.transport)

    def grew_old(self) -> None:
        """It has reached its maximum age."""
        self.reap(TOO_OLD)

    def _rests_in(self, phase: Phase) -> bool:
        return phase is Phase.TUNNEL

    def _rest(self) -> None:
        raise AssertionError("unreachable")

    def _cut(self, reason: str) -> None:
        log.info("%s - closed: %s", self._name(), reason)
        if reason in NOT_TAKEN:
            transports.reset(self.transport)
        else:
            transports.close(self.transport)
            self._insist()
