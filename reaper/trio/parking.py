"""Connections that cost no task while they are silent: one epoll waits for all of them.

The rule of this module: *only a read that found nothing parks*. A handler runs as a task while there are bytes. When it
asks for more and the kernel has none, `Silent` is raised in it, the task ends, and what remains is a descriptor in an
epoll and a lease. The next byte starts the handler anew. So nothing can be left behind in a buffer, not
in TLS's either: the question for more bytes is only asked when every layer above has used up its own.

A parked connection is reaped without a task: its descriptor is closed.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn, Protocol

import trio

from ..core.lease import Expiry, Lease
from ..core.ticks import check_timeout
from ..driver.driver import Driver, unread_of
from ..driver.sockets import waiting
from .accepting import accept
from .linger import Lingerer, Lingering, Silent, check_linger
from .loop import let_the_loop_read
from .parked import ParkableStream, Parked, Resting
from .task_pool import TaskPool
from .tls import TlsStream

WAKES_PER_PASS = 16
"""Connections that get a task before the loop is let run again. What a burst leaves behind is the memory of the tasks
that were awake together, each of some 13 KB with HTTP, and a request takes two or three passes. Of 4,000 clients at
once that is left, per connection: 358 bytes with 16, 540 with 64; and a pass takes the shorter."""

CLOSES_PER_SLICE = 128
"""Connections that a drain closes before the loop is let run again, or the next part of its window is waited for."""

READABLE = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLONESHOT", 0)
_GONE = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class Watcher(Protocol):
    """What a parking lot needs of a `TrioReaper`."""

    @property
    def driver(self) -> Driver:
        """Judges the parked connections."""

    async def welcome(self) -> None:
        """Return when new connections are welcome."""


class ParkingLot:
    """The connections of one handler that cost no task while they are silent. Made by `TrioReaper.parking_lot`.

    Args:
        watcher: The reaper that watches them.
        handler: Called with a stream whenever bytes have come; ends the connection by returning. Each time the
            connection has been silent it begins anew, so what it knows must not outlive its answer.
        idle: Seconds of silence allowed; 0 switches the timeout off.
        reason: What a reap gives as its reason.
        linger: Seconds that a task waits for more before it is given up, to spare a busy connection the new one; but
            no more than `LINGERERS` tasks do at a time. 0: given up at once.
        tls: Wraps every connection; None: plain.
        parks: False: every connection keeps its task for good. None: only where there is no epoll.
    Attributes:
        reaped: How many were reaped, by reason.
        parks: Whether connections are parked at all.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self,
        watcher: Watcher,
        handler: Callable[[Any], Awaitable[object]],
        idle: float,
        *,
        reason: str = "idle",
        linger: float = 0.0,
        tls: ssl.SSLContext | None = None,
        parks: bool | None = None,
    ) -> None:
        self._watcher = watcher
        self.driver: Driver = watcher.driver
        self._handler = handler
        self.driver.in_force(idle)  # refuses what is no timeout
        self._idle = idle
        self._reason = reason
        self._tls = tls
        self.parks: bool = hasattr(select, "epoll") if parks is None else parks
        self._epoll = select.epoll() if self.parks else None
        self.lingering: Lingering = Lingering(check_linger(linger), parks=self.parks)
        # Each lot has its own class, so that no connection needs a reference to its lot.
        self._type: type[Any] = type("Parked", (Parked,), {"__slots__": (), "lot": self})
        self._by_fd: list[Any] = []  # descriptors are small and dense: 8 bytes each where a dict takes 100
        self._open = 0
        self._awake = 0
        self._nursery: trio.Nursery | None = None
        self._draining = False
        self._drainers = trio.lowlevel.ParkingLot()
        self._crew: TaskPool[Any, Any] = TaskPool()
        self.reaped: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many connections are open, parked or not."""
        return self._open

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._open} connections, {self.parked} of them parked>"

    @property
    def parked(self) -> int:
        """How many of them have no task now."""
        return self._open - self._awake

    def __iter__(self) -> Iterator[Any]:
        """The open connections, in the order of their descriptors."""
        return (parked for parked in list(self._by_fd) if parked is not None)

    async def run(self, *, task_status: trio.TaskStatus[ParkingLot] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Wait for all of them until cancelled, then close all of them. What a handler raises ends it too."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self.lingering.run)
                task_status.started(self)
                if self._epoll is None:
                    await trio.sleep_forever()
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    for fd, events in self._epoll.poll(0, WAKES_PER_PASS):
                        self._wake(fd, events)
        finally:
            self._nursery = None
            for parked in self:
                self.close(parked)
            if self._epoll is not None:
                self._epoll.close()
        raise AssertionError("unreachable")

    def add(self, accepted: socket.socket) -> Parked:
        """Take over a connected socket: watched from now on, parked until its first byte comes.

        Raises:
            RuntimeError: the lot does not run. The socket stays the caller's.
        """
        if self._nursery is None:
            raise RuntimeError("this parking lot does not run: start its run() first")
        accepted.setblocking(False)
        with suppress(OSError):  # it is no TCP
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = accepted.fileno()
        parked: Parked = self._type(fd)
        self._admit(parked, self.driver.later(self._idle), self._reason)
        self.driver.books.opened(parked.lease, accepted)
        accepted.detach()
        if self._epoll is None:
            self._start(parked)
        else:
            self._epoll.register(fd, READABLE)
        return parked

    def _admit(self, parked: Resting, timeout: float | None, reason: str, since: Lease | None = None) -> None:
        parked.lease = self.driver.register(parked, timeout, reason=reason, since=since)
        fd = parked.fd
        if fd >= len(self._by_fd):
            self._by_fd.extend([None] * (fd + 1 - len(self._by_fd)))
        self._by_fd[fd] = parked
        self._open += 1

    async def accept(self, listening: socket.socket) -> NoReturn:
        """Accept from *listening* until cancelled, then close it.

        It pauses while the reaper is not `accepting`, and out of descriptors it pauses instead of failing: the kernel's
        backlog holds newcomers meanwhile.
        """
        try:
            await accept(listening, self.add, welcome=self._watcher.welcome)
        finally:
            trio.lowlevel.notify_closing(listening)
            listening.close()

    # ---- awake and asleep ----------------------------------------------------------------------------------------

    def _wake(self, fd: int, events: int) -> None:
        parked = self._by_fd[fd]
        if parked is None or parked.transport is not None:
            return
        if events & _GONE and not waiting(fd):
            self._end(parked, by_peer=True)  # there is nothing to read and nothing owed: no task for that
        else:
            self._start(parked, ended=bool(events & _GONE))

    def _start(self, parked: Parked, *, ended: bool = False) -> None:
        transport = parked.stream
        if transport is None:
            try:
                transport = ParkableStream(parked) if self._tls is None else TlsStream(parked, self._tls)
            except OSError:  # it broke before the handshake began
                self._end(parked, by_peer=True)
                return
            parked.stream = transport
        transport.begin()
        transport.ended = ended
        parked.transport = transport
        self._awake += 1
        scope = self._crew.give(transport)
        if scope is None:
            scope = trio.CancelScope()
            assert self._nursery is not None
            self._nursery.start_soon(self._run, transport, scope)
        transport.scope = scope

    async def _run(self, awake: ParkableStream | None, scope: trio.CancelScope) -> None:
        """Run the handler of *awake* in *scope*, and then of one connection after the other."""
        while awake is not None:
            try:
                with scope:  # entered once for many: to enter and leave it costs as much as an echo
                    while True:
                        try:
                            await self._handler(awake)
                        except Silent:
                            self._fell_silent(awake)
                        else:
                            self._end(awake.parked, by_peer=awake.hung_up)
                        awake = None  # while it waits for the next it holds nothing of this one
                        if scope.cancel_called:
                            break
                        awake = await self._crew.job(scope)
                        if awake is None:
                            return
            except BaseException as error:
                if awake is None:
                    raise
                if _is_silent(error):
                    self._fell_silent(awake)
                else:
                    self._end(awake.parked, by_peer=awake.hung_up)
                    if not isinstance(error, trio.BrokenResourceError):
                        raise
            else:
                if awake is not None:  # it was reaped
                    self._end(awake.parked, by_peer=awake.hung_up)
            awake = None
            scope = trio.CancelScope()
            awake = await self._crew.job(scope)

    def _fell_silent(self, awake: ParkableStream) -> None:
        parked = awake.parked
        if awake.reaped or self._draining:
            self.reap(parked, "drain")
            self.close(parked)
        else:
            self._park(parked)

    def _park(self, parked: Parked) -> None:
        parked.transport = None
        self._awake -= 1
        if self._tls is None:
            parked.stream = None
        if self._epoll is not None:
            self._epoll.modify(parked.fd, READABLE)

    async def linger(self, fd: int) -> None:
        """Wait until *fd* can be read, but not for ever.

        Raises:
            Silent: it has been silent for long enough to be parked; at once while everything is being drained.
        """
        await self.lingering.wait(Lingerer(fd))

    def retime(self, idle: float) -> None:
        """Put another timeout in force on every connection, counted from its last activity, and on new ones. O(open).

        Raises:
            InvalidArgument: *idle* is NaN, negative or infinite; 0 switches the timeout off.
        """
        timeout, now = self.driver.in_force(idle), self.driver.now()
        self._idle = idle
        for parked in self:
            parked.lease.retime(timeout, now)
        self.driver.poke()

    # ---- ends ----------------------------------------------------------------------------------------------------

    def reap(self, parked: Resting, reason: str, expiry: Expiry | None = None) -> None:
        """End *parked* for *reason*; nothing if it has ended."""
        transport = parked.transport
        if parked.fd < 0 or (transport is not None and transport.reaped):
            return
        self.driver.books.reaped(parked.lease, parked, reason, expiry)
        parked.lease.release()
        self.reaped[reason] += 1
        if transport is None:
            self._left(parked, reason)
            self.close(parked)
        else:
            transport.reaped = True
            transport.reason = reason
            transport.scope.cancel(reason=f"reaped: {reason}")

    def _end(self, parked: Resting, *, by_peer: bool) -> None:
        """It ended by itself, or its handler did."""
        if parked.fd < 0:
            return
        self.driver.books.left(parked.lease, by_peer=by_peer)
        if parked.transport is None:
            self._left(parked, None)
        self.close(parked)

    def _left(self, parked: Any, reason: str | None) -> None:
        """A connection is about to be closed that no handler was told of."""

    def close(self, parked: Resting) -> None:
        """Close the descriptor and forget everything; any number of times."""
        fd = parked.fd
        if fd < 0:
            return
        if parked.transport is not None:
            self._awake -= 1
            trio.lowlevel.notify_closing(fd)
        self._forget(parked)
        with suppress(OSError):  # a session that could not be made has closed it
            os.close(fd)

    def _forget(self, parked: Resting, *, comes_again: bool = False) -> None:
        """*comes_again*: it may stay in the epoll, which has just told of it and says no more until it is asked."""
        fd = parked.fd
        parked.end_lease()
        if self._epoll is not None and not comes_again:
            # A close would do, were it not for copies of the descriptor in processes that may have been forked.
            with suppress(OSError):
                self._epoll.unregister(fd)
        parked.fd = -1
        if isinstance(parked, Parked):
            if isinstance(parked.stream, TlsStream):
                parked.stream.detach()
            parked.stream = parked.transport = None
        self._by_fd[fd] = None
        self._open -= 1
        if not self._open:
            self._drainers.unpark_all()

    async def drain(self, timeout: float, window: float = 0.0) -> None:
        """End every connection: the silent ones spread over *window*, the others when they fall silent.

        Stop adding first. Reasons: `drain`, and `drain_deadline` for those whose handler still runs at *timeout*.

        Args:
            timeout: Seconds, > 0, from now.
            window: Seconds, >= 0; less than *timeout* for it to have its full effect.
        Returns once none is open.
        """
        check_timeout("timeout", timeout)
        with trio.move_on_after(timeout):
            await let_the_loop_read()
            await self._end_silent(window)
            # From here on each connection that falls silent leaves by itself; in between some may have fallen silent.
            self._draining = self.lingering.stopped = True
            await self._end_silent(0.0)
            self._end_lingering()
            await self._all_gone()
        for parked in self:
            self.reap(parked, "drain_deadline")
        await self._all_gone()

    async def _end_silent(self, window: float) -> None:
        everything = iter(list(self))
        slices = max(1, -(-self._open // CLOSES_PER_SLICE))
        while batch := list(islice(everything, CLOSES_PER_SLICE)):
            silent = [one for one in batch if one.fd >= 0 and one.transport is None and not self._waits_for_more(one)]
            spoken = unread_of(silent)
            for parked in silent:
                if parked.fd not in spoken:
                    self.reap(parked, "drain")
            await trio.sleep(window / slices)

    def _waits_for_more(self, parked: Any) -> bool:
        """Whether a silent connection is in the middle of something, so that a drain has to wait for its next word."""
        return False

    def _end_lingering(self) -> None:
        self.lingering.end()

    async def _all_gone(self) -> None:
        while self._open:
            await self._drainers.park()


def _is_silent(error: BaseException) -> bool:
    """Whether it is `Silent`, wrapped by the handler's own nurseries perhaps."""
    return isinstance(error, Silent) or (isinstance(error, BaseExceptionGroup) and error.split(Silent)[1] is None)
