"""The timers of an adapter that are no leases, and what a drain waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..core.purgatory import DelayedOperation

if TYPE_CHECKING:
    from .watched import Watched

log: logging.Logger = logging.getLogger("reaper")


class Call(DelayedOperation):
    """Calls something at its deadline. `Driver.after` makes it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object], deadline: int) -> None:
        super().__init__(deadline=deadline)
        self._call = call

    def cancel(self) -> None:
        """End it without the call; nothing if it has ended."""
        self.force_complete()

    def try_complete(self) -> bool:
        """Nothing but time completes it."""
        return False

    def on_expiration(self) -> None:
        """Call."""
        self._call()


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
