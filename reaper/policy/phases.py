"""The phases of a connection: what it waits for, and which timeout is in force while it
waits.

One rule: *a connection is always in exactly one phase, and the phase alone decides what
ends it*. A phase names its timeout (a key of `[timeouts]`), the reason of a close, and
which bytes start the timeout again. A request in flight is a phase without a timeout:
it is never idle.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

from .. import _deprecated
from ..config.settings import ReaperConfig
from ..core.lease import Lease
from ..core.ticks import seconds_to_tick
from . import reasons
from .jitter import STEPS
from .min_rate import HIDDEN, Allowance, Sweep, patience

Direction = Literal["in", "out"]


class Phase(Enum):
    """What a connection is waiting for. The value is the reason of a close in this
    phase.
    """

    IDLE = reasons.IDLE
    HANDSHAKE = reasons.HANDSHAKE
    FIRST_BYTE = reasons.FIRST_BYTE
    HEADERS = reasons.HEADERS
    BODY = reasons.BODY
    IN_FLIGHT = "in_flight"
    WRITE = reasons.WRITE
    KEEP_ALIVE = reasons.KEEP_ALIVE
    TUNNEL = reasons.TUNNEL
    HALF_CLOSED = reasons.HALF_CLOSED
    LINGER = reasons.LINGER


# Not Enum's own, which is a function in Python, called for each look into `RULES`.
Phase.__hash__ = object.__hash__  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that governs one phase.

    Attributes:
        timeout: Key of `[timeouts]`; None: the phase cannot time out.
        restarted_by: Directions in which bytes start the timeout again; empty: it is
            absolute, counted from the entry.
        rate: The direction whose least rate (`[limits]` min_in_rate, min_out_rate)
            applies on top; None: none does.
    """

    timeout: str | None
    restarted_by: frozenset[Direction] = frozenset()
    rate: Direction | None = None

    @property
    def status(self) -> int | None:
        """Deprecated: what HTTP answers before a close in the phase of this rule; None:
        nothing.
        """
        _deprecated.warn("reaper.policy.Rule.status")
        phases = (phase for phase, rule in RULES.items() if rule is self)
        return next((reasons.ANSWERS[phase.value] for phase in phases), None)


_IN: frozenset[Direction] = frozenset({"in"})
_OUT: frozenset[Direction] = frozenset({"out"})

RULES: Mapping[Phase, Rule] = {
    Phase.IDLE: Rule("idle", _IN),
    Phase.HANDSHAKE: Rule("handshake"),
    Phase.FIRST_BYTE: Rule("first_byte"),
    # Absolute, or a client that drips one byte per timeout holds the connection for
    # ever (slowloris).
    Phase.HEADERS: Rule("headers"),
    Phase.BODY: Rule("body", _IN, rate="in"),
    # Never idle; but it may not take for ever either: see `IdlePolicy.charge`.
    Phase.IN_FLIGHT: Rule(None),
    # Bytes that the peer accepts are progress: a slow but living download is not idle.
    Phase.WRITE: Rule("write", _OUT, rate="out"),
    # RFC 9112 9.8 lets a server close an idle connection at any time; an unasked answer
    # (a 408) would only confuse the client.
    Phase.KEEP_ALIVE: Rule("keep_alive"),
    Phase.TUNNEL: Rule("tunnel", _IN | _OUT),
    Phase.HALF_CLOSED: Rule("half_closed", _OUT, rate="out"),
    Phase.LINGER: Rule("linger"),
}
"""The rule of every phase."""

TOO_SLOW: Mapping[Direction, str] = {"in": reasons.MIN_IN_RATE, "out": reasons.MIN_OUT_RATE}
"""The reason for closing a connection whose least rate was not kept, by direction."""

NOT_TAKEN = frozenset(
    {TOO_SLOW["out"], *(phase.value for phase, rule in RULES.items() if rule.rate == "out")}
)
"""Reasons that say the client does not take what is sent to it. The kernel drops what
it still holds for the client (a reset), because it would hold that for long, and in
vain.
"""

STALL_TICKS = 2.0
"""Ticks; when more time than that passes between two checks of a rate, the loop
stalled, and the peer is not charged for it. Checks are less than one tick apart when
nothing stalls.
"""

INSTANT = 1e-6
"""Seconds; the deadline of a connection that is to go as soon as the reaper can judge
it. The reaper still lets the loop read what has arrived first, and spares the
connection if the kernel holds unread bytes of it.
"""

ABSOLUTE: frozenset[str] = frozenset(
    phase.value for phase, rule in RULES.items() if rule.timeout and not rule.restarted_by
)
"""The phases whose timeout no byte starts again, by their names."""

IDLE_PHASES = frozenset({Phase.FIRST_BYTE, Phase.KEEP_ALIVE})
"""Phases in which the client has asked for nothing: a close loses nothing but a request
that is on its way.
"""

RESTING = frozenset({Phase.IDLE, *IDLE_PHASES})
"""Phases in which nothing has been asked for, in any protocol."""


def uncounted() -> int:
    """No progress of the peer: what it takes is counted as it goes out."""
    return 0


class Watch(Protocol):
    """What the policy drives: `reaper.trio.Connection`, or anything that behaves like
    it.
    """

    def touch(self) -> object:
        """Note activity."""

    def suspend(self) -> object:
        """Exempt from reaping until `resume`."""

    def resume(self) -> object:
        """End the exemption; counts as activity."""

    def retime(self, idle: float, reason: str | None = None) -> object:
        """Put a timeout (seconds, 0 is off) and a reason in force, counted from the
        last activity.
        """

    def deadline(self, seconds: float, reason: str) -> Lease:
        """End the connection *seconds* from now for *reason*, whatever bytes come,
        unless it is released.
        """


class IdlePolicy:
    """Decides which timeout is in force on one connection, by what happens on it. It is
    pure: it drives a watch and reads no clock.

    The server calls `enter` when it begins to wait for something, `bytes_in` and
    `bytes_out` when bytes have moved. A `Sweep` calls `charge`, which judges the least
    rates and asks for the progress of what is being sent, because nothing reports when
    the peer takes bytes out of the kernel's buffer.

    Args:
        config: `timeouts` and `limits` of it are used; `reload` puts another in force.
        watch: The connection's watch. Whatever timeout it began with is replaced at
            once.
        now: Seconds, on the clock of every other `now`.
        sweep: Calls `charge` in the phases with a least rate, and while a request is in
            flight.
        progress: Returns how many bytes the peer has accepted since the last call.
        hides: Returns how many bytes it may have read without our seeing it:
            `min_rate.hidden`.
        phase: What the connection waits for to begin with.
        cut: Ends the connection at once for the reason it is called with, also where
            unread bytes would avert a reap; None: a request in flight has no limit.
    Attributes:
        phase: What the connection waits for now.
        active: Seconds; when the phase began, or when bytes last started its timeout
            again.
        requests: Requests begun.
        retired: Why no further request may follow the one in flight; None: they may.
    """

    __slots__ = (
        "_ahead",
        "_armed",
        "_config",
        "_cut",
        "_doomed",
        "_ending",
        "_fresh",
        "_hides",
        "_hung_up",
        "_inbound",
        "_outbound",
        "_progress",
        "_suspended",
        "_sweep",
        "_tunnelled",
        "_watch",
        "active",
        "phase",
        "requests",
        "retired",
    )

    def __init__(
        self,
        config: ReaperConfig,
        watch: Watch,
        now: float,
        sweep: Sweep,
        progress: Callable[[], int] = uncounted,
        phase: Phase = Phase.FIRST_BYTE,
        cut: Callable[[str], object] | None = None,
        hides: Callable[[], int] = uncounted,
    ) -> None:
        self._cut = cut
        self._hides = hides
        self._fresh = 0  # bytes that came since the last request began
        self._ahead = 0  # bytes of the request in hand that came before they were waited for
        self._hung_up: float | None = None  # when the peer said that it will send no more
        self._tunnelled = False
        self._config = config
        self._watch = watch
        self._sweep = sweep
        self._progress = progress
        self._inbound: Allowance | None = None
        self._outbound: Allowance | None = None
        self._armed: tuple[float, str] | None = None
        self._doomed: str | None = None  # why a least rate ends it, unless it catches up
        # the deadline that ends it then, or that ends it in an idle phase when it is
        # retired
        self._ending: Lease | None = None
        self._suspended = False
        self.requests: int = 0
        self.retired: str | None = None
        self.phase: Phase = phase
        self.active: float = now
        self._begin(now)

    def enter(self, phase: Phase, now: float) -> None:
        """The connection now waits for *phase*, whose timeout counts from *now*. Does
        nothing if it waits for that already.
        """
        if phase is not self.phase:
            self._leave(now)
            self.phase = phase
            self._begin(now)

    def request(self, now: float, ahead: int = 0, head: int = 0) -> None:
        """A request has begun. It is in flight, with new allowances for its body and
        its response.

        Args:
            ahead: How many bytes of its body have come already. They pay for the
                waiting to come.
            head: How many bytes its head has. All other bytes since the request before
                count as body too, although they may not have been decrypted yet.
        """
        self._ahead, self._fresh = max(self._fresh - head, ahead), 0
        self.requests += 1
        self._spare()
        self.enter(Phase.IN_FLIGHT, now)
        self._inbound = self._outbound = None
        limit = self._config.limits.max_requests
        if limit and self.requests >= limit and self.retired is None:
            self.retired = reasons.MAX_REQUESTS

    def bytes_in(self, count: int, now: float) -> None:
        """*count* bytes came in at *now*."""
        self._moved("in", self._inbound, count, now)

    def bytes_out(self, count: int, now: float) -> None:
        """The peer accepted *count* bytes at *now*: by the kernel's word, not that of a
        call that only queued them.
        """
        self._moved("out", self._outbound, count, now)

    def _moved(
        self, direction: Direction, allowance: Allowance | None, count: int, now: float
    ) -> None:
        if not count:
            return  # an end of file, or a look that found no progress, is no activity
        if direction == "in":
            self._fresh += count
        if allowance is not None:
            allowance.earn(count, now)
            if self._doomed == TOO_SLOW[direction] and allowance.left(now) > 0:
                self._spare()
        rule = RULES[self.phase]
        if direction in rule.restarted_by:
            self.active = now
            if rule.rate == "out" and rule.timeout is not None:  # it may hide more by now
                self._arm(rule.timeout, self._timeout(rule.timeout))
            self._watch.touch()
            if self._doomed is None:
                self._spare()

    def retire(self, reason: str, now: float) -> None:
        """Let the connection go: soon if nothing has been asked for, otherwise after
        the response in flight.

        Soon is `drain_idle` from now, for a request may be on its way; it is answered.
        """
        if self.retired is None or self.retired == reasons.MAX_REQUESTS:
            self.retired = reason
            if self.phase in IDLE_PHASES:
                self._end(self._config.timeouts.drain_idle or INSTANT, reason)

    def reload(self, config: ReaperConfig, now: float) -> None:
        """Put the timeouts of *config* in force. The phase's timeout counts from the
        last activity, not from *now*.
        """
        self._config = config
        name = RULES[self.phase].timeout
        if name is not None and self._doomed is None:
            timeout = self._timeout(name)
            if timeout and now - self.active >= timeout:
                # By the new timeout it is over already. It is due now, and is not
                # called late for the time in which the old timeout held.
                self._end(INSTANT, name)
            else:
                self._arm(name, timeout)

    def hang_up(self, now: float) -> None:
        """The peer has said that it will send no more. It may still want its answer,
        but it may not wait for it for ever.
        """
        if self._hung_up is None:
            self._hung_up = now

    @property
    def hung_up(self) -> bool:
        """Whether the peer has said that it will send no more."""
        return self._hung_up is not None

    def charge(self, now: float) -> None:
        """Judge what takes too long in this phase: a request in flight, or bytes at
        less than the least rate. The `Sweep` calls it.
        """
        if self.phase is Phase.IN_FLIGHT:
            self._charge_request(now)
            return
        rate = RULES[self.phase].rate
        if rate is None:
            return
        if rate == "out" and (count := self._progress()):
            self.bytes_out(count, now)
        allowance = self._inbound if rate == "in" else self._outbound
        if allowance is not None and self._doomed is None and allowance.left(now) <= 0:
            self._doomed = TOO_SLOW[rate]
            self._end(INSTANT, self._doomed)

    def _charge_request(self, now: float) -> None:
        """Cut a request that has been in flight for `timeouts.request`, or for
        `timeouts.half_closed` since its client has hung up; each counts only where it
        is on.
        """
        if self._cut is None:
            return
        timeouts, waited = self._config.timeouts, now - self.active
        if timeouts.request and waited >= timeouts.request:
            self._cut(reasons.REQUEST)
        elif timeouts.half_closed and self._hung_up is not None:
            # The client may have hung up long before, while its body was still being
            # read. The application has had no time to answer before the request was in
            # flight.
            unanswered_for = min(waited, now - self._hung_up)
            if unanswered_for >= timeouts.half_closed:
                self._cut(reasons.HALF_CLOSED)

    def _begin(self, now: float) -> None:
        rule = RULES[self.phase]
        self.active = now
        if rule.timeout is None:
            self._watch.suspend()
            self._suspended = True
            if self._cut is not None:
                self._sweep.add(self)
            return
        if self._suspended:
            self._suspended = False
            self._watch.resume()
        else:
            self._watch.touch()
        self._arm(rule.timeout, self._timeout(rule.timeout))
        if self.retired is not None and self.phase in IDLE_PHASES:
            self._end(self._config.timeouts.drain_idle or INSTANT, self.retired)
        if self.phase is Phase.KEEP_ALIVE:
            self._fresh = 0
        if self.phase is Phase.TUNNEL and not self._tunnelled:
            self._tunnelled = True
            if seconds := tunnel_lifespan(self._config):
                self._watch.deadline(seconds, reasons.TUNNEL_AGE)
        if rule.rate is not None:
            allowance = self._allowance(rule.rate)
            if allowance is not None:
                allowance.start(now)
            if allowance is not None or rule.rate == "out":
                self._sweep.add(self)

    def _leave(self, now: float) -> None:
        if self._doomed is None and self._ending is not None:
            self._spare()
        rate = RULES[self.phase].rate
        if rate is not None or (self._cut is not None and self.phase is Phase.IN_FLIGHT):
            self._sweep.discard(self)
        if rate is not None:
            allowance = self._inbound if rate == "in" else self._outbound
            if allowance is not None:
                allowance.pause(now)

    def close(self) -> None:
        """The connection is gone: the sweep no longer calls this policy."""
        if RULES[self.phase].rate is not None or self.phase is Phase.IN_FLIGHT:
            self._sweep.discard(self)

    def _allowance(self, direction: Direction) -> Allowance | None:
        """The allowance of this request in *direction*, which is made when it is first
        needed. None: there is no least rate.
        """
        limits, timeouts, step = (
            self._config.limits,
            self._config.timeouts,
            STALL_TICKS * self._config.reaper.tick,
        )
        if direction == "in":
            if self._inbound is None and limits.min_in_rate:
                self._inbound = Allowance(
                    limits.min_in_rate, limits.min_in_grace, timeouts.body, step
                )
                self._inbound.earn(self._ahead, self.active)
            return self._inbound
        if self._outbound is None and limits.min_out_rate:
            most = max(timeouts.write, HIDDEN / limits.min_out_rate)
            self._outbound = Allowance(limits.min_out_rate, limits.min_out_grace, most, step)
            self._outbound.earn(self._hides(), self.active)
        return self._outbound

    def _timeout(self, name: str) -> float:
        """The timeout *name*, which holds in this phase, in seconds."""
        timeout: float = getattr(self._config.timeouts, name)
        if RULES[self.phase].rate != "out":
            return timeout
        return patience(timeout, self._config.limits.min_out_rate, self._hides())

    def _arm(self, name: str, timeout: float) -> None:
        """Put the phase's timeout and reason in force, unless they are in force
        already.
        """
        if (timeout, name) != self._armed:
            self._armed = (timeout, name)
            self._watch.retime(timeout, name)

    def _end(self, seconds: float, reason: str) -> None:
        """Set a deadline beside the timeout of the phase: a connection that is too slow
        or retired is not idle, and not late for the timeout of idle ones.
        """
        if self._ending is None:
            self._ending = self._watch.deadline(seconds, reason)

    def _spare(self) -> None:
        self._doomed = None
        if self._ending is not None:
            self._ending.release()
            self._ending = None


def tunnel_lifespan(config: ReaperConfig) -> float:
    """Draw the age limit of a tunnel that is opened now, in seconds; 0: there is
    none.
    """
    age, limits = config.timeouts.tunnel_age, config.limits
    return lifespan(age, limits.max_age_jitter, config.reaper.tick, random.random())


def lifespan(max_age: float, jitter: float, tick: float, share: float) -> float:
    """The age limit of one connection: *max_age* shortened by up to *jitter* of it, so
    that not all go in one instant.

    Args:
        max_age: Seconds; 0: no limit.
        jitter: 0..1.
        tick: Seconds.
        share: Drawn by the caller, evenly from 0..1.
    Returns:
        Seconds: one of at most `STEPS` whole numbers of ticks, for each distinct
        timeout costs the reaper a slot per epoch. At least one tick; 0 if *max_age*
        is 0.
    """
    if max_age == 0:
        return 0.0
    most = seconds_to_tick(max_age, 0.0, tick)
    ticks = most - seconds_to_tick(max_age * (1 - jitter), 0.0, tick)
    step = -(-(ticks + 1) // STEPS)  # wide enough for STEPS of them to reach the end
    steps = min(int(share * (ticks // step + 1)), ticks // step)
    return max(1, most - step * steps) * tick


def ages(config: ReaperConfig) -> Callable[[], float]:
    """Return a function that draws the maximum age of a new connection, in seconds; 0:
    none.
    """
    share = random.Random().random
    age, jitter = config.timeouts.max_age, config.limits.max_age_jitter
    return lambda: lifespan(age, jitter, config.reaper.tick, share())
