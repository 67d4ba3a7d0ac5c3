"""`Connection`: one watched connection of a trio program, a block that ends when the
connection is reaped; its stream.

The rule of this module: *the block swallows the reaper's cancellation and no other*.
"""

from __future__ import annotations

from socket import socket as stdlib_socket
from types import TracebackType
from typing import Any

import trio

from ..driver.driver import Driver
from ..driver.watched import Watched
from ..errors import InvalidArgument, shown

ENDS = 2
"""Ends of file in a row that a receive returns at once. What asks on and on, because it
takes them for a pause, would have the loop for itself until it is reaped; it waits
`END_PAUSE` for each further one.
"""

END_PAUSE = 0.1
"""Seconds."""


class Connection(Watched):
    """One watched connection, made by `TrioReaper.watch`; a context manager with
    cancel-scope semantics of its own.

    When the connection is reaped, the body of its `with` block is cancelled with a
    readable reason, the block swallows that cancellation and no other, and `reaped` and
    `reason` tell about it afterwards. Its other attributes and methods are those of
    `reaper.driver.Watched`.
    """

    __slots__ = ("_given", "_scope", "_socket", "_stream")

    def __init__(self, driver: Driver, uid: int, given: object, socket: Any) -> None:
        super().__init__(driver, uid)
        self._scope = trio.CancelScope()
        self._given = given
        self._socket = socket
        self._stream: WatchedStream | None = None

    @property
    def stream(self) -> WatchedStream:
        """The stream that `watch` was given, with which it is known whose turn it is:
        every receive touches, and a drain ends the connection when nothing but a
        receive goes on.

        Raises:
            InvalidArgument: `watch` was given none, or a bare socket.
        """
        if self._stream is None:
            if not isinstance(self._given, trio.abc.Stream):
                raise InvalidArgument(
                    f"watch must have been given a stream to receive by, got {shown(self._given)}"
                )
            self._stream = WatchedStream(self._given, self)
        return self._stream

    def __enter__(self) -> Connection:
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self.leave()
        self._stream = self._given = (
            None  # the stream knows its connection: a circle, which only the collector frees
        )
        return self._scope.__exit__(kind, error, trace)

    def _cut(self, reason: str) -> None:
        self._scope.cancel(reason=f"reaped: {reason}")

    @property
    def descriptor(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def own_socket(self) -> Any:
        """The interpreter's or trio's, at the bottom of its stream; None if there is
        none.
        """
        found = self._socket
        return found if isinstance(found, stdlib_socket | trio.socket.SocketType) else None


class WatchedStream(trio.abc.HalfCloseableStream):
    """A stream that touches its `connection` whenever bytes are received. Everything
    else goes to the `inner` stream.

    While a receive waits, and only then, a drain knows the connection for idle. Sending
    does not touch: a peer that is gone would be kept alive by what is sent to it. A
    handler that sends for longer than the timeout without hearing anything wraps that
    in `with stream.connection.in_use():`.
    """

    def __init__(self, inner: trio.abc.Stream, connection: Connection) -> None:
        self.inner = inner
        self.connection = connection
        self._ends = 0
        connection.handled()

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
            self._ends += 1
            if self._ends > ENDS:
                await trio.sleep(END_PAUSE)
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


def socket_of(stream: object | None) -> Any:
    """The socket at the bottom of *stream*, through any TLS around it; itself if it is
    one; None if there is none.

    Raises:
        InvalidArgument: *stream* is neither None, a stream nor a socket.
    """
    found: Any = stream
    while found is not None and not isinstance(found, stdlib_socket | trio.socket.SocketType):
        socket = getattr(found, "socket", None)
        if socket is not None:
            return socket
        found = getattr(found, "transport_stream", None)
    if found is None and not isinstance(stream, trio.abc.AsyncResource | None):
        raise InvalidArgument(
            f"stream must be a trio stream, a socket or None, got {shown(stream)}"
        )
    return found
