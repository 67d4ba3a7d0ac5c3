"""Whether the server has been told to stop: `reaper.stopping()`, a flag that can be
awaited.

The rule of this module: *whoever wants to say goodbye hears of the end before anything
is closed*. It imports neither trio nor asyncio, and works in whichever of them runs; in
threads it is a flag.

Each loop has one `Stopping`, and the process has another for code outside of any loop.
A drain begins the one of its loop (`reaper.driver.reaper.Reaper.drain`); a server that
is told by a signal calls `begin_everywhere`, which begins all of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary


class _Waiter(NamedTuple):
    """One who waits."""

    wait: Callable[[], Any]
    set: Callable[[], object]
    """Ends the wait; to be called in the loop."""
    soon: Callable[[Callable[[], object]], object]
    """Has something called in the loop; from any thread, and from a signal handler."""


class Stopping:
    """Whether a loop's server has been told to stop. True from then on, and awaitable.

    if reaper.stopping(): ...          # a flag
    await reaper.stopping()            # returns once the server has been told to stop
    nursery.start_soon(reaper.stopping().wait)

    Attributes:
        asked: Whether anybody has looked at it, or has waited for it.
    """

    __slots__ = ("__weakref__", "_begun", "_waiters", "asked")

    def __init__(self) -> None:
        self.asked: bool = False
        self._begun = False
        self._waiters: dict[int, _Waiter] = {}  # by their ids

    def __bool__(self) -> bool:
        self.asked = True
        return self._begun

    def __await__(self) -> Generator[Any, Any, None]:
        return self.wait().__await__()

    def __repr__(self) -> str:
        return f"<Stopping {'begun' if self._begun else 'not begun'}>"

    def begin(self, *, in_loop: bool = False) -> None:
        """The server has been told to stop: wake all that wait. Any number of times.

        From any thread, and from a signal handler. With *in_loop*, called by a task of
        the loop, they wake in its next pass.
        """
        self._begun = True
        for waiter in list(self._waiters.values()):
            if in_loop:
                waiter.set()
            else:
                with suppress(RuntimeError):  # the loop has ended
                    waiter.soon(waiter.set)

    async def wait(self) -> None:
        """Return once the server has been told to stop; at once if it has.

        Raises:
            RuntimeError: neither trio nor asyncio runs here.
        """
        waiter = _waiter()
        self.asked = True
        self._waiters[id(waiter)] = waiter
        try:
            if not self._begun:
                await waiter.wait()
        finally:
            del self._waiters[id(waiter)]


class Turn:
    """When one response hears of the end: at an instant of its own, if it is a stream.

    Attributes:
        own: Whether it is a stream, which is told by `come`. Any other hears of it with
            its loop.
        has_come: Whether it was told.
    """

    __slots__ = ("_stopping", "has_come", "own")

    def __init__(self) -> None:
        self.own: bool = False
        self.has_come: bool = False
        self._stopping: Stopping | None = None

    def stopping(self) -> Stopping:
        """What tells this stream."""
        if self._stopping is None:
            self._stopping = Stopping()
            if self.has_come:
                self._stopping.begin()
        return self._stopping

    def come(self) -> None:
        """The instant has come. To be called by a task of the loop."""
        self.has_come = True
        if self._stopping is not None:
            self._stopping.begin(in_loop=True)


TURN: ContextVar[Turn | None] = ContextVar("reaper-turn", default=None)
"""The turn of the response that is being made. None: it hears of the end with its loop.
"""


class _Process(Stopping):
    """What stands for all loops, for code outside of any: the threads of a server look
    at it.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        self.asked = True
        return self._begun or any(each._begun and _runs(loop) for loop, each in _of_loops())


_PROCESS = _Process()
_OF_LOOPS: WeakKeyDictionary[Any, Stopping] = WeakKeyDictionary()
_LOCK = threading.RLock()  # a signal handler may come in between


def stopping() -> Stopping:
    """Whether the server of the running loop has been told to stop; outside of any
    loop, as in the threads that a server works in, whether this process has, or a loop
    of it that still runs.

    True, and awaitable, from the signal on, before anything is closed. Within a stream
    whose end has an instant of its own (`timeouts.drain_window`,
    `timeouts.stream_age`), from that on.
    """
    turn = TURN.get()
    if turn is not None and turn.own:
        _of_loop(_running()).asked = True
        return turn.stopping()
    return _of_loop(_running())


def _of_loop(loop: Any) -> Stopping:
    """That of *loop*, as `_running` returns it."""
    if loop is None:
        return _PROCESS
    with _LOCK:
        found = _OF_LOOPS.get(loop)
        if found is None:
            found = _OF_LOOPS[loop] = Stopping()
            if _PROCESS._begun:
                found.begin()
        return found


def begin_everywhere() -> None:
    """This process has been told to stop: begin it for every loop, and for those to
    come.

    For servers, at the signal: it may be called from a signal handler, and from any
    thread.
    """
    _PROCESS.begin()
    for _, each in _of_loops():
        each.begin()


def was_asked() -> bool:
    """Whether anybody has asked `stopping()` in the loop that runs, or outside of any
    loop.
    """
    return _PROCESS.asked or _of_loop(_running()).asked


def forget() -> None:
    """Begin anew: for programs that are told to stop and go on, and for tests."""
    with _LOCK:
        _PROCESS._begun = _PROCESS.asked = False
        _OF_LOOPS.clear()


def _of_loops() -> list[tuple[Any, Stopping]]:
    with _LOCK:
        return list(_OF_LOOPS.items())


def _runs(loop: Any) -> bool:
    """Whether *loop*, as `_running` returns it, has not ended."""
    if hasattr(loop, "is_closed"):
        return not loop.is_closed()
    try:
        loop.run_sync_soon(bool)  # trio says by an error that its run is over
    except RuntimeError:
        return False
    return True


def _running() -> Any:
    """What stands for the running loop: trio's token, or asyncio's loop; None: there is
    none.
    """
    trio: Any = sys.modules.get("trio")
    if trio is not None:
        with suppress(RuntimeError):
            return trio.lowlevel.current_trio_token()
    asyncio: Any = sys.modules.get("asyncio")
    # A package that is being imported may lack the function; nothing runs on it then.
    return None if asyncio is None else getattr(asyncio, "_get_running_loop", lambda: None)()


def _waiter() -> _Waiter:
    """A waiter of the framework that runs."""
    loop = _running()
    if loop is None:
        raise RuntimeError("reaper.stopping() is awaited in trio or asyncio; here it is a flag")
    if hasattr(loop, "run_sync_soon"):
        event, soon = sys.modules["trio"].Event(), loop.run_sync_soon
    else:
        event, soon = sys.modules["asyncio"].Event(), loop.call_soon_threadsafe
    return _Waiter(event.wait, event.set, soon)
