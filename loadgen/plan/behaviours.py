"""What a client does: each behaviour is a pure function from (connection's key, step number, offset) to the next step.

One rule: a planned gap is never near the timeout. A gap is either at most `CLOSEST` of the timeout, so that a correct
server must keep the connection, or it lasts for ever, so that a correct server must reap it. In between both would be
right. (The behaviours that aim there on purpose, or at what the timeout says nothing about, are not judged.)

Every number of seconds can be written as `250ms` or as a multiple of the timeout, `0.9T`; `default` holds what a mix on
the command line uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

from .rng import draw

CLOSEST = 0.9
"""The longest gap, as a share of the timeout, after which a connection must still be open: a drip's interval."""


class Act(IntEnum):
    """What a step does; the protocol turns it into bytes."""

    PING = 0  # the smallest unit of activity: a byte to be echoed, or one whole request
    CLOSE = 1
    HALF_CLOSE = 2  # one more ping, then the end of what we send
    PIPELINE = 3  # several pings in one write
    HEAD_START = 4  # a request line, and no end of the headers
    HEAD_LINE = 5  # one more header
    BODY_START = 6  # headers that announce a body
    BODY_BYTE = 7
    ASK_MUCH = 8  # a request whose response is not read but by READ
    READ = 9  # read one small piece


class End(IntEnum):
    """How a connection must end, by the plan."""

    ALIVE = 0  # open when the run ends
    REAPED = 1  # closed by the server, one timeout after its last byte (after its first, where `deadline` says so)
    SELF = 2  # closed by this client
    ANY = 3  # not judged


class Step(NamedTuple):
    """*act* is due *gap* seconds after the step before it (after the connection was established, for the first)."""

    gap: float
    act: Act


class Outcome(NamedTuple):
    """How a connection ends, and how many seconds after it was established (None: it does not, within the run)."""

    end: End
    offset: float | None


def seconds_field(default: str) -> Any:
    """A dataclass field of seconds, with the text that gives its default, such as `0.5T`."""
    return field(metadata={"default": default})


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One kind of client, with its parameters in seconds.

    Args:
        name: what reports call it.
        weight: its share of the connections, relative to the others' weights.
        timeout: seconds of silence after which the server must close.
        horizon: seconds after establishment by which the plan's reaps must be due, so that the run sees them.
        reconnect: seconds after its end when the same client connects again; None for never.
    """

    kind: ClassVar[str]
    http_only: ClassVar[bool] = False

    name: str
    weight: float
    timeout: float
    horizon: float
    reconnect: float | None = None
    deadline: bool = False
    """Whether the timeout runs from the first step and no later byte extends it."""

    @property
    def judged(self) -> bool:
        """Whether the law says how such a connection must end."""
        return True

    def step(self, key: int, number: int, offset: float) -> Step | None:
        """Step *number* (from 0) of the connection with this *key*; *offset* is when the step before it was due, in
        seconds after establishment. None: nothing more is done, and the server must reap."""
        raise NotImplementedError

    def outcome(self, key: int) -> Outcome:
        """How the connection with this *key* ends, the first time. Cost: O(steps within the horizon)."""
        if not self.judged:
            return Outcome(End.ANY, None)
        offset = 0.0
        number = 0
        while offset <= self.horizon:
            step = self.step(key, number, offset)
            if step is None or (self.deadline and number):
                return Outcome(End.REAPED, offset + self.timeout)
            offset += step.gap
            number += 1
            if step.act is Act.CLOSE:
                return Outcome(End.SELF, offset)
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True, kw_only=True)
class Mute(Behaviour):
    """Connects and never sends anything: must be reaped, counted from the connection."""

    kind = "mute"

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Silent(Behaviour):
    """One byte (one request) at once, then nothing: must be reaped."""

    kind = "silent"

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(0.0, Act.PING) if number == 0 else None


@dataclass(frozen=True, kw_only=True)
class Chatty(Behaviour):
    """Gaps drawn evenly between *shortest* and *longest*, well within the timeout: must never be reaped."""

    kind = "chatty"
    shortest: float = seconds_field("0.2T")
    longest: float = seconds_field("0.5T")
    act: ClassVar[Act] = Act.PING

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number == 0:
            return Step(0.0, self.act)
        return Step(self.shortest + (self.longest - self.shortest) * draw(key, number), self.act)

    def outcome(self, key: int) -> Outcome:
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True, kw_only=True)
class Pipelined(Chatty):
    """Chatty, with several requests in one write."""

    kind = "pipelined"
    act = Act.PIPELINE


@dataclass(frozen=True, kw_only=True)
class Drip(Behaviour):
    """One byte every *every* seconds, 0.9 of the timeout, for ever: must never be reaped."""

    kind = "drip"
    every: float = seconds_field("0.9T")

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(self.every if number else 0.0, Act.PING)

    def outcome(self, key: int) -> Outcome:
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True, kw_only=True)
class Vanish(Chatty):
    """Chatty, then closes by itself, at an instant drawn evenly between *earliest* and *latest*, within the run."""

    kind = "vanish"
    earliest: float = seconds_field("0T")
    latest: float = seconds_field("2T")

    def step(self, key: int, number: int, offset: float) -> Step | None:
        step = super().step(key, number, offset)
        leaves = self._leaves(key)
        if step is not None and number and offset + step.gap >= leaves:
            return Step(max(leaves - offset, 0.0), Act.CLOSE)
        return step

    def outcome(self, key: int) -> Outcome:
        return Outcome(End.SELF, self._leaves(key))

    def _leaves(self, key: int) -> float:
        return min(self.earliest + (self.latest - self.earliest) * draw(key, 0), self.horizon)


@dataclass(frozen=True, kw_only=True)
class Bursty(Behaviour):
    """Gaps from a Pareto distribution: many short, some beyond the timeout. The first of those ends the connection.

    A gap that would fall between 0.9 of the timeout and the timeout is cut to 0.9. A deadly gap that the run could not
    see to its end is cut as well. With the defaults 2 % of the gaps are deadly, the others' mean is 0.2 T.

    Args:
        shortest: the least gap, seconds.
        tail: the Pareto exponent; smaller is heavier.
    """

    kind = "bursty"
    shortest: float = seconds_field("0.05T")
    tail: float = 1.3

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number == 0:
            return Step(0.0, Act.PING)
        gap: float = self.shortest * (1.0 - draw(key, number)) ** (-1.0 / self.tail)
        if gap > self.timeout and offset + self.timeout <= self.horizon:
            return None
        return Step(min(gap, CLOSEST * self.timeout), Act.PING)


@dataclass(frozen=True, kw_only=True)
class SlowHeaders(Behaviour):
    """Slowloris: a request whose headers never end, one more line every *every* seconds.

    A server that limits the headers as a whole must close one timeout after the first byte (`deadline`, the default);
    one that only watches for silence never will.
    """

    kind = "slow_headers"
    http_only = True
    first: ClassVar[Act] = Act.HEAD_START
    then: ClassVar[Act] = Act.HEAD_LINE
    deadline: bool = True
    every: float = seconds_field("0.2T")

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(self.every, self.then) if number else Step(0.0, self.first)


@dataclass(frozen=True, kw_only=True)
class SlowBody(SlowHeaders):
    """A request that announces a long body and sends a byte of it every *every* seconds. Judged only with `deadline =
    true`: servers differ in whether they limit the body as a whole, its silences, or its rate."""

    kind = "slow_body"
    first = Act.BODY_START
    then = Act.BODY_BYTE
    deadline: bool = False

    @property
    def judged(self) -> bool:
        return self.deadline


@dataclass(frozen=True, kw_only=True)
class SlowRead(Behaviour):
    """Asks for a long response and reads a small piece of it every *every* seconds. Not judged: when the server last
    made progress depends on buffers that a client cannot see."""

    kind = "slow_read"
    every: float = seconds_field("0.2T")

    @property
    def judged(self) -> bool:
        return False

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(self.every, Act.READ) if number else Step(0.0, Act.ASK_MUCH)


@dataclass(frozen=True, kw_only=True)
class HalfClose(Behaviour):
    """Sends once, then closes its sending side. Not judged: a server may answer and close at once, or wait for the
    timeout."""

    kind = "half_close"

    @property
    def judged(self) -> bool:
        return False

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(0.0, Act.HALF_CLOSE) if number == 0 else None


@dataclass(frozen=True, kw_only=True)
class Racer(Behaviour):
    """Sends within *epsilon* of the timeout, before or after: the keep-alive race. Not judged; what was lost is
    counted."""

    kind = "racer"
    epsilon: float = seconds_field("20ms")

    @property
    def judged(self) -> bool:
        return False

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number == 0:
            return Step(0.0, Act.PING)
        return Step(max(self.timeout + self.epsilon * (2 * draw(key, number) - 1), 0.0), Act.PING)


KINDS: dict[str, type[Behaviour]] = {
    cls.kind: cls
    for cls in (
        Silent, Chatty, Bursty, Drip, Vanish, Mute, Pipelined, SlowHeaders, SlowBody, SlowRead, HalfClose, Racer,
    )
}  # fmt: skip
