"""The loops of the command, with a fake kernel: whose connections are taken for the
target's, and what is learned.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest

from reaper.attach.kernel import Found, Linux, Listener, Refusal, Sighted
from reaper.attach.learn import Learner, learn
from reaper.attach.runner import Runner, limits_of
from reaper.attach.show import Lines
from reaper.attach.targets import Target
from reaper.config import Attach
from reaper.journal import Journal
from tests.helpers.attach_worlds import FakeWorld


class FakeTarget(Target):
    """A process whose descriptors are what it has accepted so far, and a kernel that
    shows it one by one.
    """

    def __init__(self) -> None:
        self.world = FakeWorld()
        self.scans = 0
        super().__init__(cast(Linux, self.world), lambda: self.world.now)
        self.held: set[int] = set()
        self.accepts_during_the_dump = False

    def listeners(self) -> list[Listener]:
        return [self.world.listener]

    def pids(self) -> list[int]:
        return []

    def survey(self, sighted: Sighted) -> Iterator[Found | None]:
        for found in list(super().survey(sighted)):
            yield found
            if found is not None and self.accepts_during_the_dump:
                self.held.add(found.inode)

    def scan(self) -> None:
        super().scan()
        self.scans += 1
        self._places = dict.fromkeys(self.held, (1, 1))


@pytest.fixture
def target() -> FakeTarget:
    return FakeTarget()


@pytest.fixture
def watched(target: FakeTarget) -> Callable[[], int]:
    """Makes a discovery; how many connections are watched then."""
    runner = Runner(
        target,
        Attach(idle=10.0),
        view=lambda watch: Lines(watch, print),
        clock=lambda: target.world.now,
    )

    def discover() -> int:
        for _ in runner._discover():
            pass
        return len(runner.watch)

    return discover


def test_connections_accepted_while_the_dump_runs_are_found_by_the_next_and_in_time(
    target: FakeTarget, watched: Callable[[], int]
) -> None:
    target.accepts_during_the_dump = True
    for _ in range(5):
        target.world.connect()
    watched()
    assert watched() == 5


def test_another_processs_connections_are_asked_for_once_per_dump_until_handed_over(
    target: FakeTarget, watched: Callable[[], int]
) -> None:
    socks = [target.world.connect() for _ in range(6)]
    target.held.update(sock.inode for sock in socks[::2])
    assert [watched() for _ in range(4)] == [3] * 4
    assert target.scans == 5  # once to know its rights
    target.held.add(socks[1].inode)
    assert watched() == 4


def test_a_connection_that_is_not_accepted_yet_is_found_by_a_later_dump(
    target: FakeTarget, watched: Callable[[], int]
) -> None:
    sock = target.world.connect()
    inode, sock.inode = sock.inode, 0
    assert not watched()
    sock.inode = inode
    target.held.add(inode)
    assert watched() == 1


def test_a_tick_is_compared_with_the_limits_that_are_on() -> None:
    """The grace of a rate has a default, and no rate is asked for."""
    assert limits_of(Attach(idle=300.0, tick=10.0)).shortest() == 300.0


def test_the_silences_that_are_learned_are_those_that_were(
    target: FakeTarget, tmp_path: Path
) -> None:
    """Random traffic in virtual time, sampled: each silence beyond the gap is written,
    and is as long as it was.
    """
    chance, gap, world = random.Random(3), 5.0, target.world
    ago = [chance.lognormvariate(1.0, 1.2) for _ in range(400)]
    with Journal(
        tmp_path, gap_threshold=gap, clock_ns=lambda: round(world.now * 1e9), background=False
    ) as journal:
        learner = Learner(target, journal, gap, 0.0, lambda: world.now)
        target.restricted = False
        socks = [world.connect() for _ in range(4)]
        learner.sample()
        sampled, truth = world.now, list[float]()
        for silence in ago:
            sock = chance.choice(socks)
            before = sock.heard
            until = max(world.now, before + silence)
            while sampled + gap / 2 <= until:
                sampled = world.now = max(world.now, sampled + gap / 2)
                learner.sample()
            world.now = until
            world.send(sock)
            truth.append(until - before)
        world.wait(gap / 2)
        learner.sample()
        world.hang_up(socks[0])
        learner.sample()
        assert len(learner._seen) == 3
    rows = [row for file in tmp_path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    learned = sorted(row["idle_ns"] / 1e9 for row in rows if row["kind"] == "activity")
    beyond = sorted(silence for silence in truth if silence > gap)
    assert [kind for kind in ("open", "close_peer") for row in rows if row["kind"] == kind] == [
        "open"
    ] * 4 + ["close_peer"]
    assert len(beyond) > 100
    assert abs(len(learned) - len(beyond)) <= 0.03 * len(beyond)
    for mine, real in zip(learned[-100:], beyond[-100:], strict=True):
        assert abs(mine - real) <= gap / 4


class WaitingTarget(FakeTarget):
    """One on a busy machine: each of its dumps waits for its turn, in virtual and in
    real time. It is gone after *dumps*.
    """

    def __init__(self, dumps: int) -> None:
        super().__init__()
        self.dumps = dumps

    def dump(self, info: bool) -> Iterator[Found]:
        self.dumps -= 1
        if self.dumps < 0:
            raise Refusal("it is gone")
        time.sleep(0.2)
        self.world.wait(60.0)
        return super().dump(info)


def test_a_gap_is_not_lengthened_for_a_dump_that_waited_for_its_turn(tmp_path: Path) -> None:
    said: list[str] = []
    learn(WaitingTarget(dumps=1), tmp_path, gap=1.0, tick=1.0, say=lambda line: said.append(line))
    assert "learning the silences beyond 1 s" in said[0]


def test_a_sample_that_waited_for_its_turn_does_not_thin_out_those_that_follow(
    tmp_path: Path,
) -> None:
    target = WaitingTarget(dumps=1)
    with Journal(tmp_path, gap_threshold=1.0) as journal:
        learner = Learner(target, journal, 1.0, 0.0, lambda: target.world.now, cpu=lambda: 0.0)
        assert learner.sample() <= 0.0


def test_samples_take_a_tenth_of_a_core_at_most(target: FakeTarget, tmp_path: Path) -> None:
    cpu = iter([3.0, 5.0])
    with Journal(tmp_path, gap_threshold=1.0) as journal:
        learner = Learner(
            target, journal, 1.0, 0.0, lambda: target.world.now, cpu=lambda: next(cpu)
        )
        assert learner.sample() == 20.0
        assert learner.spent == 2.0
