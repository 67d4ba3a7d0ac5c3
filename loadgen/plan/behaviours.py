"""Says what a client does: a behaviour is a pure function from key and step number to a
step.

One rule: a planned gap is never near the timeout. Either it is at most `CLOSEST` of the
timeout, so that a correct server must keep the connection, or it lasts for ever, so
that a correct server must reap it. In between both would be right. (Behaviours that aim
there on purpose, or at something that the timeout says nothing about, are not judged.)

This is the one vocabulary of clients whose steps are drawn; one whose steps are written
down has `acts`. `run` and `simulate` draw plans from it, `probe` asks with it, and
programs play single clients with `loadgen.clients`. Every number of
seconds can be written as `250ms`, or as a multiple of the timeout, `0.9T`. `default`
holds what a mix on the command line uses.

Draws come from a counter-based generator (the mixing function of SplitMix64: G. Steele,
D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): any
step can be computed at any time, in any process, in any order, and is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

CLOSEST = 0.9
"""The longest gap, as a share of the timeout, after which a connection must still be
open.
"""
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_TO_UNIT = 2.0**-53


def mix(value: int) -> int:
    """Make one 64-bit number of another, so that every bit depends on every bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def key_of(*parts: int) -> int:
    """Make a 64-bit key of a seed and the numbers that name a thing (index,
    incarnation, ...).
    """
    key = 0
    for part in parts:
        key = mix((key + (part + 1) * _GAMMA) & _MASK)
    return key


def draw(key: int, number: int) -> float:
    """Draw *number* of *key*: a float in [0, 1). Cost: O(1), about a microsecond."""
    return (mix((key + (number + 1) * _GAMMA) & _MASK) >> 11) * _TO_UNIT


class Act(IntEnum):
    """What a step does; the protocol turns that into bytes."""

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
    ASK_MUCH_OFTEN = 10  # many of them in one write
    SHUT = 11  # the end of what we send, and nothing before it
    RESET = 12  # closes with a reset
    ASK_SLOW = 13  # a request whose response takes long
    BODY_PIECE = 14  # some bytes of the announced body
    CHUNKS_START = 15  # headers that announce a chunked body
    CHUNK_LONG = 16  # a byte of body in a chunk with an extension of 200
    CHUNKS_TINY = 17  # many chunks of a byte
    NOISE = 18  # bytes that are no request
    UPGRADE_START = 19  # the headers of a WebSocket's handshake, and no end of them
    MESSAGE_START = 20  # the head of a WebSocket frame that announces a long message
    HELLO_START = 21  # the beginning of a TLS handshake
    HELLO_BYTE = 22
    MESSAGE = 23  # a whole WebSocket message


class End(IntEnum):
    """How a connection must end, by the plan."""

    ALIVE = 0  # open when the run ends
    # closed by the server, one timeout after its last byte (after its first, where
    # `deadline` says so)
    REAPED = 1
    SELF = 2  # closed by this client
    ANY = 3  # not judged


class Step(NamedTuple):
    """*act* is due *gap* seconds after the step before it.

    The gap of the first step runs from the instant at which the connection was
    established.
    """

    gap: float
    act: Act


class Outcome(NamedTuple):
    """How a connection ends, and how many seconds after it was established.

    The offset is None if the connection does not end within the run.
    """

    end: End
    offset: float | None


def seconds_field(default: str) -> Any:
    """Make a dataclass field of seconds; *default* is a text such as `0.5T`."""
    return field(metadata={"default": default})


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One kind of client, with its parameters in seconds.

    Args:
        name: what reports call it.
        weight: its share of the connections, relative to the others' weights.
        timeout: seconds of silence after which the server must close.
        horizon: seconds after establishment by which the plan's reaps must be due, so
            that the run sees them.
        reconnect: seconds after its end when the same client connects again; None for
            never.
    """

    kind: ClassVar[str]
    protocols: ClassVar[tuple[str, ...]] = ()
    """The protocols in which the behaviour makes sense; where none is named, all."""
    reads: ClassVar[bool] = True
    """Whether the client reads what comes. After an `Act.ASK_MUCH` no client does."""
    pongs: ClassVar[bool] = True
    """Whether the client answers the pings of a WebSocket's server."""
    lives: ClassVar[bool] = False
    """Whether the client speaks for ever, whatever its key."""
    limited: ClassVar[bool] = True
    """Whether the law says how the connection must end even without a `deadline`."""
    before_tls: ClassVar[bool] = False
    """Whether the client's bytes take the place of the TLS handshake."""
    counted: ClassVar[int] = -1
    """The step from which a server counts silence or deadline; -1: it counts anew at
    each step.
    """

    name: str
    weight: float
    timeout: float
    horizon: float
    reconnect: float | None = None
    deadline: bool = False
    """Whether the timeout runs from the first step and no later byte extends it."""
    listener: str = field(default="echo", repr=False)
    """The server's port or service, as simulated journals call it."""

    @property
    def judged(self) -> bool:
        """Whether the law says how such a connection must end."""
        return self.limited or self.deadline

    def step(self, key: int, number: int, offset: float) -> Step | None:
        """Return step *number* (from 0) of the connection with this *key*.

        *offset* is when the step before it was due, in seconds after establishment.
        None: the client does nothing more, and the server must reap.
        """
        raise NotImplementedError

    def outcome(self, key: int) -> Outcome:
        """Say how the connection with this *key* ends, the first time.

        Cost: O(steps within the horizon).
        """
        if not self.judged:
            return Outcome(End.ANY, None)
        offset, number = 0.0, 0
        while offset <= self.horizon and not self.lives:
            step = self.step(key, number, offset)
            if step is None or (self.deadline and number):
                return Outcome(End.REAPED, offset + self.timeout)
            offset += step.gap
            number += 1
        return Outcome(End.ALIVE, None)


@dataclass(frozen=True, kw_only=True)
class Mute(Behaviour):
    """Connects and never sends anything: must be reaped, counted from the
    connection.
    """

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
    """Gaps drawn evenly between *shortest* and *longest*, well within the timeout: must
    never be reaped.
    """

    kind = "chatty"
    lives = True
    shortest: float = seconds_field("0.2T")
    longest: float = seconds_field("0.5T")
    act: ClassVar[Act] = Act.PING

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number == 0:
            return Step(0.0, self.act)
        return Step(self.shortest + (self.longest - self.shortest) * draw(key, number), self.act)


@dataclass(frozen=True, kw_only=True)
class Pipelined(Chatty):
    """Chatty, with several requests in one write."""

    kind = "pipelined"
    act = Act.PIPELINE


@dataclass(frozen=True, kw_only=True)
class Drip(Behaviour):
    """One byte every *every* seconds, 0.9 of the timeout, for ever: must never be
    reaped.
    """

    kind = "drip"
    lives = True
    every: float = seconds_field("0.9T")

    def step(self, key: int, number: int, offset: float) -> Step | None:
        return Step(self.every if number else 0.0, Act.PING)


@dataclass(frozen=True, kw_only=True)
class Leave(Chatty):
    """Chatty, then closes by itself, at an instant drawn evenly between *earliest* and
    *latest*, within the run.
    """

    kind = "leave"
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
    """Gaps from a Pareto distribution: many short, some beyond the timeout. The first
    of those ends the connection.

    A gap that would fall between 0.9 of the timeout and the timeout is cut to 0.9. A
    deadly gap that the run could not see to its end is cut as well. With the defaults 2
    % of the gaps are deadly, the others' mean is 0.2 T.

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
class Attack(Behaviour):
    """Does each act of `opening` at once, then `then` every *every* seconds, for ever
    (nothing: then it is silent).

    Judged only with `deadline = true` (or where that is the default): servers differ in
    what they limit.
    """

    limited = False
    opening: ClassVar[tuple[Act, ...]]
    then: ClassVar[Act | None] = None
    counted: ClassVar[int] = 0
    every: float = seconds_field("0.2T")
    delay: float = seconds_field("0T")
    """Seconds between connecting and the first act: an odd number tells which of the
    two a server counts from.
    """

    def step(self, key: int, number: int, offset: float) -> Step | None:
        if number < len(self.opening):
            return Step(self.every if number else self.delay, self.opening[number])
        return None if self.then is None else Step(self.every, self.then)


@dataclass(frozen=True, kw_only=True)
class SlowHeaders(Attack):
    """Slowloris: a request whose headers never end, one more line every *every*
    seconds.

    A server that limits the headers as a whole must close one timeout after the first
    byte (`deadline`, the default); one that only watches for silence never will.
    """

    kind = "slow_headers"
    protocols = ("http",)
    opening = (Act.HEAD_START,)
    then = Act.HEAD_LINE
    deadline: bool = True


def _attack(
    kind: str, doc: str, *opening: Act, then: Act | None = None, **more: Any
) -> type[Attack]:
    """Make the class of an attack that is told by its acts alone; *more* are class
    variables.
    """
    name = "".join(part.capitalize() for part in kind.split("_"))
    variables = {
        "protocols": ("http",),
        **more,
        "kind": kind,
        "opening": opening,
        "then": then,
        "__doc__": doc,
    }
    made: type[Attack] = dataclass(frozen=True, kw_only=True)(
        type(name, (Attack,), variables | {"__module__": __name__})
    )
    # A plan is pickled for the processes that play it: the class is looked up by this
    # name.
    globals()[name] = made
    return made


_ATTACKS = (
    SlowHeaders,
    _attack("stalled_headers", "A request line and one header, then nothing.", Act.HEAD_START),
    _attack(
        "slow_second_headers",
        "One request; then slow headers, of a second.",
        Act.PING,
        Act.HEAD_START,
        then=Act.HEAD_LINE,
        counted=1,
    ),
    _attack(
        "slow_body",
        "A request that announces a long body and sends a byte of it every *every* seconds.",
        Act.BODY_START,
        then=Act.BODY_BYTE,
    ),
    _attack(
        "no_body", "A request that announces a long body and sends nothing of it.", Act.BODY_START
    ),
    _attack(
        "stalled_body",
        "A request that announces a long body and stops in the middle of it.",
        Act.BODY_START,
        Act.BODY_PIECE,
        counted=-1,
    ),
    _attack(
        "slow_chunks",
        "A chunked body: a byte every *every* seconds, each with a long extension.",
        Act.CHUNKS_START,
        then=Act.CHUNK_LONG,
    ),
    _attack(
        "tiny_chunks",
        "A chunked body: thousands of chunks of a byte every *every* seconds.",
        Act.CHUNKS_START,
        then=Act.CHUNKS_TINY,
    ),
    _attack(
        "slow_read",
        "Asks for a long response and reads a small piece of it every *every* seconds.",
        Act.ASK_MUCH,
        then=Act.READ,
        protocols=(),
        reads=False,
    ),
    _attack(
        "unread", "Asks for a long response and reads nothing of it.", Act.ASK_MUCH, reads=False
    ),
    _attack(
        "unread_half_closed",
        "The same, and closes its sending side.",
        Act.ASK_MUCH,
        Act.SHUT,
        reads=False,
    ),
    _attack(
        "unread_pipelined",
        "Asks for many long responses every *every* seconds and reads nothing.",
        Act.ASK_MUCH_OFTEN,
        then=Act.ASK_MUCH_OFTEN,
        reads=False,
    ),
    _attack(
        "half_close",
        "Sends once, then closes its sending side. A server may answer and close at once, or wait.",
        Act.HALF_CLOSE,
        protocols=(),
    ),
    _attack(
        "reset",
        "A request that takes the server long, and a reset instead of waiting.",
        Act.ASK_SLOW,
        Act.RESET,
    ),
    _attack(
        "garbage",
        "Bytes that are no request every *every* seconds.",
        Act.NOISE,
        then=Act.NOISE,
        protocols=(),
    ),
    _attack(
        "slow_upgrade",
        "The handshake of a WebSocket whose headers never end.",
        Act.UPGRADE_START,
        then=Act.HEAD_LINE,
    ),
    _attack(
        "stalled_handshake",
        "The beginning of a TLS handshake, then nothing.",
        Act.HELLO_START,
        before_tls=True,
        protocols=(),
    ),
    _attack(
        "slow_handshake",
        "A TLS handshake, a byte every *every* seconds, without an end.",
        Act.HELLO_START,
        then=Act.HELLO_BYTE,
        before_tls=True,
        protocols=(),
    ),
    _attack(
        "slow_message",
        "A WebSocket message that is announced as long: a byte every *every* seconds.",
        Act.MESSAGE_START,
        then=Act.BODY_BYTE,
        protocols=("ws",),
    ),
    _attack(
        "listener",
        "A WebSocket that says one thing, and from then on only listens and answers pings.",
        Act.MESSAGE,
        protocols=("ws",),
        counted=-1,
    ),
)


@dataclass(frozen=True, kw_only=True)
class SilentUpgrade(Mute):
    """A WebSocket that says nothing after the upgrade and answers no ping: must be
    reaped.
    """

    kind = "silent_upgrade"
    protocols = ("ws",)
    pongs = False


@dataclass(frozen=True, kw_only=True)
class PongOnly(Mute):
    """A WebSocket that answers the server's pings and says nothing else. Judged with
    `deadline = true`: then a pong counts as silence."""

    kind = "pong_only"
    protocols = ("ws",)
    limited = False


KINDS: dict[str, type[Behaviour]] = {
    cls.kind: cls
    for cls in (
        *(Silent, Chatty, Bursty, Drip, Leave, Mute, Pipelined, SilentUpgrade, PongOnly),
        *_ATTACKS,
    )
}
