"""Tasks that are kept for the next connection that speaks: to make one and to end it costs as much as an echo.

The rule of this module: *what a task did before is not seen by what it does next*. Each time it has a context of its
own, as a new task would.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import Generic, TypeVar

import trio

KEPT = 32
"""Tasks of one parking lot that are kept though they have nothing to do: as many as two passes wake, and 100 KB."""

Job = TypeVar("Job")
Place = TypeVar("Place")


class _Idle(Generic[Job, Place]):
    __slots__ = ("job", "place", "task")

    def __init__(self, task: trio.lowlevel.Task, place: Place) -> None:
        self.task = task
        self.place = place
        self.job: Job | None = None


class TaskPool(Generic[Job, Place]):
    """The tasks of one parking lot that have nothing to do.

    Args:
        most: How many may be kept, >= 0.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._idle: list[_Idle[Job, Place]] = []

    def __len__(self) -> int:
        """How many are kept now."""
        return len(self._idle)

    def give(self, job: Job) -> Place | None:
        """Have *job* done by a task that is kept: it wakes in the next pass of the loop.

        Returns:
            Where that is done, as the task has said; None: none is kept, and the caller has to start one for it.
        """
        if not self._idle:
            return None
        idle = self._idle.pop()
        idle.job = job
        idle.task.context = copy_context()
        trio.lowlevel.reschedule(idle.task)
        return idle.place

    async def job(self, place: Place) -> Job | None:
        """Wait for something to do, which will be done in *place*. None: enough wait already; end."""
        if len(self._idle) >= self._most:
            return None
        idle: _Idle[Job, Place] = _Idle(trio.lowlevel.current_task(), place)
        self._idle.append(idle)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(idle)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return idle.job
