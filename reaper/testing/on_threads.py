"""Keepers that threads share, and the stories that try them, in real time.

The rule of this module: *a story that is a coroutine is played in a thread of its own*,
and waits there as any thread does.

Stability: public.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any

from .keepers import Body, play_all

__all__ = ["check_keeper"]

UNIT = 0.05
"""Seconds that a unit of the stories takes, where nothing else is said."""

LATE = 0.5
"""Seconds that a busy machine may keep a thread waiting."""

DURATIONS = ("idle", "tick", "drain", "max_age")


def _run(steps: Coroutine[Any, Any, Any]) -> Any:
    """The result of *steps*, which waits for nothing but its own thread."""
    try:
        steps.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a story in threads awaits something of a loop")


class _Waited:
    """A keeper whose plain functions and blocks may be awaited."""

    def __init__(self, keeper: Any) -> None:
        self.plain = keeper

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def __len__(self) -> int:
        return len(self.plain)

    def __contains__(self, key: Any) -> bool:
        return key in self.plain

    @asynccontextmanager
    async def use(self, key: Any) -> AsyncIterator[Any]:
        with self.plain.use(key) as thing:
            yield thing

    async def end(self, key: Any) -> Any:
        return self.plain.end(key)


class _Thread:
    def cancel(self) -> None:
        """A thread cannot be cancelled."""


BEAT = 0.02
"""Seconds between two looks at how late this machine is."""


class KeeperStage:
    """Threads and the real clock, where the stories of keepers are played."""

    cancels: bool = False

    def __init__(self, unit: float = UNIT) -> None:
        self._unit = unit
        self._late = 0.0  # seconds by which a thread was that only sleeps, all in all
        self._due = math.inf  # when its sleep should be over
        self._over = threading.Event()
        self._begun = time.monotonic()
        self._threads: list[threading.Thread] = []
        self.raised: list[BaseException] = []

    @property
    def slack(self) -> float:
        """Units that the machine may keep a thread waiting, and those that it did."""
        # A beat under way may be as late as what is judged: both slept.
        return (LATE + self._late + max(time.monotonic() - self._due, 0.0)) / self._unit

    def _watch(self) -> None:
        """Note by how much this machine is late, until the story is over.

        It adds up: the clock of a keeper stands still in each of its stalls. What is
        shorter than a beat is none.
        """
        self._due = time.monotonic() + BEAT
        while not self._over.is_set():
            time.sleep(BEAT)
            now = time.monotonic()
            if now - self._due > BEAT:
                self._late += now - self._due
            self._due = now + BEAT
        self._due = math.inf

    def now(self) -> float:
        """Units since the stage was made."""
        return (time.monotonic() - self._begun) / self._unit

    async def sleep(self, units: float) -> None:
        """Wait."""
        time.sleep(units * self._unit)

    def stall(self, units: float) -> None:
        """Nothing: a thread that computes holds up no other one."""

    def start(self, body: Body, *arguments: Any) -> _Thread:
        """Play *body* beside the others."""

        def play() -> None:
            try:
                _run(body(*arguments))
            except BaseException as error:
                self.raised.append(error)

        thread = threading.Thread(target=play, daemon=True)
        self._threads.append(thread)
        thread.start()
        return _Thread()

    def opened(
        self, door: Callable[..., Any], make: Body, end: Body, **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """The keeper of *door*."""
        scaled = {
            name: value * self._unit if name in DURATIONS and value else value
            for name, value in options.items()
        }

        @asynccontextmanager
        async def opened() -> AsyncIterator[Any]:
            plain = door(
                lambda *words: _run(make(*words)), lambda *words: _run(end(*words)), **scaled
            )
            with plain as keeper:
                yield _Waited(keeper)

        return opened()

    def played(self, story: Body) -> None:
        """Play *story* to its end, and all that it has started."""
        watching = threading.Thread(target=self._watch, daemon=True)
        watching.start()
        try:
            _run(story())
            for thread in self._threads:
                thread.join()
        finally:
            self._over.set()
            watching.join()
        for error in self.raised:
            raise error


def check_keeper(open_keeper: Callable[..., AbstractContextManager[Any]]) -> None:
    """Run the conformance kit for keepers on one that threads share, as
    `reaper.testing.on_asyncio.check_keeper`; `make` and `end` are plain functions
    there, and the block is a plain `with`.

    Raises:
        NotConforming: at the first broken promise. An end may begin half a second late,
            as machines are busy, and as much later as this one kept a thread waiting
            that only slept; and no caller is cancelled.
    Cost: about ten seconds of waiting.
    """
    play_all(KeeperStage, open_keeper)
