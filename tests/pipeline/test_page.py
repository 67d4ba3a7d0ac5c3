"""The report: one file, nothing fetched, and the charts say what the figures say. No
Spark here.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reaper.html import parts
from reaper.html.charts import Axis, Chart
from reaper.html.units import count, percent, seconds
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read.inputs import check
from reaper.pipeline.report.run import Charted, gather, mass_reaps, render
from tests.conftest import Ran
from tests.helpers.pipeline_traffic import WALL, S, journal, play, write
from tests.pipeline.test_losses import ASKED, written

Browse = Callable[..., subprocess.CompletedProcess[str]]
Answers = tuple[dict[str, Any], dict[str, Any], Charted]


@pytest.fixture(scope="module")
def answers(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Audit, advice and charts of a journal that kept the law; two of their tables have
    something to show.
    """
    place = tmp_path_factory.mktemp("page")
    write(place / "server", connections=120, listeners=("<echo>",))
    inputs = check([place / "server"], now_ns=WALL)
    audited = audit(spark, inputs, None, place / "out", Settings())
    held = {
        "listener": "echo",
        "activities": 9,
        "bytes": 3.0,
        "idle_share": 0.9,
        "held_ns": 40 * S,
    }
    charted = replace(gather(audited, inputs), mass=[(10.0, 90, 4)], suspects=[{"conn": 7, **held}])
    return audited.summary, advise(spark, inputs, None, Policy(max_cut=0.5)), charted


@pytest.mark.parametrize(
    ("nbytes", "accused"), [(None, False), (3, True), (300, False)], ids=["unsaid", "few", "many"]
)
def test_only_bytes_that_rows_state_make_a_slow_drip(
    spark: Any, tmp_path: Path, nbytes: int | None, accused: bool
) -> None:
    with journal(tmp_path / "server", 1) as ours:
        log = ours.open(S, 10_000, "echo")
        for number in range(1, 9):
            log.touch((1 + 8 * number) * S, nbytes)
        log.close_peer(70 * S)
        play("open 0 5; touch 1; close_peer 2", S, ours)
    inputs = check([tmp_path / "server"], now_ns=WALL)
    audited = audit(spark, inputs, None, tmp_path / "out", Settings())
    charted = gather(audited, inputs)
    assert [suspect["conn"] for suspect in charted.suspects] == ([log.conn] if accused else [])
    page = render(audited.summary, advise(spark, inputs, None, Policy(max_cut=0.5)), charted)
    assert ("slow drips cannot be told from" in page) == (nbytes is None)


def loaded(page: str) -> list[str]:
    """What in *page* would make a browser load something."""
    return re.findall(
        r"<(?:script|iframe|object|embed|img)|src=|href=(?!\"data:,\")|url\(|@import|https?://",
        page,
    )


def test_the_page_loads_nothing_from_elsewhere(answers: Answers) -> None:
    page = render(*answers)
    assert (loaded(page), page.count("<svg")) == ([], 4)


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "Every connection was closed when its timeout says</h1>"),
        (
            {"result": "fail", "reasons": ["2 early"]},
            "Some connections were not closed when their timeouts say</h1>",
        ),
        ({"result": "inconclusive", "reasons": ["1 file(s) put aside"]}, "Inconclusive"),
    ],
)
def test_the_verdict_is_the_headline(
    answers: Answers, changes: dict[str, Any], headline: str
) -> None:
    summary, advice, charted = answers
    assert f"<h1>{headline}" in render({**summary, **changes}, advice, charted)


@pytest.mark.parametrize("result", ["pass", "fail", "inconclusive"])
def test_a_page_is_red_only_where_something_was_closed_wrongly(
    answers: Answers, result: str
) -> None:
    summary, advice, charted = answers
    page = render({**summary, "result": result, "reasons": ["a reason"]}, advice, charted)
    assert f'<header class="{result}">' in page
    assert f"header.{result}{{" in page


def test_a_report_of_access_logs_shows_the_advice_and_what_was_lost(
    pipeline: Ran, tmp_path: Path
) -> None:
    log, out = written(tmp_path / "log", "haproxy", ASKED), tmp_path / "out"
    status, said, _ = pipeline("report", "--logs", log, "--format", "haproxy", "--out", out)
    page = (out / "report.html").read_text()
    assert (status, said) == (1, f"{out / 'report.html'}: FAIL\n")
    assert loaded(page) == []
    for shown in (
        *("Requests were lost to", ">app/s1</td>", ">4.99 s</td>", "keep_alive that ends it"),
        *("<h2>Advice</h2>", "names no close for silence"),
    ):
        assert shown in page
    assert {path.name for path in out.iterdir()} >= {"advice.json", "losses.json", "report.html"}


def test_a_report_of_a_log_that_names_no_server_has_the_advice_alone(
    pipeline: Ran, tmp_path: Path
) -> None:
    visits = "".join(f"{WALL // S + 9 * i} {i % 3} {i // 3} 0.01\n" for i in range(300))
    (tmp_path / "log").write_text(visits)
    asked = ("--logs", tmp_path / "log", "--format", "columns", "--out", tmp_path / "out")
    status, said, _ = pipeline("report", *asked, "--json")
    page = (tmp_path / "out" / "report.html").read_text()
    assert status == (json.loads(said)["result"] != "pass")
    assert loaded(page) == []
    assert "Requests lost" not in page
    assert "How long silences last" in page


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--logs", "log", "--format", "nginx", "--client", "."), "is not audited"),
        (("--logs", "log"), "--logs needs --format"),
        ((), "one of --events DIR and --logs FILE"),
        (("--events", ".", "--timeout", "5s"), "--timeout is for --logs"),
    ],
)
def test_a_report_is_of_journals_or_of_access_logs(
    pipeline: Ran, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    status, _, error = pipeline("report", *words, "--out", tmp_path / "out")
    assert (status, why in error) == (2, True), error


def test_every_heading_of_the_report_is_another(answers: Answers) -> None:
    found = re.findall(r"<h[123]>(.*?)</h[123]>", render(*answers))
    assert len(found) > 8
    assert len(set(found)) == len(found)


def test_what_the_report_shows_says_close_and_not_reap(answers: Answers) -> None:
    shown = re.sub(r"<style>.*?</style>|<[^>]*>", " ", render(*answers))
    assert re.findall(r"\w* ?\w* \breap(?:s|ed)\b", shown) == []


def test_offenders_and_names_are_shown_and_escaped(answers: Answers) -> None:
    summary, advice, charted = answers
    offenders = [
        {
            "verdict": "early",
            "conn": 99 - i,
            "where": "server web-1",
            "story": f"on <b>echo</b>; reaped at +{i}.5 s",
        }
        for i in range(2)
    ]
    wrong = {**summary, "result": "fail", "reasons": ["1 early: <why>"], "offenders": offenders}
    page = render(wrong, {**advice, "notes": ["a & b"]}, charted)
    shown = (
        "99 and 1 like it",
        "on &lt;b&gt;echo&lt;/b&gt;; reaped",
        "1 early: &lt;why&gt;",
        "&lt;echo&gt;: 1 s",
    )
    assert [words for words in (*shown, "A &amp; b.") if words not in page] == []


def test_a_page_without_data_says_so(answers: Answers) -> None:
    nothing = Charted(1.0, [], 0.1, False, 1.0, {}, {}, {}, [], [], True)
    empty = {**answers[0], "connections": 0, "listeners": {}}
    page = render(empty, {**answers[1], "config": {}, "listeners": {}}, nothing)
    wanted = ("Nothing was closed for silence.", "Nothing happened.", "nothing can be advised")
    assert [words for words in wanted if words not in page] == []


def test_mass_reaps_are_ticks_far_above_the_usual_with_the_storm_that_followed() -> None:
    reaps = {**dict.fromkeys(range(0, 100, 2), 3), 40: 200}
    assert mass_reaps(reaps, {41: 50, 45: 7, 46: 1000}, 0.5) == [(20.0, 200, 57)]
    assert mass_reaps({}, {}, 1.0) == []


def test_axes_say_round_values_within_their_range() -> None:
    assert Axis(0, 2, "x", percent).ticks() == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert Axis(0, 2, "connections").ticks() == [0, 1, 2]
    assert Axis(0.1, 100, "x", percent, log=True).ticks() == pytest.approx(
        [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    )
    assert [seconds(t) for t in Axis(0, 1234, "time", seconds).ticks()] == [
        "0",
        "5 min",
        "10 min",
        "15 min",
        "20 min",
    ]
    assert [seconds(t) for t in Axis(-1800, 0, "time", seconds).ticks()][:2] == [
        "-30 min",
        "-20 min",
    ]
    said = [seconds(t) for t in Axis(1, 7200, "silence", seconds, log=True).ticks()]
    assert said == ["1 s", "5 s", "15 s", "1 min", "5 min", "15 min", "1 h"]
    assert [Axis(1, 100, "x", log=True).place(v) for v in (0, 1, 10, 1e9)] == pytest.approx(
        [0, 0, 0.5, 1]
    )


def test_the_last_word_of_an_axis_is_not_cut_off_at_the_edge() -> None:
    chart = Chart("", Axis(0, 90, "time", seconds), Axis(0, 10, "connections"))
    (last,) = re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="(\w+)">1.5 min<', chart.svg())
    assert last == ("640.0", "end")


def test_values_are_said_as_people_say_them() -> None:
    assert [seconds(t) for t in (0, 0.9998, 0.02, 90, 63, -4000, 3 * 86400, 7200)] == [
        "0", "1 s", "20 ms", "1.5 min", "63 s", "-66.7 min", "3 d", "2 h"
    ]  # fmt: skip
    assert [percent(0.001), count(1_500), count(2e6)] == ["0.1 %", "1.5 k", "2 M"]


def test_a_step_line_holds_each_value_until_the_next() -> None:
    chart = Chart("c", Axis(0, 2, "x"), Axis(0, 1, "y"))
    chart.line([(0, 1), (1, 0.5), (2, 0)], "a", steps=True)
    found = re.search(r'points="([^"]*)"', chart.svg())
    assert found is not None
    ys = [float(point.split(",")[1]) for point in found[1].split()]
    assert len(ys) == 5
    assert ys[0] == ys[1] < ys[2] == ys[3] < ys[4]


@pytest.mark.slow
def test_a_browser_without_a_network_shows_the_charts_and_complains_of_nothing(
    answers: Answers, browse: Browse, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(*answers), encoding="utf-8")
    done = browse(
        page, "--enable-logging=stderr", "--v=0", f"--log-net-log={tmp_path / 'net.json'}"
    )
    assert "Every connection was closed when its timeout says" in done.stdout
    assert done.stdout.count("<polyline") >= 4
    assert "CONSOLE" not in done.stderr
    # The browser itself may try to reach its maker; the page must not: its own loads
    # are tagged with its address.
    net = (tmp_path / "net.json").read_text(encoding="utf-8", errors="replace")
    initiated = [
        line
        for line in net.splitlines()
        if '"initiator":"file://' in line and '"url":"http' in line
    ]
    assert initiated == []


def test_no_text_of_a_log_reaches_a_page_with_what_does_not_print() -> None:
    chosen = "a\x1b[2J\x07b\u202ec<i>"
    drawn = Chart(chosen, Axis(0, 1, chosen, lambda _: chosen), Axis(0, 1, chosen))
    drawn.line([(0, 0)], "a", chosen)
    drawn.bars([(0, 1)], 0.1, "a", chosen)
    drawn.dot(0.5, 0.5, "a", chosen)
    drawn.mark(0.5, chosen)
    pages = [
        parts.document(chosen, [parts.header("fail", chosen, chosen, chosen)]),
        parts.tiles([(chosen, chosen, chosen, "")]),
        parts.card(chosen, chosen, parts.table([chosen], [[chosen]], set())),
        parts.warning(chosen, [chosen]),
        parts.footer([chosen]),
        drawn.svg(),
    ]
    for page in pages:
        assert "a\\x1b[2J\\x07b\\u202ec&lt;i&gt;" in page
        assert not set("\x1b\x07\u202e") & set(page)
