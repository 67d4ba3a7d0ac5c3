"""What files and writers say about themselves, the runs that files make up, and the
timeline of all runs.

The rule of this module: *no instants of two writers are compared before a `Timeline`
was chosen for all of them*. What compares them asks for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from statistics import median

from ...journal.schema import SEQUENCE_BITS
from ..places import Place

Intervals = list[tuple[int, int]]
Stalls = dict[int, Intervals]
"""run -> (from, to) of each stall of its loop, on the timeline that all runs share."""

Stretch = tuple[int, int, int]
"""From, to, offset; see `Timeline.stretches`. ns."""

TICK_NS = 1_000_000_000
"""The tick of a file that does not state it."""

STEP_NS = 200_000_000
"""By how much a clock must move against Unix time from one anchor to the next to have
been set, or to have stood, as that of a suspended machine does. Drift is less.
"""

FAR_NS = 1 << 62
"""Beyond every instant."""

SPARE_IDS = 1_000_000
"""How far the numbers of connections may run ahead of the rows of a whole run; numbers
without a row count as lost.
"""


@dataclass(slots=True)
class Facts:
    """What one file says about itself. Times are ns on its writer's clock unless they
    say otherwise.
    """

    path: Place
    size: int
    """Bytes."""
    rows: int
    run: str
    writer: int
    serial: int
    mode: str
    tick_ns: int
    gap_threshold_ns: int
    first_conn: int
    boot: str
    anchors: list[list[int]]
    dropped: int
    """Rows of its run that were lost by the time its last row was written."""
    dropped_earlier: int
    """Rows lost that the files before it tell of."""
    server: str
    """The machine of its writer; empty where the file does not say."""
    numbered: bool = True
    """Whether it says with which number its run began; else `first_conn` is its
    writer's least.
    """
    bounds: tuple[int, int] | None = None
    """The instants between which its rows lie, Unix ns, both inclusive; None if it does
    not say.
    """
    said: str = ""
    """What the column `file` of a table says of it; empty where its rows are in a
    file.
    """

    # What its rows say together, see `file.believe`.
    t_min: int = 0
    t_max: int = 0
    first_opened: int | None = None
    """The least connection id with an opening in it; None without any opening."""
    opened_ns: int | None = None
    """When the first of its connections was opened; None without any opening."""
    last_conn: int = 0
    """The highest connection id in it."""
    listeners: list[str] = field(default_factory=list)
    own_rows: int = 0
    """Rows that its writer logged of itself, not of a connection."""
    stalls: list[tuple[int, int]] = field(default_factory=list)
    """(t, idle_ns) of each stall of its loop: it lasted idle_ns, up to t. Ascending,
    each once.
    """
    drained: bool = False
    """Its writer said that no connection of its is left."""
    averted: int = 0
    """Rows of final checks that spared."""
    changes: bool = True
    """Whether final checks spared, or a connection's timeout was changed."""
    told: bool = True
    """Whether rows tell of a connection that is still open."""
    untimed: bool = True
    """Whether an activity states no timeout, or that none was in force."""
    backward: bool = True
    """Whether a silence has a negative length."""
    overdue_ns: int | None = None
    """By how much the worst silence outlasted its timeout, or the worst reap came after
    it was due, whichever is more; None: there is none of either.
    """
    longest_ns: int | None = None
    """The longest silence that a row ends, or reports before a change; None: none."""
    least_ms: int | None = None
    """The least timeout that an opening or a change puts in force; None: none does."""
    active_ms: tuple[int, int] | None = None
    """The least and the greatest timeout that an activity states; None: none does."""

    @property
    def of_run(self) -> tuple[int, str, int]:
        """What all files of one run have in common, and no other file has."""
        return self.writer, self.run, self.first_conn

    @property
    def identity(self) -> tuple[int, str, int, int]:
        """What no other file has: its writer, its run, its number. A copy has the same.

        A writer that kept the name of its run over a restart has other connections.
        """
        return *self.of_run, self.serial


@dataclass(slots=True)
class Run:
    """One writer from its start to its end: all its files together."""

    index: int
    name: str
    writer: int
    first_conn: int
    last_conn: int
    """Inclusive: where the ids of the writer's next run begin, less one."""
    tick_ns: int
    full: bool
    gap_threshold_ns: int
    opened_ns: int | None
    """When the first connection was opened; None: no opening is in its files."""
    log_begin_ns: int
    log_end_ns: int
    first_opened: int | None
    """Connections with a number below it may have been opened before this log; None:
    all.
    """
    numbered: bool
    """See `Facts.numbered`."""
    whole: bool
    """Every file since its start is here and nothing was dropped: a number without a
    row is then a loss.
    """
    holed: bool
    """A file between others of it is missing or put aside, or its writer dropped rows:
    what is not in the log may have happened all the same.
    """
    drained: bool
    """It said that no connection of its is left."""
    stalls: Intervals
    """(from, to) of each stall of its loop, on its clock: sorted, none touching
    another.
    """
    boot: str
    anchors: list[list[int]]
    dropped: int
    """Rows that its writer says it dropped."""
    dropped_earlier: int
    """How many of them were lost before its first file."""
    beside_ns: int = 0
    """For a run without anchors among others that have them: its clock + this puts its
    last row at the end of theirs. This is an assumption, for figures over time; none of
    its instants is compared with another run's.
    """

    @property
    def stood_ns(self) -> int:
        """How long its loop stood still, in stalls longer than a tick."""
        lengths = (to - since for since, to in self.stalls)
        return sum(length for length in lengths if length > self.tick_ns)

    @property
    def awake_to_ns(self) -> int:
        """Up to when its loop is known to have run: the end of its log, or the stall
        with which that ends.
        """
        at = self.log_end_ns
        for since, to in reversed(self.stalls):
            if to < at - self.tick_ns:
                break
            at = min(at, since)
        return at


class Timeline(Enum):
    """The timeline that several runs share. The value names it in words."""

    ONE_CLOCK = "the machine's monotonic clock"
    """All ran within one boot: CLOCK_MONOTONIC, which no step of the wall clock
    moves.
    """
    UNIX = "Unix time"
    UNRELATED = "each writer's own clock, taken to be one: no anchors in the files"

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Timeline:
        """The best timeline that all of *runs* with anchors share. A run without
        anchors changes nothing for the others.
        """
        runs = list(runs)
        related = [run for run in runs if run.anchors]
        if not related:
            return cls.UNRELATED
        boots = {run.boot for run in related}
        one = (
            len(boots) == 1
            and "" not in boots
            and all(len(a) == 3 for run in related for a in run.anchors)
        )
        timeline = cls.ONE_CLOCK if one else cls.UNIX
        latest = max(timeline.offset_ns(run) + run.log_end_ns for run in related)
        for run in runs:
            run.beside_ns = 0 if run.anchors else latest - run.log_end_ns
        return timeline

    def offset_ns(self, run: Run) -> int:
        """The clock of *run* + this = this timeline."""
        if self is Timeline.UNRELATED or not run.anchors:
            return run.beside_ns
        shared = 2 if self is Timeline.ONE_CLOCK else 1
        return round(median(anchor[shared] - anchor[0] for anchor in run.anchors))

    def stretches(self, run: Run) -> list[Stretch]:
        """The stretches of *run* between the steps of its clock, ascending: from and to
        on its clock, inclusive, and the offset that holds there.

        The first begins long before all rows, the last ends long after. Between two of
        them lies a step, whose instant no anchor tells.
        """
        if self is Timeline.UNRELATED or not run.anchors:
            return [(-FAR_NS, FAR_NS, self.offset_ns(run))]
        shared = 2 if self is Timeline.ONE_CLOCK else 1
        parts: list[list[tuple[int, int]]] = [[]]
        for anchor in sorted(run.anchors):
            at, offset = anchor[0], anchor[shared] - anchor[0]
            if parts[-1] and abs(offset - parts[-1][-1][1]) > STEP_NS:
                parts.append([])
            parts[-1].append((at, offset))
        bounds = [(part[0][0], part[-1][0]) for part in parts]
        firsts = [-FAR_NS, *(first for first, _ in bounds[1:])]
        lasts = [*(last for _, last in bounds[:-1]), FAR_NS]
        offsets = [round(median(offset for _, offset in part)) for part in parts]
        return list(zip(firsts, lasts, offsets, strict=True))

    def stalls(self, runs: Iterable[Run], *, placed: bool = False) -> Stalls:
        """The stalls of each of *runs*; empty for a run without any. *placed*: by the
        offset of their stretch, and not that of the whole run.
        """
        found: Stalls = {}
        for run in runs:
            whole = [(-FAR_NS, FAR_NS, self.offset_ns(run))]
            stretches = self.stretches(run) if placed else whole

            def moved(t: int, of: list[Stretch] = stretches) -> int:
                return t + [by for since, _, by in of if since <= t][-1]

            found[run.index] = [(moved(a), moved(b)) for a, b in run.stalls]
        return found

    def apart(self, runs: Iterable[Run]) -> list[int]:
        """The indices of those of *runs* that have no place on this timeline."""
        return [] if self is Timeline.UNRELATED else [run.index for run in runs if not run.anchors]


def missing_serials(serials: Iterable[int]) -> list[int]:
    """The numbers between those of one run's files that are not among *serials*:
    retention takes none of these.
    """
    present = {serial for serial in serials if serial > 0}
    return sorted(set(range(min(present), max(present))) - present) if present else []


def runs_of(files: list[Facts]) -> list[Run]:
    """The runs that *files* make up: one per writer and start of it."""
    groups: dict[tuple[int, str, int], list[Facts]] = {}
    for facts in files:
        groups.setdefault((facts.writer, facts.run, facts.first_conn), []).append(facts)
    runs = []
    for (writer, name, first_conn), members in groups.items():
        members.sort(key=lambda facts: facts.serial)
        serials = [facts.serial for facts in members]
        dropped = max(facts.dropped for facts in members)
        runs.append(
            Run(
                index=0,
                name=name,
                writer=writer,
                first_conn=first_conn,
                last_conn=((writer + 1) << SEQUENCE_BITS) - 1,
                tick_ns=max(facts.tick_ns for facts in members),
                full=all(facts.mode == "full" for facts in members),
                gap_threshold_ns=max(facts.gap_threshold_ns for facts in members),
                opened_ns=min(
                    (facts.opened_ns for facts in members if facts.opened_ns is not None),
                    default=None,
                ),
                log_begin_ns=min(facts.t_min for facts in members),
                log_end_ns=max(facts.t_max for facts in members),
                first_opened=first_conn
                if serials[0] == 1 and members[0].numbered
                else min(
                    (facts.first_opened for facts in members if facts.first_opened is not None),
                    default=None,
                ),
                numbered=all(facts.numbered for facts in members),
                whole=serials == list(range(1, len(serials) + 1)) and not dropped,
                holed=bool(missing_serials(serials)) or dropped > 0,
                drained=any(facts.drained for facts in members),
                stalls=merge((t - idle_ns, t) for facts in members for t, idle_ns in facts.stalls),
                boot=members[0].boot,
                anchors=sorted(anchor for facts in members for anchor in facts.anchors),
                dropped=dropped,
                dropped_earlier=min(facts.dropped_earlier for facts in members),
            )
        )
    runs.sort(key=lambda run: (run.writer, run.first_conn))
    for before, after in pairwise(runs):
        if before.writer == after.writer:
            before.last_conn = after.first_conn - 1
    for index, run in enumerate(runs):
        run.index = index
    return runs


def merge(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """The union of *intervals*: sorted, none touching another."""
    merged: Intervals = []
    for since, to in sorted(intervals):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to))
        else:
            merged.append((since, to))
    return merged


def overdue_files(files: Sequence[Facts], least_ns: int) -> list[Facts]:
    """Those of *files* with a silence overdue by more than *least_ns*, or a final check
    by a writer that has one: the silence that it ended may be in a later file.
    """

    def overdue(facts: Facts) -> bool:
        return facts.overdue_ns is not None and facts.overdue_ns > least_ns

    writers = {facts.writer for facts in files if overdue(facts)}
    return [
        facts for facts in files if overdue(facts) or (facts.averted and facts.writer in writers)
    ]


def unordered_files(files: Sequence[Facts], least_ns: int) -> list[Facts]:
    """The files of the runs in which another timeout than the one in force may excuse a
    silence: a connection's timeout was changed, and a silence outlasted the least of
    all timeouts by *least_ns*.
    """
    runs: dict[tuple[int, str, int], list[Facts]] = {}
    for facts in files:
        runs.setdefault(facts.of_run, []).append(facts)

    def suspect(members: list[Facts]) -> bool:
        stated = [facts.least_ms for facts in members if facts.least_ms is not None]
        silent = max((facts.longest_ns or 0 for facts in members), default=0)
        changes = any(facts.changes for facts in members)
        return changes and bool(stated) and silent > min(stated) * 1_000_000 + least_ns

    chosen = {of_run for of_run, members in runs.items() if suspect(members)}
    return [facts for facts in files if facts.of_run in chosen]


def strangers(files: Iterable[Facts]) -> dict[Place, str]:
    """Good files that cannot be believed beside the others: path -> reason.

    Two runs of one writer id whose connection numbers overlap are two writers: their
    rows cannot be told apart, so the files of the later run are named. In a run of
    which every file is here no number can lie far beyond the rows.
    """
    found: dict[Place, str] = {}
    runs: dict[tuple[int, int, str], list[Facts]] = {}
    for facts in files:
        runs.setdefault((facts.writer, facts.first_conn, facts.run), []).append(facts)
    reach: dict[int, Facts] = {}
    for (writer, first, name), everyone in sorted(runs.items()):
        found |= _unlike(everyone)
        members = [facts for facts in everyone if facts.path not in found]
        before = reach.get(writer)
        if before is not None and before.last_conn >= first:
            for facts in members:
                found[facts.path] = (
                    f"writer id {writer} is also that of {before.path}, which was written at the "
                    "same time: their connections cannot be told apart; give each server process "
                    "an id of its own"
                )
            continue
        good = members
        if sorted(facts.serial for facts in members) == list(range(1, len(members) + 1)):
            most = first + sum(facts.rows for facts in members) + SPARE_IDS
            good = [
                facts
                for facts in members
                if facts.last_conn <= most or any(f.dropped for f in members)
            ]
            for facts in members:
                if facts not in good:
                    found[facts.path] = (
                        f"impossible row: connection {facts.last_conn}, though run {name} of "
                        f"writer {writer} began with {first} and has not written as many rows"
                    )
        reach[writer] = max(
            [*good, *([before] if before else [])],
            key=lambda facts: facts.last_conn,
            default=members[0],
        )
    return found


def _unlike(members: list[Facts]) -> dict[Place, str]:
    """Those of one run's files whose settings are not those of most of its rows: path
    -> reason.

    A run has one tick, one mode and one threshold. A file with a greater tick would
    excuse what the others hold to be late.
    """
    weights: Counter[tuple[int, str, int]] = Counter()
    for facts in members:
        weights[_settings(facts)] += facts.rows
    # Of as many rows the stricter settings count: they excuse less.
    usual = min(weights, key=lambda each: (-weights[each], each[0], each[1] != "full", each[2]))
    tick_ns, mode, gap_ns = usual
    return {
        facts.path: f"wrong metadata: it was written with tick {facts.tick_ns / 1e9:g} s, mode "
        f"{facts.mode}, gap "
        f"threshold {facts.gap_threshold_ns / 1e9:g} s, other files of its run with "
        f"{tick_ns / 1e9:g} s, {mode}, "
        f"{gap_ns / 1e9:g} s"
        for facts in members
        if _settings(facts) != usual
    }


def _settings(facts: Facts) -> tuple[int, str, int]:
    return facts.tick_ns, facts.mode, facts.gap_threshold_ns
