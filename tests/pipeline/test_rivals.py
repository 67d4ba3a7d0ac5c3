"""DuckDB's SQL written by hand judges, and an obvious count weighs, as the pipeline
does: to the last connection.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import redirect_stdout, suppress
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb")

from benchmarks.pipeline.rivals import Duck
from benchmarks.pipeline.worker import form_of_audit, form_of_connections
from loadgen.cli import main
from loadgen.journals import NAMES
from reaper.journal.schema import STILL_OPEN
from reaper.pipeline.advise import traffic
from reaper.pipeline.advise.traffic import BINS, CANDIDATES
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.audit.words import as_text
from reaper.pipeline.read.frames import read_events
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.read.runs import Timeline
from tests.pipeline.test_audit import counts

ENDS = ("reap", "close_peer", "close_app")


def rows_of(journal: Inputs) -> list[dict[str, Any]]:
    return [row for facts in journal.files for row in pq.read_table(str(facts.path)).to_pylist()]


def is_open(row: dict[str, Any]) -> bool:
    """Whether *row* tells of a connection that it is open, and silent under a
    timeout.
    """
    return bool(row["reason"] == STILL_OPEN and row["timeout_ms"])


def weighed(journal: Inputs) -> list[Any]:
    """Connections, those that lack rows, and what each candidate would have cut, held
    at most and on average.
    """
    timeline = Timeline.of(journal.runs)
    lives = []
    for conn, of in groupby(
        sorted(rows_of(journal), key=lambda row: (row["conn"], row["t"])), lambda row: row["conn"]
    ):
        told = [row for row in of if row["kind"] not in ("drain", "config") or is_open(row)]
        opened = [row["t"] for row in told if row["kind"] == "open"]
        if not opened:
            continue
        (run,) = (
            each
            for each in journal.runs
            if each.writer == conn >> 43 and each.first_conn <= conn <= each.last_conn
        )
        offset = timeline.offset_ns(run)
        silences = [
            (row["idle_ns"], row["t"], row["kind"]) for row in told if row["idle_ns"] is not None
        ]
        spoken = [idle for idle, _, kind in silences if kind == "activity"]
        ended = min([row["t"] for row in told if row["kind"] in ENDS], default=run.log_end_ns)
        reaped = [at - idle for idle, at, kind in silences if kind == "reap"]
        ends = []
        for candidate in (round(1e9 * each) for each in CANDIDATES):
            cut = min(
                [at - idle + candidate for idle, at, _ in silences if idle > candidate],
                default=None,
            )
            ends.append((min(reaped) + candidate if reaped else ended) if cut is None else cut)
        counted = [row["n"] for row in told if row["kind"] in ENDS or is_open(row)]
        short = max((n - len(spoken) for n in counted), default=0)
        longest = max(spoken, default=0)
        lives.append(
            (
                min(opened) + offset,
                ended + offset,
                [end + offset for end in ends],
                max(short, 0),
                longest,
            )
        )
    begin, end = min(life[0] for life in lives), max(life[1] for life in lives)
    log_end = max(run.log_end_ns + timeline.offset_ns(run) for run in journal.runs)
    width = max((log_end - begin) // BINS, 1_000_000)
    births = Counter((life[0] - begin) // width for life in lives)
    peaks, means = [], []
    for i in range(len(CANDIDATES)):
        deaths = Counter((life[2][i] - begin) // width for life in lives)
        level, levels = 0, []
        for at in range((end - begin) // width + 1):
            levels.append(level := level + births[at])
            level -= deaths[at]
        peaks.append(max(levels))
        means.append(sum(levels) * width / max(end - begin, width))
    cut = [sum(life[4] > 1e9 * each for life in lives) for each in CANDIDATES]
    return [len(lives), sum(life[3] for life in lives), cut, peaks, pytest.approx(means)]


Planted = tuple[dict[str, Any], Path]
"""What the load generator says that it planted, and the directory of the journal."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Every fault, by the command that users have, among stalls that excuse what would
    be a violation.
    """
    tmp_path = tmp_path_factory.mktemp("planted")
    faults = tmp_path / "faults.toml"
    faults.write_text("[faults]\n" + "".join(f"{name} = {i + 1}\n" for i, name in enumerate(NAMES)))
    plan = (
        "--side server --writers 2 --events 60k --seed 5 --duration 20m --timeout 30s --stalls 5 "
        "--quiet --json"
    )
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        main(["simulate", "--journal", str(tmp_path), "--faults", str(faults), *plan.split()])
    return json.loads(said.getvalue()), tmp_path / "server"


@pytest.mark.slow
def test_the_audit_tells_what_was_planted(spark: Any, tmp_path: Path, planted: Planted) -> None:
    made, directory = planted
    journal = check([directory])
    summary = audit(spark, journal, None, tmp_path / "out", Settings()).summary
    assert counts(summary) == counts(made)
    assert (summary["connections"], summary["lost_without_a_row"]) == (made["connections"], 0)
    assert summary["stalls"]["count"] > 3
    assert (summary["result"], summary["clock"]["backward_rows"]) == (
        "fail",
        summary["verdicts"]["unknown"],
    )
    assert {entry["verdict"] for entry in summary["offenders"]} == {*NAMES} - {"backward"}
    assert "silence" in next(entry["story"] for entry in summary["offenders"])
    assert "audit: FAIL" in as_text(summary)


@pytest.mark.slow
def test_the_audit_answers_as_sql_written_by_hand(
    spark: Any, tmp_path: Path, planted: Planted
) -> None:
    journal = check([planted[1]])
    audit(spark, journal, None, tmp_path / "out", Settings())
    rival = Duck(journal)
    judged = rival.audit(tmp_path / "connections.parquet")
    assert form_of_audit(*judged) == form_of_connections(tmp_path / "out" / "connections")
    rival.con.close()


@pytest.mark.slow
def test_the_advice_counts_as_an_obvious_count(spark: Any, planted: Planted) -> None:
    journal = check([planted[1]])
    events = read_events(spark, journal)
    (cells,) = traffic.histogram(traffic.silences_of_journal(events)).buckets.values()
    rows = [row for row in rows_of(journal) if row["kind"] not in ("drain", "config", "averted")]
    for which in (0, 1):  # of all silences, those that ended and those that were cut
        idle = [
            row["idle_ns"]
            for row in rows
            if row["idle_ns"] is not None and (row["kind"] != "activity") == which
        ]
        found = accumulate(cells[edge][which] for edge in sorted(cells))
        assert list(found) == [
            sum(each <= round(1e9 * edge) for each in idle) for edge in sorted(cells)
        ]
    (facts,) = traffic.connections(
        traffic.lives_of_journal(spark, events, journal)
    ).listeners.values()
    assert [facts[name] for name in ("connections", "short", "cut", "peak", "mean")] == weighed(
        journal
    )
