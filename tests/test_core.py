"""IdleReaper, claim by claim. Virtual time throughout; check() after everything."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

import reaper
from reaper import (
    ClockWentBackwards,
    DuplicateUid,
    HookErrors,
    IdleReaper,
    InvalidArgument,
    InvariantViolated,
    ReaperError,
    UnknownUid,
)
from reaper.core.reaper import MOVES_PER_CALL
from reaper.core.slots import CHUNK


def drive(core: IdleReaper, until: float) -> list[reaper.Expiry]:
    """Advance exactly when the core asks for it, up to *until*."""
    expired = []
    while (wake := core.next_wakeup()) is not None and wake <= until:
        expired += core.advance(wake)
        core.check()
    return expired


def test_the_three_lines_of_the_law():
    core = IdleReaper(tick=1.0)
    core.register("a", timeout=30.0, now=0.25)
    (expiry,) = drive(core, 100.0)
    assert (expiry.uid, expiry.due, expiry.now, expiry.lateness, expiry.reason) == ("a", 31.25, 31.25, 0.0, "idle")
    assert not expiry.lease.alive
    assert core.next_wakeup() is None


def test_a_touch_counts_for_the_epoch_it_lies_in():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=5.0, now=0.0)
    core.advance(1.0)
    lease.touch()  # some time in the epoch that began at 1.0
    core.advance(2.0)
    assert core.advance(6.999) == []
    assert [expiry.due for expiry in core.advance(7.0)] == [7.0]


def test_touch_by_uid_and_by_lease_are_one():
    core = IdleReaper(tick=1.0)
    core.register("a", timeout=2.0, now=0.0)
    core.advance(1.0)
    assert core.touch("a") is True
    assert core.touch("b") is False
    assert [(expiry.uid, expiry.now) for expiry in drive(core, 10.0)] == [("a", 4.0)]


def test_it_wakes_at_the_end_of_the_epoch_or_at_the_due_instant_and_not_at_all_when_empty():
    core = IdleReaper(tick=1.0)
    assert core.next_wakeup() is None
    lease = core.register("a", timeout=2.5, now=10.0)
    assert core.next_wakeup() == 11.0
    core.advance(11.0)
    assert core.next_wakeup() == 12.0
    core.advance(12.0)
    core.advance(13.0)
    assert core.next_wakeup() == 13.5
    lease.release()
    assert core.next_wakeup() is None


def test_after_an_empty_time_the_first_epoch_begins_with_the_first_connection():
    core = IdleReaper(tick=1.0)
    core.register("a", timeout=2.0, now=0.0)
    assert [expiry.uid for expiry in drive(core, 50.0)] == ["a"]
    core.register("b", timeout=2.0, now=1000.0)
    assert core.next_wakeup() == 1001.0
    assert [(expiry.uid, expiry.now) for expiry in drive(core, 2000.0)] == [("b", 1003.0)]


def test_wakes_at_due_instants_do_not_multiply():
    core = IdleReaper(tick=1.0)
    for i in range(200):
        core.register(i, timeout=3.0 + (i % 7) * 0.31, now=0.0)
    wakes = 0
    while (wake := core.next_wakeup()) < 100.0:
        wakes += 1
        core.advance(wake)
        for uid in range(200):
            core.touch(uid)
            if uid not in core:
                core.register(uid, timeout=3.0 + (uid % 7) * 0.31, now=wake)
    # Seven timeouts and at most two epochs a tick: seven due instants and one end for each epoch.
    assert wakes <= 100 * 2 * 8


def test_two_epochs_a_tick_halve_the_wait():
    core = IdleReaper(tick=1.0, epochs_per_tick=2)
    core.register("a", timeout=5.0, now=0.0)
    assert core.next_wakeup() == 0.5
    assert [expiry.now for expiry in drive(core, 100.0)] == [5.5]


def test_expiries_come_earliest_due_first_and_ties_in_order_of_arrival():
    core = IdleReaper(tick=1.0)
    for uid, timeout in [("d", 4.0), ("a", 2.0), ("b", 2.0), ("c", 3.0), ("e", 4.0)]:
        core.register(uid, timeout=timeout, now=0.0)
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.advance(100.0)] == ["a", "b", "c", "d", "e"]


def test_a_late_touch_does_not_resurrect():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=2.0, now=0.0)
    assert len(drive(core, 10.0)) == 1
    lease.touch()
    assert core.touch("a") is False
    assert (lease.alive, lease.timeout, lease.reason, lease.suspended) == (False, None, None, False)
    assert not lease.suspend()
    assert not lease.resume(20.0)
    assert not lease.retime(1.0, 20.0)
    assert not lease.release()
    assert "a" not in core
    core.check()


def test_remove_and_add_again_leaves_one_entry():
    core = IdleReaper(tick=1.0)
    old = core.register("a", timeout=3.0, now=0.0)
    assert old.release()
    new = core.register("a", timeout=3.0, now=2.0)
    old.touch()
    assert len(core) == 1
    core.check()
    assert [(expiry.lease is new, expiry.now) for expiry in drive(core, 50.0)] == [(True, 6.0)]


def test_a_registered_uid_is_refused_a_second_time_and_nothing_changes():
    core = IdleReaper()
    core.register("a", timeout=3.0, now=5.0)
    with pytest.raises(DuplicateUid, match="'a' is registered already"):
        core.register("a", timeout=9.0, now=6.0)
    assert core.explain("a").timeout == 3.0
    core.register("b", timeout=3.0, now=5.5)
    core.check()


def test_suspended_is_never_reaped_and_resume_counts_as_activity():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=2.0, now=0.0)
    assert lease.suspend()
    assert not lease.suspend()
    assert core.next_wakeup() is None
    core.check()
    assert core.advance(100.0) == []
    assert lease.resume(500.0)
    assert not lease.resume(500.0)
    assert [expiry.now for expiry in drive(core, 1000.0)] == [503.0]


def test_suspend_beside_armed_ones_keeps_the_books():
    core = IdleReaper(tick=1.0)
    leases = [core.register(i, timeout=2.0 + i % 3, now=0.0) for i in range(9)]
    for lease in leases[::2]:
        lease.suspend()
    core.check()
    assert sorted(expiry.uid for expiry in drive(core, 100.0)) == [1, 3, 5, 7]
    assert core.statistics().suspended == 5
    for lease in leases[::2]:
        assert lease.release()
    core.check()
    assert len(core) == 0


def test_retime_counts_from_the_last_activity():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=100.0, now=0.0)
    core.advance(1.0)
    core.advance(9.0)
    assert lease.retime(5.0, now=9.0, reason="keep_alive")
    assert core.next_wakeup() == 6.0  # has passed already
    (expiry,) = core.advance(9.0)
    assert (expiry.due, expiry.reason, expiry.lateness) == (6.0, "keep_alive", 3.0)


def test_retime_reaches_suspended_leases_too():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=100.0, now=0.0)
    lease.suspend()
    assert lease.retime(3.0, now=1.0)
    assert lease.suspended
    assert lease.timeout == 3.0
    lease.resume(10.0)
    assert [expiry.now for expiry in drive(core, 100.0)] == [14.0]


def test_a_month_at_a_tenth_of_a_second_costs_no_more_than_a_minute():
    core = IdleReaper(tick=0.1, wheel_size=64)
    month = 30 * 86400.0
    lease = core.register("month", timeout=month, now=0.0)
    core.register("minute", timeout=60.0, now=0.0)
    core.close_epoch(0.1)
    assert core.explain("month").place.startswith("wheel level 5")
    assert core.statistics().slots_in_wheel == 2  # the ring spans 6.4 s
    visits = 0
    now = 0.1
    while len(core):
        # Only cascades and due instants: between them the epochs close with nothing to do.
        now = max(now, min(core.next_wakeup() + 60.0, month + 0.1))
        visits += 1
        expired = core.advance(now)
        core.check()
    assert [expiry.uid for expiry in expired] == ["month"]
    assert not lease.alive
    assert core.statistics().max_lateness <= 61.0


def test_a_released_month_leaves_nothing_behind():
    core = IdleReaper(tick=0.1)
    for i in range(1000):
        lease = core.register(i, timeout=30 * 86400.0, now=i * 1.0)
        core.close_epoch(i * 1.0)
        lease.release()
    core.check()
    statistics = core.statistics()
    assert (statistics.slots, statistics.slots_in_wheel, statistics.registered) == (0, 0, 0)
    assert len(core._slots) == 0


def test_slices_keep_order_count_and_due_times():
    core = IdleReaper(tick=1.0)
    n = 3 * CHUNK + 17
    for i in range(n):
        core.register(i, timeout=5.0, now=0.0)
    core.advance(1.0)
    got = []
    now = 6.0
    while batch := core.advance(now, limit=100):
        assert len(batch) <= 100
        core.check()
        got += batch
        now += 0.001
    assert [expiry.uid for expiry in got] == list(range(n))
    assert {expiry.due for expiry in got} == {6.0}
    assert got[-1].lateness == pytest.approx(0.001 * (n // 100))


def test_a_slice_of_one_works_too():
    core = IdleReaper(tick=1.0)
    for i in range(5):
        core.register(i, timeout=1.0, now=0.0)
    core.advance(1.0)
    assert [core.advance(2.0, limit=1)[0].uid for _ in range(5)] == [0, 1, 2, 3, 4]
    assert core.advance(2.0, limit=1) == []


def test_touches_between_slices_save():
    core = IdleReaper(tick=1.0)
    leases = [core.register(i, timeout=2.0, now=0.0) for i in range(10)]
    core.advance(1.0)
    assert [expiry.uid for expiry in core.advance(3.0, limit=4)] == [0, 1, 2, 3]
    leases[5].touch()
    leases[7].release()
    assert [expiry.uid for expiry in core.advance(3.0)] == [4, 6, 8, 9]
    core.check()


def test_a_limited_call_moves_only_so_many_and_says_there_is_more():
    core = IdleReaper(tick=1.0)
    n = 3 * MOVES_PER_CALL
    leases = [core.register(i, timeout=2.0, now=0.0) for i in range(n)]
    core.advance(1.0)
    for lease in leases:
        lease.touch()
    core.close_epoch(2.5)
    for calls in (1, 2, 3):
        assert core.next_wakeup() <= 3.0
        assert core.expire(3.0, limit=10) == []
        core.check()
        assert core.statistics().moved == calls * MOVES_PER_CALL
    assert core.next_wakeup() > 3.0


def test_each_connection_moves_at_most_once_a_timeout():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=10.0, now=0.0)
    for tenth in range(1, 1000):
        lease.touch()
        core.advance(tenth / 10)
    assert core.statistics().moved <= 10


def test_the_last_look_spares_and_counts():
    core = IdleReaper(tick=1.0)
    for uid in "abc":
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    seen = []

    def spare(leases):
        seen.append([lease.uid for lease in leases])
        return [leases[1]]

    core.close_epoch(3.0)
    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == ["a", "c"]
    assert seen == [["a", "b", "c"]]
    core.check()
    assert core.statistics().averted == 1
    assert [(expiry.uid, expiry.now) for expiry in drive(core, 10.0)] == [("b", 6.0)]


def test_a_last_look_that_raises_reaps_nobody():
    core = IdleReaper(tick=1.0)
    for uid in "abc":
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)

    def spare(leases):
        raise OSError("poll failed")

    with pytest.raises(OSError, match="poll failed"):
        core.expire(9.0, spare=spare)
    core.check()
    assert [expiry.uid for expiry in core.expire(9.0)] == ["a", "b", "c"]


def test_a_stall_saves_whoever_spoke_during_it():
    """close_epoch(now), let the loop read, expire(now): what was read belongs to the next epoch; nobody is early."""
    core = IdleReaper(tick=1.0)
    silent, live = core.register("silent", timeout=2.0, now=0.0), core.register("live", timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    now = 50.0
    core.close_epoch(now)
    live.touch()  # read in a scheduling pass, a little after `now`
    assert [expiry.uid for expiry in core.expire(now)] == ["silent"]
    assert not silent.alive
    core.close_epoch(51.0)
    assert core.explain("live").due == 53.0


def test_expire_may_judge_as_of_an_instant_a_little_past():
    core = IdleReaper(tick=1.0)
    core.register("a", timeout=2.0, now=0.0)
    core.close_epoch(5.0)
    core.register("b", timeout=2.0, now=5.001)  # accepted while the loop was let run
    assert core.expire(5.0) == []
    with pytest.raises(ClockWentBackwards):
        core.expire(4.9)
    with pytest.raises(ClockWentBackwards):
        core.advance(5.0)


def test_expire_alone_finds_what_waited_in_the_wheel():
    core = IdleReaper(tick=1.0, wheel_size=4)
    core.register("a", timeout=5000.0, now=0.0)
    core.close_epoch(1.0)
    assert core.explain("a").place.startswith("wheel")
    assert [expiry.uid for expiry in core.expire(5001.0)] == ["a"]


def test_hooks_run_after_the_books_are_closed_and_may_call_anything():
    core = IdleReaper(tick=1.0)
    again = []
    core.register("a", timeout=2.0, now=0.0, on=lambda expiry: again.append(core.register("a", 2.0, expiry.now)))
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.expire(3.0)] == ["a"]
    assert again[0].alive
    core.check()


def test_a_hook_that_raises_stops_nobody_and_the_errors_come_as_one_group():
    core = IdleReaper(tick=1.0)
    called = []

    def hook(expiry):
        called.append(expiry.uid)
        if expiry.uid != "b":
            raise ValueError(expiry.uid)

    for uid in "abc":
        core.register(uid, timeout=2.0, now=0.0, on=hook)
    core.close_epoch(1.0)
    with pytest.raises(HookErrors) as caught:
        core.expire(9.0)
    assert [str(error) for error in caught.value.exceptions] == ["a", "c"]
    assert [expiry.uid for expiry in caught.value.expired] == ["a", "b", "c"] == called
    assert isinstance(caught.value, ReaperError)
    core.check()
    assert len(core) == 0


def test_an_error_hook_is_handed_the_errors_instead():
    errors = []
    core = IdleReaper(tick=1.0, on_error=lambda error, expiry: errors.append((expiry.uid, str(error))))

    def hook(expiry):
        raise ValueError("broken")

    core.register("a", timeout=2.0, now=0.0, on=hook)
    core.close_epoch(1.0)
    assert len(core.expire(9.0)) == 1
    assert errors == [("a", "broken")]


def test_explain_tells_the_window_of_the_last_activity():
    core = IdleReaper(tick=1.0, wheel_size=8)
    lease = core.register("a", timeout=5.0, now=0.0)
    explained = core.explain("a")
    assert (explained.active_from, explained.active_until, explained.due, explained.place) == (0.0, None, 6.0, "ring")
    core.close_epoch(1.25)
    explained = core.explain("a")
    assert (explained.active_from, explained.active_until, explained.due) == (0.0, 1.25, 6.25)
    assert "due at 6.250 (idle, timeout 5 s), in ring" in str(explained)
    lease.suspend()
    explained = core.explain("a")
    assert (explained.suspended, explained.due, explained.place) == (True, None, "suspended")
    assert "cannot be reaped" in str(explained)
    with pytest.raises(UnknownUid, match="uid 'b' is not registered"):
        core.explain("b")


def test_oldest_names_the_longest_idle_first_by_their_touches_not_by_where_they_lie():
    core = IdleReaper(tick=1.0)
    leases = {}
    for i, uid in enumerate("abcdef"):
        leases[uid] = core.register(uid, timeout=50.0 + i % 2, now=float(i))
        core.close_epoch(i + 1.0)
    leases["a"].touch()
    core.close_epoch(10.0)
    leases["c"].touch()
    leases["d"].suspend()
    assert core.oldest(3) == ["b", "e", "f"]
    assert core.oldest(10) == ["b", "e", "f", "a", "c"]
    assert core.oldest(0) == []


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), True, "5", None, 10**400])
def test_bad_timeouts_are_refused_by_name_and_value(bad):
    core = IdleReaper()
    lease = core.register("a", timeout=5.0, now=1.0)
    with pytest.raises(InvalidArgument, match=r"timeout must be a finite number of seconds > 0, got"):
        core.register("b", timeout=bad, now=2.0)
    with pytest.raises(InvalidArgument, match="timeout must be"):
        lease.retime(bad, now=2.0)
    with pytest.raises(InvalidArgument, match="tick must be"):
        IdleReaper(tick=bad)
    assert "b" not in core
    core.check()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), "1", None, True])
def test_a_bad_now_is_refused_everywhere_and_changes_nothing(bad):
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=2.0, now=0.0)
    before = (core.statistics(), core.next_wakeup())
    for call in (
        lambda: core.register("b", timeout=5.0, now=bad),
        lambda: core.advance(bad),
        lambda: core.close_epoch(bad),
        lambda: core.expire(bad),
        lambda: lease.retime(5.0, bad),
        lambda: lease.resume(bad),
    ):
        with pytest.raises(InvalidArgument, match="now must be a finite number of seconds"):
            call()
    assert (core.statistics(), core.next_wakeup()) == before


def test_a_clock_that_goes_backwards_is_refused_everywhere_and_changes_nothing():
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=2.0, now=10.0)
    core.advance(20.0)
    before = (core.statistics(), core.next_wakeup())
    for call in (
        lambda: core.register("b", timeout=5.0, now=19.0),
        lambda: core.advance(19.0),
        lambda: core.close_epoch(19.0),
        lambda: core.expire(19.0),
        lambda: lease.retime(5.0, 19.0),
        lambda: lease.resume(19.0),
    ):
        with pytest.raises(ClockWentBackwards, match=r"now must not decrease: got 19.0 after"):
            call()
    assert (core.statistics(), core.next_wakeup()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wheel_size": 1}, "wheel_size must be an integer >= 2, got 1"),
        ({"wheel_size": 2.0}, "wheel_size must be an integer >= 2, got 2.0"),
        ({"epochs_per_tick": 0}, "epochs_per_tick must be an integer >= 1, got 0"),
    ],
)
def test_bad_settings_are_refused_by_name_and_value(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        IdleReaper(**arguments)


@pytest.mark.parametrize("bad", [0, -1, 1.0, True])
def test_a_bad_limit_is_refused_before_anything_happens(bad):
    core = IdleReaper(tick=1.0)
    core.register("a", timeout=2.0, now=0.0)
    with pytest.raises(InvalidArgument, match="limit must be an integer >= 1"):
        core.advance(5.0, limit=bad)
    assert core.next_wakeup() == 1.0


def test_huge_and_tiny_numbers_do_not_break_it():
    core = IdleReaper(tick=1e-3)
    core.register("never", timeout=1e300, now=1e9)
    core.register("soon", timeout=1e-6, now=1e9)
    core.advance(1e9 + 0.001)
    core.check()
    assert [expiry.uid for expiry in core.advance(1e9 + 1.0)] == ["soon"]
    assert len(core) == 1


def test_a_reaped_connection_is_garbage_at_once_without_the_collector():
    class Uid:
        pass

    core = IdleReaper(tick=1.0)
    uid = Uid()
    alive = weakref.ref(uid)
    core.register(uid, timeout=1.0, now=0.0, on=lambda expiry, uid=uid: None)
    del uid
    gc.disable()
    try:
        core.advance(1.0)
        assert len(core.advance(2.0)) == 1
        assert alive() is None
    finally:
        gc.enable()


def test_release_frees_the_memory_at_once():
    core = IdleReaper(tick=1.0)
    leases = [core.register(i, timeout=10.0, now=0.0) for i in range(10 * CHUNK)]
    for lease in leases[: 9 * CHUNK + CHUNK // 2 + 1]:
        lease.release()
    core.check()
    lying = sum(len(chunk.items) for slot in core._slots for chunk in slot.chunks)
    assert lying == CHUNK // 2 - 1


def test_check_finds_a_broken_book():
    core = IdleReaper()
    lease = core.register("a", timeout=2.0, now=0.0)
    core.check()
    lease._pos = 7
    with pytest.raises(InvariantViolated):
        core.check()


def test_two_cores_do_not_share_what_the_interpreter_learns_about_touch():
    one, two = IdleReaper(), IdleReaper()
    a, b = one.register("a", timeout=1.0, now=0.0), two.register("a", timeout=1.0, now=0.0)
    assert type(a).touch.__code__ is not type(b).touch.__code__
    a.touch()
    assert b._epoch is two._open
    assert a._epoch is one._open


def test_importing_reaper_imports_no_framework():
    code = (
        "import sys, reaper; "
        "bad = {'trio', 'asyncio', 'pyspark', 'psutil', 'pyarrow', 'numpy', 'pandas', 'h11'} & set(sys.modules); "
        "print(sorted(bad))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
