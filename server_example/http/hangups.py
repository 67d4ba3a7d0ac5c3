"""Noticing that a peer has gone while nothing is read from it: one epoll for all connections that have a task.

One rule: *a connection costs two system calls for it, however many requests it makes*. A task that computes an answer
reads nothing, and so learns neither of an end of file nor of a reset; without this a client that went long ago would
hold its descriptor, its task and its place until the answer is ready.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress

import trio

HANGUPS_PER_PASS = 256

_GONE = select.EPOLLHUP | select.EPOLLERR

Heard = Callable[[bool], object]
"""Called with whether the connection is gone (True), or the peer has only said that it will send no more (False)."""


class Hangups:
    """Who is to be called when which descriptor's peer hangs up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._heard: dict[int, Heard] = {}

    def watch(self, fd: int, heard: Heard) -> None:
        """Call *heard* once with False when the peer shuts its side, and once with True when the connection is gone."""
        self._heard[fd] = heard
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, fd: int) -> None:
        """Nothing if it is not watched. Before the descriptor is closed, or is another's to watch."""
        if self._heard.pop(fd, None) is not None:
            with suppress(OSError, ValueError):  # the connection, or all of this, is closed
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Call until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, events in self._epoll.poll(0, HANGUPS_PER_PASS):
                    heard = self._heard.get(fd)
                    if heard is None:
                        continue
                    gone = bool(events & _GONE)
                    if not gone:
                        self._epoll.modify(fd, select.EPOLLONESHOT)  # what remains to be heard is that it is gone
                    heard(gone)
        finally:
            self._epoll.close()
