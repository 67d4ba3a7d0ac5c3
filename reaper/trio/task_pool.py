"""The tasks that run the handler of a parking lot, one connection after the other.

The rule of this module: *a task that has nothing to do keeps nothing*. Starting and
ending a task costs as much as an echo, so up to `KEPT` tasks of a lot wait for the next
connection that speaks. Such a task holds neither the stream nor the context variables
of the connection it served before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import trio

from .linger import Silent
from .parked_streams import ParkableStream

KEPT = 32
"""Tasks of one lot that wait for the next connection: as many as two passes of the
epoll wake. They hold about 100 KB together.
"""


class _Runner:
    """One task of a pool: the scope that it runs its handler in, and what it was just
    given.
    """

    __slots__ = ("scope", "stream", "task")

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope) -> None:
        self.task = task
        self.scope = scope
        self.stream: ParkableStream | None = None


class TaskPool:
    """Runs *handler* with streams, each in a scope that a reap cancels. Its tasks are
    used again.

    Args:
        handler: Called with a stream.
        silent: Called with the stream of a handler that ended because its connection is
            silent.
        over: Called with the connection of a handler that ended for any other reason.
    Attributes:
        nursery: Where the tasks run; None while the lot does not.
        waiting: The tasks that wait for a stream.
    """

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        silent: Callable[[Any], object],
        over: Callable[[Any], object],
    ) -> None:
        self._handler = handler
        self._silent = silent
        self._over = over
        self.nursery: trio.Nursery | None = None
        self.waiting: list[_Runner] = []

    def start(self, stream: ParkableStream) -> None:
        """Have a task run the handler with *stream*, whose `scope` is set here."""
        if self.waiting:
            runner = self.waiting.pop()
            runner.stream = stream
            stream.scope = runner.scope
            task = runner.task
            task.context = copy_context()  # what one connection set, the next must not see
            trio.lowlevel.reschedule(task)
        else:
            stream.scope = scope = trio.CancelScope()
            assert self.nursery is not None
            self.nursery.start_soon(self._run, stream, scope)

    async def _run(self, awake: ParkableStream | None, scope: trio.CancelScope) -> None:
        """Run the handler with *awake* in *scope*, and then with one stream after the
        other.
        """
        runner = _Runner(trio.lowlevel.current_task(), scope)
        while awake is not None:
            try:
                # One scope serves many connections: entering and leaving one costs as
                # much as an echo. It is used up once it was cancelled.
                with scope:
                    while True:
                        try:
                            await self._handler(awake)
                        except Silent:
                            self._silent(awake)
                        else:
                            self._over(awake.parked)
                        awake = None  # a task that waits holds nothing of the last connection
                        if scope.cancel_called:
                            break
                        awake = await self._next(runner)
                        if awake is None:
                            return
            except BaseException as error:
                if awake is None:
                    raise
                if _is_silent(error):
                    self._silent(awake)
                else:
                    self._over(awake.parked)
                    if not isinstance(error, trio.BrokenResourceError):
                        raise
            else:
                if awake is not None:  # the scope swallowed the cancellation of a reap
                    self._over(awake.parked)
            awake = None
            runner.scope = scope = trio.CancelScope()
            awake = await self._next(runner)

    async def _next(self, runner: _Runner) -> ParkableStream | None:
        """Wait for a stream to run the handler with. Returns None if enough tasks wait
        already.
        """
        if len(self.waiting) >= KEPT:
            return None
        self.waiting.append(runner)

        def abort(_: object) -> trio.lowlevel.Abort:
            self.waiting.remove(runner)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        given, runner.stream = runner.stream, None
        return given


def _is_silent(error: BaseException) -> bool:
    """Whether *error* is `Silent`, or a group of nothing else, as a handler's nursery
    makes it.
    """
    return isinstance(error, Silent) or (
        isinstance(error, BaseExceptionGroup) and error.split(Silent)[1] is None
    )
