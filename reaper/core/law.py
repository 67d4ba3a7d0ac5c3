"""The law of time, before any slot: *never early; at most one tick late, plus the loop's own stall; exactly once*.

How it is kept, in four moves:

    touch    stores the open epoch in the lease. Nothing else happens.
    close    gives the open epoch its real closing instant and opens the next. What was last touched in it is due at
             closed + timeout, exactly, on no grid. A touch at t lies in an epoch with t <= closed, so nothing is due
             before t + timeout, whatever the loop did.
    wait     until the open epoch should end or something is due, whichever comes first.
    expire   takes what is due, lets the final check spare some of it, and reports the rest. What was touched since
             lies in a later epoch, and is not due.

`Law` says when. Where the leases lie meanwhile, and how those of one epoch are found again, is for `IdleReaper` to say,
with its slots (reaper.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..errors import HookErrors, InvalidArgument, shown
from .lease import OPEN, Epoch, Expiry, Hook, Key, Lease
from .ticks import check_count, check_instant, check_limit, check_now, check_timeout, next_multiple

MOVES_PER_CALL = 4096
"""Steps of work that one `expire` with a limit may take although it found nothing to reap. About 1 ms."""

Spare = Callable[[Sequence[Lease]], Collection[Lease] | Mapping[Lease, float | None]]
"""The final check: of these leases, which are to live on? As a collection: those that have shown a sign of life, and
count as touched now. As a mapping: each with the instant of its last activity, or None; see `Law.expire`."""

ErrorHook = Callable[[Exception, Expiry], object]


class Due(NamedTuple):
    """Leases that fell silent in one epoch, with one timeout and one reason."""

    epoch: Epoch
    key: Key
    leases: list[Lease]

    @property
    def timeout(self) -> float:
        """Seconds."""
        timeout = self.key[0]
        assert timeout is not None  # what has none is never due
        return timeout


@dataclass(slots=True)
class Counts:
    """The law's counters, by their names in `Statistics`. Together, because an instance with more than 30 attributes is
    slow to read in CPython 3.11."""

    expired: int = 0
    moved: int = 0
    averted: int = 0
    released: int = 0
    max_lateness: float = 0.0


class Law(ABC):
    """When: the clock, the open epoch, the hooks and the counters of a core.

    All times are float seconds on one monotonic clock of the caller's. Not thread-safe: one event loop, one core.

    Args:
        tick: Precision, seconds, > 0: how late a reap may be.
        epochs_per_tick: Epochs per tick, 1 to 1,000,000. With 1 the law's whole tick may be spent between a touch and
            the end of its epoch; with 2 half a tick stays in hand for a loop that wakes late.
        on_error: Called with (error, expiry) when a hook raises. None: see `expire`.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(self, tick: float, epochs_per_tick: int, on_error: ErrorHook | None) -> None:
        self.tick: float = check_timeout("tick", tick)
        self._epoch_length = self.tick / check_count("epochs_per_tick", epochs_per_tick, 1, 1_000_000)
        if self._epoch_length == 0:
            raise InvalidArgument(f"tick must be a duration that can be divided into epochs, got {shown(tick)}")
        self._on_error = on_error
        self._hooks: dict[Any, Hook] = {}  # by lease
        self._armed = 0  # leases that can come due
        self._open = Epoch(0.0, 0)
        self._made_up: dict[float, Epoch] = {}  # by closing instant, since the open epoch was opened
        self._latest = float("-inf")  # the latest instant that any call has named
        self._judged = float("-inf")  # the latest instant that `expire` has judged by
        self._epochs = 0  # closed so far
        self._counts = Counts()

    # ---- epochs --------------------------------------------------------------------------------------------------

    @property
    def epoch_length(self) -> float:
        """Seconds that an epoch lasts when it is closed on time: tick / epochs_per_tick."""
        return self._epoch_length

    @property
    def epoch_ends(self) -> float:
        """The instant at which the open epoch should be closed. How late that happens is how late the loop is."""
        return self._open.opened + self._epoch_length

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
        return now - self._open.opened >= at_least and self._close(now)

    def _close(self, now: float) -> bool:
        ended = self._open
        ended.closed = now
        self._epochs += 1
        self._open = Epoch(now, self._epochs)
        if self._made_up:
            self._made_up.clear()
        self._settle(ended)
        return True

    def _wake_up(self, now: float) -> None:
        """Before something is armed at *now*: while nothing was armed, nothing kept the epochs going."""
        self._latest = now
        if not self._armed:
            self._close(now)

    def _check_since(self, since: float | Lease, now: float) -> float | Lease:
        if isinstance(since, Lease):
            core: object = since._core
            if core is not self:
                raise InvalidArgument(f"since must be an instant or a lease of this core, got {shown(since)}")
            return since
        since = check_instant("since", since)
        if since > now:
            raise InvalidArgument(f"since must not be after now, {now!r}, got {shown(since)}")
        return since

    def _make_up(self, since: float, opened: float) -> Epoch:
        """An epoch for an activity at *since*, before *opened*, the beginning of the oldest one that is remembered.

        It closes less than an epoch after *since*. Those whose instants lie close together share it, so that many of
        them make few slots.
        """
        closed = min(next_multiple(since, self._epoch_length), opened)
        epoch = self._made_up.get(closed)
        if epoch is None:
            epoch = self._made_up[closed] = Epoch(closed - self._epoch_length, 0)
            epoch.closed = closed
        return epoch

    # ---- wakes ---------------------------------------------------------------------------------------------------

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

    def advance(self, now: float, limit: int | None = None) -> list[Expiry]:
        """Move the clock to *now*, note the end of the epoch, and reap what is due: `close_epoch`, then `expire`.

        An epoch younger than half its length stays open. Otherwise a wake at a due instant in the middle of an epoch
        would cut it, both parts would fall due at instants of their own, and the wakes would multiply.

        Args, Returns, Raises: as `expire`; ClockWentBackwards also when now precedes any instant named before.
        """
        check_limit(limit)
        self.close_epoch(now, at_least=self._epoch_length / 2)
        self._judged = now = self._latest
        return self._reap(now, limit, None)

    # ---- reaping -------------------------------------------------------------------------------------------------

    def expire(self, now: float, limit: int | None = None, spare: Spare | None = None) -> list[Expiry]:
        """Reap what is due as of *now*: due <= now.

        It may be given an instant that is already a little past - the one at which `close_epoch` was called before the
        loop was let run - and then judges as of that instant.

        Args:
            now: Seconds; must not be less than the last instant judged by.
            limit: Most leases to put to the final check; the rest stays due. None for all. With a limit the list may
                be empty although more is due, once `MOVES_PER_CALL` steps were spent on leases that live;
                `next_wakeup()` then is not later than now.
            spare: The final check: called once with the leases about to be reaped, in order. Those it returns are
                alive after all and count as averted. In a collection they are treated as touched now. In a mapping
                each has the instant of its last activity, and is reaped all the same if it is due even so; or None,
                for limits that activity does not move: it stays due, and is checked again one epoch later. A lease
                touched or ended during the check is not reaped. If it raises, nothing is reaped.
        Returns:
            A new list, earliest due first, ties in the order of arrival in their slot; may be empty. Their leases have
            ended.
        Raises:
            InvalidArgument, ClockWentBackwards: State unchanged.
            HookErrors: hooks raised and there is no on_error. All hooks have run; `.expired` has the list.
            BaseException: as a hook raised it (KeyboardInterrupt, for one). As with HookErrors, `.expired` included.
        Cost: O(reaped + moved).
        """
        check_limit(limit)
        now = check_now(now, self._judged, "after judging by")
        self._judged = now
        if now > self._latest:
            self._latest = now
            self._lower(now)
        return self._reap(now, limit, spare)

    def _reap(self, now: float, limit: int | None, spare: Spare | None) -> list[Expiry]:
        due = self._take_due(now, limit)
        if not due:
            return []
        if spare is not None:
            due = self._final_check(due, spare, now)
        self._end_all(due)
        return self._report(due, now)

    def _final_check(self, due: list[Due], spare: Spare, now: float) -> list[Due]:
        try:
            spared = _verdicts(spare([lease for group in due for lease in group.leases]))
        except BaseException:
            for group in due:
                self._put_back(group._replace(leases=self._silent_of(group)))
            raise
        left = []
        for group in due:
            silent = []
            for lease in self._silent_of(group):
                if lease in spared and self._revive(lease, group, spared[lease], now):
                    self._counts.averted += 1
                else:
                    silent.append(lease)
            left.append(group._replace(leases=silent))
        return left

    def _report(self, due: list[Due], now: float) -> list[Expiry]:
        expired: list[Expiry] = []
        for group in due:
            epoch, (_, reason), leases = group
            timeout = group.timeout
            instant = epoch.closed + timeout
            lateness = now - instant
            if leases and lateness > self._counts.max_lateness:
                self._counts.max_lateness = lateness
            expired += [Expiry(lease.uid, lease, reason, instant, now, lateness, timeout) for lease in leases]
        self._counts.expired += len(expired)
        if self._hooks:
            call_hooks([self._hooks.pop(expiry.lease, None) for expiry in expired], expired, self._on_error)
        return expired

    def _common(self) -> dict[str, Any]:
        """The fields of `Statistics` that are the law's."""
        return {"epochs": self._epochs, **asdict(self._counts)}

    # ---- where the leases lie, which is for `IdleReaper` to say ---------------------------------------------------

    @abstractmethod
    def _settle(self, ended: Epoch) -> None:
        """Publish the open epoch, in which touches lie from now on, and have *ended* looked at when it is due."""

    @abstractmethod
    def _next_due(self) -> float | None:
        """The earliest instant at which something may be due; None while that is not known before an epoch ends."""

    @abstractmethod
    def _lower(self, now: float) -> None:
        """The clock has come to *now* without an epoch's end: fetch what has come near."""

    @abstractmethod
    def _take_due(self, now: float, limit: int | None) -> list[Due]:
        """Up to *limit* leases that have been silent until they fell due, earliest due first."""

    @abstractmethod
    def _silent_of(self, group: Due) -> list[Lease]:
        """The leases of *group* that were neither touched nor changed nor ended during the final check."""

    @abstractmethod
    def _put_back(self, group: Due) -> None:
        """The final check failed: *group* stays due."""

    @abstractmethod
    def _revive(self, lease: Lease, group: Due, since: float | None, now: float) -> bool:
        """*lease* was spared: active at *since* (`OPEN`: now), or due still if None. False: it is due even so."""

    @abstractmethod
    def _end_all(self, due: list[Due]) -> None:
        """Take the leases of *due* out of the books: they have ended."""


def call_hooks(hooks: Sequence[Hook | None], expired: list[Expiry], on_error: ErrorHook | None) -> None:
    """Call the hook of each of *expired*, whatever the others do. The books are closed: a hook may call anything.

    Args:
        hooks: One for each of *expired*, None where there is none.
        on_error: Called with (error, expiry) when a hook raises. None: see Raises.
    Raises:
        HookErrors: hooks raised and there is no *on_error*, or it raised too. All have run; `.expired` has the list.
        BaseException: the first one that is no Exception, with the list as its attribute `expired`. All have run.
    """
    errors: list[Exception] = []
    fatal: BaseException | None = None
    for hook, expiry in zip(hooks, expired, strict=True):
        if hook is None:
            continue
        try:
            try:
                hook(expiry)
            except Exception as error:
                if on_error is None:
                    raise
                on_error(error, expiry)
        except Exception as error:
            errors.append(error)
        except BaseException as error:
            fatal = fatal or error
    group = HookErrors("hooks raised while reaping", errors, expired) if errors else None
    if fatal is not None:
        fatal.expired = expired  # type: ignore[attr-defined]
        raise fatal from group
    if group is not None:
        raise group


def _verdicts(spared: Collection[Lease] | Mapping[Lease, float | None]) -> dict[Lease, float | None]:
    """What the final check said of each lease that it named: the instant of its last activity; `OPEN`: now."""
    if not isinstance(spared, Mapping):
        return dict.fromkeys(spared, OPEN)
    return {lease: None if since is None else check_instant("last activity", since) for lease, since in spared.items()}
