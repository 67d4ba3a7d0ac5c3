"""The driver: what an adapter's one task, or one timer, does at each wake, in pure
steps.

The rule of this module: after any wake, no connection is judged before the loop has had
the chance to read what arrived while it was busy. So a wake is two steps, and between
them the adapter lets the loop run:

    look    take `now`, close the epoch at it (what is read from here on belongs to the
            next epoch), and say whether something may be due
    ...     two scheduling passes; with one, four of ten live connections were closed
            after a stall, with two none
    act     ask the kernel for bytes that are still unread, then reap as of that `now`,
            a slice at a time

It reads the loop's clock by the function it was given and knows no framework.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from ..config.settings import ReaperConfig
from ..core.lease import Epoch, Hook, Lease
from ..core.reaper import IdleReaper
from ..core.slices import slices, walk
from ..core.ticks import check_timeout, ms_to_seconds, seconds_to_ms_deadline
from ..metrics import LoopStatistics
from ..policy.reasons import DRAIN, DRAIN_DEADLINE, IDLE
from .ends import Books, log
from .options import Options, parts, spelled_out
from .pace import CHECKED_AT_ONCE, REAPS_PER_SLICE, Pace
from .sockets import tcp_info_of, unread, waiting
from .stall_clock import StallClock
from .vanished import Vanished
from .watched import (
    PROBE_GRACE,
    DeadlineKey,
    Probe,
    Reapable,
    Watched,
    check_idle,
    check_watch,
)


class Call:
    """A function that is called once, at an instant. `Driver.after` makes it."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], object]) -> None:
        self.function: Callable[[], object] | None = function

    def cancel(self) -> None:
        """Never call it. Does nothing if it was called or cancelled before."""
        self.function = None


class Came(NamedTuple):
    """What had come on a connection when a limit of it fell due."""

    since: tuple[Epoch, float | None]
    """The epoch and the timeout of its lease: with others it is another limit."""
    received: int
    """Bytes, read or not."""


class Driver:
    """Watches the connections of one event loop.

    Args:
        clock: The loop's clock: monotonic float seconds.
        wake: Called when something is due earlier than `rest` has said: the adapter
            calls `rest` anew, soon.
        probe: Called with a connection whose `probe` is to be sent: run it as a task,
            and log what it raises.
        config: Tick, wheel size and the default idle timeout; None for the defaults.
        idle: Seconds of silence allowed where nothing else is said; 0 is off; None: the
            config's `timeouts.idle`.
        options: See `Options`.
    Attributes:
        core: The `IdleReaper`. Its times are those of `now`.
        clock: The `StallClock`.
        books: Where every end is entered.
        config, idle: The configuration and the default timeout in force.
        phase: 0..1: the share of an epoch after which the first epoch ends, if there
            was nothing to watch before; 0 means all of it. Give each of several
            processes that the same clients meet a phase of its own, or all of them wake
            at once.
        on_empty: Called when the last of `connections` has ended.
        connections: The connections watched now, by uid. Parked ones are not among
            them.
        cpu: CPU seconds that `look` and `act` have used.
    Raises:
        InvalidArgument: by name and value.
    """

    @spelled_out
    def __init__(
        self,
        clock: Callable[[], float],
        wake: Callable[[], None],
        probe: Callable[[Any], None],
        config: ReaperConfig | None = None,
        *,
        idle: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        made = parts(config, idle, options)
        self.config: ReaperConfig = made.config
        self.core: IdleReaper = made.core
        self._jitter = made.jitter
        self._bucket = made.bucket
        self.idle: float = made.idle
        self.phase: float = 0.0
        self._first_ends = math.inf  # by the phase
        self.on_empty: Callable[[], object] = lambda: None
        self.clock: StallClock = StallClock(clock, self.core.tick)
        self.books: Books = Books(self.core, self.clock, made.journal, made.listener)
        self.connections: dict[int, Watched] = {}
        self.cpu: float = 0.0
        self._wake = wake
        self._probe = probe
        self._numbers = itertools.count(1)
        self._calls: list[tuple[float, int, Call]] = []  # a heap, by instants of `now`
        self._draining = False
        self._looked_at = 0.0  # the `now` of the latest final check
        self._probed: list[Watched] = []
        self._checked = 0  # leases of the latest final check
        self._pace = Pace()
        self._came: dict[Lease, Came] = {}  # of limits that were spared and stay due
        self.vanished: Vanished = Vanished(self, self.config.timeouts.vanished)

    # ---- time ------------------------------------------------------------------------
    def now(self) -> float:
        """Seconds in which the loop was awake: the clock of the core, and of everything
        here.
        """
        # A program that calls the core itself with instants of the loop's clock may be
        # ahead of ours by what the loop has stalled. The core's time must not decrease.
        return max(self.clock.now(), self.core._latest)

    def rest(self) -> float:
        """When `look` should next be called, on the loop's own clock.

        An instant in the past means now, infinity means never.
        """
        clock = self.clock
        if clock.read() < clock.expected:
            clock.expect(self._next_wakeup())
        return clock.expected

    def poke(self) -> None:
        """Wake the adapter if something that was just armed is due before it would
        wake.
        """
        clock = self.clock
        expected = clock.expected
        # This is called several times per request, and nearly always for nothing,
        # because what was armed is due after the open epoch.
        wake = self.core.next_wakeup()
        if wake is not None and wake + clock.stalled < expected:
            if self.phase and expected == math.inf:
                self._first_ends = self.now() + self.phase * self.core.epoch_length
            self._hurry(self._next_wakeup())

    def _hurry(self, wake: float) -> None:
        clock = self.clock
        wake = max(wake, clock.now())
        if wake + clock.stalled < clock.expected:
            clock.expect(wake)
            self._wake()

    def _next_wakeup(self) -> float:
        wake = self.core.next_wakeup()
        if wake is not None and self._bucket is not None:
            # What is due waits until the rate allows it; the end of the epoch does not.
            # Where the rate allows it, the instant stays as it is: `look` compares it
            # with an older now than this one, which must not be taken for a time to
            # come.
            now = self.now()
            if wake <= now < (ready := self._bucket.ready(now)):
                wake = min(self.core.epoch_ends, ready)
        calls = self._calls
        while calls and calls[0][2].function is None:
            heappop(calls)
        return min(
            math.inf if wake is None else wake, calls[0][0] if calls else math.inf, self._first_ends
        )

    def look(self) -> bool:
        """Take `now` and close the epoch.

        Returns:
            True: let the loop run two passes, then call `act`. False: nothing is due;
            `rest` again.
        """
        before = time.thread_time()
        self.books.woke(self.clock.woke())
        now = self._looked_at = self.now()
        self._pace.look(self.clock.read())
        if now >= self._first_ends:
            self._first_ends = math.inf
            self.core.close_epoch(now)
        else:
            self.core.close_epoch(now, at_least=self.core.epoch_length / 2)
        wake = self._next_wakeup()
        self.clock.expect(max(now, wake))
        if wake > now:
            self._note_judged(now)
        self.cpu += time.thread_time() - before
        return wake <= now

    def act(self) -> None:
        """Put what is due as of the last `look` to the final check, and reap a slice of
        it.

        Call it when the loop has read. What is left stays due, and `rest` says so. Let
        the loop run once before the next look.
        """
        now = self._looked_at
        limit = self._pace.room(self.clock.read())
        ended = 0
        before = time.thread_time()
        if self._bucket is not None:
            limit = min(limit, self._bucket.available(now))
        while limit > 0:
            room = min(limit, CHECKED_AT_ONCE)
            self._checked = 0
            expired = self.core.expire(now, room, self._final_check)
            ended += len(expired)
            if self._bucket is not None:
                self._bucket.spend(len(expired))
            owners = [
                (owner, expiry)
                for expiry in expired
                if (owner := self.owner_of(expiry.uid)) is not None
            ]
            self.books.about_to_reap(owner for owner, _ in owners)
            for owner, _ in owners:
                owner.shut()
            self.books.expired(
                [
                    expiry
                    for expiry in expired
                    if self.owner_of(expiry.uid, limits=True) is not None
                ],
                self.now(),
            )
            for owner, expiry in owners:
                owner.reap(expiry.reason, expiry)
            self.books.names.clear()
            if self._checked < room:
                break
            limit -= room
        if self._probed:
            self._send_probes()
        if self._calls:
            self._make_calls(now)
        wake = self._next_wakeup()
        self._pace.ended(ended, more=wake <= now)
        self.clock.expect(max(now, wake))
        self._note_judged(now)
        self.cpu += time.thread_time() - before

    def _note_judged(self, now: float) -> None:
        due = self.core.next_wakeup()  # what a rate holds back is due all the same
        if due is None or due > now:
            self.books.judged(now)

    # ---- the final check -------------------------------------------------------------
    def owner_of(self, uid: Any, *, limits: bool = False) -> Reapable | None:
        """The connection that *uid* stands for in the core, or None.

        A uid is the number of one of `connections`, or a `Reapable` itself, or the
        `DeadlineKey` of a limit of either, which is answered only with *limits*.
        Anything else is a timer of the server's or of the user's. Only this function
        knows.
        """
        if type(uid) is DeadlineKey:
            if not limits:
                return None
            uid = uid.uid
        if isinstance(uid, Reapable):
            return uid
        return self.connections.get(uid)

    def _final_check(self, leases: Sequence[Lease]) -> Mapping[Lease, bool]:
        """Find the *leases* that must not be reaped now: bytes are unread, or a probe
        has yet to be answered.

        The value says whether being spared counts as activity. For a limit it does not,
        nor where its owner says `stays_due`: only bytes that had come when it fell due
        spare it. With later ones, a client that always has some unread would buy time
        for ever.
        """
        self._checked = len(leases)
        sockets: dict[int, list[Lease]] = {}
        owners: dict[Lease, Reapable] = {}
        quiet: dict[Lease, Watched] = {}
        spared: list[Lease] = []
        for lease in leases:
            owner = self.owner_of(lease.uid, limits=True)
            if owner is None:
                continue
            owners[lease] = owner
            if owner.pardon(lease):
                spared.append(lease)
                if owner.lease is lease:
                    self.vanished.pardoned(owner, lease)
                continue
            if owner.probe is not None and owner.lease is lease:
                # Ask whether the last probe was answered before this lease is spared,
                # because being spared looks like activity.
                watched: Watched = owner  # type: ignore[assignment]  # nothing else has a probe
                if watched.answered:
                    watched.forget_probe()
                quiet[lease] = watched
            descriptor = owner.descriptor
            if descriptor >= 0:
                sockets.setdefault(descriptor, []).append(lease)
        for descriptor in unread(sockets) if sockets else ():
            spared += [
                lease
                for lease in sockets[descriptor]
                if not (_is_limit(lease, owners[lease]) and self._was_read(lease, descriptor))
            ]
        for lease in spared:
            quiet.pop(lease, None)
        self._probed += quiet.values()
        spared += quiet
        # A limit stays due, because being spared must not buy its whole length again.
        active = {lease: not _is_limit(lease, owners[lease]) for lease in spared}
        self.books.averted(active)
        return active

    def _was_read(self, lease: Lease, descriptor: int) -> bool:
        """Whether the server has read all bytes that had come on *descriptor* when the
        limit of *lease* was first checked. False at that check.
        """
        info = tcp_info_of(descriptor)
        if info is None:
            return False  # no TCP: nothing counts what has come
        before = self._came.get(lease)
        if before is not None and before.since == (lease._epoch, lease.timeout):
            return info.received - waiting(descriptor) >= before.received
        if not self._came:
            self._forget_in_an_epoch()
        self._came[lease] = Came((lease._epoch, lease.timeout), info.received)
        return False

    def _forget_in_an_epoch(self) -> None:
        """Have `_forget_came` called when the limits in `_came` have been checked
        again.
        """
        due = self.now() + 2 * self.core.epoch_length
        heappush(self._calls, (due, self.next_number(), Call(self._forget_came)))

    def _forget_came(self) -> None:
        """Forget the limits that have ended or were moved since they were spared."""

        def look(lease: Lease) -> None:
            came = self._came.get(lease)
            if came and not (lease.alive and came.since == (lease._epoch, lease.timeout)):
                del self._came[lease]

        def then() -> None:
            if self._came:
                self._forget_in_an_epoch()

        walk(self.soon, self._came, look, then)

    def _send_probes(self) -> None:
        """Probe the connections that the final check found quiet.

        The epoch is closed first: an answer has to lie in a later one than the sparing
        does, or the two look alike.
        """
        probed, self._probed = self._probed, []
        self.core.close_epoch(self.now())
        for connection in probed:
            if connection.probed():
                self._probe(connection)

    def after(self, seconds: float, call: Callable[[], object]) -> Call:
        """Call *call* when *seconds* of `now` are over: a timer of the server's own, no
        lease of the core's.

        It does not wait behind connections that `reaps_per_second` holds back. What it
        raises is logged.
        """
        return self.at(self.now() + seconds, call)

    def at(self, instant: float, call: Callable[[], object]) -> Call:
        """As `after`, but at *instant*, a time as `now` gives it, rounded up to the
        millisecond. If that is past: at the next opportunity.
        """
        made = Call(call)
        due = ms_to_seconds(seconds_to_ms_deadline(instant))  # so that many fall due together
        heappush(self._calls, (due, self.next_number(), made))
        self._hurry(self._next_wakeup())
        return made

    def once_judged(self, call: Callable[[], object]) -> None:
        """Call *call* when the connections of this final check are judged. What it
        raises is logged.
        """
        heappush(self._calls, (self._looked_at, self.next_number(), Call(call)))

    def soon(self, call: Callable[[], object]) -> Call:
        """As `after`, once the loop has run."""
        return self.after(0.0, call)

    def _make_calls(self, now: float) -> None:
        """Call the functions that are due at *now*, a slice at the most."""
        calls = self._calls
        for _ in range(REAPS_PER_SLICE):
            if not calls or calls[0][0] > now:
                break
            function = heappop(calls)[2].function
            try:
                if function is not None:
                    function()
            except Exception:
                log.exception("a timer or the end of a connection raised")

    # ---- connections -----------------------------------------------------------------
    def register(
        self,
        uid: Any,
        timeout: float | None,
        on: Hook | None = None,
        *,
        reason: str = IDLE,
        since: Lease | None = None,
    ) -> Lease:
        """`IdleReaper.register` as of now: a lease for something that is no watched
        connection.
        """
        lease = self.core.register(uid, timeout, self.now(), on, reason=reason, since=since)
        self.poke()
        if isinstance(uid, Reapable):
            self.vanished.begin()
        return lease

    def next_number(self) -> int:
        """A number that this driver has not given before."""
        return next(self._numbers)

    def retime(self, lease: Lease, idle: float, reason: str | None = None) -> bool:
        """Put a timeout of *idle* seconds in force for *lease*, counted from its last
        activity.

        0 switches the timeout off. Returns False if the lease has ended.
        """
        retimed = lease.retime(check_idle(idle), self.now(), reason)
        self.poke()
        return retimed

    def resume(self, lease: Lease) -> bool:
        """End the exemption of *lease*, which counts as activity. True if it was
        suspended.
        """
        resumed = lease.resume(self.now())
        self.poke()
        return resumed

    def deadline(self, owner: Reapable, seconds: float, reason: str, uid: Any = None) -> Lease:
        """A lease that ends *owner* *seconds* from now, whatever bytes come.

        *uid* is the core's key of *owner*; None means that it is its own.
        """
        key = DeadlineKey(owner if uid is None else uid, self.next_number())
        return self.register(
            key, seconds, lambda expiry: owner.reap(expiry.reason, expiry), reason=reason
        )

    def later(self, idle: float) -> float | None:
        """The timeout of a new connection for the core: *idle* and its jitter; None,
        off, for 0.
        """
        timeout = check_idle(idle)
        if timeout is None or not self._jitter.share:
            return timeout
        return self._jitter.later(timeout)

    def watch(
        self,
        make: Callable[[int], Any],
        socket: Any,
        idle: float | None = None,
        *,
        reason: str = IDLE,
        probe: Probe | None = None,
        grace: float = PROBE_GRACE,
    ) -> Any:
        """Watch a connection from now on: the `Watched` that *make* returns for a uid.

        *socket* is the connection's, or None. The rest is as in the adapters' `watch`.
        """
        check_watch(idle, reason, probe, grace)
        timeout = self.later(self.idle if idle is None else idle)
        while (uid := self.next_number()) in self.core:
            pass  # the program has registered a lease of its own with that number
        connection: Watched = make(uid)
        connection.probe = probe
        connection.grace = grace
        connection.begin(self.register(uid, timeout, reason=reason))
        self.connections[uid] = connection
        if socket is not None:
            self.vanished.begin()
        self.books.opened(connection.lease, socket)
        if self._draining:
            self._leave_when_idle(connection, spoken=False)
        return connection

    def ended(self, connection: Any) -> None:
        """Forget *connection*, which has ended."""
        if self.connections.pop(connection.uid, None) is not None and not self.connections:
            self.on_empty()

    # ---- draining --------------------------------------------------------------------
    def begin_drain(self, timeout: float) -> None:
        """End every connection when it goes idle, and after *timeout* seconds in any
        case.

        Let the loop run two passes, then go through `drain_slices`.
        """
        self.after(check_timeout("timeout", timeout), self._cut_the_rest)
        self._draining = True

    def drain_slices(self, room: Callable[[], int]) -> Iterator[int]:
        """End the idle ones of the connections watched now, a slice at a time; the
        others are ended when they go idle.

        Let the loop run, or a part of the drain's window pass, after each slice.

        Args:
            room: Returns how many connections the next slice may have.
        Yields:
            How many the slice had.
        """
        for some in slices(self.connections.values(), room):
            batch = [one for one in some if one.uid in self.connections]
            spoken = unread_of(batch)
            for connection in batch:
                if connection.uid in self.connections:
                    self._leave_when_idle(connection, spoken=connection.descriptor in spoken)
            yield len(some)

    def _leave_when_idle(self, connection: Watched, *, spoken: bool) -> None:
        connection.awaited = True
        if not spoken:
            self.went_idle(connection)

    def went_idle(self, connection: Any) -> None:
        """*connection* may have gone idle: end it if it has, and everything is being
        drained.
        """
        if self._draining and not connection.reaped and not connection.busy:
            connection.reap(DRAIN)

    def _cut_the_rest(self) -> None:
        """The drain's deadline has come: end also what is in use."""

        def cut(connection: Watched) -> None:
            if connection.uid in self.connections:
                try:
                    connection.reap(DRAIN_DEADLINE if connection.busy else DRAIN)
                except Exception:
                    log.exception("the end of connection %r raised", connection.uid)

        walk(self.soon, self.connections.values(), cut, size=self._pace.many())

    # ---- looking in ------------------------------------------------------------------
    def statistics(self, parked: int = 0) -> LoopStatistics:
        """A snapshot. *parked* says how many connections have no task now. Cost:
        O(1).
        """
        clock, books = self.clock, self.books
        return LoopStatistics(
            core=self.core.statistics(),
            lag=clock.lag,
            max_lag=clock.max_lag,
            stalls=clock.stalls,
            stalled=clock.stalled,
            cpu=self.cpu,
            parked=parked,
            reasons=MappingProxyType(books.reasons),
            lateness=books.lateness,
            lateness_lower=books.lateness_lower,
            lateness_upper=books.lateness_upper,
            late=books.late,
            abandoned=books.abandoned,
            tick=self.core.tick,
            lags=clock.lags,
            journal=None if books.journal is None else books.journal.statistics(),
        )


def _is_limit(lease: Lease, owner: Reapable) -> bool:
    """Whether *lease* of *owner* is a limit, which no byte extends."""
    return type(lease.uid) is DeadlineKey or owner.stays_due


def unread_of(connections: Iterable[Reapable]) -> set[int]:
    """The descriptors of those *connections* for which the kernel holds unread
    bytes.
    """
    return set(unread(descriptor for one in connections if (descriptor := one.descriptor) >= 0))
