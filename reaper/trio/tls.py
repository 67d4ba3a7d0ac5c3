"""TLS on a parked connection: the session on the socket itself, with nothing in between.

The rule of this module: *what is kept of a silent session is OpenSSL's own*. No buffers in memory between it and the
socket, no stream around a stream, no task: 14 KB per idle connection with TLS 1.3 and OpenSSL 3.0, 13 KB with TLS 1.2.
CPython has OpenSSL release its read and write buffers (SSL_MODE_RELEASE_BUFFERS) while they are empty.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable
from typing import Any

import trio

from ..driver.sockets import borrowed
from .parked import ParkableStream, Parked

EARLY_BYTES = 16384
"""What a step of the handshake reads at the most, should there be more than the handshake: one record."""


class TlsSession:
    """The server's side of TLS on a descriptor that stays its owner's.

    It goes on working after `detach`, which must be called before the owner closes the descriptor. From then on nothing
    may be read or written.

    Args:
        fd: Of a connected socket, non-blocking.
        context: Of a server.
    Attributes:
        socket: The `ssl.SSLSocket`.
        established: Whether `shake_hands` has brought the handshake to its end.
        wants_other: Whether the last read waits for room to write, or the last write for bytes to read.
    Raises:
        OSError: the connection broke before the handshake began. Its descriptor is closed.
    """

    __slots__ = ("_early", "established", "socket", "wants_other")

    def __init__(self, fd: int, context: ssl.SSLContext) -> None:
        with borrowed(fd) as connected:
            connected.setblocking(False)
            # It takes the descriptor over; `detach` gives it back.
            self.socket: ssl.SSLSocket = context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
        self._early = b""  # what the last step of the handshake has read beyond it
        self.established: bool = False
        self.wants_other: bool = False

    def shake_hands(self) -> bool:
        """A step of the handshake; True: it is over. A read or a write takes such steps by itself.

        Raises:
            OSError: it failed, or the connection is lost.
        """
        try:
            # Not `do_handshake`, which sets the timeout of a descriptor that a detached socket no longer has.
            self._early = self._read(EARLY_BYTES)
        except BlockingIOError:
            pass
        else:
            if not self._early and self.socket.version() is None:
                raise ConnectionAbortedError("the peer has ended the connection in its handshake, or right after it")
        self.established = self.socket.version() is not None
        return self.established

    def read(self, most: int) -> bytes:
        """Decrypted bytes; empty at the end of file, which one without a goodbye is, too, as HTTPS clients have it.

        Raises:
            BlockingIOError: there are none yet.
            OSError: the connection is lost.
        """
        if self._early:
            early, self._early = self._early[:most], self._early[most:]
            return early
        return self._read(most)

    def _read(self, most: int) -> bytes:
        self.wants_other = False
        try:
            return self.socket.recv(most)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_other = True
            raise BlockingIOError from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def write(self, data: memoryview) -> int:
        """How many bytes of *data* were taken.

        Raises:
            BlockingIOError: there is no room.
            OSError: the connection is lost.
        """
        self.wants_other = False
        try:
            return self.socket.send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self.wants_other = True
            raise BlockingIOError from None

    def detach(self) -> None:
        """Leave the closing of the descriptor to its owner; any number of times."""
        self.socket.detach()


class TlsStream(ParkableStream):
    """A connection of a parking lot with TLS. Unlike its plain sibling it outlives each run of the handler.

    The handshake happens in the first receive or send. A client that is slow at it costs no task: a receive parks in a
    handshake, too. What OpenSSL has decrypted is used up before a receive parks.

    Attributes are also those of its `ssl.SSLSocket`: `version()`, `selected_alpn_protocol()`, `getpeercert()`...
    """

    __slots__ = ("_session",)

    def __init__(self, parked: Parked, context: ssl.SSLContext) -> None:
        super().__init__(parked)
        self._session = TlsSession(parked.fd, context)

    @property
    def transport_stream(self) -> TlsStream:
        """Itself: there is no stream below."""
        return self

    def begin(self) -> None:
        """Bytes have come, and a handler is about to run."""
        super().begin()
        self.touch()

    def read_now(self, most: int) -> bytes:
        """As in `SocketStream`."""
        self._open()  # OpenSSL would read from the number, whatever that stands for by now
        return self._session.read(most)

    def write_now(self, data: memoryview) -> int:
        """As in `SocketStream`."""
        self._open()
        return self._session.write(data)

    def until_readable(self) -> Awaitable[None]:
        """Wait for bytes, or raise `Silent`."""
        return super().until_writable() if self._session.wants_other else self._until_readable()

    async def _until_readable(self) -> None:
        await super().until_readable()
        self.touch()  # part of a record is activity, too

    def until_writable(self) -> Awaitable[None]:
        """Wait for room, or for what the handshake needs."""
        return trio.lowlevel.wait_readable(self.parked.fd) if self._session.wants_other else super().until_writable()

    async def send_eof(self) -> None:
        """Not to be had.

        Raises:
            RuntimeError: always. TLS has no half-closed connections.
        """
        raise RuntimeError("TLS has no half-closed connections; close it instead")

    def detach(self) -> None:
        """Leave the descriptor to the lot, which closes it."""
        self._session.detach()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.socket, name)

    def __repr__(self) -> str:
        return f"<TlsStream {self.parked!r}>"
