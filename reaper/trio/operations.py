"""The delayed operations of an adapter: a probe's answer, a drained connection's leaving.

Both are Kafka's idea put to use: something completes an operation early (a touch, going idle), or its deadline does.
"""

from __future__ import annotations

from typing import Protocol

from ..core.purgatory import DelayedOperation


class Drainable(Protocol):
    """What the operations need of an adapter's connection."""

    @property
    def busy(self) -> bool:
        """Whether it is in use."""

    def _reap(self, reason: str) -> None: ...

    def _has_unread(self) -> bool: ...


class Answer(DelayedOperation):
    """Waits for the answer to a probe. Any touch completes it; its expiry reaps, unless bytes are waiting unread."""

    def __init__(self, connection: Drainable, deadline: int) -> None:
        super().__init__(deadline=deadline)
        self.connection = connection
        self.sent = False

    def try_complete(self) -> bool:
        """Complete on the first call after it has been watched: whoever calls has heard from the peer."""
        if not self.sent:
            self.sent = True  # the call that comes before watching
            return False
        return self.force_complete()

    def on_expiration(self) -> None:
        """Nobody answered: reap."""
        if not self.connection._has_unread():
            self.connection._reap("unanswered")


class Leave(DelayedOperation):
    """Waits for a connection to go idle while everything is being drained; its expiry cuts it in use."""

    def __init__(self, connection: Drainable, deadline: int, spoken: bool) -> None:
        super().__init__(deadline=deadline)
        self.connection = connection
        self.spoken = spoken

    def try_complete(self) -> bool:
        """Complete if the connection is idle; not on the first call if bytes of it were still unread."""
        if self.spoken:
            self.spoken = False
            return False
        return not self.connection.busy and self.force_complete()

    def on_complete(self) -> None:
        """End it, if that is why we are here; on_expiration follows if it is not."""
        if not self.connection.busy:
            self.connection._reap("drain")

    def on_expiration(self) -> None:
        """End it although it is in use."""
        self.connection._reap("drain_deadline")
