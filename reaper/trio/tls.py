"""TLS on a parked connection: the session on the socket itself, with nothing in
between.

The rule of this module: *what is kept of a silent session is OpenSSL's own*. No buffers
in memory between it and the socket, no stream around a stream, no task: 14 KB per idle
connection with TLS 1.3 and OpenSSL 3.0, 13 KB with TLS 1.2. CPython has OpenSSL release
its read and write buffers (SSL_MODE_RELEASE_BUFFERS) while they are empty.
"""

from __future__ import annotations

import ssl

from ..driver.sockets import borrowed

EARLY_BYTES = 16384
"""The most that a step of the handshake reads, should there be more than the handshake:
one record.
"""


class TlsSession:
    """The server's side of TLS on *fd*, a non-blocking descriptor of its owner's, who
    calls `detach` before closing it.

    Attributes:
        socket: The `ssl.SSLSocket`.
        established: Whether `shake_hands` has brought the handshake to its end.
        wants_other: Whether the last read waits for room to write, or the last write
            for bytes to read.
    Raises:
        OSError: the connection broke before the handshake began. Only then the
            descriptor is not left to its owner: it is closed, and its number may be
            another's soon.
    """

    __slots__ = ("_early", "established", "socket", "wants_other")

    def __init__(self, fd: int, context: ssl.SSLContext) -> None:
        with borrowed(fd) as connected:
            connected.setblocking(False)
            try:
                # It takes the descriptor over; `detach` gives it back.
                self.socket: ssl.SSLSocket = context.wrap_socket(
                    connected, server_side=True, do_handshake_on_connect=False
                )
            except BaseException as error:
                connected.close()  # nothing, if it has been taken over
                _close_what_was_begun(error)
                raise
        self._early = b""  # what the last step of the handshake has read beyond it
        self.established: bool = False
        self.wants_other: bool = False

    def shake_hands(self) -> bool:
        """Do a step of the handshake. Returns True when it is over.

        Raises:
            OSError: it failed, or the connection is lost.
        """
        try:
            # Not `do_handshake`, which sets the timeout of a descriptor that a detached
            # socket no longer has.
            self._early = self._read(EARLY_BYTES)
        except BlockingIOError:
            pass
        else:
            if not self._early and self.socket.version() is None:
                raise ConnectionAbortedError(
                    "the peer has ended the connection in its handshake, or right after it"
                )
        self.established = self.socket.version() is not None
        return self.established

    def read(self, most: int) -> bytes:
        """Read at most *most* decrypted bytes; nothing at the end of file.

        An end without a goodbye counts as an end of file, because HTTPS clients end
        like that.

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
        """Write *data*, and return how many bytes of it were taken.

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


def _close_what_was_begun(error: BaseException) -> None:
    """Close the socket whose construction raised *error*. Only the traceback refers to
    it.

    Some versions of CPython close it themselves; others leave it to the garbage
    collector, which would come after its number has become another connection's.
    """
    trace = error.__traceback__
    while trace is not None:
        begun = trace.tb_frame.f_locals.get("self")
        if isinstance(begun, ssl.SSLSocket):
            begun.close()
        trace = trace.tb_next
