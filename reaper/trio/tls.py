"""TLS on a parked connection: the session on the socket itself, with nothing in between.

The rule of this module: *what is kept of a silent session is OpenSSL's own*. No buffers in memory between it and the
socket, no stream around a stream, no task: 15 KB per idle connection with TLS 1.3 and OpenSSL 3.0, 11 KB with TLS 1.2.
CPython has OpenSSL release its read and write buffers (SSL_MODE_RELEASE_BUFFERS) while they are empty.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable
from typing import Any

import trio

from .parked import ParkableStream, Parked
from .streams import borrowed


class TlsStream(ParkableStream):
    """A connection of a parking lot with TLS. Unlike its plain sibling it outlives each run of the handler.

    The handshake happens in the first receive or send. A client that is slow at it costs no task: a receive parks in a
    handshake, too. What OpenSSL has decrypted is used up before a receive parks.

    Attributes are also those of its `ssl.SSLSocket`: `version()`, `selected_alpn_protocol()`, `getpeercert()`...
    """

    __slots__ = ("_session", "_wants_other")

    def __init__(self, parked: Parked, context: ssl.SSLContext) -> None:
        super().__init__(parked)
        with borrowed(parked.fd) as connected:
            connected.setblocking(False)
            # It takes the descriptor over; `detach` takes it back before the lot closes it.
            self._session = context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
        self._wants_other = False  # whether a read waits for room to write, or a write for bytes to read

    @property
    def transport_stream(self) -> TlsStream:
        """Itself: there is no stream below."""
        return self

    def begin(self) -> None:
        """Bytes have come, and a handler is about to run."""
        super().begin()
        self.touch()

    def read_now(self, most: int) -> bytes:
        """As in `SocketStream`. An end of file without a goodbye is one, too, as HTTPS clients have it."""
        self._wants_other = False
        try:
            return self._session.recv(most)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self._wants_other = True
            raise BlockingIOError from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def write_now(self, data: memoryview) -> int:
        """As in `SocketStream`."""
        self._wants_other = False
        try:
            return self._session.send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self._wants_other = True
            raise BlockingIOError from None

    def until_readable(self) -> Awaitable[None]:
        """Wait for bytes, or raise `Silent`."""
        return super().until_writable() if self._wants_other else self._until_readable()

    async def _until_readable(self) -> None:
        await super().until_readable()
        self.touch()  # part of a record is activity, too

    def until_writable(self) -> Awaitable[None]:
        """Wait for room, or for what the handshake needs."""
        return trio.lowlevel.wait_readable(self.parked.fd) if self._wants_other else super().until_writable()

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
        return getattr(self._session, name)

    def __repr__(self) -> str:
        return f"<TlsStream {self.parked!r}>"
