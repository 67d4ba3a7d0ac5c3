"""Parking for servers that watch their connections by themselves and park only the silence between two requests.

The rule of this module: *being parked is no activity*. The silence goes on where it was.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.lease import Lease
from .parking import PARKED, READABLE, ParkingLot, Resting, Watcher

_STREAM = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)


class HandoffLot(ParkingLot):
    """A parking lot that gives each connection back as soon as there is something to read.

    Servers hand a connection over with `park`, as an object of `kind`, which remembers what they want to know of it
    and is given back with it. Waiting with `linger` tells them when that is worth it.

    Args:
        watcher, linger, parks: As in `ParkingLot`.
        woken: Called in a task of its own with the socket, non-blocking, and the object; the socket is its own again.
            The object's `lease` has ended, and tells of its last activity.
        ended: Called with the object and the reason of the reap, or None if the peer went, after which the socket is
            closed. Must not block.
        heard: Called with the object of a connection that has something to read, and says whether it is woken for
            that: it may read what is there, without waiting, `retime_one`, and leave it parked until there is more.
            It ends what it finds ended with `gone`. None: every byte wakes.
        begun: Says of an object whether its peer has begun to ask for something: a drain leaves that alone. None: none
            has.
        kind: A class of objects that are parked here; give it `__slots__`.
    Attributes:
        kind: The same for this lot alone: make objects of this one.
    """

    def __init__(
        self,
        watcher: Watcher,
        woken: Callable[[socket.socket, Any], Awaitable[object]],
        ended: Callable[[Any, str | None], object],
        *,
        heard: Callable[[Any], bool] | None = None,
        begun: Callable[[Any], bool] | None = None,
        kind: type[Resting] = Resting,
        linger: float = 1.0,
        parks: bool | None = None,
    ) -> None:
        super().__init__(watcher, _never_called, 0.0, linger=linger, parks=parks)
        self.kind: type[Any] = type(kind.__name__, (kind,), {"__slots__": (), "lot": self})
        self._woken = woken
        self._told = ended
        self._heard = heard
        self._begun = begun

    def park(self, connected: socket.socket, idle: float, resting: Any, activity: Lease | None, reason: str) -> None:
        """Take *connected* over until there is something to read.

        Args:
            connected: Detached; the caller's socket object is of no more use.
            idle: Seconds of silence allowed, counted from the last activity of *activity*; 0 switches the timeout off.
            resting: Of `kind`, not parked; given a descriptor and a lease.
            activity: The lease the caller had; it stays the caller's to release. In a journal the life of the
                connection goes on; hand the lease of *resting* to `watch(continues=)` when it is woken. None: the
                connection has just been accepted, and its life begins.
            reason: What a reap gives as its reason.
        Raises:
            RuntimeError: the lot does not run, or parks nothing. The socket stays the caller's.
        """
        if self._nursery is None or self._epoll is None:
            raise RuntimeError("this parking lot does not run: start its run() first, where there is an epoll")
        resting.fd = connected.fileno()
        self._admit(resting, self.driver.in_force(idle), reason, activity)
        if activity is None:
            self.driver.books.opened(resting.lease, connected)
        else:
            self.driver.books.moved(activity, resting.lease)
        connected.detach()
        self._await(resting.fd, known=activity is not None)
        if self._draining and not self._waits_for_more(resting) and not resting.has_unread():
            self.reap(resting, "drain")

    def _await(self, fd: int, *, known: bool) -> None:
        """Have the epoll wait for *fd*. *known*: perhaps it is in it, for it has been parked before."""
        assert self._epoll is not None
        try:
            (self._epoll.modify if known else self._epoll.register)(fd, READABLE)
        except FileNotFoundError:
            self._epoll.register(fd, READABLE)
        except FileExistsError:
            self._epoll.modify(fd, READABLE)

    def _waits_for_more(self, parked: Any) -> bool:
        return self._begun is not None and self._begun(parked)

    def _wake(self, fd: int, events: int) -> None:
        resting = self._by_fd[fd]
        if self._heard is None or resting is None:
            super()._wake(fd, events)
        elif self._heard(resting):
            self._start(resting)
        elif resting.state is PARKED and self._epoll is not None:
            self._epoll.modify(fd, READABLE)

    def retime_one(self, resting: Resting, idle: float, reason: str | None = None) -> None:
        """Put another timeout in force for *resting*, counted from its last activity; 0 switches it off."""
        resting.lease.retime(self.driver.in_force(idle), self.driver.now(), reason)
        self.driver.poke()

    def gone(self, resting: Resting, *, closed: bool = False) -> None:
        """Its peer has ended it: close it, unless it is *closed*. Nothing if it is not parked any more."""
        self._leave(resting, by_peer=True, closed=closed)

    def _start(self, parked: Any, *, ended: bool = False) -> None:
        fd = parked.fd
        self._forget(parked, comes_again=True)
        # What is not named here the kernel would be asked for, and once more to let it not block.
        job = (socket.socket(type=_STREAM, proto=0, fileno=fd), parked)
        if not self._crew.give(job):
            assert self._nursery is not None
            self._nursery.start_soon(self._wake_each, job)

    async def _wake_each(self, job: tuple[socket.socket, Any] | None) -> None:
        while job is not None:
            await self._woken(*job)
            job = None  # an idle task holds nothing of it
            job = await self._crew.job(True)

    def _end_lingering(self) -> None:
        """Nothing: a connection that lingers is not parked, and so the server's to drain."""

    def _left(self, parked: Any, reason: str | None) -> None:
        self._told(parked, reason)

    def end(self, resting: Resting, reason: str) -> None:
        """Reap it now, for *reason*, unless bytes of it are unread; nothing if it is not parked any more."""
        if resting.state is PARKED and not resting.has_unread():
            self.reap(resting, reason)


async def _never_called(stream: object) -> None:
    """The handler of a lot that has none."""
