"""The loops of the command, with a fake kernel: whose connections are taken for the target's, and what is learned."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from attach_worlds import FakeWorld

from reaper.attach.judge import Limits
from reaper.attach.kernel import Found, Listener
from reaper.attach.learn import Learner
from reaper.attach.proc_fds import Owners
from reaper.attach.runner import Runner
from reaper.attach.show import Lines
from reaper.attach.targets import READ_EVERY, Selection
from reaper.config import Attach
from reaper.journal import Journal


class FakeTarget(FakeWorld):
    """A process whose descriptors are what it has accepted so far, and a kernel that shows it one by one."""

    restricted = True

    def __init__(self) -> None:
        super().__init__()
        self.kernel = self
        self.owners = FakeOwners(self)
        self.held: set[int] = set()
        self.accepts_during_the_dump = False

    def listeners(self) -> list[Listener]:
        return [self.listener]

    def destroy(self, ident: bytes) -> bool:
        raise AssertionError

    def dump(self, listeners: Sequence[Listener], info: bool) -> Iterator[Found]:
        for found in list(super().dump(listeners, info)):
            yield found
            if self.accepts_during_the_dump:
                self.held.add(found.inode)


class FakeOwners(Owners):
    def __init__(self, target: FakeTarget) -> None:
        super().__init__(list)
        self.target = target
        self.known: set[int] = set()

    def scan(self) -> None:
        self.scans += 1
        self.known = set(self.target.held)

    def __contains__(self, inode: int) -> bool:
        return inode in self.known


@pytest.fixture
def target():
    return FakeTarget()


@pytest.fixture
def runner(target: FakeTarget):
    return Runner(
        target, Limits(idle=10.0), Attach(idle=10.0), view=lambda watch: Lines(watch, print), clock=lambda: target.now
    )


def discover(runner: Runner) -> None:
    for _ in runner._discover():
        pass


def test_connections_accepted_while_the_dump_runs_are_found_by_the_next_and_in_time(target, runner) -> None:
    target.accepts_during_the_dump = True
    for _ in range(5):
        target.connect()
    discover(runner)
    target.wait(5.0)
    discover(runner)
    assert len(runner.watch) == 5
    assert target.owners.scans == 2


def test_connections_of_another_process_are_asked_for_once_and_not_watched(target, runner) -> None:
    for number in range(6):
        sock = target.connect()
        if number % 2:
            target.held.add(sock.inode)
    for _ in range(5):
        discover(runner)
    assert len(runner.watch) == 3
    assert target.owners.scans <= 3


def test_a_connection_that_is_handed_over_later_is_watched(target, runner) -> None:
    sock = target.connect()
    for _ in range(3):
        discover(runner)
    assert not len(runner.watch)
    target.held.add(sock.inode)
    target.wait(READ_EVERY)
    discover(runner)
    assert len(runner.watch) == 1


def test_a_connection_that_is_not_accepted_yet_is_found_by_a_later_dump(target, runner) -> None:
    sock = target.connect()
    inode, sock.inode = sock.inode, 0
    discover(runner)
    assert not len(runner.watch)
    sock.inode = inode
    target.held.add(inode)
    discover(runner)
    assert len(runner.watch) == 1


def test_the_silences_that_are_learned_are_those_that_were(target: FakeTarget, tmp_path: Path) -> None:
    """Random traffic in virtual time, sampled: each silence beyond the gap is written, and is as long as it was."""
    chance, gap = random.Random(3), 5.0
    ago = [chance.lognormvariate(1.0, 1.2) for _ in range(400)]
    with Journal(tmp_path, gap_threshold=gap, clock_ns=lambda: round(target.now * 1e9), background=False) as journal:
        learner = Learner(Selection(target), journal, gap, 0.0, lambda: target.now)
        target.restricted = False
        socks = [target.connect() for _ in range(4)]
        learner.sample()
        sampled, truth = target.now, list[float]()
        for silence in ago:
            sock = chance.choice(socks)
            before = sock.heard
            until = max(target.now, before + silence)
            while sampled + gap / 2 <= until:
                sampled = target.now = max(target.now, sampled + gap / 2)
                learner.sample()
            target.now = until
            target.send(sock)
            truth.append(until - before)
        target.wait(gap / 2)
        learner.sample()
        target.hang_up(socks[0])
        learner.sample()
        assert len(learner) == 3
    rows = [row for file in tmp_path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    learned = sorted(row["idle_ns"] / 1e9 for row in rows if row["kind"] == "activity")
    beyond = sorted(silence for silence in truth if silence > gap)
    assert [kind for kind in ("open", "close_peer") for row in rows if row["kind"] == kind] == ["open"] * 4 + [
        "close_peer"
    ]
    assert len(beyond) > 100
    assert abs(len(learned) - len(beyond)) <= 0.03 * len(beyond)
    for mine, real in zip(learned[-100:], beyond[-100:], strict=True):
        assert abs(mine - real) <= gap / 4
