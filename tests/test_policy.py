"""Claims about phases, least rates and idle events. All in virtual time, on a real core."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper import IdleReaper
from reaper.config import OPTIONS, ReaperConfig
from reaper.core.lease import Expiry, Lease
from reaper.errors import InvalidArgument
from reaper.policy import ANSWERS, MAX_REQUESTS, NOT_TAKEN, RULES, TOO_OLD, TOO_SLOW, IdlePolicy, Phase, lifespan
from reaper.policy.events import Idle, IdleEvent, IdleEvents
from reaper.policy.min_rate import Allowance, Sweep

PERIOD = 0.25  # of the sweep


class World:
    """A core, a clock that only moves when told, and one connection that is reaped as a server would do it."""

    def __init__(self, **overrides: object) -> None:
        settings = {"timeouts." + name: value for name, value in overrides.items() if "__" not in name}
        settings |= {name.replace("__", "."): value for name, value in overrides.items() if "__" in name}
        self.config = ReaperConfig.load(environ={}, overrides=settings)
        self.now = 1000.0
        self.core = IdleReaper(tick=self.config.reaper.tick, epochs_per_tick=2)
        self.sweep = Sweep(self.schedule, PERIOD)
        self.reaped: list[tuple[str, float]] = []
        self.lease = self.core.register("conn", 1.0, self.now, self.reap)
        self.accepted = 0
        self.scheduled = 0

    def policy(self, phase: Phase = Phase.FIRST_BYTE) -> IdlePolicy:
        return IdlePolicy(self.config, self, self.now, self.sweep, self.progress, phase)

    def progress(self) -> int:
        count, self.accepted = self.accepted, 0
        return count

    def reap(self, expiry: Expiry) -> None:
        self.reaped.append((expiry.reason, expiry.now))

    def register(self, uid: Hashable, timeout: float, on: Callable[[Expiry], object], *, reason: str) -> Lease:
        return self.core.register(uid, timeout, self.now, on, reason=reason)

    def schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        self.scheduled += 1
        self.core.register(("sweep", self.scheduled), seconds, self.now, lambda expiry: call(expiry.now))

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
        return self.core.register(("deadline", self.scheduled), seconds, self.now, self.reap, reason=reason)

    def run(self, seconds: float, every: float | None = None, act: Callable[[], object] | None = None) -> None:
        """Let time pass, woken as the core wants it, and *act* *every* so many seconds; stop at the first reap."""
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


def reaped_after(world: World, start: float) -> tuple[str, float]:
    ((reason, when),) = world.reaped
    return reason, when - start


def test_every_phase_has_a_rule_whose_timeout_and_reason_are_one_setting() -> None:
    assert set(RULES) == set(Phase)
    for phase, rule in RULES.items():
        if rule.timeout is not None:
            assert f"timeouts.{rule.timeout}" in OPTIONS
            assert rule.timeout == phase.value


def test_only_a_request_in_flight_has_no_timeout() -> None:
    assert [phase for phase, rule in RULES.items() if rule.timeout is None] == [Phase.IN_FLIGHT]


def test_reasons_of_rates_and_age_are_settings_too() -> None:
    assert {reason for reason, status in ANSWERS.items() if status} == {"headers", "body", "min_in_rate", "request"}
    assert {"write", "half_closed", "min_out_rate"} == NOT_TAKEN
    limits = {*TOO_SLOW.values(), MAX_REQUESTS}
    assert {f"limits.{reason}" for reason in limits} | {f"timeouts.{TOO_OLD}"} <= set(OPTIONS)


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.BODY, Phase.TUNNEL])
def test_an_empty_read_is_no_activity(phase: Phase) -> None:
    world = World(limits__min_in_rate=0, limits__min_out_rate=0, **{phase.value: "7s"})
    policy = world.policy(phase)
    start = world.now
    world.run(100.0, every=0.5, act=lambda: (policy.bytes_in(0, world.now), policy.bytes_out(0, world.now)))
    assert reaped_after(world, start)[1] < 10


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.IN_FLIGHT])
def test_each_phase_ends_after_its_own_timeout_and_gives_it_as_the_reason(phase: Phase) -> None:
    world = World(limits__min_in_rate=0, limits__min_out_rate=0, **{phase.value: "7s"})
    world.policy(phase)
    start = world.now
    world.run(100.0)
    reason, after = reaped_after(world, start)
    assert reason == phase.value
    assert 7.0 <= after <= 8.0


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.IN_FLIGHT])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_only_the_bytes_that_count_start_a_timeout_again(phase: Phase, direction: str) -> None:
    world = World(limits__min_in_rate=0, limits__min_out_rate=0, **{phase.value: "7s"})
    policy = world.policy(phase)
    act = policy.bytes_in if direction == "in" else policy.bytes_out
    world.run(50.0, every=3.0, act=lambda: act(1, world.now))
    assert bool(world.reaped) == (direction not in RULES[phase].restarted_by)


def test_a_timeout_of_zero_is_off_in_every_phase() -> None:
    for phase in Phase:
        world = World(
            limits__min_in_rate=0, limits__min_out_rate=0, **({phase.value: "0s"} if RULES[phase].timeout else {})
        )
        world.policy(phase)
        world.run(3000.0)
        assert world.reaped == []


def test_a_request_in_flight_is_never_idle_and_afterwards_the_silence_counts_anew() -> None:
    world = World(keep_alive="5s")
    policy = world.policy()
    policy.request(world.now)
    world.run(1000.0)
    assert world.reaped == []
    start = world.now
    policy.enter(Phase.KEEP_ALIVE, world.now)
    world.run(100.0)
    reason, after = reaped_after(world, start)
    assert reason == "keep_alive"
    assert 5.0 <= after <= 6.0


def test_entering_the_phase_it_is_in_does_not_restart_it() -> None:
    world = World(headers="5s")
    policy = world.policy()
    policy.enter(Phase.HEADERS, world.now)
    start = world.now
    world.run(100.0, every=1.0, act=lambda: policy.enter(Phase.HEADERS, world.now))
    assert 5.0 <= reaped_after(world, start)[1] <= 6.0


def test_a_body_slower_than_the_least_rate_ends_after_the_grace() -> None:
    world = World(body="30s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    start = world.now
    world.run(100.0, every=1.0, act=lambda: policy.bytes_in(10, world.now))
    reason, after = reaped_after(world, start)
    assert reason == "min_in_rate"
    assert 5.0 <= after <= 6.5  # a look at most three quarters of a tick late, and the end of the open epoch


def test_a_body_just_above_the_least_rate_lives() -> None:
    world = World()
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.run(300.0, every=1.0, act=lambda: policy.bytes_in(250, world.now))
    assert world.reaped == []


def test_a_burst_does_not_pay_for_hours_of_dripping() -> None:
    world = World(body="30s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    policy.bytes_in(10_000_000, world.now)
    start = world.now
    world.run(900.0, every=0.1, act=lambda: policy.bytes_in(1, world.now))
    reason, after = reaped_after(world, start)
    assert reason == "min_in_rate"
    assert 30.0 <= after <= 34.0


def test_time_in_the_handler_is_not_charged_to_the_peer() -> None:
    world = World()
    policy = world.policy()
    policy.request(world.now)
    for _ in range(20):
        policy.enter(Phase.BODY, world.now)
        world.run(1.0)
        policy.bytes_in(250, world.now)
        policy.enter(Phase.IN_FLIGHT, world.now)
        world.run(60.0)
    assert world.reaped == []


@pytest.mark.parametrize("phase", [Phase.WRITE, Phase.HALF_CLOSED])
def test_a_slow_but_living_download_is_never_idle(phase: Phase) -> None:
    world = World(limits__min_out_rate=0, **{phase.value: "10s"})
    policy = world.policy()
    policy.request(world.now)
    policy.enter(phase, world.now)

    def accept() -> None:
        world.accepted = 1

    world.run(900.0, every=9.0, act=accept)
    assert world.reaped == []


def test_a_peer_that_accepts_nothing_ends_after_the_write_timeout() -> None:
    world = World(write="10s", limits__min_out_rate=0)
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.WRITE, world.now)
    start = world.now
    world.run(3600.0)
    reason, after = reaped_after(world, start)
    assert reason == "write"
    assert 10.0 <= after <= 11.0


def test_a_peer_that_accepts_too_little_ends_after_the_grace() -> None:
    world = World()
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.WRITE, world.now)
    start = world.now

    def accept() -> None:
        world.accepted += 1

    world.run(900.0, every=0.1, act=accept)
    reason, after = reaped_after(world, start)
    assert reason == "min_out_rate"
    assert 5.0 <= after <= 6.5


def test_a_peer_that_catches_up_before_the_final_check_is_spared() -> None:
    world = World(body="30s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.run(4.9)
    world.now += 0.5
    policy.charge(world.now)  # doomed, not yet reaped
    policy.bytes_in(240 * 20, world.now)
    start = world.now
    world.run(100.0)
    assert reaped_after(world, start)[1] >= 14.0


@pytest.mark.parametrize("interval", [0.1, 0.3, 0.5, 0.9])
def test_the_end_of_a_peer_too_slow_is_not_put_off_by_its_bytes(interval: float) -> None:
    world = World(body="30s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    start = world.now

    def drip() -> None:
        policy.bytes_in(1, world.now)
        policy.enter(Phase.IN_FLIGHT, world.now)
        policy.enter(Phase.BODY, world.now)

    world.run(100.0, every=interval, act=drip)
    reason, after = reaped_after(world, start)
    assert reason == "min_in_rate"
    assert 5.0 <= after <= 6.5


def test_one_byte_too_few_at_the_final_check_does_not_put_the_end_off() -> None:
    world = World(body="30s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.now += 2.0
    policy.charge(world.now)
    for _ in range(3):
        world.now += 2.0
        policy.charge(world.now)
    world.core.close_epoch(world.now)
    policy.bytes_in(1, world.now)
    world.now += 0.1
    world.core.expire(world.now)
    ((reason, _),) = world.reaped
    assert reason == "min_in_rate"


def test_a_peer_that_catches_up_may_go_on_with_its_request() -> None:
    world = World(body="30s", keep_alive="5s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.now += 4.9
    policy.charge(world.now)
    world.now += 0.2
    policy.charge(world.now)  # doomed
    policy.bytes_in(2400, world.now)
    policy.enter(Phase.IN_FLIGHT, world.now)
    world.run(1000.0)
    assert world.reaped == []


def test_next_request_has_an_allowance_of_its_own() -> None:
    world = World(body="30s")
    policy = world.policy()
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    world.run(4.0)
    policy.request(world.now)
    policy.enter(Phase.BODY, world.now)
    start = world.now
    world.run(100.0)
    assert 5.0 <= reaped_after(world, start)[1] <= 6.25


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(0, 2000)), max_size=30))
def test_a_peer_that_keeps_the_rate_on_average_is_never_too_slow(steps: list[tuple[float, int]]) -> None:
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


def test_time_in_which_the_loop_was_stalled_is_not_charged() -> None:
    allowance = Allowance(rate=240, grace=5, cap=30, step=2)
    allowance.start(0.0)
    assert allowance.left(100.0) == pytest.approx(3.0)


def test_an_empty_sweep_is_not_scheduled() -> None:
    world = World()
    policy = world.policy()
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


def test_max_requests_retires_on_the_last_one() -> None:
    world = World(limits__max_requests=2)
    policy = world.policy()
    policy.request(world.now)
    assert policy.retired is None
    policy.request(world.now)
    assert policy.retired == MAX_REQUESTS


def test_retiring_an_idle_connection_waits_for_a_request_that_may_be_on_its_way() -> None:
    world = World(keep_alive="60s", drain_idle="2s")
    policy = world.policy(Phase.KEEP_ALIVE)
    world.run(30.0)
    policy.retire("drain", world.now)
    start = world.now
    world.run(100.0)
    reason, after = reaped_after(world, start)
    assert reason == "drain"
    assert 2.0 <= after <= 3.0


def test_a_request_that_comes_after_retiring_is_served() -> None:
    world = World(keep_alive="60s", drain_idle="2s")
    policy = world.policy(Phase.KEEP_ALIVE)
    policy.retire("drain", world.now)
    world.run(1.0)
    policy.enter(Phase.HEADERS, world.now)
    world.run(2.5)
    policy.request(world.now)
    world.run(1000.0)
    assert (world.reaped, policy.retired) == ([], "drain")


def test_retiring_does_not_prolong_a_shorter_timeout() -> None:
    world = World(keep_alive="3s", drain_idle="50s")
    policy = world.policy(Phase.KEEP_ALIVE)
    start = world.now
    policy.retire("drain", world.now)
    world.run(100.0)
    reason, after = reaped_after(world, start)
    assert reason == "keep_alive"
    assert after <= 4.0


def test_retiring_a_request_in_flight_lets_it_finish() -> None:
    world = World(drain_idle="0s")
    policy = world.policy()
    policy.request(world.now)
    policy.retire(TOO_OLD, world.now)
    policy.retire("drain", world.now)
    world.run(1000.0)
    assert (world.reaped, policy.retired) == ([], TOO_OLD)
    start = world.now
    policy.enter(Phase.KEEP_ALIVE, world.now)
    world.run(100.0)
    reason, after = reaped_after(world, start)
    assert reason == TOO_OLD
    assert after <= 1.0


def test_a_reload_reaches_an_open_connection_and_counts_from_its_last_activity() -> None:
    world = World(keep_alive="60s")
    policy = world.policy(Phase.KEEP_ALIVE)
    start = world.now
    world.run(10.0)
    policy.reload(World(keep_alive="12s").config, world.now)
    world.run(100.0)
    assert 12.0 <= reaped_after(world, start)[1] <= 13.0


@pytest.mark.parametrize("phase", [Phase.KEEP_ALIVE, Phase.TUNNEL])
def test_a_reload_that_ends_a_timeout_at_once_is_not_late_for_it(phase: Phase) -> None:
    world = World(**{phase.value: "60s"})
    policy = world.policy(phase)
    world.run(30.0)
    policy.reload(World(**{phase.value: "12s"}).config, world.now)
    start = world.now
    world.run(100.0)
    assert reaped_after(world, start)[0] == phase.value
    assert world.core.statistics().max_lateness <= 1.0


def test_a_reload_counts_from_the_last_bytes_and_these_spare() -> None:
    world = World(tunnel="60s")
    policy = world.policy(Phase.TUNNEL)
    world.run(30.0)
    policy.bytes_in(1, world.now)
    world.run(5.0)
    policy.reload(World(tunnel="4s").config, world.now)
    policy.bytes_out(1, world.now)  # before it could be judged
    start = world.now
    policy.reload(World(tunnel="8s").config, world.now)
    world.run(100.0)
    reason, after = reaped_after(world, start)
    assert reason == "tunnel"
    assert 8.0 <= after <= 9.0


def test_a_reload_while_a_request_is_in_flight_is_in_force_afterwards() -> None:
    world = World(keep_alive="60s")
    policy = world.policy()
    policy.request(world.now)
    policy.reload(World(keep_alive="12s").config, world.now)
    policy.enter(Phase.KEEP_ALIVE, world.now)
    start = world.now
    world.run(100.0)
    assert 12.0 <= reaped_after(world, start)[1] <= 13.0


@given(st.floats(0.5, 1e6), st.floats(0, 1), st.sampled_from([0.25, 1.0, 7.0]), st.floats(0, 1))
def test_a_lifespan_is_whole_ticks_within_the_jitter(age: float, jitter: float, tick: float, share: float) -> None:
    seconds = lifespan(age, jitter, tick, share)
    assert seconds / tick == pytest.approx(round(seconds / tick))
    assert max(tick, age * (1 - jitter)) - tick <= seconds <= max(tick, age) + tick


def test_no_age_limit_is_no_lifespan() -> None:
    assert lifespan(0.0, 0.5, 1.0, 0.5) == 0.0


def test_idle_events_tell_reading_from_writing_and_count_their_repetitions() -> None:
    world = World()
    world.lease.release()
    events: list[IdleEvent] = []
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
    assert len(world.core) == 0


def test_after_an_event_has_closed_them_no_other_of_the_same_instant_comes() -> None:
    world = World()
    world.lease.release()
    events: list[IdleEvent] = []

    def hang_up(event: IdleEvent) -> None:
        events.append(event)
        idle.close()

    idle = IdleEvents(world.register, "conn", hang_up, reader=10, writer=10, both=10)
    world.run(30.0)
    assert (len(events), len(world.core)) == (1, 0)


def test_an_idle_event_that_is_off_never_comes() -> None:
    world = World()
    world.lease.release()
    IdleEvents(world.register, "conn", lambda event: None)
    assert len(world.core) == 0


@pytest.mark.parametrize("period", [-1.0, float("nan"), float("inf")])
def test_a_period_that_is_no_duration_is_refused(period: float) -> None:
    world = World()
    with pytest.raises(InvalidArgument, match="writer"):
        IdleEvents(world.register, "conn", lambda event: None, writer=period)


def test_the_sweep_does_not_charge_what_the_charge_of_another_has_ended() -> None:
    charged = []

    class Member:
        def __init__(self, other: Member | None) -> None:
            self.other = other

        def charge(self, now: float) -> None:
            charged.append(self)
            if self.other is not None:
                sweep.discard(self.other)

    sweep = Sweep(lambda seconds, look: looks.append(look), 1.0)
    looks: list[Callable[[float], None]] = []
    ended = Member(None)
    first = Member(ended)
    for member in (first, ended):
        sweep.add(member)
    looks.pop()(1.0)
    assert charged == [first]
