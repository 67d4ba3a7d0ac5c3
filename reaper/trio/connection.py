"""`Connection`: one watched connection of a trio program, a block that ends when the connection is reaped.

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


class Connection(Watched):
    """One watched connection, made by `TrioReaper.watch`; a context manager with cancel-scope semantics of its own.

    When the connection is reaped, the body of its `with` block is cancelled with a readable reason, the block swallows
    that cancellation and no other, and `reaped` and `reason` tell about it afterwards. Its other attributes and methods
    are those of `reaper.driver.Watched`.
    """

    __slots__ = ("_scope", "_socket")

    def __init__(self, driver: Driver, uid: int, socket: Any) -> None:
        super().__init__(driver, uid)
        self._scope = trio.CancelScope()
        self._socket = socket

    def __enter__(self) -> Connection:
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.leave()
        return self._scope.__exit__(kind, error, trace)

    def _cut(self, reason: str) -> None:
        self._scope.cancel(reason=f"reaped: {reason}")

    def hang_up(self) -> None:
        """The peer has gone: end the block as a reap does, but as the peer's doing (`hung_up`), and not `reaped`."""
        self.hung_up: bool = True
        self._scope.cancel(reason="the peer has gone")

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it is closed."""
        return -1 if self._socket is None else self._socket.fileno()


def socket_of(stream: object | None) -> Any:
    """The socket at the bottom of *stream*, through any TLS around it; itself if it is one; None if there is none.

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
        raise InvalidArgument(f"stream must be a trio stream, a socket or None, got {shown(stream)}")
    return found
