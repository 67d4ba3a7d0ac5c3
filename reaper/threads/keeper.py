"""The keeper of many threads. What is decided is the law's; here are the lock around
it, and the threads in which ends run.

The rule of this module: *the lock is held for a decision, never for a make, an ask or
an end*. So no thread waits for another key's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Unpack

from ..core.lease import Explanation
from ..core.ticks import check_count
from ..keeper.kept import ABANDONED, FAILED, KEPT, MAKING, NEW, OVER, Kept
from ..keeper.law import Law
from ..keeper.loops import LAST_TURNS, NAMED, Key, Thing
from ..keeper.options import KeeperOptions, Settings, log, settings_of
from ..keeper.statistics import KeeperStatistics, families
from ..metrics import Family
from .reaping import ThreadReaper


class ThreadKeeper(Generic[Key, Thing]):
    """Things by their keys, made when they are asked for, and ended when nobody has
    used them for a while. Made by `open_keeper`; any thread may call it.

    It belongs to the process that opened it: in a child that was forked every call
    raises RuntimeError, and changes nothing.

    Attributes:
        reaper: Watches the things.
    """

    def __init__(self, make: Any, end: Any, ask: Any, settings: Settings) -> None:
        self._make, self._end, self._ask = make, end, ask
        self._settings = settings
        self._pid = os.getpid()
        self._workers = 0
        self._turns = settings.ends_at_once
        self._running: dict[Kept, None] = {}  # whose end runs
        self.reaper: ThreadReaper = ThreadReaper(**settings.reaper)
        self.law: Law = Law(
            self.reaper.driver,
            settings,
            event=threading.Event,
            work=self._see_to_work,
            give_up=lambda kept: None,  # a thread cannot be cancelled
        )
        self.reaper.count = self.law.__len__
        self.reaper.told = self._families

    def __repr__(self) -> str:
        return f"<ThreadKeeper {self._settings.name!r}>"

    @property
    def _lock(self) -> threading.Lock:
        """The lock. Raises RuntimeError in a forked child."""
        if os.getpid() != self._pid:
            # Before it is taken: a thread of the parent may have held it at the fork.
            raise RuntimeError(
                f"the keeper {self._settings.name!r} belongs to process {self._pid}, and this "
                f"is process {os.getpid()}: open one after the fork"
            )
        return self.reaper.lock

    def open(self) -> None:
        """Start its thread."""
        self.reaper.start()
        if self._settings.pressure is not None:
            with self._lock:
                self.law.relieve(self.reaper, self._settings.pressure)

    # ---- using -----------------------------------------------------------------------
    def use(self, key: Key) -> AbstractContextManager[Thing]:
        """A `with` block in which the thing of *key* is in use, and so is never due. It
        is made by `make(key)`, in this thread, if there is none.

        It is in use from the moment the block is entered. Several threads may use one
        thing at once. Who asks for a thing that is being made waits for it; who asks
        for one that is being ended waits for that end, and gets a new one (at once with
        `overlap`). Nobody waits for another key's make or end.

        Raises:
            KeeperClosed: on entering: the keeper closes, or is closed.
            RuntimeError: the block was entered before; or the process was forked.
            Exception: what `make` raised; all who waited for it hear it, and nothing is
                kept.
        """
        return Use(self, key)

    def _ask_for(self, use: Use[Any, Any]) -> tuple[Kept, bool]:
        """What *use* gets, or waits for; and whether it has to make that. Under the
        lock.
        """
        kept = self.law.enter(use.key, use)
        makes = kept.state is NEW
        if makes:
            self.law.begin(kept)  # so no other thread ever finds it NEW
        return kept, makes

    def _let_in(self, kept: Kept, makes: bool, use: Use[Any, Any]) -> Kept:
        """Return what *use* is in, at last."""
        law = self.law
        while True:
            if makes:
                self._run_make(kept)
            with self._lock:
                state, inside = kept.state, kept.users is not None and use in kept.users
                if state is KEPT and inside:
                    return kept
                if state is FAILED and kept.why is not None:
                    raise kept.why
                if inside and state not in (MAKING, FAILED):  # cut by the keeper's end
                    law.leave(kept, use)
                if state in (FAILED, OVER):
                    kept, makes = self._ask_for(use)
                    continue
                makes = False
                signal = law.signal(kept)
            try:
                signal.wait()
            except BaseException:
                with self._lock:
                    if kept.users and use in kept.users:
                        law.leave(kept, use)
                raise

    def _run_make(self, kept: Kept) -> None:
        try:
            thing = self._make(kept.key)
        except Exception as error:
            with self._lock:
                self.law.failed(kept, error)
        except BaseException:  # of this thread's alone: who else waits makes it anew
            with self._lock:
                kept.why = ABANDONED
                self.law.failed(kept, None)
            raise
        else:
            with self._lock:
                self.law.made(kept, thing)

    def touch(self, key: Key) -> bool:
        """Note activity of *key* without a use. False: nothing is kept for it."""
        with self._lock:
            return self.law.touch(key)

    # ---- ends ------------------------------------------------------------------------
    def end(self, key: Key) -> bool:
        """End what is kept for *key*, with the reason `ended`, and return when its end
        has run.

        What is in use is ended when the last thread leaves it; until then none is let
        in any more. If the caller itself uses it, this returns at once: it would wait
        for itself.

        Returns:
            True if it was kept; False if nothing was, or it was being ended already:
            that end is waited for, too.
        """
        with self._lock:
            kept = self.law.dismiss(key)
            ending = self.law.ending(key) if kept is None else kept
            me = threading.get_ident()
            if ending is None or any(use.thread == me for use in ending.users or ()):
                return kept is not None
            signal = self.law.signal(ending)
        signal.wait()
        return kept is not None

    def _see_to_work(self) -> None:
        if self._workers < self._turns:
            self._workers += 1
            try:
                threading.Thread(target=self._work, name="reaper-end", daemon=True).start()
            except RuntimeError:  # too many threads; or the interpreter ends
                self._workers -= 1
                log.exception("no thread for an end of %s; the next one sees to it", self)

    def _work(self) -> None:
        """Ask and end what is due, one by one, until there is nothing left."""
        while True:
            with self._lock:
                found = self.law.next_work()
                if found is None:
                    self._workers -= 1
                    return
            kept, question = found
            if question is None:
                self._run_end(kept)
            else:
                self._run_ask(kept, question)

    def _run_ask(self, kept: Kept, question: Any) -> None:
        may_end = False
        error = None
        try:
            may_end = bool(self._ask(kept.key, kept.thing))
        except BaseException as raised:
            error = raised
        with self._lock:
            if error is not None:
                self.law.went_wrong()
            self.law.answered(kept, question, may_end)
        if error is not None:
            self._settings.went_wrong("ask", kept.key, error)

    def _run_end(self, kept: Kept) -> None:
        began = time.monotonic()
        error = None
        with self._lock:
            self._running[kept] = None
        try:
            self._end(kept.key, kept.thing, kept.why)
        except BaseException as raised:
            error = raised
        with self._lock:
            del self._running[kept]
            self.law.over(kept, time.monotonic() - began, error=error is not None)
        if error is not None:
            self._settings.went_wrong("end", kept.key, error)

    def close(self) -> None:
        """Let nobody in, end what is idle, wait for what is in use, end that too; all
        within three times `drain`. What does not end in that time is logged, and its
        thread is left alone. Does nothing the second time.
        """
        law, lock, drain = self.law, self._lock, self._settings.drain
        steps, more = law.close(), True
        while more:
            with lock:
                more = next(steps, StopIteration) is not StopIteration
        try:
            law.idle_now.wait(drain)
        finally:
            with lock:
                law.cut()
            if not law.all_over.wait(drain):
                # Ends run for too long, and no thread can be stopped: the others get
                # turns of their own, so that nothing is left whose end was not begun.
                with lock:
                    self._turns += LAST_TURNS
                    for _ in range(law.waiting):
                        self._see_to_work()
                law.all_over.wait(drain)
            with lock:
                left = law.statistics().ending
                names = ", ".join(str(kept) for kept in list(self._running)[:NAMED])
            if left:
                self._settings.say_what_is_left(left, names)
            self.reaper.stop()

    # ---- looking in ------------------------------------------------------------------
    def __len__(self) -> int:
        """How many things are kept: made, and not being ended."""
        with self._lock:
            return len(self.law)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self.law

    def keys(self) -> list[Key]:
        """The keys of what is kept, in the order in which they were first asked for: a
        new list.
        """
        with self._lock:
            return self.law.keys()

    def oldest(self, n: int) -> list[Key]:
        """Up to *n* keys, longest idle first; none that is in use.

        Cost: as `IdleReaper.oldest`.
        Raises:
            InvalidArgument: n is no integer >= 0.
        """
        check_count("n", n, 0)
        with self._lock:
            return self.law.oldest(n)

    def explain(self, key: Key) -> Explanation:
        """Why what is kept for *key* is still here, and until when. O(1).

        Raises:
            UnknownUid: nothing is kept for it.
        """
        with self._lock:
            return self.law.explain(key)

    def statistics(self) -> KeeperStatistics:
        """A snapshot; O(1)."""
        with self._lock:
            return self.law.statistics()

    def families(self) -> list[Family]:
        """The metrics of a keeper, beside those of its reaper: for `ReaperCollector`
        and `exposition`.
        """
        with self._lock:
            return self._families()

    def _families(self) -> list[Family]:
        return list(families(self.law.statistics()))


class Use(Generic[Key, Thing]):
    """One use of a thing: enter it once."""

    __slots__ = ("_keeper", "_kept", "key", "thread")

    def __init__(self, keeper: ThreadKeeper[Key, Thing], key: Key) -> None:
        self._keeper = keeper
        self._kept: Kept | None = None
        self.key: Key = key
        self.thread: int | None = None

    def __enter__(self) -> Thing:
        if self.thread is not None:
            raise RuntimeError(f"this use of {self.key!r} was entered before: ask for another one")
        keeper = self._keeper
        self.thread = threading.get_ident()
        with keeper._lock:
            kept, makes = keeper._ask_for(self)
            let_in = kept.state is KEPT
        if not let_in:
            kept = keeper._let_in(kept, makes, self)
        self._kept = kept
        thing: Thing = kept.thing
        return thing

    def __exit__(self, *error: object) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with self._keeper._lock:
                self._keeper.law.leave(kept, self)


def open_keeper(
    make: Callable[[Key], Thing],
    end: Callable[[Key, Thing, str], object],
    *,
    ask: Callable[[Key, Thing], object] | None = None,
    **options: Unpack[KeeperOptions],
) -> AbstractContextManager[ThreadKeeper[Key, Thing]]:
    """A keeper that threads share, for the length of a `with` block, as
    `reaper.asyncio.open_keeper`; all functions are plain ones.

    `make` runs in the thread that asks, `ask` and `end` in threads of the keeper's, at
    most `ends_at_once` at a time. `on_error` is called in those. The block may be
    entered at most once.

    Raises:
        InvalidArgument, TypeError: at the call, by name and value.
    """
    return _opened(make, end, ask, settings_of(make, end, ask, options))


@contextmanager
def _opened(make: Any, end: Any, ask: Any, settings: Settings) -> Iterator[ThreadKeeper[Any, Any]]:
    keeper: ThreadKeeper[Any, Any] = ThreadKeeper(make, end, ask, settings)
    keeper.open()
    try:
        yield keeper
    finally:
        if os.getpid() == keeper._pid:  # what a child leaves is not its own
            keeper.close()
