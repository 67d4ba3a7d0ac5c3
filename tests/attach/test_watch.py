"""The watch in virtual time: never early, at most a tick late, exactly once, and a look
only when it is worth while.
"""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reaper.attach.judge import BUSY_LOOK, Limits, Memory, Verdict, judge
from reaper.attach.kernel import Found
from reaper.attach.show import summary, text_of
from reaper.attach.tcpinfo import ESTABLISHED, Snapshot
from reaper.attach.watch import Event, Watch
from tests.helpers.attach_worlds import FakeSocket, FakeWorld

GRAIN = 0.008
TICK = 1.0


class Harness:
    """A watch over a fake world, and what it said."""

    def __init__(self, limits: Limits, *, closes: bool = True, **options: Any) -> None:
        self.world = FakeWorld()
        self.events: list[Event] = []
        end = self.world.end if closes else None
        self.watch = Watch(
            self.world.look,
            limits,
            glance=self.world.glance,
            tick=TICK,
            end=end,
            on=self.events.append,
            **options,
        )

    def discover(self, info: bool | None = None) -> None:
        """By a survey, as the command does, or by a dump with or without *info*."""
        dump: Iterable[Found | None] = self.world.survey([self.world.listener], self.watch.sighted)
        if info is not None:
            dump = self.world.dump([self.world.listener], info)
        for _ in self.watch.discover(dump, lambda found: True):
            pass

    def run(self, seconds: float, every: float | None = None) -> None:
        """Let time pass; wake exactly when told to, and discover at half the shortest
        limit.
        """
        end = self.world.now + seconds
        period = every or self.watch.limits.shortest() / 2
        dump = self.world.now
        while True:
            while self.watch.advance(self.world.now, 32) == 32:
                pass
            if self.world.now >= dump:
                self.discover()
                dump = self.world.now + period
            wake = self.watch.next_wakeup(self.world.now)
            step = min(dump, end, wake if wake is not None else end)
            if self.world.now >= end:
                return
            self.world.now = max(step, self.world.now)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def closed(self) -> list[Event]:
        return [event for event in self.events if event.kind == "closed"]

    def served(self, later: float = 0.0) -> FakeSocket:
        """A connection whose question was answered, *later* seconds after it came."""
        sock = self.world.connect()
        self.exchange(sock, later)
        return sock

    def exchange(self, sock: FakeSocket, later: float = 0.0) -> None:
        self.world.send(sock)
        self.world.wait(later)
        self.world.answer(sock)


def test_without_hands_nothing_is_closed_and_each_silence_is_reported_once() -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN), closes=False)
    sock = it.world.connect()
    it.run(60.0)
    assert it.kinds() == ["found", "due"]
    it.exchange(sock, later=0.1)
    it.run(60.0)
    assert it.kinds() == ["found", "due", "due"]
    assert sock.open


def test_a_connection_that_speaks_between_the_look_and_the_close_is_averted() -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    sock = it.world.connect()
    real = it.world.end

    def speak_first(ident: bytes, inode: int, again: Callable[[Snapshot], bool]) -> str:
        it.exchange(sock)
        it.watch._end = real
        return real(ident, inode, again)

    it.watch._end = speak_first
    it.run(15.0)
    assert it.kinds() == ["found", "averted"]
    it.run(15.0)
    assert it.kinds() == ["found", "averted", "closed"]


def test_looks_are_proportional_to_what_can_be_due() -> None:
    """1,000 connections, one of which is due per tick: a dump per tick would show
    60,000.
    """
    it = Harness(Limits(idle=60.0, grain=GRAIN))
    draw = random.Random(1)
    for _ in range(1000):
        sock = it.served()
        sock.heard = sock.spoke = it.world.now - draw.uniform(0, 59)
    it.discover(info=True)
    assert it.watch.counts.looks == 0
    it.run(60.0)
    assert len(it.world.shut) > 950
    assert it.watch.counts.looks <= 1100
    assert it.watch.counts.dumps <= 4


def test_a_busy_connection_is_looked_at_about_once_per_limit() -> None:
    it = Harness(Limits(idle=60.0, grain=GRAIN))
    sock = it.world.connect()
    for _ in range(600):
        it.run(1.0, every=30.0)
        it.exchange(sock)
    assert sock.open
    assert it.watch.counts.looks <= 600 / 58 + 3


@pytest.mark.parametrize(
    "limits", [Limits(idle=60.0, grain=GRAIN), Limits(idle=60.0, vanished=60.0, grain=GRAIN)]
)
def test_a_connection_that_dumps_show_busy_is_looked_at_once_in_90_seconds(limits: Limits) -> None:
    """It speaks every 45 s, a dump comes every 30 s: only each third shows nothing new
    in time.
    """
    it = Harness(limits)
    sock = it.world.connect()
    for _ in range(20):
        it.exchange(sock)
        it.run(45.0, every=30.0)
    assert sock.open
    assert it.watch.counts.looks <= 20 * 45 / 90 + 3


def test_a_look_that_shows_that_the_peer_has_spoken_needs_no_judgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = Harness(Limits(idle=60.0, vanished=60.0, grain=GRAIN))
    sock = it.served(later=0.1)
    it.discover()
    judged: list[Snapshot] = []

    def counted(seen: Snapshot, known: Memory, limits: Limits) -> tuple[Verdict, Memory]:
        judged.append(seen)
        return judge(seen, known, limits)

    monkeypatch.setattr("reaper.attach.watch.judge", counted)
    monkeypatch.setattr(it, "discover", lambda: None)  # a dump would put the looks off
    for _ in range(20):
        it.run(25.0)
        it.exchange(sock, later=0.1)
        spoke = it.world.now
    assert it.watch.counts.looks >= 20 * 25 / 60
    assert not judged
    it.run(100.0)
    (closed,) = it.closed()
    assert 60.0 <= closed.at - spoke <= 60.0 + TICK


def test_a_dump_that_puts_a_look_off_delays_no_close() -> None:
    it = Harness(Limits(idle=60.0, grain=GRAIN))
    sock = it.served(later=0.1)
    it.discover()
    it.run(50.0, every=10.0)
    it.exchange(sock, later=0.1)
    spoke = it.world.now
    it.run(90.0, every=10.0)
    (closed,) = it.closed()
    assert 60.0 <= closed.at - spoke <= 60.0 + TICK


@pytest.mark.parametrize("vain", [0, 1])
def test_a_dump_puts_off_no_look_at_a_peer_whose_kernel_owes_an_answer(vain: int) -> None:
    it = Harness(Limits(vanished=60.0, grain=GRAIN))
    it.served()
    it.discover()
    ((ident, kept),) = it.watch.rows.items()
    before = kept.step
    assert it.watch.sighted(ident, it.world.now + 30.0, it.world.now, 0, vain)
    assert (kept.step > before) is (not vain)


@pytest.mark.parametrize("vain", [0, 1])
def test_a_look_at_a_peer_whose_kernel_owes_an_answer_is_judged(vain: int) -> None:
    it = Harness(Limits(vanished=60.0, grain=GRAIN))
    it.served()
    it.discover()
    (ident,) = it.watch.rows
    assert it.watch._glanced(ident, it.world.now + 45.0, it.world.now + 44.0, 0, vain) is (not vain)


def test_a_connection_that_a_dump_did_not_show_is_asked_for_before_it_counts_as_gone() -> None:
    it = Harness(Limits(idle=60.0, grain=GRAIN))
    sock, other = it.world.connect(), it.world.connect()
    it.discover()
    for _ in it.watch.discover([], lambda found: True):
        pass
    assert len(it.watch) == 2
    it.world.hang_up(other)
    it.discover()
    assert it.kinds() == ["found", "found", "gone"]
    assert list(it.watch.rows) == [sock.ident]


def test_instants_that_two_threads_pass_in_the_wrong_order_are_taken_as_they_come() -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    it.world.connect()
    it.run(5.0)
    assert it.watch.advance(it.world.now - 3.0) == 0
    it.run(10.0)
    assert it.kinds() == ["found", "closed"]


def test_a_bound_on_closes_defers_and_forgets_none() -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN), reaps_per_second=20.0)
    begun = it.world.now
    for _ in range(200):
        it.world.connect()
    it.run(14.0)
    assert 60 <= len(it.world.shut) <= 100
    it.run(12.0)
    assert len(it.world.shut) == 200
    late = [event.at - begun for event in it.closed()]
    assert late == sorted(late)


def test_jitter_only_ever_lengthens_and_spreads() -> None:
    it = Harness(Limits(idle=100.0, grain=GRAIN), jitter=0.5)
    begun = it.world.now
    for _ in range(64):
        it.world.connect()
    it.run(160.0)
    ages = [event.at - begun for event in it.closed()]
    assert len(ages) == 64
    assert min(ages) >= 100.0
    assert max(ages) <= 150.0 + TICK
    assert len({round(age) for age in ages}) >= 10


def test_an_outgoing_connection_from_the_listening_port_is_not_watched() -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    it.world.connect().outgoing = True
    for info in (True, False):
        it.discover(info)
    it.run(30.0)
    assert it.kinds() == []


def test_a_connection_too_busy_to_tell_who_opened_it_is_taken_up_by_a_later_dump() -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    sock = it.world.connect()
    sock.outgoing = None
    it.discover(info=True)
    assert it.kinds() == []
    sock.outgoing = False
    it.run(30.0)
    assert it.kinds() == ["found", "closed"]


@pytest.mark.parametrize("shown_by", ["a look", "the final check"])
def test_a_connection_found_as_incoming_is_dropped_once_it_shows_that_it_is_outgoing(
    shown_by: str,
) -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    sock = it.world.connect()
    it.discover()

    def quiet_now(ident: bytes, inode: int, again: Callable[[Snapshot], bool]) -> str:
        sock.outgoing = True
        return it.world.end(ident, inode, again)

    if shown_by == "a look":
        sock.outgoing = True
    else:
        it.watch._end = quiet_now
    it.run(30.0)
    assert it.kinds() == ["found", "gone"]
    assert sock.open


def test_a_final_check_too_busy_to_tell_who_opened_the_connection_is_made_again() -> None:
    it = Harness(Limits(max_age=10.0, grain=GRAIN))
    sock = it.world.connect()
    begun = it.world.now
    it.discover()
    sock.outgoing = None
    it.run(14.5)
    assert it.kinds() == ["found"]
    sock.outgoing = False
    it.run(5.0)
    assert it.kinds() == ["found", "closed"]
    assert it.events[-1].at - begun <= 14.5 + 2 * TICK


def test_a_connection_whose_bytes_were_miscounted_since_is_closed_all_the_same() -> None:
    """Its own machine dropped some, as where its link is down: no look tells any more
    who opened it.
    """
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    sock, stranger = it.world.connect(), it.world.connect()
    stranger.outgoing, stranger.miscounted = None, True  # when it is found already
    it.discover()
    sock.outgoing, sock.miscounted = None, True
    it.run(14.0)
    assert it.kinds() == ["found", "closed"]
    assert stranger.open


@pytest.mark.parametrize("closes", [True, False])
def test_a_connection_whose_turn_cannot_be_told_is_named_once_and_never_closed(
    closes: bool,
) -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN), closes=closes)
    it.served()
    if closes:

        def only_check(ident: bytes, inode: int, again: Callable[[Snapshot], bool]) -> str:
            (seen,) = it.world.look([ident])
            assert seen is not None
            return "closed" if again(seen) else "averted"

        it.watch._end = only_check
    it.run(60.0)
    assert it.kinds() == ["found", "unsure"]


def test_a_silent_peer_is_asked_when_discovered_and_again_if_no_socket_was_found() -> None:
    it = Harness(Limits(vanished=60.0, grain=GRAIN))
    asked: list[float] = []
    begun = it.world.now
    answers = ["later", "later", "asked"]

    def ask(ident: bytes, inode: int) -> str:
        asked.append(it.world.now - begun)
        return answers[len(asked) - 1]

    it.watch._ask = ask
    it.world.connect()
    it.run(300.0)
    assert asked == [0.0, pytest.approx(10.0, abs=TICK), pytest.approx(20.0, abs=TICK)]
    assert it.kinds() == ["found"]


@pytest.mark.parametrize(
    ("answer", "said", "after"), [("unreachable", ["unreachable"], 10.0), ("later", [], 1.0)]
)
def test_a_connection_that_cannot_be_ended_is_tried_again(
    answer: str, said: list[str], after: float
) -> None:
    """One out of reach is tried after another limit, and reported once; a lost one in a
    second.
    """
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    it.world.connect()
    begun, answers, real = it.world.now, [answer] * 2, it.world.end
    it.watch._end = lambda ident, inode, again: (
        answers.pop() if answers else real(ident, inode, again)
    )
    it.run(40.0)
    assert it.kinds() == ["found", *said, "closed"]
    assert 10.0 + 2 * after <= it.events[-1].at - begun <= 10.0 + 2 * (after + TICK) + TICK


@pytest.mark.parametrize(
    ("outcome", "overdue"), [("closed", True), ("unreachable", False), ("closed", False)]
)
def test_what_is_said_of_single_connections_and_of_all_is_the_same_lateness(
    outcome: str, overdue: bool
) -> None:
    it = Harness(Limits(idle=10.0, grain=GRAIN))
    it.served(later=0.1)
    it.watch._end = lambda ident, inode, again: (
        "unreachable" if outcome == "unreachable" else it.world.end(ident, inode, again)
    )
    if overdue:
        it.world.wait(40.0)
    it.run(30.0)
    (event,) = (event for event in it.events if event.kind == outcome)
    timely = outcome == "closed" and not overdue
    assert ("after it was due" in text_of(event)) is timely
    assert ("late at most" in summary(it.watch)) is timely


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(idle=60.0, max_age=600.0), 268),
        (Limits(idle=60.0, vanished=60.0), 268),
        (Limits(idle=60.0, write=60.0), 292),
    ],
)
def test_a_watched_connection_costs_few_bytes(limits: Limits, most: int) -> None:
    """What was counted, and two bytes: another reference would be eight. A number of
    rows for which the table is as full as it gets; 100,000 cost 40 more.
    """
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    watch = Watch(lambda idents: [None] * len(idents), limits, tick=TICK)
    for number in range(5_000):
        ago = number % 60 + 0.004
        seen = Snapshot(
            ESTABLISHED, ago, ago, 1000 + number, 2000 + number, 0, 0, 1000.0, 1000.0, sent=9
        )
        watch.add(struct.pack("=40xQ", (1 << 33) + number), 5000 + number, seen)
    for ident in watch.rows:  # a dump that shows each, and that its peer has spoken
        assert watch.sighted(ident, 1030.0, 1029.0, 0, 0)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(watch) == 5_000
    assert used / 5_000 <= most


def push(world: FakeWorld, sock: FakeSocket) -> None:
    sock.unread = 0
    world.answer(sock)


def reply(world: FakeWorld, sock: FakeSocket) -> None:
    if sock.received:
        push(world, sock)


def exchange(world: FakeWorld, sock: FakeSocket) -> None:
    world.send(sock)
    world.answer(sock)


ACTS = [push, reply, exchange, FakeWorld.send, FakeWorld.leave_unread]
ACTS += [FakeWorld.stall, FakeWorld.take, FakeWorld.hang_up]


class Guarded(RuleBasedStateMachine):
    """Connections that do anything at any time, seen in whole jiffies, compared with
    the plainest model.
    """

    limits = Limits(idle=10.0, first_byte=4.0, max_age=60.0, write=7.0, grain=GRAIN)

    @initialize(
        takes=st.sampled_from([0.0, 0.001]),
        jitter=st.sampled_from([0.0, 0.3]),
        phase=st.floats(0.0, GRAIN / 2),
    )
    def begin(self, takes: float, jitter: float, phase: float) -> None:
        self.jitter = jitter
        self.it = Harness(self.limits, jitter=jitter)
        self.world = self.it.world
        self.world.jiffy, self.world.takes = GRAIN / 2, takes
        self.world.now += phase
        self.seen = 0
        self.late_by = 0.0  # our own stops so far
        for _ in range(4):
            self.it.served()

    @rule(served=st.booleans(), asks_again=st.booleans())
    def connect(self, served: bool, asks_again: bool) -> None:
        sock = self.it.served() if served else self.world.connect()
        self.it.run(0.1)
        if served and asks_again:
            self.world.send(sock)

    @rule(number=st.integers(0, 99), act=st.sampled_from(ACTS))
    def something_happens(self, number: int, act: Callable[[FakeWorld, FakeSocket], None]) -> None:
        if alive := [sock for sock in self.world.sockets if sock.open]:
            act(self.world, alive[number % len(alive)])

    @rule(seconds=st.one_of(st.floats(0.001, 0.02), st.floats(0.01, 8.0)))
    def time_passes(self, seconds: float) -> None:
        self.it.run(seconds)

    @rule(seconds=st.floats(0.01, 30.0))
    def we_are_stopped(self, seconds: float) -> None:
        self.world.wait(seconds)
        self.late_by += seconds

    @invariant()
    def never_early_nor_late_and_exactly_once(self) -> None:
        for event in self.it.events[self.seen :]:
            if event.kind == "closed":
                (sock,) = (one for one in self.world.sockets if one.ident == event.ident)
                assert sock in self.world.shut
                self.timely(event, sock)
        self.seen = len(self.it.events)
        closed = [event.ident for event in self.it.events if event.kind == "closed"]
        assert len(closed) == len(set(closed))

    def timely(self, event: Event, sock: FakeSocket) -> None:
        quiet_since = max(sock.heard, sock.spoke)
        allowed = TICK + self.late_by + 3 * GRAIN + self.jitter * 10.0 + self.world.takes * 300
        if event.reason == "write":
            assert sock.stuck is not None
            stalled = event.at - sock.stuck
            assert (
                0
                <= stalled - self.limits.write
                <= self.limits.write + self.limits.shortest() / 2 + allowed
            )
            return
        if event.reason == "idle":
            assert event.at - sock.heard >= self.limits.idle
            if not sock.queued:  # a server that sends to no avail does not keep a connection open
                assert event.at - sock.spoke >= self.limits.idle
        if event.reason == "first_byte":
            assert not sock.received
        else:
            assert not sock.waits
            assert not sock.unread
        assert event.at - sock.opened >= self.limits.of(event.reason)
        due = quiet_since + self.limits.of(event.reason)
        if event.reason == "max_age":
            due = max(sock.opened + self.limits.max_age, quiet_since) + BUSY_LOOK
        assert event.at <= due + allowed

    def teardown(self) -> None:
        if hasattr(self, "it"):
            self.it.run(40.0)
            self.never_early_nor_late_and_exactly_once()
            for sock in self.world.sockets:
                assert not sock.open or self.kept(sock), "it was forgotten"

    def kept(self, sock: FakeSocket) -> bool:
        """Whether *sock* may be open long after everything has become silent."""
        return (sock.waits or bool(sock.unread)) and not sock.queued


class GuardedWithoutRates(Guarded):
    """Without `write` and `min_in_rate` a dump may put looks off."""

    limits = Limits(idle=10.0, first_byte=4.0, max_age=60.0, grain=GRAIN)

    def kept(self, sock: FakeSocket) -> bool:
        return sock.waits or bool(sock.unread)  # however long its answer is queued


GuardedWithoutRates.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestGuardedWithoutRates = GuardedWithoutRates.TestCase
Guarded.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestGuarded = Guarded.TestCase
