"""The delayed operations of an adapter: a probe's answer, and timers.

The rule of this module: *a sign of life completes an operation early, or its deadline does*.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..core.purgatory import DelayedOperation

if TYPE_CHECKING:
    from .watched import Watched

log: logging.Logger = logging.getLogger("reaper")


class Operation(DelayedOperation):
    """Waits under itself in the purgatory of the driver."""

    __slots__ = ()

    @property
    def waits(self) -> bool:
        """Whether it has not ended."""
        return self._purgatory is not None

    def cancel(self) -> None:
        """End it without any hook; nothing if it has ended."""
        if self._purgatory is not None:
            self._purgatory.cancel_for_key(self)


class Call(Operation):
    """Calls something at its deadline. `Driver.after` makes it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object], deadline: int) -> None:
        super().__init__(deadline=deadline)
        self._call = call

    def try_complete(self) -> bool:
        """Nothing but time completes it."""
        return False

    def on_expiration(self) -> None:
        """Call."""
        self._call()


class Answer(Operation):
    """Waits for the answer to a probe: any activity since, by whatever way it was noted. Its expiry reaps otherwise.

    Args:
        connection: Was probed just now, and the epoch in which its lease lies has been closed since: activity noted
            from now on lies in another.
        deadline: When its time is over.
    """

    __slots__ = ("_epoch", "connection")

    def __init__(self, connection: Watched, deadline: int) -> None:
        super().__init__(deadline=deadline)
        self.connection: Watched = connection
        self.mark()

    def mark(self) -> None:
        """Only activity noted from now on is an answer."""
        self._epoch = self.connection.lease._epoch

    @property
    def heard(self) -> bool:
        """Whether there was activity, or the connection is in use."""
        lease = self.connection.lease
        return lease._epoch is not self._epoch or lease.suspended

    def try_complete(self) -> bool:
        """Complete if the peer was heard."""
        return self.heard and self.force_complete()

    def on_expiration(self) -> None:
        """Reap, unless the peer was heard or bytes of it wait."""
        if not self.heard and not self.connection.has_unread():
            self.connection.reap("unanswered")


def log_drain(connections: Iterable[Watched], awake: int = 0) -> None:
    """Say in the log what a drain waits for that has just closed the idle: *connections*, and *awake* handlers.

    A connection of which nobody says whose turn it is keeps a drain waiting until its deadline: that is a warning.
    """
    in_use = unknown = 0
    for connection in connections:
        if connection.receiving is None and not connection.lease.suspended:
            unknown += 1
        else:
            in_use += 1
    if in_use or awake:
        log.info("drain: waiting for those in use, %d", in_use + awake, extra={"in_use": in_use + awake})
    if unknown:
        log.warning(
            "drain: waiting until its deadline for %d of which nobody says whether they are idle: have their handlers "
            "receive by the stream of the watch, or say `in_use`",
            unknown,
            extra={"unknown": unknown},
        )
