"""Timeouts of their own: a core whose connections have many rounds them inside, never
early, within the tick, and says what was asked for.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper import (
    ClockWentBackwards,
    DuplicateUid,
    Expiry,
    IdleReaper,
    InvalidArgument,
    InvariantViolated,
    Lease,
)
from reaper.core.agenda import MOST_EXACT
from reaper.core.reaper import RoundingReaper
from tests.core.test_law import drive, wake_of

QUARTER = 0.25


def crowded(epochs_per_tick: int = 1) -> IdleReaper:
    """A core that has come to round, and holds one lease of before that, "early"."""
    core = IdleReaper(1.0, 4, epochs_per_tick=epochs_per_tick)
    early = core.register("early", 900.0, 0.0)
    others = [core.register(uid, 100.0 + uid / 1000, 0.0) for uid in range(MOST_EXACT + 1)]
    for lease in others:
        lease.release()
    assert isinstance(core, RoundingReaper)
    assert early.alive
    return core


def test_a_core_with_few_timeouts_does_not_round() -> None:
    core = IdleReaper(1.0)
    for uid in range(10 * MOST_EXACT):
        core.register(uid, 5.0 + uid % MOST_EXACT / 1000, 0.0)
    assert type(core) is IdleReaper
    assert core.epoch_ends == 1.0


@pytest.mark.parametrize("epochs_per_tick", [1, 2, 3])
@pytest.mark.parametrize("jitter", [0.0, 0.003, 5.0])
def test_never_early_and_within_the_tick_by_what_was_asked_for(
    epochs_per_tick: int, jitter: float
) -> None:
    chance = random.Random(3)
    core = crowded(epochs_per_tick)
    now, last, asked = 0.0, {}, {}
    for uid in range(200):
        asked[uid] = chance.uniform(0.3, 40.0)
        core.register(uid, asked[uid], now)
        last[uid] = now
    worst, delays = 0.0, [0.0]
    while last:
        wake = wake_of(core)
        for instant in sorted(now + chance.random() * max(wake - now, 0.0) for _ in range(6)):
            uid = chance.randrange(200)
            if uid not in last or now > 90.0:
                continue
            if chance.random() < 0.2:
                asked[uid] = chance.uniform(0.3, 40.0)
                core.touch(uid)
                core._leases[uid].retime(asked[uid], max(instant, core._latest))
            assert core.touch(uid)
            last[uid] = max(instant, core._latest)
        delays.append(chance.random() * jitter)
        now = max(now, wake, core._latest) + delays[-1]
        for expiry in core.advance(now):
            assert expiry.timeout == asked[expiry.uid]
            late = now - (last.pop(expiry.uid) + asked[expiry.uid])
            assert late >= 0.0, "early"
            worst = max(worst, late)
        core.check()
    assert worst <= 1.0 + 2 * max(delays) + 1e-9


@given(timeout=st.floats(1e-300, 1e300), tick=st.floats(1e-3, 1e3))
def test_a_rounded_timeout_is_not_less_and_less_than_a_quarter_of_a_tick_more(
    timeout: float, tick: float
) -> None:
    core = IdleReaper(tick)
    core._round_timeouts()
    assert isinstance(core, RoundingReaper)
    rounded = core._rounded(timeout)
    assert timeout <= rounded <= timeout + tick / 4 * (1 + 1e-9) or rounded == timeout
    assert math.isfinite(rounded)


def test_leases_say_what_was_asked_for_whether_they_were_made_before_or_after() -> None:
    core = crowded()
    reaped: list[Expiry] = []
    early = core._leases["early"]
    late = core.register("late", 5.1, 0.0, reaped.append)
    assert (late.timeout, core.explain("late").timeout) == (5.1, 5.1)
    assert core.explain("late").due == 0.75 + 5.25
    assert late.retime(3.3, 0.0)
    assert (late.timeout, core.explain("late").due) == (3.3, 0.75 + 3.5)
    assert early.retime(3.4, 0.0)
    assert (early.timeout, core.explain("early").due) == (3.4, 0.75 + 3.5)
    core.check()
    assert late.suspend()
    assert late.timeout == 3.3
    assert late.resume(0.5)
    assert [(each.uid, each.timeout) for each in drive(core, 9.0)] == [
        ("early", 3.4),
        ("late", 3.3),
    ]
    assert [each.uid for each in reaped] == ["late"]
    assert [lease.timeout for lease in (early, late)] == [None, None]
    core.check()


def test_a_hook_of_a_lease_made_before_is_called_whatever_its_timeout_becomes() -> None:
    core = IdleReaper(1.0)
    reaped: list[Expiry] = []
    leases = [core.register(uid, 9.0, 0.0, reaped.append) for uid in range(3)]
    core._round_timeouts()
    for lease, timeouts in zip(leases, ([2.1], [2.1, 2.0], [2.1, 2.2]), strict=True):
        for timeout in timeouts:
            assert lease.retime(timeout, 0.0)
            core.check()
        assert lease.timeout == timeouts[-1]
    drive(core, 9.0)
    assert {each.uid: each.timeout for each in reaped} == {0: 2.1, 1: 2.0, 2: 2.2}
    assert not core._hooks


def test_connections_with_reasons_and_without_a_timeout_share_no_slot() -> None:
    core = crowded()
    for uid, (timeout, reason) in enumerate(
        [(2.1, "idle"), (None, "headers"), (2.1, "headers"), (2.1, "idle"), (2, "idle")]
    ):
        core.register(uid, timeout, 0.0, reason=reason)
    since = core.register("since", 2.1, 0.5, since=core._leases[0])
    core.check()
    assert since.active_from == core._leases[0].active_from
    assert {each.uid: (each.timeout, each.reason) for each in drive(core, 9.0)} == {
        0: (2.1, "idle"), 2: (2.1, "headers"), 3: (2.1, "idle"), 4: (2.0, "idle"),
        "since": (2.1, "idle"),
    }  # fmt: skip


def test_what_is_refused_changes_nothing() -> None:
    core = crowded()
    lease = core.register("a", 5.1, 1.0)
    for bad in (0.0, -1.0, math.nan, math.inf, "5", True):
        with pytest.raises(InvalidArgument, match="timeout must be"):
            core.register("b", bad, 1.0)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="timeout must be"):
            lease.retime(bad, 1.0)  # type: ignore[arg-type]
    for now in (0.5, math.nan):
        with pytest.raises((ClockWentBackwards, InvalidArgument)):
            core.register("b", 5.0, now)
        with pytest.raises((ClockWentBackwards, InvalidArgument)):
            lease.retime(7.0, now)
    with pytest.raises(DuplicateUid):
        core.register("a", 5.0, 1.0)
    with pytest.raises(InvalidArgument, match="since must be a lease of this core"):
        core.register("b", 5.0, 1.0, since=IdleReaper().register("x", 1.0, 0.0))
    assert (lease.timeout, "b" in core) == (5.1, False)
    core.check()
    lease.release()
    assert not lease.retime(3.0, 1.0)


def test_silences_are_reported_by_leases_of_either_kind() -> None:
    core = crowded()
    seen: list[tuple[object, float | None]] = []

    def report(lease: Lease, since: float, until: float) -> None:
        seen.append((lease.uid, lease.timeout))

    core.report_silences(1.0, report)
    lease = core.register("a", 50.1, 0.0)
    drive(core, 20.0)
    lease.touch()
    assert seen == [("a", 50.1)]


def test_twenty_thousand_timeouts_have_few_slots_and_little_memory() -> None:
    core = IdleReaper(1.0)
    for uid in range(20_000):
        core.register(uid, 30.0 + uid / 1000, 0.0)
    core.advance(1.0)
    # Twenty seconds in quarters, and those that came before it began to round.
    assert core.statistics().slots <= 20 / QUARTER + 1 + MOST_EXACT


def test_check_finds_a_lease_that_waits_for_another_timeout() -> None:
    core = crowded()
    lease = core.register("a", 5.1, 0.0)
    lease.asked = 4.0  # type: ignore[attr-defined]
    with pytest.raises(InvariantViolated, match="lies in a slot that waits for"):
        core.check()
