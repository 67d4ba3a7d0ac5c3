"""The audit in SQL, written by hand the fastest way that was found, for DuckDB and for
Spark.

Both give the same answer about simulated journals, with every fault in them, or they
would prove nothing: one verdict per connection written to Parquet, with the counts and
the lateness (`tests/pipeline/test_rivals.py`). They do not know the traps of
`tests/pipeline/test_audit.py` that need a second look: those hold the pipeline's two
engines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from reaper.pipeline.read.inputs import Inputs
from reaper.pipeline.read.runs import Timeline, overdue_files

GRACE_NS = 250_000_000
QUANTILES = (0.5, 0.9, 0.99, 0.999)
Verdicts = dict[tuple[Any, str], int]
"""(listener, verdict) -> connections."""
Lateness = dict[Any, tuple[int, int]]
"""listener -> least and most lateness of its reaps, ns."""


_LIFETIMES = """
SELECT conn, count(*) FILTER (WHERE k <> 7) AS rows,
  count(*) FILTER (WHERE k = 0) AS opens, count(*) FILTER (WHERE k IN (2, 4, 5)) AS ends,
  count(*) FILTER (WHERE k = 2) AS reaps, count(*) FILTER (WHERE k = 1) AS activities,
  count(*) FILTER (WHERE k = 3) AS averts, count(*) FILTER (WHERE idle_ns < 0) AS backward,
  min(t) FILTER (WHERE k = 0) AS opened, max(timeout_ms) FILTER (WHERE k = 0) AS open_timeout_ms,
  {any}(listener) AS listener, max(peer) AS peer, max(t) AS last_t,
  max_by(timeout_ms, t * 8 + k) AS last_timeout_ms, max(t) FILTER (WHERE k = 1) AS last_activity,
  sum(idle_ns) FILTER (WHERE k = 1)::BIGINT AS activity_idle_ns, sum(nbytes) FILTER (WHERE k = 1)::BIGINT AS nbytes,
  max(idle_ns) FILTER (WHERE k = 1) AS longest_idle_ns,
  min(t) FILTER (WHERE k IN (2, 4, 5)) AS ended, max(idle_ns) FILTER (WHERE k IN (2, 4, 5)) AS end_idle_ns,
  max(timeout_ms) FILTER (WHERE k IN (2, 4, 5)) AS end_timeout_ms,
  max(CASE WHEN k = 4 THEN 1 END) AS by_peer,
  {any}(reason) FILTER (WHERE k IN (2, 4, 5)) AS reason,
  max(due_ns) FILTER (WHERE k = 2) AS due_ns,
  max(n) FILTER (WHERE k IN (2, 4, 5)) AS end_n, max(idle_sum_ns) FILTER (WHERE k IN (2, 4, 5)) AS end_idle_sum_ns
FROM coded WHERE k < 6 OR (k = 7 AND timeout_ms IS NOT NULL) GROUP BY conn
"""

_CODED = """
SELECT *, CASE kind WHEN 'activity' THEN 1 WHEN 'open' THEN 0 WHEN 'reap' THEN 2 WHEN 'averted' THEN 3
    WHEN 'close_peer' THEN 4 WHEN 'close_app' THEN 5 WHEN 'config' THEN 7 ELSE 6 END::TINYINT AS k,
  CASE WHEN timeout_ms > 0 THEN idle_ns - timeout_ms::BIGINT * 1000000 END AS overdue
FROM {rows}
"""

_SILENT = """
SELECT conn, count(*) FILTER (WHERE wrong AND k <> 2) AS missed,
  count(*) FILTER (WHERE wrong AND k = 2) AS reaped_late, max(over) FILTER (WHERE spared) AS spared_lateness_ns
FROM (
  SELECT *, over > tick_ns + {grace} + whole + coalesce((
      SELECT sum(greatest(0, least(till, s_to) - greatest(since, till - greatest(over - whole, 0), s_from)))
      FROM stalls WHERE s_run = run AND s_to > since AND s_from < till
        AND s_to - s_from <= tick_ns AND s_from > since + tick_ns), 0) AS wrong
  FROM (SELECT *, coalesce((SELECT sum(greatest(0, least(till, s_to) - greatest(since, s_from)))
      FROM stalls WHERE s_run = run AND s_to > since AND s_from < till
        AND (s_to - s_from > tick_ns OR s_from <= since + tick_ns)), 0) AS whole
  FROM (
    SELECT conn, k, run, tick_ns, k = 2 AND last IS NOT NULL AS spared,
      least(begun, CASE WHEN k = 2 THEN due_ns END) + offset_ns AS since, over_at + offset_ns AS till,
      greatest(over_at - begun - CASE WHEN timeout_ms > 0 THEN timeout_ms::BIGINT * 1000000 END,
        CASE WHEN k = 2 THEN t - due_ns END) AS over
    FROM (
      SELECT *, CASE WHEN k = 2 THEN coalesce(last, t - idle_ns) ELSE t - idle_ns END AS begun,
        CASE WHEN k = 2 THEN t ELSE coalesce(first, t) END AS over_at
      FROM (
        SELECT s.conn, s.k, s.t, s.idle_ns, s.timeout_ms, s.due_ns, r.run, r.tick_ns, r.offset_ns,
          min(a.t) AS first, max(a.t) AS last
        FROM rare s JOIN runs r ON (s.conn >> 43) = r.writer AND s.conn BETWEEN r.first_conn AND r.last_conn
          LEFT JOIN rare a ON a.k = 3 AND a.conn = s.conn AND a.t > s.t - s.idle_ns AND a.t <= s.t
        WHERE s.k IN (1, 2, 4, 5) GROUP BY ALL)))))
GROUP BY conn
"""

_PREPARED = """
SELECT *, CASE WHEN reaps > 0 THEN coalesce(spared_lateness_ns,
    greatest(end_idle_ns - idle_timeout_ns, ended - due_ns)) END AS lateness_ns
FROM (
  SELECT l.*, r.run, r.tick_ns, r.in_full, r.drained, r.log_end_ns, r.offset_ns, r.tick_ns + {grace} AS limit_ns,
    coalesce(o.stalled, 0) AS run_stalled_ns, coalesce(s.missed, 0) AS missed,
    coalesce(s.reaped_late, 0) AS reaped_late, s.spared_lateness_ns,
    CASE WHEN end_timeout_ms > 0 THEN end_timeout_ms::BIGINT * 1000000 END AS idle_timeout_ns
  FROM ({lifetimes}) l JOIN runs r ON (l.conn >> 43) = r.writer AND l.conn BETWEEN r.first_conn AND r.last_conn
    LEFT JOIN (SELECT s_run, sum(s_to - s_from) AS stalled FROM stalls GROUP BY s_run) o ON o.s_run = r.run
    LEFT JOIN {silent} s ON s.conn = l.conn)
"""

_JUDGED = """
SELECT *,
  CASE
    WHEN backward > 0 THEN 'unknown'
    WHEN last_activity > ended THEN 'activity_after_end'
    WHEN opens > 1 OR ends > 1 OR (opens = 1 AND ends <> 0
        AND (coalesce(activity_idle_ns, 0) > end_idle_sum_ns OR activities > end_n)) THEN 'duplicate'
    WHEN reaps > 0 AND idle_timeout_ns IS NULL AND due_ns IS NULL THEN 'unknown'
    WHEN reaps > 0 AND (end_idle_ns < idle_timeout_ns OR ended < due_ns OR ended - last_activity < idle_timeout_ns)
      THEN 'early'
    WHEN missed > 0 THEN 'missed'
    WHEN reaped_late > 0 THEN 'late'
    WHEN opens = 0 THEN 'unknown'
    WHEN ends = 0 AND (drained OR (in_full AND log_end_ns
        - greatest(coalesce(last_activity, opened), opened)
        > nullif(last_timeout_ms, 0)::BIGINT * 1000000 + limit_ns + run_stalled_ns))
      THEN 'lost'
    WHEN coalesce(activity_idle_ns, 0) < end_idle_sum_ns OR ended - end_idle_ns - opened - end_idle_sum_ns < 0
        OR (in_full AND (ended - end_idle_ns - opened - end_idle_sum_ns <> 0 OR activities < end_n)) THEN 'missing_touch'
    WHEN ends = 0 THEN 'open_at_end'
    WHEN reaps > 0 THEN 'ok_reaped'
    ELSE 'ok_closed'
  END AS verdict
FROM prepared
"""


def runs_of(inputs: Inputs) -> list[tuple[Any, ...]]:
    """What is known of each run: a row of the table `runs`."""
    timeline = Timeline.of(inputs.runs)
    return [
        (
            *(run.index, run.writer, run.first_conn, run.last_conn, run.tick_ns),
            *(run.full, run.drained, run.log_end_ns, timeline.offset_ns(run)),
        )
        for run in inputs.runs
    ]


def stalls_of(inputs: Inputs) -> list[tuple[int, int, int]]:
    """Run, begin and end of each stall, ns of the timeline."""
    found = Timeline.of(inputs.runs).stalls(inputs.runs)
    return [(run, since, to) for run, stalls in found.items() for since, to in stalls]


def least_overdue(inputs: Inputs) -> int:
    """By how many ns a silence has to be overdue to be looked at."""
    return min(run.tick_ns for run in inputs.runs) + GRACE_NS


def overdue_paths(inputs: Inputs) -> list[str]:
    """The files that have such a silence: the others are not looked through."""
    return [str(facts.path) for facts in overdue_files(inputs.files, least_overdue(inputs))]


_RARE = """
SELECT conn, k, t, idle_ns, timeout_ms, due_ns FROM ({rows})
WHERE k = 3 OR overdue > {least} OR (k = 2 AND t - due_ns > {least})
"""


class Duck:
    """DuckDB in memory, with as many threads as Spark has."""

    def __init__(self, inputs: Inputs, threads: int = 2) -> None:
        import duckdb

        self.inputs = inputs
        self.con = duckdb.connect(config={"threads": threads, "preserve_insertion_order": False})
        self.con.execute(
            "CREATE TABLE runs (run INT, writer BIGINT, first_conn BIGINT, last_conn BIGINT, tick_ns BIGINT, in_full "
            "BOOLEAN, drained BOOLEAN, log_end_ns BIGINT, offset_ns BIGINT)"
        )
        for row in runs_of(inputs):
            self.con.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
        self._hand_in("stalls", ["s_run", "s_from", "s_to"], stalls_of(inputs))

    def _hand_in(self, table: str, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        """Have *rows* of integers as *table*."""
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        arrays = [pa.array(column, pa.int64()) for column in columns]
        self.con.register(table, pa.table(arrays, names=names))

    def audit(self, out: Path) -> tuple[Verdicts, Lateness]:
        """A row per connection to *out*, and what it sums up to."""
        con, inputs = self.con, self.inputs
        files = [str(facts.path) for facts in inputs.files]
        coded = _CODED.format(rows=f"read_parquet({files})")
        con.execute(f"CREATE OR REPLACE TEMP VIEW coded AS {coded}")
        overdue = overdue_paths(inputs)
        suspects = "SELECT * FROM coded WHERE false"
        if overdue:
            suspects = _CODED.format(rows=f"read_parquet({overdue})")
        rare = _RARE.format(rows=suspects, least=least_overdue(inputs))
        con.execute(f"CREATE OR REPLACE TEMP TABLE rare AS {rare}")
        prepared = _PREPARED.format(
            grace=GRACE_NS,
            lifetimes=_LIFETIMES.format(any="any_value"),
            silent=f"({_SILENT.format(grace=GRACE_NS)})",
        )
        con.execute(f"CREATE OR REPLACE TEMP TABLE prepared AS {prepared}")
        con.execute(f"COPY ({_JUDGED}) TO '{out}' (FORMAT parquet)")
        verdicts = con.execute(
            "SELECT listener, verdict, count(*) FROM read_parquet(?) GROUP BY ALL", [str(out)]
        ).fetchall()
        lateness = con.execute(
            f"SELECT listener, min(lateness_ns), max(lateness_ns), approx_quantile(lateness_ns, {list(QUANTILES)}) "
            "FROM read_parquet(?) WHERE lateness_ns IS NOT NULL GROUP BY listener",
            [str(out)],
        ).fetchall()
        return {row[:2]: row[2] for row in verdicts}, {row[0]: row[1:3] for row in lateness}

    def silent(self, rare: list[tuple[Any, ...]]) -> list[tuple[int, int, int, int | None]]:
        """What `_SILENT` says of the rows *rare*."""
        self._hand_in("rare", ["conn", "k", "t", "idle_ns", "timeout_ms", "due_ns"], rare)
        return self.con.execute(_SILENT.format(grace=GRACE_NS)).fetchall()


class Sparks:
    """Spark, as little of it as the audit can do with: one pass over the files, one
    shuffle, and what is written.

    The few rows that need a second look are collected, and looked at by DuckDB in this
    process. Texts are hashes, as Spark sorts what it aggregates of texts. Of the
    lateness it tells the least and the most, and no quantiles; of the time that was
    judged nothing. The audit tells both.

    Args:
        spark: A session of Spark's, with the settings that the product has found best.
        inputs: The journal.
    """

    def __init__(self, spark: Any, inputs: Inputs) -> None:
        self.spark, self.inputs = spark, inputs

    def audit(self, read: Callable[[list[str]], Any], out: Path) -> tuple[Verdicts, Lateness]:
        """See `Duck.audit`. *read*: the rows of files."""
        spark, inputs = self.spark, self.inputs
        self._coded("coded", read([str(facts.path) for facts in inputs.files]))
        rare: list[tuple[Any, ...]] = []
        if overdue := overdue_paths(inputs):
            self._coded("suspects", read(overdue))
            found = _RARE.format(rows="SELECT * FROM suspects", least=least_overdue(inputs))
            rare = [tuple(row) for row in spark.sql(found).collect()]
        duck = Duck(inputs)
        self._hand_in(
            "silent",
            "conn BIGINT, missed BIGINT, reaped_late BIGINT, spared_lateness_ns BIGINT",
            duck.silent(rare),
        )
        duck.con.close()
        kinds = (
            "run INT, writer BIGINT, first_conn BIGINT, last_conn BIGINT, tick_ns BIGINT, in_full BOOLEAN, "
            "drained BOOLEAN, log_end_ns BIGINT, offset_ns BIGINT"
        )
        self._hand_in("runs", kinds, runs_of(inputs))
        self._hand_in("stalls", "s_run INT, s_from BIGINT, s_to BIGINT", stalls_of(inputs))
        prepared = _PREPARED.format(
            grace=GRACE_NS, lifetimes=_LIFETIMES.format(any="max"), silent="silent"
        )
        spark.sql(prepared).createOrReplaceTempView("prepared")
        spark.sql(_JUDGED).write.mode("overwrite").parquet(str(out))
        spark.read.parquet(str(out)).createOrReplaceTempView("judged")
        rows = spark.sql(
            "SELECT listener, verdict, count(*), min(lateness_ns), max(lateness_ns) FROM judged GROUP BY ALL"
        ).collect()
        lateness: Lateness = {}
        for listener, _, _, least, most in rows:
            if least is not None:
                low, high = lateness.get(listener, (least, most))
                lateness[listener] = min(low, least), max(high, most)
        return {(row[0], row[1]): row[2] for row in rows}, lateness

    def _coded(self, name: str, events: Any) -> None:
        texts = ("listener", "peer", "reason")
        columns = [
            f"if({each} IS NULL, NULL, xxhash64({each})) AS {each}" if each in texts else each
            for each in events.columns
        ]
        events.selectExpr(*columns).createOrReplaceTempView("events")
        self.spark.sql(_CODED.format(rows="events")).createOrReplaceTempView(name)

    def _hand_in(self, table: str, schema: str, rows: list[tuple[Any, ...]]) -> None:
        self.spark.createDataFrame(rows, schema).createOrReplaceTempView(table)
