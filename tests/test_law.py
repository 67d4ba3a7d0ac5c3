"""The law, claim by claim. Virtual time throughout; check() after everything."""

from __future__ import annotations

import pytest

import reaper
from reaper import (
    ClockWentBackwards,
    DuplicateUid,
    HookErrors,
    IdleReaper,
    InvalidArgument,
    ReaperError,
)
from reaper.core.slots import CHUNK

A, B, C, D, E, F = range(6)


def drive(core, until: float) -> list[reaper.Expiry]:
    """Advance exactly when the core asks for it, up to *until*."""
    expired = []
    while (wake := core.next_wakeup()) is not None and wake <= until:
        expired += core.advance(wake)
        core.check()
    return expired


def test_the_three_lines_of_the_law():
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=30.0, now=0.25)
    (expiry,) = drive(core, 100.0)
    assert (expiry.uid, expiry.due, expiry.now, expiry.lateness, expiry.reason) == (A, 31.25, 31.25, 0.0, "idle")
    assert not expiry.lease.alive
    assert core.next_wakeup() is None


def test_a_touch_counts_for_the_epoch_it_lies_in():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=5.0, now=0.0)
    core.advance(1.0)
    lease.touch()  # some time in the epoch that began at 1.0
    core.advance(2.0)
    assert core.advance(6.999) == []
    assert [expiry.due for expiry in core.advance(7.0)] == [7.0]


def test_touch_by_uid_and_by_lease_are_one():
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=2.0, now=0.0)
    core.advance(1.0)
    assert core.touch(A) is True
    assert core.touch(B) is False
    assert [(expiry.uid, expiry.now) for expiry in drive(core, 10.0)] == [(A, 4.0)]


def test_it_wakes_at_the_end_of_the_epoch_or_at_the_due_instant_and_not_at_all_when_empty():
    core = IdleReaper(tick=1.0)
    assert core.next_wakeup() is None
    lease = core.register(A, timeout=2.5, now=10.0)
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
    core.register(A, timeout=2.0, now=0.0)
    assert [expiry.uid for expiry in drive(core, 50.0)] == [A]
    core.register(B, timeout=2.0, now=1000.0)
    assert core.next_wakeup() == 1001.0
    assert [(expiry.uid, expiry.now) for expiry in drive(core, 2000.0)] == [(B, 1003.0)]


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


def test_two_epochs_per_tick_halve_the_wait():
    core = IdleReaper(tick=1.0, epochs_per_tick=2)
    core.register(A, timeout=5.0, now=0.0)
    assert core.next_wakeup() == 0.5
    assert [expiry.now for expiry in drive(core, 100.0)] == [5.5]


def test_expiries_come_earliest_due_first_and_ties_in_order_of_arrival():
    core = IdleReaper(tick=1.0)
    for uid, timeout in [(D, 4.0), (A, 2.0), (B, 2.0), (C, 3.0), (E, 4.0)]:
        core.register(uid, timeout=timeout, now=0.0)
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.advance(100.0)] == [A, B, C, D, E]


def test_a_late_touch_brings_no_connection_back():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=2.0, now=0.0)
    assert len(drive(core, 10.0)) == 1
    lease.touch()
    assert core.touch(A) is False
    assert (lease.alive, lease.timeout, lease.reason, lease.suspended) == (False, None, None, False)
    assert not lease.suspend()
    assert not lease.resume(20.0)
    assert not lease.retime(1.0, 20.0)
    assert not lease.release()
    assert A not in core
    core.check()


def test_remove_and_add_again_leaves_one_entry():
    core = IdleReaper(tick=1.0)
    assert core.register(B, timeout=9.0, now=0.0).suspend()  # a handle of another connection is no handle of this one
    old = core.register(A, timeout=3.0, now=0.0)
    assert old.release()
    new = core.register(A, timeout=3.0, now=2.0)
    old.touch()
    assert len(core) == 2
    core.check()
    assert [(expiry.lease == new, expiry.now) for expiry in drive(core, 50.0)] == [(True, 6.0)]


def test_a_registered_uid_is_refused_a_second_time_and_nothing_changes():
    core = IdleReaper()
    core.register(A, timeout=3.0, now=5.0)
    with pytest.raises(DuplicateUid, match="uid 0 is registered already"):
        core.register(A, timeout=9.0, now=6.0)
    assert core.explain(A).timeout == 3.0
    core.register(B, timeout=3.0, now=5.5)
    core.check()


def test_suspended_is_never_reaped_and_resume_counts_as_activity():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=2.0, now=0.0)
    assert lease.suspend()
    assert not lease.suspend()
    assert core.next_wakeup() is None
    core.check()
    assert core.advance(100.0) == []
    assert lease.resume(500.0)
    assert not lease.resume(500.0)
    assert [expiry.now for expiry in drive(core, 1000.0)] == [503.0]


def test_suspending_among_armed_connections_keeps_the_books():
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


def test_of_several_suspended_leases_one_may_go_and_the_last_leaves_nothing_behind():
    core = IdleReaper(tick=1.0)
    leases = [core.register(uid, timeout=5.0, now=0.0) for uid in range(3)]
    for lease in leases:
        lease.suspend()
    assert leases[0].resume(1.0)
    core.check()
    for lease in leases[1:]:
        lease.release()
        core.check()
    assert not core._never.slots


def test_retime_counts_from_the_last_activity():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=100.0, now=0.0)
    core.advance(1.0)
    core.advance(9.0)
    assert lease.retime(5.0, now=9.0, reason="keep_alive")
    assert core.next_wakeup() == 6.0  # has passed already
    (expiry,) = core.advance(9.0)
    assert (expiry.due, expiry.reason, expiry.lateness) == (6.0, "keep_alive", 3.0)


def test_retime_reaches_suspended_leases_too():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=100.0, now=0.0)
    lease.suspend()
    assert lease.retime(3.0, now=1.0)
    assert lease.suspended
    assert lease.timeout == 3.0
    lease.resume(10.0)
    assert [expiry.now for expiry in drive(core, 100.0)] == [14.0]


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


def test_the_final_check_spares_and_counts():
    core = IdleReaper(tick=1.0)
    for uid in (A, B, C):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    seen = []

    def spare(leases):
        seen.append([lease.uid for lease in leases])
        return [leases[1]]

    core.close_epoch(3.0)
    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [A, C]
    assert seen == [[A, B, C]]
    core.check()
    assert core.statistics().averted == 1
    assert [(expiry.uid, expiry.now) for expiry in drive(core, 10.0)] == [(B, 6.0)]


def test_a_final_check_that_raises_reaps_nothing():
    core = IdleReaper(tick=1.0)
    for uid in (A, B, C):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)

    def spare(leases):
        raise OSError("poll failed")

    with pytest.raises(OSError, match="poll failed"):
        core.expire(9.0, spare=spare)
    core.check()
    assert [expiry.uid for expiry in core.expire(9.0)] == [A, B, C]


def test_a_client_that_spoke_during_a_stall_is_not_reaped():
    """close_epoch(now), let the loop read, expire(now): what was read belongs to the next epoch."""
    core = IdleReaper(tick=1.0)
    silent, live = core.register(A, timeout=2.0, now=0.0), core.register(B, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    now = 50.0
    core.close_epoch(now)
    live.touch()  # read in a scheduling pass, a little after `now`
    assert [expiry.uid for expiry in core.expire(now)] == [A]
    assert not silent.alive
    core.close_epoch(51.0)
    assert core.explain(B).due == 53.0


def test_expire_may_judge_as_of_an_instant_a_little_past():
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=2.0, now=0.0)
    core.close_epoch(5.0)
    core.register(B, timeout=2.0, now=5.001)  # accepted while the loop was let run
    assert core.expire(5.0) == []
    with pytest.raises(ClockWentBackwards):
        core.expire(4.9)
    with pytest.raises(ClockWentBackwards):
        core.advance(5.0)


def test_hooks_run_after_the_books_are_closed_and_may_call_anything():
    core = IdleReaper(tick=1.0)
    again = []
    core.register(A, timeout=2.0, now=0.0, on=lambda expiry: again.append(core.register(A, 2.0, expiry.now)))
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.expire(3.0)] == [A]
    assert again[0].alive
    core.check()


def test_a_hook_that_raises_stops_no_other_and_the_errors_come_as_one_group():
    core = IdleReaper(tick=1.0)
    called = []

    def hook(expiry):
        called.append(expiry.uid)
        if expiry.uid != B:
            raise ValueError(expiry.uid)

    for uid in (A, B, C):
        core.register(uid, timeout=2.0, now=0.0, on=hook)
    core.close_epoch(1.0)
    with pytest.raises(HookErrors) as caught:
        core.expire(9.0)
    assert [error.args for error in caught.value.exceptions] == [(A,), (C,)]
    assert [expiry.uid for expiry in caught.value.expired] == [A, B, C] == called
    assert isinstance(caught.value, ReaperError)
    core.check()
    assert len(core) == 0


def test_an_error_hook_is_handed_the_errors_instead():
    errors = []
    core = IdleReaper(tick=1.0, on_error=lambda error, expiry: errors.append((expiry.uid, str(error))))

    def hook(expiry):
        raise ValueError("broken")

    core.register(A, timeout=2.0, now=0.0, on=hook)
    core.close_epoch(1.0)
    assert len(core.expire(9.0)) == 1
    assert errors == [(A, "broken")]


def test_oldest_names_the_longest_idle_first_by_their_touches_not_by_where_they_lie():
    core = IdleReaper(tick=1.0)
    leases = {}
    for uid in range(6):
        leases[uid] = core.register(uid, timeout=50.0 + uid % 2, now=float(uid))
        core.close_epoch(uid + 1.0)
    leases[A].touch()
    core.close_epoch(10.0)
    leases[C].touch()
    leases[D].suspend()
    assert core.oldest(3) == [B, E, F]
    assert core.oldest(10) == [B, E, F, A, C]
    assert core.oldest(0) == []


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), True, "5", 10**400])
def test_bad_timeouts_are_refused_by_name_and_value(bad):
    core = IdleReaper()
    lease = core.register(A, timeout=5.0, now=1.0)
    with pytest.raises(InvalidArgument, match=r"timeout must be a finite number of seconds > 0, got"):
        core.register(B, timeout=bad, now=2.0)
    with pytest.raises(InvalidArgument, match="timeout must be"):
        lease.retime(bad, now=2.0)
    with pytest.raises(InvalidArgument, match="tick must be"):
        IdleReaper(tick=bad)
    assert B not in core
    core.check()


NO_INSTANT = InvalidArgument, "now must be a finite number of seconds"
BACKWARDS = ClockWentBackwards, "now must not decrease: got 19.0 after"


@pytest.mark.parametrize(
    ("bad", "refusal"),
    [
        *((bad, NO_INSTANT) for bad in (float("nan"), float("inf"), -float("inf"), "1", None, True)),
        (19.0, BACKWARDS),
    ],
)
def test_a_bad_now_is_refused_everywhere_and_changes_nothing(bad, refusal):
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=2.0, now=10.0)
    core.advance(20.0)
    before = (core.statistics(), core.next_wakeup())
    for call in (
        lambda: core.register(B, timeout=5.0, now=bad),
        lambda: core.advance(bad),
        lambda: core.close_epoch(bad),
        lambda: core.expire(bad),
        lambda: lease.retime(5.0, bad),
        lambda: lease.resume(bad),
    ):
        with pytest.raises(refusal[0], match=refusal[1]):
            call()
    assert (core.statistics(), core.next_wakeup()) == before


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "1"])
def test_a_bad_count_is_refused_before_anything_happens(bad):
    core, _ = due_at_three()
    for call in (lambda: core.advance(5.0, limit=bad), lambda: core.expire(3.0, limit=bad)):
        with pytest.raises(InvalidArgument, match="limit must be an integer >= 1"):
            call()
    assert (len(core), core.next_wakeup()) == (3, 3.0)
    if bad != 0:
        with pytest.raises(InvalidArgument, match="n must be an integer >= 0"):
            core.oldest(bad)


# ---- the final check -------------------------------------------------------------------------------------------------


def due_at_three(**arguments):
    """A core with A, B and C, all due at 3.0; it is 3.0, and the epoch has just been closed."""
    core = IdleReaper(tick=1.0, **arguments)
    leases = [core.register(uid, timeout=2.0, now=0.0) for uid in (A, B, C)]
    core.close_epoch(1.0)
    core.close_epoch(3.0)
    return core, leases


def test_what_is_touched_or_ended_during_the_final_check_is_not_reaped():
    core, (a, b, _) = due_at_three()

    def spare(leases):
        assert [lease.alive for lease in leases] == [True] * 3
        a.touch()
        assert b.release()
        with pytest.raises(DuplicateUid):
            core.register(C, timeout=1.0, now=3.0)
        return []

    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [C]
    core.check()
    assert core.statistics().averted == 0
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 10.0)] == [(A, 6.0)]


def test_what_is_suspended_or_retimed_during_the_final_check_is_not_reaped_before_its_time():
    core, (a, b, _) = due_at_three()

    def spare(leases):
        assert a.suspend()
        assert b.retime(7.0, now=3.0)
        return []

    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [C]
    core.check()
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 100.0)] == [(B, 8.0)]
    assert a.suspended


def test_a_final_check_may_say_when_a_connection_was_last_active():
    core, (a, b, c) = due_at_three()
    # Activity at 0.9 leaves C due at 3.0: it is reaped all the same.
    expired = core.expire(3.0, spare=lambda leases: {a: 2.5, b: 3.0, c: 0.9})
    assert [(expiry.uid, expiry.due) for expiry in expired] == [(C, 3.0)]
    core.check()
    assert core.statistics().averted == 2
    assert core.oldest(2) == [A, B]
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 10.0)] == [(A, 5.0), (B, 6.0)]


def test_a_limit_that_activity_does_not_move_is_checked_again_one_epoch_later_and_keeps_its_due_instant():
    core, (a, b, _) = due_at_three()
    checked = []

    def spare(leases):
        checked.append((core.next_wakeup(), [lease.uid for lease in leases]))
        return {a: None, b: None} if len(checked) == 1 else []

    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [C]
    core.check()
    assert core.next_wakeup() == 4.0  # not at once, again and again
    assert core.expire(3.0, spare=spare) == []
    assert core.oldest(3) == [A, B]
    b.touch()  # a touch moves it, like any lease
    core.close_epoch(4.0)
    core.check()
    (expiry,) = core.expire(4.0, spare=spare)
    assert (expiry.uid, expiry.due, expiry.lateness, expiry.timeout) == (A, 3.0, 1.0, 2.0)
    assert [uids for _, uids in checked] == [[A, B, C], [A]]
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 10.0)] == [(B, 6.0)]


@pytest.mark.parametrize("end", ["release", "suspend", "retime"])
def test_a_postponed_lease_can_be_ended_suspended_and_retimed(end):
    core, (a, b, c) = due_at_three()
    assert core.expire(3.0, spare=lambda leases: dict.fromkeys(leases)) == []
    assert getattr(a, end)(*{"retime": (5.0, 3.0)}.get(end, ()))
    core.check()
    assert len(core) == 2 + (end != "release")
    assert [expiry.uid for expiry in drive(core, 5.0)] == [B, C]
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 10.0)] == [(A, 6.0)] * (end == "retime")
    assert not b.alive
    assert not c.alive


@pytest.mark.parametrize("answer", [{A: 1.0}, [[]], {"lease": "soon"}, 7])
def test_a_final_check_with_an_answer_that_is_none_reaps_nothing(answer):
    core, leases = due_at_three()
    if isinstance(answer, dict):
        answer = {leases[0]: float("nan")}
    with pytest.raises((InvalidArgument, TypeError)):
        core.expire(3.0, spare=lambda _: answer)
    core.check()
    assert [expiry.uid for expiry in core.expire(3.0)] == [A, B, C]


# ---- a last activity in the past ------------------------------------------------------------------------------------


@pytest.mark.parametrize("since", [0.0, 96.0, 96.3, 99.999, 100.0, 100.25])
def test_a_lease_may_begin_with_an_activity_in_the_past_never_early_and_less_than_a_tick_late(since):
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=1000.0, now=95.25)
    for now in (96.25, 97.25, 98.25, 99.25, 100.25):
        core.advance(now)
    core.register(B, timeout=50.0, now=100.25, since=since)
    core.check()
    if since < 95.0 or since > 97.0:
        assert core.oldest(2) == ([B, A] if since < 95.0 else [A, B])
    explained = core.explain(B)
    assert explained.active_from <= since <= (100.25 if explained.active_until is None else explained.active_until)
    now = 100.25
    while not (expired := core.advance(now)):
        core.check()
        now = max(core.next_wakeup(), now)
    (expiry,) = expired
    assert since + 50.0 <= expiry.due < since + 50.0 + 1.0 + 1e-9
    assert expiry.now == max(expiry.due, 100.25)


def test_a_touch_after_that_counts_as_any_other():
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=50.0, now=100.25, since=60.0)
    core.touch(A)
    assert [expiry.due for expiry in drive(core, 200.0)] == [151.25]


def test_a_lease_may_take_over_the_last_activity_of_another():
    core = IdleReaper(tick=1.0)
    first = core.register(A, timeout=3.0, now=0.0)
    core.close_epoch(1.25)
    core.close_epoch(2.25)
    second = core.register(B, timeout=5.0, now=2.5, since=first)
    assert first.release()
    assert (second.active_from, second.active_until) == (0.0, 1.25)
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 20.0)] == [(B, 6.25)]


@pytest.mark.parametrize("since", [float("nan"), float("inf"), "1", 3.1, 10**400])
def test_a_last_activity_that_is_none_is_refused_and_changes_nothing(since):
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=3.0, now=1.0)
    with pytest.raises(InvalidArgument, match="since must"):
        core.register(B, timeout=3.0, now=3.0, since=since)
    with pytest.raises(InvalidArgument, match="since must be an instant or a lease of this core"):
        core.register(B, timeout=3.0, now=3.0, since=IdleReaper().register(A, 1.0, 1.0))
    assert core.statistics().epochs == 1
    core.check()


# ---- hooks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collected", [False, True])
def test_a_hook_that_interrupts_stops_no_other_and_does_not_lose_the_list(collected):
    core = IdleReaper(tick=1.0)
    called = []

    def hook(expiry):
        called.append(expiry.uid)
        if expiry.uid == A:
            raise KeyboardInterrupt("by hand")
        if collected:
            raise ValueError(expiry.uid)

    for uid in (A, B, C):
        core.register(uid, timeout=2.0, now=0.0, on=hook)
    core.close_epoch(1.0)
    with pytest.raises(KeyboardInterrupt, match="by hand") as caught:
        core.expire(9.0)
    assert [expiry.uid for expiry in caught.value.expired] == [A, B, C] == called
    assert isinstance(caught.value.__cause__, HookErrors) == collected
    core.check()


def test_an_error_hook_that_raises_stops_no_other_and_does_not_lose_the_list():
    def on_error(error, expiry):
        raise RuntimeError(expiry.uid)

    core = IdleReaper(tick=1.0, on_error=on_error)
    for uid in (A, B):
        core.register(uid, timeout=2.0, now=0.0, on=lambda expiry: 1 / 0)
    core.close_epoch(1.0)
    with pytest.raises(HookErrors) as caught:
        core.expire(9.0)
    assert [error.args for error in caught.value.exceptions] == [(A,), (B,)]
    assert [expiry.uid for expiry in caught.value.expired] == [A, B]


@pytest.mark.parametrize("setting", ["epochs_per_tick", "tick"])
@pytest.mark.parametrize(
    "value", [pytest.param(10**400, id="huge"), pytest.param(10**5000, id="unprintable"), "1", [], 0, -1, float("nan")]
)
def test_a_setting_that_is_no_such_number_is_refused_by_name_and_value(setting, value):
    with pytest.raises(InvalidArgument, match=f"{setting} must be .*, got ") as caught:
        IdleReaper(**{setting: value})
    assert len(str(caught.value)) < 200


# ---- counters -------------------------------------------------------------------------------------------------------


def test_a_new_core_has_counted_nothing_and_each_event_is_counted_once():
    core = IdleReaper(tick=1.0)
    fresh = core.statistics()
    assert (fresh.registered, fresh.epochs, fresh.expired, fresh.moved, fresh.averted, fresh.released) == (0,) * 6
    assert fresh.max_lateness == 0.0
    for uid in (A, B, C):
        core.register(uid, timeout=2.0, now=0.0)
    assert core.close_epoch(1.0) is True
    assert core.close_epoch(1.5, at_least=1.0) is False
    core.discard(A)
    core.expire(5.0, spare=lambda leases: leases[:1])
    seen = core.statistics()
    assert (seen.registered, seen.epochs, seen.expired, seen.averted, seen.released) == (1, 2, 1, 1, 1)
    assert seen.max_lateness == 2.0


def test_a_lease_without_a_hook_beside_one_with_a_hook():
    core = IdleReaper(tick=1.0)
    called = []
    core.register(A, timeout=2.0, now=0.0)
    core.register(B, timeout=2.0, now=0.0, on=lambda expiry: called.append(expiry.uid))
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.expire(5.0)] == [A, B]
    assert called == [B]


def test_a_tick_too_short_to_be_divided_is_refused():
    with pytest.raises(InvalidArgument, match="tick must be a duration that can be divided into epochs"):
        IdleReaper(tick=5e-324, epochs_per_tick=2)
    for small in (1, 2.0):
        with pytest.raises(InvalidArgument, match=f"wheel_size must be an integer >= 2, got {small}"):
            IdleReaper(wheel_size=small)


def test_what_the_final_check_spares_was_not_late():
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    assert core.expire(50.0, spare=list) == []
    assert core.statistics().max_lateness == 0.0


def test_an_epoch_younger_than_half_its_length_stays_open_in_advance():
    core = IdleReaper(tick=1.0)
    core.register(A, timeout=9.0, now=0.0)
    core.advance(0.499)
    assert core.statistics().epochs == 1  # the one that the first registration ended
    core.advance(0.5)
    assert core.statistics().epochs == 2


# ---- no timeout ------------------------------------------------------------------------------------------------------


def test_a_lease_without_a_timeout_is_never_due_and_its_activity_is_known_all_the_same():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=None, now=0.0)
    assert drive(core, 50.0) == []
    assert core.advance(1e9) == []
    assert (lease.alive, lease.timeout, lease.suspended) == (True, None, False)
    lease.touch()
    core.close_epoch(1e9 + 1)
    core.check()
    explained = core.explain(A)
    assert (explained.active_from, explained.active_until) == (1e9, 1e9 + 1)
    assert (explained.timeout, explained.due, explained.place) == (None, None, "no timeout")
    assert str(explained).endswith("never due (idle, no timeout)")
    assert lease.suspend()
    assert str(core.explain(A)).endswith("cannot be reaped; no timeout when it resumes")
    assert lease.resume(1e9 + 1)
    core.check()


def test_a_timeout_may_be_taken_away_and_given_back_and_counts_from_the_last_activity():
    core = IdleReaper(tick=1.0)
    lease = core.register(A, timeout=3.0, now=0.0)
    core.advance(1.0)
    assert lease.retime(None, now=1.5)
    core.check()
    assert drive(core, 20.0) == []
    assert lease.retime(7.0, now=20.5)
    core.check()
    (expiry,) = core.advance(20.5)
    assert (expiry.due, expiry.timeout) == (8.0, 7.0)


def test_a_timeout_taken_away_during_the_final_check_saves_the_connection():
    core, (a, _, _) = due_at_three()

    def spare(leases):
        assert a.retime(None, now=3.0)
        return []

    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [B, C]
    core.check()
    assert drive(core, 100.0) == []
    assert core.oldest(3) == [A]


def test_slots_without_a_timeout_wait_nowhere_and_go_with_their_last_lease():
    core = IdleReaper(tick=1.0, wheel_size=2)
    for number in range(300):
        core.register(number, timeout=None, now=float(number))
        core.close_epoch(number + 0.5)
    assert (core.statistics().slots, core.statistics().slots_in_wheel) == (0, 0)
    assert core.oldest(2) == [0, 1]
    for number in range(300):
        core.discard(number)
        core.check()
    assert not core._slots
