"""DenseReaper, claim by claim, where it is not IdleReaper's claim too. Virtual time; check() after everything."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest

import reaper
from reaper import (
    DenseReaper,
    IdleReaper,
    InvalidArgument,
    InvariantViolated,
    UnknownUid,
)
from reaper.core.law import MOVES_PER_CALL


def drive(core: DenseReaper, until: float, now: float = 0.0) -> list[reaper.Expiry]:
    """Advance exactly when the core asks for it, up to *until*."""
    expired = []
    while (wake := core.next_wakeup()) is not None and wake <= until:
        now = max(wake, now)
        expired += core.advance(now)
        if len(core) < 100:
            core.check()
    core.check()
    return expired


# ---- the law --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [222.5, 223.0, 254.0, 255.0, 600.0, 20_000.0])
def test_a_timeout_of_more_epochs_than_there_are_numbers_is_kept_to_the_instant(timeout):
    core = DenseReaper(tick=1.0)
    for uid in range(5):
        core.register(uid, timeout=timeout, now=0.0)
    core.register(5, timeout=1e9, now=0.0)  # keeps the epochs going
    (first, *others) = drive(core, 100.0) or [None]
    assert first is None
    assert not others
    core.touch_many([1, 3])  # in the epoch from 100 to 101
    reaped = []
    while len(core) > 1:
        reaped += core.advance(core.next_wakeup())
    assert [(expiry.uid, expiry.due, expiry.lateness) for expiry in reaped] == [
        *((uid, 1.0 + timeout, 0.0) for uid in (0, 2, 4)),
        *((uid, 101.0 + timeout, 0.0) for uid in (1, 3)),
    ]
    core.check()


def test_when_numbers_run_out_the_epoch_stays_open_which_is_late_and_never_early():
    core = DenseReaper(tick=1.0)
    core.register(0, timeout=2.0, now=0.0)
    for second in range(1, 300):
        core.close_epoch(float(second))  # and none ever expires
    statistics = core.statistics()
    assert (statistics.slots, statistics.overlong) == (253, 299 - 253)
    core.touch(0)  # at 299, in an epoch open since 253
    assert core.next_wakeup() <= 299.0
    assert core.expire(299.0) == []
    assert core.close_epoch(300.0)  # `expire` has won numbers back
    assert [(expiry.due, expiry.lateness) for expiry in core.expire(302.0)] == [(302.0, 0.0)]
    assert core.statistics().overlong == 46
    core.check()


def test_numbers_never_run_out_if_advance_is_called_on_demand():
    core = DenseReaper(tick=1.0)
    for uid in range(50):
        core.register(uid, timeout=10_000.0, now=0.0)
    drive(core, 2_000.0)
    assert core.statistics().overlong == 0
    assert core.statistics().moved == 50


def test_with_nothing_armed_all_numbers_are_free_again_and_the_lists_of_the_aged_are_gone():
    core = DenseReaper(tick=1.0)
    lease = core.register(3, timeout=1000.0, now=0.0)
    drive(core, 300.0)
    assert core.explain(3).place == "aged"
    assert core.statistics().slots_in_wheel == 1
    lease.suspend()
    assert core.next_wakeup() is None
    lease.resume(5000.0)
    statistics = core.statistics()
    assert (statistics.slots, statistics.slots_in_wheel) == (0, 0)
    core.check()


# ---- what names a connection ----------------------------------------------------------------------------------------


def test_a_handle_that_outlived_its_connection_does_nothing_to_the_next_one_with_its_number():
    core = DenseReaper(tick=1.0)
    late = core.register(4, timeout=2.0, now=0.0)
    assert late.release()
    core.register(4, timeout=2.0, now=0.0, reason="headers")
    core.close_epoch(1.0)
    late.touch()
    assert (late.alive, late.suspended, late.timeout, late.reason) == (False, False, None, None)
    assert not late.suspend()
    assert not late.resume(1.0)
    assert not late.retime(50.0, 1.0)
    assert not late.release()
    assert "ended" in repr(late)
    assert [expiry.reason for expiry in core.expire(3.0)] == ["headers"]
    core.check()


def test_a_blind_store_after_the_end_brings_no_connection_back():
    core = DenseReaper(tick=1.0)
    core.register(4, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    core.expire(3.0)
    core.epochs[4] = core.open_number
    assert 4 not in core
    core.register(5, timeout=2.0, now=3.0)
    core.epochs[4] = core.open_number
    assert [expiry.uid for expiry in drive(core, 100.0)] == [5]


def test_the_descriptor_of_a_closed_socket_touches_nothing():
    core = DenseReaper(tick=1.0, capacity=4)
    for uid in range(4):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    assert not core.touch(-1)
    assert not core.touch(-2)
    core.touch_many([-1, -2, -4])
    core.epochs[-1] = core.open_number
    assert [expiry.uid for expiry in core.expire(3.0)] == [0, 1, 2, 3]
    assert core.capacity == 4


@pytest.mark.parametrize("uid", [5, 10**9, "5", None, 1.5, (1,)])
def test_touch_and_discard_of_an_unregistered_number_return_false(uid):
    core = DenseReaper(tick=1.0, capacity=8)
    core.register(3, timeout=2.0, now=0.0)
    assert core.touch(uid) is False
    assert core.discard(uid) is False
    assert uid not in core
    with pytest.raises(UnknownUid, match="is not registered"):
        core.explain(uid)


def test_touch_many_passes_over_unregistered_numbers_and_reaches_the_rest():
    core = DenseReaper(tick=1.0, capacity=0)
    for uid in (0, 1, 2):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    core.touch_many(iter([10**9, 0, -1, 50_000, 2]))
    assert [expiry.uid for expiry in core.expire(3.0)] == [1]


def test_handles_on_one_registration_are_equal_and_those_on_two_are_not():
    core, other = DenseReaper(), DenseReaper()
    first = core.register(1, timeout=2.0, now=0.0)
    seen = []
    core.close_epoch(1.0)
    core.expire(3.0, spare=lambda leases: seen.extend(leases) or leases)
    assert seen == [first]
    assert {first: "kept"}[seen[0]] == "kept"
    assert seen[0] is not first
    assert other.register(1, timeout=2.0, now=0.0) != first
    first.release()
    assert core.register(1, timeout=2.0, now=3.0) != first
    assert isinstance(first, reaper.Lease)


# ---- who is found, and in what order --------------------------------------------------------------------------------


def test_those_due_at_one_instant_come_by_uid_lane_by_lane_earliest_first():
    core = DenseReaper(tick=1.0)
    for uid, timeout in ((9, 3.0), (4, 3.0), (7, 2.0), (2, 2.5), (8, 3.0)):
        core.register(uid, timeout=timeout, now=0.0)
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.expire(10.0)] == [7, 2, 4, 8, 9]


def test_slices_resume_where_they_stopped_and_what_was_touched_meanwhile_lives():
    core = DenseReaper(tick=1.0)
    for uid in range(100):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    core.close_epoch(3.0)
    found = []
    for _ in range(4):
        found += [expiry.uid for expiry in core.expire(3.0, limit=10)]
        assert core.next_wakeup() <= 3.0
        core.check()
    core.touch(50)
    core.discard(51)
    while expired := core.expire(3.0, limit=7):
        found += [expiry.uid for expiry in expired]
        core.check()
    assert found == [uid for uid in range(100) if uid not in (50, 51)]


def test_a_connection_that_gets_an_old_epoch_behind_the_search_is_found():
    """A slice has passed uid 3; then 3 is retimed into the lane searched, and was last active in that epoch."""
    core = DenseReaper(tick=1.0)
    other = core.register(3, timeout=50.0, now=0.0)
    for uid in range(4, 14):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    assert [expiry.uid for expiry in core.expire(3.0, limit=5)] == [4, 5, 6, 7, 8]
    assert other.retime(2.0, 3.0)
    core.check()
    assert [expiry.uid for expiry in core.expire(3.0, limit=5)] == [3, 9, 10, 11, 12]


def test_a_connection_retimed_to_an_epoch_long_worked_off_is_due_at_once():
    core = DenseReaper(tick=1.0)
    slow = core.register(0, timeout=100.0, now=0.0)
    core.register(1, timeout=2.0, now=0.0)
    for second in range(1, 50):
        core.touch(1)
        assert core.advance(float(second)) == []
    slow.retime(2.0, 49.0)
    core.check()
    assert core.next_wakeup() == 3.0
    assert [(expiry.uid, expiry.due, expiry.lateness) for expiry in core.expire(49.0)] == [(0, 3.0, 46.0)]
    core.check()


def test_a_limited_call_steps_over_only_so_many_neighbours_and_says_there_is_more():
    """Every other uid has a longer timeout and was last active in the epoch that is due: the worst for the search."""
    core = DenseReaper(tick=1.0)
    n = 5 * MOVES_PER_CALL
    for uid in range(n):
        core.register(uid, timeout=2.0 if uid % 2 else 90.0, now=0.0)
    core.close_epoch(1.0)
    core.touch_many(range(1, n - 1, 2))  # of the odd ones only the last is silent
    core.close_epoch(2.0)
    calls = 1
    while not (expired := core.expire(3.0, limit=5)):
        assert core.next_wakeup() <= 3.0
        core.check()
        calls += 1
    assert [expiry.uid for expiry in expired] == [n - 1]
    assert calls == 3


def test_ageing_is_sliced_too_and_asks_to_be_called_again():
    core = DenseReaper(tick=1.0)
    n = 3 * MOVES_PER_CALL
    for uid in range(n):
        core.register(uid, timeout=1000.0, now=0.0)
    for second in range(1, 225):
        core.close_epoch(float(second))
    moved = []
    while core.next_wakeup() <= 224.0:
        assert core.expire(224.0, limit=5) == []
        core.check()
        moved.append(core.statistics().moved)
    steps = [after - before for before, after in zip([0, *moved], moved, strict=False)]
    assert max(steps) <= MOVES_PER_CALL / 2
    assert (len(steps), moved[-1]) == (7, n)
    assert len(drive(core, 1001.0)) == n


def test_when_an_epoch_falls_due_in_the_middle_of_its_ageing_that_of_the_next_begins_at_the_beginning():
    core = DenseReaper(tick=1.0)
    for uid in range(10, MOVES_PER_CALL):
        core.register(uid, timeout=223.5, now=0.0)
    core.close_epoch(1.0)
    core.register(5, timeout=1000.0, now=1.0)
    for second in range(2, 225):
        core.close_epoch(float(second))
    core.expire(224.0, limit=1)
    assert 0 < core.statistics().moved < MOVES_PER_CALL - 10
    assert len(core.expire(224.5)) == MOVES_PER_CALL - 10
    core.check()
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 2000.0, now=224.5)] == [(5, 1002.0)]


def test_aged_connections_are_touched_retimed_suspended_and_released_like_others():
    core = DenseReaper(tick=1.0)
    leases = [core.register(uid, timeout=1000.0, now=0.0) for uid in range(7)]
    drive(core, 400.0)
    assert {core.explain(uid).place for uid in range(7)} == {"aged"}
    leases[1].touch()
    leases[2].retime(500.0, 400.0)
    leases[3].suspend()
    leases[4].release()
    leases[5].retime(300.0, 400.0)
    leases[6].retime(500.0, 400.0)
    leases[6].retime(1000.0, 400.0)
    core.check()
    assert [core.explain(uid).due for uid in (0, 1, 2, 3, 5, 6)] == [1001.0, 1401.0, 501.0, None, 301.0, 1001.0]
    assert core.oldest(9) == [0, 2, 5, 6, 1]
    assert [(expiry.uid, expiry.due) for expiry in drive(core, 2000.0, now=400.0)] == [
        (5, 301.0),
        (2, 501.0),
        (0, 1001.0),
        (6, 1001.0),
        (1, 1401.0),
    ]
    assert len(core) == 1


def test_what_is_retimed_released_or_suspended_during_the_final_check_is_not_reaped():
    core = DenseReaper(tick=1.0)
    for uid in range(4):
        core.register(uid, timeout=2.0, now=0.0)
    core.close_epoch(1.0)

    def spare(leases):
        leases[0].retime(50.0, 3.0)
        leases[1].release()
        leases[2].suspend()
        return [leases[1]]

    assert [expiry.uid for expiry in core.expire(3.0, spare=spare)] == [3]
    core.check()
    assert core.explain(0).due == 51.0
    assert core.statistics().averted == 0


def test_retiming_the_aged_to_and_fro_does_not_grow():
    core = DenseReaper(tick=1.0)
    lease = core.register(0, timeout=1000.0, now=0.0)
    drive(core, 400.0)
    for _ in range(5000):
        lease.retime(2000.0, 400.0)
        lease.retime(1000.0, 400.0)
    assert sum(len(slot.uids) for slot in core._aged._slots.values()) <= 2 * 66
    core.check()
    assert [expiry.due for expiry in drive(core, 3000.0)] == [1001.0]


def test_oldest_goes_by_the_last_touch_then_by_uid_and_leaves_out_the_suspended():
    core = DenseReaper(tick=1.0)
    leases = [core.register(uid, timeout=90.0, now=0.0) for uid in range(6)]
    core.close_epoch(1.0)
    core.touch_many([4, 1])
    core.close_epoch(2.0)
    leases[0].touch()
    leases[3].suspend()
    assert core.oldest(10) == [2, 5, 1, 4, 0]
    assert core.oldest(3) == [2, 5, 1]
    assert core.oldest(0) == []


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_a_connection_costs_six_bytes_and_four_to_eight_more_once_it_has_aged():
    n = 5_000
    core = DenseReaper(tick=1.0, capacity=n)
    for uid in range(n):
        core.register(uid, timeout=900.0, now=0.0)

    def size():
        arrays = (core.epochs, core._lanes_of, core._generations, core._aged._slot_of)
        return sum(map(sys.getsizeof, arrays)) + sum(sys.getsizeof(s.uids) for s in core._aged._slots.values())

    assert size() / n < 6.5
    drive(core, 300.0)
    assert core.statistics().moved == n
    assert size() / n < 6.5 + 4 + 4.6
    core.touch_many(range(n))
    drive(core, 1000.0)
    assert len(core._aged) == 1  # of the second silence; the list of the first is gone, although it was empty


def test_it_grows_by_a_quarter_and_no_further_than_the_largest_uid():
    core = DenseReaper(capacity=100, max_uid=130)
    core.register(100, timeout=2.0, now=0.0)
    assert core.capacity == 126
    epochs = core.epochs
    core.register(130, timeout=2.0, now=0.0)
    assert core.capacity == 131
    assert core.epochs is epochs
    core.check()
    assert [expiry.uid for expiry in drive(core, 9.0)] == [100, 130]


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", [-1, 131, "3", 3.0, None, True])
def test_a_uid_that_is_no_small_number_is_refused_by_value(uid):
    core = DenseReaper(max_uid=130)
    with pytest.raises(InvalidArgument, match=r"uid must be an integer from 0 to 130, got"):
        core.register(uid, timeout=2.0, now=0.0)
    assert len(core) == 0
    assert core.next_wakeup() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tick": 0.0}, "tick must be a finite number of seconds > 0, got 0.0"),
        ({"epochs_per_tick": 0}, "epochs_per_tick must be an integer >= 1, got 0"),
        ({"capacity": -1}, "capacity must be an integer >= 0, got -1"),
        ({"max_uid": 1.5}, "max_uid must be an integer >= 0, got 1.5"),
    ],
)
def test_bad_settings_are_refused_by_name_and_value(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        DenseReaper(**arguments)


def test_more_kinds_of_connections_than_a_byte_can_name_are_refused_until_one_has_gone():
    core = DenseReaper(tick=1.0)
    leases = [core.register(uid, timeout=1.0 + uid, now=0.0) for uid in range(255)]
    for call in (
        lambda: core.register(300, timeout=0.5, now=0.0),
        lambda: leases[0].retime(0.5, 0.0),
        lambda: leases[0].suspend(),
    ):
        with pytest.raises(InvalidArgument, match=r"at most 255 distinct \(timeout, reason\) can be in use"):
            call()
        core.check()
    assert len(core) == 255
    leases[9].release()
    core.register(300, timeout=0.5, now=0.0)
    assert core.statistics().lanes == 255
    assert [expiry.uid for expiry in drive(core, 1e6)] == [300, *(uid for uid in range(255) if uid != 9)]


def dead_lease(core):
    lease = core.register(9, timeout=1.0, now=1.0)
    lease.release()
    return lease


@pytest.mark.parametrize(
    "break_it",
    [
        lambda core: core.epochs.__setitem__(0, 0),
        lambda core: core.epochs.__setitem__(0, 200),
        lambda core: core.epochs.__setitem__(0, 255),
        lambda core: core._lanes_of.__setitem__(1, 0),
        lambda core: core._lanes_of.__setitem__(0, 9),
        lambda core: core._lanes_of.__setitem__(-1, 1),
        lambda core: setattr(next(iter(core._lanes.values())), "next", 2),
        lambda core: setattr(next(iter(core._lanes.values())), "cursor", 1),
        lambda core: setattr(core, "_age_cursor", 1),
        lambda core: setattr(core, "_armed", 3),
        lambda core: setattr(core, "open_number", 77),
        lambda core: core._live.append(core._live[0]),
        lambda core: core._hooks.__setitem__(dead_lease(core), print),
    ],
)
def test_check_finds_a_broken_book(break_it):
    core = DenseReaper(tick=1.0)
    for uid in range(2):
        core.register(uid, timeout=20.0, now=0.0)
    core.close_epoch(1.0)
    core.check()
    break_it(core)
    with pytest.raises(InvariantViolated):
        core.check()


def test_it_has_every_public_method_of_idle_reaper_and_the_adapters_find_what_they_look_for():
    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(IdleReaper) - public(DenseReaper) == {"report_silences"}
    assert public(reaper.Lease) <= public(reaper.DenseLease)
    assert public(DenseReaper) - public(IdleReaper) == {"touch_many", "capacity"}


def test_the_page_about_it_computes_what_it_shows():
    page = Path(__file__).parent.parent / "docs" / "dense.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert (results.failed, results.attempted) == (0, 11)


def test_a_connection_that_begins_in_an_epoch_half_aged_is_aged_too():
    core = DenseReaper(tick=1.0, capacity=20_000)
    core._age_from = 3
    for uid in range(10_000):
        core.register(uid, timeout=500.0, now=0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        core.close_epoch(now)
    core.expire(4.0, limit=1)  # ages some of those active before 1.0, in the order of their numbers
    assert 0 < core._age_cursor < 10_000
    core.discard(3)
    core.register(3, timeout=500.0, now=4.0, since=0.5)
    core.check()
    while core.next_wakeup() <= 4.0:
        core.expire(4.0, limit=1)
    core.check()
    assert core.explain(3).due == 501.0
