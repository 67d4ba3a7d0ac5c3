"""Streams that note what the peer does: one on a bare descriptor, and one around any other stream.

The rule of this module: *only bytes that came are activity*. Sending is none, for a peer that is gone would be kept
alive by what is sent to it; and neither is an end of file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trio

from .connection import Connection

RECEIVE_BYTES = 65536
"""Most bytes of one receive, unless fewer are asked for."""


class SocketStream(trio.abc.HalfCloseableStream):
    """A connected, non-blocking socket as a stream. A subclass says where its descriptor is and what bytes mean.

    One task may receive while another sends. A task that always has bytes ready lets others run after each.

    Attributes:
        received, sent: Bytes so far.
        hung_up: Whether the peer ended the connection before we shut our side: by an end of file, or by breaking it.
        shut: Whether we have shut our sending side.
    """

    __slots__ = ("_sending", "_streak", "hung_up", "received", "sent", "shut")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.hung_up = False
        self.shut = False
        self._streak = False
        self._sending = False

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        raise NotImplementedError

    def heard(self, count: int) -> None:
        """Override: *count* bytes came, >= 1."""

    async def until_readable(self) -> None:
        """Override to do something about a receive that has to wait."""
        await trio.lowlevel.wait_readable(self._open())

    async def until_writable(self) -> None:
        """Override to do something about a send that has to wait."""
        await trio.lowlevel.wait_writable(self._open())

    def _open(self) -> int:
        fd = self.fileno()
        if fd < 0:
            raise trio.ClosedResourceError("this connection is closed")
        return fd

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes as they come, at most `RECEIVE_BYTES` at once; empty at the end of file.

        Raises:
            trio.BrokenResourceError: the connection is lost.
            trio.ClosedResourceError: it is closed.
            ValueError: *max_bytes* is not None and < 1.
        """
        if max_bytes is None:
            max_bytes = RECEIVE_BYTES
        elif max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes!r}")
        if self._streak:
            await trio.lowlevel.checkpoint()  # a peer that always has bytes ready must not have the loop for itself
        self._streak = True
        while True:
            try:
                data = os.read(self._open(), max_bytes)
                break
            except BlockingIOError:
                self._streak = False
                await self.until_readable()
            except OSError as error:
                self.hung_up = not self.shut
                raise trio.BrokenResourceError(f"receiving from {self!r}: {error}") from error
        if data:
            self.received += len(data)
            self.heard(len(data))
        else:
            self.hung_up = not self.shut
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the kernel, waiting while it has no room.

        Raises:
            trio.BrokenResourceError: the connection is lost.
            trio.ClosedResourceError: it is closed, or its sending side is shut.
            trio.BusyResourceError: another task is sending.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        blocked = False
        try:
            if self.shut:
                raise trio.ClosedResourceError("can't send data after sending EOF")
            left = memoryview(data)
            while left:
                try:
                    count = os.write(self._open(), left)
                except BlockingIOError:
                    blocked = True
                    await self.until_writable()
                    continue
                self.sent += count
                left = left[count:]
            self._open()
        except OSError as error:
            self.hung_up = not self.shut
            raise trio.BrokenResourceError(f"sending to {self!r}: {error}") from error
        finally:
            self._sending = False
        if not blocked:
            await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Nothing is queued here, so there is nothing to wait for."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._open()
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Shut our sending side: what is queued goes out, then the end of file. Nothing if it is shut.

        Raises:
            trio.ClosedResourceError: it is closed.
            trio.BusyResourceError: another task is sending.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._open()
        self.shut_down()
        await trio.lowlevel.checkpoint()

    def shut_down(self) -> None:
        """Shut our sending side without waiting. Nothing if the connection is lost or closed."""
        fd = self.fileno()
        self.shut = self.shut or not self.hung_up
        if fd >= 0:
            with suppress(OSError), borrowed(fd) as connected:
                connected.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close at once. What is queued still goes out, unless unread bytes are waiting: then the kernel resets."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Override: close at once; any number of times."""
        raise NotImplementedError


class WatchedStream(trio.abc.HalfCloseableStream):
    """A stream that touches its connection whenever bytes are received. Everything else goes to the stream within.

    Sending does not touch: a peer that is gone would be kept alive by what is sent to it. A handler that sends for
    longer than the timeout without hearing anything wraps that in `with stream.connection.in_use():`.

    Attributes:
        connection: The `Connection`.
        inner: The stream within.
    """

    def __init__(self, inner: trio.abc.Stream, connection: Connection) -> None:
        self.inner = inner
        self.connection = connection
        connection.receiving = False
        connection.touch = connection.lease.touch

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        connection = self.connection
        connection.receiving = True
        if connection.awaited:
            connection.went_idle()
        try:
            data = await self.inner.receive_some(max_bytes)
        except trio.BrokenResourceError:
            connection.hung_up = True
            raise
        finally:
            connection.receiving = False
        if data:
            connection.touch()
        else:
            connection.hung_up = True
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self.inner.send_eof()  # type: ignore[attr-defined]

    async def aclose(self) -> None:
        await self.inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"<WatchedStream {self.connection!r} around {self.inner!r}>"


@contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for *fd* that does not close it."""
    connected = socket.socket(fileno=fd)
    try:
        yield connected
    finally:
        connected.detach()
