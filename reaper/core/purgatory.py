"""Operations that wait for something to happen, or for their deadline, whichever comes
first; and where they wait.

These are DelayedOperation and DelayedOperationPurgatory of Apache Kafka, with one
difference. There an operation that has ended stays in the watch lists of its other keys
until a purge walks through them. *Here it takes itself out of each list and of the
timer queue when it ends*, in O(1) a key, so there is nothing to purge.

An operation waits under keys. After changing what it may be waiting for, call
`check_and_complete(key)`. Not thread-safe: one event loop. Hooks may call back into the
purgatory; they run with nothing half done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable

from ..errors import HookErrors, InvalidArgument, InvariantViolated, shown
from .ticks import check_count, check_limit
from .wheel import TimerEntry, TimerQueue


class DelayedOperation:
    """Something that is done as soon as its condition holds, and at its deadline at the
    latest.

    Override `try_complete`, and `on_complete` and `on_expiration` as needed; call this
    constructor.

    Args:
        deadline: The absolute instant at which it expires, in the unit of its
            purgatory's timer queue.
    Raises:
        InvalidArgument: *deadline* is not an int.
    """

    __slots__ = (
        "_cancelled",
        "_completed",
        "_deadline",
        "_expired",
        "_keys",
        "_purgatory",
        "_timer",
    )

    def __init__(self, *, deadline: int) -> None:
        if type(deadline) is not int:
            raise InvalidArgument(
                f"deadline must be an int in the timer queue's unit, got {shown(deadline)}"
            )
        self._deadline = deadline
        self._completed = self._cancelled = self._expired = False
        self._purgatory: Purgatory | None = None  # while it waits
        self._timer: TimerEntry[DelayedOperation] | None = None
        self._keys: tuple[Hashable, ...] = ()

    @property
    def deadline(self) -> int:
        """The absolute instant at which it expires, in the unit of its purgatory's
        timer queue.
        """
        return self._deadline

    @property
    def completed(self) -> bool:
        """True once `force_complete` has been the one to end it, or it has expired."""
        return self._completed

    @property
    def expired(self) -> bool:
        """True once its deadline has been what ended it: while `on_complete` runs
        already. Then it is completed too.
        """
        return self._expired

    @property
    def cancelled(self) -> bool:
        """True once `Purgatory.cancel_for_key` has been the one to end it."""
        return self._cancelled

    def try_complete(self) -> bool:
        """Override: if what is waited for has come true, return
        `self.force_complete()`, else False.

        Called once before the operation begins to wait, then whenever one of its keys
        is checked; never after its end.
        """
        raise NotImplementedError(f"{type(self).__name__} must override try_complete")

    def force_complete(self) -> bool:
        """End the operation now: nothing knows of it any more when `on_complete` is
        called.

        Returns:
            True if this call ended it, which is so exactly once; False if it had
            completed, expired or been cancelled.
        Raises: whatever `on_complete` raises; the operation has ended all the same.
        """
        if self._completed or self._cancelled:
            return False
        self._completed = True
        if self._purgatory is not None:
            self._purgatory._forget(self)
        self.on_complete()
        return True

    def on_complete(self) -> None:
        """Override: what to do at the end, early or late. Called exactly once, unless
        cancelled.
        """

    def on_expiration(self) -> None:
        """Override: what to do besides when the deadline ended it. Called after
        `on_complete`.
        """


class Purgatory:
    """Where delayed operations wait: in watch lists by key, and in a timer queue.

    Args:
        wheel: The timer queue, a `TimingWheel` as a rule. Purgatories may share one
            (each then expires what is due for all); nothing but operations may be
            scheduled in it.
        purge_interval: Taken, checked and of no effect: after so many completed
            operations Kafka's purgatory purges.
    Raises:
        InvalidArgument: *purge_interval* is not an int >= 1.
    """

    def __init__(self, wheel: TimerQueue[DelayedOperation], purge_interval: int = 1000) -> None:
        check_count("purge_interval", purge_interval, 1)
        self._timers = wheel
        # By key, the operations that wait under it, in the order in which they began
        # to; by id, for a subclass may define equality. A list exists while there is
        # one.
        self._lists: dict[Hashable, dict[int, DelayedOperation]] = {}
        self._watched = 0
        self._delayed = 0
        # Handed out by the timer queue, and not expired yet.
        self._expiring: deque[TimerEntry[DelayedOperation]] = deque()
        self._now: int | None = None

    def __repr__(self) -> str:
        return f"<Purgatory delayed={self._delayed} watched={self._watched}>"

    @property
    def watched(self) -> int:
        """Entries in all watch lists: the keys of every waiting operation. Exact.
        O(1).
        """
        return self._watched

    @property
    def delayed(self) -> int:
        """Operations still waiting. Exact. O(1)."""
        return self._delayed

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> bool:
        """Let *operation* complete at once if it can; otherwise let it wait under each
        of *keys* and for its deadline.

        Args:
            operation: One that does not wait anywhere.
            keys: What it waits under; equal ones count once. With none, only the
                deadline or its owner ends it.
        Returns:
            True if it has ended, now or before, and so waits nowhere; False if it waits
            now.
        Raises:
            InvalidArgument: it waits already, or *keys* is a string. State unchanged.
            Exception: what `try_complete` raised. It does not wait then.
        Timing: one with its deadline in the past waits too, until the next `advance`.
        Cost: O(keys).
        """
        if isinstance(keys, str):
            raise InvalidArgument(
                f"keys must be an iterable of keys, not one string, got {shown(keys)}"
            )
        if operation._purgatory is not None:
            raise InvalidArgument(
                f"operation must not wait in a purgatory already, got {shown(operation)}"
            )
        distinct = dict.fromkeys(keys)
        # One try is enough: with one thread, nothing can come true between it and the
        # end of this method, except through the caller's own hooks; those may also end
        # the operation or, perversely, let it wait already.
        if not (operation._completed or operation._cancelled):
            operation.try_complete()
        if operation._completed or operation._cancelled:
            return True
        if operation._purgatory is not None:
            raise InvalidArgument(
                f"operation must not begin to wait in its own try_complete, got {shown(operation)}"
            )
        operation._timer = self._timers.schedule(operation._deadline, operation)
        for key in distinct:
            self._lists.setdefault(key, {})[id(operation)] = operation
        operation._keys = tuple(distinct)
        operation._purgatory = self
        self._watched += len(distinct)
        self._delayed += 1
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Let every operation that waits under *key* try to complete, in the order in
        which they began to wait.

        Returns:
            How many of those tries completed their operation; 0 for a key under which
            none waits.
        Raises:
            HookErrors: hooks raised; every operation has had its try first. `expired`
                lists those that completed.
        Cost: O(operations that wait under *key*, or have ended since one was last added
        there).
        """
        done: list[DelayedOperation] = []
        errors: list[Exception] = []
        for operation in list(self._lists.get(key, {}).values()):
            if operation._purgatory is not self:  # a hook of an earlier one has ended it
                continue
            _call(operation.try_complete, errors, done)
            if operation._completed:
                done.append(operation)
        if errors:
            raise HookErrors(f"{len(errors)} hooks raised while {key!r} was checked", errors, done)
        return len(done)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """End every operation that waits under *key* without calling any of its hooks.

        Returns:
            A new list of them, in the order in which they began to wait; empty for a
            key under which none waits. They are out of their other keys' lists too and
            can never complete.
        Cost: O(operations waiting under *key*, times their keys).
        """
        operations = list(self._lists.get(key, {}).values())
        for operation in operations:
            operation._cancelled = True
            self._forget(operation)
        return operations

    def advance(self, now: int, limit: int | None = None) -> list[DelayedOperation]:
        """Move the clock to *now* and expire what is due: `on_complete`, then
        `on_expiration`, of one after the other.

        Args:
            now: An instant in the timer queue's unit; must not decrease.
            limit: Most operations to expire in this call, >= 1; the others stay due and
                may still complete. None: all.
        Returns:
            A new list of those that expired, earliest deadline first, ties in the order
            in which they began to wait. One that a hook of an earlier one completed is
            not among them.
        Raises:
            ClockWentBackwards: *now* precedes the timer queue's clock. State unchanged.
            InvalidArgument: *now* is not an int, or *limit* is neither None nor an int
                >= 1. State unchanged.
            HookErrors: hooks raised; every due operation (up to *limit*) was expired
                first. `expired` lists them.
            BaseException: as a hook raised it; its `expired` lists those expired so
                far, the others stay due.
        Timing: never before the deadline; see the timer queue for the latest moment.
        """
        check_limit(limit)
        self._expiring += self._timers.advance(now)
        self._now = now
        expired: list[DelayedOperation] = []
        errors: list[Exception] = []
        # Taken one by one from a queue that outlives this call: whatever a
        # KeyboardInterrupt cuts short stays due.
        while self._expiring and (limit is None or len(expired) < limit):
            operation: DelayedOperation = self._expiring.popleft().item
            if operation._completed or operation._cancelled:
                continue
            operation._expired = True
            expired.append(operation)
            _call(operation.force_complete, errors, expired)
            _call(operation.on_expiration, errors, expired)
        if errors:
            raise HookErrors(
                f"{len(errors)} hooks raised while operations expired", errors, expired
            )
        return expired

    def next_expiry(self) -> int | None:
        """When `advance` next has work to do, in the timer queue's unit; None if
        nothing waits. O(1) amortised.
        """
        while self._expiring and self._expiring[0].item._purgatory is None:
            self._expiring.popleft()  # left over from a slice, and ended since
        return self._now if self._expiring else self._timers.next_expiry()

    def check(self) -> None:
        """Verify every invariant, O(operations); for tests.

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        waiting: dict[int, DelayedOperation] = {}
        for key, watching in self._lists.items():
            if not watching:
                raise InvariantViolated(f"the watch list of {key!r} is empty")
            for operation in watching.values():
                if operation._purgatory is not self or operation._completed or operation._cancelled:
                    raise InvariantViolated(
                        f"{operation!r} has ended and is still watched under {key!r}"
                    )
                if key not in operation._keys:
                    raise InvariantViolated(
                        f"{operation!r} does not know that it is watched under {key!r}"
                    )
            waiting |= watching
        watched = sum(map(len, self._lists.values()))
        if watched != self._watched or watched != sum(len(each._keys) for each in waiting.values()):
            raise InvariantViolated(
                f"the purgatory counts {self._watched} watch entries, holds {watched}"
            )
        if len(waiting) > self._delayed:  # fewer is fine: an operation may wait under no key at all
            raise InvariantViolated(
                f"the purgatory counts {self._delayed} operations, holds {len(waiting)}"
            )

    def _forget(self, operation: DelayedOperation) -> None:
        """Take *operation*, which waits here, out of every list and out of the timer
        queue. O(its keys).
        """
        for key in operation._keys:
            watching = self._lists[key]
            del watching[id(operation)]
            if not watching:
                del self._lists[key]
        assert operation._timer is not None  # it waits
        operation._timer.cancel()
        self._watched -= len(operation._keys)
        self._delayed -= 1
        operation._keys = ()
        operation._timer = operation._purgatory = None


def _call(
    hook: Callable[[], object], errors: list[Exception], ended: list[DelayedOperation]
) -> None:
    try:
        hook()
    except Exception as error:
        errors.append(error)
    except BaseException as error:
        error.expired = ended  # type: ignore[attr-defined]
        raise
