"""What a client of a server under test does, and what became of it.

The rule of this module: *a client is a list of instants*. It has no code of its own, so
the same list can be given to a server on trio and to one on asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.ticks import check_instant
from ..errors import InvalidArgument, shown


@dataclass(frozen=True, slots=True)
class Client:
    """A client that connects, sends at the instants that are given, and reads all the
    time.

    Attributes:
        sends: Pairs of an instant and what is sent then, earliest first. Instants are
            seconds since the client connected.
        leaves: The instant at which it closes its connection; None if it never does.
    Raises:
        InvalidArgument: an instant is not finite, or one comes before its predecessor.
    """

    sends: Sequence[tuple[float, bytes]] = ()
    leaves: float | None = None

    def __post_init__(self) -> None:
        before = 0.0
        for instant, _ in self.sends:
            before = _later("sends", instant, before)
        if self.leaves is not None:
            _later("leaves", self.leaves, before)


@dataclass(frozen=True, slots=True)
class Closing:
    """What a client saw.

    Attributes:
        at: When the server closed its connection, seconds since the client connected.
            None if it never did: the client left, or time was over.
        heard: All that the server sent.
    """

    at: float | None
    heard: bytes


def _later(name: str, instant: float, before: float) -> float:
    found = check_instant(name, instant)
    if found < before:
        raise InvalidArgument(f"{name}: {shown(instant)} comes before {before:g}")
    return found
