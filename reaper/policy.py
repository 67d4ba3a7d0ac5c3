"""What a connection may be waiting for, and which timeout is in force while it does.

One rule: *a connection is always in exactly one phase, and the phase alone decides what ends it*. A phase names its
timeout (a key of `[timeouts]`), the reason a reap gives, and which bytes start the timeout again. A request in flight
is a phase without a timeout: it is never idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Direction = Literal["in", "out"]


class Phase(Enum):
    """What the connection is waiting for. The value is the reason that a reap in this phase gives."""

    IDLE = "idle"
    HANDSHAKE = "handshake"
    FIRST_BYTE = "first_byte"
    HEADERS = "headers"
    BODY = "body"
    IN_FLIGHT = "in_flight"
    WRITE = "write"
    KEEP_ALIVE = "keep_alive"
    TUNNEL = "tunnel"
    HALF_CLOSED = "half_closed"
    LINGER = "linger"


@dataclass(frozen=True, slots=True)
class Rule:
    """What governs one phase.

    Attributes:
        timeout: Key of `[timeouts]`; None: the phase cannot time out.
        restarted_by: Directions in which bytes start the timeout again; empty: it is absolute, counted from the entry.
        rate: The direction whose least rate (`[limits]` min_in_rate, min_out_rate) applies on top; None: none does.
        status: What HTTP answers before the close; None: nothing, for there is no request to answer.
    """

    timeout: str | None
    restarted_by: frozenset[Direction] = frozenset()
    rate: Direction | None = None
    status: int | None = None


_IN: frozenset[Direction] = frozenset({"in"})
_OUT: frozenset[Direction] = frozenset({"out"})

RULES: Mapping[Phase, Rule] = {
    Phase.IDLE: Rule("idle", _IN),
    Phase.HANDSHAKE: Rule("handshake"),
    Phase.FIRST_BYTE: Rule("first_byte"),
    # Absolute, or a client that drips one byte per timeout holds the connection for ever (slowloris).
    Phase.HEADERS: Rule("headers", status=408),
    Phase.BODY: Rule("body", _IN, rate="in", status=408),
    Phase.IN_FLIGHT: Rule(None),
    # Bytes that the peer accepts are progress: a slow but living download is not idle.
    Phase.WRITE: Rule("write", _OUT, rate="out"),
    # RFC 9112 9.8 lets a server close an idle connection at any time; an answer nobody asked for would only confuse.
    Phase.KEEP_ALIVE: Rule("keep_alive"),
    Phase.TUNNEL: Rule("tunnel", _IN | _OUT),
    Phase.HALF_CLOSED: Rule("half_closed", _OUT),
    Phase.LINGER: Rule("linger"),
}
"""The rule of every phase."""

TOO_SLOW: Mapping[Direction, str] = {"in": "min_in_rate", "out": "min_out_rate"}
"""The reason a reap gives when a least rate was not kept."""

TOO_OLD = "max_age"
"""The reason a connection gives that was closed for its age."""
