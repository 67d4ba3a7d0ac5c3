"""Connections that cost no task while they are silent: one epoll waits for all of them.

The rule of this module: *only a read that found nothing parks*. A handler runs as a task while there are bytes. When it
asks for more and the kernel has none, `Silent` is raised in it, the task ends, and what remains is a descriptor in an
epoll and a lease. The next byte starts the handler anew, in a new task. So nothing can be left behind in a buffer, not
in TLS's either: the question for more bytes is only asked when every layer above has used up its own.

A parked connection is reaped without a task: its descriptor is closed.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import trio

from ..core.lease import Expiry, Lease
from ..core.ticks import check_timeout
from ..journal.leases import peer_of
from .sockets import unread, waiting

if TYPE_CHECKING:
    from .reaper import TrioReaper

NEVER = 1e9
"""Seconds; the timeout that stands for "switched off": 31 years."""

RECEIVE_BYTES = 65536

WAKES_PER_PASS = 256
"""Connections that get a task before the loop is let run again."""

ACCEPTS_PER_PASS = 64

ACCEPT_PAUSE = 0.1
"""Seconds until it is tried again when there was no descriptor left for one more connection."""

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

CLOSES_PER_SLICE = 128
"""Connections that a drain closes before the loop is let run again, or the next part of its window is waited for."""

DISTURBED = -1
"""The round of a task that is to linger no longer."""

_READABLE = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLONESHOT", 0)
_GONE = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class Silent(BaseException):
    """Raised in a handler whose connection has gone silent: let it pass, and the connection is parked.

    Like `trio.Cancelled` it is no Exception, so that no handler swallows it by accident.
    """


class Parked:
    """One connection of a parking lot, and the reaper's uid for it.

    Attributes:
        fd: Its descriptor; -1 once it is closed.
        lease: The lease in force.
        stream: What its handler was given; None while it is parked, unless TLS keeps it.
        transport: The stream on its descriptor, while a handler runs, or None.
    """

    __slots__ = ("fd", "lease", "stream", "transport")

    _probe: ClassVar[None] = None
    _lot: ClassVar[ParkingLot]

    lease: Lease

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.stream: trio.abc.Stream | None = None
        self.transport: ParkableStream | None = None

    def _descriptor(self) -> int:
        return self.fd

    @property
    def descriptor(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self.fd

    @property
    def busy(self) -> bool:
        """Whether a handler runs."""
        return self.transport is not None

    def _reap(self, reason: str, expiry: Expiry | None = None) -> None:
        self._lot._reap(self, reason, expiry)

    @property
    def peer(self) -> str:
        """The peer's address as text; empty if the connection is gone."""
        try:
            with _borrowed(self.fd) as borrowed:
                host, port = borrowed.getpeername()[:2]
        except (OSError, ValueError):
            return ""
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __repr__(self) -> str:
        return f"fd {self.fd}"


class ParkableStream(trio.abc.HalfCloseableStream):
    """A connection of a parking lot while its handler runs: a stream, and the handler's way to the reaper.

    Every receive touches the connection by itself. A receive that would have to wait raises `Silent`.

    Attributes:
        parked: What remains of it when the handler is gone.
        reaped: Whether the reaper ended the handler.
        reason: Why, or None.
        hung_up: Whether the peer has said that it will send no more, or is gone.
        may_park: Whether a receive may park it. Switch it off where the handler is in the middle of something.
    """

    __slots__ = ("_scope", "_streak", "hung_up", "may_park", "parked", "reaped", "reason")

    _scope: trio.CancelScope

    def __init__(self, parked: Parked) -> None:
        self.parked = parked
        self.reaped = False
        self.reason: str | None = None
        self.hung_up = False
        self.may_park = True
        self._streak = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes as they come; empty at the end of file.

        Raises:
            Silent: there are none. Not for the handler to catch.
            trio.BrokenResourceError: the connection is lost.
        """
        parked = self.parked
        if self._streak:
            await trio.lowlevel.checkpoint()  # whoever always has data ready must not have the loop for itself
        self._streak = True
        while True:
            try:
                data = os.read(self._fd(), RECEIVE_BYTES if max_bytes is None else max_bytes)
                break
            except BlockingIOError:
                self._streak = False
                await parked._lot._wait(self)
            except OSError as error:
                self.hung_up = True
                raise trio.BrokenResourceError(f"receiving from {parked!r}: {error}") from error
        if data:
            parked.lease.touch()
        else:
            self.hung_up = True
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the kernel, waiting while it has no room.

        Raises:
            trio.BrokenResourceError: the connection is lost.
        """
        left = memoryview(data)
        blocked = False
        try:
            while left:
                try:
                    left = left[os.write(self._fd(), left) :]
                except BlockingIOError:
                    blocked = True
                    await trio.lowlevel.wait_writable(self._fd())
        except OSError as error:
            self.hung_up = True
            raise trio.BrokenResourceError(f"sending to {self.parked!r}: {error}") from error
        if not blocked:
            await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Nothing is queued here, so there is nothing to wait for."""
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Shut our sending side."""
        with suppress(OSError), _borrowed(self._fd()) as borrowed:
            borrowed.shutdown(socket.SHUT_WR)
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close at once."""
        self.parked._lot._close(self.parked)
        await trio.lowlevel.checkpoint()

    def _fd(self) -> int:
        if self.parked.fd < 0:
            raise trio.ClosedResourceError("this connection is closed")
        return self.parked.fd

    def touch(self) -> None:
        """Note activity other than received bytes."""
        self.parked.lease.touch()

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout (seconds, > 0) in force, counted from the last activity. False if it was reaped."""
        retimed = self.parked.lease.retime(idle, trio.current_time(), reason)
        self.parked._lot._reaper._poke()
        return retimed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Exempt the connection from reaping and parking for the length of the block. Its end counts as activity."""
        could_park, self.may_park = self.may_park, False
        suspended = self.parked.lease.suspend()
        try:
            yield
        finally:
            self.may_park = could_park
            if suspended:
                self.parked.lease.resume(trio.current_time())
                self.parked._lot._reaper._poke()


class _Tls(trio.abc.Stream):
    """TLS around a parkable stream. Parks only in a receive of the handler's, not in a handshake or a send."""

    def __init__(self, transport: ParkableStream, context: ssl.SSLContext) -> None:
        transport.may_park = False
        self.transport_stream = transport
        self._shaken = False
        self._inner = trio.SSLStream(transport, context, server_side=True, https_compatible=True)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._shaken:
            await self._inner.do_handshake()
            self._shaken = True
        self.transport_stream.may_park = True
        try:
            return bytes(await self._inner.receive_some(max_bytes))
        finally:
            self.transport_stream.may_park = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ParkingLot:
    """The connections of one handler that cost no task while they are silent. Made by `TrioReaper.parking_lot`.

    Args:
        watcher: The reaper that watches them.
        handler: Called with a stream whenever bytes have come; ends the connection by returning. Each time the
            connection has been silent it begins anew, so what it knows must not outlive its answer.
        idle: Seconds of silence allowed; 0 switches the timeout off.
        reason: What a reap gives as its reason.
        linger: Seconds that a task waits for more before it is given up, to spare a busy connection the new one. 0:
            given up at once.
        tls: Wraps every connection; None: plain.
        parks: False: every connection keeps its task for good. None: only where there is no epoll.
    Attributes:
        reaped: How many were reaped, by reason.
        parks: Whether connections are parked at all.
    """

    _SLOTS: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        watcher: TrioReaper,
        handler: Callable[[Any], Awaitable[object]],
        idle: float,
        *,
        reason: str = "idle",
        linger: float = 0.0,
        tls: ssl.SSLContext | None = None,
        parks: bool | None = None,
    ) -> None:
        self._reaper = watcher
        self._handler = handler
        self._idle = 0.0 if idle == 0 else check_timeout("idle", idle)
        self._linger = 0.0 if linger == 0 else check_timeout("linger", linger)
        self._reason = reason
        self._tls = tls
        self.parks = hasattr(select, "epoll") if parks is None else parks
        self._epoll = select.epoll() if self.parks else None
        # Each lot has its own class, so that no connection needs a reference to its lot.
        self._type: type[Any] = type("Parked", (Parked,), {"__slots__": self._SLOTS, "_lot": self})
        self._by_fd: list[Parked | None] = []  # descriptors are small and dense: 8 bytes each where a dict takes 100
        self._open = 0
        self._awake = 0
        self._nursery: trio.Nursery | None = None
        self._waiting: dict[int, int] = {}  # descriptors that tasks linger at -> the round in which that began
        self._round = 0
        self._lingerers = trio.Event()
        self._draining = False
        self._empty = trio.Event()
        self.reaped: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many connections are open, parked or not."""
        return self._open

    @property
    def parked(self) -> int:
        """How many of them have no task now."""
        return self._open - self._awake

    def __iter__(self) -> Iterator[Parked]:
        """The open connections, in the order of their descriptors."""
        return (parked for parked in list(self._by_fd) if parked is not None)

    async def run(self, *, task_status: trio.TaskStatus[ParkingLot] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Wait for all of them until cancelled, then close all of them. What a handler raises ends it too."""
        try:
            async with trio.open_nursery() as self._nursery:
                if self._linger and self.parks:
                    self._nursery.start_soon(self._give_up)
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
                self._close(parked)
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
        keeper = self._reaper._keeper
        peer = peer_of(accepted) if keeper is not None else None
        parked = self._admit(accepted.detach(), self._reaper._later(self._idle), self._reason)
        if keeper is not None:
            keeper.opened(parked.lease, trio.current_time(), self._reaper._listener, peer)
        if self._epoll is None:
            self._start(parked)
        else:
            self._epoll.register(parked.fd, _READABLE)
        return parked

    def _admit(self, fd: int, timeout: float, reason: str) -> Parked:
        parked: Parked = self._type(fd)
        if fd >= len(self._by_fd):
            self._by_fd.extend([None] * (fd + 1 - len(self._by_fd)))
        self._by_fd[fd] = parked
        self._open += 1
        parked.lease = self._reaper.register(parked, timeout, reason=reason)
        return parked

    async def accept(self, listening: socket.socket) -> NoReturn:
        """Accept from *listening* until cancelled, then close it.

        It pauses while the reaper is not `accepting`, and out of descriptors it pauses instead of failing: the kernel's
        backlog holds who comes meanwhile.
        """
        listening.setblocking(False)
        try:
            while True:
                await trio.lowlevel.wait_readable(listening)
                await self._reaper.welcome()
                for _ in range(ACCEPTS_PER_PASS):
                    try:
                        accepted, _ = listening.accept()
                    except BlockingIOError:
                        break
                    except ConnectionError:
                        continue  # it broke before it was accepted
                    except OSError as error:
                        if error.errno not in OUT_OF_DESCRIPTORS:
                            raise
                        await trio.sleep(ACCEPT_PAUSE)  # the backlog holds them until some connection has ended
                        break
                    self.add(accepted)
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
            self._start(parked)

    def _start(self, parked: Parked) -> None:
        if isinstance(parked.stream, _Tls):
            transport = parked.stream.transport_stream
        else:
            transport = ParkableStream(parked)
            parked.stream = transport if self._tls is None else _Tls(transport, self._tls)
        transport._scope = trio.CancelScope()
        parked.transport = transport
        self._awake += 1
        assert self._nursery is not None
        self._nursery.start_soon(self._run, parked, transport)

    async def _run(self, parked: Parked, transport: ParkableStream) -> None:
        try:
            with transport._scope:
                await self._handler(parked.stream)
        except BaseException as error:
            if not _is_silent(error):
                self._end(parked, by_peer=transport.hung_up)
                if isinstance(error, trio.BrokenResourceError):
                    return
                raise
            if not transport.reaped and not self._draining:
                self._park(parked)
                return
            self._reap(parked, "drain")
            self._close(parked)
        else:
            self._end(parked, by_peer=transport.hung_up)

    def _park(self, parked: Parked) -> None:
        parked.transport = None
        self._awake -= 1
        if self._tls is None:
            parked.stream = None
        if self._epoll is not None:
            self._epoll.modify(parked.fd, _READABLE)

    async def _wait(self, stream: ParkableStream) -> None:
        """Wait for bytes, or raise `Silent`."""
        if stream.may_park:
            await self.linger(stream._fd())
        else:
            await trio.lowlevel.wait_readable(stream._fd())

    async def linger(self, fd: int) -> None:
        """Wait until *fd* can be read, but not for ever.

        Raises:
            Silent: it has been silent for `linger` to twice as long; at once if that is 0. Never if nothing is parked.
        """
        if not self.parks:
            await trio.lowlevel.wait_readable(fd)
            return
        if not self._linger or self._draining:
            raise Silent
        if not self._waiting:
            self._lingerers.set()
        self._waiting[fd] = self._round
        try:
            await trio.lowlevel.wait_readable(fd)
        except trio.ClosedResourceError:
            if self._waiting.get(fd) != DISTURBED:
                raise
            raise Silent from None
        finally:
            self._waiting.pop(fd, None)

    async def _give_up(self) -> NoReturn:
        """Park whoever has lingered for a whole round: for `linger` to twice as long."""
        while True:
            if not self._waiting:
                self._lingerers = trio.Event()
                await self._lingerers.wait()
            await trio.sleep(self._linger)
            long = [fd for fd, since in self._waiting.items() if since < self._round]
            self._round += 1
            for index, fd in enumerate(long, start=1):
                self._disturb(fd)
                if index % WAKES_PER_PASS == 0:
                    await trio.lowlevel.checkpoint()

    def _disturb(self, fd: int) -> None:
        """End the waiting of a task that lingers. It sees the same as if its descriptor were closed."""
        if fd in self._waiting:
            self._waiting[fd] = DISTURBED
            trio.lowlevel.notify_closing(fd)

    # ---- ends ----------------------------------------------------------------------------------------------------

    def _reap(self, parked: Parked, reason: str, expiry: Expiry | None = None) -> None:
        transport = parked.transport
        if parked.fd < 0 or (transport is not None and transport.reaped):
            return
        keeper = self._reaper._keeper
        if keeper is not None:
            if expiry is not None:
                keeper.reaped(parked.lease, expiry)
            else:
                keeper.ended(parked.lease, trio.current_time(), reason, by_peer=False)
        parked.lease.release()
        self.reaped[reason] += 1
        self._reaper._note_end(parked, reason, expiry)
        if transport is None:
            self._left(parked, reason)
            self._close(parked)
        else:
            transport.reaped = True
            transport.reason = reason
            transport._scope.cancel(reason=f"reaped: {reason}")

    def _end(self, parked: Parked, *, by_peer: bool) -> None:
        """It ended without the reaper, or its handler did after a reap."""
        if self._reaper._keeper is not None:
            self._reaper._keeper.ended(parked.lease, trio.current_time(), None, by_peer=by_peer)
        self._left(parked, None)
        self._close(parked)

    def _left(self, parked: Parked, reason: str | None) -> None:
        """A connection is about to be closed that no handler was told of."""

    def _close(self, parked: Parked) -> None:
        """Close the descriptor and forget everything; any number of times."""
        fd = parked.fd
        if fd < 0:
            return
        if parked.transport is not None:
            self._awake -= 1
            trio.lowlevel.notify_closing(fd)
        self._forget(parked)
        os.close(fd)

    def _forget(self, parked: Parked) -> None:
        fd = parked.fd
        parked.lease.release()
        if self._epoll is not None:
            # A close would do, were it not for copies of the descriptor in processes somebody may have forked.
            with suppress(OSError):
                self._epoll.unregister(fd)
        parked.fd = -1
        parked.stream = None
        parked.transport = None
        self._by_fd[fd] = None
        self._open -= 1
        if not self._open:
            self._empty.set()

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
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await self._end_silent(window)
            # From here on whoever falls silent leaves by itself; in between some may have.
            self._draining = True
            await self._end_silent(0.0)
            self._end_lingering()
            await self._all_gone()
        for parked in self:
            self._reap(parked, "drain_deadline")
        await self._all_gone()

    async def _end_silent(self, window: float) -> None:
        everybody = iter(list(self))
        slices = max(1, -(-self._open // CLOSES_PER_SLICE))
        while batch := list(islice(everybody, CLOSES_PER_SLICE)):
            silent = [parked for parked in batch if parked.fd >= 0 and parked.transport is None]
            spoken = set(unread(parked.fd for parked in silent))
            for parked in silent:
                if parked.fd not in spoken:
                    self._reap(parked, "drain")
            await trio.sleep(window / slices)

    def _end_lingering(self) -> None:
        for fd in list(self._waiting):
            self._disturb(fd)

    async def _all_gone(self) -> None:
        while self._open:
            self._empty = trio.Event()
            await self._empty.wait()


class WakingLot(ParkingLot):
    """For servers that watch their connections by themselves and park only the silence between two requests.

    They hand a connection over with `park`, with whatever they want to remember of it, and get it back as soon as
    there is something to read. Waiting with `linger` tells them when that is worth it.

    Args:
        watcher, linger, parks: As in `ParkingLot`.
        woken: Called in a task of its own with the socket and what was remembered; the socket is its own again.
        ended: Called with what was remembered and the reason of the reap, or None if the peer went, after which the
            socket is closed. Must not block.
    """

    _SLOTS: ClassVar[tuple[str, ...]] = ("remembered",)

    def __init__(
        self,
        watcher: TrioReaper,
        woken: Callable[[socket.socket, Any], Awaitable[object]],
        ended: Callable[[Any, str | None], object],
        *,
        linger: float = 1.0,
        parks: bool | None = None,
    ) -> None:
        super().__init__(watcher, _never_called, 0.0, linger=linger, parks=parks)
        self._woken = woken
        self._told = ended

    def park(self, connected: socket.socket, idle: float, remembered: Any, activity: Lease, reason: str) -> Parked:
        """Take *connected* over until there is something to read.

        Args:
            connected: Detached; the caller's socket object is of no more use.
            idle: Seconds of silence allowed, counted from the last activity of *activity*; 0 switches the timeout off.
            remembered: Whatever `woken` needs.
            activity: The lease the caller had; it stays the caller's to release.
            reason: What a reap gives as its reason.
        Raises:
            RuntimeError: the lot does not run, or parks nothing. The socket stays the caller's.
        """
        if self._nursery is None or self._epoll is None:
            raise RuntimeError("this parking lot does not run: start its run() first, where there is an epoll")
        timeout = idle or NEVER
        parked: Any = self._admit(connected.detach(), timeout, reason)
        parked.remembered = remembered
        # Being parked is no activity: the silence goes on. To put a timeout in force counts from the epoch noted here.
        parked.lease._epoch = activity._epoch
        parked.lease.retime(timeout, trio.current_time())
        self._epoll.register(parked.fd, _READABLE)
        if self._draining and not unread([parked.fd]):
            self._reap(parked, "drain")
        return parked  # type: ignore[no-any-return]

    def _start(self, parked: Any) -> None:
        fd, remembered = parked.fd, parked.remembered
        self._forget(parked)
        assert self._nursery is not None
        self._nursery.start_soon(self._woken, socket.socket(fileno=fd), remembered)

    def _end_lingering(self) -> None:
        """Nothing: who lingers is not parked, and so the server's to drain."""

    def _left(self, parked: Any, reason: str | None) -> None:
        self._told(parked.remembered, reason)

    def end(self, parked: Parked, reason: str) -> None:
        """Reap it now, for *reason*, unless bytes of it are unread; nothing if it is not parked any more."""
        if parked.fd >= 0 and not unread([parked.fd]):
            self._reap(parked, reason)

    def retime(self, idle: float) -> None:
        """Put another timeout in force on all that are parked, counted from their last activity. O(parked)."""
        now = trio.current_time()
        for parked in self:
            parked.lease.retime(idle or NEVER, now)
        self._reaper._poke()


def _is_silent(error: BaseException) -> bool:
    """Whether it is `Silent`, wrapped by the handler's own nurseries perhaps."""
    return isinstance(error, Silent) or (isinstance(error, BaseExceptionGroup) and error.split(Silent)[1] is None)


async def _never_called(stream: object) -> None:
    """The handler of a lot that has none."""


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for *fd* that does not close it."""
    borrowed = socket.socket(fileno=fd)
    try:
        yield borrowed
    finally:
        borrowed.detach()
