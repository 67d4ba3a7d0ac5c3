"""The thread behind a journal: takes rows from the list, writes them, and survives
whatever the file system does.

One rule: nothing that happens here may reach the event loop. It never waits for this
thread, and this thread holds the interpreter only for short stretches: rows become
columns in batches of `BATCH_ROWS`, with a breath between columns. A failed write costs
its batch: the rows are counted as dropped, the stream is left to be recovered, and a
new one is begun after a pause that doubles up to `RETRY_MOST`. A row that is no row
costs itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .files import Anchor, Stream, recover, retain
from .schema import ALIVE, CONFIG, DROPPED, KINDS, JournalStatistics, Row, arrow_schema

BATCH_ROWS = 2048
"""Rows a batch: the conversion of one column then holds the interpreter for some 0.1
ms.
"""

RETRY_LEAST, RETRY_MOST = 1.0, 60.0
"""Seconds before a failed writer tries again: the first pause, and the longest."""

ANCHOR_SECONDS = 60.0
"""Seconds after which the relation to the wall clock is measured again."""

STEP_NS = 100_000_000
"""By how much the relation may change before it is measured anew at once."""

ALIVE_SECONDS = 300.0
"""Seconds without a row after which the writer leaves one of its own: a server without
traffic is not a missing one.
"""

REASON = 8
"""Where a row has its reason."""

_log = logging.getLogger("reaper.journal")


def _host(wall_ns: Callable[[], int]) -> dict[str, str]:
    """A name that tells readers which writers share a machine, and so a monotonic
    clock. Empty under a made-up clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return {}
    return {"boot": boot} if wall_ns is time.time_ns else {}


@dataclass(eq=False)
class Writer:
    """The thread's side of one `Journal`, which passes every argument. Public methods
    may be called from any thread.
    """

    directory: Path
    rows: list[Row]
    metadata: dict[str, str]
    refused: Callable[[], int]
    open_logs: Callable[[], list[Any]]
    open_rows: Callable[[list[Any], int], list[Row]]
    flush_seconds: float
    rotate_bytes: int
    rotate_seconds: float
    retain_bytes: int | None
    clock_ns: Callable[[], int]
    wall_ns: Callable[[], int]
    background: bool

    def __post_init__(self) -> None:
        self.metadata = {**self.metadata, **_host(self.wall_ns)}
        self._schema = arrow_schema()
        self._kinds = pa.array(KINDS)
        self._stream: Stream | None = None
        self._begun = 0.0
        self._anchor = (0, 0, 0)
        self._anchored = float("-inf")
        self._retry_at = float("-inf")
        self._pause = RETRY_LEAST
        self._written = self._lost = self._files = self._recovered = self._deleted = (
            self._errors
        ) = 0
        self._serial = 0
        self._noted = 0  # lost rows that the files know of
        self._wrote = time.monotonic()
        self._latest = 0  # instant of the latest row of the owner's
        self._fresh = 0  # rows written since the open connections were
        self._told_open = time.monotonic()
        self._closed = False
        self._damaged = False  # a stream of ours was left behind
        self._admitted = 0  # rows whose loss was logged at the end
        self._last_error: str | None = None
        self._lock = threading.RLock()  # one of: the thread, flush(), close()
        self._wake = threading.Event()
        self._stopping = False
        self.directory.mkdir(parents=True, exist_ok=True)
        self._guard(self._recover)
        self._thread: threading.Thread | None = None
        if self.background:
            self._thread = threading.Thread(target=self._run, name="reaper-journal", daemon=True)
            self._thread.start()

    # ---- for the owner
    # ----------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """See `Journal.flush`."""
        before = self._lost + self.refused()
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            self._retry_at = float("-inf")
            self._take_all()
            self._rotate_if_due()
        finally:
            self._lock.release()
        return not self.rows and self._lost + self.refused() == before

    def close(self, timeout: float) -> None:
        """See `Journal.close`."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._lock.acquire(timeout=timeout):
            try:
                self._retry_at = float("-inf")
                self._take_all()
                if not self._closed:
                    self._closed = True
                    self._guard(self._tell_open)
                self._guard(self._rotate)
                if self._lost + self.refused() > self._noted:
                    self._guard(self._speak, DROPPED)
                    self._guard(self._rotate)
                if (lost := self._lost + self.refused()) > self._noted:
                    # On a full disk there is room for a name still. A file without a
                    # byte is put aside by its name.
                    with suppress(OSError):
                        (
                            self.directory / f"{self._stem(self._serial + 1)}-lost-{lost}.parquet"
                        ).touch()
            finally:
                self._lock.release()
        lost = self._lost + self.refused()
        if lost > self._admitted:
            _log.warning(
                "journal in %s: %d rows were lost; last error: %s",
                self.directory,
                lost,
                self._last_error,
            )
            self._admitted = lost

    def statistics(self) -> JournalStatistics:
        """See `Journal.statistics`."""
        return JournalStatistics(
            rows=self._written,
            pending=len(self.rows),
            dropped=self._lost + self.refused(),
            files=self._files,
            recovered=self._recovered,
            deleted=self._deleted,
            errors=self._errors,
            last_error=self._last_error,
            alive=self._thread is not None and self._thread.is_alive(),
        )

    # ---- the thread
    # ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self.flush_seconds)
            with self._lock:
                self._take_all()
                self._speak_up()
                self._rotate_if_due()

    def _speak_up(self) -> None:
        """Leave a row of the writer's own where it has lost rows, or was silent for
        long, and no other row says so.
        """
        if self.rows or time.monotonic() < self._retry_at:
            return
        if self._lost + self.refused() > self._noted:
            reason = DROPPED
        elif time.monotonic() - self._wrote >= ALIVE_SECONDS:
            reason = ALIVE
        else:
            return
        if not self._guard(self._speak, reason):
            self._retry_at = time.monotonic() + RETRY_MOST

    def _stem(self, serial: int) -> str:
        run, writer = self.metadata["run"], int(self.metadata["writer"])
        return f"reaper-{self.wall_ns() // 10**9:010d}-w{writer:07d}-{run}-{serial:06d}"

    def _speak(self, reason: str) -> None:
        lost = self._lost + self.refused() if reason == DROPPED else None
        own = int(self.metadata["first_conn"])
        self._write(
            [(self.clock_ns(), own, CONFIG, None, None, None, None, None, reason, lost, None, None)]
        )

    def _rotate_if_due(self) -> None:
        stream = self._stream
        if stream is not None and (
            stream.size >= self.rotate_bytes
            or time.monotonic() - self._begun >= self.rotate_seconds
            or not stream.in_place
        ):
            if stream.in_place and self._worth_telling():
                self._guard(self._tell_open)
            self._guard(self._rotate)

    def _worth_telling(self) -> bool:
        """Whether a file that is finished now gets a row per open connection.

        So many as all other rows at most, unless `rotate_seconds` have passed since.
        """
        return (
            self._fresh >= len(self.open_logs())
            or time.monotonic() - self._told_open >= self.rotate_seconds
        )

    def _tell_open(self) -> None:
        """Write a row for each connection that is open.

        Rows that wait go first: what they tell of must not be behind what is told here.
        """
        logs = self.open_logs()
        if not logs:
            return
        self._take_all()
        if time.monotonic() < self._retry_at:
            return
        rows = self.open_rows(logs, self._latest)
        for first in range(0, len(rows), BATCH_ROWS):
            self._write(rows[first : first + BATCH_ROWS], repeated=True)
        self._fresh, self._told_open = 0, time.monotonic()

    def _take_all(self) -> None:
        """Write the rows that wait now, batch by batch. It stops at a failure, and
        while the pause after one lasts.
        """
        for _ in range(0, len(self.rows), BATCH_ROWS):
            if time.monotonic() < self._retry_at:
                return
            # Two single steps: whatever the event loop appends between them stays
            # behind the slice.
            batch = self.rows[:BATCH_ROWS]
            del self.rows[: len(batch)]
            after = self._written + self._lost + len(batch)
            if self._guard(self._write, batch):
                self._pause = RETRY_LEAST
                self._fresh += len(batch)
            else:
                self._lost = after - self._written
                self._retry_at = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, RETRY_MOST)

    def _write(self, rows: list[Row], repeated: bool = False) -> None:
        if time.monotonic() - self._anchored >= ANCHOR_SECONDS or self._stepped():
            self._anchor = self._measure()
            self._anchored = time.monotonic()
        if self._stream is not None and not self._stream.in_place:
            self._guard(self._rotate)
        batches = self._batches(rows, repeated)
        if not batches:
            # a stream without a row would go, and with it the number of those that were
            # lost
            return
        if self._stream is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._serial += 1
            stem = self._stem(self._serial)
            dropped = str(self._lost + self.refused())
            known = {
                "serial": str(self._serial),
                "dropped_before": dropped,
                "dropped_earlier": str(self._noted),
            }
            self._stream = Stream(self.directory, stem, {**self.metadata, **known})
            self._begun = time.monotonic()
        lost = self._lost + self.refused()
        for batch in batches:
            self._stream.write(batch, self._anchor, lost)
            if repeated:
                self._stream.rows -= batch.num_rows  # what they tell is not lost with them
            else:
                self._written += batch.num_rows
            if rows[0][REASON] not in (ALIVE, DROPPED):  # those have the thread's instant
                self._latest = max(self._latest, pc.max(batch["t"]).as_py())
        self._noted, self._wrote = lost, time.monotonic()

    def _batches(self, rows: list[Row], repeated: bool) -> list[pa.RecordBatch]:
        """*rows* without those that hold a value of another type or size than their
        column has.

        *repeated*: they tell once more what other rows have told. A value that was
        refused then is not counted again.
        """
        bad: list[Exception] = []
        batches = self._around(rows, bad)
        if bad and not repeated:
            self._lost += len(bad)
            self._note(f"{len(bad)} rows could not be written, the first: {bad[0]}")
        return batches

    def _around(self, rows: list[Row], bad: list[Exception]) -> list[pa.RecordBatch]:
        try:
            return [self._batch(rows)]
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
            if len(rows) == 1:
                bad.append(error)
                return []
        half = len(rows) // 2
        return self._around(rows[:half], bad) + self._around(rows[half:], bad)

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        arrays = []
        for field, values in zip(self._schema, zip(*rows, strict=True), strict=False):
            if field.name == "kind":
                arrays.append(
                    pa.DictionaryArray.from_arrays(pa.array(values, pa.int16()), self._kinds)
                )
            else:
                arrays.append(pa.array(values, field.type))
            time.sleep(
                0
            )  # the event loop's thread gets the interpreter before its switch interval is over
        arrays.append(
            pa.repeat(pa.scalar(self._anchor[1] - self._anchor[0], pa.int64()), len(rows))
        )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _stepped(self) -> bool:
        """Whether the clock has moved against the wall clock since the latest anchor:
        one of them was set, or the machine was suspended.
        """
        moved = self.wall_ns() - self.clock_ns() - (self._anchor[1] - self._anchor[0])
        return abs(moved) > STEP_NS

    def _measure(self) -> Anchor:
        """Read the three clocks at one instant: of five tries, the one that took least
        time.
        """
        brackets = [
            (self.clock_ns(), self.wall_ns(), time.monotonic_ns(), self.clock_ns())
            for _ in range(5)
        ]
        before, wall, monotonic, after = min(brackets, key=lambda bracket: bracket[3] - bracket[0])
        return (before + after) // 2, wall, monotonic

    def _rotate(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                self._files += stream.finish() is not None
            except BaseException:
                if stream.path.exists():
                    self._damaged = True
                else:  # its directory has gone
                    self._lost += stream.rows
                    self._written -= stream.rows
                raise
        if self.retain_bytes is not None:
            self._deleted += retain(self.directory, self.retain_bytes)
        if self._damaged:
            self._recover()

    def _recover(self) -> None:
        self._damaged = False
        made = recover(self.directory)
        self._files += len(made)
        self._recovered += len(made)

    def _guard(self, work: Callable[..., None], *args: Any) -> bool:
        """Do *work*. An error is counted, is logged when it changes, and costs the
        stream. Returns whether it went well.
        """
        try:
            work(*args)
        except Exception as error:  # whatever it is, the server must not feel it
            self._note(
                f"{type(error).__name__}: {error}; rows are dropped and counted until it works"
            )
            if self._stream is not None:
                self._stream.abandon()
                self._stream = None
                self._damaged = True
            return False
        return True

    def _note(self, text: str) -> None:
        self._errors += 1
        if text != self._last_error:
            _log.warning("journal in %s: %s", self.directory, text)
        self._last_error = text
