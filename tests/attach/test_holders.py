"""Who holds a socket is found without delay to what is due, however much strangers have
open.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import pytest

from reaper.attach import holders
from reaper.attach.closing import SCAN_EVERY, Hands
from reaper.attach.holders import LOWEST, SLICE, Holders
from reaper.attach.kernel import Linux, Listener
from reaper.attach.targets import READ_EVERY, ByListen, Target, parse_address
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
        self.sizes: dict[int, tuple[int, int]] = {}
        self.descriptor = 3
        """Where the server has its listening socket."""

    def holders(self, **more: Any) -> Holders:
        """A search of this machine."""
        return Holders(self.pids, self.read, self.lowest, size=self.size, **more)

    def pids(self) -> list[int]:
        return [*STRANGERS, SERVER]

    def size(self, pid: int) -> tuple[int, int]:
        """Who a process is of, and how many descriptors it has."""
        usual = (OWNER, 1) if pid == SERVER else (self.stranger, self.each)
        return self.sizes.get(pid, usual)

    def read(self, pid: int) -> Iterator[tuple[int, int]]:
        self.order.append(pid)
        self.readers.setdefault(pid, set()).add(threading.get_ident())
        if pid == SERVER:
            yield self.holds, self.descriptor
        else:
            yield from ((0, number) for number in range(self.size(pid)[1]))

    def lowest(self, pid: int) -> Iterator[tuple[int, int]]:
        return ((inode, fd) for inode, fd in islice(self.read(pid), LOWEST) if fd < LOWEST)


def taken(found: Holders) -> list[int]:
    """How many descriptors each step of a search reads."""
    counts, before = [], found.count
    for _ in found.steps(frozenset({LISTENS})):
        counts.append(found.count - before)
        before = found.count
    return [*counts, found.count - before]


def test_a_search_reads_400_000_descriptors_in_slices() -> None:
    machine = Machine()
    found = machine.holders()
    steps = taken(found)
    assert sum(steps) == 400_001 + LOWEST * len(STRANGERS)
    assert max(steps) <= SLICE
    assert found.known() == (SERVER,)


def test_whoever_is_known_to_hold_the_socket_is_read_first() -> None:
    machine = Machine(each=1)
    found = machine.holders()
    taken(found)
    machine.order.clear()
    taken(found)
    assert machine.order[0] == SERVER


def test_a_search_that_reads_too_much_gives_up_and_keeps_who_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    found = machine.holders()
    taken(found)
    monkeypatch.setattr(holders, "MOST_READ", 5000)
    assert sum(taken(found)) == 5000
    assert found.known() == (SERVER,)


def test_the_first_search_ends_as_soon_as_each_socket_has_a_holder() -> None:
    machine = Machine()
    found = machine.holders()
    found.search(frozenset({LISTENS}))
    assert found.known() == (SERVER,)
    assert found.count == 1


@pytest.mark.parametrize("stranger", [OWNER, OWNER + 1])
def test_the_first_search_does_not_read_strangers_with_many_descriptors(stranger: int) -> None:
    machine = Machine()
    machine.stranger = stranger
    found = machine.holders()
    found.search(frozenset({LISTENS}), {OWNER})
    assert found.known() == (SERVER,)
    assert found.count == 1


def test_processes_of_the_sockets_owner_are_read_before_smaller_ones_of_others() -> None:
    machine = Machine(each=1)
    machine.sizes = {SERVER: (OWNER, 9)} | {SERVER + n: (OWNER + 1, 1) for n in STRANGERS}
    found = Holders(machine.sizes.keys, machine.read, machine.lowest, size=machine.size)
    found.search(frozenset({LISTENS}), {OWNER})
    assert machine.order == [SERVER]


@pytest.mark.parametrize("each", [LOWEST, 1000])
def test_a_server_with_many_clients_that_has_another_user_by_now_is_found_at_once(
    each: int,
) -> None:
    """It gave up its rights: nothing tells it from strangers, who have fewer."""
    machine = Machine(each=each)
    machine.sizes[SERVER] = OWNER + 1, 5000
    found = machine.holders()
    found.search(frozenset({LISTENS}), {OWNER})
    assert found.known() == (SERVER,)
    assert found.count <= LOWEST * len(STRANGERS) + 1


def test_a_socket_that_is_not_among_the_lowest_is_found_all_the_same() -> None:
    machine = Machine(each=1000)
    machine.descriptor = LOWEST
    found = machine.holders()
    found.search(frozenset({LISTENS}), {OWNER})
    assert found.known() == (SERVER,)


def test_a_first_search_that_takes_long_goes_on_in_a_thread() -> None:
    machine, go_on = Machine(), threading.Event()
    machine.descriptor, machine.stranger = LOWEST, OWNER
    machine.sizes[SERVER] = OWNER, 30_000  # it is read last
    found = machine.holders(pause=lambda seconds: go_on.wait())
    found.search(frozenset({LISTENS}), {OWNER}, at_once=3 * SLICE)
    assert found.searching
    assert found.known() == ()
    assert machine.readers.keys() == {*STRANGERS, SERVER}
    go_on.set()
    until(lambda: found.known() == (SERVER,), "the holder is known")
    until(lambda: not found.searching, "the search ends")


def test_a_holder_is_known_before_the_search_has_read_the_strangers() -> None:
    machine = Machine()
    found = machine.holders()
    next(found.steps(frozenset({LISTENS}), {OWNER}))
    assert found.known() == (SERVER,)
    assert found.count == SLICE


def test_a_server_that_starts_anew_does_not_wait_for_the_search_that_is_under_way() -> None:
    machine, steps = Machine(), threading.Semaphore(0)
    machine.sizes[SERVER] = OWNER, 1
    found = machine.holders(pause=lambda seconds: steps.acquire())
    found.search(frozenset({LISTENS}), {OWNER})
    found.search(frozenset({LISTENS}), {OWNER})  # in the thread, and it waits
    until(lambda: found.count >= SLICE, "the search has begun")
    again = LISTENS + 1
    machine.holds, machine.order[:] = again, []
    found.search(frozenset({again}), {OWNER})
    steps.release(2)
    until(lambda: machine.order[:1] == [SERVER], "the search for the new socket")
    assert found.searching
    assert set(machine.order) <= {SERVER, *STRANGERS}
    assert machine.order.count(STRANGERS[-1]) <= 2
    steps.release(1_000)
    until(lambda: not found.searching, "the search ends")
    assert found.known() == (SERVER,)


def test_a_search_that_fails_is_not_under_way_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    found = machine.holders()
    found.search(frozenset({LISTENS}), {OWNER})
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: failed.set())
    monkeypatch.setattr(found, "_pids", lambda: [][0])
    found.search(frozenset({LISTENS}), {OWNER})
    until(lambda: not found.searching, "the search ends")
    # The thread says so before it fails: pytest's own hook must not be back by then.
    until(failed.is_set, "the thread has failed")


def test_a_later_search_is_made_by_another_thread_and_what_was_known_stays_known() -> None:
    machine, go_on = Machine(), threading.Event()
    found = machine.holders(pause=lambda seconds: go_on.wait())
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
    knows_more = False

    def __init__(self, searching: bool) -> None:
        self.searching = searching
        self.scans = 0

    def scan(self) -> None:
        self.scans += 1
        self.read_at = 100.0

    def find(self, inode: int) -> None:
        return None


@pytest.mark.parametrize(("searching", "outcome"), [(True, "later"), (False, "unreachable")])
def test_a_connection_of_unknown_holder_is_tried_later_while_holders_are_looked_for(
    searching: bool, outcome: str
) -> None:
    target: Any = NoTarget(searching)
    assert Hands(target, False, lambda: 100.0).ask(b"", 5, 10) == outcome


def test_descriptors_are_read_again_at_once_if_another_process_is_known_to_serve() -> None:
    target: Any = NoTarget(searching=True)
    hands = Hands(target, False, lambda: 100.0)
    for knows_more, scans in ((False, 1), (False, 1), (True, 2)):
        target.knows_more = knows_more
        assert hands.ask(b"", 5, 10) == "later"
        assert target.scans == scans


class Family(Target):
    """A server that came from a process of which all others on the machine came, too,
    such as systemd. Nothing of it is real.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nothing: Any = None
        super().__init__(nothing, lambda: 0.0)
        self.machine = Machine()
        self.machine.sizes[SERVER] = OWNER, 25_000  # it is served, and that often
        monkeypatch.setattr("reaper.attach.targets.descriptors", self.machine.read)
        monkeypatch.setattr("reaper.attach.targets.size_of", self.machine.size)
        self.serving: list[int] = [SERVER]

    def listeners(self) -> list[Listener]:
        return []

    def pids(self) -> list[int]:
        return self.machine.pids()

    def _serving(self) -> list[int]:
        return self.serving


def test_whoever_came_from_a_holder_does_not_delay_who_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Family(monkeypatch)
    target.in_slices = True
    target.scan()
    order = target.machine.order
    assert order == [SERVER, STRANGERS[0]], "no more than AT_ONCE were read"
    assert target.find(LISTENS) == (SERVER, 3)
    target.machine.holds = LISTENS + 1  # somebody has come meanwhile
    for _ in range(3):
        assert target.read_on() is not None
    target.scan()
    assert order[2:] == [STRANGERS[0], SERVER, STRANGERS[0]], "who serves is read again"
    assert target.find(LISTENS + 1) == (SERVER, 3)
    steps = 0
    while target.read_on() is not None:
        steps += 1
        assert target.searching
    assert steps == len(STRANGERS) * target.machine.each // SLICE - 3
    assert order[5:] == [*STRANGERS[1:]], "what was under way has gone on as it was"
    assert not target.searching


def test_whoever_is_known_to_serve_meanwhile_is_read_before_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Family(monkeypatch)
    target.in_slices, target.serving = True, [STRANGERS[0]]
    target.scan()
    assert target.find(LISTENS) is None
    target.serving.append(SERVER)
    assert target.knows_more
    target.machine.sizes[STRANGERS[0]] = OWNER, 30_000  # of those that serve, it has more
    target.scan()
    assert not target.knows_more
    assert target.find(LISTENS) == (SERVER, 3)


def test_who_closes_nothing_has_all_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Family(monkeypatch)
    target.scan()
    assert sorted(target.machine.order) == [*STRANGERS, SERVER]
    assert not target.searching


def test_a_search_that_took_long_is_not_made_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 2 s of work here: at a hundredth of a core that is one in 200 s."""
    clock = [0.0]
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Linux()) as kernel:
        monkeypatch.setattr("reaper.attach.targets.socket_inodes", lambda pid: iter(()))
        port = server.getsockname()[1]
        target = ByListen(parse_address(f"127.0.0.1:{port}"), kernel)
        monkeypatch.setattr(target, "_clock", lambda: clock[0])
        searches: list[float] = []
        monkeypatch.setattr(target._holders, "search", lambda *_: searches.append(clock[0]))
        for clock[0] in (0.0, 100.0, 199.0, 200.0, 300.0):
            target.pids()
            target._holders.took = 2.0
        assert searches == [0.0, 200.0]


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
