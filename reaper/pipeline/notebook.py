"""DataFrame in, DataFrame out: the pipeline's questions for a notebook, on either
engine.

The rule of this module: *a guest changes nothing of the session that it is given*. No
setting of it stays changed, and nothing is stopped.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from ..errors import InvalidArgument
from .advise.run import Policy
from .advise.run import advise as advise_of
from .advise.tables import END, KEY, TIME, Table
from .arguments import aside_lines
from .audit.run import Settings
from .audit.run import audit as audit_of
from .engine import check_version, expect, use
from .losses.formats import KNOWN
from .losses.run import parsed, with_silence
from .places import Place, Remote, place
from .read.frames import read_events, small_frame
from .read.inputs import Inputs, check, hole_line
from .read.table import check_table, rows_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INPUTS, _SUMMARY = "_reaper_inputs", "_reaper_summary"
_SET = ("spark.sql.shuffle.partitions",)
"""Settings of a Spark session that a question changes; `_answered_by` restores them."""

ADVICE: pa.Schema = pa.schema(
    [
        ("listener", pa.string()),
        ("timeout_s", pa.float64()),
        ("silences_cut", pa.float64()),
        ("silences_cut_low", pa.float64()),
        ("silences_cut_high", pa.float64()),
        ("connections_cut", pa.float64()),
        ("mean_open", pa.float64()),
        ("peak_open", pa.int64()),
        ("recommended_s", pa.float64()),
        ("at_least_s", pa.float64()),
    ]
)
"""The columns of `advise`. Grain: one row per listener and timeout."""


Paths = str | os.PathLike[str] | Sequence[Any]
"""Directories or files of journals, or one of them."""


def events(spark: SparkSession, journal: Paths | DataFrame) -> DataFrame:
    """The rows of journals, one per event: the columns of the schema, and `code`, the
    kind as its place in `reaper.journal.schema.KINDS`.

    Args:
        spark: A Spark session, or one of the embedded engine. Nothing of it is changed.
        journal: Directories or files of journals; on Spark also a frame with what
            `table` gave, wherever that was written to.
    Raises:
        InvalidArgument: the frame lacks a column of such a table.
    Warns:
        UserWarning: a file was put aside, or is missing between others; the message
        says why.
    """
    if hasattr(journal, "sparkSession"):
        if _is_embedded(spark):
            raise InvalidArgument("journal: a table needs Spark; expected paths")
        with _answered_by(spark, 0):
            inputs = check_table(cast("DataFrame", journal))
    else:
        inputs = _checked(spark, journal)
    _warn_of(inputs)
    with _answered_by(spark):
        frame = read_events(spark, inputs)
    vars(frame)[_INPUTS] = inputs
    return frame


def table(spark: SparkSession, paths: Paths) -> DataFrame:
    """The rows of journals as a table has them: the columns of the schema, `file`, what
    a row's file says of itself, and `day`, that of the file's first row. `write` them
    anywhere, and read them by `events`.

    Files that do not pass the check are left out, with the warning of `events`.

    Args:
        spark: A Spark session. Nothing of it is changed.
    """
    if _is_embedded(spark):
        raise InvalidArgument("spark: a table needs Spark; got the embedded engine's session")
    inputs = _checked(spark, paths)
    _warn_of(inputs)
    with _answered_by(spark):
        return rows_of_files(spark, inputs)


def audit(
    events: DataFrame,
    client: DataFrame | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> DataFrame:
    """One row per connection, with its `verdict`; key: conn. `summary` has the answer.

    Args:
        events: What `events` gave, of servers.
        client: The same, of the load generator.
        out: Where the rows are kept, as Parquet; None: in a temporary directory of this
            machine, which stays.
    """
    server, theirs = _inputs(events), None if client is None else _inputs(client)
    kept = place(os.fspath(out)) if out is not None else Path(tempfile.mkdtemp(prefix="reaper-"))
    with _answered_by(events.sparkSession, server.rows) as spark:
        kept.mkdir(parents=True, exist_ok=True)
        found = audit_of(spark, server, theirs, kept, settings or Settings())
    vars(found.connections)[_SUMMARY] = found.summary
    return found.connections


def advise(
    events: DataFrame,
    *,
    max_cut: float = 0.001,
    behind: str | None = None,
    key: str = KEY,
    time: str = TIME,
    end: str = END,
    timeout_s: float | None = None,
) -> DataFrame:
    """What each timeout would cut of the silences in *events*, see `ADVICE`. `summary`
    has the recommendation and its reasons.

    Args:
        events: What `events` gave; or any frame of what can be idle, a row a use of a
            key: sessions, cache entries, jobs.
        key, time, end: The columns of such a frame: what was used, when, and, if there
            is such a column, when that use ended. An instant is a timestamp, seconds
            since 1970, or text in ISO 8601.
        timeout_s: Of such a frame: the time to live that was in force, seconds; None:
            none was.
    """
    policy = Policy(max_cut=max_cut, behind=behind)
    inputs: Inputs | None = vars(events).get(_INPUTS)
    table = None
    if inputs is None and {key, time} <= set(events.columns):
        timeout_ns = None if timeout_s is None else round(timeout_s * 1e9)
        table = Table(key=key, time=time, end=end, frame=events), timeout_ns
    elif inputs is None:
        inputs = _inputs(events)  # it says what is wrong
    known = None if inputs is None else inputs.rows
    with _answered_by(events.sparkSession, known) as spark:
        found = advise_of(spark, inputs or Inputs(), None, policy, table=table)
        rows = [
            (
                *(name, row["timeout_s"], row["silences_cut"], *row["silences_cut_interval"]),
                *(row["connections_cut"], float(row["mean_open"]), row["peak_open"]),
                *(entry["recommendation"]["timeout_s"], entry["recommendation"]["at_least_s"]),
            )
            for name, entry in found["listeners"].items()
            for row in entry["trade_off"]
        ]
        frame = small_frame(spark, rows, ADVICE)
    vars(frame)[_SUMMARY] = found
    return frame


def losses(lines: DataFrame, log_format: str) -> DataFrame:
    """The requests in *lines* (`value`: a line of a proxy's log), see
    `losses.run.REQUESTS`: outcome `lost` is one whose server closed at once, after a
    silence of silence_ns.
    """
    if log_format not in KNOWN:
        raise InvalidArgument(f"log_format {log_format!r}: expected one of {', '.join(KNOWN)}")
    with _answered_by(lines.sparkSession):
        requests = parsed(lines, log_format).where("kind = 0")
        return with_silence(requests.drop("value", "saved", "kind"))


def summary(frame: DataFrame) -> dict[str, Any]:
    """What the command would have printed with `--json`, for a frame that `audit` or
    `advise` returned.
    """
    found: dict[str, Any] | None = vars(frame).get(_SUMMARY)
    if found is None:
        raise InvalidArgument("frame: expected what audit or advise gave, as it was given")
    return found


def _checked(spark: SparkSession, paths: Paths) -> Inputs:
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    places: list[Place] = [place(os.fspath(each)) for each in given]
    with _answered_by(spark):
        remote = any(isinstance(each, Remote) for each in places)
        return check(places, spark=spark if remote else None)


def _warn_of(inputs: Inputs) -> None:
    for text in [*aside_lines(inputs.quarantined), *map(hole_line, inputs.holes)]:
        warnings.warn(text, stacklevel=3)


def _inputs(frame: DataFrame) -> Inputs:
    found: Inputs | None = vars(frame).get(_INPUTS)
    if found is None:
        raise InvalidArgument(
            "events: expected what reaper.pipeline.events gave, as it was given: it knows the "
            "files' ticks, stalls and ends, which no row has"
        )
    return found


def _is_embedded(session: Any) -> bool:
    return type(session).__module__.startswith("reaper.")


@contextmanager
def _answered_by(session: Any, rows: int | None = None) -> Iterator[Any]:
    """Let the engine of *session* answer, and leave its settings as they were.

    *rows*: how many are read, as far as that is known: Spark's own 200 partitions cost
    a small journal half a minute of empty tasks.
    """
    embedded = _is_embedded(session)
    if not embedded:
        check_version()
    before = use("embedded" if embedded else "spark")
    # Not `conf.get`: for a setting that nobody made it returns Spark's default.
    theirs = {} if embedded else {name: session.conf.getAll.get(name) for name in _SET}
    try:
        if rows is not None and not embedded:
            expect(session, rows)
        yield session
    finally:
        use(before)
        for name, value in theirs.items():
            if value is None:
                session.conf.unset(name)
            elif session.conf.get(name) != value:
                session.conf.set(name, value)
