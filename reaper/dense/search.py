"""When a lane's epoch is due, and who of it has been silent since: `bytearray.find` over one byte per connection.

One rule: *nothing is kept in order*. An epoch that is due is looked for; a connection touched since bears another
number, and is passed over at tens of gigabytes per second. Numbers are few: the oldest are won back by ageing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from typing import Any

from ..core.law import MOVES_PER_CALL, Due, Law
from ..core.lease import OPEN, Epoch, Lease
from .lanes import AGED, Aged, AgedSlot, Lane
from .lease import DenseLease

BYTES_A_MOVE = 8192
"""Bytes that `find` passes over in the time of one step in Python, roughly; so a long pass counts as work."""


class Search(Law):
    """The law for connections that are bytes in an array. Who they are is the subclass's affair."""

    _numbers = 254  # that an epoch may have; 0 means none, 255 AGED
    _age_from = 224  # epochs that may have a number before the oldest is made to give it back

    epochs: bytearray
    open_number: int
    _lanes_of: bytearray
    _lanes: dict[tuple[float, str, bool], Lane]
    _table: list[Lane | None]
    _live: list[Epoch]
    _aged: Aged
    _age_cursor: int
    _work: int
    _overlong: int
    _namespace: dict[str, Any]

    @abstractmethod
    def _handles(self, uids: Iterable[int]) -> list[DenseLease]:
        """A handle on each of *uids*."""

    @abstractmethod
    def _lane_of_lease(self, lease: Lease) -> Lane | None:
        """The lane of the connection that *lease* stands for; None when that has ended."""

    @abstractmethod
    def _epoch_at(self, since: float | Lease) -> Epoch:
        """The epoch of an activity."""

    @abstractmethod
    def _lay(self, uid: int, lane: Lane, epoch: Epoch) -> None:
        """See to it that *uid*, which is or will be in *lane*, is found when *epoch* is due."""

    @abstractmethod
    def _end(self, lane: Lane, uids: Sequence[int]) -> None:
        """Take *uids*, one or more and all in *lane*, out of the books."""

    # ---- time ----------------------------------------------------------------------------------------------------

    def _close(self, now: float) -> bool:
        # It stays open, which can make a reap later and never earlier, while all numbers are in use. That takes 30
        # epochs closed with no `expire` in between that has time to look.
        if self._armed and len(self._live) >= self._numbers:
            self._overlong += 1
            return False
        return super()._close(now)

    def _settle(self, ended: Epoch) -> None:
        live = self._live
        if not self._armed:  # no number is in use
            live.clear()
            self._aged.clear()
            self._age_cursor = 0
        self._aged.resume()
        live.append(self._open)
        self.open_number = self._namespace["open_number"] = 1 + self._epochs % self._numbers

    def _epoch_of(self, uid: int) -> Epoch:
        """The epoch of the last activity of *uid*, which is registered and not suspended."""
        byte = self.epochs[uid]
        if byte == AGED:
            return self._aged.slot_of(uid).epoch
        return self._live[(byte - 1 - self._live[0].serial) % self._numbers]

    def _next_due(self) -> float:
        slot = self._aged.first()
        # When numbers have to be won back there is work now.
        soon = self._open.opened if len(self._live) > self._age_from else OPEN
        return min(soon, OPEN if slot is None else slot.due, *map(self._due_of, self._waiting()))

    def _lower(self, now: float) -> None:
        """Nothing waits far away."""

    def _due_of(self, lane: Lane) -> float:
        """When the epoch that *lane* has to look at next is due; infinite while it is open."""
        return self._live[lane.current - self._live[0].serial].closed + lane.timeout

    def _waiting(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.members and not lane.suspended]

    # ---- what is due ---------------------------------------------------------------------------------------------

    def _take_due(self, now: float, limit: int | None) -> list[Due]:
        """As in `Law`; those of one epoch and lane by uid. Only how far each lane has come is changed."""
        due: list[Due] = []
        work = 0
        room = most = len(self.epochs)  # all there are
        if limit is not None:
            room, most = limit, MOVES_PER_CALL
        queue = [(self._due_of(lane), lane.number, lane) for lane in self._waiting()]
        heapify(queue)
        while room > 0 and work < most:
            slot = self._aged.first()
            if slot is not None and (not queue or slot.due <= queue[0][0]):
                if slot.due > now:
                    break
                key, epoch = slot.key, slot.epoch
                uids, steps, finished = self._aged.work_off(slot, room, most - work)
                if finished:
                    self._aged.drop_first()
            else:
                if not queue or queue[0][0] > now:
                    break
                lane = queue[0][2]
                key, epoch = lane.key, self._live[lane.current - self._live[0].serial]
                uids, steps = self._pass(lane, self._byte_of(epoch), room, most - work)
                heapreplace(queue, (self._due_of(lane), lane.number, lane))
            if uids:
                due.append(Due(epoch, key, self._handles(uids)))
                room -= len(uids)
            if limit is not None:
                work += steps
        self._work = -1 if limit is None else max(MOVES_PER_CALL - work, 1)
        if not due:
            self._win_back()
        return due

    def _byte_of(self, epoch: Epoch) -> int:
        """What the bytes of those last active in *epoch* hold, unless they have aged."""
        return 1 + epoch.serial % self._numbers

    def _pass(self, lane: Lane, byte: int, room: int, most: int) -> tuple[list[int], int]:
        """Up to *room* uids that are in *lane* and have *byte*, in order, and the work that took, stopping at *most*.

        Two arrays are searched at once: from a hit in one that is none in the other it leaps to the other's next.
        """
        number, lanes_of = lane.number, self._lanes_of
        find, find_lane = self.epochs.find, lanes_of.find
        found: list[int] = []
        steps = 1
        start = at = lane.cursor
        while len(found) < room and steps < most:
            at = find(byte, at)
            if at >= 0 and lanes_of[at] == number:
                found.append(at)
                at += 1
                continue
            if at >= 0:
                at = find_lane(number, at + 1)
                steps += 1
            if at < 0:
                lane.done()
                return found, steps + (len(lanes_of) - start) // BYTES_A_MOVE
        lane.cursor = at
        return found, steps + (at - start) // BYTES_A_MOVE

    def _silent_of(self, group: Due) -> list[DenseLease]:
        return [
            lease
            for lease in group.leases
            if (lane := self._lane_of_lease(lease)) is not None
            and not lane.suspended
            and lane.key == group.key
            and self._epoch_of(lease.uid) is group.epoch
        ]

    def _put_back(self, group: Due) -> None:
        for lease in group.leases:
            if self.epochs[lease.uid] == AGED:
                self._aged.add(lease.uid, self._aged.slot(group.epoch, group.key))
            else:
                self._lanes[(*group.key, False)].enlist(group.epoch.serial)

    def _revive(self, lease: DenseLease, group: Due, since: float | None, now: float) -> bool:
        uid: int = lease.uid
        if since is None:
            self.epochs[uid] = AGED
            self._aged.postpone(uid, group.epoch, group.key)
            return True
        epoch = self._epoch_at(since)
        if epoch.closed + group.key[0] <= now:
            return False
        self._lay(uid, self._lanes[(*group.key, False)], epoch)
        return True

    def _end_all(self, due: list[Due]) -> None:
        for group in due:
            if group.leases:
                self._end(self._lanes[(*group.key, False)], [lease.uid for lease in group.leases])
        self._win_back()

    def _win_back(self) -> None:
        """Free the numbers that are in use no more, or should be."""
        self._aged.sweep()
        self._free_numbers()
        self._age(None if self._work < 0 else self._work)

    def _free_numbers(self) -> None:
        """Let go of the epochs that every lane has worked off."""
        live = self._live
        through = min((lane.current for lane in self._waiting()), default=self._epochs) - live[0].serial
        if through:
            del live[:through]
            self._age_cursor = 0

    def _age(self, most: int | None) -> None:
        """Win numbers back from the oldest epochs, if that is necessary, with about *most* steps of work."""
        live, epochs = self._live, self.epochs
        while len(live) > self._age_from:
            epoch = live[0]
            byte = self._byte_of(epoch)
            at = self._age_cursor
            slots: dict[int, AgedSlot] = {}
            if most is not None:
                most -= (len(epochs) - at) // BYTES_A_MOVE
            while (at := epochs.find(byte, at)) >= 0:
                lane = self._table[self._lanes_of[at]]
                if lane is not None and not lane.suspended:
                    slot = slots.get(lane.number)
                    if slot is None:
                        slot = slots[lane.number] = self._aged.slot(epoch, lane.key)
                    self._aged.add(at, slot)
                    epochs[at] = AGED
                    self._counts.moved += 1
                at += 1
                if most is not None:
                    most -= 2  # it takes about as long as two moves of IdleReaper
                    if most <= 0:
                        self._age_cursor = at
                        return
            for waiting in self._waiting():
                if waiting.current == epoch.serial:
                    waiting.done()
            del live[0]
            self._age_cursor = 0
