"""IdleReaper: the law (law.py) for any uids and any number of timeouts, with a handle to touch by.

One rule: *whole slots wait, not connections*. A slot holds the leases of one (epoch, timeout, reason), so one instant
is due for all of them. Slots due within the ring's span lie in a heap by due instant; later ones in a hierarchical
timing wheel, from which they drop into the ring. When a slot is due, the leases whose epoch is still the slot's have
been silent. Those whose epoch has moved on are moved to that epoch's slot: at most once per timeout, however often they
were touched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from ..errors import DuplicateUid, UnknownUid, shown
from .introspect import check, explain, oldest
from .law import MOVES_PER_CALL, Due, ErrorHook, Law, Spare
from .lease import OPEN, Changed, Epoch, Explanation, Hook, IdleSlot, Key, Lease, Statistics, bind
from .slots import remove
from .sweep import sweep
from .ticks import check_count, check_now, check_timeout, seconds_to_tick
from .wheel import TimingWheel


class IdleReaper(Law):
    """Watches connections and names those that have been silent for their timeout.

    All times are float seconds on one monotonic clock of the caller's. Not thread-safe: one event loop, one core.

    Args:
        tick: Precision, seconds, > 0: how late a reap may be.
        epochs_per_tick: Epochs per tick, 1 to 1,000,000: with 2, half a tick stays in hand for a loop that wakes late.
        on_error: Called with (error, expiry) when a hook raises. None: see `expire`.
        wheel_size: Ticks in the ring's span and slots per wheel level, >= 2. What is due later waits in the wheel.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self, tick: float = 1.0, wheel_size: int = 64, *, epochs_per_tick: int = 1, on_error: ErrorHook | None = None
    ) -> None:
        super().__init__(tick, epochs_per_tick, on_error)
        self.wheel_size: int = check_count("wheel_size", wheel_size, 2)
        self._leases: dict[Any, Lease] = {}
        self._never = Epoch(OPEN, -1)  # the epoch that never closes: suspended leases lie in its slots
        self._postponed = Epoch(OPEN, -1)  # so do, until the open epoch is closed, those that the final check spared
        self._checked: set[IdleSlot] = set()  # slots of those that the final check is looking at
        self._slots: dict[IdleSlot, None] = {}  # every slot but those, in order of creation
        self._heap: list[tuple[float, int, IdleSlot]] = []  # (due, order of scheduling, slot)
        self._order = count()
        self._wheel: TimingWheel[IdleSlot] = TimingWheel(tick=1, wheel_size=wheel_size)  # counts ticks since _origin
        self._origin = 0.0  # the first instant named
        self._namespace: dict[str, Any] = {"open_epoch": self._open}
        self._lease_base = type("Lease", (Lease,), {"__slots__": (), "_core": self})
        self._lease_type = bind(self._lease_base, self._namespace)
        self._edge: float | None = None  # seconds before the open epoch: silences that began there are reported

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return f"<IdleReaper tick={self.tick:g} s, {len(self)} registered>"

    def __contains__(self, uid: Hashable) -> bool:
        return uid in self._leases

    # ---- the life of a lease -------------------------------------------------------------------------------------

    def register(
        self,
        uid: Hashable,
        timeout: float | None,
        now: float,
        on: Hook | None = None,
        *,
        reason: str = "idle",
        since: float | Lease | None = None,
    ) -> Lease:
        """Watch *uid* from *now* on; registering counts as activity.

        Args:
            uid: Any hashable; the key for `touch(uid)` and `explain(uid)`.
            timeout: Seconds of silence allowed, > 0; None: no timeout, it is never due.
            now: Seconds; must not be less than any instant named before.
            on: Called with the `Expiry` when it is reaped.
            reason: A short stable name that the `Expiry` carries.
            since: The last activity, where that is not *now*: an instant not after it, or a lease of this core, ended
                or not, whose last activity is taken over. An instant is rounded up by less than an epoch.
        Returns:
            The lease: touch it, release it when the connection ends by itself.
        Raises:
            InvalidArgument: timeout, now or since is NaN, infinite, no number, or timeout <= 0, or since is after now
                or a lease of another core. State unchanged.
            ClockWentBackwards: now precedes an instant named before. State unchanged.
            DuplicateUid: uid is registered already. State unchanged.
        Cost: O(1). Every distinct (timeout, reason) adds one slot per epoch: share timeouts; draw jitter in ticks.
        """
        if timeout is not None:
            timeout = check_timeout("timeout", timeout)
        now = check_now(now, self._latest)
        if since is not None:
            since = self._check_since(since, now)
        if uid in self._leases:
            raise DuplicateUid(f"uid {shown(uid)} is registered already; release its lease first")
        self._wake_up(now)
        lease: Lease = self._lease_type()
        lease.uid = uid
        self._leases[uid] = lease
        if on is not None:
            self._hooks[lease] = on
        self._arm(lease, self._open if since is None else self._epoch_at(since), (timeout, reason))
        return lease

    def _epoch_at(self, since: float | Lease) -> Epoch:
        if isinstance(since, Lease):
            return since._epoch
        opened = self._open.opened
        return self._open if since >= opened else self._make_up(since, opened)

    def report_silences(
        self, beyond: float, report: Callable[[Lease, float, float], object], changed: Changed | None = None
    ) -> None:
        """Make the touch of every lease registered from now on compare, and report the silences that it ends.

        Such a lease has one more attribute, `log`, which is the caller's and not set at first.

        Args:
            beyond: Seconds, > 0. A touch knows its epoch only: a silence is reported for certain when it was longer
                than this by an epoch, and never when it was shorter by an epoch.
            report: Called with (lease, since, until) before the touch counts: the instants at which the epochs of the
                last activity and of this one were opened. What it raises comes out of the touch.
            changed: Called with a lease after its timeout was changed, or it was suspended or resumed. None: not.
        Raises:
            InvalidArgument: beyond is no duration. State unchanged.
        Cost: a comparison per touch.
        """
        # A silence begins within its epoch, and is compared by when that was closed: an epoch less.
        self._edge = check_timeout("beyond", beyond) - self._epoch_length

        def silence_ended(lease: Lease, found: Epoch) -> None:
            report(lease, lease._epoch.opened, found.opened)

        self._namespace["silence_ended"] = silence_ended
        self._namespace["edge"] = self._open.opened - self._edge
        self._lease_type = bind(self._lease_base, self._namespace, reports=True, changed=changed)
        self.touch = self._touch_by_lease  # type: ignore[method-assign]

    def touch(self, uid: Hashable) -> bool:
        """Note activity of *uid*; False if it is not registered. Cost: a dict look-up; `lease.touch()` is cheaper."""
        try:
            self._leases[uid]._epoch = self._open
        except KeyError:
            return False
        return True

    def _touch_by_lease(self, uid: Hashable) -> bool:
        lease = self._leases.get(uid)
        if lease is None:
            return False
        lease.touch()
        return True

    def discard(self, uid: Hashable) -> bool:
        """`release()` the lease of *uid*; False if it is not registered. O(1)."""
        lease = self._leases.get(uid)
        return lease is not None and self._release(lease)

    def _suspend(self, lease: Lease) -> bool:
        if lease._chunk is None or lease.suspended:
            return False
        self._set_aside(lease, self._leave(lease), self._never)
        return True

    def _resume(self, lease: Lease, now: float) -> bool:
        now = check_now(now, self._latest)
        if not lease.suspended:
            return False
        key = self._leave(lease)
        self._wake_up(now)
        self._arm(lease, self._open, key)
        return True

    def _retime(self, lease: Lease, timeout: float | None, now: float, reason: str | None) -> bool:
        if timeout is not None:
            timeout = check_timeout("timeout", timeout)
        now = check_now(now, self._latest)
        if lease._chunk is None:
            return False
        self._latest = now
        suspended = lease.suspended
        old = self._leave(lease)
        key = (timeout, old[1] if reason is None else reason)
        if suspended:
            self._set_aside(lease, key, self._never)
        else:
            self._arm(lease, lease._epoch, key)
        return True

    def _release(self, lease: Lease) -> bool:
        if lease._chunk is None:
            return False
        self._leave(lease)
        if not self._forget(lease):
            self._forget_strays()
        if self._hooks:
            self._hooks.pop(lease, None)
        self._counts.released += 1
        return True

    def _arm(self, lease: Lease, epoch: Epoch, key: Key) -> None:
        lease._epoch = epoch
        slot = epoch.slots.get(key)
        if slot is None:
            slot = self._new_slot(epoch, key)
        slot.add(lease)
        self._armed += 1

    def _set_aside(self, lease: Lease, key: Key, where: Epoch) -> None:
        """Put *lease* into a slot of *where*, one of the two epochs that never close."""
        slot = where.slots.get(key)
        if slot is None:
            slot = where.slots[key] = IdleSlot(where, key)
        slot.add(lease)

    def _leave(self, lease: Lease) -> Key:
        """Take *lease* out of its slot, and the slot out of the books if that emptied it and it lay far away."""
        slot: IdleSlot = lease._chunk.slot
        remove(lease)
        if slot.epoch is self._never:
            if not slot.live:
                del self._never.slots[slot.key]
        else:
            self._armed -= 1
            if not slot.live and slot.timer is not None:
                # In the ring an empty slot may wait for its turn: that is soon. In the wheel it could be a month.
                slot.timer.cancel()
                slot.timer = None
                self._drop(slot)
            elif not slot.live and slot.key[0] is None and slot.epoch is not self._open:
                self._drop(slot)  # nothing else would: it waits nowhere
        return slot.key

    # ---- where slots wait ----------------------------------------------------------------------------------------

    def _settle(self, ended: Epoch) -> None:
        now = ended.closed
        self._namespace["open_epoch"] = self._open
        if self._edge is not None:
            self._namespace["edge"] = now - self._edge
        if self._epochs == 1:
            self._origin = now
        self._lower(now)
        for slot in list(ended.slots.values()):
            if slot.live:
                self._schedule(slot)
            else:
                self._drop(slot)
        if self._postponed.slots:
            for slot in self._postponed.slots.values():
                for lease in slot.take():
                    self._slot_of(lease._epoch, slot.key).add(lease)
            self._postponed.slots.clear()

    def _slot_of(self, epoch: Epoch, key: Key) -> IdleSlot:
        slot = epoch.slots.get(key)
        return self._new_slot(epoch, key) if slot is None else slot

    def _new_slot(self, epoch: Epoch, key: Key) -> IdleSlot:
        slot = epoch.slots[key] = IdleSlot(epoch, key)
        self._slots[slot] = None
        if epoch is not self._open:
            self._schedule(slot)
        return slot

    def _drop(self, slot: IdleSlot) -> None:
        del slot.epoch.slots[slot.key]
        del self._slots[slot]

    def _schedule(self, slot: IdleSlot) -> None:
        """Put *slot*, whose epoch is closed, where it waits for its due instant; nowhere if it has no timeout."""
        if slot.key[0] is None:
            return
        due = slot.due
        # A slot leaves the wheel a whole span before it is due, so the wheel's coarser time never delays a reap.
        near = seconds_to_tick(due, self._origin, self.tick) - self.wheel_size
        if near <= seconds_to_tick(self._latest, self._origin, self.tick):
            heappush(self._heap, (due, next(self._order), slot))
        else:
            slot.timer = self._wheel.schedule(near, slot)

    def _lower(self, now: float) -> None:
        """Drop the slots that have come within the ring's span out of the wheel."""
        if not len(self._wheel):
            return
        for timer in self._wheel.advance(seconds_to_tick(now, self._origin, self.tick)):
            slot: IdleSlot = timer.item
            slot.timer = None
            heappush(self._heap, (slot.due, next(self._order), slot))

    def _next_due(self) -> float | None:
        heap = self._heap
        while heap:
            due, _, slot = heap[0]
            if slot.live:
                return due
            heappop(heap)
            self._drop(slot)
        return None

    # ---- what is due ---------------------------------------------------------------------------------------------

    def _take_due(self, now: float, limit: int | None) -> list[Due]:
        taken: list[Due] = []
        room = limit
        moves = 0
        while (due := self._next_due()) is not None and due <= now:
            entry = heappop(self._heap)
            slot = entry[2]
            silent, moved = sweep(slot, self._slot_of, room, None if limit is None else MOVES_PER_CALL - moves)
            moves += moved
            if silent:
                taken.append(Due(slot.epoch, slot.key, silent))
            if slot.live:
                heappush(self._heap, entry)
            else:
                self._drop(slot)
            if room is not None:
                room -= len(silent)
                if room == 0 or moves >= MOVES_PER_CALL:
                    break
        self._counts.moved += moves
        return taken

    def _final_check(self, due: list[Due], spare: Spare, now: float) -> list[Due]:
        for epoch, key, leases in due:  # into slots of their own: they live, and whatever is called on them counts
            slot = IdleSlot(epoch, key)
            self._checked.add(slot)
            for lease in leases:
                slot.add(lease)
        try:
            return super()._final_check(due, spare, now)
        finally:
            for slot in self._checked:
                slot.chunks.clear()  # or slot, chunk and leases would be a circle, which only the collector frees
            self._checked.clear()

    def _silent_of(self, group: Due) -> list[Lease]:
        silent = []
        for lease in group.leases:
            if lease._chunk is not None and lease._chunk.slot in self._checked:
                if lease._epoch is group.epoch:
                    silent.append(lease)
                else:
                    self._move(lease, lease._epoch, group.key)
        return silent

    def _put_back(self, group: Due) -> None:
        for lease in group.leases:
            self._move(lease, group.epoch, group.key)

    def _revive(self, lease: Lease, group: Due, since: float | None, now: float) -> bool:
        if since is None:
            remove(lease)
            self._set_aside(lease, group.key, self._postponed)
            return True
        epoch = self._epoch_at(since)
        if epoch.closed + group.timeout <= now:
            return False
        self._move(lease, epoch, group.key)
        return True

    def _move(self, lease: Lease, epoch: Epoch, key: Key) -> None:
        remove(lease)
        lease._epoch = epoch
        self._slot_of(epoch, key).add(lease)

    def _end_all(self, due: list[Due]) -> None:
        strays = 0
        for group in due:
            self._armed -= len(group.leases)
            for lease in group.leases:
                lease._chunk = None
                strays += not self._forget(lease)
        if strays:
            self._forget_strays()

    def _forget(self, lease: Lease) -> bool:
        """Take *lease*, which has ended, out of the books. False if its uid does not lead to it any more."""
        try:
            found = self._leases.pop(lease.uid)
            if found is lease:
                return True
            self._leases[found.uid] = found
        except Exception:  # of the dictionary, or of the uid's own __hash__ or __eq__
            pass
        return self._leases.pop(lease, None) is lease

    def _forget_strays(self) -> None:
        """Find ended leases whose uid has another hash than at first, or raises; those that raise get another key."""
        leases: dict[Any, Lease] = {}
        for uid, lease in self._leases.items():
            if lease._chunk is not None:
                try:
                    leases[lease if uid in leases else uid] = lease
                except Exception:
                    leases[lease] = lease
        self._leases = leases

    # ---- looking in ----------------------------------------------------------------------------------------------

    def explain(self, uid: Hashable) -> Explanation:
        """Why *uid* is still here and until when. O(1).

        Raises:
            UnknownUid: it is not registered.
        """
        lease = self._leases.get(uid)
        if lease is None:
            raise UnknownUid(f"uid {shown(uid)} is not registered")
        return explain(self, uid, lease)

    def oldest(self, n: int) -> list[Any]:
        """Up to *n* uids, longest idle first; suspended ones never. Ties (one epoch) in the order of arrival in a slot.

        For eviction under pressure. Cost: O(leases in the slots it looks into), in the worst case all of them.
        """
        check_count("n", n, 0)
        return oldest(self._slots, self._postponed.slots.values(), n)

    def statistics(self) -> Statistics:
        """A snapshot of the counters; taking it costs O(1)."""
        return Statistics(
            registered=len(self._leases),
            suspended=len(self._leases) - self._armed,
            slots=len(self._heap),
            slots_in_wheel=len(self._wheel),
            **self._common(),
        )

    def check(self) -> None:
        """Verify every invariant, O(n), for tests.

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        check(self)
