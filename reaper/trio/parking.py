"""Connections that cost no task while they are silent: one epoll waits for all of them.

The rule of this module: *only a read that found nothing parks*. A handler runs as a task while
there are bytes. When it asks for more and the kernel has none, `Silent` is raised in it, the task
ends, and what remains is a descriptor in an epoll and a lease. The next byte starts the handler
anew. So nothing can be left behind in a buffer, not in TLS's either: the question for more bytes is
only asked when every layer above has used up its own.

The lot, the handler and the epoll know a connection by the same descriptor number, and each of them
may be the first to find that it has ended. So where it is, is written in one place, its `state`:

    PARKED   in the epoll, without a task       -> AWAKE by bytes; OUT by a reap, its peer's going, the lot's end
    AWAKE    a handler runs                     -> PARKED by `Silent`; CUT by a reap; OUT by its end or its own close
    CUT      reaped, its handler is cancelled   -> OUT when that has ended, however it takes it
    OUT      closed; its number may be another connection's by now

`_leave` is the only way out: there the books are told, unless the reap told them, and the
descriptor is closed, once.

A server that reads a little before it makes a task, or remembers something of a silent connection,
subclasses `Parked` and `ParkingLot`, as `server_example.http` does: see the methods of a lot under
"for subclasses".
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import trio

from ..core.lease import Expiry
from ..core.ticks import check_timeout
from ..driver.driver import REAPS_PER_SLICE, Driver, unread_of
from ..driver.sockets import readable
from ..driver.watched import Reapable, check_idle
from ..policy.reasons import DRAIN, DRAIN_DEADLINE, IDLE
from .accepting import accept
from .linger import Lingering, Silent
from .streams import SocketStream
from .tls import TlsSession

if TYPE_CHECKING:
    from .reaper import TrioReaper

WAKES_PER_PASS = 16
"""Connections that get a task before the loop is let run again. What a burst leaves behind is the
memory of the tasks that were awake together, each of some 13 KB with HTTP, and a request takes two
or three passes. Of 4,000 clients at once that is left, per connection: 358 bytes with 16, 540 with
64; and a pass takes the shorter."""

KEPT = 32
"""Tasks of one lot that are kept for the next connection that speaks, for to make one and to end it
costs as much as an echo: as many as two passes wake, and 100 KB."""

_ONCE, _SHUT = getattr(select, "EPOLLONESHOT", 0), getattr(select, "EPOLLRDHUP", 0)
READABLE = getattr(select, "EPOLLIN", 0) | _SHUT | _ONCE
WRITABLE = getattr(select, "EPOLLOUT", 0) | _SHUT | _ONCE
_BROKEN = getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)
_GONE = _SHUT | _BROKEN


class State(Enum):
    """Where a connection of a parking lot is; see the module."""

    PARKED, AWAKE, CUT, OUT = range(4)


PARKED, AWAKE, CUT, OUT = State


class Parked(Reapable):
    """One connection of a parking lot: what is left of it while it has no task, and the reaper's
    uid for it.

    Attributes:
        fd: Its descriptor; -1 while it is `OUT`.
        state: Where it is. Only its lot changes that.
        stream: What its handler was given; None while it is parked, unless TLS keeps it.
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


class ParkableStream(SocketStream):
    """A connection of a parking lot while its handler runs: a stream, and the handler's way to the
    reaper.

    Every receive touches the connection by itself. A receive that would have to wait raises
    `Silent`. The first receive and the first send of a handler are places to be cancelled, but let
    no other task run: they go on at once.

    Attributes:
        parked: What remains of it when the handler is gone.
        scope: What a reap cancels; a handler that has something to do after it enters one of its
            own.
        reason: Why the reaper ended the handler, or None.
        disturbed: Whether its wait is over because it is to be parked, as if its descriptor were
            closed.
        silenced: Whether it was met with `Silent` before.
        ended: Whether the peer had sent its end of file when the handler was started.
        may_park: Whether a receive may park it. Switch it off where the handler is in the middle of
            something.
    """

    __slots__ = (
        *(
            "_closed",
            "_drained",
            "disturbed",
            "ended",
            "may_park",
            "parked",
            "reason",
            "scope",
            "silenced",
        ),
        "session",  # of `TlsStream`, whose subclasses may so be those of another stream, too
    )

    scope: trio.CancelScope

    def __init__(self, parked: Parked) -> None:
        super().__init__()
        self.parked: Parked = parked
        self.may_park: bool = True

    def begin(self, ended: bool) -> None:
        """A handler is about to run, in a `scope` to be set."""
        self.reason: str | None = None
        self.disturbed: bool = False
        self.silenced: bool = False
        self._closed = self._drained = False
        self.ended: bool = ended
        self._fresh = self._prompt = True

    @property
    def reaped(self) -> bool:
        """Whether the reaper ended the handler."""
        return self.reason is not None

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return -1 if self._closed else self.parked.fd

    def read_now(self, most: int) -> bytes:
        # A read that was given less than it asked for has taken all there was. The next one need
        # not find that out: an epoll tells of what came since. Not so once the end of file is
        # there.
        fd = self.fileno()
        if self._drained and fd >= 0:
            self._drained = False
            raise BlockingIOError
        data = os.read(fd, most)
        self._drained = 0 < len(data) < most and not self.ended
        return data

    def heard(self, count: int) -> None:
        self.parked.lease.touch()

    def touch(self) -> None:
        """Note activity other than received bytes."""
        self.parked.lease.touch()

    def until_readable(self) -> Awaitable[None]:
        if self.may_park:
            return self.parked.lot.lingering.wait(self)
        return trio.lowlevel.wait_readable(self.parked.fd)

    def close(self) -> None:
        """Close at once; any number of times.

        While the handler leaves because of `Silent` (`async with stream:`, a `finally`) it closes
        the handler's stream only: the connection is parked, and its next handler has a stream
        again.
        """
        if self.silenced:
            self._closed = True
        else:
            self.parked.lot.close(self.parked)

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """As in `Connection`, and so are `suspend` and `resume`."""
        return self.parked.lot.driver.retime(self.parked.lease, idle, reason)

    def suspend(self) -> bool:
        return self.parked.lease.suspend()

    def resume(self) -> bool:
        return self.parked.lot.driver.resume(self.parked.lease)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Exempt the connection from reaping and parking for the length of the block. Its end
        counts as activity.
        """
        could_park, self.may_park = self.may_park, False
        suspended = self.suspend()
        try:
            yield
        finally:
            self.may_park = could_park
            if suspended:
                self.resume()

    def detach(self) -> None:
        """The lot is about to close the descriptor."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.parked!r}>"


class TlsStream(ParkableStream):
    """A connection of a parking lot with TLS. Unlike its plain sibling it outlives each run of the
    handler.

    The handshake happens in the first receive or send. A client that is slow at it costs no task: a
    receive parks in a handshake, too. What OpenSSL has decrypted is used up before a receive parks.
    Raises as `TlsSession`. Attributes are also those of the `ssl.SSLSocket` in it: `version()`,
    `selected_alpn_protocol()`, `getpeercert()`...
    """

    __slots__ = ()

    def __init__(self, parked: Parked, context: ssl.SSLContext) -> None:
        self.session: TlsSession = TlsSession(parked.fd, context)
        super().__init__(parked)

    def begin(self, ended: bool) -> None:
        super().begin(ended)
        self.touch()  # bytes have come

    def read_now(self, most: int) -> bytes:
        self._open()  # OpenSSL would read from the number, whatever that stands for by now
        return self.session.read(most)

    def write_now(self, data: memoryview) -> int:
        self._open()
        return self.session.write(data)

    def until_readable(self) -> Awaitable[None]:
        return super().until_writable() if self.session.wants_other else self._until_readable()

    async def _until_readable(self) -> None:
        await super().until_readable()
        self.touch()  # part of a record is activity, too

    def until_writable(self) -> Awaitable[None]:
        return (
            trio.lowlevel.wait_readable(self.parked.fd)
            if self.session.wants_other
            else super().until_writable()
        )

    async def send_eof(self) -> None:
        """Raises RuntimeError."""
        raise RuntimeError("TLS has no half-closed connections; close it instead")

    def detach(self) -> None:
        self.session.detach()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session.socket, name)


class ParkingLot:
    """The connections of one handler that cost no task while they are silent. Made by
    `TrioReaper.parking_lot`.

    Args:
        watcher: The reaper.
        handler: Called with a stream whenever bytes have come; ends the connection by returning.
            Each time the connection has been silent it begins anew, so what it knows must not
            outlive its answer.
        idle: Seconds of silence allowed; 0 switches the timeout off.
        reason: What a reap gives as its own.
        linger: Seconds that a task waits for more before it is given up, to spare a busy connection
            the new one; but no more than `LINGERERS` tasks do at a time. 0: given up at once.
        tls: Wraps every connection; None: plain.
        parks: False: every connection keeps its task for good. None: only where there is no epoll.
    Attributes:
        reaped: How many were reaped, by reason.
        parks: Whether connections are parked at all.
    Raises:
        InvalidArgument: by name and value.
    """

    kind: ClassVar[type[Parked]] = Parked
    """The class of its connections; and those of the streams that its handler is given, without and
    with TLS.
    """
    plain: ClassVar[type[ParkableStream]] = ParkableStream
    secure: ClassVar[type[TlsStream]] = TlsStream

    def __init__(
        self,
        watcher: TrioReaper,
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
        self._handler = handler
        check_idle(idle)
        self._idle = idle
        self._reason = reason
        self._tls = tls
        self.parks: bool = hasattr(select, "epoll") if parks is None else parks
        self._epoll = select.epoll() if self.parks else None
        self.lingering: Lingering = Lingering(check_idle(linger, "linger") or 0.0, parks=self.parks)
        # Each lot has its own class, so that no connection needs a reference to its lot.
        self._type: type[Any] = type(
            self.kind.__name__, (self.kind,), {"__slots__": (), "lot": self}
        )
        self._by_fd: list[
            Any
        ] = []  # descriptors are small and dense: 8 bytes each where a dict takes 100
        self._open = 0
        self._awake = 0
        self._nursery: trio.Nursery | None = None
        self._draining = False
        self._drainers = trio.lowlevel.ParkingLot()
        self._kept: list[
            tuple[trio.lowlevel.Task, trio.CancelScope]
        ] = []  # tasks that have nothing to do
        self._given: dict[
            trio.lowlevel.Task, ParkableStream
        ] = {}  # what those that were woken are to do
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

    async def run(
        self, *, task_status: trio.TaskStatus[ParkingLot] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Wait for all of them until cancelled, then close all of them. What a handler raises ends
        it too.
        """
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self.lingering.run)
                task_status.started(self)
                if self._epoll is None:
                    await trio.sleep_forever()
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    for fd, events in self._epoll.poll(0, WAKES_PER_PASS):
                        parked = self._by_fd[fd]
                        if parked is None:
                            continue  # it has ended since the epoll was asked
                        if parked.state is PARKED:
                            self.spoken(parked, events & _GONE != 0)
                        elif parked.state is AWAKE:
                            self.hung_up(parked, events & _BROKEN != 0)
        finally:
            self._nursery = None
            for parked in self:
                self._leave(parked)
            if self._epoll is not None:
                self._epoll.close()
        raise AssertionError("unreachable")

    def add(
        self, accepted: socket.socket, idle: float | None = None, reason: str | None = None
    ) -> Any:
        """Take over a connected socket: watched from now on, parked until its first byte comes.
        Returns a `kind`.

        *idle* and *reason* hold in place of the lot's own.

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
        """Accept from *listening* until cancelled, then close it. It pauses while the reaper is not
        `accepting`.
        """
        with listening:
            try:
                await accept(listening, self.add, welcome=self._watcher.welcome)
            finally:
                trio.lowlevel.notify_closing(listening)

    # ---- awake and asleep
    # ----------------------------------------------------------------------------------------

    def start(self, parked: Parked, ended: bool = False) -> None:
        """Have a task run the handler of *parked*, which is parked. *ended*: its peer has sent its
        end of file.
        """
        stream = parked.stream
        if stream is None:
            try:
                stream = self.plain(parked) if self._tls is None else self.secure(parked, self._tls)
            except OSError:  # it broke before the handshake began
                self.gone(parked, closed=True)
                return
            parked.stream = stream
        stream.begin(ended)
        parked.state = AWAKE
        self._awake += 1
        if self._kept:
            task, scope = self._kept.pop()
            self._given[task] = stream
            task.context = (
                copy_context()
            )  # what it did before must not be seen by what it does next
            trio.lowlevel.reschedule(task)
        else:
            scope = trio.CancelScope()
            assert self._nursery is not None
            self._nursery.start_soon(self._run, stream, scope)
        stream.scope = scope

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
                            self.close(awake.parked)
                        awake = None  # while it waits for the next it holds nothing of this one
                        if scope.cancel_called:
                            break
                        awake = await self._job(scope)
                        if awake is None:
                            return
            except BaseException as error:
                if awake is None:
                    raise
                if _is_silent(error):
                    self._fell_silent(awake)
                else:
                    self.close(awake.parked)
                    if not isinstance(error, trio.BrokenResourceError):
                        raise
            else:
                if awake is not None:  # it was reaped
                    self.close(awake.parked)
            awake = None
            scope = trio.CancelScope()
            awake = await self._job(scope)

    async def _job(self, scope: trio.CancelScope) -> ParkableStream | None:
        """Wait for something to do, which will be done in *scope*. None: enough tasks wait already."""
        if len(self._kept) >= KEPT:
            return None
        task = trio.lowlevel.current_task()
        kept = task, scope
        self._kept.append(kept)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._kept.remove(kept)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return self._given.pop(task)

    def _fell_silent(self, awake: ParkableStream) -> None:
        parked = awake.parked
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
        """Put another timeout in force on every connection, counted from its last activity, and on
        new ones. O(open).

        Raises:
            InvalidArgument: *idle* is NaN, negative or infinite; 0 switches the timeout off.
        """
        timeout, now = check_idle(idle), self.driver.now()
        self._idle = idle
        for parked in self:
            parked.lease.retime(timeout, now)
        self.driver.poke()

    # ---- for subclasses
    # ------------------------------------------------------------------------------------------

    def spoken(self, parked: Any, ended: bool) -> None:
        """Override: there is something to read, *ended* perhaps an end of file. `start`, `listen`
        again, or `gone`.
        """
        if ended and not readable(parked.fd):
            self.gone(parked)  # there is nothing to read and nothing owed: no task for that
        else:
            self.start(parked, ended)

    def waits_for_more(self, parked: Any) -> bool:
        """Override: whether a silent connection is in the middle of something, so that a drain has
        to wait for it.
        """
        return False

    def hung_up(self, parked: Any, gone: bool) -> None:
        """Override: with a handler and after `listen_for_its_end`, its peer has sent an end of
        file, or is *gone*.
        """

    def left(self, parked: Any, reason: str | None) -> None:
        """Override: it ends, for *reason* if it is reaped now; its descriptor is about to be
        closed.
        """

    def listen(self, parked: Parked, events: int = READABLE) -> None:
        """Have the epoll tell once of the next bytes."""
        if self._epoll is not None:
            self._epoll.modify(parked.fd, events)

    def listen_for_its_end(self, parked: Parked, *, shut: bool = True) -> None:
        """With a handler: have the epoll tell once when the peer goes; with *shut* also when it
        will send no more.
        """
        self.listen(parked, (_SHUT if shut else 0) | _ONCE)

    def gone(self, parked: Parked, *, closed: bool = False) -> None:
        """Its peer has ended it: close it, unless it is *closed*."""
        self._leave(parked, by_peer=True, closed=closed)

    # ---- ends
    # ----------------------------------------------------------------------------------------------------

    def reap(self, parked: Parked, reason: str, expiry: Expiry | None = None) -> None:
        """End *parked* for *reason*; nothing if it has ended."""
        if parked.state is PARKED:
            self._leave(parked, reason, expiry)
        elif parked.state is AWAKE:
            self._note_end(parked, reason, expiry, by_peer=False)
            parked.lease.release()
            parked.state = CUT
            parked.stream.reason = reason
            parked.stream.scope.cancel(reason=f"reaped: {reason}")

    def close(self, parked: Parked) -> None:
        """It ends by its handler, or with the lot; nothing if it has ended."""
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
        """The one way out: any number of times, from any state. *closed*: its descriptor has been
        closed.
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
            # A close would do, were it not for copies of the descriptor in processes that may have
            # been forked.
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
        """End every connection: the silent ones spread over *window*, the others when they fall
        silent; seconds.

        Stop adding first. Reasons: `drain`, and `drain_deadline` for those whose handler still runs
        at *timeout*, > 0. Returns once none is open.
        """
        check_timeout("timeout", timeout)
        with trio.move_on_after(timeout):
            await self._watcher.let_the_loop_read()
            await self._end_silent(window)
            # From here on each connection that falls silent leaves by itself; in between some may
            # have fallen silent.
            self._draining = True
            self.lingering.end()
            await self._end_silent(0.0)
            await self._all_gone()
        for parked in self:
            self.reap(parked, DRAIN_DEADLINE)
        await self._all_gone()

    async def _end_silent(self, window: float) -> None:
        everything = iter(list(self))
        slices = -(-self._open // REAPS_PER_SLICE)
        while batch := list(islice(everything, REAPS_PER_SLICE)):
            silent = [one for one in batch if one.state is PARKED and not self.waits_for_more(one)]
            spoken = unread_of(silent)
            for parked in silent:
                if parked.fd not in spoken:
                    self.reap(parked, DRAIN)
            await trio.sleep(window / slices)

    async def _all_gone(self) -> None:
        while self._open:
            await self._drainers.park()


def _is_silent(error: BaseException) -> bool:
    """Whether it is `Silent`, wrapped by the handler's own nurseries perhaps."""
    return isinstance(error, Silent) or (
        isinstance(error, BaseExceptionGroup) and error.split(Silent)[1] is None
    )
