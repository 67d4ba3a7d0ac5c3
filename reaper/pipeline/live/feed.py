"""The feed: what the stream reads. A file of a journal enters it whole, once, after its
check, and in a fixed order.

Spark's file source would stop for ever at one bad file, forget files older than a week,
stumble when retention deletes what it has listed, and drop what its watermark calls
late, uncounted. So it reads a directory made for it: each step puts the rows of some
checked files into that, and is written down in the ledger before the stream sees it. A
kill at any instant leaves a step either done or not begun.
"""

from __future__ import annotations

import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...journal.schema import CONFIG, KINDS, OWN, REAP, UNNAMED
from ..places import local_files, sync
from ..read.file import Refused, believe, count_here, footer_of, overdue
from ..read.runs import Facts
from .ledger import Ledger, ServerRead, open_ledger

MARKER = "marker"
"""Kind of the row that lets the last windows and sessions out: far ahead, so that
nothing waits behind it.
"""

CHANGE = KINDS[CONFIG]
"""Kind of a row that reports a change of a connection's timeout, and nothing else: it
is at the latest activity.
"""

COUNTS = ("opened", "reaped", "closed", "averted", "overdue")
"""What is counted of them per window and listener."""

FEED = pa.schema(
    [
        pa.field(
            "at", pa.timestamp("us", "UTC"), nullable=False
        ),  # the instant, on the wall clock, rounded down
        pa.field(
            "run", pa.string(), nullable=False
        ),  # its name; with conn: one connection of one process on one server
        pa.field("conn", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("idle_ns", pa.int64()),
        pa.field("timeout_ms", pa.int32()),  # in force before it; of a change: after it
        pa.field(
            "lateness_ns", pa.int64()
        ),  # reaps: since its last byte + timeout, at most; of a deadline: since due
        pa.field("listener", pa.string()),
        pa.field("full", pa.bool_(), nullable=False),  # the writer's mode: every activity has a row
        pa.field("tick_ns", pa.int64(), nullable=False),
    ]
)
"""Grain: one row per event of a connection."""

_READ = (
    *("t", "conn", "kind", "idle_ns", "timeout_ms", "due_ns", "listener"),
    *("idle_sum_ns", "wall_offset_ns"),
)

STEP_ROWS = 1_000_000
"""Rows of a step, about, and of a file of it: bounds the memory of a catch-up. No step
is smaller than one file.
"""

NEVER = 1 << 63


class _Found(NamedTuple):
    """A file that is yet to be read."""

    facts: Facts
    mtime: int
    first: int
    """Unix ns of its first and last row; the file's own date where it does not say."""
    last: int


class Feed:
    """The feed of one output directory. One process at a time: the caller holds the
    lock.

    Args:
        out: Holds `feed/` and the ledger; made if missing.
        directories: Journals, searched recursively at each step, but for hidden names
            and *out* itself.
        delay_ns: How far behind the newest row of earlier steps a row may be.
    Raises:
        Fault: *out* was begun with other *settings*, or cannot be gone on from. Nothing
            was changed.
    """

    def __init__(
        self,
        out: Path,
        directories: Sequence[Path],
        delay_ns: int,
        settings: dict[str, int],
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.directory: Path = out / "feed"
        self._out = out
        self._directories = sorted({directory.resolve() for directory in directories})
        self._delay_us = delay_ns // 1000
        self._now_ns = now_ns
        self._looked_at: dict[str, tuple[int, int, int]] = {}
        """path -> size, mtime, until (Unix ns): not looked at again before, unless it
        has changed.
        """
        self.quarantined: dict[str, str] = {}
        """path -> why it was put aside when it was looked at."""
        self.growing: int = 0
        """Streams that were no Parquet yet at the latest check."""
        self.waiting: int = 0
        """Files that were seen and are not in the feed yet."""
        self.ledger: Ledger = open_ledger(out, settings)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._settle()

    @property
    def watermark(self) -> int | None:
        """Unix us: rows at or before it are late. None: nothing has come yet."""
        return None if self.ledger.horizon is None else self.ledger.horizon - self._delay_us

    def admit(self) -> int:
        """Take the next files, the oldest first, about `STEP_ROWS` rows. Returns how
        many files; 0: nothing is new.

        A file that the watermark of this step would make late is taken with it, however
        many rows that are. Files that fail the check are put aside with a reason; their
        rows enter nothing.
        """
        waiting = sorted(self._fresh(), key=lambda found: found.last)
        count = max(
            bisect_right(list(accumulate(found.facts.rows for found in waiting)), STEP_ROWS), 1
        )
        chosen, waiting = waiting[:count], waiting[count:]
        while chosen and waiting:
            horizon = max(found.last for found in chosen) - self._delay_us * 1000
            beside = [found for found in waiting if found.first <= horizon]
            if not beside:
                break
            chosen += beside
            waiting = [found for found in waiting if found.first > horizon]
        self.waiting = len(waiting)
        watermark = self.watermark
        tables: list[pa.Table] = []
        taken = False
        for found in chosen:
            self._looked_at[str(found.facts.path)] = (found.facts.size, found.mtime, NEVER)
            if self.ledger.has(found.facts.run, found.facts.serial):
                continue  # a copy of one of the others
            try:
                believe(*count_here(found.facts), self._now_ns())
                table = rows_of(found.facts)
                newest: int | None = pc.max(table["at"].cast(pa.int64())).as_py()
                if newest is not None:
                    self._check_ahead(found, newest)
            except Refused as refused:
                self.quarantined[str(found.facts.path)] = str(refused)
            except (
                OSError,
                pa.ArrowException,
                ValueError,
            ) as error:  # or gone since the check: its serial tells
                self.quarantined[str(found.facts.path)] = f"cannot be read: {error}"
            else:
                tables.append(self._take(found, table, newest, watermark))
                taken = True
                if sum(table.num_rows for table in tables) >= STEP_ROWS:
                    self._write(tables)
        if taken:
            self._commit(tables)
        return len(chosen)

    def mark(self) -> None:
        """Let the last windows and sessions out, because no server writes any more.
        Rows that still come are late.
        """
        ledger = self.ledger
        if ledger.newest is None or ledger.horizon != ledger.newest:
            return
        at = ledger.newest + ledger.longest_ms * 1000 + 2 * self._delay_us + 60_000_000
        row = {"at": at, "run": "", "conn": 0, "kind": MARKER, "full": True, "tick_ns": 0}
        ledger.horizon = at
        self._commit([pa.Table.from_pylist([row], schema=FEED)])

    def forget(self) -> None:
        """Delete the feed files: every query has committed them."""
        for path in self.directory.glob("[0-9]*"):
            shutil.rmtree(path)

    # ---- one step

    def _fresh(self) -> list[_Found]:
        """The files that are to be read, by their footers."""
        self.growing = 0
        seen: set[str] = set()
        fresh = []
        there = [
            directory for directory in self._directories if directory.is_dir()
        ]  # a server may have yet to come
        for path, parts, size in chain(*map(local_files, there)):
            if any(part[0] in "._" for part in parts) or self._out in path.parents:
                self.growing += path.suffix == ".arrows"
                continue
            if path.suffix != ".parquet":
                continue
            seen.add(str(path))
            try:
                mtime = path.stat().st_mtime_ns
                known = self._looked_at.get(str(path), (0, 0, 0))
                if known[:2] == (size, mtime) and self._now_ns() < known[2]:
                    continue
                self.quarantined.pop(str(path), None)
                facts = footer_of(path, size)
                found = _Found(facts, mtime, *(facts.bounds or (mtime, mtime)))
            except FileNotFoundError:
                continue  # retention was quicker; its serial will be missed
            except Refused as refused:
                self._looked_at[str(path)] = (size, mtime, NEVER)
                self.quarantined[str(path)] = str(refused)
                continue
            if self.ledger.has(
                found.facts.run, found.facts.serial
            ):  # by an earlier process, or it is a copy
                self._looked_at[str(path)] = (size, mtime, NEVER)
            else:
                fresh.append(found)
        for gone in self._looked_at.keys() - seen:
            del self._looked_at[gone]
            self.quarantined.pop(gone, None)
        return fresh

    def _check_ahead(self, found: _Found, newest: int) -> None:
        """Refuse *found* for now if its *newest* row (Unix us) would make the rows of
        all other files late.
        """
        ahead_us = newest - self._now_ns() // 1000 - self._delay_us
        if ahead_us > 0:
            self._looked_at[str(found.facts.path)] = (
                found.facts.size,
                found.mtime,
                self._now_ns() + ahead_us * 1000,
            )
            raise Refused(
                f"future: its last row is more than the delay ({self._delay_us / 1e6:g} s) ahead "
                "of this machine's clock, and would make the rows of all others late; looked at "
                "again when it no longer is"
            )

    def _take(
        self, found: _Found, table: pa.Table, newest: int | None, watermark: int | None
    ) -> pa.Table:
        """Note in the ledger that *found* was read. The rows of *table* that are not
        late.
        """
        facts, ledger = found.facts, self.ledger
        ledger.note(found.facts.run, found.facts.serial, facts.dropped)
        if facts.server:
            ledger.names[facts.server] = max(
                ledger.names.get(facts.server, 0), facts.bounds[1] if facts.bounds else 0
            )
        path = Path(str(facts.path))
        directory = next(
            directory for directory in self._directories if path.is_relative_to(directory)
        )
        server = ledger.servers.setdefault(str(directory), ServerRead())
        server.files += 1
        event = pc.not_equal(table["kind"], CHANGE)
        server.rows += pc.sum(event).as_py() or 0
        if newest is None:
            return table
        server.newest = max(server.newest, newest)
        ledger.newest = max(ledger.newest or newest, newest)
        ledger.horizon = max(ledger.horizon or newest, newest)
        ledger.longest_ms = max(ledger.longest_ms, pc.max(table["timeout_ms"]).as_py() or 0)
        ledger.tick_ns = max(ledger.tick_ns, facts.tick_ns)
        if watermark is None:
            return table
        in_time = pc.greater(table["at"].cast(pa.int64()), watermark)
        late = table.filter(
            pc.and_(pc.invert(in_time), event)
        )  # a change lies where the activity was: none is missed
        server.late += late.num_rows
        for count in pc.value_counts(late["listener"]).to_pylist():
            name = count["values"] or UNNAMED
            ledger.late[name] = ledger.late.get(name, 0) + count["counts"]
        return table.filter(in_time)

    def _write(self, tables: list[pa.Table]) -> None:
        """Write the rows of *tables* as one more file of the step."""
        hidden = self.directory / f".{self.ledger.step + 1:09d}"
        hidden.mkdir(exist_ok=True)
        path = hidden / f"{len(list(hidden.iterdir())):06d}.parquet"
        pq.write_table(pa.concat_tables(tables), path, compression="zstd", row_group_size=1 << 18)
        sync(path)
        tables.clear()

    def _commit(self, tables: list[pa.Table]) -> None:
        """Put the step in place: write the rest of its rows under a hidden name, then
        the ledger, then rename it for the stream.
        """
        if any(table.num_rows for table in tables):
            self._write(tables)
        self.ledger.step += 1
        self.ledger.commit(self._out)
        self._settle()

    def _settle(self) -> None:
        """Make feed and ledger agree after a kill: show what the ledger has and the
        stream does not see yet, delete what it has not.
        """
        for path in self.directory.glob(".[0-9]*"):
            if int(path.name[1:]) <= self.ledger.step:
                path.replace(
                    path.with_name(path.name[1:])
                )  # all its files at once: the watermark is of whole steps
            else:
                shutil.rmtree(path)


def rows_of(facts: Facts) -> pa.Table:
    """The rows of connections in one good file, as `FEED` has them: on the wall clock,
    and with what its metadata says.

    Raises:
        Refused: they have no wall-clock time.
    """
    with pq.ParquetFile(str(facts.path)) as file:
        table = file.read(columns=[name for name in _READ if name in file.schema_arrow.names])
    offset: Any = (
        round(median(anchor[1] - anchor[0] for anchor in facts.anchors)) if facts.anchors else None
    )
    if "wall_offset_ns" in table.schema.names and (
        offset is None or table["wall_offset_ns"].null_count == 0
    ):
        offset = table["wall_offset_ns"]
    if offset is None or (isinstance(offset, pa.ChunkedArray) and offset.null_count):
        raise Refused(
            "no wall clock: neither wall_offset_ns nor anchors, so it has no place on the common "
            "timeline"
        )
    kind = table["kind"].cast(pa.string())
    own, count = pc.is_in(kind, pa.array(OWN)), table.num_rows
    # A change during a silence lies where that began, as every change does.
    before = pc.if_else(own, pc.fill_null(table["idle_ns"], 0), 0)
    t = pc.subtract(table["t"], before)
    at = pc.divide(pc.add(t, offset), 1000).cast(pa.timestamp("us", "UTC"))
    columns = {
        "at": at,
        "run": pa.repeat(pa.scalar(facts.run), count),
        "conn": table["conn"],
        "kind": kind,
        "idle_ns": table["idle_ns"],
        "timeout_ms": table["timeout_ms"],
        "lateness_ns": pc.if_else(pc.equal(kind, KINDS[REAP]), overdue(table, own), None),
        "listener": table["listener"].cast(pa.string()),
        "full": pa.repeat(pa.scalar(facts.mode == "full"), count),
        "tick_ns": pa.repeat(pa.scalar(facts.tick_ns, pa.int64()), count),
    }
    # Of a writer's own rows two are a connection's: a change of its timeout, which is
    # an event, and that it is still open, which is none.
    changed = pc.and_(pc.is_valid(table["timeout_ms"]), pc.is_null(table["idle_sum_ns"]))
    mine = pc.or_(pc.invert(own), changed)
    return pa.table(columns, schema=FEED).filter(mine)
