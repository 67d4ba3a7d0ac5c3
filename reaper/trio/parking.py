"""The parking lot: connections that cost no task while they are silent. One epoll waits
for all of them.

The rule of this module: *only a read that found nothing parks*. A handler runs as a
task while there are bytes. When it asks for more and the kernel has none, its receive
raises `Silent`, the task ends, and what remains of the connection is a descriptor in an
epoll and a lease. The next byte starts the handler anew. So nothing is ever left behind
in a buffer, nor in TLS's: a receive asks the kernel only when every layer above it has
used up its own bytes.

The lot, the handler and the epoll know a connection by the same descriptor number, and
each of them may be the first to find that it has ended. So one field, `Parked.state`,
says where it is, and only the lot changes it:

    PARKED   in the epoll, without a task -> AWAKE when bytes come; OUT when it is
             reaped, its peer goes, or the lot ends
    AWAKE    a handler runs -> PARKED by `Silent`; CUT by a reap; OUT when the handler
             returns or closes it
    CUT      reaped; its handler is cancelled and has not ended yet -> OUT when the
             handler has ended
    OUT      closed; its descriptor number may be another connection's by now

**What closes a parked connection**: `ParkingLot._leave`, whatever the cause. It is the
only way to `OUT`: it enters the end in the books, and closes the descriptor, once. The
driver calls `reap` when the timeout is over, the epoll's news that the peer has gone
leads to `gone`, and `close` ends what is left when the lot ends. A connection that is
awake is closed by `close`, too, when its handler returns. A reap of one that is awake
enters the end at once, cancels the handler, and leaves the connection `CUT` until the
handler has ended: then `close` leads to `_leave`, which only closes.

What a handler is given is in `parked_streams`, the tasks that run it are in
`task_pool`, and how long a task waits for more bytes before it ends is in `linger`.

A server that reads a little before it starts a task, or that remembers something of a
silent connection, subclasses `Parked` and `ParkingLot`, as `server_example.http` does:
see the methods under "for subclasses".
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, ClassVar, NoReturn

import trio

from ..core.lease import Expiry
from ..core.slices import AT_ONCE, slices, walk
from ..core.ticks import check_timeout
from ..driver.driver import Driver, unread_of
from ..driver.pace import REAPS_PER_SLICE
from ..driver.reaper import Reaper
from ..driver.sockets import readable, shut
from ..driver.watched import check_idle
from ..policy.reasons import DRAIN, DRAIN_DEADLINE, IDLE
from .accepting import accept, until_welcome
from .linger import Lingering
from .parked_streams import ParkableStream, Place, TlsStream
from .task_pool import TaskPool

WAKES_PER_PASS = 16
"""Connections that get a task before the loop runs again. A burst of clients leaves
behind the memory of the tasks that were awake together, some 13 KB each with HTTP, and
a request takes two or three passes. After 4,000 clients at once 358 bytes per
connection are left with 16, and 540 with 64.
"""

# Linux has them; where there is no epoll nothing parks, and they are not used.
_ONCE = getattr(select, "EPOLLONESHOT", 0)
_SHUT = getattr(select, "EPOLLRDHUP", 0)
READABLE = getattr(select, "EPOLLIN", 0) | _SHUT | _ONCE
WRITABLE = getattr(select, "EPOLLOUT", 0) | _SHUT | _ONCE
_BROKEN = getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)
_GONE = _SHUT | _BROKEN


class State(Enum):
    """Where a connection of a parking lot is; the top of this module says what leads to
    which.
    """

    PARKED, AWAKE, CUT, OUT = range(4)


PARKED, AWAKE, CUT, OUT = State


class Parked(Place):
    """One connection of a parking lot: what is left of it while it has no task. It is
    also its own uid in the core.

    Attributes:
        fd: Its descriptor; -1 while it is `OUT`.
        state: Where it is. Only its lot changes that.
        stream: The stream that its handler was given. It is None while the connection
            is parked, unless there is TLS, whose session lives in the stream.
    """

    __slots__ = ("fd", "lease", "state", "stream")

    probe: ClassVar[None] = None  # type: ignore[misc]
    lot: ClassVar[ParkingLot]

    def __init__(self, fd: int) -> None:
        self.fd: int = fd
        self.state: State = OUT
        self.stream: Any = None

    @property
    def descriptor(self) -> int:
        return self.fd

    @property
    def busy(self) -> bool:
        return self.state is not PARKED

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        self.lot.reap(self, reason, expiry)

    def __repr__(self) -> str:
        return f"fd {self.fd}"


class ParkingLot:
    """The connections of one handler that cost no task while they are silent. Made by
    `TrioReaper.parking_lot`.

    Args:
        watcher: The reaper that watches the connections: a `TrioReaper`.
        handler: Called with a stream whenever bytes have come. The connection ends when
            the handler returns. After each silence the handler begins anew, so it must
            keep nothing from one answer to the next.
        idle: Seconds of silence allowed; 0 switches the timeout off.
        reason: The reason that a reap gives.
        linger: Seconds that a task waits for more bytes before it ends, so that a busy
            connection keeps its task. At most `LINGERERS` tasks wait at a time. With 0
            a task ends at once.
        tls: Wraps every connection; with None they are plain.
        parks: With False every connection keeps its task until it ends. None means
            False where there is no epoll, and True elsewhere.
    Attributes:
        reaped: How many were reaped, by reason.
        parks: Whether connections are parked at all.
        tasks: The tasks that run the handler.
    Raises:
        InvalidArgument: by name and value.
    """

    kind: ClassVar[type[Parked]] = Parked
    """The class of the connections."""
    plain: ClassVar[type[ParkableStream]] = ParkableStream
    """The class of the streams that the handler is given, without TLS."""
    secure: ClassVar[type[TlsStream]] = TlsStream
    """The class of the streams that the handler is given, with TLS."""

    def __init__(
        self,
        watcher: Reaper,
        handler: Callable[[Any], Awaitable[object]],
        idle: float,
        *,
        reason: str = IDLE,
        linger: float = 0.0,
        tls: ssl.SSLContext | None = None,
        parks: bool | None = None,
    ) -> None:
        self._watcher = watcher
        self.driver: Driver = watcher.driver
        check_idle(idle)
        self._idle = idle
        self._reason = reason
        self._tls = tls
        self.parks: bool = hasattr(select, "epoll") if parks is None else parks
        self._epoll = select.epoll() if self.parks else None
        self.lingering: Lingering = Lingering(check_idle(linger, "linger") or 0.0, parks=self.parks)
        self.tasks: TaskPool = TaskPool(handler, self._fell_silent, self.close)
        # Each lot has a class of its own for its connections, so that none needs a
        # reference to it.
        self._type: type[Any] = type(
            self.kind.__name__, (self.kind,), {"__slots__": (), "lot": self}
        )
        # Descriptors are small and dense numbers: a list takes 8 bytes for each, a
        # dict 100.
        self._by_fd: list[Any] = []
        self._open = 0
        self._awake = 0
        self._draining = False
        self._drainers = trio.lowlevel.ParkingLot()
        self.reaped: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many connections are open, parked or not."""
        return self._open

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._open} connections, {self.parked} of them parked>"

    @property
    def parked(self) -> int:
        """How many connections have no task now."""
        return self._open - self._awake

    def __iter__(self) -> Iterator[Any]:
        """The open connections, in the order of their descriptors."""
        return (parked for parked in list(self._by_fd) if parked is not None)

    async def run(
        self, *, task_status: trio.TaskStatus[ParkingLot] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Wait for bytes of all connections until cancelled, then close all of them.

        What a handler raises comes out of here, too, after all have been closed.
        """
        try:
            async with trio.open_nursery() as nursery:
                self.tasks.nursery = nursery
                nursery.start_soon(self.lingering.run)
                task_status.started(self)
                if self._epoll is None:
                    await trio.sleep_forever()
                descriptor, poll, by_fd = self._epoll.fileno(), self._epoll.poll, self._by_fd
                while True:
                    await trio.lowlevel.wait_readable(descriptor)
                    for fd, events in poll(0, WAKES_PER_PASS):
                        parked = by_fd[fd]
                        if parked is None:
                            continue  # it has ended since the epoll was asked
                        if parked.state is PARKED:
                            self.spoken(parked, events & _GONE != 0)
                        elif parked.state is AWAKE:
                            self.hung_up(parked, events & _BROKEN != 0)
        finally:
            self.tasks.nursery = None
            for some in slices(self):
                for parked in some:
                    self._leave(parked)
                if len(some) == AT_ONCE:
                    await trio.lowlevel.cancel_shielded_checkpoint()
            if self._epoll is not None:
                self._epoll.close()
        raise AssertionError("unreachable")

    def add(
        self, accepted: socket.socket, idle: float | None = None, reason: str | None = None
    ) -> Any:
        """Take over a connected socket. It is watched from now on, and parked until its
        first byte comes. Returns a `kind`.

        *idle* and *reason* hold in place of the lot's own.

        Raises:
            RuntimeError: the lot does not run. The socket stays the caller's.
        """
        if self.tasks.nursery is None:
            raise RuntimeError("this parking lot does not run: start its run() first")
        accepted.setblocking(False)
        with suppress(OSError):  # the socket is no TCP
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = accepted.fileno()
        parked: Parked = self._type(fd)
        timeout = self.driver.later(self._idle if idle is None else idle)
        parked.lease = self.driver.register(
            parked, timeout, reason=self._reason if reason is None else reason
        )
        parked.state = PARKED
        if fd >= len(self._by_fd):
            self._by_fd.extend([None] * (fd + 1 - len(self._by_fd)))
        self._by_fd[fd] = parked
        self._open += 1
        self.driver.books.opened(parked.lease, accepted)
        accepted.detach()
        if self._epoll is None:
            self.start(parked)
        else:
            self._epoll.register(fd, READABLE)
        return parked

    async def accept(self, listening: socket.socket) -> NoReturn:
        """Accept from *listening* until cancelled, then close it.

        It pauses while the reaper's `accepting` is False.
        """
        welcome = partial(until_welcome, self._watcher)
        with listening:
            try:
                await accept(listening, self.add, welcome=welcome)
            finally:
                trio.lowlevel.notify_closing(listening)

    # ---- awake and asleep ------------------------------------------------------------

    def start(self, parked: Parked, ended: bool = False) -> None:
        """Have a task run the handler for *parked*, whose state is `PARKED`.

        *ended* says that its peer has sent its end of file.
        """
        stream = parked.stream
        if stream is None:
            try:
                stream = self.plain(parked) if self._tls is None else self.secure(parked, self._tls)
            except OSError:  # the connection broke before the handshake began
                self.gone(parked, closed=True)
                return
            parked.stream = stream
        stream.begin(ended)
        parked.state = AWAKE
        self._awake += 1
        self.tasks.start(stream)

    def _fell_silent(self, awake: ParkableStream) -> None:
        """Park the connection of *awake*, whose handler has ended: there is nothing to
        read.
        """
        parked: Any = awake.parked
        if parked.state is not AWAKE:
            self.close(parked)
        elif self._draining and not self.waits_for_more(parked) and not parked.has_unread():
            self._leave(parked, DRAIN)
        else:
            self._awake -= 1
            parked.state = PARKED
            if self._tls is None:
                parked.stream = None
            self.listen(parked)

    def retime(self, idle: float) -> None:
        """Put another timeout in force on every connection, counted from its last
        activity, and on new ones.

        Args:
            idle: Seconds; 0 switches the timeout off.
        Raises:
            InvalidArgument: *idle* is NaN, negative or infinite.
        Cost: O(open connections).
        """
        timeout = check_idle(idle)
        self._idle = idle

        def put(parked: Parked) -> None:
            parked.lease.retime(timeout, self.driver.now())

        walk(self.driver.soon, self, put, self.driver.poke)

    # ---- for subclasses --------------------------------------------------------------

    def spoken(self, parked: Any, ended: bool) -> None:
        """Override to do something before a task is started.

        The epoll says that *parked* can be read; *ended* says that its peer has sent an
        end of file or has gone. An override calls `start`, or `listen` to wait for
        more, or `gone`.
        """
        if ended and not readable(parked.fd):
            self.gone(parked)  # nothing is left to read, and nothing is owed: that needs no task
        else:
            self.start(parked, ended)

    def waits_for_more(self, parked: Any) -> bool:
        """Override to make a drain wait for *parked*: return True if it is silent in
        the middle of something.
        """
        return False

    def hung_up(self, parked: Any, gone: bool) -> None:
        """Override to hear of the peer's end while a handler runs, after
        `listen_for_its_end`.

        The peer has sent an end of file, or, if *gone*, the connection is broken.
        """

    def left(self, parked: Any, reason: str | None) -> None:
        """Override to hear of an end: the descriptor of *parked* is about to be closed.

        *reason* is that of a reap, if one ends it just now; otherwise None.
        """

    def listen(self, parked: Parked, events: int = READABLE) -> None:
        """Have the epoll report the next bytes of *parked*, once."""
        if self._epoll is not None:
            self._epoll.modify(parked.fd, events)

    def listen_for_its_end(self, parked: Parked, *, shut: bool = True) -> None:
        """While a handler runs, have `hung_up` called once when the peer of *parked*
        goes.

        With *shut* it is also called when the peer says that it will send no more.
        """
        self.listen(parked, (_SHUT if shut else 0) | _ONCE)

    def gone(self, parked: Parked, *, closed: bool = False) -> None:
        """The peer of *parked* has ended it. Close its descriptor, unless that is
        *closed*.
        """
        self._leave(parked, by_peer=True, closed=closed)

    # ---- ends ------------------------------------------------------------------------

    def reap(self, parked: Parked, reason: str, expiry: Expiry | None = None) -> None:
        """End *parked* for *reason*. Does nothing if it has ended.

        A parked connection is closed at once; a handler that runs is cancelled, and the
        connection is closed when the handler has ended.
        """
        if parked.state is PARKED:
            self._leave(parked, reason, expiry)
        elif parked.state is AWAKE:
            self._note_end(parked, reason, expiry, by_peer=False)
            parked.lease.release()
            parked.state = CUT
            parked.stream.reason = reason
            parked.stream.scope.cancel(reason=f"reaped: {reason}")

    def close(self, parked: Parked) -> None:
        """End *parked* because its handler has, or the lot. Does nothing if it has
        ended.
        """
        self._leave(parked, by_peer=parked.stream is not None and parked.stream.hung_up)

    def _leave(
        self,
        parked: Parked,
        reason: str | None = None,
        expiry: Expiry | None = None,
        *,
        by_peer: bool = False,
        closed: bool = False,
    ) -> None:
        """Close *parked*, from any state, any number of times. Every end comes through
        here.

        Args:
            reason, expiry: Of the reap that ends it; None if nothing reaps it now.
            by_peer: Whether its peer ended it.
            closed: Whether its descriptor has been closed already.
        """
        state, fd = parked.state, parked.fd
        if state is OUT:
            return
        if state is not CUT:
            self._note_end(parked, reason, expiry, by_peer=by_peer)
        self.left(parked, reason)
        if state is not PARKED:
            self._awake -= 1
            if not closed:
                trio.lowlevel.notify_closing(fd)
        if self._epoll is not None:
            # close(2) alone would not take it out of the epoll while a forked process
            # holds a copy of the descriptor.
            with suppress(OSError):
                self._epoll.unregister(fd)
        if parked.stream is not None:
            parked.stream.detach()
        parked.stream = None
        parked.end_lease()
        parked.fd = -1
        parked.state = OUT
        self._by_fd[fd] = None
        self._open -= 1
        if not self._open:
            self._drainers.unpark_all()
        if not closed:
            if reason is not None or state is CUT:
                shut(fd)
            os.close(fd)

    def _note_end(
        self, parked: Parked, reason: str | None, expiry: Expiry | None, *, by_peer: bool
    ) -> None:
        if reason is None:
            self.driver.books.left(parked.lease, by_peer=by_peer)
        else:
            self.driver.books.reaped(parked.lease, parked, reason, expiry)
            self.reaped[reason] += 1

    async def drain(self, timeout: float, window: float = 0.0) -> None:
        """End every connection: the silent ones spread over *window*, the others when
        they fall silent. Stop adding first. Returns once none is open.

        The reason is `drain`, and `drain_deadline` for those whose handler still runs
        at *timeout*.

        Args:
            timeout: Seconds, > 0.
            window: Seconds, >= 0.
        Raises:
            InvalidArgument: *timeout* is NaN, infinite, or <= 0.
        """
        check_timeout("timeout", timeout)
        with trio.move_on_after(timeout):
            await self._watcher.let_the_loop_read()
            await self._end_silent(window)
            # From here on each connection that falls silent leaves by itself. Some may
            # have fallen silent since their slice was ended, so all are gone through
            # once more.
            self._draining = True
            self.lingering.end()
            await self._end_silent(0.0)
            await self._all_gone()
        for some in slices(self, REAPS_PER_SLICE):
            for parked in some:
                self.reap(parked, DRAIN_DEADLINE)
            await trio.sleep(0)
        await self._all_gone()

    async def _end_silent(self, window: float) -> None:
        count = -(-self._open // REAPS_PER_SLICE)
        for batch in slices(self, REAPS_PER_SLICE):
            silent = [one for one in batch if one.state is PARKED and not self.waits_for_more(one)]
            spoken = unread_of(silent)
            for parked in silent:
                if parked.fd not in spoken:
                    self.reap(parked, DRAIN)
            await trio.sleep(window / count)

    async def _all_gone(self) -> None:
        while self._open:
            await self._drainers.park()
