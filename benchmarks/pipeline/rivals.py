"""The pipeline's questions answered by two single-machine engines: DuckDB in SQL and Polars, streaming.

They give the same answers from the same files, or they would prove nothing: one verdict per connection written to
Parquet, with the counts and the lateness; and every cell that the advice is made of. `tests/test_pipeline_rivals.py`
holds them to it. Each is written the fastest way that was found for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from reaper.pipeline.advise.survival import LEAST_NS, width_sql
from reaper.pipeline.read.inputs import Inputs
from reaper.pipeline.read.runs import Facts, Timeline, as_rows
from reaper.pipeline.read.writer_facts import overdue_files, said

GRACE_NS = 250_000_000
TICK_NS = 1_000_000_000
CANDIDATES = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60, 75, 90, 120, 180, 300, 350, 600, 900, 1800, 3600)
BINS = 600
QUANTILES = (0.5, 0.9, 0.99, 0.999)

Cells = dict[tuple[str, int, bool], int]
"""(listener, upper edge of the bucket in ns, whether it ended) -> silences."""


@dataclass(slots=True)
class Judged:
    """What an audit answers, in a form in which engines can be compared."""

    verdicts: dict[tuple[str, str], int]
    """(listener, verdict) -> connections."""
    lateness: dict[str, tuple[int, int]]
    """listener -> least and most lateness of its reaps, ns."""


@dataclass(slots=True)
class Counted:
    """What an advice is made of."""

    cells: Cells
    table: dict[str, dict[str, Any]]
    """listener -> connections, reaps, short, and per candidate cut, peak, mean."""
    span_s: float


def bins(
    heads: dict[str, dict[str, Any]],
    begin: int,
    end: int,
    opened: dict[tuple[str, int], int],
    ended: dict[tuple[str, int, int], int],
) -> dict[str, dict[str, Any]]:
    """*heads* (listener -> facts) with peak and mean of the open connections under each candidate.

    Args:
        heads: Their counts.
        begin, end: What was observed, ns.
        opened: (listener, bin) -> connections.
        ended: (listener, candidate, bin) -> connections.
    """
    width = max((end - begin) // BINS, 1_000_000)
    count = (end - begin) // width + 1
    for listener, facts in heads.items():
        facts["peak"], facts["mean"] = [], []
        for i in range(len(CANDIDATES)):
            level = peak = area = 0
            for at in range(count):
                level += opened.get((listener, at), 0)
                peak = max(peak, level)
                area += level
                level -= ended.get((listener, i, at), 0)
            facts["peak"].append(peak)
            facts["mean"].append(area * width / max(end - begin, width))
    return heads


def paths(files: Iterable[Facts]) -> list[str]:
    """*files*, as the engines take them."""
    return [str(facts.path) for facts in files]


@dataclass(frozen=True, slots=True)
class Known:
    """What the check of the files has found out for an audit, as it has for Spark."""

    drained: pa.Table
    """run."""
    stalls: pa.Table
    """s_run, s_from, s_to."""
    least_ns: int
    """By how much a silence has to be overdue to be looked at."""
    overdue: list[Facts]
    """Files with any such; no other has to be looked through."""

    @classmethod
    def of(cls, inputs: Inputs) -> Known:
        found = said(inputs.files, inputs.runs, Timeline.of(inputs.runs))
        least_ns = min(run.tick_ns or TICK_NS for run in inputs.runs) + GRACE_NS
        rows = [(run, since, to) for run, stalls in found.stalls.items() for since, to in stalls]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        arrays = [pa.array(column, pa.int64()) for column in columns]
        return cls(
            pa.table({"run": pa.array(found.drained, pa.int64())}),
            pa.table(arrays, names=["s_run", "s_from", "s_to"]),
            least_ns,
            overdue_files(inputs.files, least_ns),
        )


# ---- DuckDB ----------------------------------------------------------------------------------------------------------

_LIFETIMES = """
SELECT conn, count(*) FILTER (WHERE k <> 7) AS rows,
  count(*) FILTER (WHERE k = 0) AS opens, count(*) FILTER (WHERE k IN (2, 4, 5)) AS ends,
  count(*) FILTER (WHERE k = 2) AS reaps, count(*) FILTER (WHERE k = 1) AS activities,
  count(*) FILTER (WHERE k = 3) AS averts, count(*) FILTER (WHERE idle_ns < 0) AS backward,
  min(t) FILTER (WHERE k = 0) AS opened, max(timeout_ms) FILTER (WHERE k = 0) AS open_timeout_ms,
  any_value(listener) AS listener, max(peer) AS peer, max(t) AS last_t,
  max_by(timeout_ms, t * 8 + k) AS last_timeout_ms, max(t) FILTER (WHERE k = 1) AS last_activity,
  sum(idle_ns) FILTER (WHERE k = 1)::BIGINT AS activity_idle_ns, sum(nbytes) FILTER (WHERE k = 1)::BIGINT AS nbytes,
  max(idle_ns) FILTER (WHERE k = 1) AS longest_idle_ns,
  min(t) FILTER (WHERE k IN (2, 4, 5)) AS ended, max(idle_ns) FILTER (WHERE k IN (2, 4, 5)) AS end_idle_ns,
  max(timeout_ms) FILTER (WHERE k IN (2, 4, 5)) AS end_timeout_ms,
  max(CASE WHEN k = 4 THEN 1 END) AS by_peer,
  any_value(reason) FILTER (WHERE k IN (2, 4, 5)) AS reason,
  max(due_ns) FILTER (WHERE k = 2) AS due_ns,
  max(n) FILTER (WHERE k IN (2, 4, 5)) AS end_n, max(idle_sum_ns) FILTER (WHERE k IN (2, 4, 5)) AS end_idle_sum_ns
FROM coded WHERE k < 6 OR (k = 7 AND timeout_ms IS NOT NULL) GROUP BY conn
"""

_CODED = """
SELECT *, CASE kind WHEN 'activity' THEN 1 WHEN 'open' THEN 0 WHEN 'reap' THEN 2 WHEN 'averted' THEN 3
    WHEN 'close_peer' THEN 4 WHEN 'close_app' THEN 5 WHEN 'config' THEN 7 ELSE 6 END::TINYINT AS k,
  CASE WHEN timeout_ms > 0 THEN idle_ns - timeout_ms::BIGINT * 1000000 END AS overdue
FROM read_parquet({files})
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
  SELECT l.*, r.run, r.tick_ns, r."full", r.log_end_ns, r.offset_ns, r.tick_ns + {grace} AS limit_ns,
    coalesce(o.stalled, 0) AS run_stalled_ns, coalesce(s.missed, 0) AS missed,
    coalesce(s.reaped_late, 0) AS reaped_late, s.spared_lateness_ns,
    CASE WHEN end_timeout_ms > 0 THEN end_timeout_ms::BIGINT * 1000000 END AS idle_timeout_ns
  FROM ({lifetimes}) l JOIN runs r ON (l.conn >> 43) = r.writer AND l.conn BETWEEN r.first_conn AND r.last_conn
    LEFT JOIN (SELECT s_run, sum(s_to - s_from) AS stalled FROM stalls GROUP BY s_run) o ON o.s_run = r.run
    LEFT JOIN ({silent}) s ON s.conn = l.conn)
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
    WHEN ends = 0 AND (run IN (SELECT run FROM drained) OR ("full" AND log_end_ns
        - greatest(coalesce(last_activity, opened), opened)
        > nullif(last_timeout_ms, 0)::BIGINT * 1000000 + limit_ns + run_stalled_ns))
      THEN 'lost'
    WHEN coalesce(activity_idle_ns, 0) < end_idle_sum_ns OR ended - end_idle_ns - opened - end_idle_sum_ns < 0
        OR ("full" AND (ended - end_idle_ns - opened - end_idle_sum_ns <> 0 OR activities < end_n)) THEN 'missing_touch'
    WHEN ends = 0 THEN 'open_at_end'
    WHEN reaps > 0 THEN 'ok_reaped'
    ELSE 'ok_closed'
  END AS verdict
FROM prepared
"""


@dataclass(slots=True)
class Duck:
    """DuckDB in memory, with as many threads as Spark has."""

    inputs: Inputs
    threads: int = 2
    con: Any = field(init=False)

    def __post_init__(self) -> None:
        import duckdb

        self.con = duckdb.connect(config={"threads": self.threads, "preserve_insertion_order": False})
        self.con.execute(
            'CREATE TABLE runs (run INT, writer BIGINT, first_conn BIGINT, last_conn BIGINT, tick_ns BIGINT, "full" '
            "BOOLEAN, log_end_ns BIGINT, offset_ns BIGINT)"
        )
        self.con.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            as_rows(self.inputs.runs, Timeline.of(self.inputs.runs), TICK_NS),
        )

    def close(self) -> None:
        self.con.close()

    def audit(self, out: Path) -> Judged:
        """A row per connection to *out*, and what it sums up to."""
        con, known = self.con, Known.of(self.inputs)
        con.register("drained", known.drained)
        con.register("stalls", known.stalls)
        con.execute(f"CREATE OR REPLACE TEMP VIEW coded AS {_CODED.format(files=paths(self.inputs.files))}")
        suspects = _CODED.format(files=paths(known.overdue)) if known.overdue else "SELECT * FROM coded WHERE false"
        least = known.least_ns
        con.execute(
            "CREATE OR REPLACE TEMP TABLE rare AS SELECT conn, k, t, idle_ns, timeout_ms, due_ns "
            f"FROM ({suspects}) WHERE k = 3 OR overdue > {least} OR (k = 2 AND t - due_ns > {least})"
        )
        prepared = _PREPARED.format(grace=GRACE_NS, lifetimes=_LIFETIMES, silent=_SILENT.format(grace=GRACE_NS))
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
        return Judged({row[:2]: row[2] for row in verdicts}, {row[0]: row[1:3] for row in lateness})

    def advise(self) -> Counted:
        """From the silences that were logged."""
        return self._count(f"read_parquet({paths(self.inputs.files)})")

    def recompute(self) -> Counted:
        """From silences recomputed: t less the latest activity's t. One pass with a window, kept for both questions."""
        self.con.execute(
            f"""CREATE OR REPLACE TEMP TABLE gaps AS
            SELECT conn, t, kind, listener, timeout_ms, n,
              CASE WHEN kind <> 'open' THEN t - lag(t) OVER (PARTITION BY conn ORDER BY t, n NULLS FIRST) END AS idle_ns
            FROM read_parquet({paths(self.inputs.files)}) WHERE kind NOT IN ('drain', 'config', 'averted')"""
        )
        # An averted look is no activity, but it tells a candidate when it would have struck.
        self.con.execute(
            f"""INSERT INTO gaps SELECT conn, t, kind, listener, timeout_ms, n, idle_ns
            FROM read_parquet({paths(self.inputs.files)}) WHERE kind = 'averted'"""
        )
        return self._count("gaps")

    def _count(self, source: str) -> Counted:
        con = self.con
        cells = con.execute(
            f"""SELECT listener, (idle + width - 1) // width * width AS edge_ns, ended, count(*)
            FROM (SELECT *, ({width_sql("idle")})::BIGINT AS width FROM (
              SELECT listener, greatest(idle_ns, {LEAST_NS}) AS idle, kind = 'activity' AS ended
              FROM {source}
              WHERE kind NOT IN ('drain', 'config', 'averted') AND idle_ns IS NOT NULL
                AND (timeout_ms IS NULL OR timeout_ms > 0)))
            GROUP BY ALL"""
        ).fetchall()
        each = [round(c * 1e9) for c in CANDIDATES]
        cuts = ", ".join(f"min(last + {c}) FILTER (WHERE idle_ns > {c}) AS cut_{i}" for i, c in enumerate(each))
        ends = ", ".join(
            f"coalesce(cut_{i}, reaped_after + {c}, ended, log_end_ns) + offset_ns AS ends_{i}"
            for i, c in enumerate(each)
        )
        con.execute(
            f"""CREATE OR REPLACE TEMP TABLE lives AS
            SELECT listener, opened + offset_ns AS opened, coalesce(ended, log_end_ns) + offset_ns AS ended, longest,
              short, reaped, {ends}
            FROM (
              SELECT conn, min(t) FILTER (WHERE kind = 'open') AS opened, any_value(listener) AS listener,
                max(idle_ns) FILTER (WHERE kind = 'activity') AS longest,
                min(t) FILTER (WHERE is_end) AS ended, min(last) FILTER (WHERE kind = 'reap') AS reaped_after,
                max(n) FILTER (WHERE is_end) - count(*) FILTER (WHERE kind = 'activity') AS short,
                max(CASE WHEN kind = 'reap' THEN 1 END) AS reaped, {cuts}
              FROM (SELECT *, kind IN ('reap', 'close_peer', 'close_app') AS is_end, t - idle_ns AS last FROM {source}
                WHERE kind NOT IN ('drain', 'config'))
              GROUP BY conn HAVING min(t) FILTER (WHERE kind = 'open') IS NOT NULL) l
            JOIN runs r ON (l.conn >> 43) = r.writer AND l.conn BETWEEN r.first_conn AND r.last_conn"""
        )
        cut = ", ".join(f"count(*) FILTER (WHERE longest > {c})" for c in each)
        rows = con.execute(
            f"""SELECT listener, count(*), sum(coalesce(reaped, 0))::BIGINT,
              sum(greatest(coalesce(short, 0), 0))::BIGINT, min(opened), max(ended), {cut}
            FROM lives GROUP BY listener"""
        ).fetchall()
        begin, end = min(row[4] for row in rows), max(row[5] for row in rows)
        width = max((end - begin) // BINS, 1_000_000)
        opened = con.execute(
            f"SELECT listener, floor((opened - {begin}) / {width})::INT AS bin, count(*) FROM lives GROUP BY ALL"
        ).fetchall()
        ended: dict[tuple[str, int, int], int] = {}
        for i in range(len(each)):
            found = con.execute(
                f"SELECT listener, floor((ends_{i} - {begin}) / {width})::INT AS bin, count(*) FROM lives GROUP BY ALL"
            ).fetchall()
            ended |= {(listener, i, at): count for listener, at, count in found}
        heads = {
            row[0]: {"connections": row[1], "reaps": row[2], "short": row[3], "cut": list(row[6:])} for row in rows
        }
        table = bins(heads, begin, end, {row[:2]: row[2] for row in opened}, ended)
        return Counted({row[:3]: row[3] for row in cells}, table, (end - begin) / 1e9)


# ---- Polars ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bear:
    """Polars, lazy and streaming. Its threads are settled before it is imported: POLARS_MAX_THREADS."""

    inputs: Inputs

    def close(self) -> None:
        """Nothing is held."""

    def _events(self, files: list[Facts]) -> Any:
        import polars as pl

        return pl.scan_parquet(paths(files), glob=False).with_columns(pl.col("kind").cast(pl.String))

    def _runs(self) -> Any:
        import polars as pl

        names = ("run", "writer", "first_conn", "last_conn", "tick_ns", "full", "log_end_ns", "offset_ns")
        return pl.DataFrame(
            as_rows(self.inputs.runs, Timeline.of(self.inputs.runs), TICK_NS), schema=names, orient="row"
        ).sort("first_conn")

    def _placed(self, frame: Any) -> Any:
        """*frame* with the columns of its run: the last that begins at or before its conn."""
        import polars as pl

        return (
            frame.sort("conn")
            .join_asof(
                self._runs().lazy(), left_on="conn", right_on="first_conn", strategy="backward", check_sortedness=False
            )
            .filter(pl.col("conn") <= pl.col("last_conn"))
        )

    def audit(self, out: Path) -> Judged:
        """A row per connection to *out*, and what it sums up to."""
        import polars as pl

        c, lit = pl.col, pl.lit
        kind = c("kind")
        is_open, is_activity, is_reap = kind == "open", kind == "activity", kind == "reap"
        is_end, retimed = kind.is_in(["reap", "close_peer", "close_app"]), kind == "config"
        overdue = pl.when(c("timeout_ms") > 0).then(c("idle_ns") - c("timeout_ms").cast(pl.Int64) * 1_000_000)
        known = Known.of(self.inputs)
        least, drained = known.least_ns, known.drained["run"].to_pylist()
        stalls: Any = pl.from_arrow(known.stalls)
        events = self._events(self.inputs.files)

        def of(condition: Any, value: str) -> Any:
            return pl.when(condition).then(c(value))

        lifetimes = (
            events.filter(~kind.is_in(["drain", "config"]) | (retimed & c("timeout_ms").is_not_null()))
            .with_columns(overdue=overdue, o=is_open, a=is_activity, r=is_reap, e=is_end)
            .group_by("conn")
            .agg(
                rows=(~retimed).sum(), opens=c("o").sum(), ends=c("e").sum(), reaps=c("r").sum(),
                activities=c("a").sum(), averts=(kind == "averted").sum(), backward=(c("idle_ns") < 0).sum(),
                opened=of(c("o"), "t").min(), open_timeout_ms=of(c("o"), "timeout_ms").max(),
                listener=c("listener").first(), peer=c("peer").max(), last_t=c("t").max(),
                last_timeout_ms=c("timeout_ms").sort_by("t", retimed).last(),
                last_activity=of(c("a"), "t").max(), activity_idle_ns=of(c("a"), "idle_ns").sum(),
                nbytes=of(c("a"), "nbytes").cast(pl.Int64).sum(), longest_idle_ns=of(c("a"), "idle_ns").max(),
                ended=of(c("e"), "t").min(), end_idle_ns=of(c("e"), "idle_ns").max(),
                end_timeout_ms=of(c("e"), "timeout_ms").max(),
                by_peer=(kind == "close_peer").any(), reason=c("reason").last(),
                due_ns=c("due_ns").max(), end_n=of(c("e"), "n").max(), end_idle_sum_ns=of(c("e"), "idle_sum_ns").max(),
            )
        )  # fmt: skip
        timeout = pl.when(c("end_timeout_ms") > 0).then(c("end_timeout_ms").cast(pl.Int64) * 1_000_000)
        rare = (
            (self._events(known.overdue) if known.overdue else events.clear())
            .with_columns(overdue=overdue)
            .filter((kind == "averted") | (c("overdue") > least) | (is_reap & (c("t") - c("due_ns") > least)))
            .select("conn", "kind", "t", "idle_ns", "timeout_ms", "due_ns")
            .collect()
        )
        silent = self._silences(rare, stalls)
        totals = stalls.group_by(run="s_run").agg(run_stalled_ns=(c("s_to") - c("s_from")).sum())
        prepared = (
            self._placed(lifetimes)
            .join(silent.lazy(), on="conn", how="left")
            .join(totals.lazy(), on="run", how="left")
            .with_columns(c("missed", "reaped_late", "run_stalled_ns").fill_null(0))
            .with_columns(limit_ns=c("tick_ns") + GRACE_NS, idle_timeout_ns=timeout)
            .with_columns(
                lateness_ns=pl.when(c("reaps") > 0).then(
                    pl.coalesce(
                        "spared_lateness_ns",
                        pl.max_horizontal(c("end_idle_ns") - c("idle_timeout_ns"), c("ended") - c("due_ns")),
                    )
                )
            )
        )
        rows_idle = c("activity_idle_ns").fill_null(0)
        unread = c("ended") - c("end_idle_ns") - c("opened") - c("end_idle_sum_ns")
        doubled = (rows_idle > c("end_idle_sum_ns")) | (c("activities") > c("end_n"))
        seen = pl.max_horizontal(pl.coalesce("last_activity", "opened"), "opened")
        due_ms = pl.when(c("last_timeout_ms") > 0).then(c("last_timeout_ms").cast(pl.Int64))
        patience = due_ms * 1_000_000 + c("limit_ns") + c("run_stalled_ns")
        judged = (
            prepared.with_columns(
                verdict=pl.when(c("backward") > 0).then(lit("unknown"))
                .when(c("last_activity") > c("ended")).then(lit("activity_after_end"))
                .when((c("opens") > 1) | (c("ends") > 1) | ((c("opens") == 1) & (c("ends") != 0) & doubled))
                .then(lit("duplicate"))
                .when((c("reaps") > 0) & c("idle_timeout_ns").is_null() & c("due_ns").is_null()).then(lit("unknown"))
                .when((c("reaps") > 0) & ((c("end_idle_ns") < c("idle_timeout_ns")) | (c("ended") < c("due_ns"))
                    | (c("ended") - c("last_activity") < c("idle_timeout_ns")))).then(lit("early"))
                .when(c("missed") > 0).then(lit("missed"))
                .when(c("reaped_late") > 0).then(lit("late"))
                .when(c("opens") == 0).then(lit("unknown"))
                .when((c("ends") == 0) & (c("run").is_in(drained)
                    | (c("full") & (c("log_end_ns") - seen > patience)))).then(lit("lost"))
                .when((rows_idle < c("end_idle_sum_ns")) | (unread < 0)
                    | (c("full") & ((unread != 0) | (c("activities") < c("end_n"))))).then(lit("missing_touch"))
                .when(c("ends") == 0).then(lit("open_at_end"))
                .when(c("reaps") > 0).then(lit("ok_reaped"))
                .otherwise(lit("ok_closed"))
            )
            .drop("writer", "first_conn", "last_conn", strict=False)
        )  # fmt: skip
        judged.sink_parquet(out)
        back = pl.scan_parquet(out)
        verdicts = back.group_by("listener", "verdict").len().collect(engine="streaming").rows()
        lateness = (
            back.filter(c("lateness_ns").is_not_null())
            .group_by("listener")
            .agg(
                least=c("lateness_ns").min(), most=c("lateness_ns").max(),
                **{f"q{i}": c("lateness_ns").quantile(q) for i, q in enumerate(QUANTILES)},
            )
            .collect(engine="streaming")
        )  # fmt: skip
        return Judged({row[:2]: row[2] for row in verdicts}, {row[0]: row[1:3] for row in lateness.rows()})

    def _silences(self, rare: Any, stalls: Any) -> Any:
        """Per connection: silences missed, reaps late, lateness counted from a final check; of *rare* rows."""
        import polars as pl

        c = pl.col
        reaped, since = c("kind") == "reap", c("t") - c("idle_ns")
        silent = self._placed(rare.filter(c("kind") != "averted").lazy()).with_row_index("row").collect()
        checks = (
            silent.join(rare.filter(c("kind") == "averted").select("conn", at="t"), on="conn")
            .filter((c("at") > since) & (c("at") <= c("t")))
            .group_by("row")
            .agg(first=c("at").min(), last=c("at").max())
        )
        timeout = pl.when(c("timeout_ms") > 0).then(c("timeout_ms").cast(pl.Int64) * 1_000_000)
        silent = (
            silent.join(checks, on="row", how="left")
            .with_columns(
                begun=pl.when(reaped).then(pl.coalesce("last", since)).otherwise(since),
                until=pl.when(reaped).then(c("t")).otherwise(pl.coalesce("first", "t")),
                due=pl.when(reaped).then(c("due_ns")),
            )
            .with_columns(
                over=pl.max_horizontal(c("until") - c("begun") - timeout, c("t") - c("due")),
                since=pl.min_horizontal("begun", "due") + c("offset_ns"),
                to=c("until") + c("offset_ns"),
            )
        )
        long = (c("s_to") - c("s_from") > c("tick_ns")) | (c("s_from") <= c("since") + c("tick_ns"))

        def shared(frame: Any, since: Any, name: str) -> Any:
            both = pl.min_horizontal("to", "s_to") - pl.max_horizontal(since, "s_from")
            found = frame.with_columns(both=both).group_by("row").agg(c("both").clip(0).sum().alias(name))
            return silent.join(found, on="row", how="left").with_columns(c(name).fill_null(0))

        stalled = silent.join(stalls, left_on="run", right_on="s_run")
        silent = shared(stalled.filter(long), c("since"), "whole_ns")
        due = pl.max_horizontal("since", c("to") - (c("over") - c("whole_ns")).clip(0))
        stalled = silent.join(stalls, left_on="run", right_on="s_run")
        silent = shared(stalled.filter(~long), due, "rest_ns")
        wrong = c("over") > c("tick_ns") + GRACE_NS + c("whole_ns") + c("rest_ns")
        return silent.group_by("conn").agg(
            missed=(wrong & ~reaped).sum(),
            reaped_late=(wrong & reaped).sum(),
            spared_lateness_ns=pl.when(reaped & c("last").is_not_null()).then(c("over")).max(),
        )

    def advise(self) -> Counted:
        """From the silences that were logged."""
        import polars as pl

        return self._count(self._events(self.inputs.files).filter(~pl.col("kind").is_in(["drain", "config"])))

    def recompute(self) -> Counted:
        """From silences recomputed: t less the latest activity's t."""
        import polars as pl

        kind = pl.col("kind")
        events = self._events(self.inputs.files).filter(~kind.is_in(["drain", "config"]))
        columns = ("conn", "t", "kind", "listener", "timeout_ms", "n", "idle_ns")
        rows = events.filter(kind != "averted").select(columns).sort("conn", "t", "n", nulls_last=False).collect()
        same = pl.col("conn") == pl.col("conn").shift(1)
        idle = pl.when(same & (kind != "open")).then(pl.col("t") - pl.col("t").shift(1))
        gaps = rows.with_columns(idle_ns=idle)
        averted = events.filter(kind == "averted").select(columns).collect()
        return self._count(pl.concat([gaps, averted]).lazy())

    def _count(self, events: Any) -> Counted:
        import polars as pl

        c = pl.col
        kind = c("kind")
        is_end = kind.is_in(["reap", "close_peer", "close_app"])
        cells = (
            events.filter((kind != "averted") & c("idle_ns").is_not_null())
            .filter(c("timeout_ms").is_null() | (c("timeout_ms") > 0))
            .select(
                "listener",
                idle=c("idle_ns").clip(LEAST_NS),
                ended=kind == "activity",
            )
            .with_columns(width=pl.sql_expr(width_sql("idle")).cast(pl.Int64))
            .with_columns(edge_ns=(c("idle") + c("width") - 1) // c("width") * c("width"))
            .group_by("listener", "edge_ns", "ended")
            .len()
            .collect(engine="streaming")
            .rows()
        )
        each = [round(candidate * 1e9) for candidate in CANDIDATES]
        last = c("t") - c("idle_ns")
        lives = (
            self._placed(
                events.with_columns(last=last, a=kind == "activity", e=is_end, r=kind == "reap")
                .group_by("conn")
                .agg(
                    opened=pl.when(kind == "open").then(c("t")).min(), listener=c("listener").first(),
                    longest=pl.when(c("a")).then(c("idle_ns")).max(), ended=pl.when(c("e")).then(c("t")).min(),
                    reaped_after=pl.when(c("r")).then(c("last")).min(),
                    short=pl.when(c("e")).then(c("n")).max() - c("a").sum().cast(pl.Int64), reaped=c("r").any(),
                    **{f"cut_{i}": pl.when(c("idle_ns") > ns).then(c("last")).min() for i, ns in enumerate(each)},
                )
                .filter(c("opened").is_not_null())
            )
            .select(
                "listener", "longest", "short", "reaped", opened=c("opened") + c("offset_ns"),
                ended=pl.coalesce("ended", "log_end_ns") + c("offset_ns"),
                **{
                    f"ends_{i}": pl.coalesce(c(f"cut_{i}") + ns, c("reaped_after") + ns, "ended", "log_end_ns")
                    + c("offset_ns")
                    for i, ns in enumerate(each)
                },
            )
            .collect(engine="streaming")
        )  # fmt: skip
        rows = lives.group_by("listener").agg(
            pl.len(), c("reaped").sum(), c("short").fill_null(0).clip(0).sum(), c("opened").min(), c("ended").max(),
            *((c("longest") > ns).sum().alias(f"cut_{i}") for i, ns in enumerate(each)),
        ).rows()  # fmt: skip
        begin, end = min(row[4] for row in rows), max(row[5] for row in rows)
        width = max((end - begin) // BINS, 1_000_000)

        def binned(column: str) -> dict[tuple[str, int], int]:
            at = ((c(column) - begin) / width).floor().cast(pl.Int32)
            return {row[:2]: row[2] for row in lives.group_by("listener", at.alias("bin")).len().rows()}

        ended = {
            (listener, i, at): count for i in range(len(each)) for (listener, at), count in binned(f"ends_{i}").items()
        }
        heads = {
            row[0]: {"connections": row[1], "reaps": row[2], "short": row[3], "cut": list(row[6:])} for row in rows
        }
        table = bins(heads, begin, end, binned("opened"), ended)
        return Counted({row[:3]: row[3] for row in cells}, table, (end - begin) / 1e9)


ENGINES: dict[str, Callable[[Inputs], Any]] = {"duckdb": Duck, "polars": Bear}
