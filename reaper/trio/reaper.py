"""`TrioReaper`: one task for all connections of a trio program.

The rule of this module: *waiting is trio's, deciding is the driver's*. When to wake,
whom to judge and what to write down is `reaper.driver`'s; here are the task that sleeps
in between, and the doors to what a program needs of it.

All time comes from `trio.current_time()`, so `trio.testing.MockClock` works, autojump
included.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, NoReturn, Unpack

import trio

from ..config.settings import ReaperConfig
from ..driver.options import Options, check_options, spelled_out
from ..driver.reaper import Reaper, check_tame, log_drain, send_probe, tamed_collector
from ..driver.watched import PROBE_GRACE, Probe, check_handler, check_watch
from ..metrics import LoopStatistics
from ..policy.reasons import IDLE
from .accepting import until_welcome
from .connection import Connection, socket_of
from .parking import ParkingLot


class TrioReaper(Reaper):
    """Watches the connections of one trio program. Made by `open_reaper`, or by hand
    and started with `nursery.start`.

    Args:
        config: Tick, wheel size and the default idle timeout; None for the defaults.
        idle: Seconds of silence allowed where nothing else is said; 0 is off; None: the
            config's `timeouts.idle`.
        options: See `reaper.driver.Options`.
    Raises:
        InvalidArgument: by name and value.
    """

    _hints: ClassVar[Mapping[str, str]] = {
        "not started": "start its run() first",
        "ended": "its block is over",
    }

    @spelled_out
    def __init__(
        self,
        config: ReaperConfig | None = None,
        *,
        idle: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(trio.current_time, trio.sleep, config, idle, **options)
        self._lots: list[ParkingLot] = []
        self._alarm = trio.Event()
        self._drainers = trio.lowlevel.ParkingLot()
        self.driver.on_empty = self._drainers.unpark_all

    def __len__(self) -> int:
        """How many connections are watched now, parked ones included."""
        return len(self.driver.connections) + sum(map(len, self._lots))

    # ---- running ---------------------------------------------------------------------
    async def run(
        self, *, task_status: trio.TaskStatus[TrioReaper] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Reap until cancelled. Wakes once per epoch and at due instants; with nothing
        registered, not at all.

        Raises:
            RuntimeError: it runs already.
        """
        self._begin()
        driver = self.driver
        try:
            async with trio.open_nursery() as self._probes:
                task_status.started(self)
                while True:
                    self._alarm = trio.Event()
                    until = driver.rest()
                    if until > trio.current_time():
                        with trio.CancelScope(deadline=until):
                            await self._alarm.wait()
                        if self._alarm.is_set():
                            # Something was armed that is due earlier than what we slept
                            # for.
                            continue
                    if driver.look():
                        await self.let_the_loop_read()
                        driver.act()
                        # What is left is due still; the loop runs before it is looked
                        # at again.
                        await trio.lowlevel.checkpoint()
        finally:
            self._end("ended")
        raise AssertionError("unreachable")

    def _wake(self) -> None:
        self._alarm.set()

    def _run_probe(self, connection: Connection) -> None:
        self._probes.start_soon(send_probe, connection)

    def _must_run(self) -> None:
        # A task that is being cancelled may still take a step: it meets its
        # cancellation next, and needs no other end.
        if not self.running and trio.current_effective_deadline() > -math.inf:
            super()._must_run()

    # ---- watching --------------------------------------------------------------------
    def watch(
        self,
        stream: object | None = None,
        idle: float | None = None,
        *,
        reason: str = IDLE,
        probe: Probe | None = None,
        grace: float = PROBE_GRACE,
    ) -> Connection:
        """Watch a connection for the length of a `with` block.

        Receive by the `stream` of the result: then every receive touches, and a drain
        knows whose turn it is. Otherwise it takes the connection for busy from its
        first touch on, unless `in_use` says what must not be cut.

        Args:
            stream: Its stream or socket, or None. If there is a socket in it, the
                kernel is asked for unread bytes before any reap; streams in memory have
                none.
            idle: Seconds of silence allowed; 0 switches the timeout off; None takes the
                reaper's own `idle`.
            reason: What `connection.reason` says after a reap.
            probe: An async function, run as a task of the reaper's with the connection
                when that has been silent for *idle*: it sends what the peer must
                answer. Any activity is an answer. What it raises is logged.
            grace: Seconds, > 0, that the peer then has; after that it is reaped.
        Returns:
            The `Connection`, watched from now on. Enter it at once.
        Raises:
            InvalidArgument: by name and value. Nothing is left behind.
            RuntimeError: the reaper does not run.
        Timing: the body is cancelled no earlier than *idle* seconds after the last
            `touch()`, and no later than that plus one tick plus what the loop was late
            by beyond half a tick, and plus its stalls.
        Cost: one lease and one trio cancel scope.
        """
        self._must_run()
        socket = socket_of(stream)
        driver = self.driver

        def make(uid: int) -> Connection:
            return Connection(driver, uid, stream, socket)

        connection: Connection = driver.watch(
            make, socket, idle, reason=reason, probe=probe, grace=grace
        )
        return connection

    def watched(
        self,
        handler: Callable[[Any], Awaitable[object]],
        idle: float | None = None,
        *,
        probe: Probe | None = None,
        grace: float = PROBE_GRACE,
    ) -> Callable[[trio.abc.Stream], Awaitable[None]]:
        """Wrap *handler* so that each stream it is given is watched and every receive
        touches by itself.

        The result goes wherever trio takes a handler: `trio.serve_listeners`,
        `trio.serve_ssl_over_tcp`, ... Arguments and errors as in `watch`.
        """
        check_handler("handler", handler)
        check_watch(idle, "idle", probe, grace)

        async def handle(stream: trio.abc.Stream) -> None:
            with self.watch(stream, idle, probe=probe, grace=grace) as connection:
                await handler(connection.stream)

        return handle

    # ---- parking ---------------------------------------------------------------------
    @asynccontextmanager
    async def parking_lot(
        self,
        handler: Callable[[Any], Awaitable[object]],
        idle: float | None = None,
        *,
        reason: str = IDLE,
        linger: float = 0.0,
        tls: ssl.SSLContext | None = None,
        parks: bool | None = None,
    ) -> AsyncIterator[ParkingLot]:
        """A running `ParkingLot` for the length of an `async with` block.

        *idle* is as in `watch`; for the rest see `ParkingLot`.
        """
        idle = self.driver.idle if idle is None else idle
        lot = ParkingLot(self, handler, idle, reason=reason, linger=linger, tls=tls, parks=parks)
        async with self.keeping(lot):
            yield lot

    @asynccontextmanager
    async def keeping(self, lot: ParkingLot) -> AsyncIterator[None]:
        """Run *lot*, of a class of your own, for the length of an `async with`
        block.
        """
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

    # ---- accepting and draining ------------------------------------------------------
    async def welcome(self) -> None:
        """Return when new connections are welcome."""
        await until_welcome(self)

    async def _drained(self, timeout: float, window: float) -> None:
        async with trio.open_nursery() as nursery:
            for lot in self._lots:
                nursery.start_soon(lot.drain, timeout, window)
            await super()._drained(timeout, window)

    def _drains_on(self) -> None:
        log_drain(self.driver, sum(len(lot) - lot.parked for lot in self._lots))

    async def _until_empty(self) -> None:
        while self.driver.connections:
            await self._drainers.park()

    def statistics(self) -> LoopStatistics:
        """A snapshot; O(1)."""
        return self.driver.statistics(sum(lot.parked for lot in self._lots))


@spelled_out
def open_reaper(
    config: ReaperConfig | None = None,
    *,
    idle: float | None = None,
    tame_gc: bool = False,
    **options: Unpack[Options],
) -> AbstractAsyncContextManager[TrioReaper]:
    """A running `TrioReaper` for the length of an `async with` block. Arguments as
    there.

    Args:
        tame_gc: Whether the garbage collector of this process visits only what is new
            for that long, so that it never holds the loop for as long as it takes to
            visit all connections. See `reaper.driver.reaper.tamed_collector`.
    Raises:
        InvalidArgument, TypeError: at the call, as `TrioReaper` does.
    """
    check_options(config, idle, options, own=("tame_gc",))
    check_tame(tame_gc)
    return _opened(tame_gc, config, idle=idle, **options)


@asynccontextmanager
async def _opened(
    tame_gc: bool, config: ReaperConfig | None, **options: Any
) -> AsyncIterator[TrioReaper]:
    reaper = TrioReaper(config, **options)
    with tamed_collector(tame_gc):
        async with trio.open_nursery() as nursery:
            await nursery.start(reaper.run)
            try:
                yield reaper
            finally:
                nursery.cancel_scope.cancel()


def journal_clock() -> Callable[[], int]:
    """The clock of this trio run in ns, for `Journal(clock_ns=...)`: callable from any
    thread.
    """
    clock = trio.lowlevel.current_clock()
    return lambda: round(clock.current_time() * 1e9)
