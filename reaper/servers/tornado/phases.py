"""What a connection waits for, read from tornado.

The rule of this module: *what the server knows is read when a connection comes due,
never kept beside it*. Where its private attributes do not say, the connection counts as
in use, and is not closed.
"""

from __future__ import annotations

import copy
from typing import Any

from ...asyncio.reaper import reaper_of
from ...policy import Phase
from .. import polled
from ..configured import settings
from ..polled import SocketFace


class TornadoFace(SocketFace):
    """Stands for the transport of a tornado `IOStream`.

    Attributes:
        ends: Whether the next answer has to say that it is the last.
    """

    ends = False

    def is_closing(self) -> bool:
        whose = self.whose
        return whose is None or bool(whose.closed())

    def get_write_buffer_size(self) -> int:
        whose = self.whose
        if whose is None:
            return 0
        return len(whose._write_buffer or b"")  # None once the stream is closed

    def close(self) -> None:
        if (whose := self.whose) is not None:
            whose.close()

    abort = close

    def write(self, data: bytes) -> None:
        if (whose := self.whose) is not None:
            whose.write(data)


def note(conn: Any, stream: Any) -> None:
    """Guard *stream*, a tornado `IOStream`, from its first request on.

    Args:
        conn: The `HTTP1Connection` that serves the next request; tornado makes one per
            request.
    """
    stream._reaper_conn = conn
    if hasattr(stream, "_reaper_face"):
        if stream._reaper_face.ends:
            _ends(conn)
        return
    stream._reaper_face = TornadoFace(stream, stream.socket)
    polled.watch(reaper_of(config=settings), stream._reaper_face, phase_of, be_last, owes)


def owes(face: Any) -> bool:
    """Whether no part of the answer was sent yet while the request's body is awaited on
    the connection of *face*.
    """
    return face.whose._reaper_conn._response_start_line is None


def be_last(face: Any) -> None:
    """Have the next answer on the connection of *face* say `Connection: close`."""
    face.ends = True
    _ends(face.whose._reaper_conn)


def _ends(conn: Any) -> None:
    """Have *conn*, an `HTTP1Connection`, end the connection with its answer, if that
    has not begun. It gets parameters of its own, because the whole server shares one
    set.
    """
    conn.params = copy.copy(conn.params)
    conn.params.no_keep_alive = True
    if conn._request_start_line is not None and conn._response_start_line is None:
        conn._disconnect_on_finish = True


def phase_of(face: Any) -> Phase:
    """The phase of the connection of *face*, a `TornadoFace`."""
    conn = face.whose._reaper_conn
    if conn.stream is None:  # detached: a WebSocket's, or the application's
        return Phase.TUNNEL
    if conn._request_start_line is None or (conn._read_finished and conn._write_finished):
        return Phase.HEADERS if face.whose._read_buffer else Phase.KEEP_ALIVE
    return Phase.IN_FLIGHT if conn._read_finished else Phase.BODY
