"""A growing journal followed with Structured Streaming: figures per window, and who has
gone silent.

A row carries the timeout in force, so a connection's session ends, by `session_window`
with a gap per row, when that has passed and no row of its came: what each reaper
decided locally is decided again here, across all servers, on event time. One loop:
admit files to the feed, let both queries finish, keep the tables, draw the page.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...config.running import alone
from ...errors import one_line
from ..arguments import Fault
from ..places import pattern, write_text
from ..read.expected import WITHIN_NS, missing
from .feed import Feed
from .page import render
from .status import status
from .tables import FEED, idle, keep_sessions, keep_windows, windows

POLL = "200 milliseconds"
"""How often a query looks for a new feed file: a listing of a directory that is mostly
empty.
"""


Each = Callable[[str, DataFrame, int], object]
"""A function of ("windows" or "idle", the rows of a batch, the number of the batch)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run. Durations in ns."""

    window_ns: int = 10 * 10**9
    delay_ns: int = 600 * 10**9
    every_ns: int = 5 * 10**9
    """Pause between two looks at the directories."""
    for_ns: int | None = 0
    """How long; 0: once through what is there; None: until it is stopped."""
    drain: bool = False
    """At the end: no server writes any more, so let the last windows and sessions
    out.
    """
    expected: tuple[str, ...] = ()
    """Names of servers that ought to write."""
    within_ns: int = WITHIN_NS
    """How long one of them may be silent: behind this machine's clock, or, once
    through, behind the newest of all.
    """


def follow(
    spark: SparkSession,
    directories: Sequence[Path],
    out: Path,
    settings: Settings,
    stop: Event | None = None,
    progress: Callable[[str], None] = lambda _: None,
    each: Each | None = None,
) -> dict[str, Any]:
    """Process what is there and what comes; go on later from where *out* stopped,
    whatever stopped it.

    Below *out*: `windows/` and `idle/` (Parquet, plain files: what is visible counts,
    each row once), `live.html`, `live.json` (the summary, after each step); its own:
    `feed/`, `checkpoint/`, `ledger.json`, `.lock`.

    Args:
        stop: Set it to end after the step that is being done.
        each: Called with each batch of either table once it is kept. A batch comes
            again, with its number, if it is killed or raises.
    Returns:
        The summary, see `status.status`.
    Raises:
        Fault: another process works on *out*, it was begun with another window or
            delay, or its ledger is no good. Nothing was changed.
        StreamFailed: Spark gave up; what was committed stays, and the next run goes on
            from there.
    """
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    stop = stop or Event()
    with alone(
        out / ".lock", lambda pid: Fault(f"another live (process {pid}) is at work in {out}")
    ):
        fixed = {
            "--window in ms": settings.window_ns // 10**6,
            "--delay in ms": settings.delay_ns // 10**6,
        }
        feed = Feed(out, directories, settings.delay_ns, fixed)
        before = feed.ledger.rows
        summary = _publish(out, feed, settings)
        raised: list[Exception] = []
        with _queries(spark, out, settings, each, raised) as queries, _writing(raised):
            deadline = None if settings.for_ns is None else time.monotonic() + settings.for_ns / 1e9
            _finish(queries, feed)  # what a kill left half done
            while True:
                admitted = feed.admit()
                if admitted:
                    progress(
                        f"{admitted} new file(s), {feed.ledger.rows - before:,} rows; "
                        f"{feed.waiting} file(s) wait"
                    )
                    _finish(queries, feed)
                summary = _publish(out, feed, settings)
                if admitted and not stop.is_set():
                    continue
                if stop.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    break
                left = float("inf") if deadline is None else deadline - time.monotonic()
                stop.wait(min(settings.every_ns / 1e9, max(left, 0)))
            if settings.drain and not stop.is_set():
                progress("letting the last windows and sessions out")
                feed.mark()
                _finish(queries, feed)
                summary = _publish(out, feed, settings)
            operators = [
                each
                for query in queries
                for step in query.recentProgress
                for each in step["stateOperators"]
            ]
            dropped = sum(operator["numRowsDroppedByWatermark"] for operator in operators)
    return {**summary, "new_rows": feed.ledger.rows - before, "dropped_by_watermark": dropped}


class StreamFailed(Exception):
    """Spark gave up on a query. The message is one line."""


@contextmanager
def _writing(raised: Sequence[Exception] = ()) -> Iterator[None]:
    """Turn a failure to write into one line that ends the run. The step is then in the
    ledger whole, or not begun. *raised*: what the user's function has raised, of which
    Spark's message has the end cut off.
    """
    try:
        yield
    except (OSError, StreamingQueryException) as error:
        own = [f"--each raised {type(each).__name__}: {one_line(each)}" for each in raised]
        why = own[0] if own else one_line(error)
        raise StreamFailed(f"stopped, and goes on from here when started again: {why}") from None


def read_feed(spark: SparkSession, feed: Path) -> DataFrame:
    """The steps in the directory *feed* as a stream."""
    # Each step is a path of its own: of one that goes while Spark lists it Spark then
    # thinks nothing. A folder below the path that was named would end the query.
    steps = f"{pattern(feed)}/[0-9]*"
    return spark.readStream.schema(FEED).option("recursiveFileLookup", "true").parquet(steps)


@contextmanager
def _queries(
    spark: SparkSession,
    out: Path,
    settings: Settings,
    each: Each | None,
    raised: list[Exception],
) -> Iterator[list[StreamingQuery]]:
    """Start both queries. They run on: a query that was started anew for each step
    would load its whole state each time.
    """
    events = read_feed(spark, out / "feed")
    for name in ("windows", "idle"):
        (out / name).mkdir(exist_ok=True)
        checkpoint = out / "checkpoint" / name
        if checkpoint.exists() and not any(checkpoint.glob("offsets/[0-9]*")):
            shutil.rmtree(
                checkpoint
            )  # killed while its first batch was written down: Spark would refuse it
    with ExitStack() as running:
        queries = []
        for name, mode, table, keep in (
            (
                "windows",
                "update",
                windows(events, settings.window_ns, settings.delay_ns),
                keep_windows,
            ),
            ("idle", "append", idle(events, settings.delay_ns), keep_sessions),
        ):
            writer = table.writeStream.outputMode(mode).option(
                "checkpointLocation", str(out / "checkpoint" / name)
            )
            queries.append(
                writer.trigger(processingTime=POLL)
                .foreachBatch(_sink(partial(keep, out / name), name, each, raised))
                .start()
            )
            running.callback(queries[-1].stop)
        yield queries


def _sink(
    keep: Callable[[DataFrame, int], None],
    name: str,
    each: Each | None,
    raised: list[Exception],
) -> Callable[[DataFrame, int], None]:
    """What Spark does with each batch of the table *name*. *raised* gets what *each*
    raises.
    """
    if each is None:
        return keep

    def both(batch: DataFrame, number: int) -> None:
        batch.persist()  # or the second question has it all computed again
        try:
            keep(batch, number)
            try:
                each(name, batch, number)
            except Exception as error:
                raised.append(error)
                raise
        finally:
            batch.unpersist()

    return both


def _finish(queries: list[StreamingQuery], feed: Feed) -> None:
    """Wait until every query has committed all of the feed, then delete the feed's
    files.
    """
    for query in queries:
        query.processAllAvailable()
    feed.forget()


def _publish(out: Path, feed: Feed, settings: Settings) -> dict[str, Any]:
    """Put the summary and the page in place, each in one step."""
    newest = feed.ledger.names
    until = max(newest.values(), default=0) if settings.for_ns == 0 else time.time_ns()
    silent = missing(
        settings.expected,
        {name: [(at, at)] for name, at in newest.items()},
        settings.within_ns,
        until,
    )
    summary = status(feed, out, settings.window_ns, silent=silent)
    write_text(out / "live.html", render(summary, out, settings.every_ns))
    write_text(out / "live.json", json.dumps(summary, indent=2) + "\n")
    return summary
