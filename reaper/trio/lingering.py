"""How long a task waits for more before its connection is parked.

The rule of this module: *a busy connection keeps its task, a silent one does not*. Lingering spares a client that asks
again soon the making of a new task.
"""

from __future__ import annotations

from typing import NoReturn

import trio

DISTURBED = -1
"""The round of a task that is to linger no longer."""

DISTURBANCES_PER_PASS = 256
"""Tasks that are told to linger no longer before the loop is let run again."""


class Silent(BaseException):
    """Raised in a handler whose connection has gone silent: let it pass, and the connection is parked.

    Like `trio.Cancelled` it is no Exception, so that no handler swallows it by accident.
    """


class Lingering:
    """The tasks that wait for the next bytes of their connection.

    Args:
        seconds: How long each waits at least; at most twice as long. 0: not at all.
        parks: False: each waits for ever.
    Attributes:
        stopped: Whether none may begin to.
    """

    def __init__(self, seconds: float, *, parks: bool) -> None:
        self._seconds = seconds
        self._parks = parks
        self.stopped = False
        self._waiting: dict[int, int] = {}  # descriptors that tasks linger at -> the round in which that began
        self._round = 0
        self._begun = trio.Event()

    async def wait(self, fd: int) -> None:
        """Wait until *fd* can be read.

        Raises:
            Silent: it was not, for long enough.
        """
        if not self._parks:
            await trio.lowlevel.wait_readable(fd)
            return
        if not self._seconds or self.stopped:
            raise Silent
        if not self._waiting:
            self._begun.set()
        self._waiting[fd] = self._round
        try:
            await trio.lowlevel.wait_readable(fd)
        except trio.ClosedResourceError:
            if self._waiting.get(fd) != DISTURBED:
                raise
            raise Silent from None
        finally:
            self._waiting.pop(fd, None)

    async def run(self) -> NoReturn:
        """Raise `Silent` in each task that has lingered for a whole round, until cancelled."""
        while True:
            if not self._waiting:
                self._begun = trio.Event()
                await self._begun.wait()
            await trio.sleep(self._seconds)
            long = [fd for fd, since in self._waiting.items() if since < self._round]
            self._round += 1
            for index, fd in enumerate(long, start=1):
                self._disturb(fd)
                if index % DISTURBANCES_PER_PASS == 0:
                    await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """Let no task linger any more, those that do included."""
        self.stopped = True
        for fd in list(self._waiting):
            self._disturb(fd)

    def _disturb(self, fd: int) -> None:
        """End the waiting of a task that lingers. It sees the same as if its descriptor were closed."""
        if fd in self._waiting:
            self._waiting[fd] = DISTURBED
            trio.lowlevel.notify_closing(fd)
