"""Reckons what is shown from a status document: sums over the workers, rates, bounds of
lateness.

The rule of this module: *what is not known is None, never zero*. It is pure: documents
in, numbers out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import printable

PHASE, ADDRESS = "phase", "address"
"""What connections are counted by."""

IN_FLIGHT = "in_flight"
"""The phase of a connection that cannot expire now, because a request is being
answered.
"""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The connections of one phase with one timeout."""

    phase: str
    timeout: float | None
    """Seconds; None: no timeout, or none is known."""
    connections: int
    idle: tuple[int, ...]
    """Counts by silence: one per bound of `Picture.idle_bounds`, and one for longer
    silences.
    """


@dataclass(frozen=True, slots=True)
class Picture:
    """One look at a server, with all workers together.

    Lengths of time are seconds; None if unknown from here.
    """

    server: str
    at: float
    """When it was taken, on the clock of the machine that was asked."""
    workers: tuple[int, ...]
    pids: tuple[int, ...]
    missing: tuple[int, ...]
    """Workers that did not answer."""
    tick: float | None
    connections: int
    parked: int | None
    idle_bounds: tuple[float, ...]
    phases: tuple[PhaseRow, ...]
    due_next: tuple[Mapping[str, Any], ...]
    ring: Mapping[int, int] | None
    """How many connections and limits come due in how many whole ticks."""
    wheel: Mapping[int, int]
    """How many connections and limits lie beyond the ring, by level of the wheel."""
    wheel_size: int
    closed: Mapping[str, int]
    counts: Mapping[str, int]
    """How many were averted, moved, and late so far."""
    lateness: tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...]] | None
    """The bounds of the buckets, the counts by the least that each lateness can have
    been, and the counts by the most.
    """
    loop: Mapping[str, float] | None
    pressures: tuple[Mapping[str, Any], ...] = field(default=())
    dropped: int | None = None
    """Journal rows lost; None: there is no journal."""
    by: str = PHASE
    """What `phases` are: phases, or addresses of clients."""

    @property
    def closes(self) -> int:
        """Connections closed so far."""
        return sum(self.closed.values())


def picture_of(document: Mapping[str, Any]) -> Picture:
    """The picture in a status *document*.

    Peers chose some of its strings, so characters that do not print are escaped.

    Raises:
        KeyError, TypeError, ValueError: *document* is no status document.
    """
    document = _printable(document)
    workers: Sequence[Mapping[str, Any]] = document["workers"]
    if not workers:
        raise ValueError("no worker has answered")
    phases: dict[tuple[str, float | None], list[int]] = {}
    ring: Counter[int] = Counter()
    wheel: Counter[int] = Counter()
    closed: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for said in workers:
        for row in said["phases"]:
            # In flight a lease is suspended, and its timeout is not in force.
            timeout = None if row["phase"] == IN_FLIGHT else row["timeout_s"]
            sums = phases.setdefault((row["phase"], timeout), [0] * len(row["idle"]))
            for index, number in enumerate(row["idle"]):
                sums[index] += number
        ring.update(dict(said.get("ring") or ()))
        wheel.update(dict(said.get("wheel") or ()))
        closed.update(said["closed"])
        counts.update({name: said[name] for name in ("averted", "moved", "late") if name in said})
    first = workers[0]
    journals = [said["journal"] for said in workers if said.get("journal")]
    coming = sorted((row for said in workers for row in said["due_next"]), key=_urgency)
    known = first.get("ring") is not None
    return Picture(
        server=document["server"],
        at=max(said["at"] for said in workers),
        workers=tuple(said["worker"] for said in workers),
        pids=tuple(said["pid"] for said in workers),
        missing=tuple(document.get("missing", ())),
        tick=first.get("tick_s"),
        connections=sum(said["connections"] for said in workers),
        parked=sum(said["parked"] for said in workers) if known else None,
        idle_bounds=tuple(first["idle_bounds_s"]),
        phases=tuple(
            PhaseRow(phase, timeout, sum(idle), tuple(idle))
            for (phase, timeout), idle in sorted(phases.items(), key=lambda item: -sum(item[1]))
        ),
        due_next=tuple(coming),
        ring=ring if known else None,
        wheel=wheel,
        wheel_size=first.get("wheel_size", 0),
        closed=closed,
        counts=counts,
        lateness=_lateness(workers) if known else None,
        loop=_loop(workers) if known else None,
        pressures=tuple(
            {**said["pressure"], "worker": said["worker"]}
            for said in workers
            if said.get("pressure")
        ),
        dropped=sum(journal["dropped"] for journal in journals) if journals else None,
        by=document.get("by", PHASE),
    )


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list) else value


def _urgency(row: Mapping[str, Any]) -> tuple[float, float]:
    due = row["due_in_s"]
    return (float("inf") if due is None else due, -row["idle_s"])


def _lateness(
    workers: Sequence[Mapping[str, Any]],
) -> tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...]]:
    bounds = workers[0]["lateness"]["bounds_s"]
    sums = [
        [sum(column) for column in zip(*(said["lateness"][which] for said in workers), strict=True)]
        for which in ("lower", "upper")
    ]
    return tuple(bounds), tuple(sums[0]), tuple(sums[1])


def _loop(workers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    loops = [said["loop"] for said in workers]
    found = {name: max(loop[name] for loop in loops) for name in ("lag_s", "max_lag_s")}
    return found | {
        name: sum(loop[name] for loop in loops) for name in ("stalls", "stalled_s", "cpu_s")
    }


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The upper bound of the bucket with the *share*-quantile.

    Args:
        bounds: The upper bounds of all buckets but the last, ascending.
        counts: How many lie in each bucket.
        share: 0..1.
    Returns:
        Infinity for the last bucket; None: nothing is counted.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    so_far = 0
    for bound, number in zip((*bounds, float("inf")), counts, strict=True):
        so_far += number
        if so_far >= wanted:
            return bound
    return float("inf")


def rates(before: Picture | None, now: Picture) -> dict[str, float]:
    """Closes per second since *before*, by reason, and the share of a core that reaper
    used, `cpu`.

    Empty: there is no picture before, or a worker was replaced in between.
    """
    if (
        before is None
        or now.at <= before.at
        or now.closes < before.closes
        or now.pids != before.pids
    ):
        return {}
    span = now.at - before.at
    found = {
        reason: (number - before.closed.get(reason, 0)) / span
        for reason, number in now.closed.items()
    }
    if now.loop is not None and before.loop is not None:
        found["cpu"] = (now.loop["cpu_s"] - before.loop["cpu_s"]) / span
    return found
