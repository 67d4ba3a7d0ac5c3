"""What people and other programs get to see: the journal of the client's view, the
displays, the page, the picture.
"""

from __future__ import annotations

import io
import re
from html import unescape
from pathlib import Path

import pytest

from loadgen.drive.fleet import CLEAR, Display, progress
from loadgen.judge import page
from loadgen.judge.observation import Counters, Observation, Outcome
from loadgen.judge.page import MOST_BARS, _joined
from loadgen.judge.records import How, Record, RecordTable
from loadgen.judge.report import UNKNOWN_SERVER, Report, build_report
from loadgen.judge.words import drawn, headline, verdict_lines
from loadgen.plan.plan import Law, Plan, make_plan
from loadgen.plan.scenario import from_mix
from loadgen.simulate import Faults, simulate_core
from tests.loadgen.test_run import ROOMY, faulty_server, passes, run

PLAN = make_plan(from_mix("silent,chatty"), 40, Law(timeout=0.5, tick=0.5), 2.0, 1, rate=4000.0)
SILENT = [index for index in range(40) if PLAN.behaviour(index).kind == "silent"]


def report_of(seen: Observation | None = None, *records: Record, plan: Plan = PLAN) -> Report:
    """The report on what was *seen* (a right server), and *records* besides."""
    seen = seen or simulate_core(plan, Faults())
    for record in records:
        seen.records.append(record)
    return build_report(plan, seen, {"target": "<b>"}, dict(UNKNOWN_SERVER))


def ended(connection: int, at: float, how: How = How.FIN) -> Record:
    """A connection that was last heard at 100 s, and ended *at*."""
    final = connection in SILENT
    return Record(connection, 7, how, final, 0, 1, 100.0, 100.0, 100.0, 100.0, at, at)


LINE = progress(10.0, 10.0, [Counters(established=40, open=30, closed=10)])


@pytest.mark.slow
def test_the_journal_holds_every_connection_and_every_close_the_client_saw(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with faulty_server() as server:
        status, seen = run(
            server.port,
            "--journal",
            str(tmp_path),
            "--mix",
            "silent,chatty,leave",
            *ROOMY,
            connections=90,
        )
    passes(status, seen)
    assert seen["journal_dropped"] == 0
    rows = [
        row for path in tmp_path.glob("*.parquet") for row in parquet.read_table(path).to_pylist()
    ]
    kinds = [row["kind"] for row in rows]
    assert kinds.count("open") == len({row["peer"] for row in rows if row["kind"] == "open"}) == 90
    # A client that this machine kept from speaking in time is closed rightly. What it
    # says too late may be the last that its journal has before the close.
    own_lag = seen["reaps"]["own_lag"]
    assert kinds.count("close_peer") == seen["reaps"]["observed"] == 30 + own_lag
    assert kinds.count("close_app") == 60 - own_lag
    idle = sorted(row["idle_ns"] for row in rows if row["kind"] == "close_peer")
    assert idle[own_lag] >= 1_000_000_000
    assert all(row["idle_ns"] >= 0 for row in rows if row["kind"] == "close_app")


def test_without_a_terminal_there_is_a_line_a_second_and_quiet_is_quiet() -> None:
    stream = io.StringIO()
    display = Display(stream)
    for _ in range(5):
        display.show(LINE)
    Display(stream, quiet=True).show(LINE)
    assert (
        stream.getvalue() == "  10.0s hold         30 open, 40 established, 10 closed, 10s left\n"
    )
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
    html = page.page(report_of(None, ended(SILENT[3], 100.1)))
    assert "FAIL" in html
    assert f"silent connection {SILENT[3]}: connected" in html
    assert "<b>," not in html
    assert "&lt;b&gt;" in html


def headings(html: str) -> list[str]:
    """What stands above each part of a page."""
    return re.findall(r"<h[123]>(.*?)</h[123]>", html)


def test_a_page_draws_the_lateness_once_and_in_no_line_that_a_phone_would_clip() -> None:
    html = page.page(report_of())
    assert (html.count("<svg"), html.count("█"), html.count("<pre")) == (3, 0, 0)
    assert '<td data-head="">lateness</td>' in html


def test_every_heading_of_a_page_is_another(failed: Report) -> None:
    found = headings(page.page(failed))
    assert len(found) > 7
    assert len(set(found)) == len(found)


def test_a_page_says_why_a_run_did_not_pass(failed: Report) -> None:
    html = page.page(failed)
    assert failed["reasons"]
    listed = re.findall("<li>(.*?)</li>", html.partition("<h2>Why</h2>")[2])
    assert [unescape(line) for line in listed] == failed["reasons"]
    assert "<h2>Why</h2>" not in page.page(report_of())


def test_a_report_counts_the_same_in_every_place_and_can_be_drawn_without_reaps() -> None:
    made = report_of()
    assert made["verdict"] == "pass"
    assert (
        sum(count for _, count in made["lateness_histogram"]["bars"])
        == made["reaps"]["observed"]
        == 20
    )
    assert sum(point["reaped"] for point in made["timeline"]) == 20
    assert made["timeline"][-1]["open"] == made["reaps"]["alive_at_end"] == 20
    assert made["connections"]["peak_open"] == 40
    assert any("PASS" in line for line in verdict_lines(made))
    made["lateness_histogram"]["bars"] = []
    made["lateness_s"] = dict.fromkeys(made["lateness_s"])
    assert "<svg" in page.page(made)


def test_an_early_close_within_a_millisecond_suggests_the_tolerance() -> None:
    report = report_of(None, ended(SILENT[0], 100.4994))
    assert report["verdict"] == "fail"
    assert "by at most 600us" in report["reasons"][0]
    assert "--tolerance 1ms" in report["reasons"][0]
    earlier = report_of(None, ended(SILENT[0], 100.4994), ended(SILENT[0], 100.4))
    assert "tolerance" not in earlier["reasons"][0]


@pytest.fixture
def failed() -> Report:
    """A report on a server that closed three of its connections too early."""
    return report_of(None, *(ended(connection, 100.1) for connection in range(3)))


def test_the_headline_of_a_failed_run_says_what_failed(failed: Report) -> None:
    (line,) = [line for line in verdict_lines(failed) if line.startswith("verdict")]
    assert line.startswith("verdict      FAIL: ")
    assert {word.strip(",") for word in line.split()[2:]} >= {"early", "false"}


def test_no_line_of_a_failed_run_is_wider_than_a_terminal(failed: Report) -> None:
    assert max(map(len, verdict_lines(failed))) < 80
    failed["reaps"] |= dict.fromkeys(
        ("expected", "observed", "early", "late", "missed", "false"), 1_234_567
    )
    failed["connections"]["failed"] = 1_234_567
    assert max(map(len, verdict_lines(failed))) < 80
    assert headline(failed).endswith("1,234,567 false, 1,234,567 not established")


@pytest.mark.parametrize(("more", "verdict"), [(0, "pass"), (1, "inconclusive")])
def test_a_run_whose_stalls_may_explain_every_missing_close_does_not_pass(
    more: int, verdict: str
) -> None:
    seen = simulate_core(PLAN, Faults())
    seen.records = RecordTable()
    missing = len(SILENT) + more  # of a hundred times as many
    ends = [How.OPEN] * missing + [How.FIN] * (100 * len(SILENT) - missing)
    report = report_of(
        seen, *(ended(index, 100.6, how) for index, how in zip(100 * SILENT, ends, strict=True))
    )
    assert report["reaps"]["undecided"] == missing
    assert report["verdict"] == verdict
    for part in (
        f'<header class="{verdict}"',
        f"header.{verdict}{{",
    ):  # red is for a server that broke the law
        assert part in page.page(report)
    for reason in report["reasons"]:
        assert reason.startswith(f"{missing:,} connections undecided: ")
        assert "more --patience" in reason


def test_the_headline_of_a_run_that_was_ended_early_says_why() -> None:
    outcome = Outcome(counters=Counters(failed=8))
    report = report_of(Observation(0.0, 1.0, 2.0, [outcome], because="no route to there: is it?"))
    assert headline(report) == "FAIL: no route to there"
    report["interrupted"] = True
    assert headline(report) == "FAIL: 8 not established"


def test_many_lost_processes_are_one_headline_and_a_few_reasons() -> None:
    lost = [
        f"process {number} of 9 ended by itself: its 4 connections were not judged"
        for number in range(1, 9)
    ]
    report = report_of(Observation(0.0, 1.0, 2.0, [Outcome() for _ in range(9)], lost=lost))
    assert headline(report) == "INCONCLUSIVE: 8 of 9 processes were lost"
    lines = verdict_lines(report)
    assert sum("ended by itself" in line for line in lines) == 5
    assert lines[-1].strip() == "and 3 more reasons, in the report"
    assert len(report["reasons"]) == 8


def test_the_lateness_is_drawn_in_at_most_ten_bars_that_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    lines = drawn({"width_s": 0.02, "bars": [[0.02 * number, number] for number in range(1, 31)]})
    assert len(lines) == 10
    assert max(map(len, lines)) < 70
    assert [int(line.split()[2]) for line in lines] == [6 + 9 * number for number in range(10)]
    assert drawn({"width_s": 0.02, "bars": []}) == []


@pytest.mark.parametrize("farthest", [60, 3000])
def test_the_picture_of_lateness_shows_every_close_in_bars_that_fit(farthest: int) -> None:
    bars = [[0.02 * number, 1] for number in range(-3, farthest)]
    width, joined = _joined(0.02, bars)
    assert sum(number for _, number in joined) == len(bars)
    assert len(joined) <= MOST_BARS + 2
    assert joined[0][0] <= bars[0][0] + 1e-9
    assert joined[-1][0] + width >= bars[-1][0]
    assert (width == 0.02) == (farthest == 60)
    assert _joined(0.02, []) == (0.02, [])
