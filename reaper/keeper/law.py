"""The law of keepers, as a machine without a clock of its own, a lock or a task: *never
in use, never early, at most one tick late, exactly once*.

Who is idle, and since when, is the core's: an idle thing has an armed lease, one in use
a suspended one. When a lease comes due is the driver's. What becomes of the thing then
is decided here, and nowhere else. Whoever calls this sees to it that no two calls
overlap: a loop does that by itself, threads by a lock.

    enter       somebody asks for a key: is let in, makes it, or waits
    leave       somebody lets go; the last one makes the thing idle
    due         the driver says that its time is over: ask, or end
    next_work   what is to be asked or ended next, outside of any lock

What may be found by its key stands in `_kept`, what is being ended in `_ending`; a
thing is in one of them at the most.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..core.lease import Explanation
from ..core.ticks import (
    ms_to_seconds,
    seconds_to_ms_deadline,
    seconds_to_ms_now,
)
from ..core.wheel import TimingWheel
from ..driver.driver import Call, Driver
from ..driver.pace import REAPS_PER_SLICE
from ..driver.pressing import press, until_next
from ..errors import KeeperClosed, UnknownUid, shown
from ..metrics import Histogram
from ..policy.pressure import Pressure, read_here
from ..policy.reasons import DRAIN, DRAIN_DEADLINE, ENDED, IDLE, MAX_AGE, MOST
from .kept import (
    ABANDONED,
    ASKING,
    ENDING,
    FAILED,
    KEPT,
    LEAVING,
    MAKING,
    NEW,
    OVER,
    Kept,
)
from .options import Settings
from .statistics import KeeperStatistics


class Law:
    """What is kept, and by which rules.

    Args:
        driver: Says when a lease is due.
        settings: The rules.
        event: Makes something to `wait` for that can be `set`.
        work: Called when there is something for `next_work` to return: see to it soon,
            outside of this call.
        give_up: Called with a thing that is being made and that nobody waits for any
            more: cancel its make, where that is possible.
    Attributes:
        idle_now: Set once nothing is in use or being made, and the keeper closes.
        all_over: Set once nothing is left at all, and the keeper closes.
    """

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        *,
        event: Callable[[], Any],
        work: Callable[[], object],
        give_up: Callable[[Kept], object],
    ) -> None:
        self.driver: Driver = driver
        self.settings: Settings = settings
        self.idle_now: Any = event()
        self.all_over: Any = event()
        self.closing: bool = False
        self._event = event
        self._work = work
        self._give_up = give_up
        self._kept: dict[Any, Kept] = {}
        self._ending: dict[Any, Kept] = {}
        self._leaving: dict[Kept, None] = {}  # of these, what is in use yet
        self._queue: deque[tuple[Kept, Any, float]] = deque()
        self._on_due = self.due  # one for all: a bound method is an object
        self._unfinished = 0  # whose end has not run
        self._making = 0
        self._counts: Counter[str] = Counter()  # made, failed, spared, errors
        self._ended: Counter[str] = Counter()
        self._ends = Histogram()
        self._waits = Histogram()
        # Instants of `max_age`, ms of the driver's clock. A second lease would stand
        # among those of which `most` takes the longest idle.
        self._ages: TimingWheel[Kept] = TimingWheel(
            tick=seconds_to_ms_deadline(driver.core.tick / 2),
            start=seconds_to_ms_now(driver.now()),
        )
        self._next_age: Call | None = None
        self._next_age_at = 0

    # ---- using -----------------------------------------------------------------------
    def enter(self, key: Hashable, user: object) -> Kept:
        """*user* asks for *key*. The state of the result says what is next.

        KEPT: it is in. NEW: it makes the thing. MAKING: it waits, and is in once that
        is KEPT. Anything else: it waits for the end of that, and asks again.

        Raises:
            KeeperClosed: nobody is let in any more.
        """
        kept = self._kept.get(key)
        if kept is None or self.closing:
            return self._newcomer(key, user)
        if kept.state is ASKING:
            self._revive(kept)
        users = kept.users
        if users is None:
            kept.users = {user: None}
            # The silence ends here. The touch says so, and being suspended says only
            # that none is counted.
            kept.lease.touch()
            kept.lease.suspend()
        else:
            users[user] = None
        return kept

    def _newcomer(self, key: Hashable, user: object) -> Kept:
        if self.closing:
            raise KeeperClosed(f"the keeper {self.settings.name!r} is closed; {shown(key)}")
        if not self.settings.overlap and key in self._ending:
            return self._ending[key]
        kept = self._kept[key] = Kept(self._on_due, key)
        kept.users = {user: None}
        self._making += 1
        self._make_room()
        return kept

    def begin(self, kept: Kept) -> None:
        """The make of *kept*, which is NEW, begins."""
        kept.state = MAKING

    def made(self, kept: Kept, thing: Any) -> None:
        """`make` has returned *thing*. Who waits for it is in."""
        driver = self.driver
        self._making -= 1
        kept.thing, kept.state, kept.why = thing, KEPT, None
        kept.lease = driver.register(kept, driver.later(self.settings.idle))
        driver.books.opened(kept.lease, None)
        self._counts["made"] += 1
        if self.settings.max_age:
            self._grow_old(kept, driver.later(self.settings.max_age) or 0.0)
        if kept.users:
            kept.lease.suspend()
        else:
            kept.users = None
            if self.closing:
                self._retire(kept, DRAIN)
        self._set(kept)

    def failed(self, kept: Kept, error: BaseException | None) -> None:
        """`make` raised *error*; None: it was cancelled. Who waits for it hears of the
        error; after a cancellation that the law asked for they ask anew.
        """
        self._making -= 1
        del self._kept[kept.key]
        if error is None and kept.why is not ABANDONED and not self.closing:
            error = RuntimeError(f"the make of {shown(kept.key)} was cancelled")
        if error is not None:
            self._counts["failed"] += 1
        kept.state, kept.why = FAILED, error
        self._set(kept)
        self._look_for_the_last()

    def leave(self, kept: Kept, user: object) -> None:
        """*user*, who is in or waits for it to be made, lets go."""
        users: Any = kept.users
        del users[user]
        if users:
            return
        state = kept.state
        if state is KEPT:
            kept.users = None
            if kept.why is not None or self.closing:
                self._retire(kept, kept.why or DRAIN)
                return
            # Before it can be due: so the journal has the time of use as one in which
            # no timeout was in force.
            kept.lease.touch()
            self.driver.resume(kept.lease)
            if self.settings.most:
                self._make_room()
        elif state is MAKING:
            kept.why = ABANDONED
            self._give_up(kept)
        elif state is LEAVING:
            kept.users = None
            del self._leaving[kept]
            self._retire(kept, kept.why)
        elif state is NEW:  # interrupted before it could begin
            self.failed(kept, None)
        elif state is not FAILED and kept.why is not DRAIN_DEADLINE:
            self._accuse(kept)

    def _accuse(self, kept: Kept) -> None:
        """*kept* is in use after its end began, which breaks the law. Have the journal
        say so: the audit finds activity after an end.
        """
        log = getattr(kept.lease, "log", None)
        if log is not None:
            log.gap(log.last_ns, max(round(self.driver.clock.read() * 1e9), log.last_ns) + 1)

    def touch(self, key: Hashable) -> bool:
        """Note activity. False: nothing is kept for *key*."""
        kept = self._kept.get(key)
        if kept is None or kept.state in (NEW, MAKING):
            return False
        if kept.state is ASKING:
            self._revive(kept)
        kept.lease.touch()
        return True

    # ---- the end ---------------------------------------------------------------------
    def due(self, kept: Kept, reason: str, expiry: Any = None) -> None:
        """The time of *kept* is over for *reason*. Does nothing if it is in use, or
        ends already.

        Args:
            expiry: The core's record, if its lease has ended by that; None otherwise.
        """
        if kept.state is not KEPT or kept.users is not None:
            return
        if not self.settings.ask:
            self._retire(kept, reason, expiry)
            return
        kept.state, kept.why = ASKING, (reason, expiry)
        now = self.driver.now()
        self.driver.books.asked(kept.lease, now if expiry is None else expiry.now)
        self._let_go_of_lease(kept)
        self._queue.append((kept, kept.why, now))
        self._work()

    def _retire(self, kept: Kept, reason: str, expiry: Any = None) -> None:
        """Nobody uses *kept*, and nobody will: its end is to run."""
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
        books = self.driver.books
        if reason is ENDED:
            books.left(kept.lease, by_peer=False)
        else:
            books.reaped(kept.lease, str(kept), reason, expiry)
        if kept.users is not None and reason is not DRAIN_DEADLINE:
            self._accuse(kept)
        self._let_go_of_lease(kept)
        if kept.age is not None:
            kept.age.cancel()
            kept.age = None
        kept.state, kept.why = ENDING, reason
        self._ended[reason] += 1
        self._ending[kept.key] = kept
        self._unfinished += 1
        self._queue.append((kept, None, self.driver.now()))
        self._look_for_the_last()
        self._work()

    def _let_go_of_lease(self, kept: Kept) -> None:
        lease = kept.lease
        lease.release()
        lease.uid = None  # or lease and thing would be a circle, which only the collector frees

    def _revive(self, kept: Kept) -> None:
        """*kept*, whose lease has ended, lives on: somebody uses it, or it works."""
        driver, before = self.driver, kept.lease
        before.uid = None
        self._counts["spared"] += 1
        kept.lease = driver.register(kept, driver.later(self.settings.idle))
        driver.books.moved(before, kept.lease)
        kept.state, kept.why = KEPT, None
        if kept.users is not None:
            kept.lease.suspend()

    def next_work(self) -> tuple[Kept, Any] | None:
        """What is next: a thing, and a question if it is to be asked first; without one
        it is to be ended. None: nothing.
        """
        while self._queue:
            kept, question, since = self._queue.popleft()
            if question is not None:
                if kept.why is question:
                    return kept, question
                continue  # somebody came to use it
            self._waits.add(max(self.driver.now() - since, 0.0))
            return kept, None
        return None

    def answered(self, kept: Kept, question: Any, may_end: bool) -> None:
        """`ask` has answered. Where nothing happened meanwhile, *kept* is ended next,
        or lives on for another timeout.
        """
        if kept.state is not ASKING or kept.why is not question:
            return
        reason, expiry = question
        if may_end:
            if expiry is not None:
                # How long the answer took is not held against the law.
                expiry = expiry._replace(now=max(self.driver.now(), expiry.now))
                self.driver.books.answered(kept.lease, expiry)
            self._retire(kept, reason, expiry)
            return
        self._revive(kept)
        if reason is MAX_AGE:
            self._grow_old(kept, self.settings.idle or self.settings.max_age)

    def over(self, kept: Kept, seconds: float, *, error: bool = False) -> None:
        """The end of *kept* has run for *seconds*."""
        self._ends.add(seconds)
        self._counts["errors"] += error
        self._unfinished -= 1
        kept.state = OVER
        kept.thing = None
        if self._ending.get(kept.key) is kept:
            del self._ending[kept.key]
        self._set(kept)
        self._look_for_the_last()

    def went_wrong(self) -> None:
        """`ask` raised."""
        self._counts["errors"] += 1

    def dismiss(self, key: Hashable) -> Kept | None:
        """End what is kept for *key*; in use it is ended when the last one leaves.
        None: nothing is kept.
        """
        kept = self._kept.get(key)
        if kept is None or kept.state in (NEW, MAKING):
            return None
        if kept.users is None:
            if kept.state is ASKING:
                self._revive(kept)
            self._retire(kept, ENDED)
        else:  # in use: nobody is let in any more
            del self._kept[key]
            kept.state, kept.why = LEAVING, ENDED
            self._leaving[kept] = None
            self._ending[key] = kept
        return kept

    def ending(self, key: Hashable) -> Kept | None:
        """What is being ended for *key*, or leaves."""
        return self._ending.get(key)

    def signal(self, kept: Kept) -> Any:
        """What is set once *kept* is made, or over."""
        if kept.signal is None:
            kept.signal = self._event()
        return kept.signal

    def _set(self, kept: Kept) -> None:
        if kept.signal is not None:
            kept.signal.set()
            kept.signal = None

    # ---- other limits ----------------------------------------------------------------
    def _make_room(self) -> None:
        """End the longest idle while there is more than `most`. What is in use stays,
        also beyond that: it goes when it is left.
        """
        most = self.settings.most
        while most and len(self._kept) > most:
            found = self.driver.core.oldest(1)
            if not found:
                return
            self.due(found[0], MOST)

    def _grow_old(self, kept: Kept, seconds: float) -> None:
        kept.age = self._ages.schedule(seconds_to_ms_deadline(self.driver.now() + seconds), kept)
        self._wait_for_age()

    def _wait_for_age(self) -> None:
        at = self._ages.next_expiry()
        if at is None or (self._next_age is not None and self._next_age_at <= at):
            return
        if self._next_age is not None:
            self._next_age.cancel()
        self._next_age_at = at
        self._next_age = self.driver.at(ms_to_seconds(at), self._age)

    def _age(self) -> None:
        """End what is older than `max_age`; what is in use when the last one leaves."""
        self._next_age = None
        now = seconds_to_ms_now(self.driver.now())
        for timer in self._ages.advance(now, REAPS_PER_SLICE):
            kept = timer.item
            kept.age = None
            if kept.state is KEPT and kept.users is not None:
                kept.why = MAX_AGE
            else:
                self.due(kept, MAX_AGE)
        self._wait_for_age()

    def relieve(self, reaper: Any, pressure: Pressure) -> None:
        """Read the pressure now and act on it, and so on until the keeper is closed."""
        if self.closing:
            return
        verdict = press(reaper, pressure, read_here, (IDLE,))
        seconds = until_next(verdict, self.driver.core.tick)
        self.driver.after(seconds, lambda: self.relieve(reaper, pressure))

    # ---- closing ---------------------------------------------------------------------
    def close(self) -> Iterator[None]:
        """Let nobody in, and end all that is idle, a slice at a time; the rest when it
        is left. Walk the result.
        """
        self.closing = True
        for number, kept in enumerate(list(self._kept.values()), 1):
            if kept.state is ASKING:
                self._revive(kept)
            if kept.state is KEPT and kept.users is None:
                self._retire(kept, DRAIN)
            if number % REAPS_PER_SLICE == 0:
                yield
        self._look_for_the_last()

    def cut(self) -> list[Kept]:
        """End what is in use, too. Returns what is still being made."""
        for kept in [*self._leaving, *self._kept.values()]:
            if kept.state in (KEPT, LEAVING):
                self._leaving.pop(kept, None)
                self._retire(kept, DRAIN_DEADLINE)
        return list(self._kept.values())

    @property
    def waiting(self) -> int:
        """How many questions and ends wait for their turn."""
        return len(self._queue)

    def _look_for_the_last(self) -> None:
        if self.closing and not self._kept and not self._leaving:
            self.idle_now.set()
            if not self._unfinished:
                self.all_over.set()

    # ---- looking in ------------------------------------------------------------------
    def __len__(self) -> int:
        """How many things are kept."""
        return len(self._kept) - self._making

    def __contains__(self, key: Hashable) -> bool:
        kept = self._kept.get(key)
        return kept is not None and kept.state in (KEPT, ASKING)

    def keys(self) -> list[Any]:
        """The keys of what is kept, in the order in which they were first asked for."""
        return [key for key, kept in self._kept.items() if kept.state in (KEPT, ASKING)]

    def oldest(self, n: int) -> list[Any]:
        """Up to *n* keys, longest idle first."""
        return [kept.key for kept in self.driver.core.oldest(n)]

    def explain(self, key: Hashable) -> Explanation:
        """Why what is kept for *key* is still here. Raises UnknownUid: nothing is."""
        kept = self._kept.get(key)
        if kept is None or kept.state in (NEW, MAKING):
            raise UnknownUid(f"nothing is kept for {shown(key)}")
        if kept.state is not ASKING:
            return replace(self.driver.core.explain(kept), uid=key)
        (reason, _), lease = kept.why, kept.lease
        timeout = self.settings.idle or None
        return Explanation(
            key, timeout, reason, True, lease.active_from, lease.active_until, None, "being asked"
        )

    def statistics(self) -> KeeperStatistics:
        """A snapshot; O(1)."""
        counts = self._counts
        loop = self.driver.statistics()
        return KeeperStatistics(
            name=self.settings.name,
            kept=len(self),
            in_use=loop.core.suspended,
            making=self._making,
            ending=self._unfinished,
            made=counts["made"],
            failed=counts["failed"],
            ended=MappingProxyType(self._ended),
            spared=counts["spared"],
            errors=counts["errors"],
            ends=self._ends,
            waits=self._waits,
            loop=loop,
        )
