"""`Journal` and `ConnectionLog`: what an event loop calls. It appends a tuple to a
list, and that is all it ever does.

No call reads a clock, blocks, touches a file or raises because of one: times come in as
arguments (integer ns on one monotonic clock), and what goes wrong behind the list is
the writer's (writer.py): it retries, drops, counts, says so.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.ticks import check_count, check_timeout
from ..errors import InvalidArgument, needs, shown
from .schema import (
    ACTIVITY,
    AVERTED,
    CLOSE_APP,
    CLOSE_PEER,
    CONFIG,
    DRAIN,
    OPEN,
    REAP,
    RETIME,
    SEQUENCE_BITS,
    STALL,
    STILL_OPEN,
    JournalStatistics,
    Row,
    connection_id,
)

if TYPE_CHECKING:
    from .writer import Writer

MODES = ("gaps", "full", "off")

QUEUE_ROWS = 200_000
"""Rows that may wait for the writer, about 60 MB; more are dropped and counted. Two
seconds of 100,000 a second.
"""


class ConnectionLog:
    """The log of one connection. Made by `Journal.open`, never directly. About 250
    bytes.

    Call `touch` for every activity *before* changing `timeout_ms`: the row must carry
    the timeout that was in force. A change leaves a row of its own in `full` mode,
    where a log without a further row is judged by its latest timeout. A change *during*
    a silence is `retime`, which says when. After an end (`reap`, `close_peer`,
    `close_app`) call nothing more: the audit would find it. A connection that never
    ends is reported as open whenever a file is finished.
    """

    __slots__ = (
        *("_changed_ns", "_journal", "_long_ns", "_retimed", "_timeout_ms"),
        *("conn", "ended", "idle_sum_ns", "last_ns", "listener", "n"),
    )

    def __init__(
        self, journal: Journal, conn: int, t: int, timeout_ms: int, listener: str | None
    ) -> None:
        self._journal = journal
        self._long_ns = journal._long_ns
        self._changed_ns = t  # when another timeout came into force during a silence
        self.conn = conn
        self.listener = listener
        self._timeout_ms: int | None = timeout_ms
        self._retimed = 0
        self.last_ns: int = t
        """Latest activity, ns."""
        self.ended: bool = False
        """Whether its end row was written."""
        self.n: int = 0
        """Activities counted so far."""
        self.idle_sum_ns: int = 0
        """Sum of the silences written so far, ns."""

    @property
    def timeout_ms(self) -> int | None:
        """Timeout in force, ms; 0: none (switched off, or suspended while the server
        works). Assign to change it.

        Cost of a change: a store in `gaps` mode, one row in `full` mode.
        """
        return self._timeout_ms

    @timeout_ms.setter
    def timeout_ms(self, timeout_ms: int | None) -> None:
        if timeout_ms == self._timeout_ms:
            return
        self._timeout_ms = timeout_ms
        if self._long_ns < 0 and not self.ended and timeout_ms is not None:
            self._note_timeout(timeout_ms)

    def _note_timeout(self, timeout_ms: int) -> None:
        self._retimed += 1  # ns: each change is later than the one before, and none reads a clock
        t = self.last_ns + self._retimed
        self._journal._append(
            (
                t,
                self.conn,
                CONFIG,
                None,
                None,
                timeout_ms,
                None,
                self.listener,
                RETIME,
                None,
                None,
                None,
            )
        )

    def retime(self, t: int, timeout_ms: int) -> None:
        """Put another timeout in force at *t* ns, during a silence, whose length so far
        counts.

        A connection that has been silent for longer than *timeout_ms* is due at *t*,
        not before. So the row says how long it was silent, and when it was due until
        then.

        Cost: as `timeout_ms`; a row if the silence is beyond the threshold, or beyond
        *timeout_ms*.
        """
        if timeout_ms == self._timeout_ms:
            return
        silent, least = t - self.last_ns, max(self._long_ns, 0)
        if silent <= (min(least, timeout_ms * 1_000_000) if timeout_ms else least):
            self.timeout_ms = timeout_ms
            return
        if self._changed_ns > self.last_ns:  # of two changes at one instant the later counts
            t = max(t, self._changed_ns + 1)
        due = self.due_ns(self.last_ns, self._timeout_ms)
        self._timeout_ms = timeout_ms
        self._row(t, CONFIG, due=due, reason=RETIME)
        self._changed_ns = t

    def due_ns(self, last: int, timeout_ms: int | None) -> int | None:
        """When it is due, ns, if it is silent since *last*: no earlier than its timeout
        was set.

        None: there is no timeout.
        """
        if not timeout_ms:
            return None
        due = last + timeout_ms * 1_000_000
        return max(due, self._changed_ns) if self._changed_ns > last else due

    def _row(
        self,
        t: int,
        kind: int,
        nbytes: int | None = None,
        due: int | None = None,
        reason: str | None = None,
        n: int | None = None,
        idle_sum: int | None = None,
    ) -> None:
        idle, timeout = t - self.last_ns, self._timeout_ms
        self._journal._append(
            (
                t,
                self.conn,
                kind,
                idle,
                nbytes,
                timeout,
                due,
                self.listener,
                reason,
                n,
                idle_sum,
                None,
            )
        )

    def touch(self, t: int, nbytes: int | None = None) -> None:
        """Note activity at *t* ns, of *nbytes* bytes where that is known. Cost: a
        store, a count and one comparison in `gaps` mode.
        """
        self.n += 1
        if t - self.last_ns > self._long_ns:
            self.idle_sum_ns += t - self.last_ns
            self._row(t, ACTIVITY, nbytes)
        self.last_ns = t

    def gap(self, last: int, t: int, nbytes: int | None = None) -> None:
        """Note activity at *t* ns that follows activity at *last*: for callers who keep
        the latest instant themselves.

        Short silences between are then not counted; their sum is still exact, as last -
        opened - idle_sum.
        """
        self.n += 1
        self.last_ns = last
        self.idle_sum_ns += t - last
        self._row(t, ACTIVITY, nbytes)
        self.last_ns = t

    def averted(self, t: int) -> None:
        """The connection was due at *t* ns, and was spared: the final check found bytes
        unread.
        """
        self._row(t, AVERTED)

    def reap(self, t: int, due: int, reason: str | None = None, *, deadline: bool = False) -> None:
        """The reaper closed the connection at *t* ns, as it might from *due* ns on.
        *deadline*: activity does not move that.
        """
        if deadline:
            # Its row says nothing of a timeout that activity moves: a reader judges by
            # due_ns. So where it was silent for long, another row says which was in
            # force: by that it should have been closed before, or rightly was not.
            if (timeout := self._timeout_ms) is not None:
                silent, gaps = t - self.last_ns, self._long_ns >= 0
                if (gaps and silent > self._long_ns) or 0 < timeout * 1_000_000 < silent:
                    self._note_timeout(timeout)
            self._timeout_ms = None
        elif self._changed_ns > self.last_ns:
            due = max(due, self._changed_ns)
            t = max(t, due)
        self._end(REAP, t, due, reason)

    def close_peer(self, t: int, reason: str | None = None) -> None:
        """The other side closed the connection, reset it or vanished, at *t* ns."""
        self._end(CLOSE_PEER, t, None, reason)

    def close_app(self, t: int, reason: str | None = None) -> None:
        """This side's program closed the connection at *t* ns, for a reason of its
        own.
        """
        self._end(CLOSE_APP, t, None, reason)

    def _end(self, kind: int, t: int, due: int | None, reason: str | None) -> None:
        self.ended = True
        self._journal._open.discard(self)
        self._row(t, kind, None, due, reason, self.n, self.idle_sum_ns)


OpenStates = dict[ConnectionLog, tuple[int, int | None, int]]
"""Log of an open connection -> its latest activity, ns, and the timeout in force,
ms.
"""


class Journal:
    """Writes events to *directory*: one hidden stream that grows, and Parquet files
    `*.parquet` that are complete.

    Make it after forking: the writer is a thread, and one journal belongs to one
    process. Several processes may share a directory. What a crashed process left there
    is recovered when the next journal starts.

    Args:
        directory: Made if missing.
        writer: Id of this writer, 0..2**20-1; None: random, which is best unless the
            number means something to you.
        mode: `gaps`: opens, ends, and silences longer than *gap_threshold*; `full`:
            every activity; `off`: nothing.
        gap_threshold: Seconds, > 0: silences up to it are not written in `gaps` mode.
        tick: Seconds, > 0: the precision that the reaper promises; the audit judges by
            it.
        flush: Seconds between writes, > 0: what a kill may cost.
        rotate_bytes, rotate_seconds: A stream becomes a Parquet file when it reaches
            either, > 0.
        retain_bytes: The oldest Parquet files are deleted when all together exceed
            it, > 0; None: never.
        clock_ns: The clock of every time passed in; read by the writer alone, to relate
            it to the wall clock.
        server: Name of this machine, as a list of expected servers has it: printable,
            without a comma. None: the host's name. Processes of one machine share it.
        sequence: First connection number; None: random, so that two processes with one
            writer id, or one that was restarted, use different ones. Two that open a
            million connections each overlap once in 4 million times.
        queue_rows: Rows that may wait for the writer, >= 1.
        background: False starts no thread; rows are written by `flush()` and `close()`
            alone. For tests and converters.
    Raises:
        InvalidArgument: by name and value.
        OSError: the directory cannot be made or written.
        ImportError: pyarrow is missing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        writer: int | None = None,
        mode: str = "gaps",
        gap_threshold: float = 1.0,
        tick: float = 1.0,
        flush: float = 0.5,
        rotate_bytes: int = 64 << 20,
        rotate_seconds: float = 300.0,
        retain_bytes: int | None = 10 << 30,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        server: str | None = None,
        sequence: int | None = None,
        queue_rows: int = QUEUE_ROWS,
        background: bool = True,
    ) -> None:
        if mode not in MODES:
            raise InvalidArgument(f"mode must be one of {', '.join(MODES)}, got {shown(mode)}")
        gap_ns = round(check_timeout("gap_threshold", gap_threshold) * 1e9)
        tick_ns = round(check_timeout("tick", tick) * 1e9)
        check_timeout("flush", flush)
        check_timeout("rotate_seconds", rotate_seconds)
        check_count("rotate_bytes", rotate_bytes, 1)
        if retain_bytes is not None:
            check_count("retain_bytes", retain_bytes, 1)
        if type(instant := clock_ns()) is not int:  # such as that of a function that makes clocks
            raise InvalidArgument(
                f"clock_ns must return integer nanoseconds, it returned {shown(instant)}"
            )
        server = (socket.gethostname() or "localhost") if server is None else server
        if (
            not isinstance(server, str)
            or not server.strip()
            or not server.isprintable()
            or "," in server
        ):
            raise InvalidArgument(
                f"server must be a printable name without a comma, got {shown(server)}"
            )
        if sequence is None:
            # No clock tells two processes of one millisecond apart, or a step back;
            # 2**40 numbers stay free above it.
            sequence = 1 + secrets.randbelow((1 << SEQUENCE_BITS) - (1 << 40))
        self.mode = mode
        self.gap_threshold_ns = gap_ns
        self.writer: int = (
            secrets.randbits(20) if writer is None else check_count("writer", writer, 0)
        )
        self._ids = itertools.count(
            connection_id(self.writer, check_count("sequence", sequence, 1))
        )
        self._self_id = next(self._ids)
        self._long_ns = gap_ns if mode == "gaps" else -(1 << 63)
        self._limit = check_count("queue_rows", queue_rows, 1)
        self._rows: list[Row] = []
        self._open: set[ConnectionLog] = set()
        self._awake = 0
        self._witnesses: list[Callable[[OpenStates], object]] = []
        self._dropped = 0
        self._writer: Writer | None = None
        if mode != "off":
            with needs("a journal", "idle-reaper[journal]"):
                from .writer import Writer  # here, because it imports pyarrow

            metadata = {
                "run": secrets.token_hex(6),
                "writer": str(self.writer),
                "mode": mode,
                "tick_ns": str(tick_ns),
                "gap_threshold_ns": str(gap_ns if mode == "gaps" else 0),
                "first_conn": str(self._self_id),
                "server": server,
            }
            self._writer = Writer(
                Path(directory),
                self._rows,
                metadata,
                lambda: self._dropped,
                open_logs=lambda: list(self._open),  # one step for the interpreter
                open_rows=self._open_rows,
                flush_seconds=flush,
                rotate_bytes=rotate_bytes,
                rotate_seconds=rotate_seconds,
                retain_bytes=retain_bytes,
                clock_ns=clock_ns,
                wall_ns=wall_ns,
                background=background,
            )

    def open(
        self,
        t: int,
        timeout_ms: int,
        listener: str | None = None,
        peer: int | None = None,
        reason: str | None = None,
    ) -> ConnectionLog:
        """A connection was opened.

        Args:
            t: Instant, ns.
            timeout_ms: Timeout in force from now on, ms; 0: none. Beyond 24 days it is
                written as 24 days.
            listener: Name of the port or service, a few distinct ones.
            peer: `peer_key` of its addresses, to join it with the other side's journal;
                None: not joined.
            reason: A note for the reader, a few distinct ones.
        Returns:
            The log of this connection.
        """
        timeout_ms = min(timeout_ms, 2**31 - 1)
        conn = next(self._ids)
        self._append(
            (t, conn, OPEN, None, None, timeout_ms, None, listener, reason, None, None, peer)
        )
        log = ConnectionLog(self, conn, t, timeout_ms, listener)
        if self._writer is not None:
            self._open.add(log)
        return log

    def config(self, t: int, text: str) -> None:
        """Note the settings in force from *t* ns on, as one short *text*."""
        self._own(t, CONFIG, text)

    def stall(self, t: int, stuck_ns: int) -> None:
        """The event loop stood still for *stuck_ns*, up to *t* ns. An audit excuses
        what was late by no more than that.
        """
        self._own(t, CONFIG, STALL, stuck_ns)

    def awake(self, t: int) -> None:
        """The event loop ran at *t* ns, whether or not anything happened. Cost: a
        store.

        An open connection is reported as silent up to the latest such instant, or row.
        """
        self._awake = t

    def witness(self, look: Callable[[OpenStates], object]) -> None:
        """Let *look* tell of the connections whose logs are not up to date.

        It is called when a file is finished, in the writer's thread: it must change
        nothing.
        """
        self._witnesses.append(look)

    def _open_rows(self, logs: Iterable[ConnectionLog], latest: int) -> list[Row]:
        """A row for each of *logs* that has not ended; *latest*: of the rows written so
        far, ns.

        It runs in the writer's thread while the loop goes on. So a row says no more
        than what the loop itself had reached: a loop that stands still leaves no
        connection silent for longer.
        """
        known: OpenStates = {}
        for look in self._witnesses:
            look(known)
        states = []
        for log in logs:
            last, timeout, n = known.get(log) or (log.last_ns, log.timeout_ms, log.n)
            if not log.ended:
                states.append((log, last, timeout, n))
        t = max([latest, self._awake, *(last for _, last, _, _ in states)])
        return [
            (
                t,
                log.conn,
                CONFIG,
                t - last,
                None,
                timeout,
                log.due_ns(last, timeout),
                log.listener,
                STILL_OPEN,
                n,
                log.idle_sum_ns,
                None,
            )
            for log, last, timeout, n in states
        ]

    def drain(self, t: int, reason: str | None = None) -> None:
        """Every connection of this writer has ended by *t* ns. An audit then calls a
        connection without an end lost.
        """
        self._own(t, DRAIN, reason)

    def _own(self, t: int, kind: int, reason: str | None, idle: int | None = None) -> None:
        self._append(
            (t, self._self_id, kind, idle, None, None, None, None, reason, None, None, None)
        )

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all rows appended so far are on the file system. It blocks: never
        call it on the event loop's thread.

        Returns:
            False if that took more than *timeout* seconds, or rows were dropped
            meanwhile.
        """
        return self._writer is None or self._writer.flush(timeout)

    def close(self, timeout: float = 30.0) -> JournalStatistics:
        """Write everything, turn the stream into its last Parquet file, stop the
        thread. It blocks, and may be called again.

        Raises nothing of ours: what could not be written is in the statistics, and what
        is in the stream is recovered by the next journal in the directory.
        """
        if self._writer is not None:
            self._writer.close(timeout)
        return self.statistics()

    def statistics(self) -> JournalStatistics:
        """The figures of this instant. Cost: O(1)."""
        if self._writer is None:
            return JournalStatistics(0, 0, 0, 0, 0, 0, 0, None, False)
        return self._writer.statistics()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _append(self, row: Row) -> None:
        rows = self._rows
        if self._writer is None:
            return
        if len(rows) < self._limit:
            rows.append(
                row
            )  # the writer takes from the front; both are single steps for the interpreter
        else:
            self._dropped += 1
