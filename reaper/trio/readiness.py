"""Waiting for bytes when thousands of tasks do: one epoll for all of them, and so many woken per pass.

The rule of this module: *no pass of the loop is longer because more clients speak at once*. trio wakes all tasks whose
sockets are readable in one pass: 4,800 of them that echo take 80 ms, in which nothing else happens.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Sized
from contextlib import suppress
from typing import NoReturn

import trio

READS_PER_PASS = 64
"""Tasks that are woken before the loop is let run again."""

FEW = 256
"""Connections that are left to trio's own waiting: that many tasks in one pass are no long pass, and a server with one
busy client need not go through a task of ours for each of its requests."""


class Readiness:
    """The receives of the tasks of one server that wait for bytes. Only where there is an epoll.

    A socket is told of once, when bytes come (edge-triggered): what waits here has just found that there are none, and
    looks again when it is woken.

    A number is a stream's until that stream says `closing`, or until another waits for the same number: then the first
    was closed behind the back of its stream.

    Args:
        connections: All of that server.
    """

    def __init__(self, connections: Sized) -> None:
        self._connections = connections
        self._epoll = select.epoll()
        self._waiting: dict[int, trio.lowlevel.Task] = {}
        self._owners: dict[int, object] = {}
        self._ended = False

    def wait(self, fd: int, owner: object) -> Awaitable[None]:
        """Return when there is something to read on *fd*, or perhaps is, or it is `closing`.

        Raises:
            trio.BusyResourceError: another task waits for it.
        """
        if self._ended or len(self._connections) <= FEW:
            return trio.lowlevel.wait_readable(fd)
        return self._wait(fd, owner)

    async def _wait(self, fd: int, owner: object) -> None:
        waiting = self._waiting
        if self._owners.get(fd) is not owner:
            self._wake(fd)  # it waits for a socket that is no more
            try:
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
            except FileExistsError:  # the socket is the same, in another stream
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLET)
            self._owners[fd] = owner
        elif fd in waiting:
            raise trio.BusyResourceError("another task is receiving on this stream")
        task = waiting[fd] = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            if waiting.get(fd) is task:
                del waiting[fd]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def closing(self, fd: int, owner: object) -> None:
        """*fd* is about to be closed: a task that waits for it finds that out. Nothing if it is no more *owner*'s."""
        if self._owners.get(fd) is owner:
            del self._owners[fd]
            if not self._ended:
                with suppress(OSError):  # it was closed behind the back of its stream
                    self._epoll.unregister(fd)
            self._wake(fd)

    async def run(self) -> NoReturn:
        """Wake those that have something to read, until cancelled; then all: what still waits then, waits at trio's."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in self._epoll.poll(0, READS_PER_PASS):
                    self._wake(fd)
        finally:
            self._ended = True
            self._epoll.close()
            for fd in list(self._waiting):
                self._wake(fd)

    def _wake(self, fd: int) -> None:
        task = self._waiting.pop(fd, None)
        if task is not None:
            trio.lowlevel.reschedule(task)
