"""The adapter for trio: one task for all connections, and the closing of those that have gone silent.

The rule of this module: after any wake, nobody is judged before the loop has had the chance to read what arrived while
it was busy. `now` is taken and the epoch closed at it first; two scheduling passes follow (one is not enough: in the
pass that reads a socket, tasks run in random order, this one perhaps first); then the kernel is asked for bytes that
are still unread; only then is anybody reaped, as of that `now`, and only a slice at a time.

All time comes from `trio.current_time()`, so `trio.testing.MockClock` works, autojump included.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket as socket_module
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

import trio

from ..config.settings import ReaperConfig
from ..core.lease import Expiry, Hook, Lease
from ..core.purgatory import DelayedOperation, Purgatory
from ..core.reaper import IdleReaper
from ..core.ticks import check_timeout, ms_to_seconds, seconds_to_ms_deadline, seconds_to_ms_now
from ..core.wheel import TimingWheel
from ..journal import Journal
from ..journal.leases import Keeper, peer_of
from ..metrics import Histogram, LoopStatistics
from ..policy.herd import Bucket, Jitter
from .operations import Answer, Leave
from .parking import NEVER
from .parking import ParkableStream as ParkableStream
from .parking import Parked as Parked
from .parking import ParkingLot as ParkingLot
from .parking import Silent as Silent
from .parking import WakingLot as WakingLot
from .pressure import relieve as relieve
from .sockets import unread as unread

REAPS_PER_SLICE = 128
"""Connections closed before the loop is let run again. Closing is the expensive part of a reap, 30-80 us each with
trio's cancellation, the handler's unwinding and close(2); 128 of them hold the loop for less than 10 ms."""

SECONDS_A_REAP = 65e-6
"""What closing one connection costs, about."""

LONGEST_SLICE = 0.05
"""Seconds that a slice may take at the most, however busy the loop is."""

PROBE_GRACE = 5.0
"""Seconds that a probed peer has for its answer. Precedent: gRPC's keep-alive timeout is 20 s, Engine.IO's 20 s."""

log = logging.getLogger("reaper")

Probe = Callable[["Connection"], Awaitable[object]]
"""Sends something the peer must answer, a WebSocket ping for instance."""


class Connection:
    """One watched connection, made by `TrioReaper.watch`; a context manager with cancel-scope semantics of its own.

    When the connection is reaped, the body of its `with` block is cancelled with a readable reason, the block swallows
    that cancellation and no other, and `reaped` and `reason` tell about it afterwards.

    Attributes:
        touch: Call it for every packet. One store; see `Lease.touch`.
        lease: The lease in force.
        reaped: Whether the reaper ended the block.
        reason: Why, or None.
        expiry: The core's record of the reap, or None.
        uid: Its key in the core, a number that is never used again.
        receiving: Whether nothing but more bytes can wake the handler. `WatchedStream` keeps it exact.
        hung_up: Whether the peer has said that it will send no more, or is gone. `WatchedStream` keeps it exact.
    """

    __slots__ = (
        "_awaited",
        "_deadlines",
        "_grace",
        "_probe",
        "_reaper",
        "_scope",
        "_socket",
        "expiry",
        "hung_up",
        "lease",
        "reaped",
        "reason",
        "receiving",
        "touch",
        "uid",
    )

    touch: Callable[[], None]
    lease: Lease

    def __init__(self, reaper: TrioReaper, uid: int, stream: object | None) -> None:
        self._reaper = reaper
        self.uid = uid
        self._deadlines: list[Lease] | None = None
        self._awaited = False  # whether an operation waits for it to go idle
        self._probe: Probe | None = None
        self._grace = 0.0
        self._scope = trio.CancelScope()
        self._socket = _socket_of(stream)
        self.reaped = False
        self.reason: str | None = None
        self.expiry: Expiry | None = None
        self.receiving = True
        self.hung_up = False

    def __enter__(self) -> Connection:
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if not self.reaped:
            self._reaper._log_end(self, None, by_peer=self.hung_up)
            self._end()
        return self._scope.__exit__(kind, error, trace)

    def _end(self) -> None:
        self.lease.release()
        if self._deadlines is not None:
            for deadline in self._deadlines:
                deadline.release()
        self.touch = _nothing  # not the dead lease's: a connection that has ended leaves no cycle for the collector
        self._reaper._ended(self)

    def _has_unread(self) -> bool:
        descriptor = self._descriptor()
        return descriptor >= 0 and bool(unread([descriptor]))

    def _descriptor(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it is closed."""
        return self._descriptor()

    @property
    def busy(self) -> bool:
        """Whether it is in use: suspended, or its handler is doing something else than waiting for bytes."""
        return self.lease.suspended or not self.receiving

    def suspend(self) -> bool:
        """Exempt it until `resume`, because a request is in flight. True if it was armed."""
        return self.lease.suspend()

    def resume(self) -> bool:
        """End the exemption; counts as activity. True if it was suspended."""
        resumed = self.lease.resume(trio.current_time())
        self._reaper._poke()
        if self._awaited:
            self._reaper._complete(self)
        return resumed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """`suspend` for the length of the block, then `resume`. Nested, only the outermost counts."""
        outermost = self.suspend()
        try:
            yield
        finally:
            if outermost:
                self.resume()

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout in force, counted from the last activity; 0 switches it off. False if it was reaped."""
        retimed = self.lease.retime(_timeout("idle", idle), trio.current_time(), reason)
        self._reaper._poke()
        return retimed

    def deadline(self, seconds: float, reason: str) -> Lease:
        """A second lease, which ends this connection *seconds* from now whatever bytes come.

        For limits that dripped bytes must not extend: request headers, maximum age. `release()` it when the limit is
        met; the end of the connection releases it too.

        Raises:
            InvalidArgument: seconds is NaN, infinite, or <= 0.
        """
        lease = self._reaper.register(
            ("deadline", self.uid, next(self._reaper._uids)),
            seconds,
            lambda expiry: self._reap(expiry.reason, expiry),
            reason=reason,
        )
        if self._deadlines is None:
            self._deadlines = []
        self._deadlines = [other for other in self._deadlines if other.alive]
        self._deadlines.append(lease)
        return lease

    def _reap(self, reason: str, expiry: Expiry | None = None) -> None:
        if self.reaped:
            return
        if expiry is None:
            self._reaper._log_end(self, reason, by_peer=False)
        elif self._reaper._keeper is not None:
            self._reaper._keeper.reaped(self.lease, expiry)
        self._end()
        self._reaper._note_end(self.uid, reason, expiry)
        self.reaped = True
        self.reason = reason
        self.expiry = expiry
        self._scope.cancel(reason=f"reaped: {reason}")


class TrioReaper:
    """Watches the connections of one trio program. Made by `open_reaper`, or by hand and started with `nursery.start`.

    Args:
        config: Tick, wheel size and the default idle timeout; None for the defaults.
        tick, wheel_size: Instead of those of *config*.
        journal: Where the life of every connection is written, on the clock of `journal_clock`; closing it is yours.
        listener: What the journal calls them.
        jitter: 0..1: the share of its timeout by which a connection's own is lengthened at random, at most, in whole
            ticks, where it is watched or parked; None: the config's. A `retime` is exact.
        reaps_per_second: No more reaps than that; what is due waits, and its lateness says so. None: the config's, of
            which 0 is no bound. It counts every lease that comes due, also those of `register` and `deadline`.
        seed: For the same jitter every time.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self,
        config: ReaperConfig | None = None,
        *,
        tick: float | None = None,
        wheel_size: int | None = None,
        journal: Journal | None = None,
        listener: str | None = None,
        jitter: float | None = None,
        reaps_per_second: float | None = None,
        seed: int | None = None,
    ) -> None:
        self.config = ReaperConfig() if config is None else config
        # Two epochs a tick: half of the promised tick stays in hand for a loop that wakes late.
        self.core = IdleReaper(
            self.config.reaper.tick if tick is None else tick,
            self.config.reaper.wheel_size if wheel_size is None else wheel_size,
            epochs_per_tick=2,
            on_error=_log_hook_error,
        )
        if reaps_per_second is None:
            reaps_per_second = self.config.reaper.reaps_per_second or None
        self._jitter = Jitter(self.config.reaper.jitter if jitter is None else jitter, self.core.tick, seed)
        self._bucket = None if reaps_per_second is None else Bucket(reaps_per_second)
        self._keeper = None if journal is None else Keeper(self.core, journal)
        self._listener = listener
        self._connections: dict[int, Connection] = {}
        self._lots: list[ParkingLot] = []
        self._uids = itertools.count(1)
        self._until = -math.inf  # until when the task sleeps
        self._alarm = trio.Event()
        self._running = False
        self._purgatory = Purgatory(TimingWheel(tick=1, wheel_size=64))  # counts milliseconds
        self._drain_until: float | None = None
        self._empty = trio.Event()
        self._accepting = trio.Event()
        self._accepting.set()
        self._reasons: Counter[str] = Counter()
        self._lateness = Histogram()
        self._lags = Histogram()
        self.lag = 0.0
        self.max_lag = 0.0
        self.stalls = 0
        self.cpu = 0.0

    def __len__(self) -> int:
        """How many connections are watched now."""
        return len(self._connections) + sum(map(len, self._lots))

    async def run(self, *, task_status: trio.TaskStatus[TrioReaper] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Reap until cancelled. Wakes once an epoch and at due instants; with nothing registered, not at all.

        Raises:
            RuntimeError: it runs already.
        """
        if self._running:
            raise RuntimeError("this reaper runs already")
        self._running = True
        try:
            async with trio.open_nursery() as self._probes:
                task_status.started(self)
                while True:
                    self._until = self._next_wakeup()
                    if self._until > trio.current_time():
                        self._alarm = trio.Event()
                        with trio.CancelScope(deadline=self._until):
                            await self._alarm.wait()
                        if self._alarm.is_set():
                            continue  # something was armed that is due earlier than what we slept for
                    await self._reap_slice()
        finally:
            self._running = False
        raise AssertionError("unreachable")

    def _next_wakeup(self) -> float:
        wake = self.core.next_wakeup()
        if wake is not None and self._bucket is not None:
            # What is due waits for the bucket, the end of the epoch does not.
            now = trio.current_time()
            if wake <= now:
                wake = min(self.core.epoch_ends, self._bucket.ready(now))
        operations = self._purgatory.next_expiry()
        return min(math.inf if wake is None else wake, math.inf if operations is None else ms_to_seconds(operations))

    async def _reap_slice(self) -> None:
        core = self.core
        now = trio.current_time()
        before = time.thread_time()
        if core.next_wakeup() is not None:  # otherwise nobody keeps the epochs going
            self._note_lag(now - core.epoch_ends)
        core.close_epoch(now, at_least=core.epoch_length / 2)
        due = self._next_wakeup() <= now
        self.cpu += time.thread_time() - before
        if not due:
            return
        # Not before `now` was taken: what is read during the passes belongs to the epoch that has just been opened.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        limit = fair_slice(trio.current_time() - now)
        before = time.thread_time()
        if self._bucket is not None:
            limit = min(limit, self._bucket.available(now))
        expired = core.expire(now, limit, self._last_look) if limit else []
        if self._bucket is not None:
            self._bucket.spend(len(expired))
        for lateness, alike in itertools.groupby(expired, key=_lateness_of):  # a slot's leases are all equally late
            self._lateness.add(lateness, sum(1 for _ in alike))
        for expiry in expired:
            connection = self._connection_of(expiry.uid)
            if connection is not None:
                connection._reap(expiry.reason, expiry)
        if self._purgatory.delayed:
            self._purgatory.advance(seconds_to_ms_now(now), limit=REAPS_PER_SLICE)
        self.cpu += time.thread_time() - before
        # What is left is due still: `run` comes back at once, takes a new `now`, and lets the loop run in between.
        await trio.lowlevel.checkpoint()

    def _connection_of(self, uid: Any) -> Connection | Parked | None:
        return uid if isinstance(uid, Parked) else self._connections.get(uid)

    def waiting(self, uid: Any) -> Connection | Parked | None:
        """The connection of *uid* if it waits for bytes with nothing else to do; None if it is in use, or is none."""
        connection = self._connection_of(uid)
        return None if connection is None or connection.busy else connection

    @property
    def accepting(self) -> bool:
        """Whether new connections are welcome. Set by `relieve`; `ParkingLot.accept` waits for it."""
        return self._accepting.is_set()

    @accepting.setter
    def accepting(self, welcome: bool) -> None:
        if welcome:
            self._accepting.set()
        elif self._accepting.is_set():
            self._accepting = trio.Event()

    async def welcome(self) -> None:
        """Return when new connections are welcome."""
        while not self._accepting.is_set():
            await self._accepting.wait()

    def _note_lag(self, lag: float) -> None:
        """Take note of how late the epoch ends. Judged by that and not by our own sleep: we are not always asleep."""
        self.lag = lag = max(lag, 0.0)
        self._lags.add(lag)
        if self._keeper is not None:
            self._keeper.stalled(trio.current_time(), lag)
        if lag > self.max_lag:
            self.max_lag = lag
        if lag > self.core.tick:
            self.stalls += 1
            log.warning(
                "the event loop was stuck: woke %.3f s late (tick %.3f s); nobody was reaped for what it had not read",
                lag,
                self.core.tick,
                extra={"lag": lag, "tick": self.core.tick},
            )

    def _last_look(self, leases: Sequence[Lease]) -> Collection[Lease]:
        """Those of *leases* that must not be reaped now: bytes are unread, or a probe has yet to be answered."""
        sockets: dict[int, Lease] = {}
        quiet: dict[Lease, Connection] = {}
        for lease in leases:
            uid = lease.uid
            connection = self._connection_of(uid[1] if type(uid) is tuple and uid[0] == "deadline" else uid)
            if connection is None:
                continue
            if isinstance(connection, Connection) and connection._probe is not None and connection.lease is lease:
                quiet[lease] = connection
            descriptor = connection._descriptor()
            if descriptor >= 0:
                sockets[descriptor] = lease
        spared = [sockets[descriptor] for descriptor in unread(sockets)] if sockets else []
        if quiet:
            for lease in spared:
                quiet.pop(lease, None)
            for lease, connection in quiet.items():
                self._send_probe(connection)
                spared.append(lease)
        if self._keeper is not None:
            now = trio.current_time()
            for lease in spared:
                self._keeper.averted(lease, now)
        return spared

    def _log_end(self, connection: Connection, reason: str | None, *, by_peer: bool) -> None:
        if self._keeper is not None:
            self._keeper.ended(connection.lease, trio.current_time(), reason, by_peer=by_peer)

    def _note_end(self, uid: object, reason: str, expiry: Expiry | None) -> None:
        """Count and tell that a connection was ended by the reaper."""
        self._reasons[reason] += 1
        if log.isEnabledFor(logging.DEBUG):
            lateness = 0.0 if expiry is None else expiry.lateness
            log.debug(
                "reaped %r: %s, %.3f s late",
                uid,
                reason,
                lateness,
                extra={"uid": uid, "reason": reason, "lateness": lateness, "due": expiry and expiry.due},
            )

    def _send_probe(self, connection: Connection) -> None:
        self._watch_operation(
            Answer(connection, seconds_to_ms_deadline(trio.current_time() + connection._grace)),
            (Answer, connection.uid),
        )
        connection.touch = lambda: self._answered(connection)
        self._probes.start_soon(_probe, connection)

    def _answered(self, connection: Connection) -> None:
        """The touch of a probed connection: the first one completes the operation and puts the plain touch back."""
        connection.touch = connection.lease.touch
        connection.touch()
        self._purgatory.check_and_complete((Answer, connection.uid))

    def _complete(self, connection: Connection) -> None:
        self._purgatory.check_and_complete((Leave, connection.uid))

    def _watch_operation(self, operation: DelayedOperation, key: Hashable) -> None:
        if not self._purgatory.delayed:
            # Nobody has moved its clock while there was nothing to wait for.
            self._purgatory.advance(seconds_to_ms_now(trio.current_time()))
        self._purgatory.try_complete_else_watch(operation, [key])
        self._poke()

    async def drain(self, timeout: float, window: float = 0.0) -> None:
        """End every connection: those that are idle at once, each of the rest when it goes idle, all after *timeout*.

        Idle is a connection whose handler waits for bytes, of which the kernel holds none, and that is not suspended.
        Stop accepting first; a connection that is watched after this call is drained too.

        Args:
            timeout: Seconds, > 0, from now.
            window: Seconds, >= 0, over which the ends of the idle ones are spread, so that their peers do not all come
                to another server in one instant.
        Raises:
            InvalidArgument: timeout is NaN, infinite, or <= 0, or window is, or is < 0.
        Returns once no connection is watched any more. Reasons: `drain`, and `drain_deadline` for those cut in use.
        """
        check_timeout("timeout", timeout)
        if window:
            check_timeout("window", window)
        async with trio.open_nursery() as nursery:
            for lot in self._lots:
                nursery.start_soon(lot.drain, timeout, window)
            await self._drain_watched(timeout, window)

    async def _drain_watched(self, timeout: float, window: float) -> None:
        self._drain_until = trio.current_time() + timeout
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        connections = list(self._connections.values())
        slices = -(-len(connections) // REAPS_PER_SLICE)
        for start in range(0, len(connections), REAPS_PER_SLICE):
            batch = [connection for connection in connections[start : start + REAPS_PER_SLICE] if not connection.reaped]
            spoken = set(unread(fd for fd in (connection._descriptor() for connection in batch) if fd >= 0))
            for connection in batch:
                if connection.uid in self._connections:
                    self._leave_when_idle(connection, spoken=connection._descriptor() in spoken)
            await trio.sleep(window / slices)
        while self._connections:
            self._empty = trio.Event()
            await self._empty.wait()

    def _leave_when_idle(self, connection: Connection, *, spoken: bool) -> None:
        assert self._drain_until is not None
        connection._awaited = True
        leave = Leave(connection, seconds_to_ms_deadline(self._drain_until), spoken)
        self._watch_operation(leave, (Leave, connection.uid))

    def _ended(self, connection: Connection) -> None:
        if self._connections.pop(connection.uid, None) is None:
            return
        if self._purgatory.delayed:
            self._purgatory.cancel_for_key((Answer, connection.uid))
            self._purgatory.cancel_for_key((Leave, connection.uid))
        if not self._connections:
            self._empty.set()

    def _poke(self) -> None:
        """Wake the task if something is due before it would wake by itself."""
        if self._next_wakeup() < self._until:
            self._alarm.set()

    def register(self, uid: Any, timeout: float, on: Hook | None = None, *, reason: str = "idle") -> Lease:
        """`IdleReaper.register` as of now: a lease of your own, for what is not a `with` block.

        *on* is called in the reaper's task and must not block; when it raises, that is logged.
        """
        lease = self.core.register(uid, timeout, trio.current_time(), on, reason=reason)
        self._poke()
        return lease

    def watch(
        self,
        stream: object | None = None,
        idle: float | None = None,
        *,
        reason: str = "idle",
        probe: Probe | None = None,
        grace: float = PROBE_GRACE,
    ) -> Connection:
        """Watch a connection for the length of a `with` block.

        Args:
            stream: Its stream; if there is a socket in it, a last look at unread bytes comes before any reap.
            idle: Seconds of silence allowed; 0 switches the timeout off; None takes the config's `timeouts.idle`.
            reason: What `connection.reason` says after a reap.
            probe: Called, as a task of the reaper's, with the connection when it has been silent for *idle*: it sends
                something that the peer must answer. Any touch is an answer. What it raises is logged.
            grace: Seconds, > 0, that the peer then has; after that it is reaped.
        Returns:
            The `Connection`, watched from now on. Enter it at once.
        Raises:
            InvalidArgument: idle is NaN, negative or infinite, or grace is, or grace is 0.
        Timing: the body is cancelled no earlier than *idle* seconds after the last `touch()`, and no later than that
            plus one tick plus what the loop was stuck for beyond half a tick.
        Cost: one lease and one trio cancel scope.
        """
        timeout = self._later(self.config.timeouts.idle if idle is None else idle)
        check_timeout("grace", grace)
        uid = next(self._uids)
        connection = Connection(self, uid, stream)
        connection._probe = probe
        connection._grace = grace
        connection.lease = self.register(uid, timeout, reason=reason)
        connection.touch = connection.lease.touch
        self._connections[uid] = connection
        if self._keeper is not None:
            self._keeper.opened(connection.lease, trio.current_time(), self._listener, peer_of(connection._socket))
        if self._drain_until is not None:
            self._leave_when_idle(connection, spoken=False)
        return connection

    def _later(self, idle: float) -> float:
        """The timeout of a new connection: *idle* and its jitter; 0 switches it off."""
        return self._jitter.later(check_timeout("idle", idle)) if idle else NEVER

    @asynccontextmanager
    async def parking_lot(
        self,
        handler: Callable[[Any], Awaitable[object]],
        idle: float | None = None,
        *,
        reason: str = "idle",
        linger: float = 0.0,
        tls: ssl.SSLContext | None = None,
        parks: bool | None = None,
    ) -> AsyncIterator[ParkingLot]:
        """A running `ParkingLot` for the length of an `async with` block: connections that cost no task while silent.

        *idle* as in `watch`, the rest as in `ParkingLot`. Give it sockets by its `add`.
        """
        seconds = self.config.timeouts.idle if idle is None else idle
        lot = ParkingLot(self, handler, seconds, reason=reason, linger=linger, tls=tls, parks=parks)
        async with self._lot_open(lot):
            yield lot

    @asynccontextmanager
    async def waking_lot(
        self,
        woken: Callable[[socket_module.socket, Any], Awaitable[object]],
        ended: Callable[[Any, str | None], object],
        *,
        linger: float = 1.0,
    ) -> AsyncIterator[WakingLot]:
        """A running `WakingLot` for the length of an `async with` block. Arguments as there."""
        lot = WakingLot(self, woken, ended, linger=linger)
        async with self._lot_open(lot):
            yield lot

    @asynccontextmanager
    async def _lot_open(self, lot: ParkingLot) -> AsyncIterator[None]:
        self._lots.append(lot)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(lot.run)
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            self._lots.remove(lot)

    def watched(
        self, handler: Callable[[Any], Awaitable[object]], idle: float | None = None
    ) -> Callable[[trio.abc.Stream], Awaitable[None]]:
        """Wrap *handler* so that each stream it is given is watched and every receive touches by itself.

        The result goes wherever trio takes a handler: `trio.serve_listeners`, `trio.serve_ssl_over_tcp`, ...
        """
        if idle is not None:
            _timeout("idle", idle)

        async def handle(stream: trio.abc.Stream) -> None:
            with self.watch(stream, idle) as connection:
                await handler(WatchedStream(stream, connection))

        return handle

    def statistics(self) -> LoopStatistics:
        """A snapshot; O(1)."""
        return LoopStatistics(
            self.core.statistics(),
            self.lag,
            self.max_lag,
            self.stalls,
            0.0,
            self.cpu,
            sum(lot.parked for lot in self._lots),
            MappingProxyType(self._reasons),
            self._lateness,
            self._lags,
        )


class WatchedStream(trio.abc.HalfCloseableStream):
    """A stream that touches its connection whenever bytes are received. Everything else goes to the stream within.

    Sending does not touch: a peer that is gone would be kept alive by what is sent to it. A handler that sends for
    longer than the timeout without hearing anything wraps that in `with stream.connection.in_use():`.

    Attributes:
        connection: The `Connection`.
        inner: The stream within.
    """

    def __init__(self, inner: trio.abc.Stream, connection: Connection) -> None:
        self.inner = inner
        self.connection = connection
        connection.receiving = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        connection = self.connection
        connection.receiving = True
        if connection._awaited:
            connection._reaper._complete(connection)
        try:
            data = await self.inner.receive_some(max_bytes)
        except trio.BrokenResourceError:
            connection.hung_up = True
            raise
        finally:
            connection.receiving = False
        if data:
            connection.touch()
        else:
            connection.hung_up = True
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self.inner.send_eof()  # type: ignore[attr-defined]

    async def aclose(self) -> None:
        await self.inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@asynccontextmanager
async def open_reaper(
    config: ReaperConfig | None = None,
    *,
    tick: float | None = None,
    wheel_size: int | None = None,
    journal: Journal | None = None,
    listener: str | None = None,
    jitter: float | None = None,
    reaps_per_second: float | None = None,
    seed: int | None = None,
) -> AsyncIterator[TrioReaper]:
    """A running `TrioReaper` for the length of an `async with` block. Arguments as there."""
    reaper = TrioReaper(
        config,
        tick=tick,
        wheel_size=wheel_size,
        journal=journal,
        listener=listener,
        jitter=jitter,
        reaps_per_second=reaps_per_second,
        seed=seed,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(reaper.run)
        try:
            yield reaper
        finally:
            nursery.cancel_scope.cancel()


async def serve_tcp(
    handler: Callable[[Any], Awaitable[object]],
    port: int,
    *,
    idle: float | None = None,
    host: str | bytes | None = None,
    backlog: int | None = None,
    handler_nursery: trio.Nursery | None = None,
    config: ReaperConfig | None = None,
    tick: float | None = None,
    wheel_size: int | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`trio.serve_tcp`, and every connection that stays silent for *idle* seconds is closed.

    The handler need know nothing of it: it is given a `WatchedStream`, on which receiving touches by itself.

    Args:
        handler, port, host, backlog, handler_nursery, task_status: As in `trio.serve_tcp`.
        idle: Seconds of silence allowed; 0 switches the timeout off; None takes the config's `timeouts.idle`.
        config, tick, wheel_size: As in `TrioReaper`.
    Raises:
        InvalidArgument: by name and value.
        OSError: the port cannot be had; and whatever the handler raises, as in `trio.serve_tcp`.
    """
    async with open_reaper(config, tick=tick, wheel_size=wheel_size) as reaper:
        await trio.serve_tcp(
            reaper.watched(handler, idle),
            port,
            host=host,
            backlog=backlog,
            handler_nursery=handler_nursery,
            task_status=task_status,
        )


async def serve_parked(
    handler: Callable[[Any], Awaitable[object]],
    port: int,
    *,
    idle: float | None = None,
    host: str | bytes | None = None,
    backlog: int | None = None,
    tls: ssl.SSLContext | None = None,
    linger: float = 0.0,
    config: ReaperConfig | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """As `serve_tcp`, but a connection costs no task while it is silent: *handler* begins anew with the next bytes.

    Args:
        handler, idle, tls, linger: As in `TrioReaper.parking_lot`.
        port, host, backlog, task_status: As in `trio.serve_tcp`.
        config: As in `TrioReaper`.
    Raises:
        InvalidArgument: by name and value.
        OSError: the port cannot be had; and whatever the handler raises.
    """
    async with (
        open_reaper(config) as reaper,
        reaper.parking_lot(handler, idle, linger=linger, tls=tls) as lot,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=backlog)
        for listener in listeners:
            stack.push_async_callback(trio.aclose_forcefully, listener)
            # A socket of the standard library's for the same port: trio's cannot accept without waiting.
            nursery.start_soon(lot.accept, socket_module.socket(fileno=os.dup(listener.socket.fileno())))
        task_status.started(listeners)
    raise AssertionError("unreachable")


def fair_slice(two_passes: float) -> int:
    """How many to reap after two scheduling passes have taken *two_passes* seconds.

    `REAPS_PER_SLICE`; more where the loop is so busy that a pass takes longer than closing those would, for as long as
    a pass and no longer than `LONGEST_SLICE`. Otherwise a busy loop would starve the reaper: it has a slice every few
    passes, and what falls due meanwhile would pile up.
    """
    return max(REAPS_PER_SLICE, int(min(two_passes / 2, LONGEST_SLICE) / SECONDS_A_REAP))


def journal_clock() -> Callable[[], int]:
    """The clock of this trio run in ns, for `Journal(clock_ns=...)`: callable from any thread."""
    clock = trio.lowlevel.current_clock()
    return lambda: round(clock.current_time() * 1e9)


def _timeout(name: str, seconds: float) -> float:
    return NEVER if seconds == 0 else check_timeout(name, seconds)


def _nothing() -> None:
    """The touch of a connection that has ended."""


async def _probe(connection: Connection) -> None:
    assert connection._probe is not None
    try:
        await connection._probe(connection)
    except Exception:
        log.warning("the probe of connection %d raised", connection.uid, exc_info=True)


def _lateness_of(expiry: Expiry) -> float:
    return expiry.lateness


def _log_hook_error(error: Exception, expiry: Expiry) -> None:
    log.error("the hook of %r raised", expiry.uid, exc_info=error)


def _socket_of(stream: object | None) -> trio.socket.SocketType | None:
    """The socket at the bottom of *stream*, through any TLS around it; None if there is none."""
    while stream is not None:
        socket = getattr(stream, "socket", None)
        if socket is not None:
            return socket  # type: ignore[no-any-return]
        stream = getattr(stream, "transport_stream", None)
    return None
