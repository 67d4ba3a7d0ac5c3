"""hypercorn on trio: the method that serves a connection is wrapped, and its stream is
replaced by one that notes that something is read or sent.

One rule: *a connection is ended by closing its socket*. hypercorn shields its sending
from cancellation, so a cancelled task would not end a connection whose client takes
nothing. Its tasks then meet `trio.ClosedResourceError`, which hypercorn handles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, cast

import trio

from ...driver.driver import Driver
from ...driver.ends import log
from ...driver.pressing import relieve
from ...driver.served import Served, Terms, Wire, tried, watch
from ...driver.sockets import reset_on_close, say, shut
from ...policy import Phase
from ...policy.pressure import Pressure, limits_here
from ...trio.connection import socket_of
from ...trio.reaper import TrioReaper
from ..abandoned import Link
from ..configured import settings
from ..http2.waiting import Carrier
from .http2 import CARRIER
from .phases import Hypercorn, forget
from .trio_application import stand_around
from .trio_overload import refuse

_OF_RUN: trio.lowlevel.RunVar[TrioReaper] = trio.lowlevel.RunVar("reaper.run")


def started_reaper() -> TrioReaper:
    """The reaper of this trio run. The first call starts it, and it runs soon, until
    the trio run ends.
    """
    try:
        reaper = _OF_RUN.get()
    except LookupError:
        reaper = TrioReaper(settings())
        trio.lowlevel.spawn_system_task(reaper.run)
        _OF_RUN.set(reaper)
        if reaper.config.reaper.pressure:
            trio.lowlevel.spawn_system_task(relieve, reaper, Pressure(limits_here()))
    return reaper


def _starts(reaper: TrioReaper) -> bool:
    """Whether *reaper* does not run yet."""
    return not reaper.running


class StreamWire(Wire):
    """The stream of a hypercorn `TCPServer` on trio.

    Args:
        server: It is referred to weakly.
        stream: Its stream, with TLS or without.
        driver: Of the run.
    Attributes:
        is_plain: Whether it has no TLS.
        sending: Calls that send something.
        waker: Wakes the guard; None until it is asked for.
        wake: The same, if the next byte is the first after a rest or an answer.
    """

    __slots__ = ("_driver", "_socket", "is_plain", "sending", "wake", "waker")

    def __init__(self, server: Any, stream: Any, driver: Driver) -> None:
        super().__init__(server)
        self._driver = driver
        self._socket = socket_of(stream)
        self.is_plain: bool = isinstance(stream, trio.SocketStream)
        self.sending: int = 0
        self.wake: Callable[[], None] | None = None
        self.waker: Callable[[], None] | None = None

    def socket(self) -> Any:
        return self._socket

    @property
    def is_open(self) -> bool:
        return bool(self._socket.fileno() >= 0)

    def buffered(self) -> int:
        """Above 0 while something is being sent."""
        return self.sending

    def write(self, data: bytes) -> None:
        if self.is_plain:
            say(self.descriptor, data)

    def close(self, says: bytes) -> None:
        if says and not self.is_plain:
            trio.lowlevel.spawn_system_task(self._say_and_close, says)
            return
        self.write(says)
        self.cut()

    def cut(self) -> None:
        """Close the socket."""
        if self.is_open:
            shut(self.descriptor)
            self._socket.close()

    def reset(self) -> None:
        reset_on_close(self._socket)
        self.cut()

    async def _say_and_close(self, answer: bytes) -> None:
        """Over TLS: send *answer*, and close the connection. A task of hypercorn's may
        read meanwhile. One that writes has the lock: then nothing is said.
        """
        server, seconds = self._whose(), self._driver.config.timeouts.linger
        try:
            with trio.move_on_after(seconds or self._driver.core.tick):
                server.send_lock.acquire_nowait()
                try:
                    await server.stream.unwatched.send_all(answer)
                finally:
                    server.send_lock.release()
        except Exception:  # it has gone, or is being answered; and no failure may end the run
            log.debug("a client is not told of its end", exc_info=True)
        finally:
            self.cut()

    def wakes(self, served: Served) -> bool:
        self.wake = self.waker = self.waker or served.waker()
        return True


class OnTrio(Hypercorn):
    """A connection that hypercorn serves on trio."""

    __slots__ = ()

    LIMITED: ClassVar[tuple[Phase, ...]] = (*Hypercorn.LIMITED, Phase.HANDSHAKE)

    wire: StreamWire

    def phase(self) -> Phase:
        if not self.wire.is_plain and not hasattr(self.server, "protocol"):
            return Phase.HANDSHAKE
        return super().phase()

    def carrier(self) -> Carrier:
        """What its streams need, over HTTP/2."""
        reaper, wire = self._terms.reaper, self.wire
        return Carrier(
            reaper.driver,
            reaper.config,
            reaper.sweep,
            partial(getattr, wire, "descriptor"),
            wire.cut,
        )

    def written(self) -> Link:
        """The link of its request: all of earlier ones was written."""
        wire = self.wire
        return Link(partial(getattr, wire, "descriptor"), lambda: True, wire.cut)


class Stream:
    """Passes bytes to and from the stream *inner*, and tells *wire* about them.

    Attributes:
        reading: Whether hypercorn waits for bytes.
        unwatched: The stream *inner*: what is sent there counts as nothing.
    """

    def __init__(self, inner: Any, wire: StreamWire) -> None:
        self.unwatched: Any = inner
        self._wire = wire
        self.reading: bool = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        self.reading = True
        try:
            data: bytes = await self.unwatched.receive_some(max_bytes)
        finally:
            self.reading = False
        wake = self._wire.wake
        if wake is not None and data:
            self._wire.wake = None
            wake()
        return data

    async def send_all(self, data: Any) -> None:
        wire = self._wire
        wire.sending += 1
        try:
            await self.unwatched.send_all(data)
        finally:
            wire.sending -= 1
            wire.wake = wire.waker

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
        if not hasattr(tried(socket_of, stream), "fileno"):
            await run(self)
            return
        reaper = tried(started_reaper)
        while reaper is not None and tried(_starts, reaper):
            await trio.lowlevel.checkpoint()
        if reaper is not None and tried(reaper.welcomes) is False:
            await refuse(reaper, stream)
            return
        connection = None if reaper is None else tried(_guard, self, reaper)
        try:
            await run(self)
        except trio.ClosedResourceError:  # in the handshake of TLS, where hypercorn expects none
            if connection is None or connection.wire.is_open:
                raise
        finally:
            forget(self)
            if connection is not None:
                connection.leave()

    return serve


def _guard(server: Any, reaper: TrioReaper) -> OnTrio:
    """Guard the connection of *server*, a `TCPServer`, and its application. If this
    raises, the server is as it was.
    """
    stream = server.stream
    wire = StreamWire(server, stream, reaper.driver)

    def made(terms: Terms, uid: int, wire: Any) -> OnTrio:
        return OnTrio(terms, uid, wire, server)

    connection = cast(OnTrio, watch(OnTrio.terms(reaper), made, wire))
    try:
        server.stream = Stream(stream, wire)
        link = connection.written if wire.is_plain else None
        stand_around(server, reaper, link)
        connection.opened()
    except BaseException:
        server.stream = stream
        connection.leave()
        raise
    setattr(server, CARRIER, connection.carrier)
    return connection
