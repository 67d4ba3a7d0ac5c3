"""Pressure: judged purely, acted on in virtual time, read from this very process."""

from __future__ import annotations

import gc
import math
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reaper import InvalidArgument
from reaper.driver.pressing import let_go, until_next
from reaper.metrics import families
from reaper.policy import cgroup
from reaper.policy.pressure import (
    CROWD,
    LEAST_ROOM,
    SPARED,
    Pressure,
    Resources,
    limits_here,
    read_here,
)
from reaper.trio import ParkingLot, open_reaper, relieve
from tests.helpers.driver_loop import Loop


def of(connections: int) -> Resources:
    return Resources(connections=connections)


def test_below_the_low_watermark_nothing_happens_and_it_all_relaxes_again() -> None:
    pressure = Pressure(Resources(connections=100))
    for connections in (0, 80, 100, 70):
        verdict = pressure.judge(of(connections))
        assert connections == 100 or (verdict.scale, verdict.evict, verdict.accept) == (
            1.0,
            0,
            True,
        )
    verdict = Pressure(Resources()).judge(Resources(10**6, 10**12, 10**6))
    assert (verdict.load, verdict.of, verdict.scale, verdict.evict, verdict.accept) == (
        0.0,
        "",
        1.0,
        0,
        True,
    )


def test_the_fullest_resource_decides() -> None:
    verdict = Pressure(Resources(1000, 1000, 1000)).judge(
        Resources(descriptors=100, memory=875, connections=500)
    )
    assert (verdict.of, verdict.load) == ("memory", 0.875)
    assert verdict.scale == pytest.approx(0.55)


def test_above_the_high_watermark_as_many_go_as_bring_it_back() -> None:
    pressure = Pressure(Resources(connections=100), high=0.9)
    assert pressure.judge(of(100)).evict == 10
    assert pressure.judge(of(90)).evict == 0
    memory = Pressure(Resources(memory=1000), high=0.9).judge(
        Resources(memory=1000, connections=200)
    )
    assert memory.evict == 20


@given(st.lists(st.integers(0, 150), min_size=1, max_size=50))
def test_a_scale_is_within_its_bounds_and_shrinks_at_once(loads: list[int]) -> None:
    pressure = Pressure(Resources(connections=100), floor=0.25)
    for load in loads:
        verdict = pressure.judge(of(load))
        assert (
            0.25
            <= verdict.scale
            <= Pressure(Resources(connections=100), floor=0.25).judge(of(load)).scale
        )
        assert verdict.evict <= load
        assert verdict.accept <= (load < 100)


def test_nothing_flutters_at_a_watermark() -> None:
    pressure = Pressure(Resources(connections=1000), margin=0.05)
    scales = {pressure.judge(of(850 + wobble)).scale for wobble in (10, 0, 9, 1, 10, 5, 0)}
    assert len(scales) == 1
    assert pressure.judge(of(1000)).accept is False
    assert [pressure.judge(of(n)).accept for n in (999, 951, 949, 999)] == [
        False,
        False,
        True,
        True,
    ]


def test_before_the_first_reading_it_reports_no_pressure() -> None:
    values = {
        family.name.removeprefix("reaper_pressure"): family.values
        for family in Pressure(Resources()).families()
    }
    assert values == {"": 0.0, "_scale": 1.0, "_accepting": 1, "_evicted": 0}


@pytest.mark.parametrize(
    ("options", "name"),
    [({"low": 0.9, "high": 0.9}, "low"), ({"high": 1.0}, "low"), ({"floor": 1.5}, "floor"),
     ({"margin": -0.1}, "margin"), ({"min_age": 0}, "min_age"), ({"low": float("nan")}, "low")],
)  # fmt: skip
def test_it_refuses_what_makes_no_sense(options: dict[str, float], name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Pressure(Resources(), **options)
    with pytest.raises(InvalidArgument, match="memory"):
        Resources(memory=-1)


def test_a_process_that_keeps_the_memory_of_those_that_went_accepts_again() -> None:
    pressure = Pressure(Resources(memory=100))
    for connections, accepts in ((50, False), (46, False), (45, True), (50, False), (45, True)):
        verdict = pressure.judge(Resources(memory=100, connections=connections))
        assert verdict.accept is accepts


def test_pressure_is_read_more_often_than_its_absence() -> None:
    pressure = Pressure(Resources(memory=100))
    calm = pressure.judge(Resources(memory=10))
    full = pressure.judge(Resources(memory=90))
    assert until_next(full, 1.0) < until_next(calm, 1.0) == 1.0


def test_a_reading_holds_for_half_of_the_newcomers_that_there_is_room_for() -> None:
    limit = Resources(memory=100_000_000, descriptors=3000, connections=2000)
    pressure = Pressure(limit)
    assert pressure.judge(Resources(connections=1000, descriptors=1010)).room == CROWD
    grown = Resources(memory=20_000 * 200, connections=1200, descriptors=1210)
    assert pressure.judge(grown).room == 400  # of 800 connections
    pressure.limits = Resources(memory=100_000_000)
    assert pressure.judge(grown).room == (100_000_000 - 4_000_000) / 20_000 / 2
    assert Pressure(Resources()).judge(grown).room == math.inf


def test_a_full_process_is_not_read_for_every_single_newcomer() -> None:
    assert Pressure(of(10)).judge(of(10)).room == LEAST_ROOM


@given(st.integers(4096, 65536), st.integers(1, 4))
def test_a_crowd_between_two_ticks_outgrows_the_limit_by_a_few_newcomers_at_most(
    cost: int, workers: int
) -> None:
    """Workers share a group, newcomers come to them in turn, and nothing but those has
    it read.
    """
    limit = 40_000_000
    judges = [Pressure(Resources(memory=limit)) for _ in range(workers)]
    opened, used = [0] * workers, 10_000_000
    rooms = [judge.judge(Resources(memory=used)).room for judge in judges]
    for number in range(2 * limit // cost):
        each = number % workers
        if opened[each] >= rooms[each] > 0:
            verdict = judges[each].judge(Resources(memory=used, connections=opened[each]))
            rooms[each] = opened[each] + verdict.room if verdict.accept else 0
        if opened[each] < rooms[each]:
            opened[each] += 1
            used += cost
    assert limit <= used <= limit + workers * LEAST_ROOM * cost


def test_a_group_with_a_limit_is_read_instead_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("psutil")
    monkeypatch.setattr(cgroup, "memory", lambda: cgroup.Memory(10000, 3000))
    assert limits_here().memory == round(10000 * (1 - SPARED))
    assert read_here(0).memory == 7000


def test_a_group_allowed_more_than_the_machine_has_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(cgroup, "memory", lambda: cgroup.Memory(1 << 60, 1 << 59))
    assert limits_here().memory == psutil.virtual_memory().total
    assert read_here(0).memory < 1 << 50


@pytest.fixture
def _none_is_closed_by_the_collector() -> Iterator[None]:
    """A circle that an earlier test left may hold a descriptor, which ends with it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_none_is_closed_by_the_collector")
def test_it_reads_this_process() -> None:
    pytest.importorskip("psutil")
    limits = limits_here(connections=7)
    assert limits.descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert (limits.memory > 2**24, limits.connections) == (True, 7)
    before = read_here(3)
    ends = os.pipe()
    after = read_here(3)
    for end in ends:
        os.close(end)
    assert (after.descriptors - before.descriptors, after.connections) == (2, 3)
    assert after.memory > 2**20


def test_it_does_not_take_another_error_for_fullness(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "Process", lambda: os.stat("/proc/self/fd/-1/no"))
    with pytest.raises(FileNotFoundError):
        read_here(3)


class Watching(Loop):
    def count(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return len(self.driver.connections)


def test_between_the_watermarks_silence_is_borne_for_a_share_of_its_timeout() -> None:
    loop: Any = Watching()
    for _ in range(10):
        loop.watch(100)
    verdict = Pressure(Resources(connections=100), floor=0.1).judge(of(88))
    loop.run_until(100 * verdict.scale - 1)
    assert let_go(loop, verdict, min_age=1.0) == 0
    loop.run_until(100 * verdict.scale + 1)
    assert let_go(loop, verdict, min_age=1.0) == 10


def test_only_who_waits_for_bytes_of_which_none_have_come_is_closed_for_pressure() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop: Any = Watching()
        made = [
            loop.watch(300),
            loop.watch(300),
            loop.watch(300, reason="write"),
            loop.watch(300, ours.fileno()),
        ]
        for connection, waits in zip(made, (True, False, True, True), strict=True):
            connection.receiving = waits
        theirs.send(b"x")
        loop.run_until(50)
        assert let_go(loop, Pressure(Resources(connections=1)).judge(of(4)), min_age=1.0) == 1
        assert [connection.reason for connection in made] == ["pressure", None, None, None]


def test_the_longest_silent_are_closed_for_pressure_first() -> None:
    loop: Any = Watching()
    younger, longest = loop.watch(1000), loop.watch(1000)
    loop.run_until(10)
    younger.touch()
    younger.receiving = longest.receiving = True
    loop.run_until(50)
    assert (
        let_go(loop, Pressure(Resources(connections=10), high=0.9).judge(of(10)), min_age=1.0) == 1
    )
    assert (younger.reason, longest.reason) == (None, "pressure")


def come(lot: ParkingLot, count: int) -> list[socket.socket]:
    """The other ends of *count* new connections of *lot*."""
    ends = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        lot.add(ours)
        ends.append(theirs)
    return ends


def is_open(end: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return bool(end.recv(100))
    return True


async def working(stream: Any) -> None:
    """Answers after a long while, in use meanwhile."""
    data = await stream.receive_some()
    with stream.in_use():
        await trio.sleep(1000)
    await stream.send_all(data)


@pytest.mark.trio
async def test_the_limit_is_lowered_under_load_and_raised_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Timeouts shrink, the oldest go first, none with a request in flight is cut, the
    door shuts, and it recovers.
    """
    pressure = Pressure(Resources(connections=1000), min_age=2.0)
    async with (
        open_reaper(tick=1.0) as r,
        r.parking_lot(working, 300) as lot,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: relieve(r, pressure, read=of, every=2.0))
        busy = come(lot, 20)
        for end in busy:
            end.send(b"x")
        old = come(lot, 40)
        await trio.sleep(60)
        young = come(lot, 40)
        await trio.sleep(10.5)  # between two readings from here on
        assert (len(lot), pressure.evicted, r.accepting) == (100, 0, True)

        pressure.limits = Resources(connections=80)
        await trio.sleep(2)
        assert not r.accepting
        assert not any(map(is_open, old)), "the oldest go first"
        assert all(map(is_open, busy)), "in flight"
        assert all(map(is_open, young)), "60 of 80 are no pressure any more"
        await trio.sleep(3)
        assert (len(lot), r.accepting, pressure.verdict.scale) == (60, True, 1.0)
        assert lot.reaped == {"pressure": 40}
        assert pressure.evicted == 40

        pressure.limits = Resources(connections=22)  # too many by 44
        fresh = come(lot, 5)
        await trio.sleep(2)
        assert all(map(is_open, busy))
        assert all(map(is_open, fresh)), "they have not been silent for min_age"
        assert not any(map(is_open, young))
        pressure.limits = Resources(connections=1000)
        await trio.sleep(100)
        assert (r.accepting, pressure.verdict.scale) == (True, 1.0)
        assert all(map(is_open, busy))
        r.core.check()
        told = {
            family.name: family.values
            for family in (*pressure.families(), *families(r.statistics()))
        }
        assert told["reaper_pressure_evicted"] == pressure.evicted == lot.reaped["pressure"]
        assert told["reaper_reaped"] == dict(lot.reaped)
        nursery.cancel_scope.cancel()
    for end in (*busy, *old, *young, *fresh):
        end.close()


@pytest.mark.trio
async def test_accepting_stops_at_the_limit_and_goes_on_below_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        open_reaper(tick=1.0) as r,
        r.parking_lot(working, 300) as lot,
        trio.open_nursery() as nursery,
    ):
        listening = socket.create_server(("127.0.0.1", 0))
        nursery.start_soon(lot.accept, listening)
        r.accepting = False
        with socket.create_connection(listening.getsockname()):
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(lot) == 0
            r.accepting = True
            while not len(lot):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("_none_is_closed_by_the_collector")
def test_a_process_without_a_descriptor_left_reads_itself_as_full() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        reading = read_here(7)
        assert reading.descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert reading.connections == 7
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
