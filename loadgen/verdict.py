"""Each observed close against its plan: a pure function per connection, and the counts of all of them.

One rule: claim only what the bounds prove. `early` is a close seen before the last byte was even sent plus the timeout:
nothing excuses it. `late` is a close that cannot have happened within a tick of the last instant at which the server
may have read the byte, even if it was stuck as long as the slowest answer in that window shows and even if our own
queue held the news back. The raw figure (beyond one tick by the client's clock, no allowance) stands beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .plan import Law
from .records import How, Record
from .stalls import Stalls

GRAIN = 0.005
"""Seconds that a close may take for reasons nobody can see: epoll sleeps in whole milliseconds on both sides, and a
shared core needs a moment to switch between them."""
VIOLATIONS_KEPT = 1000
"""Violations kept with their story; all of them are counted."""
OWN_LAG_SHARE = 0.01
"""Share of the connections that the generator's own lag may spoil before the run proves nothing."""

OK = frozenset({"reaped", "alive", "closed_itself"})
BAD = ("early", "late", "missed", "false")


class Finding(NamedTuple):
    """What one record amounts to.

    Attributes:
        category: reaped, alive, closed_itself (all good); early, late, missed, false (each a broken promise); own_lag
            (the client itself broke the plan: proves nothing); undecided (the run was cut short); failed (never
            established).
        lateness: closed_by minus (sent + timeout), seconds; None unless the server closed an expected reap.
        allowance: what was granted beyond one tick, seconds.
    """

    category: str
    lateness: float | None = None
    allowance: float = 0.0


def judge(record: Record, law: Law, stalls: Stalls) -> Finding:
    """Compare one record with the law. Pure; cost O(window / BUCKET)."""
    how = record.how
    if how == How.FAILED:
        return Finding("failed")
    due = record.sent + law.timeout
    if how == How.SELF:
        return Finding("closed_itself")
    if how == How.OPEN:
        if not record.final or record.closed_by < due:
            return Finding("alive")
        latest = max(record.seen, record.sent) + law.timeout + law.tick
        return Finding("missed" if record.closed_by > latest + stuck(record, law, stalls) else "undecided")
    if not record.final:
        # The plan had more to say: this connection was live.
        return Finding("own_lag" if record.overslept or record.closed_by >= due else "false")
    lateness = record.closed_by - due
    if lateness < 0:
        return Finding("own_lag" if record.overslept else "early", lateness)
    allowance = max(record.seen - record.sent, 0.0) + (record.closed_by - record.closed_after)
    allowance += stuck(record, law, stalls) + GRAIN
    return Finding("late" if lateness > law.tick + allowance else "reaped", lateness, allowance)


def stuck(record: Record, law: Law, stalls: Stalls) -> float:
    """Seconds that server or client were seen to be stuck while this connection's last byte was noted and while it was
    reaped."""
    noted = stalls.between(record.sent, record.closed_by - law.timeout)
    reaped = stalls.between(record.sent + law.timeout, record.closed_by)
    return noted + reaped


@dataclass
class Verdict:
    """All findings of a run."""

    categories: Counter[str] = field(default_factory=Counter)
    by_behaviour: dict[str, Counter[str]] = field(default_factory=dict)
    lateness: list[float] = field(default_factory=list)
    beyond_tick: int = 0
    violations: list[tuple[Record, str, Finding]] = field(default_factory=list)

    @property
    def expected(self) -> int:
        """Reaps that had to happen."""
        return sum(self.categories[name] for name in ("reaped", "early", "late", "missed"))

    @property
    def observed(self) -> int:
        """Closes by the server, expected or not."""
        return sum(self.categories[name] for name in ("reaped", "early", "late", "false", "own_lag"))

    def add(self, record: Record, behaviour: str, law: Law, stalls: Stalls) -> Finding:
        """Judge *record* and count it."""
        finding = judge(record, law, stalls)
        self.categories[finding.category] += 1
        self.by_behaviour.setdefault(behaviour, Counter())[finding.category] += 1
        if finding.lateness is not None:
            self.lateness.append(finding.lateness)
            self.beyond_tick += finding.lateness > law.tick
        if finding.category in BAD and len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append((record, behaviour, finding))
        return finding

    def reasons(self) -> list[str]:
        """Why the run failed, one line each; empty when it passed."""
        found = [f"{self.categories[name]} {name}: {_MEANING[name]}" for name in BAD if self.categories[name]]
        if self.categories["own_lag"] > OWN_LAG_SHARE * sum(self.categories.values()):
            found.append(
                f"{self.categories['own_lag']} connections broken by this program's own lag: too many to say anything"
            )
        if self.categories["failed"]:
            found.append(f"{self.categories['failed']} connections could not be established")
        if not sum(self.categories[name] for name in OK):
            found.append("no connection came to a good end: nothing was shown")
        return found


_MEANING = {
    "early": "closed before the last byte sent plus the timeout",
    "late": "closed later than one tick and all measured lag allow",
    "missed": "silent for longer than timeout and tick, and still open",
    "false": "closed although the connection was live",
}


def judge_all(records: Iterable[tuple[Record, str]], law: Law, stalls: Stalls) -> Verdict:
    """The verdict over (record, behaviour name) pairs."""
    verdict = Verdict()
    for record, behaviour in records:
        verdict.add(record, behaviour, law, stalls)
    verdict.lateness.sort()
    return verdict
