"""hypercorn on trio: the method that serves a connection is wrapped, and its stream is
replaced by one that notes when a phase begins.

One rule: *a connection is ended by closing its socket*. hypercorn shields its sending
from cancellation, so a cancelled task would not end a connection whose client takes
nothing. Its tasks then meet `trio.ClosedResourceError`, which hypercorn handles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from ...core.lease import Lease
from ...driver.driver import Driver
from ...driver.ends import log
from ...driver.pressing import relieve
from ...driver.sockets import queued, reset_on_close, say, shut, tcp_info_of
from ...driver.watched import Watched
from ...policy import IdlePolicy, Phase
from ...policy.min_rate import NoSweep
from ...policy.phases import ABSOLUTE, NOT_TAKEN
from ...policy.pressure import Pressure, limits_here
from ...policy.reasons import MAX_AGE
from ...trio.connection import socket_of
from ...trio.reaper import TrioReaper
from ..abandoned import Link
from ..configured import ages, settings
from ..http2.waiting import Carrier
from ..polled import readable, timed_out
from .http2 import CARRIER
from .phases import be_last, forget, leave, owes, phase_of
from .trio_application import stand_around
from .trio_overload import refuse

PIECE = 65536
"""Bytes sent at a time: a client that has taken one piece is alive."""

PHASE_OF = readable(phase_of)
ANSWER = timed_out(owes)

RESTING = frozenset({Phase.FIRST_BYTE, Phase.KEEP_ALIVE, Phase.IDLE})
"""Phases in which the client has asked for nothing."""

_OF_RUN: trio.lowlevel.RunVar[TrioReaper] = trio.lowlevel.RunVar("reaper.run")
_AGES: trio.lowlevel.RunVar[Callable[[], float]] = trio.lowlevel.RunVar("reaper.ages")


async def running_reaper() -> TrioReaper:
    """The reaper of this trio run. The first call starts it; it runs until the trio run
    ends.
    """
    try:
        reaper = _OF_RUN.get()
    except LookupError:
        reaper = TrioReaper(settings())
        _OF_RUN.set(reaper)
        _AGES.set(ages(reaper.config))
        trio.lowlevel.spawn_system_task(reaper.run)
        if reaper.config.reaper.pressure:
            trio.lowlevel.spawn_system_task(relieve, reaper, Pressure(limits_here()))
    while not reaper.running:
        await trio.lowlevel.checkpoint()
    return reaper


NO_SWEEP = NoSweep()
"""`Stream` charges what its clients take."""


def _uncounted() -> int:
    """Return 0: `Stream` counts the bytes that the client accepts."""
    return 0


class Served(Watched):
    """A connection that hypercorn serves.

    Args:
        server: hypercorn's `TCPServer`, one per connection.
        stream: The stream of the server, with TLS or without.
    Attributes:
        policy: Knows which timeout is in force.
        is_plain: Whether it has no TLS.
    """

    __slots__ = ("_leave_at", "_server", "_socket", "is_plain", "policy")

    policy: IdlePolicy

    def __init__(self, driver: Driver, uid: int, server: Any, stream: Any) -> None:
        super().__init__(driver, uid)
        self._server = server
        self._socket = socket_of(stream)
        self.is_plain: bool = isinstance(stream, trio.SocketStream)
        self.receiving: bool | None = True
        self._leave_at: float | None = None  # once it is too old

    @property
    def descriptor(self) -> int:
        return int(self._socket.fileno())

    def carrier(self) -> Carrier:
        """What its streams need, over HTTP/2."""
        driver = self._driver
        descriptor = partial(getattr, self, "descriptor")
        return Carrier(driver, driver.config, NO_SWEEP, descriptor, self._socket.close)

    def written(self) -> Link:
        """The link of its request: all of earlier ones was written."""
        return Link(partial(getattr, self, "descriptor"), lambda: True, self._socket.close)

    @property
    def stays_due(self) -> bool:
        """See the base class: a byte does not extend a limit for the whole."""
        return self.lease.reason in ABSOLUTE and PHASE_OF(self._server) is not Phase.IN_FLIGHT

    def _cut(self, reason: str) -> None:
        if reason in NOT_TAKEN:  # the kernel would go on offering it what is queued
            reset_on_close(self._socket)
        elif answer := ANSWER(self._server, reason):
            if not self.is_plain:
                trio.lowlevel.spawn_system_task(self._say_and_close, answer)
                return
            say(self._socket.fileno(), answer)
        self._close()

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            shut(self._socket.fileno())
            self._socket.close()

    async def _say_and_close(self, answer: bytes) -> None:
        """Over TLS: send *answer*, and close the connection. A task of hypercorn's may
        read meanwhile. One that writes has the lock: then nothing is said.
        """
        server, seconds = self._server, self._driver.config.timeouts.linger
        try:
            with trio.move_on_after(seconds or self._driver.core.tick):
                server.send_lock.acquire_nowait()
                try:
                    await server.stream.unwatched.send_all(answer)
                finally:
                    server.send_lock.release()
        except Exception:  # it has gone, or is being answered; and no failure may end the run
            log.debug("the client of %s is not told of its end", self, exc_info=True)
        finally:
            self._close()

    def look(self) -> None:
        """Note the phase that may have begun: before a read, and after a write."""
        phase = PHASE_OF(self._server)
        if phase is Phase.IDLE:
            phase = Phase.IN_FLIGHT  # no stream of HTTP/2 is open: its session knows the limit
        if phase is Phase.KEEP_ALIVE and self.policy.phase is Phase.FIRST_BYTE:
            return
        self.enter(phase)

    def pardon(self, lease: Lease) -> bool:
        """At the final check: whether hypercorn works for the client after all. No
        event says so while requests wait behind a slow one, or while the application
        reads a body late.
        """
        if lease.reason == MAX_AGE:
            return self._may_finish()
        if lease is not self.lease or self.policy.phase is Phase.WRITE:
            return False
        if PHASE_OF(self._server) is not Phase.IN_FLIGHT:
            return False
        # After this check: being spared counts as activity, which would undo it.
        self._driver.after(0.0, self.look)
        return True

    def _may_finish(self) -> bool:
        """Whether a connection that is too old may stay for a moment: as
        `asyncio.guards.Guard` does it. Its next answer says that it is the last; over
        HTTP/2 its client is told GOAWAY.
        """
        now, timeouts = self._driver.now(), self._driver.config.timeouts
        if self._leave_at is None:
            self._leave_at = now + timeouts.drain_idle
            be_last(self._server)
            leave(self._server)
        descriptor = self.descriptor
        works = PHASE_OF(self._server) not in RESTING or bool(queued(descriptor))
        if now < self._leave_at or works:
            return True
        if now >= self._leave_at + timeouts.drain:
            return False
        info = tcp_info_of(descriptor)
        return info is not None and min(info.sent_ago, info.received_ago) < timeouts.drain_idle

    def enter(self, phase: Phase) -> None:
        """Let the timeout of *phase* begin now; does nothing once the connection is
        closed.
        """
        if self.lease.alive:
            self.policy.enter(phase, self._driver.now())


class Stream:
    """Passes bytes to and from the stream *inner*, and tells *connection* about them.

    Attributes:
        reading: Whether hypercorn waits for bytes.
        unwatched: The stream *inner*: what is sent there counts as nothing.
    """

    def __init__(self, inner: Any, connection: Served, now: Callable[[], float]) -> None:
        self.unwatched: Any = inner
        self._connection = connection
        self._now = now
        self.reading: bool = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        connection = self._connection
        self.reading = True
        try:
            connection.look()
            data: bytes = await self.unwatched.receive_some(max_bytes)
        finally:
            self.reading = False
        connection.policy.bytes_in(len(data), self._now())
        return data

    async def send_all(self, data: Any) -> None:
        """Send *data* in pieces, so that a client that takes some of it counts as
        alive.
        """
        connection = self._connection
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            connection.enter(Phase.WRITE)
            await self.unwatched.send_all(view[start : start + PIECE])
            connection.policy.bytes_out(PIECE, self._now())
        connection.look()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unwatched, name)


def guarded_run(run: Any) -> Any:
    """Serve the connection of *self*, hypercorn's `TCPServer` on trio, guarded. A
    stream that is in memory, as in a test, is left alone: there is no connection.

    Args:
        run: The method of hypercorn's that this one replaces.
    """

    async def serve(self: Any) -> None:
        stream = self.stream
        if not hasattr(socket_of(stream), "fileno"):
            await run(self)
            return
        reaper = await running_reaper()
        if not reaper.welcomes():
            await refuse(reaper, stream)
            return
        connection: Served = reaper.driver.watch(
            lambda uid: Served(reaper.driver, uid, self, stream),
            socket_of(stream),
            reaper.config.timeouts.first_byte,
            reason=Phase.FIRST_BYTE.value,
        )
        if age := _AGES.get()():
            connection.deadline(age, MAX_AGE)
        now = reaper.driver.now
        connection.policy = IdlePolicy(reaper.config, connection, now(), NO_SWEEP, _uncounted)
        self.stream = Stream(stream, connection, now)
        setattr(self, CARRIER, connection.carrier)
        stand_around(self, reaper, connection.written if connection.is_plain else None)
        try:
            await run(self)
        except trio.ClosedResourceError:  # in the handshake of TLS, where hypercorn expects none
            if connection.lease.alive:
                raise
        finally:
            forget(self)
            connection.leave()
            del connection.policy  # it refers to the connection: a circle otherwise

    return serve
