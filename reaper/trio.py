"""The adapter for trio: one task for all connections, and the closing of those that have gone silent.

The rule of this module: after any wake, nobody is judged before the loop has had the chance to read what arrived while
it was busy. `now` is taken and the epoch closed at it first; two scheduling passes follow (one is not enough: in the
pass that reads a socket, tasks run in random order, this one perhaps first); then the kernel is asked for bytes that
are still unread; only then is anybody reaped, as of that `now`, and only a slice at a time.

All time comes from `trio.current_time()`, so `trio.testing.MockClock` works, autojump included.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import math
import select
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import trio

from .config import ReaperConfig
from .core import IdleReaper
from .lease import Expiry, Hook, Lease, Statistics
from .ticks import check_timeout

REAPS_PER_SLICE = 128
"""Connections closed before the loop is let run again. Closing is the expensive part of a reap, 30-80 us each with
trio's cancellation, the handler's unwinding and close(2); 128 of them hold the loop for less than 10 ms."""

NEVER = 1e9
"""Seconds; the timeout that stands for "switched off": 31 years."""

log = logging.getLogger("reaper")


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
    """

    __slots__ = (
        "_deadlines",
        "_reaper",
        "_scope",
        "_socket",
        "expiry",
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
        self._scope = trio.CancelScope()
        self._socket = _socket_of(stream)
        self.reaped = False
        self.reason: str | None = None
        self.expiry: Expiry | None = None
        self.receiving = True

    def __enter__(self) -> Connection:
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._end()
        return self._scope.__exit__(kind, error, trace)

    def _end(self) -> None:
        self.lease.release()
        if self._deadlines is not None:
            for deadline in self._deadlines:
                deadline.release()
        self._reaper._connections.pop(self.uid, None)

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
        self._end()
        self.reaped = True
        self.reason = reason
        self.expiry = expiry
        self._scope.cancel(reason=f"reaped: {reason}")


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """What the adapter saw. Times are seconds."""

    core: Statistics
    lag: float
    """How late the last epoch ended: how long the loop was stuck."""
    max_lag: float
    """The largest of all."""
    stalls: int
    """Epochs that ended more than a tick late."""


class TrioReaper:
    """Watches the connections of one trio program. Made by `open_reaper`, or by hand and started with `nursery.start`.

    Args:
        config: Tick, wheel size and the default idle timeout; None for the defaults.
        tick, wheel_size: Instead of those of *config*.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self, config: ReaperConfig | None = None, *, tick: float | None = None, wheel_size: int | None = None
    ) -> None:
        self.config = ReaperConfig() if config is None else config
        # Two epochs a tick: half of the promised tick stays in hand for a loop that wakes late.
        self.core = IdleReaper(
            self.config.reaper.tick if tick is None else tick,
            self.config.reaper.wheel_size if wheel_size is None else wheel_size,
            epochs_per_tick=2,
            on_error=_log_hook_error,
        )
        self._connections: dict[int, Connection] = {}
        self._uids = itertools.count(1)
        self._until = -math.inf  # until when the task sleeps
        self._alarm = trio.Event()
        self._running = False
        self.lag = 0.0
        self.max_lag = 0.0
        self.stalls = 0

    async def run(self, *, task_status: trio.TaskStatus[TrioReaper] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Reap until cancelled. Wakes once an epoch and at due instants; with nothing registered, not at all.

        Raises:
            RuntimeError: it runs already.
        """
        if self._running:
            raise RuntimeError("this reaper runs already")
        self._running = True
        try:
            task_status.started(self)
            while True:
                wake = self.core.next_wakeup()
                self._until = math.inf if wake is None else wake
                if self._until > trio.current_time():
                    self._alarm = trio.Event()
                    with trio.CancelScope(deadline=self._until):
                        await self._alarm.wait()
                    if self._alarm.is_set():
                        continue  # something was armed that is due earlier than what we slept for
                await self._reap_slice()
        finally:
            self._running = False

    async def _reap_slice(self) -> None:
        core = self.core
        now = trio.current_time()
        self._note_lag(now - core.epoch_ends)
        core.close_epoch(now, at_least=core.epoch_length / 2)
        due = core.next_wakeup()
        if due is None or due > now:
            return
        # Not earlier than this `now`: what is read during the passes belongs to the epoch that has just been opened.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        for expiry in core.expire(now, limit=REAPS_PER_SLICE, spare=self._spoken):
            connection = self._connections.get(expiry.uid)
            if connection is not None:
                connection._reap(expiry.reason, expiry)
        # What is left is due still: `run` comes back at once, takes a new `now`, and lets the loop run in between.
        await trio.lowlevel.checkpoint()

    def _note_lag(self, lag: float) -> None:
        """Take note of how late the epoch ends. Judged by that and not by our own sleep: we are not always asleep."""
        self.lag = lag = max(lag, 0.0)
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

    def _spoken(self, leases: Sequence[Lease]) -> Collection[Lease]:
        """The last look: those of *leases* for whose connection the kernel holds unread bytes."""
        candidates: dict[int, Lease] = {}
        for lease in leases:
            uid = lease.uid
            connection = self._connections.get(uid[1] if type(uid) is tuple and uid[0] == "deadline" else uid)
            if connection is not None and connection._socket is not None:
                descriptor = connection._socket.fileno()
                if descriptor >= 0:
                    candidates[descriptor] = lease
        return [candidates[descriptor] for descriptor in unread(candidates)] if candidates else ()

    def _poke(self) -> None:
        """Wake the task if something is due before it would wake by itself."""
        wake = self.core.next_wakeup()
        if wake is not None and wake < self._until:
            self._alarm.set()

    def register(self, uid: Any, timeout: float, on: Hook | None = None, *, reason: str = "idle") -> Lease:
        """`IdleReaper.register` as of now: a lease of your own, for what is not a `with` block.

        *on* is called in the reaper's task and must not block; when it raises, that is logged.
        """
        lease = self.core.register(uid, timeout, trio.current_time(), on, reason=reason)
        self._poke()
        return lease

    def watch(self, stream: object | None = None, idle: float | None = None, *, reason: str = "idle") -> Connection:
        """Watch a connection for the length of a `with` block.

        Args:
            stream: Its stream; if there is a socket in it, a last look at unread bytes comes before any reap.
            idle: Seconds of silence allowed; 0 switches the timeout off; None takes the config's `timeouts.idle`.
            reason: What `connection.reason` says after a reap.
        Returns:
            The `Connection`, watched from now on. Enter it at once.
        Raises:
            InvalidArgument: idle is NaN, negative or infinite.
        Timing: the body is cancelled no earlier than *idle* seconds after the last `touch()`, and no later than that
            plus one tick plus what the loop was stuck for beyond half a tick.
        Cost: one lease and one trio cancel scope.
        """
        timeout = _timeout("idle", self.config.timeouts.idle if idle is None else idle)
        uid = next(self._uids)
        connection = Connection(self, uid, stream)
        connection.lease = self.register(uid, timeout, reason=reason)
        connection.touch = connection.lease.touch
        self._connections[uid] = connection
        return connection

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
        return LoopStatistics(self.core.statistics(), self.lag, self.max_lag, self.stalls)


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
        try:
            data = await self.inner.receive_some(max_bytes)
        finally:
            connection.receiving = False
        connection.touch()
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
    config: ReaperConfig | None = None, *, tick: float | None = None, wheel_size: int | None = None
) -> AsyncIterator[TrioReaper]:
    """A running `TrioReaper` for the length of an `async with` block. Arguments as there."""
    reaper = TrioReaper(config, tick=tick, wheel_size=wheel_size)
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


def _timeout(name: str, seconds: float) -> float:
    return NEVER if seconds == 0 else check_timeout(name, seconds)


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


def unread(descriptors: Iterable[int]) -> list[int]:
    """Those of *descriptors*, sockets, for which the kernel holds bytes nobody has read yet.

    One poll(2) for all, 0.1-0.3 us each. An end of file is readable too but no sign of life, hence the count of bytes.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    found = []
    for descriptor, events in poll.poll(0):
        if events & select.POLLIN:
            count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
            if int.from_bytes(count, sys.byteorder) > 0:
                found.append(descriptor)
    return found
