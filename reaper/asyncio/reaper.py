"""AsyncioReaper: the driver of a loop's connections, woken by one timer of that loop.

The rule of this module: *a wake is two steps, and between them the loop reads*. What is decided in them is the
driver's; here is only when they run.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Unpack

from ..config.settings import ReaperConfig
from ..core.lease import Hook, Lease
from ..core.reaper import IdleReaper
from ..core.ticks import check_timeout
from ..driver.collecting import taming
from ..driver.driver import Driver
from ..driver.options import Options, check_names, spelled_out
from ..driver.pacing import PROBE_GRACE
from ..driver.watched import Probe, Reapable
from ..errors import InvalidArgument, shown
from ..metrics import LoopStatistics
from ..policy.min_rate import Sweep
from .connection import Connection
from .loop import COARSE, after_two_passes, clock_of, let_the_loop_read
from .transports import socket_of

LOOKS_PER_TICK = 4
"""Looks at peers that have not taken all of what was sent to them: when they take some, no event says so."""

log: logging.Logger = logging.getLogger("reaper")


class AsyncioReaper:
    """Watches the connections of one asyncio loop. Made by `open_reaper`, or by hand in a coroutine: then `start()` it.

    Args:
        config: Tick, wheel size and the default idle timeout; None for the defaults.
        idle: Seconds of silence allowed where nothing else is said; 0 is off; None: the config's `timeouts.idle`.
        loop: Whose connections; None: the running loop's.
        options: `reaper.driver.Options` says what each is: tick, wheel_size, journal, listener, jitter,
            reaps_per_second, seed.
    Raises:
        InvalidArgument: by name and value.
        RuntimeError: *loop* is None and none runs.
    """

    @spelled_out
    def __init__(
        self,
        config: ReaperConfig | None = None,
        *,
        idle: float | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop() if loop is None else loop
        clock = clock_of(self.loop)
        self.driver: Driver = Driver(
            clock,
            self._rest,
            self._run_probe,
            config,
            idle=idle,
            **options,
        )
        self.config: ReaperConfig = self.driver.config
        self.core: IdleReaper = self.driver.core
        self._clock = clock
        self._extra = 0.0 if isinstance(self.loop, asyncio.BaseEventLoop) else COARSE
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf  # when it rings
        self.accepting = True  # `start_server` turns newcomers away while it is not; set by `relieve`
        self.sweep: Sweep = Sweep(self._schedule, self.core.tick / LOOKS_PER_TICK)
        self._state = "not started"
        self._passing = False  # whether a wake is between its two steps
        self._probes: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self.driver.on_empty = self._empty.set

    def __len__(self) -> int:
        """How many connections are watched now."""
        return len(self.driver.connections)

    def __repr__(self) -> str:
        return f"<AsyncioReaper tick={self.core.tick:g} s, {self._state}, {len(self)} connections>"

    @property
    def running(self) -> bool:
        """Whether it reaps."""
        return self._state == "running"

    # ---- waking --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Reap from now on. Wakes once per epoch and at due instants; with nothing registered, not at all.

        Raises:
            RuntimeError: it runs already.
        """
        if self.running:
            raise RuntimeError("this reaper runs already")
        self._state = "running"
        self._rest()

    def stop(self) -> None:
        """Reap no longer. What is watched stays open."""
        self._state = "stopped"
        self._set(math.inf)
        for probe in self._probes:
            probe.cancel()

    def _rest(self) -> None:
        if self.running and not self._passing:
            self._set(self.driver.rest())

    def _set(self, at: float) -> None:
        if at == self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, at
        if at < math.inf:
            self._timer = self.loop.call_later(max(at - self._clock(), 0.0) + self._extra, self._wake)

    def _wake(self) -> None:
        self._timer, self._at = None, math.inf
        if self.driver.look():
            self._passing = True
            after_two_passes(self.loop, self._act)
        else:
            self._rest()

    def _act(self) -> None:
        self._passing = False
        if not self.running:
            return
        try:
            self.driver.act()
        finally:
            self._rest()

    def _run_probe(self, connection: Any) -> None:
        task = self.loop.create_task(_probe(connection))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    def _schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        driver = self.driver
        driver.after(seconds, lambda: call(driver.now()))

    # ---- watching ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The clock of everything here: seconds in which the loop was awake."""
        return self.driver.now()

    def register(self, uid: Any, timeout: float, on: Hook | None = None, *, reason: str = "idle") -> Lease:
        """`IdleReaper.register` as of now: a lease of your own, for what is not a `with` block.

        *on* is called by the loop and must not block; when it raises, that is logged.

        Raises:
            InvalidArgument, DuplicateUid: as there.
            RuntimeError: the reaper does not run.
        """
        self._must_run()
        return self.driver.register(uid, timeout, on, reason=reason)

    def watch(
        self,
        transport: Any = None,
        idle: float | None = None,
        *,
        reason: str = "idle",
        probe: Probe | None = None,
        grace: float = PROBE_GRACE,
    ) -> Connection:
        """Watch a connection for the length of a `with` block in a task.

        Args:
            transport: Its transport, `StreamWriter` or socket, or None; bytes that are unread in its socket are a sign
                of life.
            idle: Seconds of silence allowed; 0 switches the timeout off; None takes the reaper's own `idle`.
            reason: What `connection.reason` says after a reap.
            probe: Called, as a task, with the connection when it has been silent for *idle*: it sends something that
                the peer must answer. Any touch is an answer. What it raises is logged.
            grace: Seconds, > 0, that the peer then has; after that it is reaped.
        Returns:
            The `Connection`, watched from now on. Enter it at once.
        Raises:
            InvalidArgument: by name and value. Nothing is left behind.
            RuntimeError: the reaper does not run.
        Timing: the body is cancelled no earlier than *idle* seconds after the last `touch()`, and no later than that
            plus one tick plus what the loop stalled for.
        Cost: one lease. No task, no timer.
        """
        self._must_run()
        if transport is not None and not hasattr(transport, "get_extra_info") and socket_of(transport) is None:
            wanted = "a transport, a StreamWriter, a socket or None"
            raise InvalidArgument(f"transport must be {wanted}, got {shown(transport)}")
        connection: Connection = self.driver.watch(
            lambda uid: Connection(self.driver, uid, transport),
            socket_of(transport),
            idle,
            reason=reason,
            probe=probe,
            grace=grace,
        )
        return connection

    def _must_run(self) -> None:
        if not self.running:
            hint = "start() it first" if self._state == "not started" else "it was stopped"
            raise RuntimeError(f"this reaper does not run, so it would never close anything: {hint}")

    def waiting(self, uid: Any) -> Reapable | None:
        """The connection of *uid* if it waits for bytes with nothing else to do; None if it is in use, or is none."""
        return self.driver.waiting(uid)

    async def drain(self, timeout: float, window: float = 0.0) -> None:
        """End every connection: those that are idle at once, each of the rest when it goes idle, all after *timeout*.

        Idle is a connection whose handler waits for bytes, of which the kernel holds none, and that is not suspended.
        Stop accepting first; a connection that is watched after this call is drained too.

        Args:
            timeout: Seconds, > 0, from now.
            window: Seconds, >= 0, over which the ends of the idle ones are spread.
        Raises:
            InvalidArgument: timeout is NaN, infinite, or <= 0, or window is, or is < 0.
        Returns once no connection is watched any more. Reasons: `drain`, and `drain_deadline` for those cut in use.
        """
        driver = self.driver
        if window:
            check_timeout("window", window)
        driver.begin_drain(timeout)
        await let_the_loop_read()
        pause: float | None = None
        for left in driver.drain_slices():
            pause = window / (left + 1) if pause is None else pause
            await asyncio.sleep(pause)
        for connection in driver.connections.values():
            if hasattr(connection, "charge"):  # no event says that it has gone idle
                self.sweep.add(connection)
        while driver.connections:
            self._empty.clear()
            await self._empty.wait()

    def statistics(self) -> LoopStatistics:
        """A snapshot; O(1)."""
        return self.driver.statistics()


_OF_LOOPS: dict[asyncio.AbstractEventLoop, list[AsyncioReaper]] = {}


def reaper_of(loop: asyncio.AbstractEventLoop | None = None, config: ReaperConfig | None = None) -> AsyncioReaper:
    """The reaper of *loop* (None: the running one) by *config* (None: any), which runs; made where there is none yet.

    For what has no `async with` block around it: protocols, servers of other packages.
    """
    loop = asyncio.get_running_loop() if loop is None else loop
    if loop not in _OF_LOOPS:
        for other in [other for other in _OF_LOOPS if other.is_closed()]:
            del _OF_LOOPS[other]
    known = _OF_LOOPS.setdefault(loop, [])
    for found in known:
        if config is None or found.config == config:
            return found
    made = AsyncioReaper(config, loop=loop)
    known.append(made)
    made.start()
    return made


def serving_reaper(
    reaper: AsyncioReaper | None, config: ReaperConfig | None, options: Options
) -> Callable[[], AsyncioReaper]:
    """The one that watches for a server: *reaper*; or one of its own, with *config* and *options*; or its loop's.

    Returns:
        A function that returns it; to be called in the loop.
    Raises:
        InvalidArgument: *reaper* is none, or is given together with *config* or *options*.
        TypeError: one of *options* is unknown.
    """
    if not isinstance(reaper, AsyncioReaper | None):
        raise InvalidArgument(f"reaper must be an AsyncioReaper or None, got {shown(reaper)}")
    check_names(options)
    given = [name for name, value in {"config": config, **options}.items() if value is not None]
    if not given:
        return reaper_of if reaper is None else lambda: reaper
    if reaper is not None:
        raise InvalidArgument(f"reaper must be None where {given[0]} is given: that makes another; got {reaper!r}")
    made: list[AsyncioReaper] = []

    def own() -> AsyncioReaper:
        if not made:
            made.append(AsyncioReaper(config, **options))
            made[0].start()
        return made[0]

    return own


@spelled_out
@asynccontextmanager
async def open_reaper(
    config: ReaperConfig | None = None,
    *,
    idle: float | None = None,
    tame_gc: bool = False,
    **options: Unpack[Options],
) -> AsyncIterator[AsyncioReaper]:
    """A running `AsyncioReaper` for the length of an `async with` block. Arguments as there.

    Args:
        tame_gc: Whether the garbage collector of this process visits only what is new for that long, so that it never
            holds the loop for as long as it takes to visit all connections. See `reaper.driver.collecting`.
    """
    reaper = AsyncioReaper(
        config,
        idle=idle,
        **options,
    )
    with taming(tame_gc):
        reaper.start()
        try:
            yield reaper
        finally:
            reaper.stop()


def journal_clock(loop: asyncio.AbstractEventLoop | None = None) -> Callable[[], int]:
    """The clock of *loop* (None: the running one) in ns, for `Journal(clock_ns=...)`: callable from any thread."""
    clock = clock_of(asyncio.get_running_loop() if loop is None else loop)
    return lambda: round(clock() * 1e9)


async def _probe(connection: Any) -> None:
    try:
        await connection.probe(connection)
    except Exception:
        log.warning("the probe of connection %d raised", connection.uid, exc_info=True)
