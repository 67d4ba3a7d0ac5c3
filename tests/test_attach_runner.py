"""The loop of the command, with a fake kernel: which connections of a dump are taken for the target's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from attach_worlds import FakeWorld

from reaper.attach.judge import Limits
from reaper.attach.kernel import Found, Listener
from reaper.attach.output import Output
from reaper.attach.proc_fds import Owners
from reaper.attach.runner import Runner
from reaper.attach.show import Lines
from reaper.config import Attach


class FakeTarget(FakeWorld):
    """A process whose descriptors are what it has accepted so far, and a kernel that shows it one by one."""

    restricted = True

    def __init__(self) -> None:
        super().__init__()
        self.kernel = self
        self.held: set[int] = set()
        self.accepts_during_the_dump = False

    def listeners(self) -> list[Listener]:
        return [self.listener]

    def pids(self) -> list[int]:
        return [1]

    def dump(self, listeners: Sequence[Listener], info: bool) -> Iterator[Found]:
        for found in list(super().dump(listeners, info)):
            if self.accepts_during_the_dump:
                self.held.add(found.inode)
            yield found


class FakeOwners(Owners):
    def __init__(self, target: FakeTarget) -> None:
        super().__init__()
        self.target = target
        self.known: set[int] = set()

    def scan(self, pids: object) -> None:
        self.scans += 1
        self.known = set(self.target.held)

    def __contains__(self, inode: int) -> bool:
        return inode in self.known


def runner_of(target: FakeTarget) -> Runner:
    config = Attach(idle=10.0)
    output = Output(os.open(os.devnull, os.O_WRONLY))
    made = Runner(target, Limits(idle=10.0), config, view=lambda watch: Lines(watch, output), clock=lambda: target.now)
    made._owners = FakeOwners(target)
    return made


def discover(runner: Runner) -> None:
    for _ in runner._discover():
        pass


def test_connections_accepted_while_the_dump_runs_are_found_by_it() -> None:
    target = FakeTarget()
    target.accepts_during_the_dump = True
    runner = runner_of(target)
    for _ in range(5):
        target.connect()
    discover(runner)
    assert len(runner.watch.table) == 5
    assert runner._owners.scans == 2


def test_connections_of_another_process_are_asked_for_once_and_never_watched() -> None:
    target = FakeTarget()
    runner = runner_of(target)
    for number in range(6):
        sock = target.connect()
        if number % 2:
            target.held.add(sock.inode)
    for _ in range(3):
        discover(runner)
    assert len(runner.watch.table) == 3
    assert runner._owners.scans <= 3


def test_a_connection_that_is_not_accepted_yet_is_found_by_a_later_dump() -> None:
    target = FakeTarget()
    runner = runner_of(target)
    sock = target.connect()
    inode, sock.inode = sock.inode, 0
    discover(runner)
    assert not len(runner.watch.table)
    sock.inode = inode
    target.held.add(inode)
    discover(runner)
    assert len(runner.watch.table) == 1
