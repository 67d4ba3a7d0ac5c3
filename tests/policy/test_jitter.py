"""No herd: jitter that only lengthens, closes that are bounded, drains that are
spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reaper import InvalidArgument
from reaper.config import ReaperConfig
from reaper.policy.jitter import STEPS, Bucket, Jitter, check_rate
from reaper.trio import open_reaper
from tests.helpers.driver_loop import Loop


@given(
    st.floats(0.01, 1e5),
    st.floats(0, 1),
    st.sampled_from([0.01, 0.1, 0.25, 1.0, 3.0]),
    st.integers(0, 1000),
)
def test_jitter_only_lengthens_by_whole_ticks_and_no_more_than_its_share(
    timeout: float, share: float, tick: float, seed: int
) -> None:
    jitter = Jitter(share, tick, seed)
    drawn = {jitter.later(timeout) for _ in range(100)}
    assert len(drawn) <= STEPS
    for later in drawn:
        assert timeout <= later <= timeout * (1 + share) * (1 + 1e-9) + 1e-9
        assert (later - timeout) / tick == pytest.approx(round((later - timeout) / tick), abs=1e-4)


def test_jitter_spreads_evenly_and_the_same_seed_draws_the_same() -> None:
    one, two, other = (Jitter(0.5, 1.0, seed) for seed in (7, 7, 8))
    draws = [one.later(30) for _ in range(16_000)]
    drawn = Counter(draws)
    assert sorted(drawn) == [float(seconds) for seconds in range(30, 46)]
    assert min(drawn.values()) > 850
    assert [two.later(30) for _ in range(20)] == draws[:20] != [other.later(30) for _ in range(20)]


def test_jitter_of_less_than_a_tick_changes_nothing_and_of_very_many_ticks_is_finite() -> None:
    assert Jitter(0.1, 1.0).later(5.0) == 5.0
    assert {Jitter(0.5, 2.0, seed).later(4.0) for seed in range(20)} == {4.0, 6.0}  # a tick exactly
    assert {Jitter(1.0, 2.0, seed).later(4.0) for seed in range(50)} == {4.0, 6.0, 8.0}
    assert Jitter(0.0, 1.0).later(5000.0) == 5000.0
    assert 1e308 <= Jitter(0.5, 1e-6, seed=1).later(1e308) < float("inf")


@pytest.mark.parametrize(
    ("name", "make", "bad"),
    [
        *(("share", lambda bad: Jitter(bad, 1.0), bad) for bad in (-0.1, 1.1, float("nan"))),
        *(
            ("seed must be an integer or None", lambda bad: Jitter(0.1, 1.0, seed=bad), bad)
            for bad in (list[int](), "7s".split)
        ),
        *(("rate", Bucket, bad) for bad in (0, -1, float("inf"), float("nan"))),
        *(
            ("rate must be", partial(check_rate, "rate"), bad)
            for bad in (0, -1, True, "1", float("inf"), float("nan"))
        ),
    ],
)
def test_what_is_no_share_no_seed_and_no_rate_is_refused_by_name(
    name: str, make: Callable[[Any], object], bad: Any
) -> None:
    with pytest.raises(InvalidArgument, match=name):
        make(bad)


@given(st.floats(0.1, 1e5), st.lists(st.floats(0, 2), min_size=1, max_size=60))
def test_no_stretch_of_time_sees_more_than_its_rate_and_what_the_bucket_holds(
    rate: float, pauses: list[float]
) -> None:
    bucket = Bucket(rate)
    now = 0.0
    total = 0
    for pause in pauses:
        now += pause
        count = bucket.available(now)
        bucket.spend(count)
        total += count
        assert total <= now * rate + max(1.0, rate * Bucket.HOLDS) + 1e-3
        ready = bucket.ready(now)
        assert ready >= now
        assert copy(bucket).available(ready) >= 1


def test_a_bucket_is_ready_when_a_tenth_of_what_it_holds_is_there_or_one() -> None:
    large, small = Bucket(1000.0), Bucket(2.0)
    assert (large.available(0.0), large.ready(0.0), small.available(0.0), small.ready(0.0)) == (
        100,
        0.0,
        1,
        0.0,
    )
    large.spend(100)
    small.spend(1)
    assert [large.ready(now) for now in (0.0, 0.004, 0.02)] == pytest.approx([0.01, 0.01, 0.02])
    assert small.ready(0.0) == pytest.approx(0.5)


def ends(loop: Loop, count: int, idle: float) -> list[float]:
    """When each of *count* connections, all opened at 0.0, is closed."""
    for _ in range(count):
        loop.watch(idle)
    found: list[float] = []
    while left := len(loop.driver.connections):
        loop.run_until(loop.driver.rest())
        found += [loop.time] * (left - len(loop.driver.connections))
    return found


def config(**settings: float) -> ReaperConfig:
    return ReaperConfig.load(
        environ={}, overrides={f"reaper.{name}": value for name, value in settings.items()}
    )


SPREAD = {"config": config(jitter=0.5)}
SPREADS = [({"jitter": 0.5}, True), (SPREAD, True), ({**SPREAD, "jitter": 0.0}, False), ({}, False)]


@pytest.mark.parametrize(("options", "apart"), SPREADS)
def test_connections_opened_together_end_apart_where_argument_or_else_config_says_so(
    options: dict[str, Any], apart: bool
) -> None:
    found = ends(Loop(seed=3, **options), 400, 30)
    assert 30 <= min(found) <= max(found) <= 46
    assert max(Counter(found).values()) < 60 if apart else len(set(found)) == 1


@pytest.mark.parametrize(
    "options", [{"reaps_per_second": 50}, {"config": config(reaps_per_second=50.0)}]
)
def test_no_more_are_closed_per_second_than_allowed_and_their_lateness_is_reported(
    options: dict[str, Any],
) -> None:
    loop = Loop(**options)
    found = ends(loop, 400, 30)
    assert loop.driver.statistics().core.max_lateness == pytest.approx(max(found) - 30, abs=1.0)
    assert loop.driver.statistics().stalls == 0
    lower = loop.driver.statistics().lateness_lower
    in_time = dict(lower.cumulative())[loop.driver.core.tick]
    assert loop.driver.statistics().late == sum(lower.counts) - in_time > 300
    for second in range(30, 40):
        assert sum(second <= end < second + 1 for end in found) <= 55
    assert min(found) >= 30
    assert 37 <= max(found) <= 39.5


def test_a_touch_while_a_reap_waits_for_its_turn_saves_the_connection() -> None:
    loop = Loop(reaps_per_second=1)
    *_, last = [loop.watch(5) for _ in range(21)]
    loop.run_until(10)
    last.touch()
    loop.run_until(24)
    assert not last.reaped


@pytest.mark.trio
async def test_a_drain_is_spread_over_its_window(autojump_clock: trio.testing.MockClock) -> None:
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        start = trio.current_time()
        ends: list[float] = []

        async def idle() -> None:
            with r.watch(None, 300) as connection:
                await trio.sleep_forever()
            assert connection.reason == "drain"
            ends.append(trio.current_time() - start)

        for _ in range(1280):
            nursery.start_soon(idle)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(InvalidArgument, match="window"):
            await r.drain(1, window=-1)
        await r.drain(60, window=20)
        assert 17 <= max(ends) <= 21
        assert max(Counter(int(end) for end in ends).values()) <= 128
