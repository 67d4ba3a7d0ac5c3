"""A picture of an `IdleReaper` for people: who has been silent for how long, where the slots wait, what is due next.

One rule: *nothing is changed, and no step is long*. `count` visits every lease, `STEP` of them per step; `upcoming`
visits those that lie where something is due soon, and most of them have spoken since.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from .lease import OPEN, Epoch, IdleSlot, Lease

STEP = 1000
"""Leases visited per step: about a millisecond."""

LOOKS = 100_000
"""Leases that `upcoming` looks at, about, before it gives up."""

Label = Callable[[Lease], str | None]
"""What a lease counts as; None: not at all."""


def count(
    core: Any, now: float, label: Label, bounds: Sequence[float]
) -> Generator[None, None, dict[tuple[str, float | None], list[int]]]:
    """How many leases of *core* have been silent for how long at *now*, by label and timeout.

    Args:
        bounds: Seconds, rising: a lease is counted under the first of them that exceeds its silence; what has been
            silent for longer than all of them, last.
    Returns:
        By (label, timeout in seconds; None: none, or suspended), one count per bound and one more. Activity is known to
        its epoch: the silence counted is the least that it can be.
    Other calls may come between the steps.
    """
    found: dict[tuple[str, IdleSlot, Epoch], int] = {}
    leases = list(core._leases.values())
    for start in range(0, len(leases), STEP):
        if start:
            yield
        for lease in islice(leases, start, start + STEP):
            chunk = lease._chunk  # not by its properties, which are calls
            if chunk is not None and (name := label(lease)) is not None:
                key = name, chunk.slot, lease._epoch
                found[key] = found.get(key, 0) + 1
    counts: dict[tuple[str, float | None], list[int]] = {}
    for (name, slot, epoch), number in found.items():
        timeout = None if slot.epoch is core._never else slot.key[0]
        row = counts.setdefault((name, timeout), [0] * (len(bounds) + 1))
        row[bisect_right(bounds, now - epoch.closed)] += number
    return counts


def upcoming(core: Any, number: int, label: Label) -> Generator[None, None, list[tuple[float, Lease]]]:
    """Up to *number* leases that *label* counts and that are due first, with the instants; what was touched in the
    epoch that is still open is not among them.

    Other calls may come between the steps. What has spoken or ended meanwhile is not named.
    Cost: O(slots) in the worst case, and about `LOOKS` leases, `STEP` of them per step.
    """
    found: list[tuple[IdleSlot, Lease]] = []
    near = sorted((slot for _, _, slot in core._heap), key=_due)
    looked = 0  # at all, and...
    pause = STEP  # ...how many before the next step
    for slot in chain(near, _far(core, number)):
        for chunk in list(slot.chunks):
            for lease in chunk.items:
                if lease is not None and _waits(lease, slot) and label(lease) is not None:
                    found.append((slot, lease))
                    if len(found) == number:
                        return _waiting(found)
            looked += len(chunk.items)
            if looked >= LOOKS:
                return _waiting(found)
            if looked >= pause:
                pause = looked + STEP
                yield
    return _waiting(found)


def _waits(lease: Lease, slot: IdleSlot) -> bool:
    """Whether *lease* has not spoken since it was put into *slot*, nor ended, nor been changed."""
    return lease._epoch is slot.epoch and lease._chunk is not None and lease._chunk.slot is slot


def _waiting(found: list[tuple[IdleSlot, Lease]]) -> list[tuple[float, Lease]]:
    return [(slot.due, lease) for slot, lease in found if _waits(lease, slot)]


def _far(core: Any, number: int) -> Iterable[IdleSlot]:
    if len(core._wheel):
        yield from heapq.nsmallest(number, (slot for slot in core._slots if slot.timer is not None), key=_due)


def _due(slot: IdleSlot) -> float:
    return slot.due


def places(core: Any, now: float) -> tuple[dict[int, int], dict[int, int]]:
    """Where the armed leases lie: in the ring by whole ticks until their slot comes due, and in the wheel by level.

    A lease that was touched lies in its old slot until that comes due. Those of the open epoch are in neither.
    Cost: O(slots).
    """
    ring: Counter[int] = Counter()
    for due, _, slot in core._heap:
        ring[max(int((due - now) // core.tick), 0)] += slot.live
    wheel: Counter[int] = Counter()
    if len(core._wheel):
        for slot in core._slots:
            if slot.timer is not None and (where := core._wheel.locate(slot.timer)) is not None:
                wheel[where[0]] += slot.live
    return dict(ring), dict(wheel)


def silence(lease: Lease, now: float) -> float:
    """For how long *lease* has been silent at least, seconds."""
    return 0.0 if lease._epoch.closed == OPEN else max(now - lease._epoch.closed, 0.0)
