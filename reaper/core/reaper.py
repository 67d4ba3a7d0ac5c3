"""IdleReaper: who is due, and when. *Never early; at most one tick late, plus the
loop's own stall; exactly once.*

THEORY OF OPERATION

A timer per connection would have to be moved with every packet; a scan would look at
every connection every tick. Here a packet costs one store, and a connection is looked
at about once per timeout, however often it spoke. Four ideas:

1. A touch notes the epoch, not the time.

   Time is cut into epochs, one per tick (or `epochs_per_tick` of them). Exactly one is
   open. `lease.touch()` stores it:

       lease._epoch = open_epoch

   No clock is read and nothing moves. An epoch knows the instants at which it really
   began and ended; `close_epoch(now)` ends the open one and opens the next.

2. An epoch's real end is what counts from.

   What was last touched in an epoch is due at `epoch.closed + timeout`: exactly, on no
   grid. A touch at t lies in an epoch with t <= closed, so nothing is due before t +
   timeout, *whatever the loop did*: after a stall the epoch is closed late, and all
   that was touched in it is due later. That is "never early". An epoch that is closed
   on time is one tick long: that is "at most one tick late". While it is open nothing
   in it is due: `closed` is infinite.

       touched here           closed              closed + timeout: due
            |                   |                          |
       |----x-------------------|--------------------------|-------->
       opened                               reaped at the first wake from here on

3. Whole slots wait, not leases.

   A slot holds the leases of one (epoch, timeout, reason), so one instant is due for
   all of them. It is made in the open epoch when the first lease needs it; when the
   epoch is closed it is put where it waits for that instant:

       the open epoch  --closed-->
           near: a heap of (due, slot)     due within `wheel_size` ticks
           far: a hierarchical timing      due later; it comes near a whole span
           wheel, in whole ticks           before it is due

   `agenda` is the module of this.

4. A touched lease is moved when its slot comes due, not before.

   A touch leaves the lease in its old slot; only `lease._epoch` has moved on. When the
   slot is due, `sweep` compares:

       lease._epoch is slot.epoch        it has been silent since: take it
       anything later                    it has spoken: move it to the slot of that
                                         epoch, which comes due later

   So a lease moves at most once per timeout; a chunk whose leases all spoke last in one
   epoch moves as one.

TIMEOUTS OF THEIR OWN

A slot costs many times what a lease does. Where connections have few timeouts between
them that is nothing. Where each has its own, each would have a slot; so a core that has
once seen more than `MOST_EXACT` keys in one epoch rounds from then on: a key's timeout
is a whole number of quarters of a tick, the next one that is not less than what was
asked for (`_round_timeouts`). Nothing is early by that. It is up to a quarter of a tick
later, so an epoch then lasts three quarters of a tick at the most, and one tick is
still all that a reap may be late. A lease keeps what was asked for: in a slot `asked`
of a class with a field more, or, if it was made before, beside its hook (`Asked`).

THE STEPS OF A WAKE

    next_wakeup   the end of the open epoch, or the next due instant, whichever is
                  first; None while nothing is armed
    close_epoch   what is touched from here on lies in the next epoch
    ...           an adapter lets its loop read here: bytes that came during a stall are
                  still in the kernel
    expire        take what is due (`Agenda.take_due`), put it to the final check
                  (`spare`), end it and report it

`advance` is close_epoch and expire at one instant, for callers that have no loop.

WHERE A LEASE CAN LIE

    registered --> a slot of the open epoch --close--> near or far ---due--> taken
        |                   ^                               |                   |
        |                   +---- moved: touched since -----+                   |
        |                                     final check: ended, reaped <------+
        |                                         or spared: alive, see below <-+
        +--suspend()--> a slot of `_never`, the epoch that is never closed
                                   --resume()--> a slot of the open epoch
    release(), from anywhere: ended

A lease lies in exactly one slot while it is alive (`_chunk` is not None). Those can
come due that do not lie in `_never`: `_suspended` counts the others. With nothing armed
nothing wakes; the first lease armed then closes the epoch that was open all that time.

The final check is foreign code: it may call anything. So the leases that it looks at
are put into slots of their own first. What is not found there afterwards was changed;
what has another epoch was touched. Those it names:

    named, or with True     active: moved to the open epoch
    with False              a limit, which no activity moves: it stays due, and waits in
                            `postponed` until the open epoch is closed

WHAT IS BOUNDED, AND WHAT MISBEHAVES

No call holds the loop for long, whatever the timeouts are. Work is counted in steps,
and a call takes at most `STEPS_PER_CALL` of them for all that it does beside reaping:
to put the slots of an epoch that is closed, and those that have come near, where they
wait, and to look at what is due. What is left is carried over to the next call
(`agenda` says how), and `next_wakeup` says now. It keeps its due instant, and nothing
is reaped before what is due earlier.

Without a limit all is done that there is. What grows with the number of slots grows a
little at each addition: a dict of a million slots would take 15 ms for one of them. The
map from uids is such a dict, and `register` takes as long at 699,051 leases; so does
that of hooks. Hooks are called when all books are closed: they may call anything, and
what one raises stops no other. A uid whose `__hash__` changes cannot be found again:
`_forget_strays` goes through all then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DuplicateUid, InvalidArgument, UnknownUid, shown
from .agenda import ALL, STEPS_PER_CALL, Agenda, Due
from .introspect import check, explain, oldest
from .lease import (
    OPEN,
    Asked,
    Changed,
    Epoch,
    ErrorHook,
    Expiry,
    Explanation,
    Hook,
    IdleSlot,
    Key,
    Lease,
    Never,
    Statistics,
    bind,
    call_hooks,
    drop,
)
from .slots import CHUNK, Chunk, tidy
from .ticks import check_count, check_limit, check_now, check_timeout

LONG_AGO = -sys.float_info.max
"""Before any instant that is named."""

MOST_QUARTERS = float(1 << 50)
"""Timeouts of more quarters of a tick are not rounded."""

Spare = Callable[[Sequence[Lease]], Collection[Lease] | Mapping[Lease, bool]]
"""The final check: of these leases, which are to live on? As a collection: those that
have shown a sign of life, and count as touched now. As a mapping: the same with True,
and with False what stays due; see `IdleReaper.expire`.
"""


@dataclass(slots=True, repr=False, eq=False)  # those two would be most of its import
class Counts:
    """As in `Statistics`. Together, for more than 30 attributes make an instance slow
    to read in CPython 3.11.
    """

    expired: int = 0
    averted: int = 0
    released: int = 0
    max_lateness: float = 0.0


class IdleReaper:
    """Watches connections and names those that have been silent for their timeout.

    All times are float seconds on one monotonic clock of the caller's. Not thread-safe:
    one event loop, one core.

    Args:
        tick: Precision, seconds, > 0: how late a reap may be.
        epochs_per_tick: Epochs per tick, 1 to 1,000,000: with 2, half a tick stays in
            hand for a loop that wakes late.
        on_error: Called with (error, expiry) when a hook raises. None: see `expire`.
        wheel_size: Ticks before its due instant at which a slot is near, and slots per
            wheel level, >= 2. What is due later waits in the wheel.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self,
        tick: float = 1.0,
        wheel_size: int = 64,
        *,
        epochs_per_tick: int = 1,
        on_error: ErrorHook | None = None,
    ) -> None:
        self.tick: float = check_timeout("tick", tick)
        self.epoch_length: float = self.tick / check_count(
            "epochs_per_tick", epochs_per_tick, 1, 1_000_000
        )
        """Seconds that an epoch lasts when it is closed on time."""
        if self.epoch_length == 0:
            raise InvalidArgument(
                f"tick must be a duration that can be divided into epochs, got {shown(tick)}"
            )
        self.wheel_size: int = check_count("wheel_size", wheel_size, 2)
        self._on_error = on_error
        self._leases: dict[Any, Lease] = {}
        self._hooks: dict[Lease, Hook] = {}
        self._suspended = 0  # of those leases: the others can come due
        self._counts = Counts()

        # Time.
        self._latest = LONG_AGO  # the latest instant that any call has named
        self._judged = LONG_AGO  # the latest instant that `expire` has judged by
        self._epochs = 0  # closed so far
        self._open = Epoch(0.0, 0)

        # What the last `register` was given, and its slot in the open epoch: the next
        # is mostly like it. None once that epoch is closed, or nothing is armed.
        self._last: IdleSlot | None = None
        self._last_timeout: float | None = None
        self._last_reason = ""

        # The epoch that never closes: suspended leases lie in its slots.
        self._never = Never()
        # Where the other slots wait until they are due.
        self._agenda = agenda = Agenda(self.tick, wheel_size, self._round_timeouts)
        self._slot_of: Callable[[Epoch, Key], IdleSlot] = agenda.slot_of

        # A quarter of a tick, to which timeouts are rounded; None: they are not.
        self._quarter: float | None = None
        # By its quarters, the slots of the open epoch for `_last_reason`.
        self._by_quarters: dict[float, IdleSlot] = {}

        # What a touch and a release read: names in a namespace of this core's own, see
        # `bind`.
        self._namespace: dict[str, Any] = {
            "open_epoch": self._open,
            "core": self,
            "counts": self._counts,
            "never": self._never,
        }
        base = type("Lease", (Lease,), {"__slots__": (), "_core": self})
        self._lease_type = bind(base, self._namespace)
        # Seconds before the open epoch: silences that began earlier than that are
        # reported.
        self._edge: float | None = None
        self._changed: Changed = lambda lease: None  # nobody asked

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return f"<IdleReaper tick={self.tick:g} s, {len(self)} registered>"

    def __contains__(self, uid: Hashable) -> bool:
        return uid in self._leases

    # ---- the life of a lease ---------------------------------------------------------
    def register(
        self,
        uid: Hashable,
        timeout: float | None,
        now: float,
        on: Hook | None = None,
        *,
        reason: str = "idle",
        since: Lease | None = None,
    ) -> Lease:
        """Watch *uid* from *now* on; registering counts as activity.

        Args:
            uid: Any hashable; the key for `touch(uid)` and `explain(uid)`.
            timeout: Seconds of silence allowed, > 0; None: no timeout, it is never due.
            now: Seconds; must not be less than any instant named before.
            on: Called with the `Expiry` when it is reaped.
            reason: A short stable name that the `Expiry` carries.
            since: A lease of this core, ended or not, whose last activity is taken
                over. None: *now* is the last one.
        Returns:
            The lease: touch it, release it when the connection ends by itself.
        Raises:
            InvalidArgument: timeout or now is NaN, infinite, no number, or timeout <=
                0, or since is no lease of this core. State unchanged.
            ClockWentBackwards: now precedes an instant named before. State unchanged.
            DuplicateUid: uid is registered already. State unchanged.
        Cost: O(1), whether timeouts are shared or not.
        Timing: never due before now + timeout, and at most one tick later.
        """
        # All is written out here: with `release` it is what a connection costs that
        # says nothing.
        slot = self._last
        if (
            slot is None
            or timeout is not self._last_timeout
            or reason is not self._last_reason
            or since is not None
        ):
            slot = None
            key = None if timeout is None else check_timeout("timeout", timeout), reason
        if type(now) is not float or not self._latest <= now < OPEN:
            now = check_now(now, self._latest)
        if since is not None and (not isinstance(since, Lease) or since._core is not self):
            raise InvalidArgument(f"since must be a lease of this core, got {shown(since)}")
        lease: Lease = self._lease_type()
        lease.uid = uid
        if self._leases.setdefault(uid, lease) is not lease:
            raise DuplicateUid(f"uid {shown(uid)} is registered already; release its lease first")
        self._latest = now
        if slot is None:
            slot = self._slot_like(key, timeout, since, now)
        elif slot.epoch is not self._open:  # the uid's own __hash__ has closed it
            slot = self._slot_of(self._open, slot.key)
        lease._epoch = slot.epoch
        # `Slot.add`, written out.
        chunks = slot.chunks
        chunk = chunks[-1] if chunks else slot.room()
        items = chunk.items
        lease._pos = position = len(items)
        if position >= CHUNK:
            chunk = slot.room()
            items = chunk.items
            lease._pos = 0
        lease._chunk = chunk
        items.append(lease)
        if on is not None:
            self._hooks[lease] = on
        return lease

    def _slot_like(self, key: Key, timeout: Any, since: Lease | None, now: float) -> IdleSlot:
        """Where a lease belongs that has just been entered into the books. Without
        *since* the next one with this very *timeout* and reason is found to belong
        there too.
        """
        if len(self._leases) - 1 == self._suspended:
            self._close(now)  # nothing was armed before it, so nothing kept the epochs going
        if since is not None:
            return self._slot_of(since._epoch, key)
        self._last = slot = self._slot_of(self._open, key)
        self._last_timeout = timeout
        self._last_reason = key[1]
        return slot

    def report_silences(
        self,
        beyond: float,
        report: Callable[[Lease, float, float], object],
        changed: Changed | None = None,
    ) -> None:
        """Make the touch of every lease registered from now on compare, and report the
        silences that it ends.

        Such a lease has the attributes of `lease.REPORTING`. Two of them are the
        caller's.

        Args:
            beyond: Seconds, > 0. A touch knows its epoch only: a silence is reported
                for certain when it was longer than this by an epoch, and never when it
                was shorter by an epoch.
            report: Called with (lease, since, until) before the touch counts: the
                instants at which the epochs of the last activity and of this one were
                opened. What it raises comes out of the touch.
            changed: Called with a lease after its timeout was changed, or it was
                suspended or resumed. None: not.
        Raises:
            InvalidArgument: beyond is no duration. State unchanged.
        Cost: a comparison per touch.
        """
        # A silence begins within its epoch, and is compared by when that was closed: an
        # epoch less.
        self._edge = check_timeout("beyond", beyond) - self.epoch_length

        def silence_ended(lease: Lease, found: Epoch) -> None:
            report(lease, lease._epoch.opened, found.opened)

        self._namespace["silence_ended"] = silence_ended
        self._namespace["edge"] = self._open.opened - self._edge
        self._bind_leases()
        if changed is not None:
            self._changed = changed
        self.touch = self._touch_by_lease  # type: ignore[method-assign]

    def touch(self, uid: Hashable) -> bool:
        """Note activity of *uid*; False if it is not registered. Cost: a dict look-up;
        `lease.touch()` is cheaper.
        """
        try:
            self._leases[uid]._epoch = self._open
        except KeyError:
            return False
        return True

    def _touch_by_lease(self, uid: Hashable) -> bool:
        lease = self._leases.get(uid)
        if lease is not None:
            lease.touch()
        return lease is not None

    def _bind_leases(self) -> None:
        """Have leases made from now on know what this core does."""
        base: Any = self._lease_type.__base__
        self._lease_type = bind(
            base, self._namespace, reports=self._edge is not None, rounds=self._quarter is not None
        )

    def _round_timeouts(self) -> None:
        """From now on round timeouts. What lies in a slot already keeps its key."""
        quarter = self.tick / 4
        if quarter > 0.0:
            self._quarter = quarter
            self.epoch_length = min(self.epoch_length, self.tick - quarter)
            self._last = None
            self._bind_leases()
            # Not by attributes of this core: CPython would then look for a method of
            # any other one more slowly, too.
            self.__class__ = RoundingReaper

    def _asked_of(self, lease: Lease, waits: float | None) -> float | None:
        """The timeout that was asked for *lease*, alive or reaped just now, of which
        the slot's key says *waits*.
        """
        return waits

    def _as_asked(self, expired: list[Expiry]) -> list[Expiry]:
        """*expired* with the timeouts that were asked for."""
        return expired

    def discard(self, uid: Hashable) -> bool:
        """`release()` the lease of *uid*; False if it is not registered. O(1)."""
        lease = self._leases.get(uid)
        return lease is not None and lease.release()

    # The server moves the lease of a connection several times per request: what these
    # three do in the ordinary case is written out.
    def _suspend(self, lease: Lease) -> bool:
        chunk, never = lease._chunk, self._never
        if chunk is None or chunk.slot.epoch is never:
            return False
        self._move(lease, never, chunk.slot.key)
        self._suspended += 1
        self._changed(lease)
        return True

    def _resume(self, lease: Lease, now: float) -> bool:
        if type(now) is not float or not self._latest <= now < OPEN:
            now = check_now(now, self._latest)
        chunk = lease._chunk
        if chunk is None or chunk.slot.epoch is not self._never:
            return False
        self._latest = now
        if len(self._leases) == self._suspended:
            self._close(now)  # while nothing was armed, nothing kept the epochs going
        lease._epoch = self._open
        self._move(lease, self._open, chunk.slot.key)
        self._changed(lease)
        return True

    def _retime(self, lease: Lease, timeout: float | None, now: float, reason: str | None) -> bool:
        if timeout is not None and (type(timeout) is not float or not 0.0 < timeout < OPEN):
            timeout = check_timeout("timeout", timeout)
        if type(now) is not float or not self._latest <= now < OPEN:
            now = check_now(now, self._latest)
        chunk = lease._chunk
        if chunk is None:
            return False
        self._latest = now
        slot = chunk.slot
        key = (timeout, slot.key[1] if reason is None else reason)
        if slot.epoch is self._never:
            self._move(lease, slot.epoch, key)
            self._suspended += 1
        else:
            self._move(lease, lease._epoch, key)
        self._changed(lease)
        return True

    def _move(self, lease: Lease, epoch: Epoch, key: Key) -> None:
        """Take *lease*, which stays registered, out of its slot, and put it into that
        of *epoch* and *key*.
        """
        # `slots.remove`, written out.
        chunk = lease._chunk
        items = chunk.items
        items[lease._pos] = None
        chunk.dead = dead = chunk.dead + 1
        if dead + dead > len(items) or chunk.slot.epoch is self._never:
            self._left(chunk)
        slot = epoch.slots.get(key)
        if slot is None:
            slot = self._slot_of(epoch, key)
        # `Slot.add`, written out.
        chunks = slot.chunks
        chunk = chunks[-1] if chunks else slot.room()
        items = chunk.items
        lease._pos = position = len(items)
        if position >= CHUNK:
            chunk = slot.room()
            items = chunk.items
            lease._pos = 0
        lease._chunk = chunk
        items.append(lease)

    def _left(self, chunk: Chunk) -> None:
        """A lease has left *chunk*: make room, and if that emptied the slot and it lay
        far away, take it out of the books. *chunk* is more than half empty, or one of
        those suspended.
        """
        if chunk.dead + chunk.dead > len(chunk.items):
            tidy(chunk)
        slot: Any = chunk.slot
        if slot.epoch is self._never:
            self._suspended -= 1
            if not slot.chunks:
                drop(slot)
        elif not slot.chunks:
            if len(self._leases) - self._suspended <= 1:
                self._last = None  # this was the last one that can come due
            if slot.timer is not None or slot.key[0] is None:
                self._agenda.emptied(slot)

    @property
    def _armed(self) -> int:
        """How many leases can come due: all but those suspended."""
        return len(self._leases) - self._suspended

    # ---- epochs ----------------------------------------------------------------------
    @property
    def epoch_ends(self) -> float:
        """The instant at which the open epoch should be closed. How late that happens
        is how late the loop is.
        """
        return self._open.opened + self.epoch_length

    def close_epoch(self, now: float, at_least: float = 0.0) -> bool:
        """End the open epoch at *now* and open the next: what is touched from here on
        belongs to the next.

        Args:
            now: Seconds; must not be less than any instant named before.
            at_least: Leave the epoch open if it has lasted less than this many seconds.
        Returns:
            Whether it was closed.
        Raises:
            InvalidArgument, ClockWentBackwards: State unchanged.
        Cost: O(distinct (timeout, reason) in the epoch + slots that come near), at most
        `SLOTS_PER_CALL` of both; the next calls do the rest.
        """
        now = check_now(now, self._latest)
        self._latest = now
        closed = now - self._open.opened >= at_least and self._close(now)
        self._agenda.catch_up(now, STEPS_PER_CALL)
        return closed

    def _close(self, now: float) -> bool:
        self._open.closed = now
        self._last = None
        self._epochs = epochs = self._epochs + 1
        # From here on touches lie in it.
        self._open = self._namespace["open_epoch"] = Epoch(now, epochs)
        if self._edge is not None:
            self._namespace["edge"] = now - self._edge
        agenda = self._agenda
        if epochs == 1:
            agenda.origin = now
        agenda.epoch_ended(now)
        return True

    # ---- wakes and reaps -------------------------------------------------------------
    def next_wakeup(self) -> float | None:
        """When `advance` should next be called: the end of the open epoch or the next
        due instant, whichever is first.

        None when nothing is registered, or everything is suspended: then only
        `register`, `resume` or `retime` can change that. An instant in the past means
        there is work now. O(1) amortised.
        """
        if len(self._leases) == self._suspended:
            return None
        agenda = self._agenda
        if agenda.behind:
            return self._latest
        end = self._open.opened + self.epoch_length
        near = agenda.near
        if not near:
            return end
        due = near[0][0] if near[0][2].chunks else agenda.next_due()
        return end if due is None or end < due else due

    def advance(self, now: float, limit: int | None = None) -> list[Expiry]:
        """Move the clock to *now*, note the end of the epoch, and reap what is due:
        `close_epoch`, then `expire`.

        An epoch younger than half its length stays open. Otherwise a wake at a due
        instant in the middle of an epoch would cut it, both parts would fall due at
        instants of their own, and the wakes would multiply.

        Args, Returns, Raises: as `expire`; ClockWentBackwards also when now precedes
        any instant named before.
        """
        check_limit(limit)
        if type(now) is not float or not self._latest <= now < OPEN:
            now = check_now(now, self._latest)
        self._latest = now
        if now - self._open.opened >= self.epoch_length / 2:
            self._close(now)
        self._judged = now
        return self._reap(now, limit, None)

    def expire(
        self, now: float, limit: int | None = None, spare: Spare | None = None
    ) -> list[Expiry]:
        """Reap what is due as of *now*: due <= now.

        It may be given an instant that is already a little past - the one at which
        `close_epoch` was called before the loop was let run - and then judges as of
        that instant.

        Args:
            now: Seconds; must not be less than the last instant judged by.
            limit: Most leases to put to the final check; the rest stays due. None for
                all. With a limit the list may be shorter although more is due, or
                empty, once `STEPS_PER_CALL` steps were spent on leases that live, or
                while slots are left that were to be put where they wait;
                `next_wakeup()` then is not later than now.
            spare: The final check: called once with the leases about to be reaped, in
                order. Those it returns are alive after all and count as averted. They
                are treated as touched now, but for those to which a mapping gives
                False, limits that activity does not move: such a one stays due, and is
                checked again one epoch later. A lease touched or ended during the check
                is not reaped. If it raises, nothing is reaped.
        Returns:
            A new list, earliest due first, ties as they came into their slot; may be
            empty. Their leases have ended.
        Raises:
            InvalidArgument, ClockWentBackwards: State unchanged.
            HookErrors: hooks raised and there is no on_error. All hooks have run;
                `.expired` has the list.
            BaseException: as a hook raised it (KeyboardInterrupt, for one). As with
                HookErrors, `.expired` included.
        Cost: O(reaped + moved).
        """
        check_limit(limit)
        now = check_now(now, self._judged, "after judging by")
        self._judged = now
        if now > self._latest:
            self._latest = now
        return self._reap(now, limit, spare)

    def _reap(self, now: float, limit: int | None, spare: Spare | None) -> list[Expiry]:
        agenda = self._agenda
        left = agenda.catch_up(self._latest, ALL if limit is None else STEPS_PER_CALL)
        near = agenda.near
        if not near or near[0][0] > now:
            return []
        due = agenda.take_due(now, limit, left)
        if not due:
            return []
        if spare is not None:
            due = self._final_check(due, spare)
        self._end_all(due)
        return self._report(due, now)

    def _final_check(self, due: list[Due], spare: Spare) -> list[Due]:
        """What *spare* leaves of *due*."""
        # Into slots of their own: the leases live, and whatever is called on them
        # counts.
        checked: set[IdleSlot] = set()
        for epoch, key, leases in due:
            slot = IdleSlot(epoch, key)
            checked.add(slot)
            for lease in leases:
                slot.add(lease)
        answer: dict[Lease, bool] | None = None
        try:
            spared = spare([lease for group in due for lease in group.leases])
            answer = dict(spared) if isinstance(spared, Mapping) else dict.fromkeys(spared, True)
        finally:
            due = [group._replace(leases=self._left_of(group, checked, answer)) for group in due]
            for slot in checked:
                # Or slot, chunk and leases would be a circle, which only the collector
                # frees.
                slot.chunks.clear()
        return due

    def _left_of(
        self, group: Due, checked: set[IdleSlot], answer: dict[Lease, bool] | None
    ) -> list[Lease]:
        """What is to be reaped of *group*; the others go where they belong. None: the
        check failed, all stay due.

        Args:
            checked: The slots in which the leases lay that were checked.
        """
        left = []
        for lease in group.leases:
            if lease._chunk is None or lease._chunk.slot not in checked:
                continue  # it ended, or was suspended or retimed, during the check
            epoch = lease._epoch
            if answer is not None and epoch is group.epoch:  # not touched during the check
                active = answer.get(lease)
                if active is None:
                    left.append(lease)
                    continue
                self._counts.averted += 1
                if active:
                    lease._epoch = self._open
                epoch = self._open if active else self._agenda.postponed
            self._slot_of(epoch, group.key).add(lease)  # the slot it leaves is thrown away
        return left

    def _end_all(self, due: list[Due]) -> None:
        strays = 0
        for group in due:
            for lease in group.leases:
                lease._chunk = None
                strays += not self._forget(lease)
        if strays:
            self._forget_strays()
        if not self._armed:
            self._last = None

    def _forget(self, lease: Lease) -> bool:
        """Take *lease*, which has ended, out of the books. False if its uid does not
        lead to it any more.
        """
        try:
            found = self._leases.pop(lease.uid, None)
        except Exception:  # of the uid's own __hash__ or __eq__
            found = None
        return found is lease or self._forget_odd(lease, found)

    def _forget_odd(self, lease: Lease, found: Lease | None) -> bool:
        """`_forget`, where the uid of *lease* led to *found*, which has been taken out
        instead.
        """
        try:
            if found is not None:
                self._leases[found.uid] = found
        except Exception:  # as above
            pass
        return self._leases.pop(lease, None) is lease

    def _lost(self, lease: Lease, found: Lease | None) -> None:
        """Take *lease*, which has ended, out of the books all the same."""
        if not self._forget_odd(lease, found):
            self._forget_strays()

    def _forget_strays(self) -> None:
        """Find ended leases whose uid has another hash than at first, or raises; those
        that raise get another key.
        """
        leases: dict[Any, Lease] = {}
        for uid, lease in self._leases.items():
            if lease._chunk is not None:
                try:
                    leases[lease if uid in leases else uid] = lease
                except Exception:
                    leases[lease] = lease
        self._leases = leases

    def _report(self, due: list[Due], now: float) -> list[Expiry]:
        expired: list[Expiry] = []
        for epoch, (timeout, reason), leases in due:
            assert timeout is not None  # what has none is never due
            instant = epoch.closed + timeout
            lateness = now - instant
            if leases and lateness > self._counts.max_lateness:
                self._counts.max_lateness = lateness
            expired += [
                Expiry(lease.uid, lease, reason, instant, now, lateness, timeout)
                for lease in leases
            ]
        expired = self._as_asked(expired)
        self._counts.expired += len(expired)
        if self._hooks:
            call_hooks(
                [self._hooks.pop(expiry.lease, None) for expiry in expired], expired, self._on_error
            )
        return expired

    # ---- looking in ------------------------------------------------------------------
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
        """Up to *n* uids, longest idle first; suspended ones never. Ties (one epoch) in
        the order of arrival in a slot.

        For eviction under pressure. Cost: O(leases in the slots it looks into), in the
        worst case all of them.
        """
        check_count("n", n, 0)
        agenda = self._agenda
        return oldest(agenda.slots, (slot for slot in agenda.unfiled if slot.epoch.serial < 0), n)

    def statistics(self) -> Statistics:
        """A snapshot of the counters; taking it costs O(1)."""
        return Statistics(
            registered=len(self._leases),
            suspended=self._suspended,
            slots=len(self._agenda.near),
            slots_in_wheel=len(self._agenda.far),
            epochs=self._epochs,
            moved=self._agenda.moved,
            **asdict(self._counts),
        )

    def check(self) -> None:
        """Verify every invariant, O(n), for tests.

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        check(self)


class RoundingReaper(IdleReaper):
    """An `IdleReaper` whose connections have timeouts of their own: see the theory. One
    becomes this by itself, never directly.
    """

    _quarter: float

    def _rounded(self, timeout: float) -> float:
        """*timeout*, > 0, up to the next whole quarter of a tick. Never less: the
        quotient's floor is exact, and a product is rounded to the nearest float, of
        which *timeout* is one.
        """
        quarters = -(-timeout // self._quarter)
        # Beyond this a float does not tell quarters apart.
        return quarters * self._quarter if quarters < MOST_QUARTERS else timeout

    def _asked_of(self, lease: Lease, waits: float | None) -> float | None:
        asked = getattr(lease, "asked", waits)
        hook = self._hooks.get(lease)
        return hook.timeout if type(hook) is Asked else asked

    def _ask(self, lease: Lease, timeout: float | None, waits: float | None) -> None:
        """Note the *timeout* that was asked for *lease*, whose slot's key will say
        *waits*.
        """
        if hasattr(type(lease), "asked"):
            lease.asked = timeout  # type: ignore[attr-defined]
            return
        hook = self._hooks.pop(lease, None)
        if type(hook) is Asked:
            hook = hook.hook
        if timeout != waits:
            hook = Asked(timeout, hook)
        if hook is not None:
            self._hooks[lease] = hook

    def register(
        self,
        uid: Hashable,
        timeout: float | None,
        now: float,
        on: Hook | None = None,
        *,
        reason: str = "idle",
        since: Lease | None = None,
    ) -> Lease:
        # Written out as in the base class, and for the same reason.
        slot = quarters = None
        if since is not None:
            if not isinstance(since, Lease) or since._core is not self:
                raise InvalidArgument(f"since must be a lease of this core, got {shown(since)}")
            timeout = None if timeout is None else check_timeout("timeout", timeout)
        elif type(timeout) is float and 0.0 < timeout < OPEN:
            quarters = -(-timeout // self._quarter)
            if self._last is not None and reason is self._last_reason:
                slot = self._by_quarters.get(quarters)
        elif timeout is not None:
            timeout = check_timeout("timeout", timeout)
        if type(now) is not float or not self._latest <= now < OPEN:
            now = check_now(now, self._latest)
        lease = self._lease_type()
        lease.uid = uid
        lease.asked = timeout
        if self._leases.setdefault(uid, lease) is not lease:
            raise DuplicateUid(f"uid {shown(uid)} is registered already; release its lease first")
        self._latest = now
        if slot is None:
            known = self._last is not None and reason is self._last_reason
            key = None if timeout is None else self._rounded(timeout), reason
            slot = self._slot_like(key, timeout, since, now)
            if since is None and not known:
                self._by_quarters = {}
            if quarters is not None and quarters < MOST_QUARTERS:
                self._by_quarters[quarters] = slot
        elif slot.epoch is not self._open:  # the uid's own __hash__ has closed it
            slot = self._slot_of(self._open, slot.key)
        lease._epoch = slot.epoch
        # `Slot.add`, written out.
        chunks = slot.chunks
        chunk = chunks[-1] if chunks else slot.room()
        items = chunk.items
        lease._pos = position = len(items)
        if position >= CHUNK:
            chunk = slot.room()
            items = chunk.items
            lease._pos = 0
        lease._chunk = chunk
        items.append(lease)
        if on is not None:
            self._hooks[lease] = on
        return lease

    def _retime(self, lease: Lease, timeout: float | None, now: float, reason: str | None) -> bool:
        waits = None if timeout is None else self._rounded(check_timeout("timeout", timeout))
        now = check_now(now, self._latest)
        if lease._chunk is None:
            return False
        self._ask(lease, timeout if timeout is None else float(timeout), waits)
        return super()._retime(lease, waits, now, reason)

    def _as_asked(self, expired: list[Expiry]) -> list[Expiry]:
        return [
            Expiry(*fields[:-1], self._asked_of(fields[1], fields[-1]))  # type: ignore[arg-type]
            for fields in expired
        ]
