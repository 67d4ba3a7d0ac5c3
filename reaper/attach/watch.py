"""The watch: which connections there are, which is looked at next, and what becomes of one that is due.

One rule: *a connection is looked at when something can be due, and not before*. A look costs the kernel a hash lookup;
what it shows says when the next one is worth while. New connections are found by a dump, at half the shortest limit.

No clock and no I/O of its own: `now` is an argument, the kernel and the hands are given. It never blocks longer than
one slice of work.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..core.ticks import check_timeout
from ..policy.jitter import Bucket
from .judge import NONE, Limits, Memory, Verdict, judge
from .kernel import Found
from .netlink import cookie_of
from .schedule import Schedule
from .table import MARKS, Table
from .tcpinfo import Snapshot

Look = Callable[[Sequence[bytes]], list[Snapshot | None]]
Again = Callable[[Snapshot], bool]
End = Callable[[bytes, int, Again], str]

SLICE = 256
"""Connections per step of work: about 5 ms."""
STEPS = 16
"""Distinct lengths that jitter gives a timeout."""
TOLD, OVERDUE = 1, 2
"""Flags of a row: reported as due, and has not stirred since; was due when it was found."""
RETRY = 1.0
"""Seconds, at least, until a connection that could not be reached is tried again."""


class Event(NamedTuple):
    """What happened to one connection. Instants are seconds on the monotonic clock."""

    kind: str
    """found; due (reported, not closed); closed; averted (by the final check); gone (ended without us); unreachable
    (no process that we may touch holds it)."""
    at: float
    """`NONE` where only that it happened is known: just now, or since the previous check."""
    ident: bytes
    inode: int
    opened: float
    """When it is found: the latest instant at which it can have been opened. Otherwise `NONE`."""
    since: float = NONE
    """Since when, at the latest, its peer has been silent."""
    reason: str = ""
    limit: float = 0.0
    """The limit in force for that reason, seconds."""
    due: float = NONE


class Counts:
    """What a watch has done so far."""

    def __init__(self) -> None:
        self.looks = 0
        self.dumps = 0
        self.dumped = 0
        """Connections in all dumps together."""
        self.events: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        """Of what was closed, or reported as due."""
        self.max_lateness: float = 0.0
        """The longest time between due and closed (or reported), seconds."""


class Watch:
    """Watches connections.

    Args:
        look: Asks the kernel for connections by ident; None for each that is gone.
        limits: What is not tolerated.
        tick: Seconds, > 0: a due connection is ended at most one tick late, plus our own stall.
        now: Seconds, monotonic.
        end: What ends a connection, see `Hands.end`; None: a look has to do for a final check.
        closes: Whether it may. If not, what is due is reported, once per silence; the final check is made all the same.
        jitter: 0..1: the most by which a timeout of silence is lengthened, differently for each connection.
        reaps_per_second: The most that are ended per second; 0: no bound.
        on: Told every event, at once; must not raise.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self,
        look: Look,
        limits: Limits,
        *,
        tick: float,
        now: float,
        end: End | None = None,
        closes: bool = True,
        jitter: float = 0.0,
        reaps_per_second: float = 0.0,
        on: Callable[[Event], object] = lambda event: None,
    ) -> None:
        check_timeout("tick", tick)
        self._look = look
        steps = [limits.longer(1 + jitter * step / (STEPS - 1)) for step in range(STEPS)] if jitter else [limits]
        self._limits = steps
        self._end = end
        self._closes = closes and end is not None
        self._on = on
        self._bucket = Bucket(reaps_per_second) if reaps_per_second else None
        self._stalls_matter = limits.write > 0
        self.limits = limits
        self.table: Table = Table(limits.write > 0, limits.min_in_rate > 0, limits.max_age > 0)
        self.counts: Counts = Counts()
        self._schedule = Schedule(tick, now)
        self._due: deque[tuple[int, int]] = deque()  # (row, generation): come due, to be looked at
        self._held: deque[tuple[int, int]] = deque()  # judged due, waiting for the bound on closes
        self._serial = 1

    def look_only(self) -> None:
        """Have no hands from now on: what is due by a look is reported, and nothing is closed."""
        self._end = None
        self._closes = False

    # -- who is there

    def add(self, ident: bytes, inode: int, seen: Snapshot) -> int:
        """Watch one more connection, from what *seen* shows; its row. One that is watched already keeps its row."""
        known = self.table.find(cookie_of(ident))
        if known is not None:
            return known
        verdict, memory = judge(seen, Memory(seen.after), self._limits_of(cookie_of(ident)))
        row = self.table.add(ident, inode, memory, self._serial)
        if verdict.due:  # before we were there: no lateness of ours
            self.table.told[row] = OVERDUE
        self._event("found", row, seen.after, verdict, memory.opened)
        self._arm(row, verdict.at)
        return row

    def discard(self, ident: bytes) -> bool:
        """Stop watching a connection. True if it was watched."""
        row = self.table.find(cookie_of(ident))
        if row is None:
            return False
        self.table.remove(row)
        return True

    def discover(self, dump: Iterable[Found], wanted: Callable[[Found], bool]) -> Iterator[None]:
        """Compare the table with a whole *dump* (of every listener): new connections in, vanished ones out.

        A generator: each step is a slice of work, and other calls may come between.

        Args:
            dump: Every open connection, once.
            wanted: Whether a connection that is not watched yet is meant.
        """
        self._serial = serial = self._serial % MARKS + 1
        self.counts.dumps += 1
        table, fresh = self.table, list[Found]()
        find, mark = table.find, table.mark
        for number, found in enumerate(dump, 1):
            row = find(cookie_of(found.ident))
            if row is not None:
                mark[row] = serial
                if self._stalls_matter and found.queued and table.memory(row).stalled == NONE:
                    self._due.append((row, table.renew(row)))
            elif wanted(found):
                fresh.append(found)
            self.counts.dumped += 1
            if number % SLICE == 0:
                self._admit(fresh)
                fresh.clear()
                yield
        self._admit(fresh)
        # A dump is not one instant's: what it did not show may only have moved. The kernel is asked for each.
        unseen = [(row, table.generation[row]) for row in table.unmarked(serial)]
        for start in range(0, len(unseen), SLICE):
            self._check(unseen[start : start + SLICE])
            yield

    def _admit(self, found: list[Found]) -> None:
        unknown = [connection for connection in found if connection.snapshot is None]
        seen = self._asked([connection.ident for connection in unknown])
        snapshots = {connection.ident: snapshot for connection, snapshot in zip(unknown, seen, strict=True)}
        for connection in found:
            snapshot = connection.snapshot or snapshots.get(connection.ident)
            if snapshot is not None:
                self.add(connection.ident, connection.inode, snapshot)

    def _check(self, rows: list[tuple[int, int]]) -> None:
        rows = [(row, generation) for row, generation in rows if self._alive(row, generation)]
        for (row, _), seen in zip(rows, self._asked([self.table.ident(row) for row, _ in rows]), strict=True):
            if seen is None:
                self._gone(row)

    # -- who is due

    def next_wakeup(self, now: float) -> float | None:
        """When `advance` next has something to do; None: nothing is watched."""
        if self._due:
            return now
        at = self._schedule.next_wakeup()
        if self._held and self._bucket is not None:
            ready = self._bucket.ready(now)
            at = ready if at is None else min(at, ready)
        return at

    def advance(self, now: float, limit: int = SLICE) -> int:
        """Look at what may be due at *now*, at most *limit* connections, and end or report what is.

        Returns:
            How many were looked at; as many as *limit*: call again, more is waiting.
        Cost: about 10 us per look, 30 us per close.
        """
        for row in self._schedule.due(now, self._alive):
            self._due.append((row, self.table.generation[row]))
        held = 0
        while self._held and held < limit and self._may_end(now):
            row, generation = self._held.popleft()
            if self._alive(row, generation):
                self._judged(row, *self._asked([self.table.ident(row)]))
                held += 1
        batch: list[int] = []
        while self._due and len(batch) + held < limit:
            row, generation = self._due.popleft()
            if self._alive(row, generation):
                batch.append(row)
        for start in range(0, len(batch), 32):
            part = batch[start : start + 32]
            for row, seen in zip(part, self._asked([self.table.ident(row) for row in part]), strict=True):
                self._judged(row, seen)
        return len(batch) + held

    def _judged(self, row: int, seen: Snapshot | None) -> None:
        if seen is None:
            self._gone(row)
            return
        table = self.table
        known = table.memory(row)
        if (known.received, known.acked) != (seen.received, seen.acked):
            table.told[row] = 0
        limits = self._limits_of(table.cookie(row))
        verdict, memory = judge(seen, known, limits)
        table.remember(row, memory)
        if not verdict.due:
            self._arm(row, verdict.at)
        elif self._end is None:
            self._report(row, verdict, limits, seen.after)
        elif self._closes and not self._may_end(seen.after):
            self._held.append((row, table.renew(row)))
        else:
            self._close(row, verdict, limits, seen.after)

    def _close(self, row: int, verdict: Verdict, limits: Limits, at: float) -> None:
        assert self._end is not None
        table = self.table
        last: list[tuple[Snapshot, Verdict, Memory]] = []

        def again(seen: Snapshot) -> bool:
            judged = judge(seen, table.memory(row), limits)
            last.append((seen, *judged))
            return judged[0].due and self._closes

        outcome = self._end(table.ident(row), table.inode[row], again)
        if last:
            seen, verdict, memory = last[-1]
            table.remember(row, memory)
            at = seen.after
        if outcome == "closed":
            if self._bucket is not None:
                self._bucket.spend(1)
            self._event("closed", row, at, verdict)
            table.remove(row)
        elif outcome == "averted" and verdict.due:
            self._report(row, verdict, limits, at)
        elif outcome == "averted":
            self._event("averted", row, at, verdict)
            self._arm(row, verdict.at)
        elif outcome == "gone":
            self._gone(row)
        elif outcome == "later":
            self._arm(row, at + RETRY)
        elif not self._closes:
            self._report(row, verdict, limits, at)
        else:
            if not table.told[row] & TOLD:
                table.told[row] |= TOLD
                self._event("unreachable", row, at, verdict)
            self._arm(row, at + max(RETRY, limits.of(verdict.reason)))

    def soonest(self, count: int) -> list[tuple[bytes, Snapshot, Verdict]]:
        """The *count* connections that are looked at next, as they are now: for people. Changes nothing."""
        rows = self._schedule.soonest(count, self._alive)
        idents = [self.table.ident(row) for row in rows]
        found = []
        for row, ident, seen in zip(rows, idents, self._asked(idents), strict=True):
            if seen is not None:
                found.append((ident, seen, judge(seen, self.table.memory(row), self._limits_of(cookie_of(ident)))[0]))
        return sorted(found, key=lambda one: one[2].at)

    def _report(self, row: int, verdict: Verdict, limits: Limits, at: float) -> None:
        if not self.table.told[row] & TOLD:
            self.table.told[row] |= TOLD
            self._event("due", row, at, verdict)
        self._arm(row, at + limits.of(verdict.reason))

    # -- small things

    def _asked(self, idents: list[bytes]) -> list[Snapshot | None]:
        self.counts.looks += len(idents)
        return self._look(idents) if idents else []

    def _may_end(self, now: float) -> bool:
        return self._bucket is None or self._bucket.available(now) >= 1

    def _alive(self, row: int, generation: int) -> bool:
        return self.table.generation[row] == generation

    def _arm(self, row: int, at: float) -> None:
        self._schedule.arm(row, self.table.renew(row), at)

    def _limits_of(self, cookie: int) -> Limits:
        # Cookies are assigned in order: neighbours get different lengths.
        return self._limits[cookie * 7 % len(self._limits)]

    def _gone(self, row: int) -> None:
        self._event("gone", row, NONE, None)
        self.table.remove(row)

    def _event(self, kind: str, row: int, at: float, verdict: Verdict | None, opened: float = NONE) -> None:
        self.counts.events[kind] += 1
        ident = self.table.ident(row)
        since, reason, limit, due = self.table.memory(row).turn, "", 0.0, NONE
        if verdict is not None:
            since, reason = verdict.since, verdict.reason
            limit = self._limits_of(cookie_of(ident)).of(reason) if reason else 0.0
            due = verdict.at
        if kind in ("due", "closed"):
            self.counts.reasons[reason] += 1
            if not self.table.told[row] & OVERDUE:
                self.counts.max_lateness = max(self.counts.max_lateness, at - due)
        self._on(Event(kind, at, ident, self.table.inode[row], opened, since, reason, limit, due))
