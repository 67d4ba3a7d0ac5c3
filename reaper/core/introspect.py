"""Looking into an `IdleReaper` for people and tests. *Nothing is changed, and no step
is long*: where many leases are visited it is done in steps of `STEP`, between which
anything may happen.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvariantViolated
from .lease import OPEN, Epoch, Explanation, IdleSlot, Lease

if TYPE_CHECKING:
    from .reaper import IdleReaper

STEP = 1000
"""Leases visited per step: about a millisecond."""

Label = Callable[[Lease], str | None]
"""What a lease counts as; None: not at all."""


def oldest(slots: Iterable[IdleSlot], postponed: Iterable[IdleSlot], n: int) -> list[Hashable]:
    """`IdleReaper.oldest`, of the leases in *slots* and *postponed*."""
    found: list[Hashable] = []
    # Uids of the leases met so far, by the rank of the epoch of their last touch.
    met: dict[tuple[float, int], list[Hashable]] = {}
    by_age = sorted(slots, key=lambda slot: slot.epoch.rank)
    groups = groupby(by_age, key=lambda slot: slot.epoch.rank)
    for rank, group in chain([((-OPEN, 0), postponed)], groups, [((OPEN, sys.maxsize), ())]):
        for lease in chain.from_iterable(group):
            met.setdefault(lease._epoch.rank, []).append(lease.uid)
        # A lease lies in its own epoch's slot or in an older one: of this epoch and
        # older ones all have been met.
        for known in sorted(each for each in met if each <= rank):
            found += met.pop(known)
        if len(found) >= n:
            break
    return found[:n]


def explain(core: IdleReaper, uid: Hashable, lease: Lease) -> Explanation:
    """`IdleReaper.explain`; *lease* is that of *uid*, alive in *core*."""
    epoch, slot = lease._epoch, lease._slot
    timeout, reason = slot.key
    is_open = epoch is core._open
    ends = core.epoch_ends if is_open else epoch.closed
    place = "no timeout" if timeout is None else "near"
    if lease.suspended:
        place = "suspended"
    elif slot.timer is not None and (where := core._agenda.far.locate(slot.timer)) is not None:
        place = f"wheel level {where[0]} slot {where[1]}"
    return Explanation(
        uid=uid,
        timeout=lease.timeout,
        reason=reason,
        suspended=lease.suspended,
        active_from=epoch.opened,
        active_until=None if is_open else epoch.closed,
        due=None if lease.suspended or timeout is None else ends + timeout,
        place=place,
    )


class Census(NamedTuple):
    """What `census` found."""

    counts: dict[tuple[str, float | None], list[int]]
    """By (label, timeout in seconds; None: none, or suspended), one count per bound of
    silence and one more.
    """
    due_next: list[tuple[float, Lease]]
    """Those that are due first, with the instants."""


def census(
    core: IdleReaper, now: float, label: Label, bounds: Sequence[float], named: int
) -> Generator[None, None, Census]:
    """How many leases of *core* have been silent for how long at *now*, and which are
    due next.

    Args:
        bounds: Seconds, rising: a lease is counted under the first of them that exceeds
            its silence; what has been silent for longer than all of them, last.
            Activity is known to its epoch: the silence counted is the least that it can
            be.
        named: How many at most are named as due next. Not what is suspended, has no
            timeout, or was touched in the epoch that is still open, nor what has spoken
            or ended before the last step.
    Other calls may come between the steps.
    """
    alike: dict[tuple[str, IdleSlot, Epoch], list[Lease]] = {}
    leases = list(core._leases.values())
    for start in range(0, len(leases), STEP):
        if start:
            yield
        for lease in islice(leases, start, start + STEP):
            chunk = lease._chunk  # not by its properties, which are calls
            if chunk is not None and (name := label(lease)) is not None:
                alike.setdefault((name, chunk.slot, lease._epoch), []).append(lease)
    counts: dict[tuple[str, float | None], list[int]] = {}
    due: list[tuple[float, Epoch, float, list[Lease]]] = []
    for (name, slot, epoch), same in alike.items():
        timeout = None if slot.epoch is core._never else slot.key[0]
        row = counts.setdefault((name, timeout), [0] * (len(bounds) + 1))
        row[bisect_right(bounds, now - epoch.closed)] += len(same)
        if timeout is not None and epoch.closed != OPEN:
            due.append((epoch.closed + timeout, epoch, timeout, same))
    due.sort(key=itemgetter(0))
    silent = (
        (instant, lease)
        for instant, epoch, timeout, same in due
        for lease in same
        if lease._epoch is epoch
        and lease.alive
        and lease._slot.key[0] == timeout
        and not lease.suspended
    )
    return Census(counts, list(islice(silent, named)))


def places(core: IdleReaper, now: float) -> tuple[dict[int, int], dict[int, int]]:
    """Where the armed leases lie: near, by whole ticks until their slot comes due; and
    far, by level of the wheel.

    A lease that was touched lies in its old slot until that comes due. Those of the
    open epoch are in neither. Cost: O(slots).
    """
    near: Counter[int] = Counter()
    for due, _, slot in core._agenda.near:
        near[max(int((due - now) // core.tick), 0)] += len(slot)
    far: Counter[int] = Counter()
    if len(core._agenda.far):
        for slot in core._agenda.slots:
            if (
                slot.timer is not None
                and (where := core._agenda.far.locate(slot.timer)) is not None
            ):
                far[where[0]] += len(slot)
    return dict(near), dict(far)


def silence(lease: Lease, now: float) -> float:
    """For how long *lease* has been silent at least, seconds."""
    return 0.0 if lease._epoch.closed == OPEN else max(now - lease._epoch.closed, 0.0)


def check(core: IdleReaper) -> None:
    """`IdleReaper.check`."""
    # Where a slot can wait that is not in the wheel; not once its last lease has left
    # it early.
    waiting = Counter(slot for _, _, slot in core._agenda.near)
    waiting.update(slot for slot in core._agenda.unfiled if slot.before is not None)
    for uid, lease in core._leases.items():
        if (uid is not lease.uid and uid is not lease) or lease._chunk is None:
            raise InvariantViolated(f"uid {uid!r} maps to {lease!r}")
        if not lease._slot.in_books:
            raise InvariantViolated(
                f"{lease!r} lies in a slot that is not in the books of its epoch"
            )
    known = set(core._leases.values())
    armed = in_wheel = 0
    for slot in core._agenda.slots:
        slot.check()
        if not slot.in_books:
            raise InvariantViolated(f"slot {slot.key} is not in the books of its epoch")
        places = waiting[slot] + (slot.timer is not None)
        if places != (slot.key[0] is not None or slot in core._agenda.unfiled):
            raise InvariantViolated(
                f"slot {slot.key} waits in {places} places instead of one, "
                "or none without a timeout"
            )
        if not places and not slot.chunks:
            raise InvariantViolated(f"slot {slot.key} is empty, and nothing will drop it")
        armed += len(slot)
        in_wheel += slot.timer is not None
        for lease in slot:
            if lease not in known:
                raise InvariantViolated(f"{lease!r} lies in a slot but is not registered")
            asked, waits = lease.timeout, slot.key[0]
            if (asked is None) != (waits is None) or (
                asked is not None and waits is not None and not 0 <= waits - asked < core.tick / 4
            ):
                raise InvariantViolated(f"{lease!r} lies in a slot that waits for {waits} s")
            if lease._epoch.rank < slot.epoch.rank:
                raise InvariantViolated(f"{lease!r} lies in a slot that is due after it")
    suspended = 0
    for slot in core._never.row:
        slot.check()
        suspended += len(slot)
    for slot in core._agenda.unfiled:
        if slot.epoch.serial >= 0:
            continue
        slot.check()
        armed += len(slot)
    if suspended != core._suspended or armed + suspended != len(core._leases):
        raise InvariantViolated(
            f"{armed} armed, {suspended} suspended; "
            f"books: {core._suspended} suspended of {len(core._leases)}"
        )
    if core._last is not None and (
        core._last.epoch is not core._open or core._last.before is None or not armed
    ):
        raise InvariantViolated("what the next lease is expected to be like has ended")
    if in_wheel != len(core._agenda.far):
        raise InvariantViolated(
            f"{in_wheel} slots wait in the wheel, it counts {len(core._agenda.far)}"
        )
    if not set(core._hooks) <= known:
        raise InvariantViolated("a hook outlived its lease")
    for due, _, slot in core._agenda.near:
        if due != slot.due or slot.before is None:
            raise InvariantViolated(f"slot {slot.key} waits for {due}")
    core._agenda.far.check()
