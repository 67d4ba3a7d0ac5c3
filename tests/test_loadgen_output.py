"""What people and other programs get to see: the journal of the client's view, the displays, the page, the picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from test_loadgen_run import ROOMY, faulty_server, run

from loadgen.drive.fleet import CLEAR, Display, progress
from loadgen.judge import page
from loadgen.judge.observation import Counters, Observation
from loadgen.judge.records import How, Record
from loadgen.judge.report import UNKNOWN_SERVER, build_report
from loadgen.judge.words import verdict_lines
from loadgen.plan.plan import Law, Plan, make_plan
from loadgen.plan.scenario import from_mix
from loadgen.simulate import Faults, simulate_core

LAW = Law(timeout=5.0, tick=1.0)


def plan() -> Plan:
    return make_plan(from_mix("silent,chatty"), 40, LAW, 30.0, 1, rate=100.0)


def report(*, broken: bool = False) -> dict[str, Any]:
    observation: Observation = simulate_core(plan(), Faults())
    if broken:
        observation.records.append(
            Record(3, 7, How.FIN, True, False, 1, 0.0, 0.0, 1.0, 1.0, 4.0, 4.0)  # two seconds early
        )
    config = {"target": "<b>", "timeout_s": 5.0, "tick_s": 1.0}
    return build_report(plan(), observation, config, dict(UNKNOWN_SERVER))


LINE = progress(10.0, 10.0, [Counters(established=40, open=30, closed=10)])


@pytest.mark.slow
def test_the_journal_holds_every_connection_and_every_close_the_client_saw(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with faulty_server() as server:
        status, seen = run(
            server.port, "--journal", str(tmp_path), "--mix", "silent,chatty,leave", *ROOMY, connections=90
        )
    assert (status, seen["journal_dropped"]) == (0, 0)
    rows = [row for path in tmp_path.glob("*.parquet") for row in parquet.read_table(path).to_pylist()]
    kinds = [row["kind"] for row in rows]
    assert kinds.count("open") == len({row["peer"] for row in rows if row["kind"] == "open"}) == 90
    assert kinds.count("close_peer") == seen["reaps"]["observed"] == 30
    assert kinds.count("close_app") == 60
    assert min(row["idle_ns"] for row in rows if row["kind"] == "close_peer") >= 1_000_000_000
    assert all(row["idle_ns"] >= 0 for row in rows if row["kind"] == "close_app")


def test_without_a_terminal_there_is_a_line_a_second_and_quiet_is_quiet() -> None:
    stream = io.StringIO()
    display = Display(stream)
    for _ in range(5):
        display.show(LINE)
    Display(stream, quiet=True).show(LINE)
    assert stream.getvalue() == "  10.0s hold         30 open, 40 established, 10 closed, 10s left\n"
    huge = Counters(established=1_000_000, open=1_000_000, closed=502_052)
    assert len(progress(612.3, None, [huge])) < 80


def test_on_a_terminal_the_line_stays_in_its_place_and_leaves_no_trace() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    display = Display(stream)
    display.show(LINE)
    display.show(LINE)
    display.close()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().count("10 closed") == 2
    assert stream.getvalue().endswith(CLEAR)


def test_a_violation_is_reported_as_a_story_and_a_page_escapes_what_it_shows() -> None:
    html = page.page(report(broken=True))
    assert "FAIL" in html
    assert "silent connection 3: connected" in html or "chatty connection 3: connected" in html
    assert "<b>," not in html
    assert "&lt;b&gt;" in html


def test_a_report_counts_the_same_in_every_place() -> None:
    made = report()
    assert made["verdict"] == "pass"
    assert sum(count for _, count in made["lateness_histogram"]["bars"]) == made["reaps"]["observed"] == 20
    assert sum(point["reaped"] for point in made["timeline"]) == 20
    assert made["timeline"][-1]["open"] == made["reaps"]["alive_at_end"] == 20
    assert made["connections"]["peak_open"] == 40
    assert any("PASS" in line for line in verdict_lines(made))


def test_a_page_can_be_drawn_of_a_run_without_reaps() -> None:
    made = report()
    made["lateness_histogram"]["bars"] = []
    made["lateness_s"] = dict.fromkeys(made["lateness_s"])
    assert "<svg" in page.page(made)
