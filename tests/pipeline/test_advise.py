"""Kaplan-Meier against known truth: censoring misleads quantiles, not us. The
recommendation built on it, and what `advise` makes of journals, and of the log of a
real nginx.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

pytest.importorskip("duckdb")

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pipeline.run import as_another_server
from reaper.__main__ import main as check_file
from reaper.config import ReaperConfig
from reaper.config.lint import lint
from reaper.journal.schema import STILL_OPEN
from reaper.pipeline.advise import traffic
from reaper.pipeline.advise.run import Policy, _recommend, advise, as_toml
from reaper.pipeline.advise.survival import (
    LEAST_NS,
    Beyond,
    Curve,
    Spread,
    kaplan_meier,
    width_sql,
)
from reaper.pipeline.advise.traffic import CANDIDATES, THRESHOLDS, Wanted
from reaper.pipeline.engine import embedded
from reaper.pipeline.read.inputs import Inputs, check
from scripts import tools
from tests.helpers.attach_servers import free_port, running, tool
from tests.helpers.pipeline_traffic import MS, WALL, S, journal, only, write

TRUTH_MEDIAN, TRUTH_SIGMA = 8.0, 1.0


def true_survival(t: float) -> float:
    """P(silence > t) of the log-normal that the samples are drawn from."""
    return 0.5 * math.erfc(math.log(t / TRUTH_MEDIAN) / (TRUTH_SIGMA * math.sqrt(2)))


def sample(n: int, seed: int, timeout: float) -> list[tuple[float, int, int]]:
    """n silences, each cut by *timeout* if it lasts that long, counted."""
    chance = random.Random(seed)
    counts: dict[float, list[int]] = {}
    for _ in range(n):
        silence = chance.lognormvariate(math.log(TRUTH_MEDIAN), TRUTH_SIGMA)
        cell = counts.setdefault(round(min(silence, timeout), 3), [0, 0])
        cell[silence > timeout] += 1
    return [(t, ended, cut) for t, (ended, cut) in counts.items()]


def test_a_worked_example_from_the_textbook_formula() -> None:
    # 10 silences: 2 end at 1 s, 1 cut at 2 s, 3 end at 3 s, 4 cut at 5 s.
    curve = kaplan_meier([(3.0, 3, 0), (1.0, 2, 0), (5.0, 0, 4), (2.0, 0, 1)])
    assert curve.times == [1.0, 3.0]
    assert curve.survival == pytest.approx([8 / 10, 8 / 10 * 4 / 7])
    assert curve.hazard == pytest.approx([2 / (10 * 8), 2 / (10 * 8) + 3 / (7 * 4)])
    assert (curve.total, curve.events, curve.followed) == (10, 5, 5.0)
    assert [curve.at(t) for t in (0.5, 1.0, 2.9)] == pytest.approx([1.0, 0.8, 0.8])


def test_the_interval_of_the_cut_holds_the_truth_and_shrinks_with_more_data() -> None:
    widths = []
    for n in (2_000, 32_000):
        estimate, low, high = kaplan_meier(sample(n, 3, 1e9)).cut(60.0)
        assert low <= estimate <= high
        assert low <= true_survival(60.0) <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2.5


def test_held_is_the_mean_of_the_silences_capped_at_the_timeout() -> None:
    curve = kaplan_meier([(1.0, 1, 0), (3.0, 1, 0), (10.0, 2, 0)])
    assert curve.held(5.0) == pytest.approx((1 + 3 + 5 + 5) / 4)
    assert curve.held(0.5) == 0.5


def test_nothing_seen_gives_no_curve_and_no_recommendation() -> None:
    assert kaplan_meier([]).cut(5.0) == (0.0, 0.0, 1.0)
    for nothing in ([], [(5.0, 0, 100)]):
        assert _recommend(kaplan_meier(nothing), Policy(), 0.0)["timeout_s"] is None


@pytest.fixture(scope="module")
def curve() -> Curve:
    return kaplan_meier(sample(60_000, 11, 1e9))


def test_the_recommended_timeout_keeps_the_policy_in_truth(curve: Curve) -> None:
    advice = _recommend(curve, Policy(max_cut=0.02), 0.0)
    right = next(t for t in range(1, 3600) if true_survival(t) <= 0.02)
    assert right <= advice["timeout_s"] <= right * 1.15
    low, high = advice["interval_s"]
    assert low <= right <= high


@pytest.mark.parametrize(
    ("behind", "least", "most"),
    [("alb", 65, 65), ("nginx", 80, 80), ("gorouter", 95, 95), ("nlb", 0, 345)],
)
def test_a_load_balancer_in_front_has_its_rule(
    curve: Curve, behind: str, least: float, most: float
) -> None:
    if behind == "nlb":
        curve = kaplan_meier([(1.0, 100_000, 0), (9000.0, 10_000, 0)])
    advice = _recommend(curve, Policy(max_cut=0.05, behind=behind), 0.0)
    assert least <= advice["timeout_s"] <= most
    assert any("raised" in reason or "lowered" in reason for reason in advice["because"])


def test_peers_that_never_speak_again_leave_the_advice_where_the_others_end() -> None:
    counts = [(t, n, dead) for t, n, dead in sample(20_000, 9, 1e9) if t < 60] + [
        (300.0, 0, 20_000)
    ]
    advice = _recommend(kaplan_meier(counts), Policy(), 0.0)
    assert (advice["at_least_s"], 50 <= advice["timeout_s"] <= 60) == (None, True)
    assert "dead peers" in advice["because"][-1]
    of_requests = _recommend(kaplan_meier(counts), Policy(), 0.0, tells_ends=False)
    assert of_requests["timeout_s"] == advice["timeout_s"]
    assert "an access log has no line for a close" in of_requests["because"][-1]


def test_an_access_log_that_says_too_little_is_not_said_to_have_shown_closes() -> None:
    counts = [(t, n, dead) for t, n, dead in sample(20_000, 9, 1e9) if t < 10]
    curve = kaplan_meier([*counts, (10.0, 0, 20_000)])
    ended, last = _recommend(curve, Policy(), 0.0, tells_ends=False)["because"]
    assert "an access log has no line for a close" in ended
    assert "lasted longer" not in ended
    assert "say so with --timeout" in last
    assert "--timeout" not in " ".join(_recommend(curve, Policy(), 0.0)["because"])


def test_a_timeout_is_of_hours_where_silences_are() -> None:
    hours = kaplan_meier([(1.0, 100_000, 0), (9000.0, 1000, 0)])
    assert _recommend(hours, Policy(), 0.0)["timeout_s"] == 9000.0


def test_the_interval_of_a_timeout_has_a_width() -> None:
    one_bucket = kaplan_meier([(2.0, 100_000, 0), (3.0, 100_000, 0), (4.0, 3, 0)])
    low, high = _recommend(one_bucket, Policy(), 0.0)["interval_s"]
    assert low < high == 3.0


def test_a_timeout_is_never_below_what_the_log_can_tell(curve: Curve) -> None:
    assert _recommend(curve, Policy(max_cut=0.9), 30.0)["timeout_s"] == 30.0


def drawn(per_connection: list[tuple[int, float, float]], seed: int = 2) -> Curve:
    """The curve of connections: (silences of it, what they last on average, timeout),
    each.
    """
    chance = random.Random(seed)
    silences: list[tuple[int, bool]] = []
    counted = []
    for of, mean, timeout in per_connection:
        mine = [chance.expovariate(1 / mean) for _ in range(of)]
        silences += [(round(min(each, timeout) * 1e9), each <= timeout) for each in mine]
        ended = [each for each in mine if each <= timeout]
        counted.append((len(ended), [sum(each > t for each in ended) for t in THRESHOLDS]))
    beyond = [
        Beyond(t, *(sum(f(n, a[i]) for n, a in counted) for f in SUMS))
        for i, t in enumerate(THRESHOLDS)
    ]
    ns = [n for n, _ in counted]
    spread = Spread(sum(ns), sum(n * n for n in ns), max(ns), beyond)
    return in_cells(silences, spread)


SUMS = (lambda n, a: a, lambda n, a: a * a, lambda n, a: a * n)


def test_silences_of_a_few_clients_make_the_interval_as_wide_as_those_clients_do() -> None:
    """The same number of silences, of many connections and of few that differ."""
    chance = random.Random(5)
    many = drawn([(1, 1 / chance.gammavariate(3, 1 / 30), 75.0) for _ in range(4000)])
    few = drawn([(80, 1 / chance.gammavariate(3, 1 / 30), 75.0) for _ in range(50)])
    widths = []
    for curve in (many, few):
        estimate, low, high = curve.cut(20.0)
        assert low < estimate < high
        widths.append((high - low) / math.sqrt(estimate * (1 - estimate)))
    assert widths[1] > 2 * widths[0]
    effect, freedom = many.spread.effect(20.0)
    assert effect == pytest.approx(1.0, abs=0.01)
    assert 3400 < freedom < 4000


def test_one_client_with_most_of_the_silences_decides_nothing() -> None:
    """It has 99 % of them, of 50 s; half of the others have one beyond that."""
    busy = [(49_990_000_000, True)] * 99_000
    others = [(round(s * 1e9), True) for s in range(10, 110) for _ in range(10)]
    beyond = []
    for t in THRESHOLDS:
        theirs = sum(s > t * 1e9 for s, _ in others)
        mine = 99_000 * (t < 49)
        beyond.append(Beyond(t, mine + theirs, mine**2 + theirs, mine * 99_000 + theirs))
    spread = Spread(100_000, 99_000**2 + 1000, 99_000, beyond)
    advice = _recommend(in_cells([*busy, *others], spread), Policy(max_cut=0.01), 0.0)
    assert (advice["timeout_s"], spread.busiest) == (None, 0.99)
    assert "one of those has 99%" in advice["because"][1]
    alike = _recommend(in_cells([*busy, *others]), Policy(max_cut=0.01), 0.0)
    assert 50 <= alike["timeout_s"] <= 51  # as if each silence were another client's


def test_too_few_silences_to_be_sure_are_no_recommendation(pipeline: Ran, tmp_path: Path) -> None:
    with journal(tmp_path / "server", 1, mode="full") as ours:
        for serial in range(160):
            log = ours.open(serial * S, 75_000, "echo")
            log.touch((serial + 2 + serial % 30) * S)
            log.close_peer((serial + 2 + serial % 30) * S + 100 * MS)
    given = ("advise", "--events", tmp_path / "server", "--out", tmp_path / "out", "--json")
    status, said, _ = pipeline(*given)
    advice = json.loads(said)["listeners"]["echo"]["recommendation"]
    assert (status, advice["timeout_s"]) == (1, None)
    assert "160 silences that ended are too few to be 95 % sure" in advice["because"][0]
    assert not (tmp_path / "out" / "reaper.toml").exists()
    assert 20 <= advice["at_least_s"] <= 31


def test_where_clients_leave_the_last_few_silences_are_no_horizon() -> None:
    followed = [(float(t), 10, 10) for t in range(1, 40)] + [(100.0, 1, 0), (200.0, 0, 1)]
    curve = kaplan_meier(followed)
    assert (curve.followed, curve.horizon) == (200.0, 39.0)
    assert curve.cut(39.0)[0] == 0.0
    plain = kaplan_meier([(float(t), 10, 0) for t in range(1, 40)] + [(100.0, 1, 0)])
    assert plain.horizon == 100.0


def edges(silences: list[int]) -> dict[int, int]:
    """Of each of *silences* the edge that it is counted at, ns."""
    given = (
        f"SELECT idle, greatest(idle, {LEAST_NS}) AS least FROM (SELECT unnest(?::BIGINT[]) AS "
        "idle)"
    )
    found = duckdb.execute(
        "SELECT idle, (least + width - 1) // width * width FROM (SELECT *, "
        f"({width_sql('least')})::BIGINT AS width FROM ({given}))",
        [silences],
    )
    return dict(found.fetchall())


@settings(max_examples=30)
@given(silences=st.lists(st.integers(1, 1 << 60), min_size=1))
def test_a_silence_is_counted_at_an_edge_at_most_one_per_cent_above_it(silences: list[int]) -> None:
    found = edges(silences)
    assert all(
        max(idle, LEAST_NS) <= edge <= max(idle, LEAST_NS) * 1.01 for idle, edge in found.items()
    )
    assert all(idle == edge for idle, edge in edges(list(found.values())).items())


def test_candidates_and_whole_seconds_are_edges() -> None:
    found = edges([round(seconds * 1e9) for seconds in (*CANDIDATES, *range(1, 101), 0.25, 1.5)])
    assert all(idle == edge for idle, edge in found.items())


def in_cells(silences: list[tuple[int, bool]], spread: Spread | None = None) -> Curve:
    """The curve of (ns, whether it ended), by way of buckets as Spark counts them."""
    cells: dict[int, list[int]] = {}
    edge = edges([idle for idle, _ in silences])
    for idle, ended in silences:
        cells.setdefault(edge[idle], [0, 0])[0 if ended else 1] += 1
    return kaplan_meier(((edge / 1e9, ended, cut) for edge, (ended, cut) in cells.items()), spread)


def of_whole_seconds(chance: random.Random, timeout: float) -> tuple[int, bool]:
    """Silences as in a log with a resolution of a second: most of a few seconds, many
    of none.
    """
    silence = int(chance.lognormvariate(0.3, 1.9))
    return round(min(silence, timeout) * 1e9), silence <= timeout


def of_any_length(chance: random.Random, timeout: float) -> tuple[int, bool]:
    silence, leaves = chance.lognormvariate(1.0, 1.5), chance.expovariate(1 / 60)
    least = min(silence, leaves, timeout)
    return round(least * 1e9), silence == least


@pytest.mark.slow  # the first import of lifelines takes seconds
@pytest.mark.parametrize("draw", [of_whole_seconds, of_any_length])
@pytest.mark.parametrize("timeouts", [(75.0,), (5.0, 30.0, 4000.0)], ids=["one timeout", "three"])
def test_at_every_candidate_the_curve_is_that_of_lifelines(draw: Any, timeouts: Any) -> None:
    lifelines = pytest.importorskip("lifelines")
    chance = random.Random(7)
    silences = [draw(chance, timeouts[i % len(timeouts)]) for i in range(20_000)]
    theirs = lifelines.KaplanMeierFitter().fit(
        [max(idle, LEAST_NS) / 1e9 for idle, _ in silences], [ended for _, ended in silences]
    )
    ours = in_cells(silences)
    exact = draw is of_whole_seconds  # else the order within a bucket is lost
    times = [t for t in CANDIDATES if t <= max(timeouts) and theirs.predict(t) > 0]
    intervals = theirs.confidence_interval_
    for t in times:
        assert ours.at(t) == pytest.approx(theirs.predict(t), abs=1e-9 if exact else 3e-4), t
        low, high = intervals[intervals.index <= t].iloc[-1]
        assert ours.interval(t) == pytest.approx((low, high), abs=1e-6 if exact else 5e-4), t


# ---- of journals, and of a real log


def check_config(tmp_path: Path, toml: str) -> None:
    """What is advised must be what `python -m reaper check` accepts."""
    (tmp_path / "reaper.toml").write_text(toml)
    assert check_file(["check", str(tmp_path / "reaper.toml")]) == 0


def exponential(directory: Path, timeouts: tuple[float, ...], mean: float = 3.0) -> None:
    """Silences of *mean* seconds, under each of *timeouts* in turn, of clients that
    leave after four times that.
    """
    chance = random.Random(4)
    with journal(directory, 1, mode="gaps", gap_threshold=0.5) as ours:
        for serial in range(4000):
            t = serial * 10 * MS
            timeout = timeouts[serial % len(timeouts)]
            log = ours.open(t, round(timeout * 1000), "echo")
            while True:
                silence, leaves_after = (
                    chance.expovariate(1 / mean),
                    chance.expovariate(1 / (4 * mean)),
                )
                if min(silence, leaves_after) > timeout:
                    log.reap(t + round(timeout * S), t + round(timeout * S))
                    break
                if leaves_after < silence:
                    log.close_peer(t + round(leaves_after * S))
                    break
                t += round(silence * S)
                log.touch(t, 100)


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [4.0, 10.0, 120.0])
def test_the_timeout_that_cut_the_log_is_no_advice(
    pipeline: Ran, tmp_path: Path, timeout: float
) -> None:
    exponential(
        tmp_path / "server", (timeout,), mean=57 / 6.9
    )  # one in a thousand lasts longer than 57 s
    (tmp_path / "out").mkdir()
    toml = tmp_path / "out" / "reaper.toml"
    toml.write_text("of an earlier answer")
    given = ("advise", "--events", tmp_path / "server", "--out", tmp_path / "out")
    # Where clients leave, few silences are followed for 57 s: too few to be sure of a
    # thousandth.
    ended, text, _ = pipeline(*given, *(["--max-cut", "1%"] if timeout > 57 else []))
    found = json.loads((tmp_path / "out" / "advice.json").read_text())
    advice = found["listeners"]["echo"]["recommendation"]
    if timeout < 57:
        assert (ended, found["result"], toml.exists()) == (1, "inconclusive", False)
        assert (advice["timeout_s"], advice["interval_s"]) == (None, [None, None])
        assert "this log cannot say more: log with a timeout of" in advice["because"][1]
        assert timeout <= advice["at_least_s"] <= timeout * 1.01
        assert f"at least {timeout:g}" in text
        assert "recommended" not in text
    else:
        assert (ended, found["result"], toml.exists(), advice["at_least_s"]) == (
            0,
            "pass",
            True,
            None,
        )
        assert 38 <= advice["timeout_s"] <= 45
        assert advice["interval_s"][0] < advice["interval_s"][1]
        findings = lint(ReaperConfig.load(toml, environ={}))
        assert [
            each for each in findings if each.path == "reaper.tick"
        ] == []  # `check` finds it fine enough


def test_heartbeats_that_are_slower_than_the_timeout_are_not_advised_away(
    pipeline: Ran, tmp_path: Path
) -> None:
    """A greeting of some seconds, then a heartbeat every 30 s, of which none arrives in
    time.
    """
    chance = random.Random(5)
    with journal(tmp_path / "server", 1, mode="gaps") as ours:
        for serial in range(400):
            t = serial * 100 * MS
            log = ours.open(t, 28_000, "echo")
            for _ in range(3):
                t += round(chance.uniform(1.5, 17) * S)
                log.touch(t)
            log.reap(t + 28 * S + 500 * MS, t + 28 * S)
    given = ("advise", "--events", tmp_path / "server", "--out", tmp_path / "out", "--json")
    status, said, _ = pipeline(*given)
    advice = json.loads(said)["listeners"]["echo"]["recommendation"]
    assert (status, advice["timeout_s"], advice["at_least_s"]) == (
        1,
        None,
        28.6,
    )
    assert "25.0% of the silences lasted longer than the" in advice["because"][0]


def unfinished(directory: Path, mode: str) -> list[tuple[float, int, int]]:
    """A log of 40 minutes that ends while its clients are still there. One silence in
    ten lasts 20 to 60 minutes, the others seconds. Returns the silences: (seconds,
    ended, still running).
    """
    chance = random.Random(8)
    over, found = 2400 * S, []
    with journal(directory, 1, mode=mode) as ours:
        for serial in range(300):
            t = serial * 100 * MS
            log = ours.open(t, 7_200_000, "echo")
            while True:
                long = chance.random() < 0.1
                silence = round(chance.uniform(*((1200, 3600) if long else (2, 20))) * S)
                if t + silence > over:
                    found.append(((over - t) / S, 0, 1))
                    break
                found.append((silence / S, 1, 0))
                t += silence
                log.touch(t)
        works = ours.open(S, 7_200_000, "echo")
        works.touch(2 * S)
        works.timeout_ms = 0  # the server works: nobody is silent
        ours.stall(over, S)  # the last row of the log
    return found


@pytest.mark.parametrize("mode", ["full", "gaps"])
def test_silences_that_still_run_when_the_log_ends_count_as_longer_than_it_shows(
    spark: Any, tmp_path: Path, mode: str
) -> None:
    silences = unfinished(tmp_path / "server", mode)
    result = advise(spark, check([tmp_path / "server"], now_ns=WALL), None, Policy())
    entry = result["listeners"]["echo"]
    right = kaplan_meier(silences)
    # Of the one that works: its silence before that, too short to have a row of its own
    # in gaps mode, where the row by which it is open counts it and says that no timeout
    # is in force.
    assert entry["silences"] == len(silences) + 1
    assert entry["silences_ended"] == right.events + 1
    seconds, level, *_ = next(point for point in entry["survival"] if point[0] > 60)
    assert level == pytest.approx(right.at(seconds), abs=0.002)
    assert 0.08 < level < 0.12
    peaks = {row["timeout_s"]: row["mean_open"] for row in entry["trade_off"]}
    assert peaks[30.0] < 0.2 * 300  # with so short a timeout few would still be open


def unended(spark: Any, directory: Path) -> tuple[Any, ...]:
    """Silences of which no end was seen, the longest one in seconds, and how many
    connections would be open under the shortest candidate, on average.
    """
    entry = advise(spark, check([directory], now_ns=WALL), None, Policy())["listeners"]["echo"]
    running = entry["silences"] - entry["silences_ended"]
    return running, entry["longest_seen_s"], entry["trade_off"][0]["mean_open"]


def untold(path: Path) -> None:
    """Take the rows out of the file at *path* by which connections are open."""
    table = pq.read_table(path)
    reasons = pc.fill_null(table["reason"].cast("string"), "")
    pq.write_table(table.filter(pc.not_equal(reasons, STILL_OPEN)), path)


def test_of_a_connection_in_gaps_mode_that_was_active_unseen_no_silence_is_made_up(
    spark: Any, tmp_path: Path
) -> None:
    with journal(tmp_path / "server", 1, mode="gaps") as ours:
        log = ours.open(S, 30_000, "echo")
        log.touch(5 * S)
        ours.stall(600 * S, S)  # ten minutes on, and it was not closed
    path = only(tmp_path / "server")
    assert unended(spark, path)[:2] == (1, pytest.approx(595, rel=0.01))  # as its row says
    untold(path)  # as that of a killed writer: the connection may have spoken since
    assert unended(spark, path)[:2] == (0, pytest.approx(4, rel=0.01))


@pytest.mark.parametrize(("timeout_ms", "running"), [(0, 0)])
def test_a_silence_told_of_before_the_log_ends_is_known_up_to_then(
    spark: Any, tmp_path: Path, timeout_ms: int, running: int
) -> None:
    with journal(tmp_path / "server", 1, mode="gaps", rotate_bytes=1) as ours:
        log, other = ours.open(S, 30_000, "echo"), ours.open(S, 30_000, "echo")
        log.touch(1500 * MS)
        log.timeout_ms = timeout_ms  # 0: the server works
        other.close_peer(20 * S)
        ours.flush()  # the first file tells of it: silent for 18.5 s, or at work
        ours.stall(600 * S, S)
        ours.flush()
    _, second, last = sorted((tmp_path / "server").iterdir())
    for path in (second, last):
        untold(path)
    # The other was silent for 19 s when it left.
    found, longest, held = unended(spark, tmp_path / "server")
    assert (found, longest) == (1 + running, pytest.approx(19, rel=0.01))
    assert held == pytest.approx(0.005 if running else 1, abs=0.01)


@pytest.mark.slow
def test_the_advice_from_a_journal_with_a_known_truth(spark: Any, tmp_path: Path) -> None:
    # A fifth of the fleet runs with a long timeout: without those, nothing beyond 4 s
    # could be known.
    exponential(tmp_path / "server", (60.0, 4.0, 4.0, 4.0, 4.0))
    result = advise(spark, check([tmp_path / "server"], now_ns=WALL), None, Policy(max_cut=0.01))
    entry = result["listeners"]["echo"]
    by_timeout = {row["timeout_s"]: row for row in entry["trade_off"]}
    for timeout in (1.0, 5.0, 10.0):
        low, high = by_timeout[timeout]["silences_cut_interval"]
        truth = 2.718281828 ** (-timeout / 3.0)
        assert low * 0.98 <= truth <= high * 1.02
    right = 3.0 * 4.60517  # where exp(-t/3) is 1 %
    assert right * 0.93 <= entry["recommendation"]["timeout_s"] <= right * 1.3
    assert by_timeout[1.0]["peak_open"] < by_timeout[10.0]["peak_open"]
    assert by_timeout[1.0]["connections_cut"] > by_timeout[10.0]["connections_cut"] > 0
    check_config(tmp_path, as_toml(result))


NGINX = """log_format reaper '$msec $connection $connection_requests $request_time';
keepalive_timeout 4s;
server {{ access_log "{log}" reaper; listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}"""


@pytest.mark.slow
def test_a_real_nginx_under_the_load_generator_is_advised_from_the_log_it_wrote(
    spark: Any, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "reaper.log"
    tool("nginx")
    with running(*tools.nginx(tmp_path, NGINX.format(log=log, port=port)), port=port):
        run = [
            sys.executable,
            "-m",
            "loadgen",
            "run",
            "--target",
            f"127.0.0.1:{port}",
            "--protocol",
            "http",
        ]
        run += [
            "--connections",
            "40",
            "--timeout",
            "4s",
            "--mix",
            "silent=25,chatty=75",
            "--duration",
            "8s",
            "--quiet",
        ]
        subprocess.run(
            [*run, "--seed", "7"], capture_output=True, check=False, timeout=60
        )  # its verdict is not ours
    summary = advise(spark, Inputs(), ("nginx", [log], 4 * S), Policy(max_cut=0.05))
    (entry,) = summary["listeners"].values()
    assert summary["quarantined"] == []
    assert entry["silences"] == len(log.read_text().splitlines())
    assert (
        30 <= entry["connections"] <= 41
    )  # one connection was ours, to see that it listens, and sent nothing
    assert entry["silences_ended"] > 60
    assert 1.0 <= entry["recommendation"]["timeout_s"] <= 4.0
    check_config(tmp_path, as_toml(summary))


def all_of(*_: object) -> Wanted:
    """Everything, as if no curve were known."""
    return Wanted()


def test_what_does_not_matter_is_not_counted_and_the_answer_is_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal(tmp_path / "running", 1) as ours:  # for far longer than any that ended
        for serial in range(40):
            log = ours.open(serial * S, 7_200_000, "echo")
            log.touch((serial + 3) * S)
        ours.stall(900 * S, S)
    for mode in ("full", "gaps"):
        unfinished(tmp_path / mode, mode)
        write(tmp_path / f"{mode} written", connections=60, mode=mode)
    for where in ("running", "full", "gaps", "full written", "gaps written"):
        inputs = check([tmp_path / where], now_ns=WALL)
        few = advise(spark, inputs, None, Policy(max_cut=0.05))
        with monkeypatch.context() as patch:
            patch.setattr(Wanted, "of", all_of)
            assert advise(spark, inputs, None, Policy(max_cut=0.05)) == few


def test_candidates_go_up_to_the_first_that_is_beyond_what_was_seen() -> None:
    buckets = {1: {4.0: (5, 0), 8.0: (3, 1)}}
    wanted = Wanted.of(buckets, 3.0)
    assert wanted.candidates == (3.0, 4.0, 5.0, 7.0, 10.0)
    assert (wanted.below, wanted.counted) == ((0.5, 1.0, 2.0), (5.0,))
    assert wanted.reaches(9.9)
    assert not wanted.reaches(10.0)
    assert Wanted.of({}, 0.0).candidates == (1.0,)
    assert Wanted.of(buckets, 7200.0).candidates == CANDIDATES[-1:]


def test_what_no_silence_tells_apart_is_asked_once() -> None:
    wanted = Wanted((1.0, 2.0, 3.0, 4.0, 5.0), (0.5, 2.0), (), lengths=(0.001, 3.0, 4.0))
    # A silence of 3 s is not longer than 3 s.
    once = {0.5: 0.5, 1.0: 0.5, 2.0: 0.5, 3.0: 3.0, 4.0: None, 5.0: None}
    assert wanted.steps() == once
    each = {step: step for step in once}
    assert wanted.steps(known=False) == replace(wanted, lengths=None).steps() == each


def silent_over_files(directory: Path) -> None:
    """Connections that are silent for 20 s while a file ends. In the second file they
    are back, and in the third they end.
    """
    with journal(directory, 1, rotate_bytes=1) as ours:
        logs = [ours.open(number * MS, 60_000, "echo") for number in range(40)]
        ours.config(15 * S, "still here")
        ours.flush()
        for log in logs:
            log.touch(20 * S)
        ours.flush()
        for log in logs:
            log.touch(21 * S)
            log.close_peer(22 * S)


def test_of_silences_that_are_over_the_row_that_ends_each_is_enough(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows by which connections are open tell of them, too, and need not be read."""
    silent_over_files(tmp_path / "over files")
    with journal(tmp_path / "drained", 1, rotate_bytes=1) as ours:  # and has no end of theirs
        for number in range(40):
            ours.open(number * MS, 60_000, "echo").touch(2 * S)
        ours.config(30 * S, "still here")
        ours.flush()
        ours.drain(50 * S)
    for mode in ("full", "gaps"):
        unfinished(tmp_path / mode, mode)
        write(tmp_path / f"{mode} written", connections=60, mode=mode)
    worlds = ("over files", "drained", "full", "gaps", "full written", "gaps written")
    for where in worlds:
        inputs = check([tmp_path / where], now_ns=WALL)
        few = advise(spark, inputs, None, Policy(max_cut=0.05))
        with monkeypatch.context() as patch:
            patch.setattr(traffic, "_is_plain", lambda _: False)
            assert advise(spark, inputs, None, Policy(max_cut=0.05)) == few


def test_where_the_row_that_ends_a_silence_is_missing_another_tells_of_it(
    spark: Any, tmp_path: Path
) -> None:
    silent_over_files(tmp_path)
    sorted(tmp_path.glob("*.parquet"))[1].unlink()
    summary = advise(spark, check([tmp_path], now_ns=WALL), None, Policy(max_cut=0.05))
    assert summary["holes"]
    # A timeout of 1 s is over after a twentieth of the log, by the first file alone.
    least = summary["listeners"]["echo"]["trade_off"][0]
    assert (least["timeout_s"], least["peak_open"]) == (1.0, 40)
    assert least["mean_open"] < 0.1 * 40


def test_writers_that_are_added_up_one_after_the_other_say_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(tmp_path, "gaps")
    for further in (1, 2, 5):
        as_another_server(min(tmp_path.glob("*.parquet")), further)
    inputs = check([tmp_path], now_ns=WALL)
    files = len(inputs.files)
    together = advise(spark, inputs, None, Policy(max_cut=0.05))
    for most, portions in ((1, 4), (2 * inputs.files[0].rows, 2)):
        found = traffic._portions(inputs, most)
        assert (len(found), sum(map(len, found))) == (portions, files)
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "PORTION", most)
            assert advise(spark, inputs, None, Policy(max_cut=0.05)) == together


def test_a_connection_may_be_older_than_the_log_by_any_time(spark: Any, tmp_path: Path) -> None:
    """A timeout would have closed it long before the first opening that is known."""
    year = 365 * 24 * 3600 * S
    with journal(tmp_path, 1, rotate_bytes=1) as ours:
        old = ours.open(0, 60_000, "echo")
        ours.flush()
        for number in range(40):
            log = ours.open(year + number * MS, 60_000, "echo")
            log.touch(year + 50 * MS)
            log.close_peer(year + 60 * MS)
        old.close_peer(year + 70 * MS)
    min(tmp_path.glob("*.parquet")).unlink()
    inputs = check([tmp_path], now_ns=WALL + 2 * year)
    summary = advise(spark, inputs, None, Policy(max_cut=0.05))
    assert summary["connections_without_opening"] == 1
    assert summary["listeners"]["echo"]["connections"] == 40


def test_by_a_silence_in_which_the_server_works_candidates_differ_too(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts for nothing, but a timeout would have cut it."""
    with journal(tmp_path, 1) as ours:
        for number in range(40):
            log = ours.open(number * MS, 60_000, "echo")
            log.touch((42 if number % 2 else 2) * S)
            log._timeout_ms = 0
            log.close_peer(54 * S if number % 2 else 14 * S)
    inputs = check([tmp_path], now_ns=WALL)
    few = advise(spark, inputs, None, Policy(max_cut=0.05))
    with monkeypatch.context() as patch:
        patch.setattr(Wanted, "of", all_of)
        assert advise(spark, inputs, None, Policy(max_cut=0.05)) == few


def test_no_words_of_the_answer_say_what_its_table_contradicts(spark: Any, tmp_path: Path) -> None:
    """The table stands below the notes, and judges each of its candidates."""
    with journal(tmp_path / "journal", 1, mode="gaps") as ours:
        for number in range(200):
            log = ours.open((1 + number) * S, 30_000)
            log.touch((5 + number + number % 20) * S)
            log.close_peer((6 + number + number % 20) * S)
        ours.config(500 * S, "still here")
    found = advise(spark, check([tmp_path / "journal"], now_ns=WALL), None, Policy(0.1))
    assert [*found["listeners"]] == ["(unnamed)"]
    (note,) = (note for note in found["notes"] if "one by one" in note)
    assert note.startswith(
        "silences up to 1 s were not written one by one: no timeout shorter than that is judged"
    )


@pytest.mark.parametrize("apart", [True, False])
def test_where_those_that_were_cut_had_longer_silences_the_answer_says_so(
    spark: Any, tmp_path: Path, apart: bool
) -> None:
    """Half of the clients are slow, and a timeout of 30 s cuts these for good."""
    chance = random.Random(5)
    with journal(tmp_path / "journal", 1) as ours:
        for number in range(400):
            t, slow = (1 + number) * S, number % 2 == 0
            log = ours.open(t, 30_000, "echo")
            for _ in range(10):
                t += round(chance.uniform(*((8, 28) if slow and apart else (1, 20))) * S)
                log.touch(t)
            if slow:
                log.reap(t + 30 * S, t + 30 * S)
            else:
                log.close_peer(t + S)
        ours.config(1500 * S, "still here")
    found = advise(spark, check([tmp_path / "journal"], now_ns=WALL), None, Policy(0.1))
    because = found["listeners"]["echo"]["recommendation"]["because"]
    told = [each for each in because if "had longer silences before" in each]
    assert bool(told) is apart
    if apart:
        assert told[0].startswith("clients that were cut had longer silences before: ")
        assert "beyond 20 s, and 0.0% of the others'" in told[0]
