"""The loop of the command, with a fake kernel: which connections of a dump are taken for the target's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from attach_worlds import FakeWorld

from reaper.attach.judge import Limits
from reaper.attach.kernel import Found, Listener
from reaper.attach.proc_fds import Owners
from reaper.attach.runner import Runner
from reaper.attach.show import Lines
from reaper.attach.targets import READ_EVERY
from reaper.config import Attach


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
    made = Runner(
        target, Limits(idle=10.0), Attach(idle=10.0), view=lambda watch: Lines(watch, print),
        clock=lambda: target.now,
    )  # fmt: skip
    yield made
    made.close()


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
