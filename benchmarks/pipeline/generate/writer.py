"""One generated writer: a server process that keeps the law of time exactly, from its first row to its last drain.

Time goes window by window. A connection's silences are drawn some at a time (a leg), so that what is held is bounded
by the open connections, not by how long they live.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reaper.journal.schema import ACTIVITY, AVERTED, CLOSE_APP, CLOSE_PEER, CONFIG, DRAIN, OPEN, REAP, arrow_schema

from .faults import Fault, rows_of_fault
from .files import (
    DONE,
    DRAINED,
    EOF,
    HEADERS,
    IDLE,
    RESET,
    RESTART,
    SETTINGS,
    STALLED,
    Columns,
    Rows,
    Sink,
    as_table,
    in_time_order,
)
from .habits import (
    APP_SHARE,
    CROWD,
    DEADLINE,
    HABITS,
    HERD,
    MS,
    OWN,
    REAP_SHARE,
    ROWS_PER_CONNECTION,
    TIMEOUT_NS,
    TUNNEL,
    Codes,
    Ints,
    S,
    activities,
    choose,
    silences,
)
from .loop import Loop

LEG = 128
"""Activities drawn for a connection at a time."""

AVERT_SHARE = 0.002
"""Of the connections: their last activity comes just as they are due, and the final check sees it."""

CLOSING_NS = 2 * S
"""How long a storm takes to close everything."""

TOP_UPS = 4

BLIP_SHARE = 0.9
"""Of the connections that a network's failure cuts; tunnels outlive it."""


@dataclass(slots=True)
class Lives(Columns):
    """Connections whose future is not drawn to its end. `last`: latest activity drawn; `left`: activities to come."""

    conn: Ints
    habit: Codes
    opened: Ints
    last: Ints
    n: Ints
    idle_sum: Ints
    left: Ints

    def __len__(self) -> int:
        return len(self.conn)


@dataclass(slots=True)
class Course:
    """What happens to a writer: instants on its clock, ns."""

    borders: Ints
    """Between windows; the first is its start, the last its end. Each window bears the same load."""
    load: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Instants, and the share of the load that lies before each."""
    storms: dict[int, str]
    """Number of a border -> `blip` or `restart`."""
    faults: list[Fault]
    """By instant."""
    rows: int
    """To be written, about."""
    crowd: int
    """Connections that come before each storm."""
    tunnels: int
    """Connections that live for ever."""


class Generator:
    """Draws the rows of one writer and hands them to its sinks. See `Course` for what is given."""

    def __init__(
        self, rng: np.random.Generator, loop: Loop, course: Course, sinks: Iterator[Sink], long_ns: int
    ) -> None:
        self.rng = rng
        self.loop = loop
        self.course = course
        self.sinks = sinks
        self.long_ns = long_ns
        self.schema = arrow_schema()
        self.kinds = np.zeros(8, np.int64)
        self.connections = 0
        self._have = 0  # rows drawn so far that will be written
        self._pending = Rows.of(0)
        none = np.zeros(0, np.int64)
        self._waiting = Lives(none, none.astype(np.uint8), none, none, none, none, none)
        self._returning: list[tuple[Codes, float]] = []
        self._next_stall = self._next_fault = 0
        self._begin_run(int(course.borders[0]))

    def run(self) -> None:
        """Everything, to the last file."""
        borders = self.course.borders.tolist()
        for number, (since, to) in enumerate(pairwise(borders)):
            drawn = [self._pending, *self._own(since, to), *self._planted(to)]
            lives = self._arrivals(number, since, to, drawn)
            self._live(lives, to, drawn)
            if to == borders[-1]:
                self._top_up(since, to, drawn)
            rows = Rows.concat(drawn)
            now = rows.t < to
            self._emit(rows.take(now))
            self._pending = rows.take(~now)
            if storm := self.course.storms.get(number + 1):
                self._storm(to, storm)
        self._storm(borders[-1], "end")

    def _live(self, lives: Lives, to: int, drawn: list[Rows]) -> None:
        """Draw *lives*, and those that wait, up to *to*."""
        while len(lives):
            drawn += self._leg(lives)
            due = self._waiting.last < to
            lives, self._waiting = self._waiting.take(due), self._waiting.take(~due)

    def _top_up(self, since: int, to: int, drawn: list[Rows]) -> None:
        """In the last window: as many more connections as rows are missing; the end cuts many short."""
        per = ROWS_PER_CONNECTION
        for _ in range(TOP_UPS):
            count, before = int((self.course.rows - self._have) / per), self._have
            if count < 1:
                return
            at = since + (self.rng.random(count) * (to - since)).astype(np.int64)
            self._live(self._admit(at, choose(self.rng, count), drawn), to, drawn)
            per = max((self._have - before) / count, 2.0)

    # ---- the writer itself ---------------------------------------------------------------------------------------

    def _begin_run(self, at: int) -> None:
        self.sink = next(self.sinks)
        self._self = int(self.sink.metadata["first_conn"])
        self._next = self._self + 1
        self._note(Rows.of(1, t=at, conn=self._self, habit=OWN, kind=CONFIG, reason=SETTINGS))

    def _note(self, rows: Rows) -> None:
        self._have += len(rows)
        self._pending = Rows.concat([self._pending, rows])

    def _own(self, since: int, to: int) -> list[Rows]:
        """The stalls of this window, as rows."""
        rows = []
        for begun, over in self.loop.stalls:
            if since <= over < to:
                columns: dict[str, Any] = {"habit": OWN, "kind": CONFIG, "reason": STALLED}
                rows.append(Rows.of(1, t=over, conn=self._self, idle=over - begun, **columns))
        self._have += len(rows)
        return rows

    def _planted(self, to: int) -> list[Rows]:
        rows = []
        faults = self.course.faults
        while self._next_fault < len(faults) and faults[self._next_fault].at < to:
            rows.append(rows_of_fault(faults[self._next_fault], self._next, self.loop))
            self._next += 1
            self._next_fault += 1
            self._have += len(rows[-1])
        self.connections += len(rows)
        return rows

    def _emit(self, rows: Rows) -> None:
        if self.long_ns >= 0:
            rows = rows.take((rows.kind != ACTIVITY) | (rows.idle > self.long_ns))
        self.kinds += np.bincount(rows.kind, minlength=8)
        self.sink.add(as_table(in_time_order(rows), self.sink.wall, self.rng, self.schema))

    # ---- connections ---------------------------------------------------------------------------------------------

    def _arrivals(self, number: int, since: int, to: int, drawn: list[Rows]) -> Lives:
        """Who opens a connection in this window; their rows go to *drawn*."""
        rng, course = self.rng, self.course
        instants, shares = course.load
        begin, end = np.interp([since, to], instants, shares)
        per = (self._have + 200 * ROWS_PER_CONNECTION) / (self.connections + 200)
        planned = (end - begin) * course.rows / per
        wanted = (end * course.rows - self._have) / per
        count = round(min(max(wanted, 0.3 * planned), 3 * planned)) if number else round(planned)
        opened = [np.interp(begin + rng.random(count) * (end - begin), shares, instants)]
        habits = [choose(rng, count)]
        length = to - since
        if number == 0:
            opened.append(since + rng.random(course.tunnels) * min(3600 * S, length))
            habits.append(np.full(course.tunnels, TUNNEL, np.uint8))
        if number + 1 in course.storms:
            first, last = to - min(480 * S, 0.8 * length), to - min(60 * S, 0.1 * length)
            opened.append(first + rng.random(course.crowd) * (last - first))
            habits.append(np.full(course.crowd, CROWD, np.uint8))
        for back, after in self._returning:
            away = after * S + rng.standard_exponential(len(back)) * min(2.0 * S, length / 20)
            opened.append(since + np.minimum(away, 0.6 * length))
            habits.append(back)
        if self._returning:
            opened[0] = np.maximum(opened[0], since + 3 * S)  # none is served while the server restarts
        self._returning = []
        return self._admit(np.concatenate(opened).astype(np.int64), np.concatenate(habits), drawn)

    def _admit(self, at: Ints, habit: Codes, drawn: list[Rows]) -> Lives:
        """New connections, numbered in the order of *at*."""
        order = np.argsort(at, kind="stable")
        at, habit = self.loop.seen(at[order]), habit[order]
        conn = self._next + np.arange(len(at))
        self._next += len(at)
        self.connections += len(at)
        self._have += 2 * len(at)  # each also ends
        drawn.append(Rows.of(len(at), t=at, conn=conn, habit=habit, kind=OPEN))
        zero = np.zeros(len(at), np.int64)
        return Lives(conn, habit, at, at, zero, zero, activities(self.rng, habit))

    def _leg(self, who: Lives) -> list[Rows]:
        """The next activities of each, and the end of those that have no more; the others go on waiting."""
        rng, loop = self.rng, self.loop
        count = np.minimum(who.left, LEG)
        to = np.cumsum(count)
        since = to - count
        of = np.repeat(np.arange(len(who)), count)
        habit = who.habit[of]
        run = np.concatenate([np.zeros(1, np.int64), np.cumsum(silences(rng, habit))])
        t = loop.seen((who.last - run[since])[of] + run[1:])
        some = count > 0
        first, final = since[some], to[some] - 1
        before = np.empty_like(t)
        before[1:] = t[:-1]
        before[first] = who.last[some]
        done = who.left <= LEG
        spared = (rng.random(len(who)) < AVERT_SHARE) & done & some & (who.habit < TUNNEL) & (who.habit != DEADLINE)
        at = to[spared] - 1
        look = loop.wake(loop.closed(before[at]) + TIMEOUT_NS[habit[at]] + self._delay(len(at)))
        t[at] = look + 80_000
        idle = t - before
        n = np.arange(1, len(t) + 1) + (who.n - since)[of]
        kept = idle > self.long_ns
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(kept, idle, 0))])
        idle_sum = sums[1:] + (who.idle_sum - sums[since])[of]
        self._have += int(np.count_nonzero(kept & (t < self.course.borders[-1])))
        rows = [Rows.of(len(t), t=t, conn=who.conn[of], habit=habit, kind=ACTIVITY, idle=idle, n=n, idle_sum=idle_sum)]
        if len(at):
            self._have += int(np.count_nonzero(look < self.course.borders[-1]))
            kept_at = np.where(kept[at], idle[at], 0)
            rows.append(
                Rows.of(
                    len(at), t=look, conn=who.conn[spared], habit=habit[at], kind=AVERTED, idle=look - before[at],
                    n=n[at] - 1, idle_sum=idle_sum[at] - kept_at,
                )
            )  # fmt: skip
        last, total, summed = who.last.copy(), who.n.copy(), who.idle_sum.copy()
        last[some], total[some], summed[some] = t[final], n[final], idle_sum[final]
        after = Lives(who.conn, who.habit, who.opened, last, total, summed, who.left - count)
        rows.append(self._ends(after.take(done)))
        self._waiting = Lives.concat([self._waiting, after.take(~done)])
        return rows

    def _delay(self, count: int) -> Ints:
        """How long after an instant the loop gets to it."""
        return (30_000 + self.rng.standard_exponential(count) * 300_000).astype(np.int64)

    def _ends(self, who: Lives) -> Rows:
        rng, loop = self.rng, self.loop
        luck = rng.random(len(who))
        reaped = luck < REAP_SHARE[who.habit]
        by_app = luck > 1 - APP_SHARE[who.habit]
        due = loop.closed(who.last) + TIMEOUT_NS[who.habit]
        fixed = who.habit == DEADLINE
        # So long to send all headers, and once more for every such time in which something of them came.
        term = round(HABITS[DEADLINE].deadline_s * S)
        since = loop.closed(who.opened)
        due = np.where(fixed, since + (np.maximum(who.last - since, 0) // term + 1) * term, due)
        closed = loop.seen(who.last + silences(rng, who.habit))
        return Rows.of(
            len(who),
            t=(t := np.where(reaped, loop.wake(due + self._delay(len(who))), closed)),
            conn=who.conn,
            habit=who.habit,
            kind=np.where(reaped, REAP, np.where(by_app, CLOSE_APP, CLOSE_PEER)),
            idle=t - who.last,
            n=who.n,
            idle_sum=who.idle_sum,
            due=due,
            reason=np.where(reaped, np.where(fixed, HEADERS, IDLE), np.where(by_app, DONE, EOF)),
        )

    # ---- storms --------------------------------------------------------------------------------------------------

    def _storm(self, at: int, storm: str) -> None:
        """End open connections at *at*, with what they would have done later taken back; most come again."""
        rng = self.rng
        pending = in_time_order(self._pending)
        conns, first, place = np.unique(pending.conn, return_index=True, return_inverse=True)
        hit = np.ones(len(conns), np.bool_)
        if storm == "blip":
            hit = (pending.habit[first] != TUNNEL) & (rng.random(len(conns)) < BLIP_SHARE)
        cut = pending.take(hit[place])
        kept = cut.idle > self.long_ns
        self._have -= int(
            np.count_nonzero(
                (cut.t < self.course.borders[-1]) & ((cut.kind == ACTIVITY) & kept | (cut.kind == AVERTED))
            )
        )
        nearest = pending.take(first[hit])  # in it: what had happened up to the storm
        active = nearest.kind == ACTIVITY
        ended = np.minimum(at + (rng.random(len(nearest)) * CLOSING_NS).astype(np.int64), nearest.t)
        written = active & (nearest.idle > self.long_ns)
        ends = Rows.of(
            len(nearest),
            t=ended,
            conn=nearest.conn,
            habit=nearest.habit,
            kind=CLOSE_PEER if storm == "blip" else CLOSE_APP,
            idle=ended - (nearest.t - nearest.idle),
            n=nearest.n - active,
            idle_sum=nearest.idle_sum - np.where(written, nearest.idle, 0),
            reason={"blip": RESET, "restart": RESTART, "end": DRAINED}[storm],
        )
        self._pending = Rows.concat([pending.take(~hit[place]), ends])
        self._waiting = self._waiting.take(~np.isin(self._waiting.conn, nearest.conn))
        back = np.where(nearest.habit == CROWD, HERD, nearest.habit).astype(np.uint8)
        self._returning = [(back, 0.5 if storm == "blip" else 3.0)]
        if storm != "blip":
            over = at + CLOSING_NS + MS
            self._note(Rows.of(1, t=over, conn=self._self, habit=OWN, kind=DRAIN, reason=DRAINED))
            self._emit(self._pending)
            self._pending = Rows.of(0)
            self.sink.close()
            if storm == "restart":
                self._begin_run(over + 500 * MS)
