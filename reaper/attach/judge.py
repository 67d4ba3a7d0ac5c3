"""Says whose turn it is on a connection, and whether it is due.

It is told one snapshot, what is remembered of the snapshot before, and the limits.

One rule: *what cannot be known is decided for the connection*. A stamp is taken at its
latest, elapsed time at its least; unread bytes and a server at work count as the
server's affair. Pure: a snapshot carries its own instants.

Whose turn:

    bytes lie unread                         the server's: it is behind
    data came after data last went           the server's: it is at work, unless
                                             `even_unanswered`
    both in one jiffy                        the server's, unless `Snapshot.answered`
                                             says that it spoke last
    data went last, or none came             the peer's: it is silent

A peer's silence begins when its turn begins: with the end of the server's answer, not
with the question. So neither a request that takes longer than `idle` nor a long
download costs its connection. Only what the peer acknowledges counts: what the server
retransmits, or sends in addition, to a peer that acknowledges nothing is no sign of
life. With `even_unanswered` nothing but the peer's own bytes count.

`vanished` asks another question: does the peer's *kernel* answer? Silence does not
tell, for a kernel that is not asked says nothing. So time counts from the first byte or
probe that was sent and not answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core.ticks import check_instant, check_timeout
from ..errors import InvalidArgument
from .tcpinfo import Snapshot

NONE = -1.0
"""An instant that has not come about. Instants on a monotonic clock are >= 0."""

REASONS = ("idle", "first_byte", "max_age", "write", "min_in_rate", "vanished")
SLIDING = frozenset({"idle", "first_byte"})
"""Reasons that are timeouts of silence; the others are deadlines, which activity does
not move.
"""

BUSY_LOOK = 1.0
"""Seconds until a connection past its age, whose server is at work, is looked at
again.
"""
ANSWER = 1.0
"""Seconds that an answer may take on its way, at most; of a short limit, a
sixteenth.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is not tolerated. Seconds; 0 switches a limit off.

    Raises:
        InvalidArgument: a limit is negative, NaN or infinite, or none is on.
    """

    idle: float = 0.0
    """How long it may be the peer's turn while nothing comes."""
    first_byte: float = 0.0
    """How long a peer may be connected and not have sent one byte."""
    max_age: float = 0.0
    """How long a connection may be open; the request in flight is waited for."""
    write: float = 0.0
    """How long data may be queued for the peer while its kernel acknowledges none of
    it.
    """
    min_in_rate: float = 0.0
    """The least rate from the first to the latest unanswered byte, bytes per second.
    """
    min_in_grace: float = 5.0
    """How long a peer may be slower than that."""
    even_unanswered: bool = False
    """Nothing but the peer's own bytes count: neither what the server owes it nor what
    the server sends.
    """
    vanished: float = 0.0
    """How long the peer's kernel may answer nothing, although it was asked."""
    capped: bool = False
    """Whether this kernel probes a full window as often as it is told to (Linux 6.15),
    not once in two minutes.
    """
    grain: float = 0.02
    """Seconds by which the kernel's stamps may be off: `JIFFIES_AGAINST_US` jiffies.
    Never less than two of them.
    """

    def __post_init__(self) -> None:
        for name in (*REASONS, "min_in_grace", "grain"):
            if check_instant(name, getattr(self, name)) < 0:
                raise InvalidArgument(f"{name} must be >= 0, got {getattr(self, name)!r}")
        if not any(getattr(self, name) for name in REASONS):
            raise InvalidArgument(f"at least one limit must be on: {', '.join(REASONS)}")

    def shortest(self) -> float:
        """The shortest limit of time that is on, seconds."""
        limits: list[float] = [
            getattr(self, name) for name in ("idle", "first_byte", "max_age", "write", "vanished")
        ]
        if self.min_in_rate:
            limits.append(max(self.min_in_grace, 0.1))
        return min(limit for limit in limits if limit)

    def of(self, reason: str) -> float:
        """The limit that *reason* names, seconds; of a rate, its grace."""
        return float(getattr(self, "min_in_grace" if reason == "min_in_rate" else reason))

    def longer(self, factor: float) -> Limits:
        """These limits, with each timeout of silence *factor* times as long.

        Args:
            factor: At least 1: jitter only ever lengthens.
        """
        check_timeout("factor", factor)
        return replace(self, idle=self.idle * factor, first_byte=self.first_byte * factor)

    @property
    def asks(self) -> int:
        """The seconds after which a silent peer is asked for `vanished`, and asked
        again.

        They are whole seconds, because the kernel counts keep-alives in those.
        """
        return max(int(self.vanished / 6), 1)


class Memory(NamedTuple):
    """What is remembered of a connection between two looks.

    Instants are seconds on the monotonic clock; `NONE`: it has not come about.
    """

    opened: float
    """The latest instant at which it can have been opened, by the first look. The
    journal says it.
    """
    received: int = -1
    """Bytes received when it was looked at last."""
    turn: float = NONE
    """Since when it has been the peer's turn."""
    acked: int = -1
    """Bytes acknowledged when it was looked at last."""
    stalled: float = NONE
    """Since when something has been queued and nothing acknowledged."""
    slow_received: int = 0
    slow: float = NONE
    """The first byte seen of what the server has not answered, and the bytes received
    by then.
    """
    theirs: bool = False
    """Whether it was the peer's turn for certain."""
    owed: bool = False
    """Whether something was queued for the peer."""
    asks: bool = False
    """Whether its kernel asks the peer's once per `Limits.asks`."""
    vain: float = NONE
    """Since when the peer's kernel has been asked in vain."""


class Verdict(NamedTuple):
    """What follows from one look at one connection."""

    due: bool
    """Whether the connection may be closed as of `Snapshot.before`."""
    reason: str
    """The limit that is over, or the one that will be over next."""
    at: float
    """If due: since when. If not: the instant of the next look, before which nothing
    can be due.
    """
    peers_turn: bool | None
    """Whether silence is the peer's affair; None if unknown."""
    since: float
    """Since when, at the latest, the peer has been silent."""

    @property
    def sure(self) -> bool:
        """Whether silence is proven; False: the peer may also be waiting for an
        answer.
        """
        return self.peers_turn is not None or self.reason not in ("idle", "max_age")


def peers_turn(seen: Snapshot, known: Memory, limits: Limits) -> bool | None:
    """Whether silence is the peer's affair now; None if unknown."""
    if seen.unread:
        return False
    if limits.even_unanswered or not seen.received:
        return True
    if not seen.sent:
        return False
    if seen.sent_ago != seen.received_ago:
        return seen.sent_ago < seen.received_ago
    if seen.answered is None and known.theirs and known.received == seen.received:
        return True  # it was the peer's turn, and nothing has come since
    return seen.answered


def judge(seen: Snapshot, known: Memory, limits: Limits) -> tuple[Verdict, Memory]:
    """Judge one connection.

    Args:
        seen: The look.
        known: What the previous check returned; a fresh `Memory` at the first.
        limits: What is not tolerated.
    Returns:
        The verdict, and what to remember for the next look.
    Timing: a connection is never due early. It is due at the instant itself for `idle`
        and `first_byte`, if it is looked at when the verdict before said; `write` and
        `min_in_rate` count from the first look that shows them.
    Cost: about 4 us.
    """
    grain = limits.grain
    before, after = seen.before, seen.after
    heard = seen.since(seen.received_ago, grain)
    spoke = seen.since(seen.sent_ago, grain)
    theirs = peers_turn(seen, known, limits)
    opened = min(known.opened, heard, spoke) if known.received < 0 else known.opened
    turn = NONE
    at, reason = float("inf"), ""
    look = float("inf")

    if theirs is not False:
        same = (known.received, known.acked) == (seen.received, seen.acked) and known.turn != NONE
        if limits.even_unanswered:
            turn = heard
        elif same and (known.owed or not seen.queued):
            turn = known.turn
        else:
            # A push that is on its way counts once; more of them do not, if the peer
            # takes none.
            turn = max(heard, spoke)
        if limits.idle:
            # By both clocks: ours since the turn began, and the kernel's since the last
            # byte.
            at = max(turn + limits.idle, before + limits.idle - seen.silent(grain))
            reason = "idle"
    elif limits.idle:
        look = after + limits.idle

    if limits.first_byte and not seen.received and not seen.unread:
        until = max(opened, before - seen.silent(grain)) + limits.first_byte
        if until < at:
            at, reason = until, "first_byte"

    if limits.max_age:
        until = opened + limits.max_age
        if until > before or theirs is not False:
            if until < at:
                at, reason = until, "max_age"
        else:
            look = min(look, after + BUSY_LOOK)

    stalled = NONE
    if limits.write:
        if seen.queued:
            stalled = (
                known.stalled if known.acked == seen.acked and known.stalled != NONE else after
            )
            if stalled + limits.write < at:
                at, reason = stalled + limits.write, "write"
        else:
            look = min(look, after + limits.write)

    slow, slow_received = NONE, 0
    if limits.min_in_rate:
        # What a server leaves unread fills its buffer, and then the peer may send no
        # faster than the server reads.
        if seen.received and not seen.unread and seen.sent_ago > seen.received_ago:
            if known.slow == NONE or spoke > known.slow:
                slow, slow_received = heard, seen.received
            else:
                slow, slow_received = known.slow, known.slow_received
                span = before - seen.received_ago - grain - slow
                if (
                    span > limits.min_in_grace
                    and seen.received - slow_received < limits.min_in_rate * span
                ):
                    at, reason = min(at, before), "min_in_rate" if at > before else reason
        look = min(look, after + max(limits.min_in_grace, 0.1))

    vain = NONE
    if limits.vanished:
        vain, until, again = _unanswered(seen, known, limits)
        look = min(look, again)
        if until < at:
            at, reason = until, "vanished"

    since = turn if turn != NONE else heard
    memory = Memory(
        opened, seen.received, turn, seen.acked, stalled, slow_received, slow,
        theirs is True, seen.queued > 0, known.asks, vain,
    )  # fmt: skip
    if at <= before:
        return Verdict(True, reason, at, theirs, since), memory
    return Verdict(False, reason, min(at, look), theirs, since), memory


def _unanswered(seen: Snapshot, known: Memory, limits: Limits) -> tuple[float, float, float]:
    """(since when the peer's kernel has been asked in vain, when that is too long, the
    next look).

    The first is the latest instant that it can have been, or `NONE`; infinite: never.
    """
    limit = limits.vanished
    answered = seen.since(min(seen.ack_ago, seen.received_ago), limits.grain)
    # With a full window there are no keep-alives, only probes of the window.
    full = bool(seen.queued) and not seen.in_vain
    soon = seen.after + max(limit / 16, limits.grain)
    if not seen.in_vain and not seen.probes:
        return NONE, float("inf"), soon if full else seen.after + limit * 0.75
    vain = seen.after - seen.in_vain
    if known.asks and (limits.capped or not full):
        # It was asked no later than that. An eighth is added because the kernel's
        # timers may be that late.
        vain = answered + limits.asks * 1.125
    elif known.vain >= answered:
        vain = known.vain
    # Two questions unanswered are certain; of one, the answer may be on its way. And
    # where retransmissions are few and far between, the network may be back again.
    certain = seen.probes >= 2
    if seen.in_vain:
        patience = min(ANSWER, limit / 16)
        certain = (
            max(seen.in_vain, seen.before - vain) - seen.sent_ago >= limit / 2
            and seen.sent_ago >= patience
        )
        soon = seen.after + max(patience - seen.sent_ago, limits.grain)
    if vain + limit <= seen.before and not certain:
        return vain, float("inf"), soon
    return vain, vain + limit, float("inf")
