"""The streams of parked connections: what a handler is given while it runs, plain or
with TLS.

The rule of this module: *a receive that would have to wait ends the handler*. It
lingers as long as its lot allows (`linger`), and then raises `Silent`; the lot parks
the connection. A stream is made for each run of the handler; with TLS it is kept,
because the session has to be.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import trio

from ..driver.driver import Driver
from ..driver.watched import Reapable, refuse_reaped
from ..stops import Stopping, stopping
from .linger import Lingering, Silent
from .streams import SocketStream
from .tls import TlsSession


class Lot(Protocol):
    """What a stream needs of the parking lot that its connection belongs to: a
    `ParkingLot`.
    """

    driver: Driver
    lingering: Lingering

    def close(self, parked: Any) -> None: ...


class Place(Reapable):
    """What a stream needs of its connection, besides what the driver needs of it: a
    `Parked`.
    """

    __slots__ = ()

    fd: int
    lot: ClassVar[Lot]


class ParkableStream(SocketStream):
    """A connection of a parking lot while its handler runs: a stream, and the handler's
    way to the reaper.

    Every receive touches the connection by itself. A receive that would have to wait
    raises `Silent`. The first receive and the first send of a handler can be cancelled,
    but they let no other task run: they go on at once.

    Attributes:
        parked: The connection, which stays when the handler is gone.
        scope: A reap cancels it. A handler that has something to do after a reap enters
            a scope of its own.
        reason: Why the reaper ended the handler, or None.
        disturbed: Whether the receive that waits is to raise `Silent` now.
        silenced: Whether a receive of this run of the handler has raised `Silent`
            before.
        ended: Whether the peer had sent its end of file when the handler was started.
        may_park: Whether a receive may park the connection. Switch it off while the
            handler is in the middle of something.
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

    def __init__(self, parked: Place) -> None:
        SocketStream.__init__(self)  # once per wake of a connection: super() costs more
        self.parked: Place = parked
        self.may_park: bool = True

    def begin(self, ended: bool) -> None:
        """A handler is about to run; its `scope` is set after this."""
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
        # A read that was given less than it asked for has taken all there was, so the
        # next one need not ask the kernel: the epoll tells of what came since. Once the
        # peer's end of file is there, it has to ask, because that is read only after
        # the last bytes.
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
            lingering = self.parked.lot.lingering
            if lingering.at_once and not self.silenced:  # as it would say; without a coroutine
                self.silenced = True
                raise Silent
            return lingering.wait(self)
        return trio.lowlevel.wait_readable(self.parked.fd)

    def close(self) -> None:
        """Close at once. You may call it any number of times.

        While a handler ends because of `Silent` (`async with stream:`, a `finally`)
        this closes only the handler's stream: the connection is parked, and its next
        handler gets a stream.
        """
        if self.silenced:
            self._closed = True
        else:
            self.parked.lot.close(self.parked)

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout in force; see `Connection.retime`."""
        return self.parked.lot.driver.retime(self.parked.lease, idle, reason)

    @property
    def leaving(self) -> Stopping:
        """Whether the server has been told to stop; see `Connection.leaving`."""
        return stopping()

    def suspend(self) -> bool:
        """Exempt the connection from reaping until `resume`; see
        `Connection.suspend`.
        """
        return self.parked.lease.suspend()

    def resume(self) -> bool:
        """End the exemption, which counts as activity; see `Connection.resume`."""
        return self.parked.lot.driver.resume(self.parked.lease)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Exempt the connection from reaping and parking for the length of the block.

        The end of the block counts as activity.

        Raises:
            ConnectionReaped: it was reaped before.
        """
        refuse_reaped(self)
        could_park, self.may_park = self.may_park, False
        suspended = self.suspend()
        try:
            yield
        finally:
            self.may_park = could_park
            if suspended:
                self.resume()

    def detach(self) -> None:
        """The lot is about to close the descriptor: let go of it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.parked!r}>"


class TlsStream(ParkableStream):
    """The stream of a parked connection with TLS. Unlike a plain one it lives as long
    as the connection.

    The handshake happens in the first receive or send. A client that is slow at it
    costs no task, because a receive parks in a handshake, too. What OpenSSL has
    decrypted is used up before a receive parks. It has the attributes of its
    `ssl.SSLSocket` as well: `version()`, `selected_alpn_protocol()`, `getpeercert()`...

    Raises:
        OSError: the connection broke before the handshake began; see `TlsSession`.
    """

    __slots__ = ()

    def __init__(self, parked: Place, context: ssl.SSLContext) -> None:
        self.session: TlsSession = TlsSession(parked.fd, context)
        super().__init__(parked)

    def begin(self, ended: bool) -> None:
        super().begin(ended)
        self.touch()  # bytes have come, although perhaps not a whole record

    def read_now(self, most: int) -> bytes:
        self._open()  # the descriptor's number may be another connection's once this one is closed
        return self.session.read(most)

    def write_now(self, data: memoryview) -> int:
        self._open()
        return self.session.write(data)

    def until_readable(self) -> Awaitable[None]:
        return super().until_writable() if self.session.wants_other else self._until_readable()

    async def _until_readable(self) -> None:
        await super().until_readable()
        self.touch()  # a part of a record is activity, too

    def until_writable(self) -> Awaitable[None]:
        return (
            trio.lowlevel.wait_readable(self.parked.fd)
            if self.session.wants_other
            else super().until_writable()
        )

    async def send_eof(self) -> None:
        """Raises RuntimeError: TLS has no half-closed connections."""
        raise RuntimeError("TLS has no half-closed connections; close it instead")

    def detach(self) -> None:
        self.session.detach()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session.socket, name)
