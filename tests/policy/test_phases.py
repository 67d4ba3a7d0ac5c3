"""Claims about phases, least rates and idle events. All in virtual time, on a real
core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper import IdleReaper
from reaper.config import OPTIONS, ReaperConfig
from reaper.core.lease import Expiry, Lease
from reaper.core.slices import AT_ONCE
from reaper.errors import InvalidArgument
from reaper.policy import RULES, IdlePolicy, Phase, lifespan
from reaper.policy.events import Idle, IdleEvent, IdleEvents
from reaper.policy.jitter import STEPS
from reaper.policy.min_rate import Allowance, NoSweep, Sweep
from reaper.policy.phases import TOO_SLOW
from reaper.policy.reasons import MAX_AGE, MAX_REQUESTS

PERIOD = 0.25  # of the sweep


class World:
    """A core, a clock that only moves when told, and one connection that is reaped as a
    server would do it.
    """

    def __init__(self, **overrides: object) -> None:
        settings = {
            "timeouts." + name: value for name, value in overrides.items() if "__" not in name
        }
        settings |= {
            name.replace("__", "."): value for name, value in overrides.items() if "__" in name
        }
        self.config = ReaperConfig.load(environ={}, overrides=settings)
        self.now = 1000.0
        self.core = IdleReaper(tick=self.config.reaper.tick, epochs_per_tick=2)
        self.sweep = Sweep(self.schedule, PERIOD)
        self.reaped: list[tuple[str, float]] = []
        self.lease = self.core.register("conn", 1.0, self.now, self.reap)
        self.accepted = 0
        self.scheduled = 0

    def ends(self, reason: str, least: float, most: float, **how: Any) -> None:
        """From now on it takes that many seconds to its end, for *reason*; *how* as in
        `run`.
        """
        start = self.now
        self.run(1e4, **how)
        ((found, when),) = self.reaped
        assert found == reason
        assert least <= when - start <= most

    def accept(self, count: int = 1) -> None:
        """The peer has taken *count* bytes."""
        self.accepted += count

    def progress(self) -> int:
        count, self.accepted = self.accepted, 0
        return count

    def reap(self, expiry: Expiry) -> None:
        self.reaped.append((expiry.reason, expiry.now))

    def register(
        self, uid: Hashable, timeout: float, on: Callable[[Expiry], object], *, reason: str
    ) -> Lease:
        return self.core.register(uid, timeout, self.now, on, reason=reason)

    def schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        self.scheduled += 1
        self.core.register(
            ("sweep", self.scheduled), seconds, self.now, lambda expiry: call(expiry.now)
        )

    # What `reaper.trio.Connection` does.
    def touch(self) -> None:
        self.lease.touch()

    def suspend(self) -> bool:
        return self.lease.suspend()

    def resume(self) -> bool:
        return self.lease.resume(self.now)

    def retime(self, idle: float, reason: str | None = None) -> bool:
        return self.lease.retime(idle or None, self.now, reason)

    def deadline(self, seconds: float, reason: str) -> Lease:
        self.scheduled += 1
        return self.core.register(
            ("deadline", self.scheduled), seconds, self.now, self.reap, reason=reason
        )

    def run(
        self, seconds: float, every: float | None = None, act: Callable[[], object] | None = None
    ) -> None:
        """Let time pass, woken as the core wants it, and *act* *every* so many seconds;
        stop at the first reap.
        """
        end = self.now + seconds
        beat = end if every is None else self.now + every
        while not self.reaped:
            wake = self.core.next_wakeup()
            self.now = max(self.now, min(end, beat, end if wake is None else wake))
            if act is not None and every is not None and self.now >= beat:
                act()
                beat += every
            self.core.advance(self.now)
            self.core.check()
            if self.now >= end:
                break


def begun(
    phase: Phase, cut: Callable[[str], object] | None = None, /, **overrides: Any
) -> tuple[World, IdlePolicy]:
    """A connection that waits for *phase*."""
    world = World(**overrides)
    world.run(0.75)  # it was watched before, in its handshake
    return world, IdlePolicy(
        world.config, world, world.now, world.sweep, world.progress, phase, cut
    )


def requested(
    phase: Phase, cut: Callable[[str], object] | None = None, /, **overrides: Any
) -> tuple[World, IdlePolicy]:
    """A connection whose request has begun, and which now waits for *phase*."""
    world, policy = begun(Phase.FIRST_BYTE, cut, **overrides)
    policy.request(world.now)
    policy.enter(phase, world.now)
    return world, policy


def test_every_phase_has_a_rule_whose_timeout_and_reason_are_one_setting() -> None:
    assert set(RULES) == set(Phase)
    timeouts = {phase: rule.timeout for phase, rule in RULES.items() if rule.timeout is not None}
    assert timeouts == {phase: phase.value for phase in Phase if phase is not Phase.IN_FLIGHT}
    limits = {*TOO_SLOW.values(), MAX_REQUESTS}
    assert {f"timeouts.{name}" for name in (*timeouts.values(), MAX_AGE)} | {
        f"limits.{n}" for n in limits
    } <= set(OPTIONS)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.IN_FLIGHT])
@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize(
    ("timeout", "count"), [("7s", 0), ("7s", 1), ("0s", 1)]
)  # an empty read is no activity
def test_each_phase_ends_after_its_timeout_which_only_some_bytes_start_again(
    phase: Phase, direction: str, timeout: str, count: int
) -> None:
    world, policy = begun(
        phase, limits__min_in_rate=0, limits__min_out_rate=0, **{phase.value: timeout}
    )
    act = policy.bytes_in if direction == "in" else policy.bytes_out
    if timeout == "0s" or (count and direction in RULES[phase].restarted_by):
        world.run(50.0, every=3.0, act=lambda: act(count, world.now))
        assert not world.reaped
    else:
        world.ends(phase.value, 7.0, 8.0, every=3.0, act=lambda: act(count, world.now))


@pytest.mark.parametrize(
    ("burst", "count", "every", "least", "most"),
    [
        # a look at most three quarters of a tick late, and the end of the open epoch;
        # no byte puts it off
        *((0, 1, interval, 5.0, 6.5) for interval in (0.1, 0.3, 0.5, 0.9)),
        (0, 10, 1.0, 5.0, 6.5),
        (10_000_000, 1, 0.1, 30.0, 34.0),  # a burst does not pay for hours of dripping
        (0, 250, 1.0, 300.0, math.inf),  # just above the least rate it lives
    ],
)
def test_a_body_slower_than_the_least_rate_ends_after_the_grace(
    burst: int, count: int, every: float, least: float, most: float
) -> None:
    world, policy = requested(Phase.BODY, pytest.fail, body="30s")
    policy.bytes_in(burst, world.now)

    def drip() -> None:
        policy.bytes_in(count, world.now)
        policy.enter(Phase.IN_FLIGHT, world.now)
        policy.enter(Phase.BODY, world.now)

    if most < math.inf:
        world.ends("min_in_rate", least, most, every=every, act=drip)
    else:
        world.run(least, every=every, act=drip)
        assert world.reaped == []


@pytest.mark.parametrize(
    ("rate", "accepted", "reason", "least", "most"),
    [(0, 0, "write", 10.0, 11.0), (240, 1, "min_out_rate", 5.0, 6.5)],
)
def test_a_peer_that_accepts_nothing_or_too_little_ends(
    rate: int, accepted: int, reason: str, least: float, most: float
) -> None:
    world, _ = requested(Phase.WRITE, write="10s", limits__min_out_rate=rate)
    world.ends(reason, least, most, every=0.1, act=lambda: world.accept(accepted))


@pytest.mark.parametrize(
    ("hang_up", "reason", "least"), [(None, "request", 300.0), (50.0, "half_closed", 80.0)]
)
def test_a_request_in_flight_is_cut_after_its_time_or_after_that_of_hanging_up(
    hang_up: float | None, reason: str, least: float
) -> None:
    cuts: list[tuple[str, float]] = []
    world, policy = begun(
        Phase.FIRST_BYTE,
        lambda reason: cuts.append((reason, world.now - start)),
        request="300s",
        half_closed="30s",
    )
    world.run(5.0)
    start = world.now
    policy.request(world.now)
    if hang_up is not None:
        world.run(hang_up)
        policy.hang_up(world.now)
    world.run(least + 5.0 - (hang_up or 0.0))
    assert (cuts[0][0], policy.hung_up) == (reason, hang_up is not None)
    assert least <= cuts[0][1] <= least + 1.0
    policy.enter(Phase.KEEP_ALIVE, world.now)
    assert len(world.sweep) == 0


def test_entering_the_phase_it_is_in_does_not_restart_it() -> None:
    world, policy = begun(Phase.FIRST_BYTE, headers="5s")
    policy.enter(Phase.HEADERS, world.now)
    world.ends("headers", 5.0, 6.0, every=1.0, act=lambda: policy.enter(Phase.HEADERS, world.now))


@pytest.mark.parametrize("phase", [Phase.BODY, Phase.WRITE])
def test_time_in_the_handler_is_not_charged_to_the_peer(phase: Phase) -> None:
    world, policy = requested(phase)
    moved = policy.bytes_in if phase is Phase.BODY else policy.bytes_out
    for _ in range(20):
        world.run(1.0)
        moved(250, world.now)
        policy.enter(Phase.IN_FLIGHT, world.now)
        world.run(60.0)
        moved(1, world.now)
        policy.enter(phase, world.now)
    assert world.reaped == []


@pytest.mark.parametrize("phase", [Phase.WRITE, Phase.HALF_CLOSED])
def test_a_slow_but_living_download_is_never_idle(phase: Phase) -> None:
    world, _ = requested(phase, limits__min_out_rate=0, **{phase.value: "10s"})
    world.run(900.0, every=9.0, act=world.accept)
    assert world.reaped == []


def test_a_tunnel_in_use_ends_by_its_age_which_counts_from_its_beginning_alone() -> None:
    ages = {"tunnel_age": "20s", "limits__max_age_jitter": 0}
    world, policy = begun(Phase.TUNNEL, tunnel="5s", **ages)
    world.run(10.0, every=1.0, act=lambda: policy.bytes_in(1, world.now))
    policy.enter(Phase.HALF_CLOSED, world.now)
    policy.enter(Phase.TUNNEL, world.now)
    assert len(world.core) == 3  # its own, that of its age, and the sweep's
    world.ends("tunnel_age", 10.0, 11.0, every=1.0, act=lambda: policy.bytes_out(1, world.now))


def test_the_ages_of_tunnels_are_spread_by_the_jitter() -> None:
    ends = set()
    for _ in range(60):
        ages = {"tunnel_age": "100s", "limits__max_age_jitter": 0.5}
        world, _ = begun(Phase.TUNNEL, tunnel="0s", **ages)
        began = world.now
        world.run(102.0)
        assert world.reaped
        ends.add(world.reaped[0][1] - began)
    assert min(ends) < 75
    assert max(ends) > 85
    assert all(50 <= end <= 102 for end in ends)


def test_a_tunnel_without_an_age_lasts_as_long_as_it_is_used() -> None:
    world, policy = begun(Phase.TUNNEL, tunnel="5s", tunnel_age="0s")
    world.run(1000.0, every=1.0, act=lambda: policy.bytes_in(1, world.now))
    assert world.reaped == []


def test_who_hangs_up_twice_has_hung_up_the_first_time() -> None:
    cuts: list[float] = []
    world, policy = begun(
        Phase.FIRST_BYTE, lambda reason: cuts.append(world.now), half_closed="30s"
    )
    policy.request(world.now)
    policy.hang_up(world.now)
    start = world.now
    world.run(20.0)
    policy.hang_up(world.now)
    world.run(15.0)
    assert 30.0 <= cuts[0] - start <= 31.0


def test_nothing_is_charged_by_a_sweep_that_does_nothing() -> None:
    sweep = NoSweep()
    assert len(sweep) == 0


def doomed(looks: int) -> tuple[World, IdlePolicy]:
    """A body that is too slow by the third of *looks*, and not reaped yet."""
    world, policy = requested(Phase.BODY, body="30s", keep_alive="5s", limits__min_in_grace="6s")
    for _ in range(looks):
        world.now += 2.5  # of which two ticks count: more is a stall
        policy.charge(world.now)
    return world, policy


def test_a_peer_that_catches_up_before_the_final_check_is_spared() -> None:
    world, policy = doomed(4)
    policy.bytes_in(481, world.now)
    policy.enter(Phase.IN_FLIGHT, world.now)
    world.run(1000.0)
    assert world.reaped == []


@pytest.mark.parametrize(("looks", "count"), [(3, 0), (4, 480)])
def test_a_peer_that_catches_up_with_one_byte_too_few_is_not_spared(looks: int, count: int) -> None:
    world, policy = doomed(looks)
    policy.bytes_in(count, world.now)
    world.ends("min_in_rate", 0.0, 0.5)


def test_a_peer_that_catches_up_far_may_pause_for_as_long_as_its_bytes_pay_for() -> None:
    world, policy = doomed(4)
    policy.bytes_in(240 * 20, world.now)
    world.ends("min_in_rate", 14.0, 30.0)


def test_next_request_has_an_allowance_of_its_own() -> None:
    world, policy = begun(Phase.BODY, body="30s")
    for _ in range(3):
        world.now += 2.0
        policy.charge(world.now)  # doomed by the last, not yet reaped
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.ends("min_in_rate", 5.0, 6.25)


def five_bytes_ahead(decrypted: bool) -> tuple[World, IdlePolicy]:
    """A body of which five bytes came with its head, fourteen seconds ago; each byte
    pays for two seconds. Twenty more have just come.
    """
    world, policy = begun(Phase.HEADERS, body="100s", limits__min_in_rate=0.5)
    policy.bytes_in(50 + 5 * (not decrypted), world.now)
    policy.request(world.now, ahead=5 * decrypted, head=50)
    policy.enter(Phase.BODY, world.now)
    world.run(14.0)
    assert world.reaped == []
    policy.bytes_in(20, world.now)
    return world, policy


@pytest.mark.parametrize("decrypted", [True, False])
def test_what_has_come_of_a_body_with_its_head_pays_for_the_waiting(decrypted: bool) -> None:
    world, _ = five_bytes_ahead(decrypted)
    world.ends("min_in_rate", 41.0, 42.5)


@pytest.mark.parametrize("decrypted", [True, False])
@pytest.mark.parametrize(("then", "least"), [(Phase.KEEP_ALIVE, 5.0), (Phase.HEADERS, 45.0)])
def test_what_has_come_of_a_body_does_not_pay_for_the_next_request(
    decrypted: bool, then: Phase, least: float
) -> None:
    world, policy = five_bytes_ahead(decrypted)
    policy.enter(then, world.now)
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.ends("min_in_rate", least, least + 1.5)


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(0, 2000)), max_size=30))
def test_a_peer_that_keeps_the_rate_on_average_is_never_too_slow(
    steps: list[tuple[float, int]],
) -> None:
    allowance = Allowance(rate=240, grace=5, cap=30, step=10)
    allowance.start(0.0)
    now, total = 0.0, 0
    for seconds, count in steps:
        now += seconds
        left = allowance.left(now)
        assert left <= 30
        if left <= 0:
            assert total < 240 * (now - 5) + 1e-6
            return
        allowance.earn(count, now)
        total += count


def waited() -> Allowance:
    """An allowance of five seconds at most, of which two were waited for, and then
    filled up.
    """
    allowance = Allowance(rate=1, grace=5, cap=5, step=2)
    allowance.start(0.0)
    allowance.earn(100, 2.0)
    return allowance


def test_waiting_is_charged_up_to_each_event() -> None:
    # What was waited before is charged first, and then the cap is reached.
    assert waited().left(2.0) == 5.0


def test_a_pause_is_not_charged() -> None:
    allowance = waited()
    allowance.pause(3.0)
    allowance.earn(0, 9.0)
    assert allowance.left(9.0) == 4.0


def test_what_a_stall_adds_is_not_charged() -> None:
    allowance = waited()
    allowance.pause(3.0)
    allowance.start(9.0)
    assert allowance.left(100.0) == 2.0


def test_an_empty_sweep_is_not_scheduled() -> None:
    world, policy = begun(Phase.FIRST_BYTE)
    assert world.scheduled == 0
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    assert (world.scheduled, len(world.sweep)) == (1, 1)
    policy.enter(Phase.IN_FLIGHT, world.now)
    assert len(world.sweep) == 0
    world.run(10.0)
    assert world.scheduled == 1
    policy.enter(Phase.BODY, world.now)
    policy.close()
    assert (world.scheduled, len(world.sweep)) == (2, 0)


@pytest.mark.parametrize(
    ("keep_alive", "drain_idle", "reason"), [(60, 2, "drain"), (3, 50, "keep_alive")]
)
def test_retiring_an_idle_connection_waits_for_a_request_that_may_be_on_its_way(
    keep_alive: int, drain_idle: int, reason: str
) -> None:
    world, policy = begun(
        Phase.KEEP_ALIVE, keep_alive=f"{keep_alive}s", drain_idle=f"{drain_idle}s"
    )
    policy.retire("drain", world.now)
    soon = min(keep_alive, drain_idle)  # it does not prolong a shorter timeout
    world.ends(reason, soon, soon + 1.0)
    world, policy = begun(
        Phase.KEEP_ALIVE, keep_alive=f"{keep_alive}s", drain_idle=f"{drain_idle}s"
    )
    policy.retire("drain", world.now)
    world.run(1.0)
    policy.enter(Phase.HEADERS, world.now)  # the request is served
    world.run(2.5)
    policy.request(world.now)
    world.run(1000.0)
    assert (world.reaped, policy.retired) == ([], "drain")


def test_retiring_a_request_in_flight_lets_it_finish() -> None:
    world, policy = begun(Phase.FIRST_BYTE, drain_idle="0s", limits__max_requests=2)
    for retired in (None, MAX_REQUESTS):
        policy.request(world.now)
        assert policy.retired == retired
    policy.retire(MAX_AGE, world.now)
    policy.retire("drain", world.now)
    world.run(1000.0)
    assert (world.reaped, policy.retired) == ([], MAX_AGE)
    policy.enter(Phase.KEEP_ALIVE, world.now)
    world.ends(MAX_AGE, 0.0, 1.0)


@pytest.mark.parametrize("phase", [Phase.KEEP_ALIVE, Phase.TUNNEL])
@pytest.mark.parametrize("silent", [10.0, 30.0])
def test_a_reload_counts_from_the_last_activity_and_what_it_ends_at_once_is_not_late(
    phase: Phase, silent: float
) -> None:
    world, policy = begun(phase, **{phase.value: "60s"})
    world.run(silent)
    policy.reload(World(**{phase.value: "12s"}).config, world.now)
    world.ends(phase.value, max(12.0 - silent, 0.0), max(12.0 - silent, 0.0) + 1.0)
    assert world.core.statistics().max_lateness <= 1.0


def test_a_request_in_flight_is_never_idle() -> None:
    world, _ = requested(Phase.IN_FLIGHT, keep_alive="12s")
    world.run(1000.0)
    assert world.reaped == []


@pytest.mark.parametrize(
    ("before", "waited", "reloaded"),
    [(Phase.WRITE, 10.0, False), (Phase.IN_FLIGHT, 1000.0, False), (Phase.IN_FLIGHT, 1000.0, True)],
)
def test_what_follows_a_request_counts_anew_by_the_timeout_in_force(
    before: Phase, waited: float, reloaded: bool
) -> None:
    world, policy = requested(
        before, keep_alive="60s" if reloaded else "12s", limits__min_out_rate=0
    )
    world.run(waited)
    assert world.reaped == []
    if reloaded:
        policy.reload(World(keep_alive="12s").config, world.now)
    policy.enter(Phase.KEEP_ALIVE, world.now)
    world.ends("keep_alive", 12.0, 13.0)


def test_a_reload_counts_from_the_last_bytes_and_these_spare() -> None:
    world, policy = begun(Phase.TUNNEL, tunnel="60s")
    world.run(30.0)
    policy.bytes_in(1, world.now)
    world.run(5.0)
    policy.reload(World(tunnel="4s").config, world.now)
    policy.bytes_out(1, world.now)  # before it could be judged
    policy.reload(World(tunnel="8s").config, world.now)
    world.ends("tunnel", 8.0, 9.0)


@given(st.floats(0.5, 1e6), st.floats(0, 1), st.sampled_from([0.25, 1.0, 7.0]), st.floats(0, 1))
def test_a_lifespan_is_whole_ticks_within_the_jitter(
    age: float, jitter: float, tick: float, share: float
) -> None:
    seconds = lifespan(age, jitter, tick, share)
    assert lifespan(0.0, jitter, tick, share) == 0.0  # no limit
    assert seconds / tick == pytest.approx(round(seconds / tick))
    assert max(tick, age * (1 - jitter)) - tick <= seconds < max(tick, age) + tick
    drawn = {lifespan(age, jitter, tick, number / 1000) for number in range(1001)}
    assert len(drawn) <= STEPS  # each costs the reaper a slot per epoch
    # They reach as far as the jitter does, within the width of a step.
    assert max(drawn) - min(drawn) >= age * jitter * (1 - 1 / STEPS) - 2 * tick


def test_idle_events_tell_reading_from_writing_and_count_their_repetitions() -> None:
    world, events = World(), list[IdleEvent]()
    world.lease.release()
    idle = IdleEvents(world.register, "conn", events.append, reader=10, writer=20, both=30)
    start = world.now
    world.run(59.0, every=5.0, act=idle.wrote)
    assert {event.state for event in events} == {Idle.READER}
    assert [event.count for event in events] == list(range(1, len(events) + 1))
    assert events[0].now - start >= 10.0
    assert all(10.0 <= later.now - sooner.now <= 11.0 for sooner, later in pairwise(events))
    events.clear()
    idle.read()
    world.run(65.0)
    assert {event.state for event in events} == set(Idle)
    assert [event.count for event in events if event.state is Idle.ALL] == [1, 2]
    assert next(event for event in events if event.state is Idle.READER).count == 1
    idle.close()
    idle.wrote()
    assert len(world.core) == 0


def test_after_an_event_has_closed_them_no_other_of_the_same_instant_comes() -> None:
    world, events = World(), list[IdleEvent]()
    world.lease.release()

    def hang_up(event: IdleEvent) -> None:
        events.append(event)
        idle.close()

    idle = IdleEvents(world.register, "conn", hang_up, reader=10, writer=10, both=10)
    world.run(30.0)
    assert (len(events), len(world.core)) == (1, 0)
    for period in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match="writer"):
            IdleEvents(world.register, "conn", hang_up, writer=period)
    IdleEvents(world.register, "conn", hang_up)  # all are off
    assert len(world.core) == 0


def test_a_look_of_the_sweep_bears_members_that_leave_and_join_meanwhile() -> None:
    """Who leaves is not charged, and who joins schedules no second look."""
    charged: list[object] = []

    class Member:
        def charge(self, now: float) -> None:
            charged.append(self)
            if now == 1.0:
                sweep.discard(ended)
                sweep.add(joins)

    looks: list[Callable[[float], None]] = []
    sweep = Sweep(lambda seconds, look: looks.append(look), 1.0)
    first, ended, joins = Member(), Member(), Member()
    for member in (first, ended):
        sweep.add(member)
    looks.pop()(1.0)
    assert charged == [first]
    assert (len(looks), len(sweep)) == (1, 2)
    looks.pop()(2.0)
    sweep.add(ended)
    assert charged == [first, first, joins]
    assert (len(looks), len(sweep)) == (1, 3)


def test_a_look_of_the_sweep_at_a_crowd_is_cut_into_slices() -> None:
    charged: list[float] = []

    class Member:
        def charge(self, now: float) -> None:
            charged.append(now)

    looks: list[tuple[float, Callable[[float], None]]] = []
    sweep = Sweep(lambda seconds, look: looks.append((seconds, look)), 1.0)
    crowd = [Member() for _ in range(2 * AT_ONCE + 1)]
    for member in crowd:
        sweep.add(member)
    for now, seconds in (1.0, 1.0), (1.1, 0.0), (1.2, 0.0):
        ((asked, look),) = looks
        assert asked == seconds
        looks.clear()
        look(now)
    assert charged == [1.0] * AT_ONCE + [1.1] * AT_ONCE + [1.2]
    assert [seconds for seconds, _ in looks] == [1.0]
