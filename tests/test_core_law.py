"""The law of time by brute force: wakes with jitter, stalls, slices; a plain list of instants is the judge."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reaper import IdleReaper


class World:
    """A server's clock, its peers and its loop. `touches` is what really happened, in real instants."""

    def __init__(self, seed: int, *, tick: float, wheel_size: int, epochs_per_tick: int = 1) -> None:
        self.random = random.Random(seed)
        self.core = IdleReaper(tick, wheel_size, epochs_per_tick=epochs_per_tick)
        self.tick = tick
        self.last: dict[int, float] = {}
        self.timeout: dict[int, float] = {}
        self.leases = {}
        self.reaped: dict[int, tuple[float, float]] = {}

    def register(self, uid: int, timeout: float, now: float) -> None:
        self.leases[uid] = self.core.register(uid, timeout=timeout, now=now)
        self.last[uid], self.timeout[uid] = now, timeout

    def touch(self, uid: int, now: float) -> None:
        if uid not in self.reaped:
            self.leases[uid].touch()
            self.last[uid] = now

    def judge(self, now: float, limit: int | None) -> None:
        for expiry in self.core.advance(now, limit=limit):
            assert expiry.uid not in self.reaped, "exactly once"
            assert now >= self.last[expiry.uid] + self.timeout[expiry.uid], "never early"
            assert expiry.lateness >= 0.0
            self.reaped[expiry.uid] = (now, expiry.lateness)


@pytest.mark.parametrize("epochs_per_tick", [1, 2, 3])
@pytest.mark.parametrize("jitter", [0.0, 0.003, 0.9, 5.0])
def test_never_early_and_at_most_one_tick_plus_the_loops_own_delay_late(jitter, epochs_per_tick):
    """Lateness counts from the real instant of the last byte, not from the epoch."""
    tick = 1.0
    world = World(seed=7, tick=tick, wheel_size=4, epochs_per_tick=epochs_per_tick)
    now = 100.0
    for uid in range(60):
        world.register(uid, timeout=world.random.choice([0.4, 3.0, 5.5, 30.0, 300.0]), now=now)
    worst = 0.0
    woke_late = [0.0]
    while (wake := world.core.next_wakeup()) is not None:
        late = world.random.random() * jitter
        woke_late.append(late)
        # Bytes arrive and are read at any instant up to the wake, in order.
        instants = sorted(now + world.random.random() * max(wake - now, 0.0) for _ in range(4))
        for instant in instants:
            if now < 400.0:
                world.touch(world.random.randrange(60), instant)
        now = max(now, wake) + late
        before = set(world.reaped)
        world.judge(now, limit=None)
        for uid in set(world.reaped) - before:
            worst = max(worst, now - (world.last[uid] + world.timeout[uid]))
        world.core.check()
    assert len(world.reaped) == 60
    # The epoch may have ended late by one delay and the reap come late by another; nothing else adds to the tick.
    assert worst <= tick / epochs_per_tick + 2 * max(woke_late) + 1e-9


@given(gap=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_polled_at_least_once_a_tick_it_is_at_most_one_tick_plus_one_gap_late(gap, seed):
    world = World(seed=seed, tick=1.0, wheel_size=8)
    now = 0.0
    world.register(0, timeout=3.0, now=now)
    while not world.reaped:
        instant = now + world.random.random() * gap
        if world.random.random() < 0.3 and now < 20.0:
            world.touch(0, instant)
        now += gap
        world.judge(now, None)
    assert now - (world.last[0] + 3.0) <= 1.0 + gap + 1e-9
