"""What the reapers of all adapters have in common: a driver, and what a program calls.

An adapter adds when its driver is woken, how a connection is watched, and how its loop
sleeps.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

from ..config.settings import DEFAULT, ReaperConfig
from ..core.lease import Hook, Lease
from ..core.reaper import IdleReaper
from ..core.slices import walk
from ..core.ticks import check_timeout
from ..errors import InvalidArgument, shown
from ..metrics import Family, LoopStatistics
from ..policy.min_rate import Sweep
from ..policy.reasons import IDLE
from ..stops import stopping
from .driver import Driver
from .ends import log
from .options import Options
from .pace import Pace
from .watched import Watched

MOST = ReaperConfig().limits.max_connections
"""The default of `limits.max_connections`."""

LOOKS_PER_TICK = 4
"""Looks at peers that have not taken all of what was sent to them: when they take some,
no event says so.
"""

COLLECTOR_THRESHOLDS = (10_000, 5, 2_000)
"""New objects before a young collection, young ones before a middle one, middle ones
before a full one: a middle one visits some 60,000 objects at the most, and a full one
comes after a hundred million that stay.
"""


class Reaper:
    """Watches the connections of one event loop.

    Args:
        clock, config, idle, options: As in `Driver`, and so are the attributes `core`
            and `config`.
        sleep: The loop's own; of 0 seconds: until its next pass.
    Attributes:
        driver: Decides.
        accepting: Whether new connections are welcome. Set by `relieve`; servers turn
            newcomers away, or let them wait.
        most: How many connections may be open at once: `limits.max_connections` if it
            was set, as a guarded server has no limit of its own. Infinite otherwise.
        room: How many may be open before a newcomer needs a second look: `most`, or
            fewer while pressure is judged. The second look reads the pressure anew.
        reading: Reads and judges the pressure at once; None: nobody judges it.
        sweep: Looks at those that have to take something, `LOOKS_PER_TICK` times a
            tick.
        count: Returns how many are open.
        told: Returns further metrics for `/metrics`.
        refused: How many connections of a guarded server were one too many.
        refusing: How many of them are being answered now.
    """

    _hints: ClassVar[Mapping[str, str]]
    """By the state of a reaper that does not run: what is wrong with it."""

    def __init__(
        self,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        config: ReaperConfig | None,
        idle: float | None,
        **options: Unpack[Options],
    ) -> None:
        self.driver: Driver = Driver(
            clock, self._wake, self._run_probe, config, idle=idle, **options
        )
        self.core: IdleReaper = self.driver.core
        self.config: ReaperConfig = self.driver.config
        self.accepting: bool = True
        limit = self.config.limits.max_connections
        unset = self.config.origin("limits.max_connections") == DEFAULT and limit == MOST
        self.refused: int = 0
        self.refusing: int = 0
        self.most: float = math.inf if unset else limit
        self.room: float = self.most
        self.reading: Callable[[], object] | None = None
        self.count: Callable[[], int] = self.__len__
        self.told: Callable[[], Iterable[Family]] = tuple
        self.sleep: Callable[[float], Awaitable[object]] = sleep
        self.sweep: Sweep = Sweep(self._schedule, self.core.tick / LOOKS_PER_TICK)
        self._state = "not started"

    def _schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        driver = self.driver
        driver.after(seconds, lambda: call(driver.now()))

    def _wake(self) -> None:
        raise NotImplementedError

    def _run_probe(self, connection: Any) -> None:
        """Override: run `send_probe` as a task."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many connections are watched now."""
        return len(self.driver.connections)

    def welcomes(self) -> bool:
        """Whether one more connection may be opened. Cost: one comparison, and a
        reading of the pressure where more have come than the last one holds for.
        """
        return (self.accepting and self.count() < self.room) or self._makes_room()

    def _makes_room(self) -> bool:
        """The second look of `welcomes`."""
        self.reread()
        return self.accepting and self.count() < self.most

    def reread(self) -> None:
        """Read the pressure at once if more connections have come than the last reading
        holds for.
        """
        if self.reading is not None and self.accepting and self.count() >= self.room:
            self.reading()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} tick={self.core.tick:g} s, {self._state}, "
            f"{len(self)} connections>"
        )

    @property
    def running(self) -> bool:
        """Whether it reaps."""
        return self._state == "running"

    def _begin(self) -> None:
        if self.running:
            raise RuntimeError("this reaper runs already")
        self._state = "running"
        if self.config.reaper.tame_gc:
            _collector.tame()

    def _end(self, state: str) -> None:
        """It runs no longer, and is *state*; of one that does not run, only that."""
        if self.running and self.config.reaper.tame_gc:
            _collector.release()
        self._state = state

    def _must_run(self) -> None:
        if not self.running:
            hint = self._hints[self._state]
            raise RuntimeError(
                f"this reaper does not run, so it would never close anything: {hint}"
            )

    async def let_the_loop_read(self) -> None:
        """Return when every socket with bytes has been read once.

        That takes two passes of the loop, because in the pass that finds a socket
        readable its reader may run after the caller.
        """
        await self.sleep(0)
        await self.sleep(0)

    def register(
        self, uid: Any, timeout: float, on: Hook | None = None, *, reason: str = IDLE
    ) -> Lease:
        """`IdleReaper.register` as of now: a lease of your own, for what is not a
        `with` block.

        *on* is called in the loop and must not block; when it raises, that is logged.

        Raises:
            InvalidArgument, DuplicateUid: as there.
            RuntimeError: the reaper does not run.
        """
        self._must_run()
        return self.driver.register(uid, timeout, on, reason=reason)

    async def drain(self, timeout: float, window: float = 0.0) -> None:
        """End every connection: an idle one at once, each of the others when it goes
        idle, all of them after *timeout*.

        A connection is idle if that is known: its handler waits for bytes, and the
        kernel holds none of it. The stream tells whether the handler waits; or the
        handler says with `in_use` when it does not. Stop accepting first; a connection
        that is watched after this call is drained too. `reaper.stopping()` is true from
        here on. Tasks that await it run before the first connection is ended.

        Args:
            timeout: Seconds, > 0, from now.
            window: Seconds, >= 0, over which the ends of the idle ones are spread, so
                that their peers do not all come to another server in one instant.
        Raises:
            InvalidArgument: timeout is NaN, infinite, or <= 0, or window is, or is < 0.
        Returns once no connection is watched any more, however many drains there are.
            Reasons: `drain`, and `drain_deadline` for those cut in use.
        """
        if window != 0:
            check_timeout("window", window)
        self.driver.begin_drain(timeout)
        stopping().begin(in_loop=True)  # who waits for it runs before anything is closed
        await self._drained(timeout, window)

    async def _drained(self, timeout: float, window: float) -> None:
        driver, pace = self.driver, Pace()
        pace.look(driver.clock.read())
        await self.let_the_loop_read()
        whole = len(driver.connections)
        for ended in driver.drain_slices(lambda: pace.room(driver.clock.read())):
            pace.ended(ended, more=not window)
            await self.sleep(window * ended / whole)
            if not window:  # what the slice costs can be told: as after one of the reaper's
                pace.look(driver.clock.read())
                await self.let_the_loop_read()
        self._drains_on()
        await self._until_empty()

    def _drains_on(self) -> None:
        """Override: a drain has ended the idle connections, and waits for the
        others.
        """
        raise NotImplementedError

    async def _until_empty(self) -> None:
        raise NotImplementedError

    def statistics(self) -> LoopStatistics:
        """A snapshot; O(1)."""
        return self.driver.statistics()


async def send_probe(connection: Any) -> None:
    """Probe *connection*; what that raises is logged."""
    try:
        await connection.probe(connection)
    except Exception:
        log.warning("the probe of connection %d raised", connection.uid, exc_info=True)


def log_drain(driver: Driver, awake: int = 0) -> None:
    """Log what a drain waits for that has just closed the idle connections, soon.

    It waits for the connections of *driver* and for *awake* handlers of parked ones.
    Some connections do not say whose turn it is. They keep a drain waiting until its
    deadline: that is a warning.
    """
    known: list[bool] = []

    def look(connection: Watched) -> None:
        known.append(connection.receiving is not None or connection.lease.suspended)

    walk(driver.soon, driver.connections.values(), look, lambda: _say_drain(known, awake))


def _say_drain(known: list[bool], awake: int) -> None:
    unknown, in_use = known.count(False), known.count(True) + awake
    if in_use:
        log.info("drain: waiting for %d connections in use", in_use, extra={"in_use": in_use})
    if unknown:
        log.warning(
            "drain: waiting until its deadline for %d connections that do not say whether they "
            "are idle: have their handlers receive by the stream of the watch, or say `in_use`",
            unknown,
            extra={"unknown": unknown},
        )


def check_tame(tame_gc: object) -> None:
    """Make sure that *tame_gc* is True or False. Raises InvalidArgument."""
    if tame_gc is not True and tame_gc is not False:
        raise InvalidArgument(f"tame_gc must be True or False, got {shown(tame_gc)}")


@contextmanager
def tamed_collector(tame_gc: bool = True) -> Iterator[None]:
    """Within the block, if *tame_gc*, the garbage collector visits only what is new.

    A connection with a task is some forty objects; with its usual thresholds the
    collector visits all of them again and again while connections come. What was there
    before is never visited again. Old objects that refer to each other in a circle are
    freed later; nothing here makes such circles. It acts on the whole process, so use
    it in one place.

    Raises:
        InvalidArgument: *tame_gc* is neither True nor False.
    """
    check_tame(tame_gc)
    if not tame_gc:
        yield
        return
    _collector.tame()
    try:
        yield
    finally:
        _collector.release()


class _Collector:
    """The garbage collector of this process: tame while anybody wants it so."""

    def __init__(self) -> None:
        self._wanted = 0
        self._before = gc.get_threshold()

    def tame(self) -> None:
        """Have it visit only what is new from now on. The first time it visits all that
        there is, once.
        """
        self._wanted += 1
        if self._wanted == 1:
            self._before = gc.get_threshold()
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECTOR_THRESHOLDS)

    def release(self) -> None:
        """Take one `tame` back; the last has it as it was before the first."""
        self._wanted -= 1
        if not self._wanted:
            gc.set_threshold(*self._before)
            gc.unfreeze()


_collector = _Collector()
