"""What the doctor says of streams: how many, how old, how many whose client
acknowledges nothing.

The rule of this module: *a stream is what the server wrote into while its client said
nothing*. From outside nothing else tells it from an answer that is complete. So one
that wrote nothing between the looks is not counted, and a download that lasts for
longer is.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from .facts import Connection, Examination
from .findings import STUCK, both_of, spelled


class Streams(NamedTuple):
    """The streams of a server. Ages are seconds since their clients have said
    something.
    """

    many: int
    oldest: float
    median: float
    unacknowledged: int | None
    """How many have a client whose kernel has acknowledged nothing; None: the looks are
    too close to each other to tell.
    """

    def record(self) -> dict[str, Any]:
        """The streams as JSON knows them."""
        return {
            "count": self.many,
            "oldest": round(self.oldest, 1) if self.many else None,
            "median": round(self.median, 1) if self.many else None,
            "unacknowledged": self.unacknowledged,
        }

    def __str__(self) -> str:
        said = f"{self.many:,} that wrote while their clients said nothing"
        said += f"; the oldest for {spelled(self.oldest)}, half of them for {spelled(self.median)}"
        if self.unacknowledged is None:
            return f"{said} or longer"
        return f"{said} or longer; {self.unacknowledged:,} with a client that acknowledges nothing"


def streams(seen: Examination) -> Streams:
    """The streams that both looks show."""
    found = [(was, now) for _, was, now in both_of(seen) if _is_stream(was, now)]
    ages = [now.silent for _, now in found]
    stuck = sum(bool(was.queued) and was.acked == now.acked for was, now in found)
    return Streams(
        len(found),
        max(ages, default=0.0),
        median(ages) if ages else 0.0,
        stuck if seen.seconds >= STUCK else None,
    )


def _is_stream(was: Connection, now: Connection) -> bool:
    if now.incoming is False or was.received != now.received or not now.received:
        return False
    return now.acked + now.queued > was.acked + was.queued or bool(
        was.queued and now.queued and was.acked == now.acked
    )
