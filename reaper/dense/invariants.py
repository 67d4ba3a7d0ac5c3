"""What must always hold in a `DenseReaper`, for tests.

One rule: *each connection will be looked at*: by its lane's pass and the ageing, or with the list in which it is noted.
"""

from __future__ import annotations

from typing import Any

from ..core.lease import OPEN, Key
from ..errors import InvariantViolated
from .lanes import AGED, Lane


def check(core: Any) -> None:
    """Verify every invariant of *core*, a `DenseReaper`; O(capacity).

    Raises:
        InvariantViolated: the first one that does not hold.
    """
    lanes_of, live = core._lanes_of, core._live
    serials = [epoch.serial for epoch in live]
    if serials != list(range(core._epochs - len(live) + 1, core._epochs + 1)) or len(live) > core._numbers:
        raise InvariantViolated(f"epochs {serials} have numbers")
    closed = [epoch.closed for epoch in live]
    if closed != sorted(closed) or closed[-1] != OPEN or core.open_number != 1 + serials[-1] % core._numbers:
        raise InvariantViolated(f"epochs closed at {closed}, the open one has number {core.open_number}")
    if not len(core.epochs) == len(lanes_of) == len(core._generations) or lanes_of[-1]:
        raise InvariantViolated("the arrays differ in length, or -1 is registered")
    armed = 0
    for key, lane in core._lanes.items():
        if key != (lane.timeout, lane.reason, lane.suspended) or core._table[lane.number] is not lane:
            raise InvariantViolated(f"lane {key} is not in the table")
        if lane.members != lanes_of.count(lane.number):
            raise InvariantViolated(f"lane {key} counts {lane.members}, holds {lanes_of.count(lane.number)}")
        if lane.members and not lane.suspended:
            armed += lane.members
            if not serials[0] <= lane.current <= serials[-1]:
                raise InvariantViolated(f"lane {key} is at epoch {lane.current} of {serials}")
    if armed != core._armed or len(lanes_of) - lanes_of.count(0) != core._count:
        raise InvariantViolated(f"{armed} armed; books: {core._armed} of {core._count}")
    aged = core._aged.awaited()
    for uid, number in enumerate(lanes_of):
        if number:
            _check_uid(core, uid, core._table[number], aged)
    if not all(lease.alive for lease in core._hooks):
        raise InvariantViolated("a hook outlived its connection")


def _check_uid(core: Any, uid: int, lane: Lane | None, aged: dict[Key, set[int]]) -> None:
    """*uid* will be looked at: by its lane's pass and the ageing, or with the list in which it is."""
    if lane is None:
        raise InvariantViolated(f"uid {uid} is in no lane")
    if lane.suspended:
        return
    byte, first = core.epochs[uid], core._live[0].serial
    if byte == AGED:
        if uid not in aged.get(lane.key, ()):
            raise InvariantViolated(f"uid {uid} is not in the list in which it should be")
        return
    index = (byte - 1 - first) % core._numbers
    serial = first + index
    if not byte or index >= len(core._live):
        raise InvariantViolated(f"uid {uid} has the number {byte}, which no epoch has")
    if (serial < lane.next and serial not in lane.late) or (serial == lane.current and uid < lane.cursor):
        raise InvariantViolated(f"uid {uid} was passed over in epoch {serial}")
    if serial == first and uid < core._age_cursor:
        raise InvariantViolated(f"uid {uid} was passed over when epoch {serial} was aged")
