"""Who does what, when, and how it must end: all of it drawn from the seed before the first packet.

One rule: the plan is a pure function of its arguments. It reads no clock and no state, so the same seed gives the same
plan on any machine, in any number of processes; `Plan.digest` is the proof.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .behaviours import Behaviour, Bursty, Chatty, Drip, Silent, Vanish
from .rng import key_of
from .units import BadArgument, seconds

DEFAULT_MIX = "silent=50,chatty=40,drip=10"
SLACK = 0.1
"""Share of the timeout that a run leaves after the last possible reap, so that none is due as the run ends."""


@dataclass(frozen=True)
class Law:
    """What the server promised: silence of *timeout* seconds is ended, never early, at most *tick* seconds late."""

    timeout: float
    tick: float


@dataclass(frozen=True)
class Plan:
    """A run: connection *i* follows `behaviours[kinds[i]]`, with the key that `key(i)` gives it."""

    seed: int
    law: Law
    duration: float
    behaviours: tuple[Behaviour, ...]
    kinds: bytes = field(repr=False)

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self.kinds)

    def key(self, index: int, incarnation: int = 0) -> int:
        """The key of connection *index*; each reconnection is a new incarnation with draws of its own."""
        return key_of(self.seed, index, incarnation)

    def behaviour(self, index: int) -> Behaviour:
        """What connection *index* does."""
        return self.behaviours[self.kinds[index]]

    def summary(self) -> dict[str, dict[str, int]]:
        """Behaviour name -> how many connections there are and how they must end. Cost: O(connections)."""
        counts: dict[str, Counter[str]] = {behaviour.name: Counter() for behaviour in self.behaviours}
        for index, kind in enumerate(self.kinds):
            behaviour = self.behaviours[kind]
            end = behaviour.outcome(self.key(index)).end
            counts[behaviour.name].update(("connections", end.name.lower()))
        return {name: dict(counter) for name, counter in counts.items()}

    def digest(self) -> str:
        """SHA-256 over every connection's behaviour and outcome: equal digests, equal plans. Cost: O(connections)."""
        hasher = hashlib.sha256(repr((self.seed, self.law, self.duration, self.behaviours)).encode())
        hasher.update(self.kinds)
        for index in range(self.connections):
            end, offset = self.behaviour(index).outcome(self.key(index))
            hasher.update(struct.pack("<Bd", end, -1.0 if offset is None else offset))
        return hasher.hexdigest()


def least_duration(law: Law) -> float:
    """The shortest run, in seconds after the last connection is up, that sees a silent one reaped."""
    return law.timeout * (1 + SLACK) + law.tick


def make_plan(mix: dict[str, float], connections: int, law: Law, duration: float, seed: int) -> Plan:
    """Draw the plan.

    Args:
        mix: behaviour name -> weight, as `parse_mix` returns it.
        connections: how many.
        law: what the server promised.
        duration: seconds from the last connection's establishment to the end of the run.
        seed: any integer; same arguments, same plan.

    Raises:
        BadArgument: the run is too short to see anything reaped.
    """
    least = least_duration(law)
    if duration < least:
        raise BadArgument(
            f"--duration {seconds(duration)} is too short to see a connection reaped at timeout {seconds(law.timeout)} "
            f"and tick {seconds(law.tick)}: at least {seconds(least)} is needed"
        )
    horizon = duration - law.tick - SLACK * law.timeout
    behaviours = tuple(_MAKERS[name](name, weight, law.timeout, horizon) for name, weight in mix.items())
    return Plan(seed, law, duration, behaviours, share_out([b.weight for b in behaviours], connections, seed))


def share_out(weights: list[float], connections: int, seed: int) -> bytes:
    """The behaviour number of each connection: exactly each weight's share (largest remainders), in an order from
    *seed*."""
    total = sum(weights)
    exact = [weight * connections / total for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda number: counts[number] - exact[number])
    for number in by_remainder[: connections - sum(counts)]:
        counts[number] += 1
    kinds = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return bytes(kinds)


def parse_mix(text: str) -> dict[str, float]:
    """`silent=50,chatty=40` -> name to weight, in the order given; a name alone weighs 1.

    Raises:
        BadArgument: an unknown behaviour, one named twice, or a weight that is not a number > 0.
    """
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight_text = part.strip().partition("=")
        if name not in _MAKERS:
            raise BadArgument(f"--mix {text!r}: {name!r} is no behaviour: choose from {', '.join(_MAKERS)}")
        if name in mix:
            raise BadArgument(f"--mix {text!r}: {name!r} is given twice: give each behaviour one weight")
        try:
            weight = float(weight_text) if weight_text else 1.0
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf"):
            raise BadArgument(
                f"--mix {text!r}: weight {weight_text!r} of {name!r} must be a number > 0, such as {name}=50"
            )
        mix[name] = weight
    return mix


def _chatty(name: str, weight: float, timeout: float, horizon: float) -> Behaviour:
    return Chatty(name, weight, timeout, horizon, 0.2 * timeout, 0.5 * timeout)


def _vanish(name: str, weight: float, timeout: float, horizon: float) -> Behaviour:
    return Vanish(name, weight, timeout, horizon, 0.2 * timeout, 0.5 * timeout)


def _bursty(name: str, weight: float, timeout: float, horizon: float) -> Behaviour:
    # With these, 2 % of the gaps are deadly and the mean of the others is a fifth of the timeout.
    return Bursty(name, weight, timeout, horizon, 0.05 * timeout, 1.3)


_MAKERS: dict[str, Callable[[str, float, float, float], Behaviour]] = {
    "silent": Silent,
    "chatty": _chatty,
    "bursty": _bursty,
    "drip": Drip,
    "vanish": _vanish,
}
