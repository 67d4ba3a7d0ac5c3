"""IdleReaper, claim by claim. Virtual time throughout; check() after everything."""

from __future__ import annotations

import dis
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reaper import (
    IdleReaper,
    IdleRing,
    InvalidArgument,
    InvariantViolated,
    Level,
    TimingWheel,
    UnknownUid,
)
from reaper.core.agenda import STEPS_PER_CALL
from reaper.core.lease import IdleSlot, Lease
from tests.core.test_law import drive, wake_of


def test_a_month_at_a_tenth_of_a_second_costs_no_more_than_a_minute() -> None:
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
        # Only cascades and due instants: between them the epochs close with nothing to
        # do.
        now = max(now, min(wake_of(core) + 60.0, month + 0.1))
        visits += 1
        expired = core.advance(now)
        core.check()
    assert [expiry.uid for expiry in expired] == ["month"]
    assert not lease.alive
    assert core.statistics().max_lateness <= 61.0


def test_a_released_month_leaves_nothing_behind() -> None:
    core = IdleReaper(tick=0.1)
    gc.disable()  # what it collects by itself would be counted by nobody
    gc.freeze()  # a circle of the test before may be let go of only now
    try:
        for i in range(1000):
            lease = core.register(i, timeout=30 * 86400.0, now=i * 1.0)
            core.close_epoch(i * 1.0)
            lease.release()
        assert gc.collect() == 0  # no circle, which only the collector would free
    finally:
        gc.unfreeze()
        gc.enable()
    core.check()
    statistics = core.statistics()
    assert (statistics.slots, statistics.slots_in_wheel, statistics.registered) == (0, 0, 0)
    assert not list(core._agenda.slots)


@pytest.mark.parametrize("kind", ["whole chunks", "mixed chunks", "two slots"])
def test_a_limited_call_moves_only_so_many_leases_and_says_there_is_more(
    kind: str,
) -> None:
    core = IdleReaper(tick=1.0)
    n = 3 * STEPS_PER_CALL
    apart = (
        0.125 if kind == "two slots" else 0.0
    )  # each of more than one call may move, and due at the same call
    leases = [core.register(i, timeout=2.0 - i % 2 * apart, now=0.0) for i in range(n)]
    core.advance(1.0)
    early = 2 if kind == "mixed chunks" else n
    for lease in leases[::early]:
        lease.touch()
    core.close_epoch(2.0)
    for lease in leases:
        if early == n or lease.uid % 2:
            lease.touch()
    core.close_epoch(2.5)
    for calls in (1, 2, 3):
        assert wake_of(core) <= 3.0
        assert core.expire(3.0, limit=10) == []
        core.check()
        assert core.statistics().moved == calls * STEPS_PER_CALL
    assert wake_of(core) > 3.0


def test_each_connection_moves_at_most_once_a_timeout() -> None:
    core = IdleReaper(tick=1.0)
    lease = core.register("a", timeout=10.0, now=0.0)
    for tenth in range(1, 1000):
        lease.touch()
        core.advance(tenth / 10)
    assert core.statistics().moved <= 10


def test_explain_is_a_sentence_for_people() -> None:
    core = IdleReaper(tick=1.0, wheel_size=8)
    lease = core.register("a", timeout=5.0, now=0.0)
    assert "last active between 0.000 and now, due at 6.000" in str(core.explain("a"))
    core.close_epoch(1.25)
    assert "between 0.000 and 1.250, due at 6.250 (idle, timeout 5 s), near" in str(
        core.explain("a")
    )
    lease.suspend()
    assert core.explain("a").place == "suspended"
    assert str(core.explain("a")).endswith("cannot be reaped; timeout 5 s when it resumes")
    assert lease.retime(None, 2.0)
    assert lease.resume(2.0)
    assert core.explain("a").place == "no timeout"
    assert str(core.explain("a")).endswith("never due (idle, no timeout)")
    lease.suspend()
    assert str(core.explain("a")).endswith("cannot be reaped; no timeout when it resumes")
    with pytest.raises(UnknownUid, match="uid 'b' is not registered"):
        core.explain("b")


def test_huge_and_tiny_numbers_do_not_break_it() -> None:
    core = IdleReaper(tick=1e-3)
    core.register("never", timeout=1e308, now=1e9)
    core.register("soon", timeout=1e-6, now=1e9)
    core.advance(1e9 + 0.001)
    core.check()
    assert [expiry.uid for expiry in core.advance(1e9 + 1.0)] == ["soon"]
    assert len(core) == 1


@pytest.mark.parametrize("spare", [None, lambda leases: []])
def test_a_reaped_connection_is_garbage_at_once_without_the_collector(spare: Any) -> None:
    class Uid:
        pass

    def holds(uid: Uid) -> Callable[[Any], object]:
        return lambda expiry: uid

    core = IdleReaper(tick=1.0)
    uid = Uid()
    alive = weakref.ref(uid)
    core.register(uid, timeout=1.0, now=0.0, on=holds(uid))
    del uid
    gc.disable()
    try:
        core.advance(1.0)
        assert len(core.expire(2.0, spare=spare)) == 1
        assert alive() is None
    finally:
        gc.enable()


def add_slot(core: IdleReaper, key: tuple[float | None, str], in_books: bool) -> None:
    epoch = core._agenda.near[0][2].epoch
    slot = IdleSlot(epoch, key)
    core._agenda.slots.add(slot)
    if in_books:
        epoch.slots[key] = slot


def make_its_epoch_the_oldest(core: IdleReaper, lease: Lease) -> None:
    lease._epoch = core._open
    core._open.closed = -1.0


FAULTS: dict[str, Callable[[Any, Any], object]] = {
    "uid 'a' maps to": lambda core, lease: setattr(lease, "uid", "b"),
    "<Lease 'a' .* lies in a slot that is not in the books": lambda core, lease: (
        lease._epoch.slots.clear()
    ),
    "slot .* is not in the books": lambda core, lease: add_slot(
        core, (2.0, "idle"), in_books=False
    ),
    "waits in 0 places instead of one": lambda core, lease: core._agenda.near.clear(),
    "is empty, and nothing will drop it": lambda core, lease: add_slot(
        core, (None, "idle"), in_books=True
    ),
    "is not registered": lambda core, lease: core._leases.clear(),
    "is due after it": make_its_epoch_the_oldest,
    "1 armed, 0 suspended; books: 1 suspended of 1": lambda core, lease: setattr(
        core, "_suspended", 1
    ),
    "is expected to be like": lambda core, lease: setattr(
        core, "_last", next(iter(core._agenda.slots))
    ),
    "0 slots wait in the wheel, it counts 1": lambda core, lease: core._agenda.far.schedule(
        99, None
    ),
    "a hook outlived its lease": lambda core, lease: core._hooks.update({None: print}),
    "waits for 9.0": lambda core, lease: core._agenda.near.__setitem__(
        0, (9.0, *core._agenda.near[0][1:])
    ),
    "does not know where it lies": lambda core, lease: setattr(lease, "_pos", 7),
}


@pytest.mark.parametrize("message", FAULTS)
def test_check_finds(message: str) -> None:
    core = IdleReaper()
    lease = core.register("a", timeout=2.0, now=0.0)
    core.close_epoch(1.0)
    core.check()
    FAULTS[message](core, lease)
    with pytest.raises(InvariantViolated, match=message):
        core.check()


def test_two_cores_do_not_share_what_the_interpreter_learns_about_touch() -> None:
    one, two = IdleReaper(), IdleReaper()
    a, b = one.register("a", timeout=1.0, now=0.0), two.register("a", timeout=1.0, now=0.0)
    assert type(a).touch.__code__ is not type(b).touch.__code__
    a.touch()
    assert b._epoch is two._open
    assert a._epoch is one._open


def test_the_interpreter_learns_to_call_a_touch_as_it_calls_what_def_made() -> None:
    lease = IdleReaper().register("a", timeout=1.0, now=0.0)

    def touches() -> None:
        for _ in range(1000):
            lease.touch()

    touches()
    learnt = {each.opname for each in dis.get_instructions(touches, adaptive=True)}
    assert "CALL_PY_EXACT_ARGS" in learnt


def test_the_defaults_are_those_of_the_documentation() -> None:
    core, ring = IdleReaper(), IdleRing()
    assert (core.tick, core.wheel_size, core.epoch_length) == (1.0, 64, 1.0)
    assert (ring.timeout_ticks, ring.tick) == (30, 0)
    assert TimingWheel().levels == (Level(tick=1, wheel_size=64, interval=64, current_time=0),)


ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = "trio asyncio pyspark psutil pyarrow numpy pandas h11 rich"


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [
        ("reaper", FRAMEWORKS),
        ("reaper.journal.schema", "pyarrow"),
        ("reaper.attach", "psutil rich pyarrow trio"),
        ("server_example.http", "hypercorn uvicorn aiohttp pyspark prometheus_client"),
        ("reaper.__main__", "http.client urllib.request rich"),  # what `top` needs
    ],
)
def test_importing_a_module_imports_nothing_that_it_does_not_need(
    module: str, not_loaded: str
) -> None:
    code = f"import sys, {module}; print(sorted(set({not_loaded.split()}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_of_many_suspended_each_is_counted_out_when_it_is_released() -> None:
    core = IdleReaper(tick=1.0)
    leases = [core.register(uid, 2.0, now=0.0) for uid in range(5)]
    for lease in leases:
        lease.suspend()
    for left, lease in enumerate(reversed(leases)):
        assert core.statistics().suspended == 5 - left
        assert lease.release()
        core.check()
    assert core.next_wakeup() is None


def test_the_first_lease_after_all_were_reaped_begins_an_epoch() -> None:
    core = IdleReaper(tick=1.0)
    core.register("silent", 2.0, now=0.0)
    core.close_epoch(1.0)
    core.register("gone", 2.0, now=1.5).release()
    assert len(core.expire(3.0)) == 1
    core.check()
    assert core.register("new", 2.0, now=50.0).active_from == 50.0


def test_a_uid_whose_hash_closes_the_epoch_is_registered_in_the_next() -> None:
    core = IdleReaper(tick=1.0)

    class Slow:
        def __hash__(self) -> int:
            core.close_epoch(5.0)
            return 1

    core.register("before", 2.0, now=0.0)
    lease = core.register(Slow(), 2.0, now=0.5)
    core.check()
    assert lease.active_from == 5.0


class Moody:
    """A uid whose hash changes, that becomes equal to another, or whose hash or
    equality raises.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.mood = ""

    def __hash__(self) -> int:
        if self.mood == "hash":
            raise RuntimeError("no hash")
        return {"other": self.number + 1000, "equal": 1}.get(self.mood, self.number)

    def __eq__(self, other: object) -> bool:
        if self.mood == "eq":
            raise RuntimeError("no eq")
        return self is other or "equal" in (self.mood, getattr(other, "mood", None))


@pytest.mark.parametrize("mood", ["hash", "eq", "other", "equal"])
@pytest.mark.parametrize("end", ["reaped", "released"])
def test_a_uid_whose_hash_changes_harms_only_itself(mood: str, end: str) -> None:
    core = IdleReaper(tick=1.0)
    called = []
    uids = [Moody(number) for number in range(9)]
    leases = [
        core.register(
            uid,
            timeout=3.0 if uid is uids[8] else 2.0,
            now=0.0,
            on=lambda expiry: called.append(expiry.uid),
        )
        for uid in uids
    ]
    for number in (0, 2, 8):  # with others, and alone
        uids[number].mood = mood
    if end == "released":
        assert all(leases[number].release() for number in (0, 2))
        core.check()
    reaped = [expiry.uid for expiry in drive(core, 10.0)]
    expected = [uid for number, uid in enumerate(uids) if end == "reaped" or number not in (0, 2)]
    assert list(map(id, reaped)) == list(map(id, expected)) == list(map(id, called))
    assert (len(core), core._leases, core._hooks, core.next_wakeup()) == (0, {}, {}, None)


def test_a_change_of_a_lease_is_reported_and_a_call_that_changes_nothing_is_not() -> None:
    core = IdleReaper(tick=1.0)
    changed: list[Lease] = []
    core.report_silences(5.0, lambda *_: None, changed.append)
    lease = core.register("uid", 3.0, now=0.0)
    lease.touch()
    assert not lease.resume(1.0)
    assert changed == []
    for change in (
        lambda: lease.suspend(),
        lambda: lease.resume(1.0),
        lambda: lease.retime(None, 1.0, reason="off"),
    ):
        assert change()
        assert changed.pop() is lease
    lease.suspend()
    changed.clear()
    assert not lease.suspend()
    lease.release()
    assert not lease.retime(3.0, 2.0)
    assert changed == []


def test_a_silence_is_reported_by_the_touch_that_ends_it() -> None:
    core = IdleReaper(tick=1.0)
    silent_core = IdleReaper(tick=1.0)
    before = core.register("before", timeout=90.0, now=0.0)
    found = []
    core.report_silences(
        5.0, lambda lease, since, until: found.append((lease.uid, since, until, lease.active_from))
    )
    lease = core.register("after", timeout=90.0, now=0.0)
    lease.log = "mine"  # type: ignore[attr-defined]  # such a lease has room for it
    now = 0.0
    for silence, by_uid in (
        (1.0, False),
        (3.0, False),
        (5.0, False),
        (6.0, False),
        (7.0, True),
        (2.0, True),
    ):
        until = now + silence
        while now < until:
            now += 1.0
            core.close_epoch(now)
        before.touch()
        if by_uid:
            assert core.touch("after")
        else:
            lease.touch()
        assert lease.active_from == now
    assert found == [("after", 9.0, 15.0, 9.0), ("after", 15.0, 22.0, 15.0)]
    assert not core.touch("unknown")
    assert not hasattr(silent_core.register("x", 1.0, 0.0), "log")
    with pytest.raises(InvalidArgument, match="beyond must be"):
        core.report_silences(0.0, print)


def test_a_silence_that_was_taken_over_is_judged_by_its_own_length() -> None:
    core = IdleReaper(tick=1.0)
    core.register("long", timeout=90.0, now=0.0)
    core.close_epoch(1.0)
    core.register("short", timeout=90.0, now=1.0)
    core.close_epoch(8.0)
    found = []
    core.report_silences(5.0, lambda lease, since, until: found.append((lease.uid, since, until)))
    for uid in ("long", "short"):
        core.register((uid, "again"), timeout=90.0, now=8.0, since=core._leases[uid]).touch()
    assert found == [(("long", "again"), 0.0, 8.0)]


def test_what_a_report_raises_comes_out_of_the_touch_which_may_be_repeated() -> None:
    core = IdleReaper(tick=1.0)
    core.report_silences(1.0, lambda *_: 1 / 0)
    lease = core.register("a", timeout=9.0, now=0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        core.close_epoch(now)
    with pytest.raises(ZeroDivisionError):
        lease.touch()
    assert lease.active_until == 1.0
