"""Tasks that are kept for the next connection that speaks: to make one and to end it costs as much as an echo.

The rule of this module: *what a task did before is not seen by what it does next*. Each time it has a context of its
own, as a new task would.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from .parking import ParkableStream

KEPT = 32
"""Tasks of one parking lot that are kept though they have nothing to do: as many as two passes wake, and 100 KB."""


class TaskPool:
    """The tasks of one parking lot that have nothing to do."""

    def __init__(self) -> None:
        self._idle: list[tuple[trio.lowlevel.Task, trio.CancelScope]] = []
        self._given: dict[trio.lowlevel.Task, ParkableStream] = {}

    def __len__(self) -> int:
        """How many are kept now."""
        return len(self._idle)

    def give(self, job: ParkableStream) -> trio.CancelScope | None:
        """Have a task that is kept handle *job*: it wakes in the next pass of the loop. Returns the scope that it does
        that in; None: none is kept, and the caller has to start one."""
        if not self._idle:
            return None
        task, scope = self._idle.pop()
        self._given[task] = job
        task.context = copy_context()
        trio.lowlevel.reschedule(task)
        return scope

    async def job(self, scope: trio.CancelScope) -> ParkableStream | None:
        """Wait for something to do, which will be done in *scope*. None: enough wait already; end."""
        if len(self._idle) >= KEPT:
            return None
        task = trio.lowlevel.current_task()
        idle = task, scope
        self._idle.append(idle)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(idle)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return self._given.pop(task)
