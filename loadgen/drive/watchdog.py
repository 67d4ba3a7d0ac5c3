"""When a run has shown all that it can, before its time: no server, no answer, or another protocol.

One rule: it ends a run only on what the server did, says what that was, and what to try instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..judge.observation import Counters
from ..units import Target
from .recognise import recognise

FIRST_ANSWER = 10.0
"""Seconds after the first request in which some server must have answered some request."""


class Watchdog:
    """Looks at the heartbeats of a run; one per run."""

    def __init__(self, target: Target, protocol: str, first_answer: float = FIRST_ANSWER) -> None:
        self.target = target
        self.protocol = protocol
        self.first_answer = first_answer
        self.asked_since: float | None = None

    def look(self, now: float, counters: Sequence[Counters]) -> str | None:
        """Why the run should end at *now*; None: it should go on."""
        foreign = next((each.foreign for each in counters if each.foreign), b"")
        if foreign and (what := recognise(self.protocol, foreign)):
            return f"{self.target} {what}"
        if any(each.established for each in counters):
            return self._unanswered(now, counters)
        code = next((each.refusal for each in counters if each.refused), None)
        if code is None:
            return None
        return f"{os.strerror(code).lower()} by {self.target}: is the server running there?"

    def _unanswered(self, now: float, counters: Sequence[Counters]) -> str | None:
        if any(each.answered for each in counters) or not any(each.asked for each in counters):
            return None
        if self.asked_since is None:
            self.asked_since = now
        if now - self.asked_since < self.first_answer:
            return None
        others = "raw, or http" if self.protocol == "echo" else "raw, or echo"
        return (
            f"{self.target} answered nothing within {self.first_answer:.0f} s: "
            f"if it speaks another protocol, give --protocol {others}"
        )
