"""Idle events: a hook that is called again and again while a connection is quiet, as
Netty's IdleStateHandler calls one.

Silence in and silence out are told apart: use them to send a ping, to log, to hang up
on the third one. Nothing of ours imports it: it is a public name, for servers of your
own, and stays until a release deprecates it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

from ..core.lease import Expiry, Lease
from ..core.ticks import check_timeout


class Idle(Enum):
    """The bytes that have not moved: those from the peer, those to the peer, or
    both.
    """

    READER = "reader_idle"
    WRITER = "writer_idle"
    ALL = "all_idle"


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """Says that one period of silence is over."""

    state: Idle
    count: int
    """How many periods in a row; 1 is the first after activity."""
    now: float
    """Seconds, the instant it was found."""


class IdleEvents:
    """Reader-idle, writer-idle and all-idle of one connection, each with a period and a
    count of its own.

    Args:
        register: `register` of a reaper, where the leases come from.
        uid: Of the connection; the leases are registered as (uid, reason).
        on: Called with each `IdleEvent`, in the reaper's task; must not block. When it
            raises, the reaper reports it, and the next event comes all the same.
        reader, writer, both: Seconds of silence; 0 switches the event off.
    Raises:
        InvalidArgument: a period is NaN, negative or infinite.
    Timing: an event comes no earlier than its period after the last activity, and no
    more than one tick later. The events that follow keep the same bounds after each
    other.
    """

    __slots__ = ("_counts", "_leases", "_on", "_register", "_uid")

    def __init__(
        self,
        register: Callable[..., Lease],
        uid: Hashable,
        on: Callable[[IdleEvent], object],
        *,
        reader: float = 0,
        writer: float = 0,
        both: float = 0,
    ) -> None:
        self._register = register
        self._uid = uid
        self._on = on
        self._leases: dict[Idle, Lease] = {}
        self._counts = dict.fromkeys(Idle, 0)
        for name, state, period in zip(
            ("reader", "writer", "both"), Idle, (reader, writer, both), strict=True
        ):
            if period != 0:
                self._arm(state, check_timeout(name, period))

    def read(self) -> None:
        """Bytes came in."""
        self._moved(Idle.READER)

    def wrote(self) -> None:
        """Bytes went out."""
        self._moved(Idle.WRITER)

    def close(self) -> None:
        """Stop: no further events come."""
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()

    def _moved(self, state: Idle) -> None:
        for moved in (state, Idle.ALL):
            if moved in self._leases:
                self._counts[moved] = 0
                self._leases[moved].touch()

    def _arm(self, state: Idle, period: float) -> None:
        def found(expiry: Expiry) -> None:
            if state not in self._leases:
                return  # closed by the event before, in the same instant
            self._counts[state] += 1
            self._arm(state, period)
            self._on(IdleEvent(state, self._counts[state], expiry.now))

        self._leases[state] = self._register(
            (self._uid, state.value), period, found, reason=state.value
        )
