"""What connections of one kind share, and where those wait whose epoch's number was taken away from them.

One rule: *an epoch is worked off once for each lane, in the order of its closing*. So a lane needs to remember no more
than how far it has come, and a connection no more than a byte.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush

from ..core.lease import Epoch, Key

AGED = 255
"""The byte of a connection whose epoch has no number any more: `Aged` knows it."""


class Lane:
    """The connections with one timeout and one reason; the suspended ones of these are a lane of their own.

    A lane that waits works off epoch after epoch: `current` is the serial of the next one it has to look at. That goes
    upwards, but for `late`: epochs it was through with when a connection last active in one of them was retimed into
    it. Such a connection is due at once.
    """

    __slots__ = ("cursor", "key", "late", "members", "next", "number", "reason", "suspended", "timeout")

    def __init__(self, number: int, timeout: float, reason: str, suspended: bool) -> None:
        self.key: Key = (timeout, reason)
        self.number = number
        self.timeout = timeout
        self.reason = reason
        self.suspended = suspended
        self.members = 0
        self.next = 0
        self.late: list[int] = []
        self.cursor = 0  # uids below it have been looked at for `current`

    @property
    def current(self) -> int:
        """Serial of the epoch that it has to look at next."""
        return self.late[0] if self.late else self.next

    def enlist(self, serial: int) -> None:
        """Before a connection last active in epoch *serial* comes in: see to it that this epoch is still looked at."""
        if not self.members:
            self.next, self.cursor = serial, 0
            self.late.clear()
            return
        if serial <= self.current:
            self.cursor = 0
        if serial < self.next and serial not in self.late:
            insort(self.late, serial)

    def done(self) -> None:
        """Nothing is left of the current epoch: on to the next."""
        if self.late:
            del self.late[0]
        else:
            self.next += 1
        self.cursor = 0


class AgedSlot:
    """The connections of one kind that fell silent in one epoch, long ago: their uids, in order unless `mixed`.

    A touch does not find its way here, so some of them may have gone; `Aged.members` tells who has not.
    """

    __slots__ = ("cursor", "due", "epoch", "key", "mixed", "serial", "tidy_at", "uids")

    def __init__(self, serial: int, epoch: Epoch, key: Key) -> None:
        self.serial = serial
        self.epoch = epoch
        self.key = key  # not the lane: that goes with its last member, and comes back as another
        self.due = epoch.closed + key[0]
        self.uids = array("I")
        self.cursor = 0  # positions below it have been looked at
        self.mixed = False
        self.tidy_at = 64


class Aged:
    """Who has been silent for so many epochs that the number of its own is needed for a new one.

    Args:
        epochs: The byte of each uid. Only read here.
    Cost: 4 bytes a uid from the first one on, 4 more for each that is in here.
    """

    def __init__(self, epochs: bytearray) -> None:
        self._epochs = epochs
        self._slot_of = array("I")  # uid -> serial of its slot; means something only while its byte is AGED
        self._slots: dict[int, AgedSlot] = {}
        self._by_key: dict[tuple[Epoch, Key], AgedSlot] = {}
        self._heap: list[tuple[float, int]] = []  # (due, serial of the slot)
        self._dropped: list[int] = []
        self._postponed: list[AgedSlot] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        """Forget everything, and the memory that took."""
        if self._slot_of:
            self._slot_of = array("I")
        self._slots.clear()
        self._by_key.clear()
        self._heap.clear()
        self._dropped.clear()
        self._postponed.clear()

    def slot(self, epoch: Epoch, key: Key) -> AgedSlot:
        """Where the connections of *key* that have been silent since *epoch* are noted; a new one if there is none."""
        slot = self._by_key.get((epoch, key))
        if slot is None:
            slot = self._by_key[epoch, key] = self._new_slot(epoch, key)
            heappush(self._heap, (slot.due, slot.serial))
        return slot

    def _new_slot(self, epoch: Epoch, key: Key) -> AgedSlot:
        self._serial = (self._serial + 1) & 0xFFFFFFFF
        slot = self._slots[self._serial] = AgedSlot(self._serial, epoch, key)
        return slot

    def postpone(self, uid: int, epoch: Epoch, key: Key) -> None:
        """Note *uid*, which is due, so that it is looked at again after `resume`. The caller sets its byte."""
        slot = self._new_slot(epoch, key)
        self._postponed.append(slot)
        self.add(uid, slot)

    def resume(self) -> None:
        """Look at those postponed again."""
        for slot in self._postponed:
            target = self.slot(slot.epoch, slot.key)
            for uid in list(self._valid(slot, 0, len(slot.uids))):
                self.add(uid, target)
            del self._slots[slot.serial]
        self._postponed.clear()

    def add(self, uid: int, slot: AgedSlot) -> None:
        """Note *uid* in *slot*; the caller sets its byte. Cost: O(1) amortised."""
        slot_of = self._slot_of
        if uid >= len(slot_of):
            slot_of.frombytes(bytes(4 * (len(self._epochs) - len(slot_of))))
        slot_of[uid] = slot.serial
        uids = slot.uids
        if uids and uid <= uids[-1]:
            slot.mixed = True
            if len(uids) >= slot.tidy_at:  # retiming to and fro must not make it grow without end
                self._tidy(slot)
        slot.uids.append(uid)

    def slot_of(self, uid: int) -> AgedSlot:
        """Where *uid* waits, whose byte is AGED."""
        return self._slots[self._slot_of[uid]]

    def first(self) -> AgedSlot | None:
        """The slot that is due first."""
        return self._slots[self._heap[0][1]] if self._heap else None

    def drop_first(self) -> None:
        """Take the slot that is due first out of the queue; `slot_of` knows it until `sweep`."""
        serial = heappop(self._heap)[1]
        slot = self._slots[serial]
        del self._by_key[slot.epoch, slot.key]
        self._dropped.append(serial)

    def sweep(self) -> None:
        """Forget the dropped slots: nothing is in them any more."""
        for serial in self._dropped:
            del self._slots[serial]
        self._dropped.clear()

    def work_off(self, slot: AgedSlot, room: int, most: int) -> tuple[list[int], int, bool]:
        """Up to *room* of those in *slot* that are still silent, by uid, looking at no more than *most* entries.

        Returns:
            (uids, entries looked at, whether that was all of the slot). The uids stay what they are.
        """
        if slot.mixed:
            self._tidy(slot)
        start = slot.cursor
        end = min(start + min(room, most), len(slot.uids))
        slot.cursor = end
        return list(self._valid(slot, start, end)), end - start, end == len(slot.uids)

    def awaited(self) -> dict[Key, set[int]]:
        """Who will be looked at, by kind. Cost: O(entries)."""
        found: dict[Key, set[int]] = {}
        for slot in self._slots.values():
            found.setdefault(slot.key, set()).update(self._valid(slot, slot.cursor, len(slot.uids)))
        return found

    def members(self) -> Iterator[tuple[Epoch, list[int]]]:
        """(epoch, uids in order) for all in here, by slot, oldest epoch first. Cost: O(entries)."""
        for slot in sorted(self._slots.values(), key=lambda slot: slot.epoch.rank):
            yield slot.epoch, sorted(set(self._valid(slot, 0, len(slot.uids))))

    def _valid(self, slot: AgedSlot, start: int, end: int) -> Iterator[int]:
        epochs, slot_of, serial = self._epochs, self._slot_of, slot.serial
        return (uid for uid in slot.uids[start:end] if epochs[uid] == AGED and slot_of[uid] == serial)

    def _tidy(self, slot: AgedSlot) -> None:
        slot.uids = array("I", sorted(set(self._valid(slot, 0, len(slot.uids)))))
        slot.cursor = 0
        slot.mixed = False
        slot.tidy_at = 2 * len(slot.uids) + 64
