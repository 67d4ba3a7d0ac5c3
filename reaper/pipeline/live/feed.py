"""The feed: what the stream reads. A file of a journal enters it whole, once, after its check, and in a fixed order.

Spark's file source would stop for ever at one bad file, forget files older than a week, stumble when retention deletes
what it has listed, and drop what its watermark calls late. So it reads a directory of our own instead: each step puts
the rows of some checked files into one feed file, rows that are too late into another beside it, and is written down in
the ledger before the stream sees it. A kill at any instant leaves a step either done or not begun.
"""

from __future__ import annotations

import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import file_digest
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..places import local_files
from ..read.file import believe, count_here, footer_of
from ..read.row_checks import Refused
from ..read.runs import Facts
from .ledger import Ledger
from .rows import CHANGE, FEED, MARKER, rows_of

STEP_ROWS = 1_000_000
"""Rows of a step, about, and of a file of it: bounds the memory of a catch-up. No step is smaller than one file."""

NEVER = 1 << 63


@dataclass(slots=True)
class _Found:
    """A file that is to be looked at."""

    path: Path
    size: int
    mtime: int = 0
    facts: Facts = field(init=False)
    first: int = 0
    """Unix ns of its first and last row; the file's own date where it does not say."""
    last: int = 0


class Feed:
    """The feed of one output directory. One process at a time: the caller holds the lock.

    Args:
        out: Holds `feed/`, `late/` and the ledger; made if missing.
        directories: Journals, searched recursively at each step; hidden names and *out* itself are passed over.
        delay_ns: How far behind the newest row of earlier steps a row may be.
        checksums: Verify every page.
        now_ns: This machine's Unix time.
    Raises:
        Unusable: *out* was begun with other *settings*, or cannot be gone on from. Nothing was changed.
    """

    def __init__(
        self,
        out: Path,
        directories: Sequence[Path],
        delay_ns: int,
        settings: dict[str, int],
        *,
        checksums: bool = True,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.directory: Path = out / "feed"
        self.late: Path = out / "late"
        self._out = out
        self._directories = sorted({directory.resolve() for directory in directories})
        self._delay_us = delay_ns // 1000
        self._checksums = checksums
        self._now_ns = now_ns
        self.quarantined: dict[str, dict[str, Any]] = {}
        """path -> reason, size, mtime, until (Unix ns; not looked at before). Looked at again when the file changes."""
        self.growing: int = 0
        """Streams that were no Parquet yet at the latest check."""
        self.waiting: int = 0
        """Files that were seen and are not in the feed yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ledger: Ledger = Ledger(out, settings)
        self.late.mkdir(exist_ok=True)
        self._settle()

    @property
    def watermark(self) -> int | None:
        """Unix us: rows at or before it are late. None: nothing has come yet."""
        return None if self.ledger.horizon is None else self.ledger.horizon - self._delay_us

    def admit(self) -> int:
        """Take the next files, about `STEP_ROWS` rows, the oldest first. How many files; 0: nothing is new.

        A file that the watermark of this step would make late is taken with it, however many rows that are. Files that
        fail the check are put aside with a reason; their rows enter nothing.
        """
        waiting = sorted(self._fresh(), key=lambda found: found.last)
        count = max(bisect_right(list(accumulate(found.facts.rows for found in waiting)), STEP_ROWS), 1)
        chosen, waiting = waiting[:count], waiting[count:]
        while chosen and waiting:
            horizon = max(found.last for found in chosen) - self._delay_us * 1000
            beside = [found for found in waiting if found.first <= horizon]
            if not beside:
                break
            chosen += beside
            waiting = [found for found in waiting if found.first > horizon]
        self.waiting = len(waiting)
        step = self._begin()
        for found in chosen:
            facts = found.facts
            try:
                believe(*count_here(facts, self._checksums), None, self._now_ns())
                table = rows_of(facts, int(_name(facts)[:15], 16))
            except Refused as refused:
                self._put_aside(found, str(refused))
            except (OSError, pa.ArrowException, ValueError) as error:
                self._put_aside(found, f"cannot be read: {error}")  # or gone since the check: its serial tells
            else:
                self._take(step, found, table)
        if step.taken:
            self._commit(step)
        return len(chosen)

    def mark(self) -> None:
        """No server writes any more: let everything out. Rows that come all the same will be late."""
        ledger = self.ledger
        if ledger.newest is None or ledger.horizon != ledger.newest:
            return
        at = ledger.newest + ledger.longest_ms * 1000 + 2 * self._delay_us + 60_000_000
        row = {"at": at, "run": 0, "conn": 0, "kind": MARKER, "full": True, "tick_ns": 0}
        step = self._begin()
        step.feed.append(pa.Table.from_pylist([row], schema=FEED))
        ledger.horizon = at
        self._commit(step)

    def forget(self) -> None:
        """Delete the feed files: every query has committed them."""
        for path in self.directory.glob("[0-9]*"):
            shutil.rmtree(path)

    # ---- one step ---------------------------------------------------------------------------------------------------

    def _fresh(self) -> list[_Found]:
        """Files that are to be looked at, by their footers."""
        self.growing = 0
        seen: set[str] = set()
        fresh = []
        now = self._now_ns()
        there = [directory for directory in self._directories if directory.is_dir()]  # a server may have yet to come
        for path, parts, size in chain(*map(local_files, there)):
            if any(part[0] in "._" for part in parts) or self._out in path.parents:
                self.growing += path.suffix == ".arrows"
                continue
            if path.suffix != ".parquet":
                continue
            found = _Found(path, size)
            try:
                found.mtime = path.stat().st_mtime_ns
                seen.add(str(path))
                known = self.quarantined.get(str(path)) or self.ledger.files.get(str(path), {})
                if (known.get("size"), known.get("mtime")) == (size, found.mtime) and now < known.get("until", NEVER):
                    continue
                found.facts = footer_of(path, size)
            except FileNotFoundError:
                continue  # retention was quicker; its serial will be missed
            except Refused as refused:
                self._put_aside(found, str(refused))
            else:
                found.first, found.last = found.facts.bounds or (found.mtime, found.mtime)
                fresh.append(found)
        for name in self.ledger.files.keys() - seen:
            self.ledger.files.forget(name)
        for name in self.quarantined.keys() - seen:
            del self.quarantined[name]
        return fresh

    def _put_aside(self, found: _Found, reason: str, until: int = NEVER) -> None:
        entry = {"reason": reason, "size": found.size, "mtime": found.mtime, "until": until}
        self.quarantined[str(found.path)] = entry

    def _take(self, step: _Step, found: _Found, table: pa.Table | None) -> None:
        facts = found.facts
        run = _name(facts)
        known = self.ledger.runs.get(run, {"serials": [], "dropped": 0})
        serial = facts.serial if facts.run else 1
        if any(first <= serial <= last for first, last in known["serials"]):
            self._put_aside(found, f"duplicated: file {serial} of run {run} was read before")
            return
        if table is None:
            reason = "no wall clock: neither wall_offset_ns nor anchors, so it has no place on the common timeline"
            self._put_aside(found, reason)
            return
        newest = _us(pc.max(table["at"]))
        ahead_us = (newest or 0) - self._now_ns() // 1000 - self._delay_us
        if ahead_us > 0:
            text = f"future: its last row is more than the delay ({self._delay_us / 1e6:g} s) ahead of this machine's"
            reason = f"{text} clock, and would make the rows of all others late; looked at again when it no longer is"
            self._put_aside(found, reason, self._now_ns() + ahead_us * 1000)
            return
        self.quarantined.pop(str(found.path), None)
        serials = _merged([*known["serials"], [serial, serial]])
        self.ledger.runs.note(run, serials=serials, dropped=max(known["dropped"], facts.dropped))
        self.ledger.files.note(str(found.path), size=found.size, mtime=found.mtime)
        if facts.server:
            name = self.ledger.names.note(facts.server)
            name["newest"] = max(name["newest"], facts.bounds[1] if facts.bounds else 0)
        server = self.ledger.servers.note(self._server(found.path))
        server["files"] += 1
        event = pc.not_equal(table["kind"], CHANGE)
        server["rows"] += pc.sum(event).as_py() or 0
        step.taken += 1
        if newest is None:
            return
        server["newest"] = max(server["newest"], newest)
        if step.watermark is not None:
            in_time = pc.greater(table["at"].cast(pa.int64()), step.watermark)
            late = table.filter(
                pc.and_(pc.invert(in_time), event)
            )  # a change lies where the activity was: none is missed
            table = table.filter(in_time)
            server["late"] += late.num_rows
            step.late.append(late)
        step.feed.append(table)
        step.spill(STEP_ROWS)
        ledger = self.ledger
        ledger.newest = max(ledger.newest or newest, newest)
        ledger.horizon = max(ledger.horizon or newest, newest)
        ledger.longest_ms = max(ledger.longest_ms, pc.max(table["timeout_ms"]).as_py() or 0)
        ledger.tick_ns = max(ledger.tick_ns, facts.tick_ns or 0)

    def _server(self, path: Path) -> str:
        return str(next(directory for directory in self._directories if path.is_relative_to(directory)))

    def _commit(self, step: _Step) -> None:
        """Late rows first, the feed under a hidden name, the ledger, and then the name that the stream sees."""
        late = pa.concat_tables(step.late) if step.late else FEED.empty_table()
        if late.num_rows:
            write_atomically(late, self.late / f"{step.number:09d}.parquet")
            for count in pc.value_counts(late["listener"]).to_pylist():
                self.ledger.late.note(count["values"] or "(none)")["rows"] += count["counts"]
        step.spill(1)
        self.ledger.step = step.number
        self.ledger.commit()
        self._settle()

    def _begin(self) -> _Step:
        number = self.ledger.step + 1
        return _Step(number, self.watermark, self.directory / f".{number:09d}")

    def _settle(self) -> None:
        """Show what the ledger has and the stream does not see yet; delete what the ledger does not have."""
        for path in self.directory.glob(".[0-9]*"):
            if int(path.name[1:]) <= self.ledger.step:
                path.replace(path.with_name(path.name[1:]))  # all its files at once: the watermark is of whole steps
            else:
                shutil.rmtree(path)
        for path in self.late.glob("*.parquet"):
            if int(path.stem.lstrip(".")) > self.ledger.step:
                path.unlink()


@dataclass(slots=True)
class _Step:
    number: int
    watermark: int | None
    hidden: Path
    feed: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)
    taken: int = 0
    _parts: int = 0

    def spill(self, least: int) -> None:
        """Write the rows gathered so far, if they are *least* or more, to one more file of the step."""
        rows = pa.concat_tables([FEED.empty_table(), *self.feed])
        if rows.num_rows < least:
            return
        self.hidden.mkdir(exist_ok=True)
        path = self.hidden / f"{self._parts:06d}.parquet"
        pq.write_table(rows, path, compression="zstd", row_group_size=1 << 18)
        sync(path)
        self._parts += 1
        self.feed = []


def _us(instant: Any) -> int | None:
    value: int | None = instant.cast(pa.int64()).as_py()
    return value


def _merged(ranges: list[list[int]]) -> list[list[int]]:
    result: list[list[int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1][1] = max(result[-1][1], last)
        else:
            result.append([first, last])
    return result


def _name(facts: Facts) -> str:
    """Of the run of *facts*; where it has none, its bytes stand for it."""
    if facts.run:
        return facts.run
    with facts.here.open("rb") as file:
        return file_digest(file, "blake2b").hexdigest()[:24]


def write_atomically(table: pa.Table, path: Path) -> None:
    """Put *table* in place as one Parquet file: a reader sees the old file or the new one."""
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden, compression="zstd")
    sync(hidden)
    hidden.replace(path)


def sync(path: Path) -> None:
    """Wait until *path* is on the disk: what is written down after it must not outlive it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
