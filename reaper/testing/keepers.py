"""The chapter of the conformance kit for keepers: an account that is kept beside one,
and stories that make trouble, such as hand-written keepers have had.

The rule of this module: *the account knows only what it saw*. It is told when a thing
was made, entered, left and ended, by whoever does that, and asks the keeper nothing. A
stage runs the same story on asyncio, on trio and in threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from .conformance import NotConforming

Body = Callable[..., Coroutine[Any, Any, Any]]

IDLE, TICK = 10.0, 1.0
"""Units that things may be idle in the stories, and the precision."""

LONGEST = 10_000.0
"""Units after which a story that has not come to its end is given up."""

PATIENCE = 200.0
"""Units after which what a story waits for is taken to happen never."""

CUT = frozenset({"drain", "drain_deadline"})
"""Reasons by which a thing is ended although it was not idle for its time: the keeper
is being closed. And `OTHERS`: somebody or another limit wanted it.
"""

OTHERS = frozenset({"ended", "most", "max_age", "pressure"})


class Thing:
    """One thing that a keeper has had made.

    Attributes:
        key, number: Whose, and the how many-th of all.
        users, uses: How many use it now, and how often it was used.
        active: The instant of its last sign of life.
        ended, over: The instants at which its end began, and had run; None: not yet.
        reason: Why it was ended; None: it was not.
    """

    def __init__(self, key: Any, number: int, now: float) -> None:
        self.key: Any = key
        self.number: int = number
        self.users: int = 0
        self.uses: int = 0
        self.active: float = now
        self.ended: float | None = None
        self.over: float | None = None
        self.reason: str | None = None

    def __repr__(self) -> str:
        return f"<{self.key}, thing {self.number}>"


class Ledger:
    """The account of one keeper.

    Args:
        now: The clock, of any unit.
        idle, tick: What was promised, in that unit.
        slack: Says how much later than promised an end may begin.
        overlap: Whether a key may have a new thing while its old one is being ended.
    Attributes:
        broken: Every promise that was broken, in words.
        made: Every thing.
        steps: What was done, in words.
    """

    def __init__(
        self,
        now: Callable[[], float],
        idle: float = IDLE,
        tick: float = TICK,
        *,
        slack: Callable[[], float] = lambda: 0.0,
        overlap: bool = False,
    ) -> None:
        self._now = now
        self._idle, self._tick, self._slack, self._overlap = idle, tick, slack, overlap
        self.broken: list[str] = []
        self.made: list[Thing] = []
        self.steps: list[str] = []
        self._stalls: list[tuple[float, float]] = []
        self._full: list[tuple[float, float]] = []
        self._full_since: float | None = None

    def _step(self, text: str) -> None:
        self.steps.append(f"{self._now():.3f} {text}")

    def _accuse(self, text: str) -> None:
        self.broken.append(f"{self._now():.3f} {text}")

    def expect(self, promise: str, holds: object) -> None:
        """Note that *promise* was broken, unless it *holds*."""
        if not holds:
            self._accuse(promise)

    def make(self, key: Any) -> Thing:
        """A thing is made for *key*."""
        if not self._overlap:
            live = [each for each in self.made if each.key == key and each.over is None]
            self.expect(f"{key} is made although {live} is there", not live)
        thing = Thing(key, len(self.made) + 1, self._now())
        self.made.append(thing)
        self._step(f"{thing} is made")
        return thing

    def enter(self, thing: Thing) -> None:
        """Somebody uses *thing* from now on."""
        self._step(f"{thing} is entered")
        self.expect(f"{thing} is handed out after its end began", thing.ended is None)
        thing.users += 1
        thing.uses += 1
        thing.active = self._now()

    def leave(self, thing: Thing) -> None:
        """Somebody lets go of *thing*."""
        self._step(f"{thing} is left")
        cut = thing.reason == "drain_deadline"
        self.expect(f"{thing} was ended while it was in use", thing.ended is None or cut)
        thing.users -= 1
        thing.active = self._now()

    def touch(self, thing: Thing, at: float | None = None) -> None:
        """*thing* showed a sign of life: now, or *at* the instant before its keeper was
        told.
        """
        thing.active = max(thing.active, self._now() if at is None else at)

    def end(self, thing: Thing, reason: str = "idle") -> None:
        """The end of *thing* begins."""
        self._step(f"{thing} is ended: {reason}")
        now = self._now()
        self.expect(f"{thing} is ended twice", thing.ended is None)
        self.expect(f"{thing} is ended in use", not thing.users or reason == "drain_deadline")
        thing.ended, thing.reason = now, reason
        if reason in CUT or reason in OTHERS:
            return
        awake = now - thing.active - sum(self._within(self._stalls, thing.active, now))
        # A stall is noticed late: up to a tick of it may be charged.
        least = self._idle - (self._tick if awake < now - thing.active else 0.0)
        self.expect(f"{thing} is ended after {awake:.3f} of {self._idle:g}", awake >= least - 1e-6)
        self._expect_in_time(thing, now)

    def over(self, thing: Thing) -> None:
        """The end of *thing* has run."""
        thing.over = self._now()

    def stalled(self, begun: float) -> None:
        """The loop stood still from *begun* until now."""
        self._stalls.append((begun, self._now()))

    def full(self, taken: bool) -> None:
        """From now on all turns for ends are *taken*, so that others wait."""
        if taken:
            self._full_since = self._now()
        elif self._full_since is not None:
            self._full.append((self._full_since, self._now()))
            self._full_since = None

    def _within(self, spans: list[tuple[float, float]], start: float, end: float) -> list[float]:
        return [max(min(last, end) - max(first, start), 0.0) for first, last in spans]

    def _expect_in_time(self, thing: Thing, now: float) -> None:
        full = [] if self._full_since is None else [(self._full_since, now)]
        spans = [*self._stalls, *self._full, *full]
        excused = sum(self._within(spans, thing.active, now))
        late = now - thing.active - self._idle - excused - self._tick
        self.expect(f"{thing} is {late:.3f} later than one tick", late <= self._slack() + 1e-6)

    def look(self) -> None:
        """Nothing is idle for too long, now."""
        for thing in self.made:
            if thing.ended is None and not thing.users:
                self._expect_in_time(thing, self._now())

    def close(self) -> None:
        """The keeper is closed."""
        for thing in self.made:
            self.expect(f"{thing} was never ended", thing.ended is not None)

    def judge(self, title: str) -> None:
        """Raise NotConforming if a promise was broken."""
        if self.broken:
            raise NotConforming(
                f"{title}: {'; '.join(self.broken[:3])}. Last steps: {'; '.join(self.steps[-12:])}"
            )


class Player(Protocol):
    """What a stage has started."""

    def cancel(self) -> object:
        """Cancel it, where that is possible."""


class Stage(Protocol):
    """Where a story is played. Times are units: a second of virtual time, or less of
    the real one.
    """

    cancels: bool

    @property
    def slack(self) -> float:
        """Units by which the machine may be late, and by which it was."""

    def now(self) -> float:
        """The clock."""

    async def sleep(self, units: float) -> None:
        """Wait."""

    def stall(self, units: float) -> None:
        """Hold the loop for so long."""

    def start(self, body: Body, *arguments: Any) -> Player:
        """Play *body* beside the others."""

    def opened(
        self, door: Callable[..., Any], make: Body, end: Body, **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """The keeper of *door*, whose functions are *make* and *end*; `idle`, `tick`
        and `drain` in *options* are units.
        """

    def played(self, story: Body) -> None:
        """Play *story* to its end, and all that it has started."""


class LoopStage:
    """What the stages of event loops have in common: time is virtual, so nobody is
    late, and the stories' functions are the loop's own.
    """

    slack: float = 0.0
    cancels: bool = True

    def opened(
        self, door: Callable[..., Any], make: Body, end: Body, **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """The keeper of *door*."""
        keeper: AbstractAsyncContextManager[Any] = door(make, end, **options)
        return keeper


class Failed(Exception):
    """What a `make` or an `end` of a story raises, on purpose."""

    def __str__(self) -> str:
        return f"{super().__str__()}: a story of the conformance kit raises this on purpose"


@contextmanager
def _nothing_provoked_logged() -> Iterator[None]:
    """Keep what a story provokes out of reaper's log: the errors of its own functions,
    and the stalls of the loop that plays it.

    In the log they look as if the keeper had failed. What else is logged meanwhile, by
    other threads for instance, stays.
    """
    thread = threading.get_ident()

    def unprovoked(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        stalled = hasattr(record, "lag") and record.thread == thread
        return not (isinstance(error, Failed) or stalled)

    log = logging.getLogger("reaper")
    log.addFilter(unprovoked)
    try:
        yield
    finally:
        log.removeFilter(unprovoked)


class Play:
    """One story on one stage, with one keeper."""

    def __init__(self, stage: Stage, door: Callable[..., Any], **ledger: Any) -> None:
        self.stage = stage
        self._door = door
        self.ledger: Ledger = Ledger(stage.now, slack=lambda: stage.slack, **ledger)
        self.things: dict[Any, Thing] = {}  # the latest of each key
        self.making: float = 0.0  # units that a make takes
        self.turns: int = 8  # ends that may run at once
        self._running = 0
        self._closing = False
        self.fails: set[Any] = set()  # keys whose make raises
        self.breaks: set[Any] = set()  # keys whose end raises
        self.lasts: dict[Any, float] = {}  # units that the end of a key takes

    async def make(self, key: Any) -> Thing:
        """The keeper's `make`."""
        await self.stage.sleep(self.making)
        if key in self.fails:
            raise Failed(key)
        thing = self.things[key] = self.ledger.make(key)
        return thing

    async def end(self, key: Any, thing: Thing, reason: str | None = None) -> None:
        """The keeper's `end`."""
        self.ledger.end(thing, reason or ("drain" if self._closing else "idle"))
        self._running += 1
        if self._running == self.turns:
            self.ledger.full(True)
        try:
            await self.stage.sleep(self.lasts.get(key, 0.0))
        finally:
            if self._running == self.turns:
                self.ledger.full(False)
            self._running -= 1
            self.ledger.over(thing)
        if key in self.breaks:
            raise Failed(key)

    @asynccontextmanager
    async def keeper(self, **options: Any) -> AsyncIterator[Any]:
        """The keeper, opened."""
        options = {"idle": IDLE, "tick": TICK, **options}
        async with self.stage.opened(self._door, self.make, self.end, **options) as keeper:
            yield keeper
            self._closing = True
        self.ledger.close()

    async def use(self, keeper: Any, key: Any, units: float) -> None:
        """Use *key* for so long."""
        async with keeper.use(key) as thing:
            self.ledger.enter(thing)
            try:
                await self.stage.sleep(units)
            finally:
                self.ledger.leave(thing)

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until *holds*. That it never does breaks the promise *what*."""
        latest = self.stage.now() + PATIENCE
        while not holds():
            if self.stage.now() > latest:
                self.ledger.expect(what, False)
                return
            await self.stage.sleep(0.1)

    async def until_used(self, key: Any) -> None:
        """Wait until who was started to use *key* does, or did: we may be late."""
        await self.until(lambda: key in self.things and self.things[key].uses, f"{key} is used")

    async def until_ended(self, key: Any) -> None:
        """Wait until the end of the latest thing of *key* has begun."""
        begun = self.stage.now()
        while self.things[key].ended is None:
            # Asked each time: what the machine is late by grows meanwhile.
            if self.stage.now() - begun >= IDLE + 2 * TICK + self.stage.slack:
                return
            await self.stage.sleep(0.1)

    def stall(self, units: float) -> None:
        """Hold the loop."""
        begun = self.stage.now()
        self.stage.stall(units)
        self.ledger.stalled(begun)


class Stories:
    """Each makes trouble in its own way. Their names are their titles in a message."""

    async def what_is_in_use_is_kept(self, play: Play) -> None:
        async with play.keeper() as keeper:
            await play.use(keeper, "a", 3.5 * IDLE)
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()

    async def what_is_in_use_again_is_kept(self, play: Play) -> None:
        async with play.keeper() as keeper:
            await play.use(keeper, "a", 0.0)
            await play.stage.sleep(0.5 * IDLE)
            await play.use(keeper, "a", 2.5 * IDLE)
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()

    async def nothing_is_ended_early(self, play: Play) -> None:
        silent = 0.0  # at most, from one use to the next
        async with play.keeper() as keeper:
            last = play.stage.now()
            for _ in range(4):
                begun = play.stage.now()
                await play.use(keeper, "a", 0.3 * TICK)
                silent, last = max(silent, play.stage.now() - last), begun
                await play.stage.sleep(0.8 * IDLE)
            one = len(play.ledger.made) == 1
            play.ledger.expect("a busy key needs one thing", one or silent >= IDLE)

    async def many_come_due_at_once(self, play: Play) -> None:
        async with play.keeper() as keeper:
            for number in range(40):
                await play.use(keeper, number, 0.0)
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()

    async def an_end_that_hangs_holds_up_nobody(self, play: Play) -> None:
        play.lasts["slow"] = 2.5 * IDLE
        async with play.keeper() as keeper:
            await play.use(keeper, "slow", 0.0)
            await play.stage.sleep(0.3 * IDLE)
            await play.use(keeper, "other", 0.0)
            await play.stage.sleep(IDLE)  # now "slow" is being ended
            await play.use(keeper, "third", 0.0)
            begun = play.stage.now()
            await play.use(keeper, "fourth", 0.0)
            waited = play.stage.now() - begun
            over = play.things["slow"].over
            beside = over is None or play.things["fourth"].active < over
            prompt = waited <= play.stage.slack
            play.ledger.expect("a use waits for another key's end", prompt or beside)
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()

    async def an_end_that_raises_stops_nothing(self, play: Play) -> None:
        play.breaks |= {"bad"}
        async with play.keeper() as keeper:
            await play.use(keeper, "bad", 0.0)
            await play.stage.sleep(0.5 * IDLE)
            await play.use(keeper, "good", 0.0)
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()

    async def who_comes_during_an_end_gets_another_one(self, play: Play) -> None:
        play.lasts["a"] = 0.4 * IDLE
        async with play.keeper() as keeper:
            await play.use(keeper, "a", 0.0)
            await play.until_ended("a")
            await play.use(keeper, "a", 0.0)
            play.ledger.expect("it was made again", len(play.ledger.made) == 2)

    async def two_callers_make_one(self, play: Play) -> None:
        play.making, left = 0.5, list[Thing]()

        async def use(keeper: Any) -> None:
            async with keeper.use("a") as thing:
                play.ledger.enter(thing)
                await play.until(lambda: left or thing.users == 3, "three callers share it")
                play.ledger.leave(thing)
                left.append(thing)

        async with play.keeper() as keeper:
            for _ in range(3):
                play.stage.start(use, keeper)
            await play.until(lambda: len(left) == 3, "three callers are served")
            play.ledger.expect("three callers need one thing", len(play.ledger.made) == 1)

    async def a_make_that_raises_is_heard_by_all_who_wait(self, play: Play) -> None:
        play.making, heard = 0.5, list[str]()
        play.fails |= {"a"}

        async def ask(keeper: Any) -> None:
            try:
                await play.use(keeper, "a", 0.0)
            except Failed:
                heard.append("it")

        async with play.keeper() as keeper:
            for _ in range(2):
                play.stage.start(ask, keeper)
            await play.until(lambda: len(heard) == 2, "both hear it")
            play.fails.clear()
            await play.use(keeper, "a", 0.0)

    async def a_stall_is_not_idleness(self, play: Play) -> None:
        async with play.keeper() as keeper:
            begun = play.stage.now()
            await play.use(keeper, "a", 0.0)
            await play.stage.sleep(0.4 * IDLE)
            silent = play.stage.now() - begun
            play.stall(2 * IDLE)
            begun = play.stage.now()
            await play.stage.sleep(0.2 * IDLE)
            await play.use(keeper, "a", 0.0)
            silent += play.stage.now() - begun
            one = len(play.ledger.made) == 1
            play.ledger.expect("it outlives a stall", one or silent >= IDLE)

    async def a_caller_who_is_cancelled_lets_go(self, play: Play) -> None:
        if not play.stage.cancels:
            return
        async with play.keeper() as keeper:
            player = play.stage.start(play.use, keeper, "a", 20 * IDLE)
            await play.stage.sleep(0.2 * IDLE)
            player.cancel()
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()
            play.ledger.expect("it is ended", play.things["a"].ended is not None)

    async def closing_waits_for_who_is_in(self, play: Play) -> None:
        async with play.keeper() as keeper:
            play.stage.start(play.use, keeper, "a", 0.5 * IDLE)
            await play.use(keeper, "b", 0.0)
            await play.until_used("a")
            await play.stage.sleep(0.1 * IDLE)


def play_all(
    stage: Callable[[], Stage], door: Callable[..., Any], told: type[Any] = Stories
) -> None:
    """Play every story that *told* has, each on a new stage.

    Raises:
        NotConforming: at the first broken promise.
    """
    for name in [name for name in vars(told) if not name.startswith("_")]:
        play_one(stage(), door, getattr(told(), name), name.replace("_", " "))


def play_one(stage: Stage, door: Callable[..., Any], story: Body, title: str) -> None:
    """Play *story*. Raises NotConforming: a promise was broken."""
    play = Play(stage, door)

    async def told() -> None:
        await story(play)

    try:
        with _nothing_provoked_logged():
            stage.played(told)
    except Failed:
        play.ledger.expect("what a function raises is heard by none but who waits", False)
    except TimeoutError:
        play.ledger.expect(f"it comes to its end within {LONGEST:g}", False)
    play.ledger.judge(title)
