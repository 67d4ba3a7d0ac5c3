"""What a client does: each behaviour is a pure function from (connection's key, step number, offset) to the next step.

One rule: a planned gap is never near the timeout. A gap is either at most `CLOSEST` of the timeout, so that a correct
server must keep the connection, or it lasts for ever, so that a correct server must reap it. In between both would be
right. (The racers, which aim at the timeout on purpose, are not judged.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from .rng import draw

CLOSEST = 0.9
"""The longest gap, as a share of the timeout, after which a connection must still be open: a drip's interval."""


class Act(IntEnum):
    """What a step does; the protocol turns it into bytes."""

    PING = 0  # the smallest unit of activity: bytes to be echoed, or one whole request
    CLOSE = 1


class End(IntEnum):
    """How a connection must end, by the plan."""

    ALIVE = 0  # open when the run ends
    REAPED = 1  # closed by the server, one timeout after its last byte
    SELF = 2  # closed by this client


class Step(NamedTuple):
    """*act* is due *gap* seconds after the step before it (after the connection was established, for the first)."""

    gap: float
    act: Act


class Outcome(NamedTuple):
    """How a connection ends, and how many seconds after it was established (None: it does not, within the run)."""

    end: End
    offset: float | None


@dataclass(frozen=True)
class Behaviour:
    """One kind of client, with its parameters in seconds.

    Args:
        name: what reports call it.
        weight: its share of the connections, relative to the others' weights.
        timeout: seconds of silence after which the server must close.
        horizon: seconds after establishment by which the plan's reaps must be due, so that the run sees them.
    """

    name: str
    weight: float
    timeout: float
    horizon: float

    def step(self, key: int, number: int, offset: float) -> Step | None:
        """Step *number* (from 0) of the connection with this *key*; *offset* is when the step before it was due, in
        seconds after establishment. None: nothing more is done, and the server must reap."""
        raise NotImplementedError

    def outcome(self, key: int) -> Outcome:
        """How the connection with this *key* ends. Cost: O(steps within the horizon)."""
        offset = 0.0
        number = 0
        while offset <= self.horizon:
            step = self.step(key, number, offset)
            if step is None:
                return Outcome(End.REAPED, offset + self.timeout)
            offset += step.gap
            number += 1
            if step.act is Act.CLOSE:
                return Outcome(End.SELF, offset)
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True)
class Silent(Behaviour):
    """One byte at once, then nothing: must be reaped."""

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(0.0, Act.PING) if number == 0 else None


@dataclass(frozen=True)
class Drip(Behaviour):
    """One byte every 0.9 of the timeout, for ever: must never be reaped."""

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(CLOSEST * self.timeout if number else 0.0, Act.PING)

    def outcome(self, key: int) -> Outcome:
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True)
class Chatty(Behaviour):
    """Gaps drawn evenly between *shortest* and *longest* seconds, well within the timeout: must never be reaped."""

    shortest: float
    longest: float

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number == 0:
            return Step(0.0, Act.PING)
        return Step(self.shortest + (self.longest - self.shortest) * draw(key, number), Act.PING)

    def outcome(self, key: int) -> Outcome:
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True)
class Vanish(Chatty):
    """Chatty, then closes by itself at an instant drawn evenly over the run."""

    def step(self, key: int, number: int, offset: float) -> Step | None:
        step = super().step(key, number, offset)
        leaves = self._leaves(key)
        if step is not None and number and offset + step.gap >= leaves:
            return Step(max(leaves - offset, 0.0), Act.CLOSE)
        return step

    def outcome(self, key: int) -> Outcome:
        return Outcome(End.SELF, self._leaves(key))

    def _leaves(self, key: int) -> float:
        return self.horizon * draw(key, 0)


@dataclass(frozen=True)
class Bursty(Behaviour):
    """Gaps from a Pareto distribution: many short, some beyond the timeout. The first of those ends the connection.

    A gap that would fall between 0.9 of the timeout and the timeout is cut to 0.9. A deadly gap that the run could not
    see to its end is cut as well.

    Args:
        shortest: the least gap, seconds.
        tail: the Pareto exponent; smaller is heavier.
    """

    shortest: float
    tail: float

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number == 0:
            return Step(0.0, Act.PING)
        gap: float = self.shortest * (1.0 - draw(key, number)) ** (-1.0 / self.tail)
        if gap > self.timeout and offset + self.timeout <= self.horizon:
            return None
        return Step(min(gap, CLOSEST * self.timeout), Act.PING)
