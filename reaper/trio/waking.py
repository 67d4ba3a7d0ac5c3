"""Parking for servers that watch their connections by themselves and park only the silence between two requests.

The rule of this module: *being parked is no activity*. The silence goes on where it was.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from ..core.lease import Lease
from .parked import Parked
from .parking import READABLE, ParkingLot, Watcher


class WakingLot(ParkingLot):
    """A parking lot that gives each connection back as soon as there is something to read.

    Servers hand a connection over with `park`, with whatever they want to remember of it. Waiting with `linger` tells
    them when that is worth it.

    Args:
        watcher, linger, parks: As in `ParkingLot`.
        woken: Called in a task of its own with the socket and what was remembered; the socket is its own again.
        ended: Called with what was remembered and the reason of the reap, or None if the peer went, after which the
            socket is closed. Must not block.
        heard: Called with a parked connection that has something to read, and says whether it is woken for that: it
            may read what is there, without waiting, `retime_one`, and leave it parked until there is more.
            It ends what it finds ended with `gone`. None: every byte wakes.
        begun: Says of what was remembered whether its peer has begun to ask for something: a drain leaves that alone.
            None: none has.
    """

    _SLOTS: ClassVar[tuple[str, ...]] = ("remembered",)

    def __init__(
        self,
        watcher: Watcher,
        woken: Callable[[socket.socket, Any], Awaitable[object]],
        ended: Callable[[Any, str | None], object],
        *,
        heard: Callable[[Any], bool] | None = None,
        begun: Callable[[Any], bool] | None = None,
        linger: float = 1.0,
        parks: bool | None = None,
    ) -> None:
        super().__init__(watcher, _never_called, 0.0, linger=linger, parks=parks)
        self._woken = woken
        self._told = ended
        self._heard = heard
        self._begun = begun

    def park(
        self, connected: socket.socket, idle: float, remembered: Any, activity: Lease | None, reason: str
    ) -> Parked:
        """Take *connected* over until there is something to read.

        Args:
            connected: Detached; the caller's socket object is of no more use.
            idle: Seconds of silence allowed, counted from the last activity of *activity*; 0 switches the timeout off.
            remembered: Whatever `woken` needs.
            activity: The lease the caller had; it stays the caller's to release. In a journal the life of the
                connection goes on; hand the lease of the result to `watch(continues=)` when it is woken. None: the
                connection has just been accepted, and its life begins.
            reason: What a reap gives as its reason.
        Raises:
            RuntimeError: the lot does not run, or parks nothing. The socket stays the caller's.
        """
        if self._nursery is None or self._epoll is None:
            raise RuntimeError("this parking lot does not run: start its run() first, where there is an epoll")
        parked: Any = self._admit(connected.fileno(), self.driver.in_force(idle), reason, activity)
        if activity is None:
            self.driver.books.opened(parked.lease, connected)
        else:
            self.driver.books.moved(activity, parked.lease)
        connected.detach()
        parked.remembered = remembered
        self._epoll.register(parked.fd, READABLE)
        if self._draining and not self._waits_for_more(parked) and not parked.has_unread():
            self.reap(parked, "drain")
        return parked  # type: ignore[no-any-return]

    def _waits_for_more(self, parked: Any) -> bool:
        return self._begun is not None and self._begun(parked.remembered)

    def _wake(self, fd: int, events: int) -> None:
        parked: Any = self._by_fd[fd]
        if self._heard is None or parked is None:
            super()._wake(fd, events)
        elif self._heard(parked):
            self._start(parked)
        elif parked.fd >= 0 and self._epoll is not None:
            self._epoll.modify(fd, READABLE)

    def retime_one(self, parked: Parked, idle: float, reason: str | None = None) -> None:
        """Put another timeout in force for *parked*, counted from its last activity; 0 switches it off."""
        parked.lease.retime(self.driver.in_force(idle), self.driver.now(), reason)
        self.driver.poke()

    def gone(self, parked: Parked) -> None:
        """Its peer has ended it: close it."""
        self._end(parked, by_peer=True)

    def _start(self, parked: Any) -> None:
        fd, remembered = parked.fd, parked.remembered
        self._forget(parked)
        assert self._nursery is not None
        self._nursery.start_soon(self._woken, socket.socket(fileno=fd), remembered)

    def _end_lingering(self) -> None:
        """Nothing: a connection that lingers is not parked, and so the server's to drain."""

    def _left(self, parked: Any, reason: str | None) -> None:
        self._told(parked.remembered, reason)

    def end(self, parked: Parked, reason: str) -> None:
        """Reap it now, for *reason*, unless bytes of it are unread; nothing if it is not parked any more."""
        if parked.fd >= 0 and not parked.has_unread():
            self.reap(parked, reason)


async def _never_called(stream: object) -> None:
    """The handler of a lot that has none."""
