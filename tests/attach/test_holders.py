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

SERVER, LISTENS, OWNER = 700, 42, 33
STRANGERS = range(1, 21)


class Machine:
    """Strangers with many files, and one server that holds a listening socket."""

    def __init__(self, each: int = 20_000) -> None:
        self.each = each
        self.stranger = OWNER + 1
        self.holds = LISTENS
        self.readers: dict[int, set[int]] = {}
        """The threads that read the descriptors of each process."""
        self.order: list[int] = []

    def pids(self) -> list[int]:
        return [*STRANGERS, SERVER]

    def size(self, pid: int) -> tuple[int, int]:
        """Who a process is of, and how many descriptors it has."""
        return (OWNER, 1) if pid == SERVER else (self.stranger, self.each)

    def read(self, pid: int) -> Iterator[tuple[int, int]]:
        self.order.append(pid)
        self.readers.setdefault(pid, set()).add(threading.get_ident())
        if pid == SERVER:
            yield self.holds, 3
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
    found = Holders(machine.pids, machine.read, size=machine.size)
    steps = taken(found)
    assert sum(steps) == 400_001
    assert max(steps) <= SLICE
    assert found.known() == (SERVER,)


def test_whoever_is_known_to_hold_the_socket_is_read_first() -> None:
    machine = Machine(each=1)
    found = Holders(machine.pids, machine.read, size=machine.size)
    taken(found)
    machine.order.clear()
    taken(found)
    assert machine.order == [SERVER, *STRANGERS]


def test_a_search_that_reads_too_much_gives_up_and_keeps_who_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    found = Holders(machine.pids, machine.read, size=machine.size)
    taken(found)
    monkeypatch.setattr(holders, "MOST_READ", 5000)
    assert sum(taken(found)) == 5000
    assert found.known() == (SERVER,)


def test_the_first_search_ends_as_soon_as_each_socket_has_a_holder() -> None:
    machine = Machine()
    found = Holders(lambda: [SERVER, *STRANGERS], machine.read, size=machine.size)
    found.search(frozenset({LISTENS}))
    assert found.known() == (SERVER,)
    assert found.count == 1


@pytest.mark.parametrize("stranger", [OWNER, OWNER + 1])
def test_the_first_search_does_not_read_strangers_with_many_descriptors(stranger: int) -> None:
    machine = Machine()
    machine.stranger = stranger
    found = Holders(machine.pids, machine.read, size=machine.size)
    found.search(frozenset({LISTENS}), {OWNER})
    assert found.known() == (SERVER,)
    assert found.count == 1


def test_processes_of_the_sockets_owner_are_read_before_smaller_ones_of_others() -> None:
    machine = Machine(each=1)
    sizes = dict.fromkeys(STRANGERS, (OWNER + 1, 1)) | {SERVER: (OWNER, 9)}
    found = Holders(machine.pids, machine.read, size=sizes.__getitem__)
    found.search(frozenset({LISTENS}), {OWNER})
    assert machine.order == [SERVER]


def test_a_holder_is_known_before_the_search_has_read_the_strangers() -> None:
    machine = Machine()
    found = Holders(machine.pids, machine.read, size=machine.size)
    next(found.steps(frozenset({LISTENS}), {OWNER}))
    assert found.known() == (SERVER,)
    assert found.count == SLICE


def test_a_server_that_starts_anew_does_not_wait_for_the_search_that_is_under_way() -> None:
    machine, steps = Machine(), threading.Semaphore(0)
    found = Holders(
        machine.pids, machine.read, size=machine.size, pause=lambda seconds: steps.acquire()
    )
    found.search(frozenset({LISTENS}), {OWNER})
    found.search(frozenset({LISTENS}), {OWNER})  # in the thread, and it waits
    until(lambda: found.count >= SLICE, "the search has begun")
    again = LISTENS + 1
    machine.holds, machine.order[:] = again, []
    found.search(frozenset({again}), {OWNER})
    steps.release(2)
    until(lambda: machine.order[:1] == [SERVER], "the search for the new socket")
    assert found.searching
    assert set(machine.order) <= {SERVER, STRANGERS[0]}
    steps.release(1_000)
    until(lambda: not found.searching, "the search ends")
    assert found.known() == (SERVER,)


def test_a_search_that_fails_is_not_under_way_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    found = Holders(machine.pids, machine.read, size=machine.size)
    found.search(frozenset({LISTENS}), {OWNER})
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    monkeypatch.setattr(found, "_pids", lambda: [][0])
    found.search(frozenset({LISTENS}), {OWNER})
    until(lambda: not found.searching, "the search ends")


def test_a_later_search_is_made_by_another_thread_and_what_was_known_stays_known() -> None:
    machine, go_on = Machine(), threading.Event()
    found = Holders(
        machine.pids, machine.read, size=machine.size, pause=lambda seconds: go_on.wait()
    )
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
if os.geteuid() == 0:
    os.setuid(65534)  # another user than the server's
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
    by_closer = 0
    readlink: Callable[..., str] = os.readlink
    closer = threading.get_ident()

    def counted(path: str, **options: Any) -> str:
        nonlocal by_closer
        by_closer += threading.get_ident() == closer
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
        monkeypatch.setattr(os, "readlink", counted)
        hands.check_rights()
        # Of 50,000: the server's, and those of this user's processes that have as few.
        assert len(read) < 10_000
        by_closer = 0
        ahead = READ_EVERY + SCAN_EVERY  # time to look for holders again
        client = Echo.answered(port)
        (found,) = (one for one in kernel.dump(target.listeners(), False) if one.inode)
        assert hands.end(found.ident, found.inode, lambda seen: True) == "closed"
        assert client.sock.recv(1) == b""
        assert by_closer < 100
        until(lambda: not target.searching, "the search ends")
