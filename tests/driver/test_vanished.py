"""Peers that vanish, in virtual time: no FIN, no reset, and their kernel answers
nothing.
"""

from __future__ import annotations

import errno
import itertools
import math
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import FrameType
from typing import Any

import pytest

from reaper.config import ReaperConfig
from reaper.core.lease import Lease
from reaper.core.slots import CHUNK
from reaper.driver.sockets import TCP_RTO_MAX_MS, TcpInfo
from reaper.driver.vanished import (
    LONGEST_KEEPALIVE,
    LOOKS_PER_STEP,
    ROUNDS,
    _ask,
    longest_wait,
)
from tests.driver.test_sockets import connected
from tests.helpers.driver_loop import Connection, Loop


def heard_of(silence: float, unanswered: int, resent: float | None = None) -> TcpInfo:
    """A peer that was last heard *silence* seconds ago; data was *resent* to it so long
    ago.
    """
    return TcpInfo(resent or 0.0, silence, silence, 0, 0, int(resent is not None), unanswered)


@pytest.mark.parametrize(
    ("silence", "resent", "unanswered", "gone"),
    [
        (59.0, 30.0, 9, False),  # never before its time
        (64.0, None, 4, True),  # keep-alives, the last but one a quarter ago
        (64.0, None, 1, False),  # one packet may be lost
        (64.0, None, 0, False),  # nobody has asked it
        (64.0, 10.0, 8, True),  # asked again lately, and long enough ago for an answer
        (64.0, 1.0, 8, False),  # the answer may be on its way
        (64.0, 20.0, 8, False),  # asked long ago: the next question is waited for...
        (72.0, 28.0, 8, True),  # ...a little
    ],
)
def test_a_peer_is_gone_when_it_owes_an_answer(
    silence: float, resent: float | None, unanswered: int, gone: bool
) -> None:
    assert heard_of(silence, unanswered, resent).gone(60.0) is gone


class Peers:
    """What the kernel would say of the peers of a loop's connections, by descriptor;
    those not named have answered.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: float = 60.0) -> None:
        config = ReaperConfig.load(environ={}, overrides={"timeouts.vanished": after})
        self.loop = Loop(config=config)
        self.silent_since: dict[int, float] = {}
        monkeypatch.setattr("reaper.driver.sockets.tcp_info_of", self.tcp_info_of)
        monkeypatch.setattr("reaper.driver.sockets.silence_of", self.silence_of)
        monkeypatch.setattr("reaper.driver.sockets.silence_of_paths", lambda link: math.inf)

    def tcp_info_of(self, link: int) -> TcpInfo | None:
        if link in (UNIX, -1):
            return None
        silence = self.loop.time - self.silent_since.get(link, self.loop.time)
        return heard_of(silence, int(silence / 15.0))

    def silence_of(self, link: int) -> float | None:
        info = self.tcp_info_of(link)
        return None if info is None else info.silence

    def watch(self, link: int) -> Connection:
        driver = self.loop.driver
        watched: Connection = driver.watch(lambda uid: Connection(driver, uid, link), object(), 0.0)
        return watched


GONE, THERE, UNIX, MANY = 1_000_005, 1_000_006, 1_000_009, 1_000_010
"""Descriptors that no process has; that of no TCP socket, and the first of
thousands.
"""


@pytest.mark.parametrize("lost", [0.0, 7.0, 33.3, 59.9])
def test_a_vanished_peer_is_closed_within_a_quarter(
    monkeypatch: pytest.MonkeyPatch, lost: float
) -> None:
    peers = Peers(monkeypatch)
    gone, there = peers.watch(GONE), peers.watch(THERE)
    gone.suspend()  # in flight or not
    peers.silent_since[GONE] = lost
    peers.loop.run_until(lost + 60.0)
    assert not gone.reaped
    peers.loop.run_until(lost + 76.0)
    assert (gone.reason, there.reaped) == ("vanished", False)


def test_the_line_of_the_log_says_how_long_the_kernel_heard_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reaper")
    peers = Peers(monkeypatch)
    gone = peers.watch(GONE)
    peers.silent_since[GONE] = 0.0
    peers.loop.run_until(59.0)
    gone.touch()  # the server sends to it, which says nothing of the peer
    peers.loop.run_until(76.0)
    [line] = [record.getMessage() for record in caplog.records if hasattr(record, "reason")]
    said = re.fullmatch(r"a client - closed: vanished, limit 1m, silent for (.*) s", line)
    assert said
    assert 60.0 <= float(said[1]) <= 76.0


def test_a_stall_of_the_loop_closes_nobody_who_then_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers(monkeypatch)
    connection = peers.watch(GONE)
    peers.silent_since[GONE] = 0.0
    peers.loop.run_until(10.0)
    peers.loop.time += 300.0
    peers.loop.run_until(317.0)
    assert not connection.reaped  # it looks bad, and is looked at again
    del peers.silent_since[GONE]
    peers.loop.run_until(1000.0)
    assert not connection.reaped


def test_the_kernel_is_told_to_ask_and_the_close_of_a_vanished_peer_is_a_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connected() as (client, served):
        peers = Peers(monkeypatch)
        connection = peers.watch(served.fileno())
        peers.silent_since[served.fileno()] = 0.0
        peers.loop.run_until(29.0)
        assert not served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        peers.loop.run_until(45.0)
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        peers.loop.run_until(76.0)
        assert connection.reason == "vanished"
        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 0)
        client.settimeout(10)
        assert client.recv(1) == b""


class Owner(Connection):
    """A connection that has a socket object of its own."""

    own_socket: Any = None


class OwnSocket:
    """The socket object of one of a `Crowd`: what the kernel is asked by it."""

    def __init__(self, crowd: Crowd, link: int) -> None:
        self.crowd, self.link = crowd, link
        self.closed = False

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        self._called()
        self.crowd.looked_in.add(self.crowd.wakes)
        silence = round((self.crowd.loop.time - self.crowd.heard[self.link - MANY]) * 1e3)
        return struct.pack("=52xII", silence, silence)[:size]

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._called()
        after = self.crowd.loop.driver.vanished.after
        half = min(int(after / 2), LONGEST_KEEPALIVE)
        assert (level, name, value) == (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, half)
        self.crowd._ask(self.link, after, ours=True)

    def _called(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        self.crowd.calls += 1
        self.crowd.loop.time += self.crowd.call_takes


class Crowd(Peers):
    """Thousands of clients whose kernels answer when they are asked, and say nothing
    else. With *own*: their connections have socket objects.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        idle: float = 0.0,
        after: float = 60.0,
        own: bool = False,
    ) -> None:
        super().__init__(monkeypatch, after)
        self.own = own
        self.calls = 0  # of the kernel, by socket objects
        self.heard = [0.0] * number
        self.asked: list[list[float]] = [[] for _ in range(number)]
        self.mute = False
        self.call_takes = 0.0  # seconds
        self.wakes = 0
        self.asked_in: set[int] = set()  # the wakes; and those of looks by socket objects
        self.looked_in: set[int] = set()
        self.most_at_once = self._at_once = 0
        monkeypatch.setattr("reaper.driver.vanished._ask", self._ask)
        monkeypatch.setattr("reaper.driver.vanished._calm", lambda link, after: None)
        driver = self.loop.driver
        self.connections = [
            driver.watch(partial(self._make, MANY + index), object(), idle)
            for index in range(number)
        ]

    def _make(self, link: int, uid: int) -> Connection:
        if not self.own:
            return Connection(self.loop.driver, uid, link)
        made = Owner(self.loop.driver, uid, link)
        made.own_socket = OwnSocket(self, link)
        return made

    def _ask(self, link: int, after: float, *, ours: bool) -> bool:
        self.asked[link - MANY].append(self.loop.time)
        self.asked_in.add(self.wakes)
        if not self.mute:
            self.heard[link - MANY] = self.loop.time
        self._at_once += 1
        return True

    def tcp_info_of(self, link: int) -> TcpInfo | None:
        if link in (UNIX, -1):
            return None
        return heard_of(self.loop.time - self.heard[link - MANY], 9 if self.mute else 0)

    def run_until(self, end: float) -> None:
        while (rest := self.loop.driver.rest()) <= end:
            self.loop.time = max(self.loop.time, rest)
            self._at_once = 0
            self.wakes += 1
            self.loop.wake()
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.loop.time = end

    def run_until_it(self, happens: Callable[[], bool]) -> None:
        while not happens():
            assert self.loop.time < 1000.0
            self.run_until(min(self.loop.driver.rest(), 1000.0))


OWN = pytest.mark.parametrize("own", [False, True], ids=["descriptor", "socket"])


@OWN
def test_a_peer_that_answers_is_asked_twice_within_vanished_at_most(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    crowd = Crowd(monkeypatch, 300, own=own)
    crowd.run_until(660.0)  # eleven times `vanished`
    looks = crowd.loop.driver.vanished.looks / 300 / 11
    assert min(map(len, crowd.asked)) >= 18
    assert all(
        later - asked >= 30.0 for each in crowd.asked for asked, later in itertools.pairwise(each)
    )
    assert looks <= 4
    assert not any(connection.reaped for connection in crowd.connections)


def test_a_question_takes_two_system_calls_and_few_others_where_there_is_a_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(monkeypatch, 1000, own=True)
    crowd.run_until(120.0)  # by now each was asked before
    before, crowd.calls = sum(map(len, crowd.asked)), 0
    calls = Counter[str]()

    def count(frame: FrameType, event: str, of: object) -> None:
        if frame.f_code.co_filename != __file__:  # the kernel that `OwnSocket` plays
            calls[event] += 1

    sys.setprofile(count)
    try:
        crowd.run_until(300.0)
    finally:
        sys.setprofile(None)
    asks = sum(map(len, crowd.asked)) - before
    assert asks > 5000
    assert crowd.calls <= 2 * asks + 1000  # a look at the end may await its question
    assert calls["call"] + calls["c_call"] <= 13 * asks


@pytest.mark.parametrize("remains", [False, True])
def test_a_socket_object_that_is_closed_is_asked_by_the_descriptor_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, remains: bool
) -> None:
    """Its owner may have detached it. Or another connection has its descriptor by
    now.
    """
    crowd = Crowd(monkeypatch, 20, own=True)
    crowd.run_until(120.0)
    before = sum(map(len, crowd.asked))
    for connection in crowd.connections:
        connection.own_socket.closed = True
        connection.fd = connection.fd if remains else UNIX
    crowd.run_until(190.0)
    assert (sum(map(len, crowd.asked)) - before >= 2 * 20) is remains
    assert remains or sum(map(len, crowd.asked)) == before
    assert not any(connection.reaped for connection in crowd.connections)


@OWN
def test_never_are_many_asked_at_once(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """The kernel's own timers ask those of half a second in one instant: a loopback
    drops all but a thousand.
    """
    crowd = Crowd(monkeypatch, 5000, own=own)
    crowd.run_until(130.0)
    assert 0 < crowd.most_at_once <= LOOKS_PER_STEP


def test_one_wake_asks_some_and_looks_at_those_asked_a_round_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wake of a processor that has rested costs as much as many questions."""
    crowd = Crowd(monkeypatch, 0, own=True)
    driver = crowd.loop.driver
    for index in range(640):  # ten a second, so that each round has some
        crowd.run_until(index / 10)
        crowd.heard.append(crowd.loop.time)
        crowd.asked.append([])
        crowd.connections.append(driver.watch(partial(crowd._make, MANY + index), object(), 0.0))
    crowd.run_until(180.0)
    crowd.call_takes = 20e-6
    crowd.asked_in.clear()
    crowd.looked_in.clear()
    crowd.run_until(240.0)
    assert len(crowd.asked_in) >= ROUNDS
    assert len(crowd.asked_in | crowd.looked_in) <= len(crowd.asked_in) + 1


def test_a_loop_that_comes_late_leaves_each_question_time_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(monkeypatch, 1, after=3.0, own=True)
    loop = crowd.loop
    crowd.run_until(10.0)
    crowd.mute = True
    [asked] = crowd.asked
    before = len(asked)
    while not crowd.connections[0].reaped:
        loop.time = max(loop.time, loop.driver.rest()) + 0.4  # four rounds late, and no stall yet
        loop.wake()
    assert len(asked) > before + 1
    assert all(
        later - sooner >= 0.75 * 3.0 / ROUNDS
        for sooner, later in itertools.pairwise(asked[before:])
    )


class Met(dict[Lease, Any]):
    """Counts what it is asked for by `in`."""

    times = 0

    def __contains__(self, lease: object) -> bool:
        self.times += 1
        return super().__contains__(lease)


def test_leases_that_are_known_are_not_gone_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, 1000, own=True)
    crowd.run_until(60.0)
    judge = crowd.loop.driver.vanished
    met = judge._known = Met(judge._known)
    crowd.run_until(120.0)
    assert met.times == 0
    newcomer: Connection = crowd.loop.driver.watch(partial(crowd._make, GONE), object(), 0.0)
    crowd.run_until(160.0)
    assert newcomer.lease in judge._known
    assert met.times <= 2 * CHUNK + 1  # twice the chunk that it lies in


def test_whoever_speaks_among_the_silent_is_asked_again_once_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(monkeypatch, 100, own=True)
    crowd.run_until(100.0)
    speaker, asked = crowd.connections[7], crowd.asked[7]
    for turn in range(5):
        speaker.touch()
        crowd.heard[7] = crowd.loop.time
        crowd.run_until(100.0 + (turn + 1) * 25.0)
    before = len(asked)
    crowd.run_until(300.0)
    assert len(asked) >= before + 2


@OWN
@pytest.mark.parametrize("after", [3.0, 6.0, 60.0, 600.0])
def test_a_peer_that_leaves_its_first_question_unanswered_is_asked_ten_times_more(
    monkeypatch: pytest.MonkeyPatch, after: float, own: bool
) -> None:
    """What a live one behind a lossy link depends on; and the first question comes
    early.
    """
    crowd = Crowd(monkeypatch, 20, after=after, own=own)
    crowd.run_until(5 * after)
    crowd.mute = True
    heard = list(crowd.heard)
    before = [len(each) for each in crowd.asked]
    crowd.run_until(6.3 * after)
    assert all(connection.reason == "vanished" for connection in crowd.connections)
    for each, known, since in zip(crowd.asked, before, heard, strict=True):
        assert len(each) - known >= 11
        assert after / 2 <= each[known] - since <= after * 0.6


def test_whoever_will_be_closed_anyway_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, 100, idle=60.0)
    crowd.run_until(59.0)
    assert (crowd.loop.driver.vanished.looks, sum(map(len, crowd.asked))) == (0, 0)


def test_whoever_speaks_after_it_was_asked_is_looked_at_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(monkeypatch, 100, own=True)
    crowd.run_until(100.0)
    for turn in range(5, 30):
        for connection in crowd.connections:
            connection.touch()
        crowd.run_until(turn * 25.0)
        if turn == 6:
            crowd.calls = 0
    assert crowd.calls == 0


def test_whoever_speaks_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, 100)
    for turn in range(1, 30):
        crowd.run_until(turn * 25.0)
        for connection in crowd.connections:
            connection.touch()
    assert (crowd.loop.driver.vanished.looks, sum(map(len, crowd.asked))) == (0, 0)


def test_a_request_in_flight_is_watched_although_its_lease_has_a_short_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a guarded server, which is asked once per timeout whether a request is in
    flight.
    """

    class InFlight(Connection):
        def pardon(self, lease: Lease) -> bool:
            return not self.reaped

    peers = Peers(monkeypatch)
    driver = peers.loop.driver
    gone: Connection = driver.watch(lambda uid: InFlight(driver, uid, GONE), object(), 5.0)
    there: Connection = driver.watch(lambda uid: InFlight(driver, uid, THERE), object(), 5.0)
    peers.loop.run_until(100.0)
    peers.silent_since[GONE] = 100.0
    peers.loop.run_until(159.0)
    assert not gone.reaped
    peers.loop.run_until(176.0)
    assert (gone.reason, there.reaped) == ("vanished", False)


@pytest.mark.parametrize(("limit", "is_asked"), [(55.0, False), (600.0, True), (None, True)])
def test_whom_the_final_check_pardoned_is_asked_unless_a_limit_ends_it(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, is_asked: bool
) -> None:
    """As in a guarded server: the kernel has told that bytes moved after the lease was
    touched.
    """

    class Resting(Connection):
        def pardon(self, lease: Lease) -> bool:
            return not self.reaped

        def outlasts(self, seconds: float) -> bool:
            return limit is None or limit > seconds

    peers = Peers(monkeypatch)
    driver = peers.loop.driver
    driver.watch(lambda uid: Resting(driver, uid, GONE), object(), 5.0)
    peers.silent_since[GONE] = 0.0
    peers.loop.run_until(50.0)
    assert (driver.vanished.asks > 0) is is_asked


def test_once_the_peer_speaks_the_kernel_is_told_to_ask_it_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connected() as (_, served):
        peers = Peers(monkeypatch)
        connection = peers.watch(served.fileno())
        peers.silent_since[served.fileno()] = 0.0
        peers.loop.run_until(45.0)
        del peers.silent_since[served.fileno()]
        peers.loop.run_until(60.0)
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        connection.touch()
        peers.loop.run_until(85.0)
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_whoever_loses_its_limit_after_a_long_silence_is_watched_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers(monkeypatch)
    driver = peers.loop.driver
    gone: Connection = driver.watch(lambda uid: Connection(driver, uid, GONE), object(), 55.0)
    peers.silent_since[GONE] = 0.0
    peers.loop.run_until(50.0)
    gone.retime(0)
    peers.loop.run_until(76.0)
    assert gone.reason == "vanished"


@pytest.mark.parametrize(
    ("round_trip", "variation", "wait"),
    [
        (0.0, 0.0, None),  # nobody knows how long an answer takes
        (0.02, 0.01, 15.0),
        (4.0, 1.5, 40.0),
    ],
)
def test_the_kernel_is_never_hurried_below_four_times_what_an_answer_may_take(
    round_trip: float, variation: float, wait: float | None
) -> None:
    seen = heard_of(0.0, 0)._replace(round_trip=round_trip, variation=variation)
    assert longest_wait(60.0, seen) == wait


def test_a_short_idle_time_of_the_systems_does_not_keep_the_kernel_from_asking() -> None:
    with connected() as (_, served):
        served.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)  # as a sysctl would
        assert _ask(served.fileno(), 60.0, ours=False)
        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 127
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


def test_keep_alives_that_a_program_has_set_up_by_itself_stay_as_they_are() -> None:
    with connected() as (_, served):
        served.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        served.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        served.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
        assert not _ask(served.fileno(), 60.0, ours=False)
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 5


class OldKernel:
    """In place of a socket, before Linux 6.15: it takes no TCP_RTO_MAX_MS."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def getsockopt(self, level: int, name: int) -> int:
        return 7200 if level == socket.IPPROTO_TCP else 0

    def setsockopt(self, level: int, name: int, value: int) -> None:
        if (level, name) == (socket.IPPROTO_TCP, TCP_RTO_MAX_MS):
            raise OSError(92, "Protocol not available")
        self.taken.append(name)

    def detach(self) -> None:
        """Does nothing: it has no descriptor."""


def test_a_kernel_that_cannot_be_hurried_is_made_to_ask_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers, old = Peers(monkeypatch), OldKernel()
    monkeypatch.setattr("reaper.driver.sockets.borrowed", lambda link, kind: nullcontext(old))
    monkeypatch.setattr("reaper.driver.sockets.lent", lambda link: old)
    peers.watch(GONE)
    peers.silent_since[GONE] = 0.0
    peers.loop.run_until(45.0)
    assert socket.TCP_KEEPIDLE in old.taken


class Hurried(OldKernel):
    """In place of a socket, from Linux 6.15 on: it notes the milliseconds after which
    it asks again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[int] = []

    def setsockopt(self, level: int, name: int, value: int) -> None:
        if (level, name) == (socket.IPPROTO_TCP, TCP_RTO_MAX_MS):
            self.waits.append(value)


@pytest.mark.parametrize(
    ("on_its_way", "round_trip", "waits"),
    [
        (1, 0.02, {15_000}),  # a quarter of `vanished`
        (1, 0.0, set()),  # nobody knows how long an answer takes
        (1, 60.0, {120_000}),  # the most that the kernel takes
        (0, 0.02, set()),  # a keep-alive is asked by ourselves
    ],
)
def test_where_data_is_on_its_way_the_kernel_is_told_to_ask_every_quarter(
    monkeypatch: pytest.MonkeyPatch, on_its_way: int, round_trip: float, waits: set[int]
) -> None:
    peers, kernel = Peers(monkeypatch), Hurried()

    def tcp_info_of(link: int) -> TcpInfo:
        info = heard_of(peers.loop.time, 2)
        return info._replace(on_its_way=on_its_way, round_trip=round_trip)

    monkeypatch.setattr("reaper.driver.sockets.tcp_info_of", tcp_info_of)
    monkeypatch.setattr("reaper.driver.sockets.borrowed", lambda link, kind: nullcontext(kernel))
    monkeypatch.setattr("reaper.driver.sockets.lent", lambda link: kernel)
    peers.watch(GONE)
    peers.loop.run_until(50.0)
    assert set(kernel.waits) == waits


def test_what_is_no_tcp_gets_no_keep_alives() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert not _ask(one.fileno(), 60.0, ours=False)
        assert not _ask(one.fileno(), 60.0, ours=True)


def test_a_connection_that_ends_before_it_is_looked_at_again_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Crowd(monkeypatch, 3)
    judge = crowd.loop.driver.vanished
    crowd.run_until_it(lambda: crowd.connections[0].lease in judge._known)
    crowd.connections[0].leave()  # noted, and never asked
    crowd.run_until_it(lambda: bool(crowd.asked[1]))
    crowd.connections[1].leave()  # asked, and about to be looked at
    crowd.run_until(70.0)
    assert {lease.uid for lease in judge._known} == {crowd.connections[2].uid}
    assert caplog.records == []


def test_a_connection_that_has_lost_its_descriptor_is_asked_no_more_and_lives_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Crowd(monkeypatch, 2)
    crowd.run_until(100.0)
    crowd.connections[0].fd = -1  # between two questions
    asked = crowd.asked[1]
    before, known = len(crowd.asked[0]), len(asked)
    crowd.run_until_it(lambda: len(asked) > known)
    crowd.connections[1].fd = -1  # its answer is about to be looked for
    crowd.run_until(300.0)
    assert [len(crowd.asked[0]), len(asked)] == [before, known + 1]
    assert not any(connection.reaped for connection in crowd.connections)
    assert caplog.records == []


def test_what_has_the_descriptor_of_a_vanished_peer_after_the_close_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closing(Connection):
        def _cut(self, reason: str) -> None:
            super()._cut(reason)
            self.fd = -1  # closed; the number is somebody else's by now

    with connected() as (client, served):
        peers = Peers(monkeypatch)
        driver, link = peers.loop.driver, served.fileno()
        gone: Connection = driver.watch(lambda uid: Closing(driver, uid, link), object(), 0.0)
        peers.silent_since[link] = 0.0
        peers.loop.run_until(80.0)
        assert gone.reason == "vanished"
        served.send(b"still open")
        assert client.recv(100) == b"still open"


def test_no_step_looks_at_many_and_each_is_looked_at_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers(monkeypatch)
    connections = [peers.watch(MANY + number) for number in range(5000)]
    peers.silent_since = {MANY + number: 0.0 for number in range(0, 5000, 2)}  # half a site at once
    judge, most = peers.loop.driver.vanished, 0
    while (rest := peers.loop.driver.rest()) <= 76.0:
        peers.loop.time = max(peers.loop.time, rest)
        before = judge.looks
        peers.loop.wake()
        most = max(most, judge.looks - before)
    assert most <= 3 * LOOKS_PER_STEP  # a step of a round, and two groups that were asked before
    assert all(
        connection.reaped == (number % 2 == 0) for number, connection in enumerate(connections)
    )


def test_where_no_peer_can_vanish_the_loop_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Peers(monkeypatch, after=0.0)
    off.watch(GONE).suspend()
    local = Peers(monkeypatch)
    local.watch(UNIX).suspend()
    for peers in (off, local):
        peers.loop.run_until(100.0)
        assert peers.loop.driver.rest() == math.inf
    local.watch(GONE)
    assert local.loop.driver.rest() < math.inf
