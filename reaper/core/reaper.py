"""IdleReaper: who is due, and when. Pure: no clock, no I/O, no thread, no callback it was not given.

The law: *never early; at most one tick late, plus the time the loop itself was stuck; exactly once.*

How it is kept, in four moves:

    touch    stores the open epoch in the lease. Nothing else happens.
    close    gives the open epoch its real closing instant and opens the next. A slot is an (epoch, timeout, reason);
             now it is known when it is due: closed + timeout, exactly, on no grid. A touch at t lies in an epoch with
             t <= closed, so nothing can be due before t + timeout, whatever the loop did.
    wait     slots due within the ring's span lie in a heap by due instant; later ones in a hierarchical timing wheel,
             from which they drop into the ring. Whole slots cascade, not connections.
    expire   opens the slots that are due. A lease whose epoch is the slot's has been silent: it is reaped. One whose
             epoch has moved on is moved to that epoch's slot: at most once a timeout, however often it was touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from heapq import heappop, heappush
from itertools import count, groupby
from types import FunctionType
from typing import Any

from ..errors import DuplicateUid, InvariantViolated, UnknownUid
from .hooks import ErrorHook, call
from .lease import OPEN, Epoch, Expiry, Explanation, Hook, IdleSlot, Key, Lease, Statistics
from .slots import remove
from .sweep import sweep
from .ticks import check_count, check_limit, check_now, check_timeout, seconds_to_tick
from .wheel import TimingWheel

MOVES_PER_CALL = 4096
"""Leases that one `expire` with a limit may move on before it lets go although it found nobody to reap. About 1 ms."""

Spare = Callable[[Sequence[Lease]], Collection[Lease]]
"""The last look: of these leases, which have shown a sign of life after all?"""

Doomed = list[tuple[IdleSlot, list[Lease]]]


class IdleReaper:
    """Watches connections and names those that have been silent for their timeout.

    All times are float seconds on one monotonic clock of the caller's. Not thread-safe: one event loop, one core.

    Args:
        tick: Precision, seconds, > 0: how late a reap may be.
        wheel_size: Ticks in the ring's span and slots a wheel level, >= 2. What is due later waits in the wheel.
        epochs_per_tick: Epochs a tick, >= 1. With 1 the law's whole tick may be spent between a touch and the end of
            its epoch; with 2 half a tick stays in hand for a loop that wakes late.
        on_error: Called with (error, expiry) when a hook raises. None: see `expire`.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self, tick: float = 1.0, wheel_size: int = 64, *, epochs_per_tick: int = 1, on_error: ErrorHook | None = None
    ) -> None:
        self.tick = check_timeout("tick", tick)
        self.wheel_size = check_count("wheel_size", wheel_size, 2)
        self._epoch_length = self.tick / check_count("epochs_per_tick", epochs_per_tick, 1)
        self._on_error = on_error
        self._leases: dict[Any, Lease] = {}
        self._hooks: dict[Any, Hook] = {}
        self._armed = 0
        self._never = Epoch(OPEN, -1)  # the epoch that never closes: suspended leases lie in its slots
        self._slots: dict[IdleSlot, None] = {}  # every slot but those, in order of creation
        self._heap: list[tuple[float, int, IdleSlot]] = []  # (due, order of scheduling, slot)
        self._order = count()
        # Counts ticks since _origin.
        self._wheel: TimingWheel[IdleSlot] = TimingWheel(tick=1, wheel_size=wheel_size, start=0)
        self._origin = 0.0  # the first instant named
        self._latest = float("-inf")  # the latest instant any call has named
        self._judged = float("-inf")  # the latest instant anybody was judged by
        self._epochs = self._expired = self._moved = self._averted = self._released = 0
        self._max_lateness = 0.0
        self._open = Epoch(0.0, 0)
        self._lease_type, self._namespace = _bind(self, self._open)

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, uid: Hashable) -> bool:
        return uid in self._leases

    # ---- the life of a lease -------------------------------------------------------------------------------------

    def register(
        self, uid: Hashable, timeout: float, now: float, on: Hook | None = None, *, reason: str = "idle"
    ) -> Lease:
        """Watch *uid* from *now* on; registering counts as activity.

        Args:
            uid: Any hashable; the key for `touch(uid)` and `explain(uid)`.
            timeout: Seconds of silence allowed, > 0.
            now: Seconds; must not be less than any instant named before.
            on: Called with the `Expiry` when it is reaped.
            reason: A short stable name that the `Expiry` carries.
        Returns:
            The lease: touch it, release it when the connection ends by itself.
        Raises:
            InvalidArgument: timeout or now is NaN, infinite, no number, or timeout <= 0. State unchanged.
            ClockWentBackwards: now precedes an instant named before. State unchanged.
            DuplicateUid: uid is registered already. State unchanged.
        Cost: O(1). Every distinct (timeout, reason) adds one slot an epoch: share timeouts, draw jitter in whole ticks.
        """
        timeout = check_timeout("timeout", timeout)
        now = check_now(now, self._latest)
        if uid in self._leases:
            raise DuplicateUid(f"uid {uid!r} is registered already; release its lease first")
        self._wake_up(now)
        lease = self._lease_type()
        lease.uid = uid
        self._leases[uid] = lease
        if on is not None:
            self._hooks[uid] = on
        self._arm(lease, self._open, (timeout, reason))
        return lease

    def touch(self, uid: Hashable) -> bool:
        """Note activity of *uid*; False if it is not registered. Cost: a dict look-up; `lease.touch()` is cheaper."""
        try:
            self._leases[uid]._epoch = self._open
        except KeyError:
            return False
        return True

    def discard(self, uid: Hashable) -> bool:
        """`release()` the lease of *uid*; False if it is not registered. O(1)."""
        lease = self._leases.get(uid)
        return lease is not None and self._release(lease)

    def _suspend(self, lease: Lease) -> bool:
        if lease._chunk is None or lease.suspended:
            return False
        self._park(lease, self._leave(lease))
        return True

    def _resume(self, lease: Lease, now: float) -> bool:
        now = check_now(now, self._latest)
        if not lease.suspended:
            return False
        key = self._leave(lease)
        self._wake_up(now)
        self._arm(lease, self._open, key)
        return True

    def _retime(self, lease: Lease, timeout: float, now: float, reason: str | None) -> bool:
        timeout = check_timeout("timeout", timeout)
        now = check_now(now, self._latest)
        if lease._chunk is None:
            return False
        self._latest = now
        suspended = lease.suspended
        old = self._leave(lease)
        key = (timeout, old[1] if reason is None else reason)
        if suspended:
            self._park(lease, key)
        else:
            self._arm(lease, lease._epoch, key)
        return True

    def _release(self, lease: Lease) -> bool:
        if lease._chunk is None:
            return False
        self._leave(lease)
        self._forget(lease)
        self._released += 1
        return True

    def _arm(self, lease: Lease, epoch: Epoch, key: Key) -> None:
        lease._epoch = epoch
        slot = epoch.slots.get(key)
        if slot is None:
            slot = self._new_slot(epoch, key)
        slot.add(lease)
        self._armed += 1

    def _park(self, lease: Lease, key: Key) -> None:
        slots = self._never.slots
        slot = slots.get(key)
        if slot is None:
            slot = slots[key] = IdleSlot(self._never, key)
        slot.add(lease)

    def _leave(self, lease: Lease) -> Key:
        """Take *lease* out of its slot, and the slot out of the books if that emptied it and it lay far away."""
        slot = lease._slot
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
        return slot.key

    def _forget(self, lease: Lease) -> None:
        del self._leases[lease.uid]
        if self._hooks:
            self._hooks.pop(lease.uid, None)

    # ---- time ----------------------------------------------------------------------------------------------------

    def _wake_up(self, now: float) -> None:
        """Before something is armed at *now*: if nothing was armed, nobody has kept the epochs going."""
        self._latest = now
        if not self._armed:
            self._close(now)

    def close_epoch(self, now: float, at_least: float = 0.0) -> bool:
        """End the open epoch at *now* and open the next: what is touched from here on belongs to the next.

        Args:
            now: Seconds; must not be less than any instant named before.
            at_least: Leave the epoch open if it has lasted less than this many seconds.
        Returns:
            Whether it was closed.
        Raises:
            InvalidArgument, ClockWentBackwards: State unchanged.
        Cost: O(distinct (timeout, reason) in the epoch + slots that come within the ring's span).
        """
        now = check_now(now, self._latest)
        self._latest = now
        if now - self._open.opened < at_least:
            return False
        self._close(now)
        return True

    def _close(self, now: float) -> None:
        ending = self._open
        ending.closed = now
        self._epochs += 1
        self._open = Epoch(now, self._epochs)
        self._namespace["open_epoch"] = self._open
        if self._epochs == 1:
            self._origin = now
        self._lower(now)
        for slot in list(ending.slots.values()):
            if slot.live:
                self._schedule(slot)
            else:
                self._drop(slot)

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
        """Put *slot*, whose epoch is closed, where it waits for its due instant."""
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

    def next_wakeup(self) -> float | None:
        """When `advance` should next be called: the end of the open epoch or the next due instant, whichever is first.

        None when nothing is registered, or everything is suspended: then only `register`, `resume` or `retime` can
        change that. An instant in the past means there is work now. O(1) amortised.
        """
        if not self._armed:
            return None
        end = self.epoch_ends
        due = self._next_due()
        return end if due is None or end < due else due

    def _next_due(self) -> float | None:
        heap = self._heap
        while heap:
            due, _, slot = heap[0]
            if slot.live:
                return due
            heappop(heap)
            self._drop(slot)
        return None

    def advance(self, now: float, limit: int | None = None) -> list[Expiry]:
        """Move the clock to *now*, note the end of the epoch, and reap what is due: `close_epoch`, then `expire`.

        An epoch younger than half its length stays open. Otherwise a wake at a due instant in the middle of an epoch
        would cut it, both parts would fall due at instants of their own, and the wakes would multiply.

        Args, Returns, Raises: as `expire`; ClockWentBackwards also when now precedes any instant named before.
        """
        check_limit(limit)
        self.close_epoch(now, at_least=self._epoch_length / 2)
        return self.expire(now, limit)

    @property
    def epoch_length(self) -> float:
        """Seconds that an epoch lasts when nobody is late: tick / epochs_per_tick."""
        return self._epoch_length

    @property
    def epoch_ends(self) -> float:
        """The instant at which the open epoch should be closed. How late that happens is how late the loop is."""
        return self._open.opened + self._epoch_length

    def expire(self, now: float, limit: int | None = None, spare: Spare | None = None) -> list[Expiry]:
        """Reap what is due as of *now*: due <= now.

        It may be given an instant that is already a little past - the one at which `close_epoch` was called before the
        loop was let run - and then judges as of that instant.

        Args:
            now: Seconds; must not be less than the last instant judged by.
            limit: Most leases to look at for the last time; the rest stays due. None for all. With a limit the list
                may be empty although more is due, once `MOVES_PER_CALL` live leases have been moved on; `next_wakeup()`
                tells: it is not later than now.
            spare: The last look: called once with the leases about to be reaped, in order; those it returns are alive
                after all, count as averted, and are treated as touched now. If it raises, nobody is reaped.
        Returns:
            A new list, earliest due first, ties in the order of arrival in their slot; may be empty. Their leases have
            ended.
        Raises:
            InvalidArgument, ClockWentBackwards: State unchanged.
            HookErrors: hooks raised and there is no on_error. All hooks have run; `.expired` has the list.
        Cost: O(reaped + moved).
        """
        check_limit(limit)
        now = check_now(now, self._judged, "after judging by")
        self._judged = now
        if now > self._latest:
            self._latest = now
            self._lower(now)
        doomed: Doomed = []
        room = limit
        moves = 0
        while (due := self._next_due()) is not None and due <= now:
            entry = heappop(self._heap)
            slot = entry[2]
            taken, moved = sweep(slot, self._slot_of, room, None if limit is None else MOVES_PER_CALL - moves)
            self._armed -= len(taken)
            moves += moved
            if taken:
                doomed.append((slot, taken))
            if slot.live:
                heappush(self._heap, entry)
            else:
                self._drop(slot)
            if room is not None and limit is not None:
                room -= len(taken)
                if room == 0 or moves >= MOVES_PER_CALL:
                    break
        self._moved += moves
        if not doomed:
            return []
        if spare is not None:
            doomed = self._last_look(doomed, spare)
        return self._reap(doomed, now)

    def _last_look(self, doomed: Doomed, spare: Spare) -> Doomed:
        try:
            spared = set(map(id, spare([lease for _, taken in doomed for lease in taken])))
        except BaseException:
            for slot, taken in doomed:
                for lease in taken:
                    self._arm(lease, lease._epoch, slot.key)
            raise
        if not spared:
            return doomed
        left = []
        for slot, taken in doomed:
            for lease in taken:
                if id(lease) in spared:
                    self._arm(lease, self._open, slot.key)
                    self._averted += 1
            left.append((slot, [lease for lease in taken if id(lease) not in spared]))
        return left

    def _reap(self, doomed: Doomed, now: float) -> list[Expiry]:
        expired: list[Expiry] = []
        for slot, taken in doomed:
            due = slot.due
            reason = slot.key[1]
            lateness = now - due
            if taken and lateness > self._max_lateness:
                self._max_lateness = lateness
            expired += [Expiry(lease.uid, lease, reason, due, now, lateness) for lease in taken]
        self._expired += len(expired)
        hooks = [self._hooks.get(expiry.uid) for expiry in expired] if self._hooks else ()
        for expiry in expired:
            self._forget(expiry.lease)
        call(hooks, expired, self._on_error)  # only now: the books are closed
        return expired

    # ---- looking in ----------------------------------------------------------------------------------------------

    def explain(self, uid: Hashable) -> Explanation:
        """Why *uid* is still here and until when. O(1).

        Raises:
            UnknownUid: it is not registered.
        """
        lease = self._leases.get(uid)
        if lease is None:
            raise UnknownUid(f"uid {uid!r} is not registered")
        epoch, slot = lease._epoch, lease._slot
        timeout, reason = slot.key
        is_open = epoch is self._open
        ends = self.epoch_ends if is_open else epoch.closed
        place = "ring"
        if lease.suspended:
            place = "suspended"
        elif slot.timer is not None and (where := self._wheel.locate(slot.timer)) is not None:
            place = f"wheel level {where[0]} slot {where[1]}"
        return Explanation(
            uid=uid,
            timeout=timeout,
            reason=reason,
            suspended=lease.suspended,
            active_from=epoch.opened,
            active_until=None if is_open else epoch.closed,
            due=None if lease.suspended else ends + timeout,
            place=place,
        )

    def oldest(self, n: int) -> list[Any]:
        """Up to *n* uids, longest idle first; suspended ones never. Ties (one epoch) in the order of arrival in a slot.

        For eviction under pressure. Cost: O(leases in the slots it looks into), in the worst case all of them.
        """
        check_count("n", n, 0)
        found: list[Any] = []
        met: dict[Epoch, list[Any]] = {}  # leases met so far, by the epoch of their last touch
        slots = sorted(self._slots, key=lambda slot: slot.epoch.serial)
        for epoch, group in groupby(slots, key=lambda slot: slot.epoch):
            for slot in group:
                for lease in slot:
                    met.setdefault(lease._epoch, []).append(lease.uid)
            # A lease lies in its own epoch's slot or in an older one: of this epoch and older ones all have been met.
            for known in sorted((e for e in met if e.serial <= epoch.serial), key=lambda e: e.serial):
                found += met.pop(known)
            if len(found) >= n:
                break
        else:
            for known in sorted(met, key=lambda e: e.serial):
                found += met[known]
        return found[:n]

    def statistics(self) -> Statistics:
        """A snapshot of the counters; taking it costs O(1)."""
        return Statistics(
            registered=len(self._leases),
            suspended=len(self._leases) - self._armed,
            slots=len(self._heap),
            slots_in_wheel=len(self._wheel),
            epochs=self._epochs,
            expired=self._expired,
            moved=self._moved,
            averted=self._averted,
            released=self._released,
            max_lateness=self._max_lateness,
        )

    def check(self) -> None:
        """Verify every invariant, O(n).

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        in_heap = [slot for _, _, slot in self._heap]
        for uid, lease in self._leases.items():
            if lease.uid != uid or lease._chunk is None:
                raise InvariantViolated(f"uid {uid!r} maps to {lease!r}")
            if lease._slot.epoch.slots.get(lease._slot.key) is not lease._slot:
                raise InvariantViolated(f"{lease!r} lies in a slot that is not in the books of its epoch")
        armed = in_wheel = 0
        for slot in self._slots:
            slot.check()
            if slot.epoch.slots.get(slot.key) is not slot:
                raise InvariantViolated(f"slot {slot.key} is not in the books of its epoch")
            places = (slot.epoch is self._open) + in_heap.count(slot) + (slot.timer is not None)
            if places != 1:
                raise InvariantViolated(f"slot {slot.key} waits in {places} places instead of one")
            armed += slot.live
            in_wheel += slot.timer is not None
            for lease in slot:
                if self._leases.get(lease.uid) is not lease:
                    raise InvariantViolated(f"{lease!r} lies in a slot but is not registered")
                if lease._epoch.serial < slot.epoch.serial:
                    raise InvariantViolated(f"{lease!r} lies in a slot that is due after it")
        parked = 0
        for slot in self._never.slots.values():
            slot.check()
            parked += slot.live
        if armed != self._armed or armed + parked != len(self._leases):
            raise InvariantViolated(f"{armed} armed, {parked} suspended; books: {self._armed} of {len(self._leases)}")
        if in_wheel != len(self._wheel):
            raise InvariantViolated(f"{in_wheel} slots wait in the wheel, it counts {len(self._wheel)}")
        if not set(self._hooks) <= set(self._leases):
            raise InvariantViolated("a hook outlived its lease")
        for due, _, slot in self._heap:
            if due != slot.due or slot not in self._slots:
                raise InvariantViolated(f"slot {slot.key} waits for {due}")
        self._wheel.check()


open_epoch: Epoch  # never set here: a global of each core's own copy of _touch


def _touch(self: Lease) -> None:
    self._epoch = open_epoch  # noqa: F821


def _bind(core: IdleReaper, first: Epoch) -> tuple[type[Lease], dict[str, Epoch]]:
    """The lease class of one core, and the namespace in which its `touch` finds the open epoch.

    A name saves each lease a reference to its core, and each touch two attribute loads; with a fifth field a lease
    would straddle two cache lines, which costs more than both. A namespace of its own is the fastest place for the
    name (a variable closed over: 1.36x an empty call, this: 1.28x, hot).
    """
    namespace = {"open_epoch": first}
    # CPython keeps what it learnt about a store in the code object. Two cores must not share one, or each would unlearn
    # what the other taught (tests/test_core.py: test_two_cores_do_not_share...).
    touch = FunctionType(_touch.__code__.replace(co_name="touch"), namespace, "touch")
    touch.__doc__ = Lease.touch.__doc__
    return type("Lease", (Lease,), {"__slots__": (), "_core": core, "touch": touch}), namespace
