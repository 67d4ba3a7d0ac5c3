"""The driver without a framework: a loop that is a variable, so that every wake and
every stall is ours to choose.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from reaper.core.lease import Lease
from reaper.driver.options import check_options
from reaper.driver.pace import REAPS_PER_SLICE
from tests.helpers.driver_loop import Connection, Loop


def raised(caplog: pytest.LogCaptureFixture) -> list[type[BaseException] | None]:
    """The kinds of the errors that were logged."""
    return [record.exc_info[0] for record in caplog.records if record.exc_info]


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_processes_with_phases_of_their_own_never_wake_in_one_instant() -> None:
    together = []
    for phase in (0.0, 0.25, 0.5, 0.75):
        loop = Loop()
        loop.driver.phase = phase
        loop.time = 100.0
        loop.watch(5.0)
        together += loop.run_until(104.0)
    assert len(together) == len(set(together)) == 32
    assert loop.run_until(120.0)
    assert loop.driver.rest() == float("inf")
    loop.watch(
        2.0
    )  # the phase is the first epoch's whenever there was nothing to watch, and cuts no other short
    assert loop.run_until(121.0) == [120.375, 120.875]


@pytest.mark.parametrize("passes", [0.02, 0.3, 3.0])
def test_what_begins_as_a_phase_ends_the_first_epoch_has_its_whole_timeout(
    loop: Loop, passes: float
) -> None:
    loop.driver.phase = 0.5
    loop.watch(100.0)
    loop.time = loop.driver.rest()
    is_due = loop.driver.look()
    loop.time = began = loop.time + passes
    connection = loop.watch(5.0)
    if is_due:
        loop.driver.act()
    while not connection.reaped:
        loop.time = max(loop.time, loop.driver.rest())
        loop.wake()
    assert began + 5.0 <= loop.time <= began + 6.0


def test_unread_bytes_spare_a_connection_but_buy_a_limit_no_second_length() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop = Loop()
        connection = loop.watch(50, ours.fileno())
        connection.deadline(50, "headers")  # two leases come due in one look
        theirs.send(b"x")
        loop.run_until(52)
        assert not connection.reaped
        ours.recv(1)
        loop.run_until(54)
        assert connection.reason == "headers"


class MayNotMove(Connection):
    """What its peer sends may move nothing, as a PING of HTTP/2. It counts the final
    checks.
    """

    __slots__ = ("checks",)

    @property
    def stays_due(self) -> bool:
        return True

    def pardon(self, lease: Lease) -> bool:
        self.checks = getattr(self, "checks", 0) + 1
        return False


@contextmanager
def due_as_bytes_come(loop: Loop) -> Iterator[tuple[MayNotMove, socket.socket]]:
    """A connection with a timeout of 50 s and its socket, on which bytes are unread as
    that ends.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection: Any = loop.watch(50, ours.fileno(), MayNotMove)
        theirs.send(b"x")
        loop.run_until(50.9)
        assert (connection.checks, connection.reaped) == (1, False)
        yield connection, ours


def test_bytes_that_turn_out_to_move_nothing_buy_no_second_timeout(loop: Loop) -> None:
    with due_as_bytes_come(loop) as (connection, ours):
        ours.recv(1)
        loop.run_until(51.5)
        assert connection.reason == "idle"


@pytest.mark.parametrize("moves", ["touch", "suspend"])
def test_bytes_that_turn_out_to_be_a_request_keep_their_connection(moves: str, loop: Loop) -> None:
    with due_as_bytes_come(loop) as (connection, ours):
        ours.recv(1)
        getattr(connection, moves)()
        loop.run_until(100)
        assert (connection.checks, connection.reaped) == (1, False)


def test_bytes_that_are_not_read_keep_their_connection_at_one_check_an_epoch(loop: Loop) -> None:
    with due_as_bytes_come(loop) as (connection, _):
        loop.time += 10.0  # a stall
        loop.wake()
        checks = connection.checks
        loop.run_until(loop.time + 20)
        assert not connection.reaped
        assert connection.checks - checks == 40  # two epochs a tick


@pytest.fixture
def over_tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


def flooded_until(
    loop: Loop, ends: Any, over_tcp: tuple[socket.socket, socket.socket], most: float
) -> None:
    """Run until *ends*, with one more byte unread at each wake, and all before it read;
    no longer than until *most*.
    """
    ours, theirs = over_tcp
    ours.setblocking(False)
    while not ends() and loop.time < most:
        theirs.send(b"x")
        loop.time = max(loop.time, loop.driver.rest())
        if loop.driver.look():
            loop.driver.act()
        assert ours.recv(1000)


def test_a_limit_ends_whoever_always_has_a_byte_unread(
    loop: Loop, over_tcp: tuple[socket.socket, socket.socket]
) -> None:
    connection = loop.watch(1000, over_tcp[0].fileno())
    connection.deadline(50, "headers")
    flooded_until(loop, lambda: connection.reaped, over_tcp, 60)
    assert connection.reason == "headers"
    assert 50 < loop.time <= 51


def test_what_bytes_may_not_move_ends_whoever_always_has_one_unread(
    loop: Loop, over_tcp: tuple[socket.socket, socket.socket]
) -> None:
    connection: Any = loop.watch(50, over_tcp[0].fileno(), MayNotMove)
    flooded_until(loop, lambda: connection.reaped, over_tcp, 60)
    assert (connection.reason, connection.checks) == ("idle", 2)


def test_a_second_limit_is_spared_for_the_bytes_that_had_come_when_it_was_over(
    loop: Loop, over_tcp: tuple[socket.socket, socket.socket]
) -> None:
    connection: Any = loop.watch(50, over_tcp[0].fileno(), MayNotMove)
    flooded_until(loop, lambda: getattr(connection, "checks", 0) == 1, over_tcp, 60)
    connection.touch()
    touched = loop.time
    flooded_until(loop, lambda: connection.reaped, over_tcp, 120)
    assert connection.checks == 3
    assert touched + 50 <= loop.time <= touched + 51.5
    assert not loop.driver._came or loop.run_until(loop.time + 5)
    assert not loop.driver._came  # nothing of it is kept


def test_bytes_that_came_in_time_and_are_not_read_spare_it_whatever_comes_after_them(
    loop: Loop, over_tcp: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = over_tcp
    connection = loop.watch(50, ours.fileno(), MayNotMove)
    theirs.send(b"in time")
    loop.run_until(50.9)
    theirs.send(b"late")
    ours.recv(len(b"in tim"))
    loop.run_until(52)
    assert not connection.reaped
    ours.recv(1)
    loop.run_until(53)
    assert connection.reaped


def test_a_mass_expiry_lets_the_loop_run_between_slices(
    loop: Loop,
) -> None:
    for _ in range(3 * REAPS_PER_SLICE):
        loop.watch(5)
    loop.run_until(5.0)
    left = []
    while loop.driver.connections:
        loop.time = max(loop.time, loop.driver.rest())
        loop.wake()
        left.append(len(loop.driver.connections))
    ended = [before - after for before, after in pairwise([3 * REAPS_PER_SLICE, *left])]
    assert [each for each in ended if each] == [*5 * [16], 32, 64, REAPS_PER_SLICE, 80]


def test_what_is_sent_while_a_slice_is_closed_spares_those_still_to_be_closed(
    loop: Loop,
) -> None:
    pairs = [socket.socketpair() for _ in range(100)]

    class Slow(Connection):
        """While it is closed, every peer sends a request."""

        def _cut(self, reason: str) -> None:
            for _, peer in pairs:
                peer.send(b"GET")
            super()._cut(reason)

    watched = [loop.watch(5, ours.fileno(), Slow) for ours, _ in pairs]
    loop.run_until(6)
    closed = sum(connection.reaped for connection in watched)
    for ours, peer in pairs:
        ours.close()
        peer.close()
    assert 0 < closed < 20


def test_all_that_are_about_to_be_closed_are_shut_before_the_first_of_them_is_closed(
    loop: Loop,
) -> None:
    done = []

    class Telling(Connection):
        def shut(self) -> None:
            done.append("shut")

        def _cut(self, reason: str) -> None:
            done.append("closed")

    for _ in range(5):
        loop.watch(5, kind=Telling)
    loop.run_until(6)
    assert done == 5 * ["shut"] + 5 * ["closed"]


def test_a_drain_ends_all_in_use_at_its_deadline_even_if_the_end_of_one_raises(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    connections = [loop.watch(100) for _ in range(2 * REAPS_PER_SLICE + 1)]
    for connection in connections:
        connection.receiving = False

    class EndsAnother(list):
        def append(self, reason: str) -> None:
            connections[-1].leave()

    connections[0].cuts = EndsAnother()
    connections[1].cuts = None  # type: ignore[assignment]  # its end raises
    loop.driver.begin_drain(10)
    loop.run_until(12)
    assert {connection.reason for connection in connections[:-1]} == {"drain_deadline"}
    assert (connections[-1].reaped, loop.driver.books.reasons["drain_deadline"]) == (
        False,
        2 * REAPS_PER_SLICE,
    )
    assert loop.driver.rest() == float("inf")
    assert raised(caplog) == [AttributeError]


def drained(loop: Loop) -> None:
    """A drain, up to where it waits for those in use."""
    loop.driver.begin_drain(10)
    for _ in loop.driver.drain_slices(lambda: REAPS_PER_SLICE):
        pass


def test_a_drain_does_not_end_at_once_whose_bytes_are_yet_to_be_read(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        spoke, silent = loop.watch(100, ours.fileno()), loop.watch(100)
        spoke.receiving = silent.receiving = True
        theirs.send(b"GET")
        drained(loop)
        assert (spoke.reaped, silent.reason) == (False, "drain")


def test_a_drain_ends_no_connection_that_the_end_of_another_has_ended(loop: Loop) -> None:
    first, second = loop.watch(100), loop.watch(100)
    first.receiving = second.receiving = True

    class EndsAnother(list[str]):
        def append(self, reason: str) -> None:
            second.leave()

    first.cuts = EndsAnother()
    drained(loop)
    assert (first.reason, second.reaped, second.cuts) == ("drain", False, [])


def test_of_many_timers_that_are_due_a_slice_is_called_before_the_loop_runs(loop: Loop) -> None:
    called: list[int] = []
    for n in range(REAPS_PER_SLICE + 1):
        loop.driver.after(5.0, lambda n=n: called.append(n))  # type: ignore[misc]
    loop.time = loop.driver.rest()
    loop.wake()
    assert called == list(range(REAPS_PER_SLICE))
    loop.time = loop.driver.rest()
    loop.wake()
    assert len(called) == REAPS_PER_SLICE + 1


def test_a_timer_that_was_cancelled_is_not_called_and_the_next_one_is(loop: Loop) -> None:
    called: list[str] = []
    loop.driver.after(5.0, lambda: called.append("cancelled")).cancel()
    loop.driver.after(5.0, lambda: called.append("kept"))
    loop.run_until(6.0)
    assert called == ["kept"]


class Moving(Loop):
    """A loop whose clock moves on a little each time it is read, as real ones do."""

    _now = 0.0

    @property
    def time(self) -> float:
        self._now += 1e-6
        return self._now

    @time.setter
    def time(self, value: float) -> None:
        self._now = value


def test_a_bound_on_closes_closes_also_by_a_clock_that_moves_while_it_is_read() -> None:
    loop = Moving(reaps_per_second=100)
    connection = loop.watch(2.0)
    loop.run_until(5.0)
    assert connection.cuts == ["idle"]


def test_a_timer_of_the_servers_does_not_wait_behind_what_a_rate_holds_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop(reaps_per_second=1)
    for _ in range(20):
        loop.watch(1.0)
    called: list[float] = []
    loop.driver.after(3.0, lambda: called.append(loop.time))
    loop.driver.after(1.0, lambda: 1 / 0)  # logged, and harms no other
    loop.driver.register("mine", 0.5, lambda expiry: expiry / 0)  # type: ignore[operator]
    loop.run_until(4.0)
    assert called == [3.0]
    assert 12 <= len(loop.driver.connections) < 20
    assert set(raised(caplog)) == {ZeroDivisionError, TypeError}


def test_a_tick_that_is_not_shorter_than_the_timeout_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        check_options(None, 2.0, {"tick": 10.0})
    check_options(None, 2.0, {"tick": 0.5})
    check_options(None, 0.0, {"tick": 10.0})
    (said,) = caplog.messages
    assert said.startswith("tick 10s is not shorter than idle 2s")
    assert "after 12s; use a tick of at most 500ms" in said
