"""The plan: a pure function of the seed, exact shares, no gap that both ends could be
right about; what is refused.
"""

from __future__ import annotations

import pickle
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen import units
from loadgen.clients import behaviour
from loadgen.drive.client import Pace
from loadgen.judge.histogram import SUBBUCKETS, Histogram
from loadgen.judge.thresholds import parse_threshold
from loadgen.plan import capacity
from loadgen.plan import scenario as scenarios
from loadgen.plan.behaviours import CLOSEST, KINDS, Act, End, draw, key_of
from loadgen.plan.plan import Law, Plan, make_plan, share_out
from loadgen.plan.scenario import from_mix, load_scenario, parse_scenario, shipped
from loadgen.units import BadArgument

LAW = Law(timeout=1.0, tick=0.25)
EVERY_ECHO_KIND = "silent,chatty,bursty,drip,leave,mute,pipelined"


def plan_of(mix: str, connections: int = 200, seed: int = 7, duration: float = 5.0) -> Plan:
    return make_plan(from_mix(mix), connections, LAW, duration, seed, rate=4000)


def test_same_seed_same_plan_and_another_seed_another() -> None:
    first, again, other = (plan_of(EVERY_ECHO_KIND, seed=seed).survey()[1] for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_a_step_is_the_same_in_whatever_order_it_is_asked_for() -> None:
    plan = plan_of("bursty")
    behaviour = plan.behaviour(3)
    forwards = [behaviour.step(plan.key(3), number, 0.5) for number in range(50)]
    backwards = [behaviour.step(plan.key(3), number, 0.5) for number in reversed(range(50))]
    assert forwards == backwards[::-1]


@pytest.mark.parametrize("name", [*KINDS])
@given(seed=st.integers(0, 2**32), connection=st.integers(0, 10**6))
def test_no_judged_gap_is_near_the_timeout(name: str, seed: int, connection: int) -> None:
    behaviour = from_mix(name).clients[0].behaviour(LAW.timeout, horizon=3.0)
    if not behaviour.judged:
        return
    key = key_of(seed, connection, 0)
    offset = 0.0
    for number in range(30):
        step = behaviour.step(key, number, offset)
        if step is None:
            break
        assert 0 <= step.gap <= CLOSEST * LAW.timeout
        offset += step.gap
        if step.act is Act.CLOSE:
            break


@given(seed=st.integers(0, 2**32), connection=st.integers(0, 10**6))
def test_every_planned_reap_is_due_while_the_run_can_see_it(seed: int, connection: int) -> None:
    plan = plan_of("bursty", connections=1, seed=seed)
    outcome = plan.behaviour(0).outcome(key_of(seed, connection, 0))
    if outcome.end is End.REAPED:
        assert outcome.offset is not None
        assert outcome.offset + LAW.tick < plan.duration


def test_bursty_dies_in_its_first_gap_beyond_the_timeout_and_some_do() -> None:
    ends = plan_of("bursty", connections=500).survey()[0]["bursty"]
    assert 0 < ends["reaped"] < 500


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.integers(1, 500), st.integers())
def test_shares_are_exact_to_less_than_one_connection(
    weights: list[float], connections: int, seed: int
) -> None:
    kinds = share_out(weights, connections, seed)
    assert len(kinds) == connections
    for number, weight in enumerate(weights):
        assert abs(kinds.count(number) - weight * connections / sum(weights)) < 1


def test_draws_are_spread_over_the_unit_interval() -> None:
    drawn = [draw(key_of(1, index), 0) for index in range(4000)]
    assert 0 <= min(drawn) < 0.01
    assert 0.99 < max(drawn) < 1
    assert 0.48 < sum(drawn) / len(drawn) < 0.52


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_loads_and_plans(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.description
    plan = make_plan(scenario, 50, LAW, 5.0 if name != "week" else 5000.0, 1, 4000)
    offsets = [plan.connect_offset(index) for index in range(50)]
    assert offsets == sorted(offsets)
    assert sum(ends.get("connections", 0) for ends in plan.survey()[0].values()) == 50


def test_the_scenario_that_is_shown_to_those_who_write_one_is_understood() -> None:
    shown = textwrap.dedent(str(scenarios.__doc__).split("\n\n", 2)[2])
    assert (
        make_plan(
            parse_scenario(tomllib.loads(shown), "shown"), 6, LAW, 5.0, 1, 4000
        ).connect_offset(5)
        == 1.0
    )


def test_waves_arrive_together_and_a_burst_at_once() -> None:
    table = {
        "client": [{"kind": "silent"}],
        "ramp": {"shape": "waves", "waves": 2, "every": "0.5T"},
    }
    waves = make_plan(parse_scenario(table, "t"), 10, LAW, 5.0, 1, 4000)
    assert [waves.connect_offset(index) for index in range(10)] == [0.0] * 5 + [0.5] * 5
    table["ramp"] = {"shape": "burst"}
    burst = make_plan(parse_scenario(table, "t"), 10, LAW, 5.0, 1, 4000)
    assert {burst.connect_offset(index) for index in range(10)} == {0.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("5m", 300),
        ("1h", 3600),
        ("0", 0),
        ("1h30m", 5400),
    ],
)
def test_a_duration_is_read_as_it_is_written(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@given(st.floats(1e-6, 1e6) | st.floats(50, 200))
@example(60.5)
def test_a_printed_duration_is_within_half_a_percent(value: float) -> None:
    printed = units.seconds(value)
    assert units.parse_duration(printed) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("text", "target", "protocol", "path", "loopback"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "http", None, True),
        ("http://127.0.0.1/a/b?c=d", "127.0.0.1:80", "http", "/a/b?c=d", True),
        ("HTTP://[::1]/", "[::1]:80", "http", "/", True),
        ("127.9.9.9:9", "127.9.9.9:9", None, None, True),
        ("192.0.2.1:9", "192.0.2.1:9", None, None, False),
        ("https://localhost", "127.0.0.1:443", "http", None, True),
        ("wss://127.0.0.1:8443/ws", "127.0.0.1:8443", "ws", "/ws", True),
    ],
)
def test_a_target_may_be_a_url(
    text: str, target: str, protocol: str | None, path: str | None, loopback: bool
) -> None:
    found = units.parse_address(text)
    assert (str(found.target), found.protocol, found.path, found.target.loopback) == (
        target,
        protocol,
        path,
        loopback,
    )


def test_shares_fit_descriptors_and_ports_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "raise_descriptor_limit", lambda: 20_000)
    shares = capacity.plan_shares(units.parse_target("127.0.0.1:80"), 100_000)
    assert len(shares) == 6
    assert sum(share.connections for share in shares) == 100_000
    assert max(share.connections for share in shares) <= 19_800
    sources = [source for share in shares for source in share.sources]
    assert len(set(sources)) == len(sources) == 12
    assert all(share.connections <= 12_000 * len(share.sources) for share in shares)


@pytest.mark.parametrize(
    ("target", "connections", "kernel_bytes", "complaint"),
    [
        ("[::1]:80", 100_000, 1, "only IPv6 loopback address"),
        ("127.0.0.1:80", 100_000, 1, "need 6 processes"),
        ("127.0.0.1:80", 1000, 1 << 40, "of memory needed"),
    ],
)
def test_what_the_machine_cannot_hold_is_refused(
    target: str,
    connections: int,
    kernel_bytes: int,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "raise_descriptor_limit", lambda: 20_000)
    monkeypatch.setattr(capacity, "KERNEL_BYTES", kernel_bytes)
    with pytest.raises(BadArgument, match=complaint):
        capacity.plan_shares(units.parse_target(target), connections, processes=2)


DURATIONS = st.lists(st.floats(0, 3600), min_size=1, max_size=200)


def counted(values: list[float]) -> Histogram:
    """A histogram of *values*, in seconds."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(DURATIONS, st.sampled_from([50, 99, 100]))
def test_a_percentile_is_at_most_one_bucket_above_the_exact_one(
    values: list[float], percent: float
) -> None:
    whole, ordered = counted(values), sorted(values)
    exact = ordered[max(int(-(-len(ordered) * percent // 100)) - 1, 0)]
    found = whole.percentile(percent)
    assert found is not None
    assert exact - 1e-9 <= found <= exact * (1 + 1 / SUBBUCKETS) + 2e-6
    assert whole.max == max(values)


@given(DURATIONS, st.lists(st.floats(0, 100)))
def test_merged_histograms_count_as_one(left: list[float], right: list[float]) -> None:
    merged, whole = counted(left), counted(left + right)
    merged.merge(counted(right))
    assert merged.counts == whole.counts
    assert merged.summary() == pytest.approx(whole.summary(), nan_ok=True)


def test_hgrm_is_what_its_tools_read() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    lines = histogram.hgrm().splitlines()
    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    assert lines[-4].split() == ["1000.000", "1.000000000000", "1000", "inf"]
    assert "#[Mean    =      500.500" in lines[-3]


def test_a_threshold_may_be_written_as_k6_has_it_and_on_an_unknown_figure_is_broken() -> None:
    for text, figure in (
        ("latency.p(95)<2s", "p95"),
        ("latency.med<2s", "p50"),
        ("latency.avg<2s", "avg"),
    ):
        assert parse_threshold(text).path == ("latency_s", figure)
    threshold = parse_threshold("lateness.p99<1.1s")
    assert threshold.broken({"lateness_s": {"p99": 1.0}}) is None
    assert "1.2" in str(threshold.broken({"lateness_s": {"p99": 1.2}}))
    assert "unknown" in str(threshold.broken({"lateness_s": {"p99": None}}))


def test_with_a_beat_steps_wait_for_its_next_multiple() -> None:
    pace = Pace(1, 0.25)
    assert [pace.step(due) for due in (10.0, 10.01, 10.25, 10.26)] == [10.0, 10.25, 10.25, 10.5]
    assert Pace(1, 0.0).step(10.01) == 10.01


def test_many_processes_share_a_thousand_looks_per_second() -> None:
    assert Pace(8, 0.0).look(looked=5.0, step=7.0) == 5.0
    assert Pace(50, 0.0).look(looked=5.0, step=7.0) == pytest.approx(5.05)
    assert Pace(50, 0.0).look(looked=5.0, step=5.01) == 5.01  # a step is never late for it


def test_a_beat_is_part_of_the_plan_and_far_from_the_timeout() -> None:
    def plan(beat: float) -> Plan:
        return make_plan(from_mix("drip"), 5, LAW, 5.0, 1, 4000, beat)

    assert plan(0.01).survey()[1] != plan(0.0).survey()[1] == plan_of("drip", 5, seed=1).survey()[1]
    with pytest.raises(
        BadArgument, match=r"--beat 11ms is too long for a timeout of 1s: at most 10ms"
    ):
        plan(0.011)
    clients = [{"kind": "silent", "name": name, "timeout": name} for name in ("2T", "0.5T")]
    with pytest.raises(
        BadArgument, match=r"--beat 6ms is too long for a timeout of 500ms: at most 5ms"
    ):
        make_plan(parse_scenario({"client": clients}, "t"), 5, LAW, 5.0, 1, 4000, 0.006)


def test_a_share_is_never_rounded_to_nothing() -> None:
    assert [units.share(part, 20_000) for part in (0, 1, 2, 20_000)] == [
        "0.00%",
        "0.01%",
        "0.01%",
        "100.00%",
    ]
    assert units.share(1, 20_001) == "under 0.01%"


def test_every_behaviour_can_be_sent_to_the_process_that_plays_it() -> None:
    every = [behaviour(kind) for kind in KINDS]
    assert pickle.loads(pickle.dumps(every)) == every


def test_the_page_has_a_row_with_every_behaviour() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loadgen.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| `.*$", page, re.MULTILINE))))
    assert set(KINDS) - named == set()
