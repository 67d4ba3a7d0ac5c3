"""AsyncioReaper: the driver of a loop's connections, woken by one timer of that loop.

The rule of this module: *a wake is two steps, and between them the loop reads*. What is
decided in them is the driver's; here is only when they run. On asyncio a callback
scheduled by `call_soon` runs before the reads of its iteration, on uvloop after the
callbacks come the reads: after two of them in a row, the sockets have been read once on
either loop. It matters most after SIGSTOP and SIGCONT: CPython's `epoll.poll` then
returns an empty list although bytes are ready, and the timers fire first.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Unpack

from ..config.settings import ReaperConfig
from ..core.slices import walk
from ..driver.options import Options, check_options, spelled_out
from ..driver.pressing import press, until_next
from ..driver.reaper import Reaper, check_tame, send_probe, tamed_collector
from ..driver.watched import PROBE_GRACE, Probe
from ..errors import InvalidArgument, shown
from ..policy.pressure import Pressure, limits_here, read_here
from ..policy.reasons import IDLE
from .at_rest import Resting, fits, trimmer
from .connection import Connection
from .transports import is_tls, socket_of

COARSE = 0.001
"""Seconds added to a timer of a loop that keeps its time in milliseconds (uvloop), so
that it never wakes too soon.
"""


LOOKS = 1024
"""Connections that are asked at once whether they have ended: a tenth of a microsecond
each.
"""


class AsyncioReaper(Reaper):
    """Watches the connections of one asyncio loop. Made by `open_reaper`, or by hand in
    a coroutine: then `start()` it.

    Args:
        config: Tick, wheel size and the default idle timeout; None for the defaults.
        idle: Seconds of silence allowed where nothing else is said; 0 is off; None: the
            config's `timeouts.idle`.
        loop: Whose connections; None: the running loop's.
        options: See `reaper.driver.Options`: tick, wheel_size, journal, listener,
            jitter, reaps_per_second, seed.
    Attributes:
        pressure: Judges `reaper.pressure`; None if that is off, or nothing runs yet.
    Raises:
        InvalidArgument: by name and value.
        RuntimeError: *loop* is None and none runs.
    """

    _hints: ClassVar[Mapping[str, str]] = {
        "not started": "start() it first",
        "stopped": "it was stopped",
    }

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
        self._clock = clock_of(self.loop)
        super().__init__(self._clock, asyncio.sleep, config, idle, **options)
        self._extra = 0.0 if isinstance(self.loop, asyncio.BaseEventLoop) else COARSE
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf  # when it rings
        self.resting: Resting | None = None
        """Its TLS connections, where those at rest can give back what they hold."""
        if self.config.reaper.release_buffers and fits(self.loop):
            self.resting = Resting(trimmer())
        self._had_tls = False  # whether `resting` has had a connection to look at
        self._passing = False  # whether a wake is between its two steps
        self._forgot = -math.inf  # when connections were last looked for that have ended unheard
        self.pressure: Pressure | None = None
        self._probes: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self.driver.on_empty = self._empty.set

    # ---- waking ----------------------------------------------------------------------
    def start(self) -> None:
        """Reap from now on. Wakes once per epoch and at due instants; with nothing
        registered, not at all.

        Raises:
            RuntimeError: it runs already.
            ImportError: `reaper.pressure` is on, and there is no psutil.
        """
        if self.config.reaper.pressure:
            self.pressure = Pressure(limits_here())
        self._begin()
        self._press()  # the first newcomers may be a crowd
        self._wake()

    def stop(self) -> None:
        """Reap no longer. What is watched stays open."""
        self._end("stopped")
        self._set(math.inf)
        for probe in self._probes:
            probe.cancel()

    def _wake(self) -> None:
        if self.running and not self._passing:
            self._set(self.driver.rest())

    def _set(self, at: float) -> None:
        if at == self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, at
        if at < math.inf:
            self._timer = self.loop.call_later(
                max(at - self._clock(), 0.0) + self._extra, self._look
            )

    def _look(self) -> None:
        self._timer, self._at = None, math.inf
        if self._had_tls and self.resting is not None:
            self.resting.look(self._clock())
        if self.driver.look():
            self._passing = True
            self.loop.call_soon(self.loop.call_soon, self._act)  # after two passes
        else:
            self._wake()

    def _act(self) -> None:
        self._passing = False
        if not self.running:
            return
        try:
            self.driver.act()
        finally:
            self._wake()

    def _makes_room(self) -> bool:
        """The second look of `welcomes`.

        If a server lets no protocol in, the end of a connection is heard only when its
        transport is freed. So connections that have ended are forgotten before a client
        is refused; once per tick at most, because this looks at every connection: at
        the oldest now, and at the others in the next passes of the loop.
        """
        now = self._clock()
        if self.count() >= self.most and now >= self._forgot + self.core.tick:
            self._forgot = now
            walk(self.loop.call_soon, self.driver.connections.values(), _forget, size=LOOKS)
        return super()._makes_room()

    def _press(self) -> None:
        """Read the pressure and act on it, now and as long as this runs.

        It is no task, as `relieve` is: nobody would end that before the loop of a
        server closes.
        """
        if self.pressure is None or not self.running:
            return
        verdict = press(self, self.pressure, read_here)
        self.loop.call_later(until_next(verdict, self.core.tick), self._press)

    def _run_probe(self, connection: Any) -> None:
        task = self.loop.create_task(send_probe(connection))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    # ---- watching --------------------------------------------------------------------
    def watch(
        self,
        transport: Any = None,
        idle: float | None = None,
        *,
        reason: str = IDLE,
        probe: Probe | None = None,
        grace: float = PROBE_GRACE,
    ) -> Connection:
        """Watch a connection for the length of a `with` block in a task.

        Args:
            transport: Its transport, `StreamWriter` or socket, or None; unread bytes in
                its socket are a sign of life.
            idle: Seconds of silence allowed; 0 switches the timeout off; None takes the
                reaper's own `idle`.
            reason: What `connection.reason` says after a reap.
            probe: Called, as a task, with the connection when it has been silent for
                *idle*: it sends something that the peer must answer. Any touch is an
                answer. What it raises is logged.
            grace: Seconds, > 0, that the peer then has; after that it is reaped.
        Returns:
            The `Connection`, watched from now on. Enter it at once.
        Raises:
            InvalidArgument: by name and value. Nothing is left behind.
            RuntimeError: the reaper does not run.
        Timing: the body is cancelled no earlier than *idle* seconds after the last
            `touch()`, and no later than that plus one tick plus what the loop stalled
            for.
        Cost: one lease. No task, no timer.
        """
        self._must_run()
        if (
            transport is not None
            and not hasattr(transport, "get_extra_info")
            and socket_of(transport) is None
        ):
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
        self.relieve(getattr(transport, "transport", transport))
        return connection

    def relieve(self, transport: Any) -> None:
        """Have the connection of *transport* give back its buffers whenever it is at
        rest, if there is TLS on it, and `reaper.release_buffers` is on.
        """
        if self.resting is not None and is_tls(transport):
            self._had_tls = True
            self.resting.add(transport)

    # ---- draining --------------------------------------------------------------------
    def _drains_on(self) -> None:
        walk(self.loop.call_soon, self.driver.connections.values(), self._drains_one)

    def _drains_one(self, connection: Any) -> None:
        # The sweep asks it, as no event says that it is idle.
        if hasattr(connection, "charge") and connection.uid in self.driver.connections:
            self.sweep.add(connection)

    async def _until_empty(self) -> None:
        while self.driver.connections:
            self._empty.clear()
            await self._empty.wait()


def _forget(connection: Any) -> None:
    """Forget *connection* if it has ended."""
    if connection.link < 0:
        connection.gone()


Settings = ReaperConfig | Callable[[], ReaperConfig] | None

_OF_LOOPS: dict[asyncio.AbstractEventLoop, list[tuple[Settings, AsyncioReaper]]] = {}
"""The reapers of each loop, each with the settings that were asked for."""


def reaper_of(
    loop: asyncio.AbstractEventLoop | None = None, config: Settings = None
) -> AsyncioReaper:
    """The reaper of *loop* (None: the running one) by *config*, which runs; made where
    there is none yet.

    For what has no `async with` block around it: protocols, servers of other packages.

    Args:
        config: Its settings; None: any. Or a function that loads them, which is called
            once for each loop: a server may ask for every connection.
    """
    loop = asyncio.get_running_loop() if loop is None else loop
    if loop not in _OF_LOOPS:
        for other in [other for other in _OF_LOOPS if other.is_closed()]:
            del _OF_LOOPS[other]
    known = _OF_LOOPS.setdefault(loop, [])
    for asked, found in known:
        if config is None or asked is config or found.config == config:
            return found
    if callable(config):
        found = reaper_of(loop, config())
    else:
        found = AsyncioReaper(config, loop=loop)
        found.start()
    known.append((config, found))
    return found


def serving_reaper(
    reaper: AsyncioReaper | None,
    config: ReaperConfig | None,
    options: Options,
    idle: float | None = None,
) -> Callable[[], AsyncioReaper]:
    """A function that returns the reaper that watches for a server; call it in the
    loop.

    That is *reaper* if it is given; one of the server's own, with *idle*, if *config*
    or any of *options* is; otherwise the loop's.

    Raises:
        InvalidArgument: by name and value; or *reaper* is given together with *config*
            or *options*.
        TypeError: one of *options* is unknown.
    """
    if not isinstance(reaper, AsyncioReaper | None):
        raise InvalidArgument(f"reaper must be an AsyncioReaper or None, got {shown(reaper)}")
    given = [name for name, value in {"config": config, **options}.items() if value is not None]
    check_options(config, idle if given else None, options)  # another's tick is not known here
    if not given:
        return reaper_of if reaper is None else lambda: reaper
    if reaper is not None:
        raise InvalidArgument(
            f"reaper must be None where {given[0]} is given: that makes another; got {reaper!r}"
        )
    made: list[AsyncioReaper] = []

    def own() -> AsyncioReaper:
        if not made:
            made.append(AsyncioReaper(config, idle=idle, **options))
            made[0].start()
        return made[0]

    return own


@spelled_out
def open_reaper(
    config: ReaperConfig | None = None,
    *,
    idle: float | None = None,
    tame_gc: bool = False,
    **options: Unpack[Options],
) -> AbstractAsyncContextManager[AsyncioReaper]:
    """A running `AsyncioReaper` for the length of an `async with` block. Arguments as
    there.

    Args:
        tame_gc: Whether the garbage collector of this process visits only what is new
            for that long, so that it never holds the loop for as long as it takes to
            visit all connections. See `reaper.driver.reaper.tamed_collector`.
    Raises:
        InvalidArgument, TypeError: at the call, as `AsyncioReaper` does.
    """
    check_options(config, idle, options, own=("tame_gc",))
    check_tame(tame_gc)
    return _opened(tame_gc, config, idle=idle, **options)


@asynccontextmanager
async def _opened(
    tame_gc: bool, config: ReaperConfig | None, **options: Any
) -> AsyncIterator[AsyncioReaper]:
    reaper = AsyncioReaper(config, **options)
    with tamed_collector(tame_gc):
        reaper.start()
        try:
            yield reaper
        finally:
            reaper.stop()


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock for connections of *loop*: its own, if that is read anew at every call.

    uvloop's `time` is read once an iteration: what is noted late in an iteration would
    seem to be older than it is, and a connection would be closed early by the length of
    an iteration.
    """
    return loop.time if isinstance(loop, asyncio.BaseEventLoop) else time.monotonic


def journal_clock(loop: asyncio.AbstractEventLoop | None = None) -> Callable[[], int]:
    """The clock of *loop* (None: the running one) in ns, for `Journal(clock_ns=...)`:
    callable from any thread.
    """
    clock = clock_of(asyncio.get_running_loop() if loop is None else loop)
    return lambda: round(clock() * 1e9)
