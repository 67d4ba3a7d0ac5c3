"""No call holds the loop for long, whatever the timeouts are: a machine that draws them
to do harm, and counts the lines that each call executes.

What is bounded is a constant times the steps that a call may take. They are few here,
and so are the entries of a chunk: a pass over all that there is then shows with some
hundred leases.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reaper import Expiry, IdleReaper, Lease, TimingWheel
from reaper.core import agenda, slots, sweep, wheel
from reaper.core import reaper as core_module
from tests.helpers.lines import Lines

CHUNK = 4
STEPS_PER_CALL, STEPS_PER_SLOT = 24, 6
STEPS_PER_CHUNK = 2
SLOTS_PER_CALL = STEPS_PER_CALL // STEPS_PER_SLOT
MOST_KEYS = 64
LIMIT = 3

AT_FIRST = 500
"""Leases of a machine when it begins."""

MOST_LINES = 750
"""That a call may execute. Whatever passes over the leases that were there at first,
and executes two lines for each, takes more; what was seen of right calls is 642.
"""

TICK = 1.0
WHEEL_SIZE = 4
COARSE = float(TICK * WHEEL_SIZE**3)  # a slot of the wheel's third level
LEVELS = 16  # reach 4e9 ticks, further than any timeout here


def draw_each_its_own(choose: random.Random) -> float:
    return choose.uniform(0.1, 2 * COARSE)


FAMILIES: dict[str, Callable[[random.Random], float | None]] = {
    "equal": lambda choose: 9.0,
    "equal, far away": lambda choose: 3 * COARSE,
    "each its own": draw_each_its_own,
    "each its own, within an epoch": lambda choose: choose.uniform(0.01, 0.4),
    "each its own, within the ring": lambda choose: choose.uniform(1.0, 3.0),
    "each its own, within one coarse slot": lambda choose: COARSE + choose.random() * COARSE / 2,
    "each its own, months": lambda choose: 1e6 * (1 + choose.random()),
    "jittered": lambda choose: 9.0 + choose.randrange(16),
    "ages": lambda choose: float(int(2 * COARSE * (1 - 0.1 * choose.random()))),
    "none": lambda choose: None,
    "all of them": lambda choose: choose.choice(
        [None, 9.0, COARSE, 0.3, draw_each_its_own(choose), 1e9 + choose.random()]
    ),
}

MANY = st.sampled_from([1, 20, 300])
STEPS = st.sampled_from([0.0, 0.1, 0.5, 0.5, 1.0, 3.0, COARSE / 2, COARSE, 5000.0, 2e6])
SHARES = st.sampled_from([0.1, 0.5, 1.0])


lines = Lines("/reaper/core/")


@pytest.fixture(scope="module", autouse=True)
def _lines_are_counted() -> Iterator[None]:
    with lines:
        yield


def make_small(patch: pytest.MonkeyPatch, *, rounds: bool = False) -> None:
    """Have a call take few steps, and a chunk few entries.

    Args:
        rounds: Whether timeouts are rounded, which leaves few slots to do harm with.
    """
    if not rounds:
        patch.setattr(IdleReaper, "_round_timeouts", lambda core: None)
    for module in slots, sweep, wheel, core_module:
        patch.setattr(module, "CHUNK", CHUNK)
    patch.setattr(sweep, "WORTH_MOVING", CHUNK // 2)
    patch.setattr(core_module, "STEPS_PER_CALL", STEPS_PER_CALL)
    for module in sweep, agenda:
        patch.setattr(module, "STEPS_PER_SLOT", STEPS_PER_SLOT)
    patch.setattr(sweep, "STEPS_PER_CHUNK", STEPS_PER_CHUNK)
    patch.setattr(agenda, "MOST_KEYS", MOST_KEYS)
    patch.setattr(agenda, "MOST_EXACT", 4)
    patch.setattr(agenda, "SLOTS_PER_CALL", SLOTS_PER_CALL)


class Adversary(RuleBasedStateMachine):
    """Every call is short, every due instant is exact, and what is due comes in
    order.
    """

    rounds = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_small(self.patch, rounds=self.rounds)
        self.core = IdleReaper(tick=TICK, wheel_size=WHEEL_SIZE, epochs_per_tick=2)
        # A wheel makes its levels once; that alone is bounded by a test of its own.
        far: TimingWheel[Any] = self.core._agenda.far
        far.schedule(WHEEL_SIZE**LEVELS - WHEEL_SIZE ** (LEVELS - 1), None).cancel()
        self.now = 1000.0
        self.choose = random.Random(7)
        self.uids = 0
        self.leases: list[Lease] = []
        self.postponed: dict[
            Lease, int
        ] = {}  # limits, and the number of the epoch that they wait for

    def teardown(self) -> None:
        self.patch.undo()

    def short(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        found, count = lines.of(call, *args, **named)
        assert count <= MOST_LINES, f"{call.__name__} took {count} lines, {len(self.core)} leases"
        return found

    def due(self, lease: Lease) -> float:
        timeout, until = lease._slot.key[0], lease.active_until
        return float("inf") if timeout is None or until is None else until + timeout

    def some(self, share: float) -> list[Lease]:
        return [lease for lease in self.leases if lease.alive and self.choose.random() < share]

    # ---- the rules ----
    @initialize(family=st.sampled_from(sorted(FAMILIES)))
    def begin(self, family: str) -> None:
        self.open(family, AT_FIRST)

    @rule(family=st.sampled_from(sorted(FAMILIES)), count=MANY)
    def open(self, family: str, count: int) -> None:
        for _ in range(count):
            timeout = FAMILIES[family](self.choose)
            self.uids += 1
            self.leases.append(self.short(self.core.register, self.uids, timeout, self.now))

    @rule(share=SHARES)
    def touch(self, share: float) -> None:
        for lease in self.some(share):
            lease.touch()

    @rule(share=SHARES)
    def release(self, share: float) -> None:
        for lease in self.some(share):
            assert self.short(lease.release)

    @rule(share=SHARES)
    def suspend_and_resume(self, share: float) -> None:
        some = self.some(share)
        for lease in some:
            assert self.short(lease.suspend)
        for lease in some:
            assert self.short(lease.resume, self.now)

    @rule(family=st.sampled_from(sorted(FAMILIES)), share=SHARES)
    def retime(self, family: str, share: float) -> None:
        for lease in self.some(share):
            assert self.short(lease.retime, FAMILIES[family](self.choose), self.now)
            self.postponed.pop(lease, None)  # with another timeout it is due or not by that

    @rule(step=STEPS)
    def close_epoch(self, step: float) -> None:
        self.now += step
        self.short(self.core.close_epoch, self.now)

    @rule(step=STEPS, spared=st.sampled_from([0.0, 0.0, 0.5, 1.0]), wakes=st.integers(1, 400))
    def work_off(self, step: float, spared: float, wakes: int) -> None:
        self.now += step

        def spare(leases: Sequence[Lease]) -> dict[Lease, bool]:
            found = {lease: False for lease in leases if self.choose.random() < spared}
            assert all(self.postponed.get(lease) != epochs for lease in leases)
            self.postponed.update(dict.fromkeys(found, epochs))
            return found

        self.short(self.core.close_epoch, self.now, at_least=0.25)
        epochs = self.core.statistics().epochs
        last = float("-inf")
        for _ in range(wakes):
            due = {lease: self.due(lease) for lease in self.leases if lease.alive}
            expired: list[Expiry] = self.short(self.core.expire, self.now, LIMIT, spare)
            assert len(expired) <= LIMIT
            for expiry in expired:
                assert last <= expiry.due == due.pop(expiry.lease) <= self.now
                assert expiry.lateness == self.now - expiry.due
                last = expiry.due
            wake = self.short(self.core.next_wakeup)
            if wake is None or wake > self.now:
                late = [lease for lease, instant in due.items() if instant <= self.now]
                assert all(self.postponed.get(lease) == epochs for lease in late)
                break
        self.leases = [lease for lease in self.leases if lease.alive]

    @invariant()
    def books_agree(self) -> None:
        self.core.check()
        wake = self.core.next_wakeup()
        if self.core._armed:
            assert wake is not None
            assert wake <= self.core.epoch_ends
        assert self.core.oldest(LIMIT) == sorted(
            self.core.oldest(LIMIT), key=lambda uid: self.core.explain(uid).active_from
        )
        # A dict that grows by one entry more is gone through as a whole.
        for slot in [*self.core._agenda.slots, *self.core._never.row, *self.core._agenda.unfiled]:
            assert len(slot.epoch.slots) <= MOST_KEYS


TestNoCallIsLong = Adversary.TestCase
TestNoCallIsLong.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=15, deadline=None
)


class RoundingAdversary(Adversary):
    rounds = True


TestNoCallIsLongWhereTimeoutsAreRounded = RoundingAdversary.TestCase
TestNoCallIsLongWhereTimeoutsAreRounded.settings = settings(
    max_examples=settings().max_examples // 10, stateful_step_count=15, deadline=None
)


# What the machine does not reach with its leases: more of them in one state. Each of
# these mutants was green there, and is red here: a sweep, the dropping of empty slots,
# the moving of postponed limits or the emptying of a wheel's slot without a bound, and
# a reap that does not ask what is left in the wheel.
MANY_MORE = 2000


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> IdleReaper:
    """With few steps to a call, as the machine's."""
    make_small(monkeypatch)
    return IdleReaper(tick=TICK, wheel_size=WHEEL_SIZE, epochs_per_tick=2)


def short(call: Callable[..., Any], *args: Any) -> Any:
    found, count = lines.of(call, *args)
    assert count <= MOST_LINES, f"{call.__name__} took {count} lines"
    return found


def test_a_pass_in_one_line_counts_by_what_it_passes_over(core: IdleReaper) -> None:
    """On every CPython; of what they tell of such a loop each has its own idea."""
    counts = []
    for number in 10, 90:
        for uid in range(number * CHUNK):
            lease = core.register((number, uid), 9.0, 0.0)
        size, count = lines.of(lease._slot.__len__)
        counts.append(count)
    assert size == 100 * CHUNK
    assert counts[1] - counts[0] == 90


def test_what_another_thread_executes_meanwhile_is_not_counted(core: IdleReaper) -> None:
    """An earlier test of this process may have left one that keeps its connections."""
    stop, worked = threading.Event(), threading.Event()

    def another() -> None:
        other = IdleReaper(tick=TICK)
        while not stop.is_set():
            other.register("uid", 9.0, 0.0).release()
            worked.set()

    class Uid:
        """Looked up amid the call, it waits until the other thread has worked."""

        def __hash__(self) -> int:
            for _ in range(3):
                worked.clear()
                assert worked.wait(60)
            return 1

    core.register("first", 9.0, 0.0)
    _, alone = lines.of(core.register, "second", 9.0, 0.0)
    thread = threading.Thread(target=another)
    thread.start()
    try:
        _, count = lines.of(core.register, Uid(), 9.0, 0.0)
    finally:
        stop.set()
        thread.join()
    assert count == alone


def test_a_slot_whose_leases_have_all_spoken_is_moved_by_short_calls(core: IdleReaper) -> None:
    leases = [core.register(uid, 2.0, 0.0) for uid in range(MANY_MORE)]
    core.close_epoch(0.5)
    for lease in leases:
        lease.touch()
    core.close_epoch(1.0)
    while core.statistics().moved < MANY_MORE:
        assert short(core.expire, 2.5, LIMIT) == []
    assert core.next_wakeup() == 1.5  # the open epoch's end


def test_leases_that_spoke_in_an_epoch_each_are_moved_by_short_calls(core: IdleReaper) -> None:
    leases = [core.register(uid, 2.0 * MANY_MORE, 0.0) for uid in range(MANY_MORE)]
    core.register("first", 1.0, 0.0)
    now = 0.5
    for lease in random.Random(1).sample(leases, MANY_MORE):
        core.close_epoch(now)
        lease.touch()
        now += 0.5
    core.close_epoch(now)
    now = 2.0 * MANY_MORE + 0.5
    while core.statistics().moved < MANY_MORE:
        short(core.expire, now, LIMIT)
    assert core.statistics().registered == MANY_MORE


def test_a_chunk_that_has_one_lease_left_counts_as_several_that_are_moved(
    core: IdleReaper,
) -> None:
    leases = [core.register(uid, 2.0, 0.0) for uid in range(MANY_MORE)]
    core.close_epoch(0.5)
    for lease in leases:
        lease.touch() if lease.uid % CHUNK == 0 else lease.release()
    core.close_epoch(1.0)
    before = 0
    while (moved := core.statistics().moved) < MANY_MORE // CHUNK:
        assert moved - before <= STEPS_PER_CALL // (1 + STEPS_PER_CHUNK) + 1
        assert short(core.expire, 2.5, LIMIT) == []
        before = moved


def test_a_slot_that_its_epoch_has_forgotten_is_kept_and_comes_due(core: IdleReaper) -> None:
    timeouts = [1.0 + number / 1024 for number in range(3 * MOST_KEYS)]
    for uid in range(2 * len(timeouts)):
        core.register(uid, timeouts[uid % len(timeouts)], 0.0)
        core.check()
    for uid in range(0, 2 * len(timeouts), 3):
        core._leases[uid].suspend()
        core.check()
    core.advance(0.5)
    assert len(list(core._agenda.slots)) > len(timeouts)
    due = {expiry.uid: expiry.due for expiry in core.advance(10.0)}
    core.check()
    assert due == {
        uid: 0.5 + timeouts[uid % len(timeouts)] for uid in range(2 * len(timeouts)) if uid % 3
    }
    assert not list(core._agenda.slots)
    for lease in [*core._leases.values()]:
        lease.release()
        core.check()
    assert not list(core._never.row)


def test_slots_that_were_emptied_where_they_wait_are_dropped_by_short_calls(
    core: IdleReaper,
) -> None:
    core.register("stays", 1e6, 0.0)
    leases = [core.register(uid, 1.0 + uid / 1e4, 0.0) for uid in range(MANY_MORE)]
    core.advance(0.5)
    assert core.statistics().slots == MANY_MORE
    for lease in leases:
        lease.release()
    while core.statistics().slots:
        assert short(core.next_wakeup) <= 1.0


def test_limits_that_were_spared_come_due_again_by_short_calls(core: IdleReaper) -> None:
    for uid in range(MANY_MORE):
        core.register(uid, 2.0, 0.0)
    core.advance(0.5)
    spared: list[Lease] = []

    def spare(leases: Sequence[Lease]) -> dict[Lease, bool]:
        spared.extend(leases)
        return dict.fromkeys(leases, False)

    core.close_epoch(2.5)
    while len(spared) < MANY_MORE:
        assert core.expire(2.5, MANY_MORE, spare) == []
    expired: list[Expiry] = []
    short(core.close_epoch, 3.0)
    while len(expired) < MANY_MORE:
        expired += short(core.expire, 3.0, LIMIT)
    assert len({expiry.uid for expiry in expired}) == MANY_MORE


def test_a_slot_of_a_wheel_and_what_is_due_at_once_are_emptied_by_short_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_small(monkeypatch)
    wheel = TimingWheel[int](tick=1, wheel_size=WHEEL_SIZE)
    for number in range(MANY_MORE):
        wheel.schedule(10_000 + number % 7, number)  # in one slot of a high level
    for number in range(MANY_MORE):
        wheel.schedule(0, number)
    found = 0
    for now in 0, 9_990, 10_003, 10_006:
        while (wake := wheel.next_expiry()) is not None and wake <= now:
            some = short(wheel.advance, now, LIMIT)
            assert len(some) <= LIMIT
            found += len(some)
    assert found == 2 * MANY_MORE


def test_levels_of_a_wheel_are_made_by_a_short_call() -> None:
    wheel = TimingWheel[int](tick=1, wheel_size=WHEEL_SIZE)
    short(wheel.schedule, WHEEL_SIZE ** (2 * LEVELS) - WHEEL_SIZE ** (2 * LEVELS - 1), 0)
    assert len(wheel.levels) == 2 * LEVELS


def test_nothing_is_reaped_before_what_is_left_in_the_wheel_and_due_earlier(
    core: IdleReaper,
) -> None:
    choose = random.Random(1)
    for uid in range(300):
        core.register(uid, COARSE + choose.random() * COARSE / 2, 0.0)
    core.advance(0.5)
    assert core.statistics().slots_in_wheel == 300
    now, dues = 10 * COARSE, []
    core.close_epoch(now)
    while core:
        dues += [expiry.due for expiry in core.expire(now, LIMIT)]
    assert dues == sorted(dues)
    assert len(dues) == 300


@pytest.mark.parametrize("count", [1000, 4000])
def test_work_that_a_call_has_left_is_done_by_as_many_calls_as_it_takes(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdleReaper, "_round_timeouts", lambda core: None)
    core = IdleReaper(tick=TICK, epochs_per_tick=2)
    choose = random.Random(1)
    for uid in range(count):
        core.register(uid, 300.0 + choose.random() * 60, now=0.0)
    calls = 0
    core.close_epoch(0.5)
    while core.next_wakeup() == 0.5:
        assert core.expire(0.5, limit=1) == []
        calls += 1
    assert calls == -(-count // agenda.SLOTS_PER_CALL) - 1
    assert len(core.advance(1000.0)) == count


def test_a_wheel_with_a_limit_hands_out_all_in_as_many_calls_as_it_takes() -> None:
    wheel = TimingWheel[int](tick=10, wheel_size=8)
    choose = random.Random(1)
    timers = [wheel.schedule(choose.randrange(-5, 100_000), number) for number in range(5000)]
    for timer in timers[::3]:
        timer.cancel()
    waiting = {timer for timer in timers if not timer.cancelled}
    now = 0
    while waiting:
        now += choose.choice([0, 1, 10, 640, 5120])
        while True:
            found = wheel.advance(now, limit=10)
            assert len(found) <= 10
            assert [timer.deadline for timer in found] == sorted(timer.deadline for timer in found)
            assert all(-(-timer.deadline // 10) * 10 <= max(now, 0) for timer in found)
            waiting -= set(found)
            wheel.check()
            wake = wheel.next_expiry()
            if wake is None or wake > now:
                break
            assert all(timer.deadline <= 0 or timer.deadline > wake - 10 for timer in waiting)
        assert all(-(-timer.deadline // 10) * 10 > now for timer in waiting)
    assert len(wheel) == 0


def test_a_wheel_refuses_a_limit_that_is_none() -> None:
    wheel = TimingWheel[None]()
    with pytest.raises(ValueError, match="limit must be an integer >= 1, got 0"):
        wheel.advance(1, limit=0)
    assert wheel.now == 0
