"""What a `DenseReaper` hands out: a handle that keeps nothing alive, and a snapshot of its counters.

One rule: *a handle is good for one registration*. It knows the uid and which of its registrations it belongs to.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

from ..core.lease import Lease, Statistics
from ..errors import UnknownUid
from .lanes import Lane


class DenseLease(Lease):
    """A handle on one registration of one uid. Made by `DenseReaper`, never directly.

    It is made afresh on demand, and only the caller keeps it: two handles on one registration are
    equal, not identical. A uid's *generation* goes up with each end, so a handle that outlives its connection is dead
    for good, also when the number is in use again (until it has been used 2**32 times more).
    """

    __slots__ = ()  # of Lease's own, _pos holds the generation; the others stay empty

    _core: ClassVar[Any]  # a DenseReaper; Lease says IdleReaper

    @property
    def alive(self) -> bool:
        """Whether the reaper still watches: neither reaped nor released."""
        return self._lane is not None

    @property
    def suspended(self) -> bool:
        """Whether it is alive and cannot be reaped until `resume`."""
        lane = self._lane
        return lane is not None and lane.suspended

    @property
    def timeout(self) -> float | None:
        """Seconds of silence allowed; None when not alive."""
        lane = self._lane
        return None if lane is None else lane.timeout

    @property
    def reason(self) -> str | None:
        """What a reap would give as its reason; None when not alive."""
        lane = self._lane
        return None if lane is None else lane.reason

    @property
    def active_from(self) -> float:
        """As in `Lease`, while it is alive and not suspended. After that: UnknownUid."""
        return self._core.explain(self._living()).active_from  # type: ignore[no-any-return]

    @property
    def active_until(self) -> float | None:
        """As in `Lease`, while it is alive and not suspended. After that: UnknownUid."""
        return self._core.explain(self._living()).active_until  # type: ignore[no-any-return]

    def _living(self) -> int:
        if not self.alive:
            raise UnknownUid(f"{self!r} has ended: its last activity is forgotten")
        return self.uid  # type: ignore[no-any-return]

    @property
    def _lane(self) -> Lane | None:
        lane: Lane | None = self._core._lane_of_lease(self)
        return lane

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and (other.uid, other._pos) == (self.uid, self._pos)

    def __hash__(self) -> int:
        return hash((self.uid, self._pos))


@dataclass(frozen=True, slots=True)
class DenseStatistics(Statistics):
    """As `Statistics`, with these differences.

    `slots` counts the closed epochs that have a number, `slots_in_wheel` the lists of those aged, `moved` how many
    connections went into these lists.
    """

    capacity: int
    """Uids there is room for."""
    lanes: int
    """Distinct (timeout, reason, suspended) in use, of 255."""
    overlong: int
    """How often an epoch was to be closed and stayed open because no number was free: `expire` is called too seldom."""


epochs: bytearray  # never set here: globals of each reaper's own copy of _touch
generations: array[int]
open_number: int


def _touch(self: DenseLease) -> None:
    uid = self.uid
    if generations[uid] == self._pos:  # noqa: F821
        epochs[uid] = open_number  # noqa: F821


def bind(
    core: Any, its_epochs: bytearray, its_generations: array[int], number: int
) -> tuple[type[DenseLease], dict[str, Any]]:
    """The lease class of one reaper, and the namespace in which its `touch` finds the open epoch's number.

    As `reaper.core.lease.bind` does it and for the same reasons.
    """
    namespace: dict[str, Any] = {"epochs": its_epochs, "generations": its_generations, "open_number": number}
    touch = FunctionType(_touch.__code__.replace(co_name="touch"), namespace, "touch")
    touch.__doc__ = Lease.touch.__doc__
    return type("DenseLease", (DenseLease,), {"__slots__": (), "_core": core, "touch": touch}), namespace
