"""Looking into an `IdleReaper`: why a connection is still here, which have been silent the longest, and whether all
its books agree.

One rule: *nothing is changed here*.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ..errors import InvariantViolated
from .lease import Epoch, Explanation, IdleSlot, Lease


def oldest(slots: Iterable[IdleSlot], postponed: Iterable[IdleSlot], n: int) -> list[Any]:
    """Up to *n* uids of the leases in *slots* and *postponed*, as `IdleReaper.oldest`."""
    found: list[Any] = []
    met: dict[Epoch, list[Any]] = {}  # leases met so far, by the epoch of their last touch
    for slot in postponed:
        for lease in slot:
            met.setdefault(lease._epoch, []).append(lease.uid)
    by_age = sorted(slots, key=lambda slot: slot.epoch.rank)
    for epoch, group in groupby(by_age, key=lambda slot: slot.epoch):
        for slot in group:
            for lease in slot:
                met.setdefault(lease._epoch, []).append(lease.uid)
        # A lease lies in its own epoch's slot or in an older one: of this epoch and older ones all have been met.
        for known in sorted((e for e in met if e.rank <= epoch.rank), key=lambda e: e.rank):
            found += met.pop(known)
        if len(found) >= n:
            break
    else:
        for known in sorted(met, key=lambda e: e.rank):
            found += met[known]
    return found[:n]


def explain(core: Any, uid: Any, lease: Lease) -> Explanation:
    """Why *uid* is still here and until when; *lease* is its own, alive in *core*, an `IdleReaper`. O(1)."""
    epoch, slot = lease._epoch, lease._slot
    timeout, reason = slot.key
    is_open = epoch is core._open
    ends = core.epoch_ends if is_open else epoch.closed
    place = "no timeout" if timeout is None else "ring"
    if lease.suspended:
        place = "suspended"
    elif slot.timer is not None and (where := core._wheel.locate(slot.timer)) is not None:
        place = f"wheel level {where[0]} slot {where[1]}"
    return Explanation(
        uid=uid,
        timeout=timeout,
        reason=reason,
        suspended=lease.suspended,
        active_from=epoch.opened,
        active_until=None if is_open else epoch.closed,
        due=None if lease.suspended or timeout is None else ends + timeout,
        place=place,
    )


def check(core: Any) -> None:
    """Verify every invariant of *core*, an `IdleReaper`; O(n).

    Raises:
        InvariantViolated: the first one that does not hold.
    """
    in_heap = [slot for _, _, slot in core._heap]
    for uid, lease in core._leases.items():
        if (uid is not lease.uid and uid is not lease) or lease._chunk is None:
            raise InvariantViolated(f"uid {uid!r} maps to {lease!r}")
        if lease._slot.epoch.slots.get(lease._slot.key) is not lease._slot:
            raise InvariantViolated(f"{lease!r} lies in a slot that is not in the books of its epoch")
    known = set(core._leases.values())
    armed = in_wheel = 0
    for slot in core._slots:
        slot.check()
        if slot.epoch.slots.get(slot.key) is not slot:
            raise InvariantViolated(f"slot {slot.key} is not in the books of its epoch")
        places = (slot.epoch is core._open) + in_heap.count(slot) + (slot.timer is not None)
        if places != (slot.key[0] is not None or slot.epoch is core._open):
            raise InvariantViolated(
                f"slot {slot.key} waits in {places} places instead of one, or none without a timeout"
            )
        if not places and not slot.live:
            raise InvariantViolated(f"slot {slot.key} is empty, and nothing will drop it")
        armed += slot.live
        in_wheel += slot.timer is not None
        for lease in slot:
            if lease not in known:
                raise InvariantViolated(f"{lease!r} lies in a slot but is not registered")
            if lease._epoch.rank < slot.epoch.rank:
                raise InvariantViolated(f"{lease!r} lies in a slot that is due after it")
    suspended = 0
    for slot in core._never.slots.values():
        slot.check()
        suspended += slot.live
    for slot in core._postponed.slots.values():
        slot.check()
        armed += slot.live
    if armed != core._armed or armed + suspended != len(core._leases):
        raise InvariantViolated(f"{armed} armed, {suspended} suspended; books: {core._armed} of {len(core._leases)}")
    if in_wheel != len(core._wheel):
        raise InvariantViolated(f"{in_wheel} slots wait in the wheel, it counts {len(core._wheel)}")
    if not set(core._hooks) <= known:
        raise InvariantViolated("a hook outlived its lease")
    for due, _, slot in core._heap:
        if due != slot.due or slot not in core._slots:
            raise InvariantViolated(f"slot {slot.key} waits for {due}")
    core._wheel.check()
