"""Who holds a socket is found without delay to what is due, however much strangers have
open.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from reaper.attach import holders
from reaper.attach.closing import SCAN_EVERY, Hands
from reaper.attach.holders import SLICE, Holders
from reaper.attach.kernel import Linux
from reaper.attach.targets import READ_EVERY, ByListen, parse_address
from tests.helpers.attach_servers import Echo, until

SERVER, LISTENS = 700, 42
STRANGERS = range(1, 21)


class Machine:
    """Strangers with many files, and one server that holds a listening socket."""

    def __init__(self, each: int = 20_000) -> None:
        self.each = each
        self.readers: dict[int, set[int]] = {}
        """The threads that read the descriptors of each process."""
        self.order: list[int] = []

    def pids(self) -> list[int]:
        return [*STRANGERS, SERVER]

    def read(self, pid: int) -> Iterator[tuple[int, int]]:
        self.order.append(pid)
        self.readers.setdefault(pid, set()).add(threading.get_ident())
        if pid == SERVER:
            yield LISTENS, 3
        else:
            yield from ((0, number) for number in range(self.each))


def taken(found: Holders) -> list[int]:
    """How many descriptors each step of a search reads."""
    counts, before = [], found.count
    for _ in found.steps(frozenset({LISTENS})):
        counts.append(found.count - before)
        before = found.count
    return [*counts, found.count - before]


def test_a_search_reads_400_000_descriptors_in_slices() -> None:
    machine = Machine()
    found = Holders(machine.pids, machine.read)
    steps = taken(found)
    assert sum(steps) == 400_001
    assert max(steps) <= SLICE
    assert found.known() == (SERVER,)


def test_whoever_is_known_to_hold_the_socket_is_read_first() -> None:
    machine = Machine(each=1)
    found = Holders(machine.pids, machine.read)
    taken(found)
    machine.order.clear()
    taken(found)
    assert machine.order == [SERVER, *STRANGERS]


def test_a_search_that_reads_too_much_gives_up_and_keeps_who_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    found = Holders(machine.pids, machine.read)
    taken(found)
    monkeypatch.setattr(holders, "MOST_READ", 5000)
    assert sum(taken(found)) == 5000
    assert found.known() == (SERVER,)


def test_the_first_search_ends_as_soon_as_each_socket_has_a_holder() -> None:
    machine = Machine()
    found = Holders(lambda: [SERVER, *STRANGERS], machine.read)
    found.search(frozenset({LISTENS}))
    assert found.known() == (SERVER,)
    assert found.count == 1


def test_a_later_search_is_made_by_another_thread_and_what_was_known_stays_known() -> None:
    machine, go_on = Machine(), threading.Event()
    found = Holders(machine.pids, machine.read, pause=lambda seconds: go_on.wait())
    found.search(frozenset({LISTENS}))
    machine.readers.clear()
    found.search(frozenset({LISTENS}))
    assert found.searching
    assert found.known() == (SERVER,)
    go_on.set()
    until(lambda: not found.searching, "the search ends")
    (threads,) = {frozenset(each) for each in machine.readers.values()}
    assert threading.get_ident() not in threads
    assert found.known() == (SERVER,)


class NoTarget:
    """A target of which nothing is known but whether holders are being looked for."""

    kernel = None
    read_at = float("-inf")

    def __init__(self, searching: bool) -> None:
        self.searching = searching

    def scan(self) -> None:
        self.read_at = 0.0

    def find(self, inode: int) -> None:
        return None


@pytest.mark.parametrize(("searching", "outcome"), [(True, "later"), (False, "unreachable")])
def test_a_connection_of_unknown_holder_is_tried_later_while_holders_are_looked_for(
    searching: bool, outcome: str
) -> None:
    target: Any = NoTarget(searching)
    assert Hands(target, False, lambda: 100.0).ask(b"", 5, 10) == outcome


HOARDS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
null = os.open(os.devnull, os.O_RDONLY)
for _ in range(int(sys.argv[1])):
    os.dup(null)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_who_closes_reads_only_the_servers_descriptors_however_many_strangers_have(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    read: list[str] = []
    readlink: Callable[..., str] = os.readlink
    closer = threading.get_ident()

    def counted(path: str, **options: Any) -> str:
        if threading.get_ident() == closer:
            read.append(path)
        return readlink(path, **options)

    ahead = 0.0
    with ExitStack() as stack:
        for _ in range(5):
            hoarder = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOARDS, "10000"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            assert hoarder.stdin is not None
            assert hoarder.stdout is not None
            assert hoarder.stdout.readline() == b"ready\n"
            stack.callback(hoarder.stdin.close)
        stack.enter_context(Echo.server(port))
        kernel = stack.enter_context(closing(Linux()))
        target = ByListen(parse_address(f"127.0.0.1:{port}"), kernel)
        monkeypatch.setattr(target, "_clock", lambda: time.monotonic() + ahead)
        hands = Hands(target, False, lambda: time.monotonic() + ahead)
        hands.check_rights()
        monkeypatch.setattr(os, "readlink", counted)
        ahead = READ_EVERY + SCAN_EVERY  # time to look for holders again
        client = Echo.answered(port)
        (found,) = (one for one in kernel.dump(target.listeners(), False) if one.inode)
        assert hands.end(found.ident, found.inode, lambda seen: True) == "closed"
        assert client.sock.recv(1) == b""
        assert len(read) < 100
        until(lambda: not target.searching, "the search ends")
