"""Streams on a bare descriptor that note what the peer does.

The rule of this module: *only bytes that came are activity*. Sending is none, because a
peer that is gone would be kept alive by what is sent to it; nor is an end of file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import trio

from ..driver.sockets import borrowed
from ..stops import Stopping
from .connection import END_PAUSE, ENDS, Connection

RECEIVE_BYTES = 65536
"""Most bytes of one receive, unless fewer are asked for."""


class SocketStream(trio.abc.HalfCloseableStream):
    """A connected, non-blocking socket as a stream. A subclass says where its
    descriptor is and what bytes mean.

    One task may receive while another sends. A task that always has bytes ready lets
    others run after each.

    Attributes:
        received, sent: Bytes so far.
        hung_up: Whether the peer ended the connection before we shut our side: by an
            end of file, or by breaking it.
        shut: Whether we have shut our sending side.
    """

    __slots__ = ("_ends", "_fresh", "_prompt", "_sending", "hung_up", "received", "sent", "shut")

    def __init__(self) -> None:
        self.received: int = 0
        self.sent: int = 0
        self.hung_up: bool = False
        self.shut: bool = False
        self._ends = 0
        # Whether the first receive and the first send need not let other tasks run,
        # because those have just run.
        self._fresh = self._prompt = False
        self._sending = False

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        raise NotImplementedError

    def heard(self, count: int) -> None:
        """Override: *count* bytes came, >= 1."""

    def read_now(self, most: int) -> bytes:
        """Read at most *most* bytes; nothing at the end of file.

        Raises:
            BlockingIOError: there are none yet.
        """
        return os.read(self.fileno(), most)

    def write_now(self, data: memoryview) -> int:
        """How many bytes of *data* were taken. Raises BlockingIOError where there is no
        room.
        """
        return os.write(self.fileno(), data)

    def until_readable(self) -> Awaitable[None]:
        """Override to do something about a receive that has to wait."""
        return trio.lowlevel.wait_readable(self.fileno())

    def until_writable(self) -> Awaitable[None]:
        """Override to do something about a send that has to wait."""
        return trio.lowlevel.wait_writable(self.fileno())

    def _open(self) -> int:
        fd = self.fileno()
        if fd < 0:
            raise trio.ClosedResourceError("this connection is closed")
        return fd

    def _be_alone(self) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes as they come, at most `RECEIVE_BYTES` at once; empty at the end of
        file. Raises as trio's streams.
        """
        if max_bytes is None:
            max_bytes = RECEIVE_BYTES
        elif max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes!r}")
        await trio.lowlevel.checkpoint_if_cancelled()
        rested, self._fresh = self._fresh, False
        while True:
            try:
                data = self.read_now(max_bytes)
                break
            except BlockingIOError:
                rested = True
                await self.until_readable()
            except OSError as error:
                self._open()
                self.hung_up = not self.shut
                raise trio.BrokenResourceError(f"receiving from {self!r}: {error}") from error
        if data:
            self.received += len(data)
            self.heard(len(data))
        else:
            self.hung_up = not self.shut
            self._ends += 1
            if self._ends > ENDS:
                await trio.sleep(END_PAUSE)
        if not rested:  # a peer that always has bytes ready must not have the loop for itself
            await trio.lowlevel.cancel_shielded_checkpoint()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the kernel, waiting while it has no room. Raises as trio's
        streams.
        """
        self._be_alone()
        self._sending = True
        blocked = False
        try:
            if self.shut:
                raise trio.ClosedResourceError("can't send data after sending EOF")
            left = memoryview(data)
            if not left:
                self._open()
            while left:
                try:
                    count = self.write_now(left)
                except BlockingIOError:
                    blocked = True
                    await self.until_writable()
                    continue
                self.sent += count
                left = left[count:]
        except OSError as error:
            self._open()
            self.hung_up = not self.shut
            raise trio.BrokenResourceError(f"sending to {self!r}: {error}") from error
        finally:
            self._sending = False
        prompt, self._prompt = self._prompt, False
        if not blocked:
            await (
                trio.lowlevel.checkpoint_if_cancelled() if prompt else trio.lowlevel.checkpoint()
            )

    async def wait_send_all_might_not_block(self) -> None:
        """Return when the kernel has room for more. Raises as `send_all`."""
        self._be_alone()
        self._sending = True
        try:
            await trio.lowlevel.wait_writable(self._open())
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """Shut our sending side: what is queued goes out, then the end of file.

        Does nothing if it is shut.
        """
        self._be_alone()
        self._open()
        self.shut_down()
        await trio.lowlevel.checkpoint()

    def shut_down(self) -> None:
        """Shut our sending side without waiting. Does nothing if it is lost or
        closed.
        """
        fd = self.fileno()
        self.shut = self.shut or not self.hung_up
        if fd >= 0:
            with suppress(OSError), borrowed(fd) as connected:
                connected.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close at once. What is queued still goes out, unless unread bytes are
        waiting: then the kernel resets.
        """
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Override: close at once; any number of times."""
        raise NotImplementedError


class WatchedSocket(SocketStream):
    """A connected TCP socket, non-blocking, the stream's to close, that touches its
    *connection* whenever bytes are received: what `serve_tcp` hands out. It does what a
    `WatchedStream` around a `trio.SocketStream` does, in one step instead of three.
    """

    __slots__ = ("_connected", "_socket", "connection")

    def __init__(self, connected: socket.socket, connection: Connection) -> None:
        super().__init__()
        self._connected = connected
        self._socket: trio.socket.SocketType | None = None
        self.connection: Connection = connection
        connection.handled()

    @property
    def socket(self) -> trio.socket.SocketType:
        """The same socket as trio's."""
        if self._socket is None:
            self._socket = trio.socket.from_stdlib_socket(self._connected)
        return self._socket

    def fileno(self) -> int:
        return self._connected.fileno()

    def heard(self, count: int) -> None:
        self.connection.touch()

    async def until_readable(self) -> None:
        # Called only after a read that found nothing. The read is tried even if the
        # last one took all there was: a busy client has asked again by then, and
        # waiting costs a third more CPU.
        connection = self.connection
        connection.receiving = True
        if connection.awaited:
            connection.went_idle()
        try:
            await trio.lowlevel.wait_readable(self._open())
        finally:
            connection.receiving = False

    def close(self) -> None:
        if self._connected.fileno() >= 0:
            trio.lowlevel.notify_closing(self._connected)
            self._connected.close()

    @property
    def leaving(self) -> Stopping:
        """Whether the server has been told to stop; see `Connection.leaving`."""
        return self.connection.leaving

    def setsockopt(self, *arguments: Any) -> None:
        """As in the standard library; and so `getsockopt`."""
        self._connected.setsockopt(*arguments)

    def getsockopt(self, *arguments: Any) -> int | bytes:
        return self._connected.getsockopt(*arguments)

    def __repr__(self) -> str:
        return f"<WatchedSocket {self.connection!r}>"
