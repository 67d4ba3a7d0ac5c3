"""The law of time: by brute force, with a plain list of real instants as the judge, and
claim by claim.

Virtual time throughout; check() after everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import reaper
from reaper import (
    ClockWentBackwards,
    DuplicateUid,
    Expiry,
    HookErrors,
    IdleReaper,
    InvalidArgument,
    Lease,
)

A, B, C, D, E, F = range(6)


def wake_of(core: IdleReaper) -> float:
    """When the core, which has something to watch, next wants to be advanced."""
    wake = core.next_wakeup()
    assert wake is not None
    return wake


def drive(core: IdleReaper, until: float) -> list[reaper.Expiry]:
    """Advance exactly when the core asks for it, up to *until*."""
    expired = []
    while (wake := core.next_wakeup()) is not None and wake <= until:
        expired += core.advance(wake)
        core.check()
    return expired


PEERS = 60
WOKEN: list[tuple[int, float, float | None]] = [
    (epochs_per_tick, jitter, None)
    for epochs_per_tick in (1, 2, 3)
    for jitter in (0.0, 0.003, 0.9, 5.0)
]
POLLED: list[tuple[int, float, float | None]] = [
    (1, 0.0, gap) for gap in (0.06, 0.26, 0.49, 0.71, 1.0)
]


@pytest.mark.parametrize(("epochs_per_tick", "jitter", "gap"), WOKEN + POLLED)
def test_never_early_and_at_most_one_tick_plus_the_loops_own_delay_late(
    epochs_per_tick: int, jitter: float, gap: float | None
) -> None:
    """Lateness counts from the real instant of the last byte, not from the epoch. Woken
    when the core asks for it, or polled once in *gap*, whatever it asks for.
    """
    chance = random.Random(7)
    core = IdleReaper(1.0, 4, epochs_per_tick=epochs_per_tick)
    now = -100.0  # any clock will do
    most = 300.0 if gap is None else 30.0
    timeout = {uid: chance.choice([0.4, 3.0, 5.5, 30.0, most]) for uid in range(PEERS)}
    leases = {uid: core.register(uid, timeout[uid], now) for uid in timeout}
    last = dict.fromkeys(timeout, now)
    quiet_from = now + most
    worst = 0.0
    delays = []
    while leases:
        wake = wake_of(core) if gap is None else now + gap
        delays.append(chance.random() * jitter)
        # Bytes arrive and are read at any instant up to the wake, in order.
        for instant in sorted(now + chance.random() * max(wake - now, 0.0) for _ in range(4)):
            uid = chance.randrange(PEERS)
            if now < quiet_from and uid in leases:
                leases[uid].touch()
                last[uid] = instant
        now = max(now, wake) + delays[-1]
        for expiry in core.advance(now):
            del leases[expiry.uid]  # a KeyError: not exactly once
            late = now - (last[expiry.uid] + timeout[expiry.uid])
            assert late >= 0.0, "early"
            assert expiry.lateness >= 0.0
            worst = max(worst, late)
        core.check()
    # The epoch may have ended late by one delay and the reap come late by another;
    # nothing else adds to the tick.
    assert worst <= 1.0 / epochs_per_tick + (2 * max(delays) if gap is None else gap) + 1e-9


def test_it_wakes_when_the_epoch_ends_or_something_is_due_and_not_when_empty() -> None:
    core = IdleReaper(tick=1.0)
    assert core.next_wakeup() is None
    lease = core.register(A, timeout=2.5, now=10.0)
    assert core.next_wakeup() == 11.0
    core.advance(10.499)
    assert core.statistics().epochs == 1  # one younger than half its length stays open
    assert core.close_epoch(11.0, at_least=1.5) is False
    core.advance(11.0)
    assert (core.next_wakeup(), core.statistics().epochs) == (12.0, 2)
    core.advance(12.0)
    core.advance(13.0)
    assert core.next_wakeup() == 13.5
    lease.release()
    assert core.next_wakeup() is None
    lease = core.register(B, timeout=2.0, now=1000.25)  # the first epoch after that begins with it
    assert core.next_wakeup() == 1001.25
    assert drive(core, 2000.0) == [(B, lease, "idle", 1003.25, 1003.25, 0.0, 2.0)]
    assert (lease.alive, core.next_wakeup()) == (False, None)
    halves = IdleReaper(tick=1.0, epochs_per_tick=2)
    halves.register(A, timeout=5.0, now=0.0)
    assert [expiry.now for expiry in drive(halves, 100.0)] == [5.5]


def test_wakes_at_due_instants_do_not_multiply() -> None:
    core = IdleReaper(tick=1.0)
    for i in range(200):
        core.register(i, timeout=3.0 + (i % 7) * 0.31, now=0.0)
    wakes = 0
    while (wake := wake_of(core)) < 100.0:
        wakes += 1
        core.advance(wake)
        for uid in range(200):
            core.touch(uid)
            if uid not in core:
                core.register(uid, timeout=3.0 + (uid % 7) * 0.31, now=wake)
    # Seven timeouts and at most two epochs a tick: seven due instants and one end for
    # each epoch.
    assert wakes <= 100 * 2 * 8


def broken(leases: Sequence[Lease]) -> None:
    raise OSError("poll failed")


@pytest.mark.parametrize("spare", [broken, lambda leases: [[]], lambda leases: 7])
def test_a_final_check_that_raises_or_answers_nonsense_reaps_nothing(spare: Any) -> None:
    core, _ = due_at_three()
    with pytest.raises((OSError, TypeError)):
        core.expire(3.0, spare=spare)
    core.check()
    assert [expiry.uid for expiry in core.expire(3.0)] == [A, B, C]


def test_expire_may_judge_as_of_an_instant_a_little_past() -> None:
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=2.0, now=0.0)
    core.close_epoch(5.0)
    core.register(B, timeout=2.0, now=5.001)  # accepted while the loop was let run
    assert core.expire(5.0) == []
    with pytest.raises(ClockWentBackwards):
        core.expire(4.9)
    with pytest.raises(ClockWentBackwards):
        core.advance(5.0)


def test_hooks_run_after_the_books_are_closed_and_may_call_anything() -> None:
    core = IdleReaper(tick=1.0)
    again = []
    core.register(B, timeout=2.0, now=0.0)  # without a hook
    core.register(
        A, timeout=2.0, now=0.0, on=lambda expiry: again.append(core.register(A, 2.0, expiry.now))
    )
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.expire(3.0)] == [B, A]
    assert again[0].alive
    core.check()


NO_DURATION = [0, -1.0, float("nan"), float("inf"), True, "5", 10**400, 10**5000]
NO_INSTANT = [float("nan"), float("inf"), -float("inf"), "1", None, True]
NO_COUNT = [-1, 1.0, True, "1", float("nan"), []]
TAKE_NOW: list[Callable[[Any, Any, Any], object]] = [
    lambda core, lease, bad: core.register(B, timeout=5.0, now=bad),
    lambda core, lease, bad: core.advance(bad),
    lambda core, lease, bad: core.close_epoch(bad),
    lambda core, lease, bad: core.expire(bad),
    lambda core, lease, bad: lease.retime(5.0, bad),
    lambda core, lease, bad: lease.resume(bad),
]
REFUSED: dict[str, tuple[list[Any], list[Callable[[Any, Any, Any], object]]]] = {
    "timeout must be a finite number of seconds > 0, got": (
        NO_DURATION,
        [
            lambda core, lease, bad: core.register(B, bad, 20.0),
            lambda core, lease, bad: lease.retime(bad, 20.0),
        ],
    ),
    "now must be a finite number of seconds, got": (NO_INSTANT, TAKE_NOW),
    "now must not decrease: got 19.0 after": ([19.0], TAKE_NOW),
    "limit must be an integer >= 1, got": (
        [0, *NO_COUNT],
        [
            lambda core, lease, bad: core.advance(90.0, bad),
            lambda core, lease, bad: core.expire(90.0, bad),
        ],
    ),
    "n must be an integer >= 0, got": (NO_COUNT, [lambda core, lease, bad: core.oldest(bad)]),
    "since must be a lease of this core, got": (
        [1.0, "1", IdleReaper().register(A, 1.0, 1.0)],
        [lambda core, lease, bad: core.register(B, 3.0, 30.0, since=bad)],
    ),
    "tick must be a finite number of seconds > 0, got": (
        NO_DURATION,
        [lambda core, lease, bad: IdleReaper(bad)],
    ),
    "tick must be a duration that can be divided into epochs, got": (
        [5e-324],
        [lambda core, lease, bad: IdleReaper(bad, epochs_per_tick=2)],
    ),
    "epochs_per_tick must be an integer >= 1, got": (
        [0, *NO_COUNT],
        [lambda core, lease, bad: IdleReaper(epochs_per_tick=bad)],
    ),
    "epochs_per_tick must be an integer <= 1000000, got": (
        [10**6 + 1, 10**5000],
        [lambda core, lease, bad: IdleReaper(epochs_per_tick=bad)],
    ),
    "wheel_size must be an integer >= 2, got": (
        [1, *NO_COUNT],
        [lambda core, lease, bad: IdleReaper(wheel_size=bad)],
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_value_that_will_not_do_is_refused_by_name_and_value_and_changes_nothing(
    message: str,
) -> None:
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=2.0, now=10.0)
    core.advance(20.0)
    before = (core.statistics(), core.next_wakeup())
    bads, calls = REFUSED[message]
    for bad in bads:
        for call in calls:
            with pytest.raises(
                ClockWentBackwards if "decrease" in message else InvalidArgument, match=message
            ) as caught:
                call(core, lease, bad)
            assert len(str(caught.value)) < 200
    assert (core.statistics(), core.next_wakeup()) == before
    core.check()


@pytest.mark.parametrize("call", TAKE_NOW)
def test_an_instant_that_any_call_has_named_is_not_taken_back(
    call: Callable[[Any, Any, Any], object],
) -> None:
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=200.0, now=10.0)
    lease.suspend()
    call(core, lease, 30.0)
    with pytest.raises(ClockWentBackwards):
        core.close_epoch(29.9)


# ---- the final check -----------------------------------------------------------------


def due_at_three(count: int = 3) -> tuple[IdleReaper, list[Lease]]:
    """A core with A, B, C ..., all due at 3.0; it is 3.0, and the epoch has just been
    closed.
    """
    core = IdleReaper(tick=1.0)
    leases = [core.register(uid, timeout=2.0, now=0.0) for uid in range(count)]
    core.close_epoch(1.0)
    core.close_epoch(3.0)
    return core, leases


def test_what_changes_during_the_final_check_is_not_reaped_before_its_time() -> None:
    core, (a, b, c, d, e, f) = due_at_three(6)

    def spare(leases: Sequence[Lease]) -> Sequence[Lease] | dict[Lease, bool]:
        assert [lease.alive for lease in leases] == [True] * 6
        a.touch()
        assert b.release()
        with pytest.raises(DuplicateUid):
            core.register(C, timeout=1.0, now=3.0)
        assert d.suspend()
        assert e.retime(7.0, now=3.0)
        assert f.retime(None, now=3.0)
        return []

    assert [expiry.lease for expiry in core.expire(3.0, spare=spare)] == [c]
    assert not c.alive
    core.check()
    assert core.statistics().averted == 0
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 100.0)] == [(A, 6.0), (E, 8.0)]
    assert d.suspended
    assert core.oldest(3) == [F]


def test_a_limit_that_is_spared_keeps_its_due_instant_and_waits_for_an_epoch() -> None:
    core, (a, b, _) = due_at_three()
    checked = []

    def spare(leases: Sequence[Lease]) -> Sequence[Lease] | dict[Lease, bool]:
        checked.append((core.next_wakeup(), [lease.uid for lease in leases]))
        return {a: False, b: False} if len(checked) == 1 else []

    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [C]
    core.check()
    assert core.next_wakeup() == 4.0  # not at once, again and again
    assert core.expire(3.0, spare=spare) == []
    assert core.oldest(3) == [A, B]
    b.touch()  # a touch moves it, like any lease
    core.close_epoch(4.0)
    assert not core._agenda.postponed.slots
    core.check()
    (expiry,) = core.expire(4.0, spare=spare)
    assert (expiry.uid, expiry.due, expiry.lateness, expiry.timeout) == (A, 3.0, 1.0, 2.0)
    assert [uids for _, uids in checked] == [[A, B, C], [A]]
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 10.0)] == [(B, 6.0)]


# ---- hooks ---------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("on_error", ["none", "raises", "takes"])
def test_a_hook_that_raises_stops_no_other_and_does_not_lose_the_list(
    raised: type[BaseException], on_error: str
) -> None:
    taken, called = [], []

    def take(error: Exception | None, expiry: Expiry) -> None:
        taken.append((expiry.uid, str(error)))
        if on_error == "raises":
            raise RuntimeError(expiry.uid)

    def hook(expiry: Expiry) -> None:
        called.append(expiry.uid)
        raise (raised if expiry.uid == A else ValueError)(expiry.uid)

    core = IdleReaper(tick=1.0, on_error=None if on_error == "none" else take)
    for uid in (A, B, C):
        core.register(uid, timeout=2.0, now=0.0, on=None if uid == C else hook)
    core.close_epoch(1.0)
    expired: list[Any]
    errors: Any = None
    try:
        expired = core.expire(9.0)
    except KeyboardInterrupt as interrupt:
        assert raised is KeyboardInterrupt
        expired, errors = interrupt.expired, interrupt.__cause__  # type: ignore[attr-defined]
    except HookErrors as group:
        assert raised is ValueError
        expired, errors = group.expired, group
    else:
        assert (raised, on_error) == (ValueError, "takes")
    assert [expiry.uid for expiry in expired] == [A, B, C]
    assert called == [A, B]
    collected = (
        [] if errors is None else [(type(error), *error.args) for error in errors.exceptions]
    )
    ordinary = [uid for uid in (A, B) if uid == B or raised is ValueError]
    kind = {"none": ValueError, "raises": RuntimeError, "takes": None}[on_error]
    assert collected == [(kind, uid) for uid in ordinary if kind]
    assert taken == ([] if on_error == "none" else [(uid, str(uid)) for uid in ordinary])
    core.check()
    assert len(core) == 0
