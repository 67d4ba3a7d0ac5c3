"""DenseReaper: one byte a connection, where connections are numbered from 0 up without wide gaps, as descriptors are.

The law and the interface are those of `IdleReaper`; what differs is where things lie:

    touch    stores the open epoch's number, 1 to 254, in the connection's byte. Nothing else happens.
    close    as in the core: the epoch learns its real closing instant, and a connection silent since is due at that
             instant + timeout, exactly.
    expire   an epoch that is due is looked for: what still has its number has been silent since. `bytearray.find`
             passes over a million living ones in 10 to 40 us. There are no slots, and nothing is moved between them.
    age      a number is wanted again after some 220 epochs. A connection that has it still, with a timeout as long as
             that, is noted by name in `lanes.Aged` and bears the byte AGED: one step per long silence, and no limit to
             the timeout.

A second byte names the lane: timeout, reason, and whether suspended. It alone says who is registered, so the first one
may be written blindly: a touch that comes too late can neither bring back nor reap a connection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

from ..core.law import ErrorHook
from ..core.lease import Epoch, Explanation, Hook, Lease
from ..core.ticks import check_count, check_now, check_timeout
from ..errors import DuplicateUid, InvalidArgument, UnknownUid, shown
from .invariants import check
from .lanes import AGED, Aged, Lane
from .lease import DenseLease, DenseStatistics, bind
from .search import Search

MAX_UID = (1 << 24) - 1
"""The largest uid unless another was chosen: the array goes up to the largest in use, and 16 million cost 100 MB."""

_closing = attrgetter("closed")


class DenseReaper(Search):
    """Watches connections that have small numbers and names those that have been silent for their timeout.

    The same law, methods, arguments and errors as `IdleReaper`; what is said of those is not said again here. All times
    are float seconds on one monotonic clock of the caller's. Not thread-safe: one event loop, one core.

    It differs in this: a uid is an int, from 0 to `max_uid`; those who are due at one instant come by uid, not by
    arrival; a connection's own handle need not be kept, `touch(uid)` is the cheapest way; while a connection is
    suspended it is taken for active, and nothing is remembered of the time before; at most 255 distinct
    (timeout, reason) are in use at a time, counting twice those of which some are suspended; there is no
    `report_silences`, for a touch that is one byte cannot compare.

    Args:
        tick: Precision, seconds, > 0: how late a reap may be.
        epochs_per_tick: Epochs a tick, >= 1, as in `IdleReaper`.
        capacity: Uids to make room for at once. It grows on demand, copying 6 to 10 bytes a uid.
        max_uid: The largest uid that is accepted, up to 2**32 - 1. Memory goes up to the largest in use, whatever lies
            below.
        on_error: Called with (error, expiry) when a hook raises. None: see `expire`.
    Raises:
        InvalidArgument: by name and value.

    Attributes:
        epochs: The byte of each uid, for `epochs[uid] = core.open_number`, the touch without a call. Only for a uid
            that has been registered at some time (others: IndexError). Always in this form: a number kept for later
            belongs to an epoch that is closed by then, and a connection that gets it is reaped too early. It remains
            the same object; while a memoryview of it is held, registering a larger uid raises BufferError.
        open_number: The number of the open epoch; changed by `close_epoch`, `advance`, `register` and `resume`.
    """

    def __init__(
        self,
        tick: float = 1.0,
        *,
        epochs_per_tick: int = 1,
        capacity: int = 1024,
        max_uid: int = MAX_UID,
        on_error: ErrorHook | None = None,
    ) -> None:
        super().__init__(tick, epochs_per_tick, on_error)
        self._max_uid = check_count("max_uid", max_uid, 0, (1 << 32) - 1)
        self.epochs = bytearray()
        self._lanes_of = bytearray()  # number of the lane of each uid, 0: not registered
        self._generations = array("I")
        self._lanes: dict[tuple[float, str, bool], Lane] = {}
        self._table: list[Lane | None] = [None] * 256  # by number; 0 remains free
        self._count = 0
        self._live = [self._open]  # epochs that have a number, serials without gaps; the last one is open
        self.open_number = 1
        self._aged = Aged(self.epochs)
        self._age_cursor = 0  # uids below it have been looked at to age the oldest epoch
        self._work = 0  # steps that the call of `expire` under way may still take; unlimited if negative
        self._overlong = 0
        self._lease_type, self._namespace = bind(self, self.epochs, self._generations, self.open_number)
        self._grow(check_count("capacity", capacity, 0))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, uid: object) -> bool:
        return type(uid) is int and 0 <= uid < len(self._lanes_of) and self._lanes_of[uid] > 0

    # ---- the life of a connection --------------------------------------------------------------------------------

    def register(
        self,
        uid: int,
        timeout: float,
        now: float,
        on: Hook | None = None,
        *,
        reason: str = "idle",
        since: float | Lease | None = None,
    ) -> DenseLease:
        """Watch *uid* from *now* on; registering counts as activity. As `IdleReaper.register`.

        Args:
            uid: 0 <= uid <= max_uid; a socket's descriptor is one.
            timeout, now, on, reason, since: As there; a lease must be alive.
        Returns:
            A handle. It may be dropped: `touch(uid)` and `discard(uid)` do without.
        Raises:
            InvalidArgument: also: 255 distinct (timeout, reason) are in use. State unchanged.
            ClockWentBackwards, DuplicateUid: State unchanged.
        Cost: O(1) amortised. Every distinct (timeout, reason) adds one pass of `find` over all uids an epoch.
        """
        timeout = check_timeout("timeout", timeout)
        now = check_now(now, self._latest)
        if since is not None:
            since = self._check_since(since, now)
        if type(uid) is not int or not 0 <= uid <= self._max_uid:
            raise InvalidArgument(f"uid must be an integer from 0 to {self._max_uid}, got {shown(uid)}")
        if uid in self:
            raise DuplicateUid(f"uid {shown(uid)} is registered already; release its lease first")
        if isinstance(since, Lease):
            self._epoch_at(since)  # refuses one that has ended
        if uid >= self.capacity:
            self._grow(max(uid + 1, len(self.epochs) * 5 // 4))
        lane = self._lane(timeout, reason, False)
        self._wake_up(now)
        self._enter(uid, lane, self._open if since is None else self._epoch_at(since))
        self._count += 1
        lease = self._handles((uid,))[0]
        if on is not None:
            self._hooks[lease] = on
        return lease

    def touch(self, uid: int) -> bool:
        """Note activity of *uid*; False if it is not registered. Cost: a look at one byte, a store into another."""
        try:
            if uid >= 0 and self._lanes_of[uid]:
                self.epochs[uid] = self.open_number
                return True
        except (IndexError, TypeError):  # TypeError: a uid of another kind is not registered
            pass
        return False

    def touch_many(self, uids: Iterable[int]) -> None:
        """Note activity of each of *uids*, as read from one poll; those not registered are passed over.

        Cost: about a dict store each; a quarter to a third of a call of `touch`.
        """
        epochs, number = self.epochs, self.open_number
        rest = iter(uids)
        while True:
            try:
                for uid in rest:
                    if uid >= 0:
                        epochs[uid] = number
            except IndexError:
                continue  # beyond everything that was ever registered
            return

    def discard(self, uid: int) -> bool:
        """`release()` the lease of *uid*; False if it is not registered. O(1)."""
        lane = self._table[self._lanes_of[uid]] if uid in self else None
        if lane is None:
            return False
        if self._hooks:
            self._hooks.pop(self._handles((uid,))[0], None)
        self._end(lane, (uid,))
        self._counts.released += 1
        return True

    def _suspend(self, lease: DenseLease) -> bool:
        lane = self._lane_of_lease(lease)
        if lane is None or lane.suspended:
            return False
        self._enter(lease.uid, self._lane(lane.timeout, lane.reason, True), self._open)
        self._leave(lane, 1)
        self.epochs[lease.uid] = 0  # it must not be found among the aged
        return True

    def _resume(self, lease: DenseLease, now: float) -> bool:
        now = check_now(now, self._latest)
        lane = self._lane_of_lease(lease)
        if lane is None or not lane.suspended:
            return False
        armed = self._lane(lane.timeout, lane.reason, False)
        self._wake_up(now)
        self._enter(lease.uid, armed, self._open)
        self._leave(lane, 1)
        return True

    def _retime(self, lease: DenseLease, timeout: float, now: float, reason: str | None) -> bool:
        timeout = check_timeout("timeout", timeout)
        now = check_now(now, self._latest)
        old = self._lane_of_lease(lease)
        if old is None:
            return False
        new = self._lane(timeout, old.reason if reason is None else reason, old.suspended)
        self._latest = now
        if new is old:
            return True
        uid: int = lease.uid
        self._enter(uid, new, self._open if old.suspended else self._epoch_of(uid))
        self._leave(old, 1)
        return True

    def _release(self, lease: DenseLease) -> bool:
        return self._lane_of_lease(lease) is not None and self.discard(lease.uid)

    def _lane_of_lease(self, lease: Lease) -> Lane | None:
        """The lane of the connection that *lease* stands for; None when that has ended."""
        uid = lease.uid
        return self._table[self._lanes_of[uid]] if self._generations[uid] == lease._pos else None

    def _handles(self, uids: Iterable[int]) -> list[DenseLease]:
        make, generations = self._lease_type, self._generations
        handles = []
        for uid in uids:
            lease = make()
            lease.uid = uid
            lease._pos = generations[uid]
            handles.append(lease)
        return handles

    def _lane(self, timeout: float, reason: str, suspended: bool) -> Lane:
        key = (timeout, reason, suspended)
        lane = self._lanes.get(key)
        if lane is None:
            try:
                number = self._table.index(None, 1)
            except ValueError:
                raise InvalidArgument(
                    f"at most 255 distinct (timeout, reason) can be in use, got one more: {(timeout, reason)!r}"
                ) from None
            lane = self._lanes[key] = self._table[number] = Lane(number, *key)
        return lane

    def _enter(self, uid: int, lane: Lane, epoch: Epoch) -> None:
        """Put *uid*, last active in *epoch*, into *lane*."""
        if not lane.suspended:
            self._lay(uid, lane, epoch)
            self._armed += 1
        lane.members += 1
        self._lanes_of[uid] = lane.number

    def _lay(self, uid: int, lane: Lane, epoch: Epoch) -> None:
        """See to it that *uid*, which is or will be in *lane*, is found when *epoch* is due."""
        index = epoch.serial - self._live[0].serial
        if 0 <= index < len(self._live) and self._live[index] is epoch:
            lane.enlist(epoch.serial)
            self.epochs[uid] = self._byte_of(epoch)
            if index == 0:
                self._age_cursor = min(self._age_cursor, uid)
        else:
            lane.enlist(self._epochs)
            self.epochs[uid] = AGED
            self._aged.add(uid, self._aged.slot(epoch, lane.key))

    def _epoch_at(self, since: float | Lease) -> Epoch:
        if isinstance(since, Lease):
            lane = self._lane_of_lease(since)
            if lane is None:
                raise InvalidArgument(f"since must be an instant or a lease that is alive, got {shown(since)}")
            return self._open if lane.suspended else self._epoch_of(since.uid)
        if since >= self._open.opened:
            return self._open
        opened = self._live[0].opened
        if since < opened:
            return self._make_up(since, opened)
        return self._live[bisect_left(self._live, since, key=_closing)]

    def _leave(self, lane: Lane, count: int) -> None:
        lane.members -= count
        if not lane.suspended:
            self._armed -= count
        if not lane.members:
            self._table[lane.number] = None
            del self._lanes[lane.timeout, lane.reason, lane.suspended]

    def _end(self, lane: Lane, uids: Sequence[int]) -> None:
        """Take *uids*, one or more and all in *lane*, out of the books; their handles are dead from here on."""
        epochs, lanes_of, generations = self.epochs, self._lanes_of, self._generations
        for uid in uids:
            lanes_of[uid] = epochs[uid] = 0
            generations[uid] = (generations[uid] + 1) & 0xFFFFFFFF
        self._count -= len(uids)
        self._leave(lane, len(uids))

    def _grow(self, capacity: int) -> None:
        # One place more than there are uids: that is the byte of uid -1, the descriptor of a closed socket.
        more = min(capacity, self._max_uid + 1) + 1 - len(self.epochs)
        self.epochs.extend(bytes(more))
        self._generations.frombytes(bytes(4 * more))
        self._lanes_of.extend(bytes(more))

    @property
    def capacity(self) -> int:
        """Uids there is room for; the first one beyond makes it grow by a quarter."""
        return len(self._lanes_of) - 1

    # ---- looking in ----------------------------------------------------------------------------------------------

    def explain(self, uid: int) -> Explanation:
        """Why *uid* is still here and until when. O(1). Its `place` is 'ring', 'aged' or 'suspended'.

        A suspended connection is taken for active: from the beginning of the open epoch until now.

        Raises:
            UnknownUid: it is not registered.
        """
        lane = self._table[self._lanes_of[uid]] if uid in self else None
        if lane is None:
            raise UnknownUid(f"uid {shown(uid)} is not registered")
        epoch = self._live[-1] if lane.suspended else self._epoch_of(uid)
        is_open = epoch is self._live[-1]
        ends = self.epoch_ends if is_open else epoch.closed
        return Explanation(
            uid=uid,
            timeout=lane.timeout,
            reason=lane.reason,
            suspended=lane.suspended,
            active_from=epoch.opened,
            active_until=None if is_open else epoch.closed,
            due=None if lane.suspended else ends + lane.timeout,
            place="suspended" if lane.suspended else "aged" if self.epochs[uid] == AGED else "ring",
        )

    def oldest(self, n: int) -> list[int]:
        """Up to *n* uids, longest idle first; suspended ones never. Ties (one epoch) by uid.

        For eviction under pressure. Cost: O(aged), and a pass over all uids for each epoch it looks into.
        """
        check_count("n", n, 0)
        aged: dict[Epoch, list[int]] = {}
        for epoch, uids in self._aged.members():
            aged.setdefault(epoch, []).extend(uids)
        found: list[int] = []
        live = set(self._live)
        for epoch in sorted(live | set(aged), key=lambda epoch: epoch.rank):
            if len(found) >= n:
                break
            uids = aged.get(epoch, [])
            at = -1
            while epoch in live and (at := self.epochs.find(self._byte_of(epoch), at + 1)) >= 0:
                lane = self._table[self._lanes_of[at]]
                if lane is not None and not lane.suspended:
                    uids.append(at)
            found += sorted(uids)
        return found[:n]

    def statistics(self) -> DenseStatistics:
        """A snapshot of the counters; taking it costs O(1)."""
        return DenseStatistics(
            registered=self._count,
            suspended=self._count - self._armed,
            slots=len(self._live) - 1,
            slots_in_wheel=len(self._aged),
            capacity=self.capacity,
            lanes=len(self._lanes),
            overlong=self._overlong,
            **self._common(),
        )

    def check(self) -> None:
        """Verify every invariant, O(capacity).

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        check(self)
