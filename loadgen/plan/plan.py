"""Draws from a seed who does what, when, and how it must end, before the first
packet.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections import Counter
from dataclasses import dataclass, field

from ..units import BadArgument, seconds
from .behaviours import Behaviour, key_of
from .scenario import Ramp, Scenario

DEFAULT_MIX = "silent=50,chatty=40,drip=10"
MOST = 20_000_000
"""The most connections of a plan. Each takes a byte; so many take a minute to draw."""
SLACK = 0.1
"""Share of the timeout that a run leaves after the last reap, so that none is due as it
ends.
"""
LONGEST_BEAT = 0.01
"""The longest beat, as a share of the timeout.

A step waits for the next beat, and the longest gap that must keep a connection is 0.9
of the timeout.
"""


@dataclass(frozen=True)
class Law:
    """What the server promised: it ends a silence of *timeout* seconds.

    It is never early, and at most *tick* seconds late.
    """

    timeout: float
    tick: float
    tolerance: float = 0.0
    """Seconds by which a close may be early without being held against the server.

    0 for ours, 1 ms for servers whose clock counts whole milliseconds. The raw figure
    (`lateness_s.min`) stays as it is.
    """
    max_age: float | None = field(default=None, repr=False)
    """Seconds after connecting from which on a client that talks may be closed; None:
    never.
    """


@dataclass(frozen=True)
class Plan:
    """A run: connection *i* follows `behaviours[kinds[i]]`, with the key that `key(i)`
    gives it.
    """

    seed: int
    law: Law
    duration: float
    behaviours: tuple[Behaviour, ...]
    kinds: bytes = field(repr=False)
    ramp: Ramp
    rate: float
    beat: float = 0.0
    """Seconds at whose multiples all clients act, but for the first step of each.

    0: each step is taken when it is due.
    """

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self.kinds)

    def key(self, index: int, incarnation: int = 0) -> int:
        """The key of connection *index*.

        Each reconnection is a new incarnation, with draws of its own.
        """
        return key_of(self.seed, index, incarnation)

    def behaviour(self, index: int) -> Behaviour:
        """The behaviour of connection *index*."""
        return self.behaviours[self.kinds[index]]

    def connect_offset(self, index: int) -> float:
        """Seconds after the start at which connection *index* is opened.

        They never decrease with *index*.
        """
        return self.ramp.offset(index, self.connections, self.rate)

    def survey(self) -> tuple[dict[str, dict[str, int]], str]:
        """Count connections and their ends by the behaviour's name; returns that and
        the digest.

        The digest is a SHA-256 over every connection's behaviour, instant of connecting
        and outcome: equal digests, equal plans. Cost: O(connections).
        """
        counts: dict[str, Counter[str]] = {
            behaviour.name: Counter() for behaviour in self.behaviours
        }
        drawn = (
            self.seed,
            self.law,
            self.duration,
            self.behaviours,
            *([self.beat] if self.beat else []),
        )
        hasher = hashlib.sha256(repr(drawn).encode())
        for index, kind in enumerate(self.kinds):
            behaviour = self.behaviours[kind]
            end, offset = behaviour.outcome(self.key(index))
            counts[behaviour.name].update(("connections", end.name.lower()))
            hasher.update(
                struct.pack(
                    "<BBdd",
                    kind,
                    end,
                    self.connect_offset(index),
                    -1.0 if offset is None else offset,
                )
            )
        return {name: dict(counter) for name, counter in counts.items()}, hasher.hexdigest()


def least_duration(timeout: float, tick: float) -> float:
    """The shortest run that sees a silent client reaped, in seconds from the last
    connection.
    """
    return timeout * (1 + SLACK) + tick


def make_plan(
    scenario: Scenario,
    connections: int,
    law: Law,
    duration: float,
    seed: int,
    rate: float,
    beat: float = 0.0,
) -> Plan:
    """Draw the plan. The same arguments give the same plan.

    Args:
        duration: Seconds from the last connection's establishment to the end of the
            run.
        rate: Connections opened per second, where the scenario does not say otherwise.
        beat: Seconds at whose multiples all clients act; 0: each at its own instant.

    Raises BadArgument: there are too many connections, the run is too short to see
    anything reaped, the beat too long to be told from silence, or a parameter of a
    behaviour makes no sense.
    """
    if connections > MOST:
        raise BadArgument(f"--connections {connections}: a plan holds at most {MOST}")
    behaviours = tuple(spec.behaviour(law.timeout, 0.0) for spec in scenario.clients)
    longest = max(behaviour.timeout for behaviour in behaviours)
    least = least_duration(longest, law.tick)
    if duration < least:
        what = (
            "too short to see a connection reaped "
            f"at timeout {seconds(longest)} and tick {seconds(law.tick)}"
        )
        raise BadArgument(
            f"--duration {seconds(duration)} is {what}: at least {seconds(least)} is needed"
        )
    shortest = min(behaviour.timeout for behaviour in behaviours)
    if beat > (most := LONGEST_BEAT * shortest):
        what = f"too long for a timeout of {seconds(shortest)}"
        raise BadArgument(f"--beat {seconds(beat)} is {what}: at most {seconds(most)}")
    horizon = duration - law.tick - SLACK * longest
    behaviours = tuple(spec.behaviour(law.timeout, horizon) for spec in scenario.clients)
    kinds = share_out([behaviour.weight for behaviour in behaviours], connections, seed)
    return Plan(seed, law, duration, behaviours, kinds, scenario.make_ramp(law.timeout), rate, beat)


def share_out(weights: list[float], connections: int, seed: int) -> bytes:
    """Draw the behaviour number of each connection, in an order that *seed* gives.

    Each behaviour gets its weight's share exactly, by largest remainders.
    """
    total = sum(weights)
    exact = [weight * connections / total for weight in weights]
    kinds = [number for number, share in enumerate(exact) for _ in range(int(share))]
    kinds += sorted(range(len(weights)), key=lambda number: -(exact[number] % 1))[
        : connections - len(kinds)
    ]
    kinds.sort()
    random.Random(seed).shuffle(kinds)
    return bytes(kinds)
