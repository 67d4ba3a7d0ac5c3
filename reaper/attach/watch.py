"""The watch: it knows which connections there are, which to look at next, and what to
do when one is due.

One rule: *a connection is looked at when something can be due, and not before*. A look
costs the kernel a hash lookup, and what it shows says when the next one is worth while.
New connections are found by a dump, at half the shortest limit.

What cannot be told is not closed. Where question and answer fell into one jiffy, only
the socket in hand may tell whether the server owes an answer. If it does not tell
either, that is said, once per silence.

An outgoing connection of the server's is never closed, although it may use the
listening port. A busy connection may not show who opened it, or show it wrongly (see
`tcpinfo`). So it is watched only once a look shows that it came in, and each later
look, the final check on the very socket included, may still show that it did not; then
it is dropped. If a later look cannot show it any more, because the kernel has
miscounted, what was found before holds.

Most connections do nothing between two dumps, and are nothing but a key and a `Kept` of
some 150 bytes. Time is cut into steps of a tenth of a tick, and the agenda has a list
of idents for each step in which something is to be looked at. A row stands in one list;
when a dump puts its look off, only its own `step` changes, and it is moved when the
step of its list has come. A row that is discarded stays in its list until then, too.

The watch has no clock and does no I/O: `now` is an argument, the kernel and the hands
are given. It never blocks longer than one slice of work.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.ticks import check_timeout
from ..policy.jitter import Bucket
from .judge import NONE, Limits, Memory, Verdict, judge
from .kernel import Found, Sighted
from .netlink import cookie_of
from .tcpinfo import Snapshot

Look = Callable[[Sequence[bytes]], list[Snapshot | None]]
Glance = Callable[[Sequence[bytes], Sighted], Iterable[tuple[bytes, Snapshot | None]]]
Again = Callable[[Snapshot], bool]
End = Callable[[bytes, int, Again], str]
Ask = Callable[[bytes, int], str]
Heard = Callable[[bytes, float, bool | None], object]

SLICE = 256
"""The connections in one step of work, which takes about 5 ms."""
STEPS = 16
"""How many distinct lengths jitter gives a timeout."""
RETRY = 1.0
"""The least seconds until a connection that could not be reached is tried again."""
LOOKS_PER_TICK = 10
"""How many times within a tick looks may begin; those that come due between are one
wake-up.
"""
FURTHEST = 1e9
"""The instant, in seconds, that stands for never."""


REPORTED, OVERDUE, TO_ASK = 1, 2, 4
"""Flags of a kept row: see `Row.reported` and `Row.overdue`; and its peer shall be
asked, but its socket was not found yet.
"""
QUEUED = 0
"""The step of a row whose look is due, and waits for its turn or for the bound on
closes.
"""

_KEPT = struct.Struct("=Idddqq???")
_RATES = struct.Struct("=dqd")
"""What `Kept.packed` has: an inode, and a `Memory` without and with the part that only
`write` and `min_in_rate` need.
"""


@dataclass(slots=True, eq=False)
class Row:
    """One watched connection while something is decided about it; otherwise it is a
    `Kept`.
    """

    ident: bytes
    inode: int
    known: Memory
    reported: bool = False
    """Whether it was reported as due, and has not stirred since."""
    overdue: bool = False
    """Whether it was due when it was found."""
    to_ask: bool = False
    """Whether its peer shall be asked, but its socket was not found yet."""


class Kept:
    """One watched connection while nothing is decided about it, in as few bytes as can
    be.

    There may be as many as the machine can hold, and most of them do nothing.
    """

    __slots__ = ("flags", "mark", "packed", "step")

    def __init__(self, packed: bytes, mark: int) -> None:
        self.packed: bytes = packed
        """Its inode and its `Memory`, see `_KEPT`."""
        self.mark: int = mark
        """The number of the dump that showed it last."""
        self.step: int = QUEUED
        """The step of time in which it is looked at next."""
        self.flags: int = 0
        """`REPORTED`, `OVERDUE` and `TO_ASK`, added up."""


class Event(NamedTuple):
    """What happened to one connection. Instants are seconds on the monotonic clock."""

    kind: str
    """One of: found; due (reported, not closed); closed; averted (by the final check);
    gone (it ended without us, or turns out to be outgoing); unsure (it is silent, or
    waits for an answer: nothing tells); unreachable (no process that we may touch holds
    it).
    """
    at: float
    """`NONE`: only that it happened is known, just now or since the previous check."""
    ident: bytes
    opened: float
    """The latest instant at which a connection that was found can have been opened;
    else `NONE`.
    """
    since: float = NONE
    """Since when, at the latest, its peer has been silent."""
    reason: str = ""
    limit: float = 0.0
    """The limit in force for that reason, seconds."""
    due: float = NONE
    """Since when it was due, if it is."""
    overdue: bool = False
    """Whether it was due already when it was found: that lateness is not ours."""


@dataclass
class Counts:
    """What a watch has done so far."""

    looks: int = 0
    """How often it looked at a single connection."""
    dumps: int = 0
    """How often it compared its table with a dump."""
    events: Counter[str] = field(default_factory=Counter)
    """How many events of each kind there were."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many connections were closed, or reported as due, for each reason."""
    timely: int = 0
    """How many of these became due while they were watched."""
    max_lateness: float = 0.0
    """The longest time from due to closed (or reported) among the timely ones,
    seconds.
    """


class Watch:
    """Watches connections.

    Args:
        look: Asks the kernel for connections by ident; answers None for each that is
            gone.
        limits: What is not tolerated.
        glance: As *look*, but shows each to a function first, and leaves out those that
            it knows; see `Linux.glance`. None: each is looked at.
        tick: Seconds, > 0: a due connection is closed at most one tick late, plus our
            own stall.
        end: Closes a connection, see `Hands.end`; None: a look has to do for a final
            check.
        ask: Has the kernel ask a silent peer for `Limits.vanished`, see `Hands.ask`;
            None: peers are not asked.
        closes: Whether connections are closed. If not, a due one is reported, once per
            silence; the final check is made all the same.
        jitter: 0..1: the most by which a timeout of silence is lengthened, differently
            for each connection.
        reaps_per_second: The most that are closed per second; 0: no bound.
        on: Told every event, at once; must not raise.
        heard: Told of each connection that a dump or a look shows: since when, at the
            earliest, its peer has been silent, and whether that is the peer's affair
            (None: nothing tells). None: nobody is told. Must not raise.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self,
        look: Look,
        limits: Limits,
        *,
        tick: float,
        glance: Glance | None = None,
        end: End | None = None,
        ask: Ask | None = None,
        closes: bool = True,
        jitter: float = 0.0,
        reaps_per_second: float = 0.0,
        on: Callable[[Event], object] = lambda event: None,
        heard: Heard | None = None,
    ) -> None:
        self._look = look
        self.heard: Heard | None = heard
        self._glance = glance
        steps = (
            [limits.longer(1 + jitter * step / (STEPS - 1)) for step in range(STEPS)]
            if jitter
            else [limits]
        )
        self._limits = steps
        self._end = end
        self._ask = ask if limits.vanished else None
        self._closes = closes and end is not None
        self._on = on
        self._bucket = Bucket(reaps_per_second) if reaps_per_second else None
        self._stalls_matter = limits.write > 0
        self.limits = limits
        self.rows: dict[bytes, Kept] = {}
        """The watched connections by ident. A connection costs about 300 bytes
        altogether.
        """
        self.counts: Counts = Counts()
        # A tenth of a tick: looks that come due together are one wake-up, and none is
        # too soon.
        self._step = check_timeout("tick", tick) / LOOKS_PER_TICK
        self._agenda: dict[int, list[bytes]] = {}
        self._same: dict[int, int] = {}  # Each step once, as an object that all its rows share.
        self._order: list[int] = []
        self._due: deque[bytes] = deque()
        self._held: deque[bytes] = deque()
        self._rates_matter = limits.write > 0 or limits.min_in_rate > 0
        self._serial = 1
        self._sighted = 0

    def __len__(self) -> int:
        return len(self.rows)

    # -- who is there

    def add(self, ident: bytes, inode: int, seen: Snapshot) -> None:
        """Watch one more connection, from what *seen* shows, unless it is watched
        already.
        """
        if ident in self.rows:
            return
        verdict, memory = judge(seen, Memory(seen.after), self._limits_of(ident))
        # If it was due before we were there, that lateness is not ours.
        row = Row(ident, inode, memory, overdue=verdict.due)
        self.rows[ident] = Kept(b"", self._serial)
        self._event("found", row, seen.after, verdict, memory.opened)
        self._arm(row, verdict.at, seen.after)

    def discard(self, ident: bytes) -> bool:
        """Stop watching the connection with *ident*. True if it was watched."""
        return self.rows.pop(ident, None) is not None

    def sighted(self, ident: bytes, at: float, heard: float, queued: int, vain: int) -> bool:
        """Note that a dump shows a connection; whether it is watched. See
        `kernel.Sighted`.

        What a dump says of a connection may show that nothing can be due for longer
        than was known so far. Then the next look is put off: the row stays in the list
        of its earlier step, and is moved to that of its new one when the earlier step
        has come.
        """
        kept = self.rows.get(ident)
        if kept is None:
            return False
        self._sighted += 1
        kept.mark = self._serial
        if heard and self.heard is not None:
            self.heard(ident, heard, None)
        if self._rates_matter:
            if self._stalls_matter and queued and kept.step != QUEUED:
                stalled = _RATES.unpack_from(kept.packed, _KEPT.size)[0]
                if stalled == NONE:
                    kept.step = QUEUED
                    self._due.append(ident)
        elif heard and kept.step != QUEUED and not kept.flags & TO_ASK:
            number = self._worth_while(kept, at, heard, bool(vain or queued))
            if number > kept.step:
                kept.step = self._shared(number)
        return True

    def _glanced(self, ident: bytes, at: float, heard: float, queued: int, vain: int) -> bool:
        """Postpone a due look if the snapshot shows recent activity. Returns whether it
        did.

        A dump does the same. Most connections that come due have spoken since the last
        look.
        """
        kept = self.rows.get(ident)
        if kept is None:
            return True
        if heard and self.heard is not None:
            self.heard(ident, heard, None)
        if not heard or kept.flags:
            return False
        number = self._worth_while(kept, at, heard, bool(vain or queued))
        if number <= at / self._step + LOOKS_PER_TICK:  # not for so little: judge it
            return False
        kept.step = self._shared(number)
        self._agenda[number].append(ident)
        return True

    def _worth_while(self, kept: Kept, at: float, heard: float, asked: bool) -> int:
        """The earliest step at which looking at *kept* can find anything; 0 if unknown.

        Args:
            kept: A row without `write` and `min_in_rate`, whose peer has sent
                something.
            at: When it was shown, at the earliest.
            heard: When its peer was heard last, at the earliest.
            asked: Whether its peer's kernel owes an answer.
        """
        limits = self.limits
        until = heard + limits.idle if limits.idle else FURTHEST
        if limits.vanished:
            if asked:
                return 0
            until = min(until, at + limits.vanished * 0.75)  # as `judge` does after a look
        if limits.max_age:
            until = min(until, _KEPT.unpack_from(kept.packed)[1] + limits.max_age)
        return int(min(until, FURTHEST) / self._step) + 1

    def discover(
        self, dump: Iterable[Found | None], wanted: Callable[[Found], bool]
    ) -> Iterator[None]:
        """Compare the table with a whole *dump*: add new connections, drop those that
        have ended.

        This is a generator: each step is a slice of work, and other calls may come
        between.

        Args:
            dump: Every open connection of every listener, once; see `Linux.survey`.
                Those that were shown to `sighted` may be missing.
            wanted: Whether a connection that is not watched yet is meant.
        """
        self._serial += 1
        serial, rows = self._serial, self.rows
        self.counts.dumps += 1
        fresh = list[Found]()
        given, sighted = 0, self._sighted
        for found in dump:
            if found is not None:
                given += 1
                if not self.sighted(found.ident, 0.0, 0.0, found.queued, 0) and wanted(found):
                    fresh.append(found)
            if given + self._sighted - sighted >= SLICE:
                given, sighted = 0, self._sighted
                self._admit(fresh)
                fresh.clear()
                yield
        self._admit(fresh)
        # A dump is not one instant's: a connection that it did not show may only have
        # moved. So the kernel is asked for each.
        unseen = [ident for ident, kept in rows.items() if kept.mark != serial]
        for start in range(0, len(unseen), SLICE):
            part = [ident for ident in unseen[start : start + SLICE] if ident in rows]
            for ident, seen in zip(part, self._asked(part), strict=True):
                if seen is None:
                    self._gone(self._row(ident))
            yield

    def _admit(self, found: list[Found]) -> None:
        unknown = [connection.ident for connection in found if connection.snapshot is None]
        snapshots = dict(zip(unknown, self._asked(unknown), strict=True))
        for connection in found:
            snapshot = connection.snapshot or snapshots.get(connection.ident)
            if snapshot is not None and snapshot.outgoing is False:
                self.add(connection.ident, connection.inode, snapshot)

    # -- who is due

    def next_wakeup(self, now: float) -> float | None:
        """The instant at which `advance` next has something to do; None: nothing is
        watched.
        """
        if self._due:
            return now
        at = self._order[0] * self._step if self._order else None
        if self._held and self._bucket is not None:
            ready = self._bucket.ready(now)
            at = ready if at is None else min(at, ready)
        return at

    def advance(self, now: float, limit: int = SLICE) -> int:
        """Look at what may be due at *now*, and close or report what is.

        Args:
            now: Seconds on the monotonic clock.
            limit: The most connections to look at.
        Returns:
            How many were looked at. If it is *limit*, more may wait: call again.
        Cost: 20 to 35 us per look, 15 us more per close.
        """
        while self._order and self._order[0] * self._step <= now:
            self._begin(heapq.heappop(self._order))
        held = 0
        while self._held and held < limit and self._may_end(now):
            ident = self._held.popleft()
            if ident in self.rows:
                self._judged(ident, *self._asked([ident]))
                held += 1
        batch: list[bytes] = []
        while self._due and len(batch) + held < limit:
            ident = self._due.popleft()
            if ident in self.rows:
                batch.append(ident)
        for start in range(0, len(batch), 32):
            part = batch[start : start + 32]
            for ident, seen in self._glanced_at(part):
                if ident in self.rows:
                    self._judged(ident, seen)
        return len(batch) + held

    def _begin(self, step: int) -> None:
        """Queue the looks of *step*, which has come, and move those that were put
        off.
        """
        del self._same[step]
        rows, agenda = self.rows, self._agenda
        for ident in agenda.pop(step):
            kept = rows.get(ident)
            if kept is None:
                continue
            if kept.step == step:
                kept.step = QUEUED
                self._due.append(ident)
            elif kept.step > step:  # Otherwise this entry is of an earlier life of the row.
                agenda[kept.step].append(ident)

    def _judged(self, ident: bytes, seen: Snapshot | None) -> None:
        row = self._row(ident)
        if seen is None or seen.outgoing:
            self._gone(row)
            return
        known = row.known
        if (known.received, known.acked) != (seen.received, seen.acked):
            row.reported = row.overdue = False
        limits = self._limits_of(row.ident)
        verdict, row.known = judge(seen, known, limits)
        if self.heard is not None:
            self.heard(row.ident, verdict.since - limits.grain, verdict.peers_turn)
        if not verdict.due:
            self._arm(row, verdict.at, seen.after)
        elif self._end is None:
            self._report("due" if verdict.sure else "unsure", row, verdict, limits, seen.after)
        elif self._closes and not self._may_end(seen.after):
            self._keep(row)
            self._held.append(ident)
        else:
            self._close(row, self._end, verdict, limits, seen.after)

    def _close(self, row: Row, end: End, verdict: Verdict, limits: Limits, at: float) -> None:
        last: list[tuple[Snapshot, Verdict, Memory]] = []

        def again(seen: Snapshot) -> bool:
            judged = judge(seen, row.known, limits)
            last.append((seen, *judged))
            # A watched connection was found to have come in, before the kernel
            # miscounted.
            incoming = seen.outgoing is False or seen.miscounted
            return judged[0].due and judged[0].sure and incoming and self._closes

        outcome = end(row.ident, row.inode, again)
        if last:
            seen, verdict, row.known = last[-1]
            at = seen.after
            if seen.outgoing:
                self._gone(row)
                return
            if seen.outgoing is None and not seen.miscounted and outcome == "averted":
                self._arm(row, at + RETRY)  # It is busy: who opened it will show in a moment.
                return
        if outcome == "closed":
            if self._bucket is not None:
                self._bucket.spend(1)
            self._event("closed", row, at, verdict)
            self.discard(row.ident)
        elif outcome == "averted" and verdict.due:
            self._report("due" if verdict.sure else "unsure", row, verdict, limits, at)
        elif outcome == "averted":
            self._event("averted", row, at, verdict)
            self._arm(row, verdict.at, at)
        elif outcome == "gone":
            self._gone(row)
        elif outcome == "later":
            self._arm(row, at + min(RETRY, LOOKS_PER_TICK * self._step))
        elif verdict.sure:
            self._report("unreachable" if self._closes else "due", row, verdict, limits, at)
        else:
            self._report("unsure", row, verdict, limits, at)

    def soonest(self, count: int) -> list[tuple[bytes, Snapshot, Verdict]]:
        """The *count* connections that are looked at next, as they are now, for people.

        This changes nothing: what the looks show is not remembered.
        """
        armed = (ident for ident, kept in self.rows.items() if kept.step != QUEUED)
        idents = heapq.nsmallest(count, armed, key=lambda ident: self.rows[ident].step)
        found = []
        for ident, seen in zip(idents, self._asked(idents), strict=True):
            if seen is not None:
                known = self._row(ident).known
                found.append((ident, seen, judge(seen, known, self._limits_of(ident))[0]))
        return sorted(found, key=lambda one: one[2].at)

    def _report(self, kind: str, row: Row, verdict: Verdict, limits: Limits, at: float) -> None:
        """Report *row* once per silence, and look again when it could be due again."""
        if not row.reported:
            row.reported = True
            self._event(kind, row, at, verdict)
        self._arm(row, at + max(RETRY if kind == "unreachable" else 0.0, limits.of(verdict.reason)))

    # -- small things

    def _asked(self, idents: list[bytes]) -> list[Snapshot | None]:
        self.counts.looks += len(idents)
        return self._look(idents) if idents else []

    def _glanced_at(self, idents: list[bytes]) -> Iterable[tuple[bytes, Snapshot | None]]:
        """Those of *idents* that have to be judged, as they are now."""
        if self._glance is None or self._rates_matter:
            return zip(idents, self._asked(idents), strict=True)
        self.counts.looks += len(idents)
        return self._glance(idents, self._glanced)

    def _may_end(self, now: float) -> bool:
        return self._bucket is None or self._bucket.available(now) >= 1

    def _row(self, ident: bytes) -> Row:
        """The watched connection with *ident*, to decide something about it."""
        kept = self.rows[ident]
        inode, opened, turn, vain, received, acked, theirs, owed, asks = _KEPT.unpack_from(
            kept.packed
        )
        stalled, slow_received, slow = NONE, 0, NONE
        if self._rates_matter:
            stalled, slow_received, slow = _RATES.unpack_from(kept.packed, _KEPT.size)
        known = Memory(
            opened, received, turn, acked, stalled, slow_received, slow, theirs, owed, asks, vain
        )
        flags = kept.flags
        return Row(
            ident, inode, known, bool(flags & REPORTED), bool(flags & OVERDUE), bool(flags & TO_ASK)
        )

    def _keep(self, row: Row) -> Kept:
        """Put what was decided about *row* back into the table."""
        known, kept = row.known, self.rows[row.ident]
        packed = _KEPT.pack(
            row.inode, known.opened, known.turn, known.vain, known.received, known.acked,
            known.theirs, known.owed, known.asks,
        )  # fmt: skip
        if self._rates_matter:
            packed += _RATES.pack(known.stalled, known.slow_received, known.slow)
        kept.packed = packed
        kept.flags = row.reported * REPORTED + row.overdue * OVERDUE + row.to_ask * TO_ASK
        return kept

    def _shared(self, step: int) -> int:
        """*step* as an object that all rows of that step share, with a list in the
        agenda.
        """
        same = self._same.get(step)
        if same is None:
            same = self._same[step] = step
            self._agenda[step] = []
            heapq.heappush(self._order, step)
        return same

    def _arm(self, row: Row, at: float, now: float = NONE) -> None:
        """Keep *row*, and look at it again at *at*.

        If *now* is given, and the kernel does not ask its peer yet, it is told to.
        """
        if now != NONE and self._ask is not None and not row.known.asks:
            outcome = self._ask(row.ident, row.inode)
            row.to_ask = outcome == "later"
            if outcome == "asked":
                row.known = row.known._replace(asks=True)
            elif outcome == "later":
                at = min(at, now + self.limits.asks)
        kept = self._keep(row)
        # The step after that of *at*: a look at a step that began before would be too
        # soon.
        kept.step = self._shared(max(int(min(at, FURTHEST) / self._step), 0) + 1)
        self._agenda[kept.step].append(row.ident)

    def _limits_of(self, ident: bytes) -> Limits:
        # Cookies are assigned in order: neighbours get different lengths.
        return self._limits[cookie_of(ident) * 7 % len(self._limits)]

    def _gone(self, row: Row) -> None:
        self._event("gone", row, NONE, None)
        self.discard(row.ident)

    def _event(
        self, kind: str, row: Row, at: float, verdict: Verdict | None, opened: float = NONE
    ) -> None:
        self.counts.events[kind] += 1
        since, reason, limit, due = row.known.turn, "", 0.0, NONE
        if verdict is not None:
            since, reason = verdict.since, verdict.reason
            limit = self._limits_of(row.ident).of(reason) if reason else 0.0
            due = verdict.at
        if kind in ("due", "closed"):
            self.counts.reasons[reason] += 1
            if not row.overdue:
                self.counts.timely += 1
                self.counts.max_lateness = max(self.counts.max_lateness, at - due)
        self._on(Event(kind, at, row.ident, opened, since, reason, limit, due, row.overdue))
