"""Judges each close against its plan by a pure function, and counts what was found.

One rule: claim only what the bounds prove. `early` is a close seen before the last byte
was even sent plus the timeout: nothing excuses it. `late` is a close that cannot have
happened within a tick of the last instant at which the server may have read the byte,
even if it was stalled as long as the slowest answer in that window shows and even if
our own queue held the news back. The raw figure (beyond one tick by the client's clock,
no allowance) stands beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..plan.behaviours import Behaviour
from ..plan.plan import Law, Plan
from ..units import seconds
from .records import How, Record
from .stalls import Stalls

GRAIN = 0.005
"""Seconds that a close may take for reasons that no side can see: epoll sleeps in whole
milliseconds on both sides, and a shared core needs a moment to switch between them."""
VIOLATIONS_KEPT = 100
"""Violations kept with their story; all of them are counted."""
MILLISECOND = 0.001
OWN_LAG_SHARE = 0.01
"""Share of the connections that the generator's own lag may spoil before the run proves
nothing.
"""
UNDECIDED_SHARE = 0.01
"""Share of the reaps that stalls may have kept open before the run proves nothing."""
EXCUSED_SHARE = 0.01
"""Share of the reaps that stalls may excuse before the run proves nothing."""

OK = frozenset({"reaped", "alive", "closed_itself", "announced", "unjudged"})
BAD = ("early", "late", "missed", "false")


class Finding(NamedTuple):
    """What one record amounts to.

    Attributes:
        category: reaped, alive, closed_itself, announced (live, and of the age that the
            scenario names), unjudged: all good; early, late, missed, false: each a
            broken promise; own_lag: the client itself broke the plan, which proves
            nothing; undecided: still open, perhaps by a stall or the end of the run;
            failed: never established.
        lateness: closed_by minus (sent + timeout), seconds; None unless the server
            closed an expected reap.
        excused: within the law only because the server, or this program, was seen to be
            stalled.
    """

    category: str
    lateness: float | None = None
    excused: bool = False


def judge(record: Record, behaviour: Behaviour, law: Law, own: Stalls, server: Stalls) -> Finding:
    """Compare one record with the law, whose timeout is the behaviour's own.

    *own* is the load generator's lag, *server* how slow the server's answers were. This
    is a pure function. Cost: a look into the two lags for a close beyond one tick; O(1)
    for others.
    """
    how, tick = record.how, law.tick
    if how == How.FAILED:
        return Finding("failed")
    if how == How.SELF:
        return Finding("closed_itself")
    if not behaviour.judged:
        return Finding("unjudged")
    due = record.sent + behaviour.timeout
    unknown = max(
        record.seen - record.sent, 0.0
    )  # the server read the last byte somewhere in this interval
    if how == How.OPEN:
        if not record.final or record.closed_by < due:
            return Finding("alive")
        latest = due + unknown + tick + _stall(own, record, due) + _stood(server, record, due)
        return Finding("missed" if record.closed_by > latest else "undecided")
    if not record.final:
        # The plan had more to say: this connection was live, and an announcement
        # excuses nothing.
        if law.max_age is not None and record.closed_by >= record.began + law.max_age:
            return Finding("announced")
        return Finding("own_lag" if record.overslept or record.closed_by >= due else "false")
    lateness = record.closed_by - due
    if lateness < -law.tolerance:
        return Finding("own_lag" if record.overslept else "early", lateness)
    allowed = tick + GRAIN + (record.closed_by - record.closed_after)
    if lateness <= allowed:
        return Finding("reaped", lateness)
    excused = lateness <= allowed + unknown + _stall(own, record, due) + _stood(server, record, due)
    return Finding("reaped" if excused else "late", lateness, excused)


def _stall(stalls: Stalls, record: Record, due: float) -> float:
    """Seconds of stall while this connection's last byte was noted, and while it was
    reaped.
    """
    noted = stalls.between(record.sent, record.closed_by - (due - record.sent))
    return noted + stalls.between(due, record.closed_by)


def _stood(server: Stalls, record: Record, due: float) -> float:
    """Seconds by which the server's own stalls may have put this reap off.

    A stall in the middle of the silence counts too: a server need not charge a client
    with time in which it could not have read what the client sent.
    """
    return max(_stall(server, record, due), server.total(record.sent, record.closed_by))


@dataclass
class Verdict:
    """All findings of a run."""

    categories: Counter[str] = field(default_factory=Counter)
    by_behaviour: dict[str, Counter[str]] = field(default_factory=dict)
    lateness: list[float] = field(default_factory=list)
    beyond_tick: int = 0
    excused: int = 0
    violations: list[tuple[Record, Behaviour, Finding]] = field(default_factory=list)

    @property
    def expected(self) -> int:
        """How many reaps had to happen."""
        return sum(self.categories[name] for name in ("reaped", "early", "late", "missed"))

    @property
    def observed(self) -> int:
        """How many connections the server closed, expected or not."""
        return sum(
            self.categories[name] for name in ("reaped", "early", "late", "false", "own_lag")
        )

    def add(self, record: Record, behaviour: Behaviour, finding: Finding, tick: float) -> None:
        """Count one finding."""
        self.categories[finding.category] += 1
        self.by_behaviour.setdefault(behaviour.name, Counter())[finding.category] += 1
        self.excused += finding.excused
        if finding.lateness is not None:
            self.lateness.append(finding.lateness)
            self.beyond_tick += finding.lateness > tick
        if finding.category in BAD and len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append((record, behaviour, finding))

    @property
    def shown(self) -> bool:
        """Whether any connection came to a good end."""
        return any(self.categories[name] for name in OK)

    def reasons(self, law: Law) -> list[str]:
        """Why the run failed, one line each; empty when it passed."""
        found = [
            f"{self.categories[name]:,} {name}: {_MEANING[name]}"
            for name in BAD
            if self.categories[name]
        ]
        if (
            self.categories["early"]
            and law.tolerance < MILLISECOND
            and self.lateness[0] >= -MILLISECOND
        ):
            found[0] += (
                f", by at most {seconds(-self.lateness[0])}; "
                "for a server whose clock counts whole milliseconds give --tolerance 1ms"
            )
        if self.categories["failed"]:
            found.append(f"{self.categories['failed']:,} connections could not be established")
        return found

    def doubts(self) -> list[str]:
        """Why a run that saw its planned end shows too little, one line each.

        Empty when it shows enough.
        """
        undecided, own, found = self.categories["undecided"], self.categories["own_lag"], []
        if undecided > UNDECIDED_SHARE * (undecided + self.expected):
            what = f"{undecided:,} connections undecided: silent for too long and still open"
            found.append(
                f"{what}, but this machine was stalled for as long: "
                "give more --patience, or a calmer machine"
            )
        if own > OWN_LAG_SHARE * sum(self.categories.values()):
            found.append(
                f"{own:,} connections broken by this program's own lag: too many to say anything"
            )
        if self.excused > EXCUSED_SHARE * self.expected:
            found.append(
                f"{self.excused:,} of {self.expected:,} reaps excused by stalls: "
                "too many to say anything: give a calmer machine, or a longer tick"
            )
        return found


_MEANING = {
    "early": "closed before the last byte sent plus the timeout",
    "late": "closed later than one tick and all measured lag allow",
    "missed": "silent for longer than timeout and tick, and still open",
    "false": "closed although the connection was live",
}


def judge_all(
    plan: Plan, records: Iterable[Record], own: Sequence[Stalls], server: Stalls
) -> Verdict:
    """Judge all *records* of a run of *plan*.

    *own* is the lag of each process; only that of the process which held a connection
    counts for it. *server* is what all of them saw of the server.
    """
    verdict = Verdict()
    for record, behaviour, finding in judge_each(plan, records, own, server):
        verdict.add(record, behaviour, finding, plan.law.tick)
    verdict.lateness.sort()
    return verdict


def judge_each(
    plan: Plan, records: Iterable[Record], own: Sequence[Stalls], server: Stalls
) -> Iterator[tuple[Record, Behaviour, Finding]]:
    """Yield each record, its behaviour and its finding; *own*, *server* are as in
    `judge_all`.
    """
    for record in records:
        behaviour = plan.behaviour(record.connection)
        yield (
            record,
            behaviour,
            judge(record, behaviour, plan.law, own[record.connection % len(own)], server),
        )
