"""The driver without a framework: a loop that is a variable, so that every wake and every stall is
ours to choose.
"""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reaper.core.ticks import ms_to_seconds, seconds_to_ms_deadline, seconds_to_ms_now
from reaper.driver.driver import REAPS_PER_SLICE, Driver, fair_slice
from reaper.driver.sockets import peer_has_shut, peer_name, queued, tcp_info_of, unread
from reaper.driver.stall_clock import StallClock
from reaper.driver.watched import Watched
from reaper.trio.accepting import accept_burst, after


class Connection(Watched):
    """A connection whose handler is a list of reasons."""

    __slots__ = ("cuts", "fd")

    def __init__(self, driver: Driver, uid: int, fd: int = -1) -> None:
        super().__init__(driver, uid)
        self.cuts: list[str] = []
        self.fd = fd

    @property
    def descriptor(self) -> int:
        return self.fd

    def _cut(self, reason: str) -> None:
        self.cuts.append(reason)


async def ping(connection) -> None:
    """What a probe looks like; the loop here only takes note of it."""


class Loop:
    """An event loop that wakes exactly when it should, but for the stalls it is told of."""

    def __init__(self, **options) -> None:
        self.time = 0.0
        self.probed: list[Connection] = []
        self.driver = Driver(
            lambda: self.time, lambda: None, self.probed.append, **{"tick": 1.0, **options}
        )

    def watch(
        self, idle: float, fd: int = -1, kind: type[Connection] = Connection, **options
    ) -> Connection:
        return self.driver.watch(lambda uid: kind(self.driver, uid, fd), None, idle, **options)

    def wake(self) -> None:
        if self.driver.look():
            self.driver.act()

    def run_until(self, end: float) -> list[float]:
        """The instants at which it has woken."""
        wakes = []
        while (rest := self.driver.rest()) <= end:
            self.time = max(self.time, rest)
            wakes.append(self.time)
            self.wake()
        self.time = end
        return wakes


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_processes_with_phases_of_their_own_that_begin_together_never_wake_in_one_instant():
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


def test_the_clock_stands_still_while_the_loop_stalls_and_knows_no_stall_up_to_a_tick():
    real = [0.0]
    clock = StallClock(lambda: real[0], 1.0)
    clock.expect(10.0)
    real[0] = 10.8
    assert clock.now() == 10.8
    assert clock.woke() == 0.0
    assert clock.now() == 10.8
    clock.expect(11.0)
    real[0] = 14.0
    assert clock.now() == 11.0
    assert clock.woke() == 3.0
    assert (clock.now(), clock.stalls, clock.stalled, clock.max_lag) == (11.0, 1, 3.0, 3.0)
    real[0] = 15.0
    assert clock.now() == 12.0
    assert (clock.real(10.9), clock.real(11.0), clock.real(12.0)) == (10.9, 14.0, 15.0)
    clock.expect(12.0)
    for real[0], named in (
        (15.5, 12.5),
        (17.0, 12.5),
    ):  # an instant that was named stays so, stall or not
        assert clock.now() == named
    clock.woke()
    assert (clock.now(), clock.real(12.5)) == (12.5, 17.0)


@pytest.mark.parametrize("passes", [0.02, 0.3, 3.0])
def test_what_begins_as_a_phase_ends_the_first_epoch_has_its_whole_timeout(loop, passes):
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


def test_instants_of_the_loops_clock_named_by_a_caller_after_a_stall_end_nothing(loop):
    connection = loop.watch(5)
    loop.run_until(2.25)
    loop.time += 10.0  # a stall
    loop.wake()
    loop.driver.register("theirs", 3.0).retime(4.0, loop.time)
    loop.run_until(30.0)
    assert connection.reaped
    loop.driver.core.check()


@pytest.mark.parametrize("way", ["touch", "bound", "lease", "core", "resume"])
def test_any_way_of_noting_activity_answers_a_probe(loop, way):
    connection = loop.watch(5, probe=ping, grace=2)
    bound = connection.touch
    loop.run_until(6.5)
    assert loop.probed == [connection]
    ways = {
        "touch": lambda: connection.touch(),
        "bound": bound,
        "lease": connection.lease.touch,
        "core": lambda: loop.driver.core.touch(connection.uid),
        "resume": lambda: connection.suspend() and connection.resume(),
    }
    ways[way]()
    loop.run_until(11)
    assert not connection.reaped
    loop.run_until(15)
    assert (len(loop.probed), connection.reason) == (2, "unanswered")


def test_a_grace_longer_than_the_timeout_sends_one_probe_and_then_reaps_and_who_leaves_meanwhile_wakes_nobody(
    loop,
):
    connection, leaves = (loop.watch(2, probe=ping, grace=grace) for grace in (7, 50))
    loop.run_until(9)
    assert (loop.probed, connection.reaped) == ([connection, leaves], False)
    leaves.leave()
    loop.run_until(11)
    assert connection.reason == "unanswered"
    assert loop.driver.rest() == float("inf")


def test_a_timeout_of_zero_is_none(loop):
    connection = loop.watch(0)
    loop.run_until(10**4)
    assert (connection.lease.timeout, connection.reaped) == (None, False)
    connection.leave()
    loop.driver.core.check()
    assert loop.run_until(10**5)[1:] == []


def test_a_probe_made_while_time_goes_on_between_two_readings_does_not_turn_the_clock_back(loop):
    """Readings that move even within one step: what the operations are advanced to never decreases."""

    def reading() -> float:
        loop.time += 0.004
        return loop.time

    loop.driver.clock.read = reading
    connections = [loop.watch(0.5 + number / 100, probe=ping, grace=0.3) for number in range(50)]
    loop.run_until(4)
    assert {connection.reason for connection in connections} == {"unanswered"}


def test_unread_bytes_spare_a_connection_but_buy_a_limit_no_second_length():
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


@contextmanager
def connected(address=("127.0.0.1", 0), family=socket.AF_INET):
    """A client's socket and its server's."""
    with socket.socket(family) as listening, socket.socket(family) as client:
        listening.bind(address)
        listening.listen()
        client.connect(listening.getsockname())
        served, _ = listening.accept()
        with served:
            yield client, served


def test_bytes_are_unread_also_behind_an_urgent_one_and_an_end_of_file_is_none():
    pairs = [socket.socketpair() for _ in range(4)]
    pairs[1][1].send(b"x")
    pairs[2][1].close()
    pairs[3][1].send(b"y")
    pairs[3][1].close()
    ours = [left.fileno() for left, _ in pairs]
    assert (unread(ours), unread([])) == ([ours[1], ours[3]], [])
    for left, right in pairs:
        left.close()
        right.close()
    with connected() as (client, served):
        client.send(b"!", socket.MSG_OOB)
        assert unread([served.fileno()]) == []
        client.send(b"request")
        assert unread([served.fileno()]) == [served.fileno()]
        descriptor = served.fileno()
    assert (tcp_info_of(descriptor), peer_has_shut(served)) == (None, False)  # it is closed


def test_a_mass_expiry_lets_the_loop_run_between_slices_and_a_busy_loop_starves_no_reaper(loop):
    for _ in range(3 * REAPS_PER_SLICE):
        loop.watch(5)
    loop.run_until(5.0)
    left = []
    while loop.driver.connections:
        loop.time = max(loop.time, loop.driver.rest())
        loop.wake()
        left.append(len(loop.driver.connections))
    assert [each for each in left if each < 3 * REAPS_PER_SLICE] == [
        2 * REAPS_PER_SLICE,
        REAPS_PER_SLICE,
        0,
    ]
    assert [fair_slice(passes) for passes in (0.0, 0.01, 0.065, 0.1, 60.0)] == [
        REAPS_PER_SLICE
    ] * 2 + [500, 769, 769]


def test_what_is_sent_while_a_slice_is_being_closed_spares_those_that_are_still_to_be_closed(loop):
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


def test_all_that_are_about_to_be_closed_are_shut_before_the_first_of_them_is_closed(loop):
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


def test_a_hand_watched_connection_counts_as_busy_until_it_says_that_it_waits(loop):
    unknown, told, waits, mute = (loop.watch(100) for _ in range(4))
    for connection in (unknown, told, waits):
        connection.touch()
    with told.in_use():
        pass
    waits.receiving = True
    loop.driver.begin_drain(10)
    for _ in loop.driver.drain_slices():
        pass
    assert [unknown.reason, told.reason, waits.reason, mute.reason] == [
        None,
        "drain",
        "drain",
        "drain",
    ]
    loop.run_until(11)
    assert unknown.reason == "drain_deadline"
    assert loop.watch(100).reason == "drain"  # so does who comes afterwards


def test_at_the_deadline_of_a_drain_all_that_are_in_use_end_even_if_the_end_of_one_raises(
    loop, caplog
):
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
    assert [record.exc_info[0] for record in caplog.records] == [AttributeError]


def test_errors_of_accept_are_sorted_into_three_kinds():
    kinds = {
        name: after(OSError(number, ""))
        for name, number in vars(errno).items()
        if name.startswith("E")
    }
    survived = "ECONNABORTED EPROTO ENETDOWN ENOPROTOOPT EHOSTDOWN ENONET EHOSTUNREACH EOPNOTSUPP ENETUNREACH ETIMEDOUT"
    assert {kinds[name] for name in [*survived.split(), "EPERM", "ECONNRESET"]} == {"next"}
    assert {kinds[name] for name in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM")} == {"pause"}
    assert {kinds[name] for name in ("EBADF", "EINVAL", "ENOTSOCK", "EFAULT")} == {"raise"}


class Faulty:
    """A listening socket whose accepts fail as listed, and then find nothing."""

    def __init__(self, *outcomes) -> None:
        self.outcomes = list(outcomes)

    def accept(self):
        if not self.outcomes:
            raise BlockingIOError
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, int):
            raise OSError(outcome, "as listed")
        return outcome, None


def test_a_burst_passes_over_broken_connections_pauses_without_descriptors_and_never_spins():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accepted, errors, pause = accept_burst(Faulty(errno.ECONNABORTED, ours, errno.EPROTO))
        assert (accepted, [e.errno for e in errors]) == ([ours], [errno.ECONNABORTED, errno.EPROTO])
        assert not pause
        assert not ours.getblocking()
        assert accept_burst(Faulty(ours, errno.EMFILE, theirs))[2]
        assert accept_burst(Faulty(*[errno.EOPNOTSUPP] * 100))[2]
        with pytest.raises(OSError, match="as listed"):
            accept_burst(Faulty(ours, errno.EBADF))
        assert ours.fileno() == -1


def test_a_peer_is_named_by_its_address_whatever_that_is_and_one_that_is_gone_is_not(tmp_path):
    for host, family, shown in (
        ("127.0.0.1", socket.AF_INET, "127.0.0.1"),
        ("::1", socket.AF_INET6, "[::1]"),
    ):
        with connected((host, 0), family) as (client, served):
            assert peer_name(served.fileno()) == f"{shown}:{client.getsockname()[1]}"
            assert served.getpeername()  # it is open still
    path = str(tmp_path).encode() + b"/"
    for chosen, shown in (
        (path + b"server", f"{tmp_path}/server"),
        (b"\0\x1b[2J", r"@\x1b[2J"),
        (path + b"\n\xff", rf"{tmp_path}/\n\udcff"),
    ):
        with connected(chosen, socket.AF_UNIX) as (client, served):
            assert (peer_name(client.fileno()), peer_name(served.fileno())) == (shown, "")
    with socket.socket() as alone:
        assert peer_name(alone.fileno()) == ""
    assert peer_name(-1) == ""


def test_the_kernel_says_what_the_peer_has_not_taken():
    with connected() as (client, served):
        served.send(b"x" * 1000)
        assert client.recv(1000)
        while queued(served.fileno()):
            pass
    assert queued(served.fileno()) == 0


@pytest.mark.parametrize(
    ("workers", "watchdog", "expected"),
    [(1, 30.0, 0.25), (8, 30.0, 0.25), (64, 30.0, 2.0), (64, 4.0, 0.5), (64, 0, 2.0)],
)
def test_many_workers_together_wake_no_oftener_to_give_signs_of_life(workers, watchdog, expected):
    from server_example.workers import Worker

    made = [Worker(index, workers, watchdog, [], None, None, -1) for index in range(workers)]
    assert {each.beat for each in made} == {expected}
    assert len({each.phase for each in made}) == workers


def test_workers_beyond_the_most_or_too_few_for_the_connections_are_refused_before_the_first_is_started():
    from reaper.errors import ConfigError
    from server_example.planning import plan

    assert plan("auto", 1_000_000, 20_000) == 54
    for workers in ("auto", 4):
        with pytest.raises(ConfigError, match="100000000 connections need 5332 workers"):
            plan(workers, 100_000_000, 20_000)
    assert plan(1, 10_000, 20_000, most=10_000) == 1
    assert plan(3, 20_000, 20_000, most=10_000) == 3
    with pytest.raises(
        ConfigError, match=r"limits.max_connections = 10000 each \(9500 connections per worker\)"
    ):
        plan(2, 20_000, 20_000, most=10_000)  # the kernel gives one of them 10,002


@example(1001)  # ms / 1000 alone lies a rounding error below
@given(st.integers(0, 10**13) | st.floats(0.0, 1e10).map(lambda instant: int(instant * 1000.0)))
def test_whoever_wakes_for_a_deadline_in_ms_finds_that_it_is_time_and_no_deadline_is_rounded_down(
    ms,
):
    instant = ms_to_seconds(ms)
    assert seconds_to_ms_now(instant) == ms
    assert ms / 1000 <= instant <= ms / 1000 * (1 + 1e-15) + 1e-15
    assert ms_to_seconds(seconds_to_ms_deadline(instant)) >= instant
    assert (seconds_to_ms_now(0.0016), seconds_to_ms_deadline(1.9991)) == (1, 2000)


def test_a_timer_of_the_servers_does_not_wait_behind_connections_that_a_rate_holds_back(
    caplog,
) -> None:
    loop = Loop(reaps_per_second=1)
    for _ in range(20):
        loop.watch(1.0)
    called: list[float] = []
    loop.driver.after(3.0, lambda: called.append(loop.time))
    loop.driver.after(1.0, lambda: 1 / 0)  # logged, and harms no other
    loop.driver.register("mine", 0.5, lambda expiry: expiry / 0)
    loop.run_until(4.0)
    assert called == [3.0]
    assert 12 <= len(loop.driver.connections) < 20
    assert {record.exc_info[0] for record in caplog.records} == {ZeroDivisionError, TypeError}
