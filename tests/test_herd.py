"""No herd: jitter that only lengthens, closes that are bounded, drains that are spread."""

from __future__ import annotations

from collections import Counter
from copy import copy

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reaper import InvalidArgument
from reaper.config import ReaperConfig
from reaper.policy.jitter import STEPS, Bucket, Jitter
from reaper.trio import open_reaper


@given(st.floats(0.01, 1e5), st.floats(0, 1), st.sampled_from([0.01, 0.1, 0.25, 1.0, 3.0]), st.integers(0, 1000))
def test_jitter_only_lengthens_by_whole_ticks_and_no_more_than_its_share(timeout, share, tick, seed):
    jitter = Jitter(share, tick, seed)
    drawn = {jitter.later(timeout) for _ in range(100)}
    assert len(drawn) <= STEPS
    for later in drawn:
        assert timeout <= later <= timeout * (1 + share) * (1 + 1e-9) + 1e-9
        assert (later - timeout) / tick == pytest.approx(round((later - timeout) / tick), abs=1e-4)


def test_jitter_spreads_evenly_and_the_same_seed_draws_the_same():
    one, two, other = (Jitter(0.5, 1.0, seed) for seed in (7, 7, 8))
    draws = [one.later(30) for _ in range(16_000)]
    drawn = Counter(draws)
    assert sorted(drawn) == [float(seconds) for seconds in range(30, 46)]
    assert min(drawn.values()) > 850
    assert [two.later(30) for _ in range(20)] == draws[:20] != [other.later(30) for _ in range(20)]


def test_jitter_of_less_than_a_tick_changes_nothing_and_of_very_many_ticks_is_finite():
    assert Jitter(0.1, 1.0).later(5.0) == 5.0
    assert Jitter(0.0, 1.0).later(5000.0) == 5000.0
    assert 1e308 <= Jitter(0.5, 1e-6, seed=1).later(1e308) < float("inf")


@pytest.mark.parametrize(
    ("name", "make", "bad"),
    [
        *(("share", lambda bad: Jitter(bad, 1.0), bad) for bad in (-0.1, 1.1, float("nan"))),
        *(("seed must be an integer or None", lambda bad: Jitter(0.1, 1.0, seed=bad), bad) for bad in ([], {})),
        *(("rate", Bucket, bad) for bad in (0, -1, float("inf"), float("nan"))),
    ],
)
def test_what_is_no_share_no_seed_and_no_rate_is_refused_by_name(name, make, bad):
    with pytest.raises(InvalidArgument, match=name):
        make(bad)


@given(st.floats(0.1, 1e5), st.lists(st.floats(0, 2), min_size=1, max_size=60))
def test_no_stretch_of_time_sees_more_than_its_rate_and_what_the_bucket_holds(rate, pauses):
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


async def reaps(r, count: int, idle: float) -> list[float]:
    """When each of *count* connections, all opened now, is reaped: seconds from now."""
    start = trio.current_time()
    ends: list[float] = []

    async def one() -> None:
        with r.watch(None, idle) as connection:
            await trio.sleep_forever()
        assert connection.reaped
        ends.append(trio.current_time() - start)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return ends


def config(**settings: float) -> ReaperConfig:
    return ReaperConfig.load(environ={}, overrides={f"reaper.{name}": value for name, value in settings.items()})


@pytest.mark.trio
@pytest.mark.parametrize("options", [{"jitter": 0.5}, {"config": config(jitter=0.5)}], ids=["argument", "config"])
async def test_connections_opened_together_end_apart(options, autojump_clock):
    async with open_reaper(tick=1.0, seed=3, **options) as r:
        ends = await reaps(r, 400, 30)
    assert 30 <= min(ends) <= max(ends) <= 46
    assert max(Counter(ends).values()) < 60


@pytest.mark.trio
async def test_an_argument_beats_the_config_and_without_either_nothing_is_spread(autojump_clock):
    for options in ({"config": config(jitter=0.5), "jitter": 0.0}, {}):
        async with open_reaper(**options) as r:
            assert len(set(await reaps(r, 50, 20))) == 1


@pytest.mark.trio
@pytest.mark.parametrize("options", [{"reaps_per_second": 50}, {"config": config(reaps_per_second=50.0)}])
async def test_no_more_reaps_per_second_than_allowed_and_their_lateness_is_reported(options, autojump_clock):
    async with open_reaper(tick=1.0, **options) as r:
        ends = await reaps(r, 400, 30)
        assert r.statistics().core.max_lateness == pytest.approx(max(ends) - 30, abs=1.0)
        assert r.statistics().stalls == 0
    for second in range(30, 40):
        assert sum(second <= end < second + 1 for end in ends) <= 55
    assert min(ends) >= 30
    assert 37 <= max(ends) <= 39.5


@pytest.mark.trio
async def test_a_touch_while_a_reap_waits_for_its_turn_saves_the_connection(autojump_clock):
    async with open_reaper(tick=1.0, reaps_per_second=1) as r:

        async def silent() -> None:
            with r.watch(None, 5):
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(silent)
            await trio.testing.wait_all_tasks_blocked()
            with r.watch(None, 5) as last:
                await trio.sleep(10)
                last.touch()
                await trio.sleep(14)
            assert not last.reaped


@pytest.mark.trio
async def test_a_drain_is_spread_over_its_window(autojump_clock):
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
