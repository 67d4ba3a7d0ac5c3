"""What a connection waits for, read from tornado.

The rule of this module: *what the server knows is read when a connection comes due, never kept
beside it*. Where its private attributes do not say, the connection counts as in use, and is not
closed.
"""

from __future__ import annotations

from typing import Any

from ...asyncio.reaper import reaper_of
from ...policy import Phase
from .. import polled
from ..configured import settings
from ..polled import SocketFace


class TornadoFace(SocketFace):
    """Stands for the transport of a tornado `IOStream`."""

    def is_closing(self) -> bool:
        return bool(self.whose.closed())

    def get_write_buffer_size(self) -> int:
        return len(self.whose._write_buffer or b"")  # None once the stream is closed

    def close(self) -> None:
        self.whose.close()

    abort = close


def note(conn: Any, stream: Any) -> None:
    """Guard *stream*, a tornado `IOStream`, from its first request on.

    Args:
        conn: The `HTTP1Connection` that serves the next request; tornado makes one per request.
    """
    stream._reaper_conn = conn
    if hasattr(stream, "_reaper_face"):
        return
    stream._reaper_face = TornadoFace(stream, stream.socket)
    polled.watch(reaper_of(config=settings()), stream._reaper_face, phase_of)


def phase_of(face: Any) -> Phase:
    """The phase of the connection of *face*, a `TornadoFace`."""
    conn = face.whose._reaper_conn
    if conn.stream is None:  # detached: a WebSocket's, or the application's
        return Phase.TUNNEL
    if conn._request_start_line is None:
        return Phase.KEEP_ALIVE
    if not conn._read_finished:
        return Phase.BODY
    return Phase.KEEP_ALIVE if conn._write_finished else Phase.IN_FLIGHT
