"""gunicorn's worker with threads, guarded: a thread of ours asks what each connection waits for
when it comes due.

The rule of this module: *the worker's threads are told nothing and wait for nothing of ours*. What
they do is two flags on the connection; when bytes moved, the kernel says. A connection that is due
is shut down: whoever of gunicorn's reads or polls it then sees its end, and closes it. Its own
timers of idle connections do nothing: after a pause they would fire before the bytes are read that
came meanwhile. Tried with gunicorn 27.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from typing import Any

from gunicorn.workers import gthread

from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..config.settings import ReaperConfig
from ..policy import Phase
from . import polled
from .configured import kept_alive


class Face(polled.Face):
    """A connection of gunicorn's as a guard sees a transport.

    Attributes:
        answering: Whether a request of it is being answered.
        receiving: Whether the answering waits for bytes of it.
    """

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._lock = threading.Lock()  # the number of a descriptor is another's once it is closed
        self._close = conn.close
        self.answering = self.receiving = False
        conn.close = self.close_for_gunicorn

    def close_for_gunicorn(self, *arguments: Any, **options: Any) -> None:
        """Its `close`, when no other thread is shutting it down."""
        with self._lock, contextlib.suppress(AttributeError):
            del self._conn.close  # a circle
        self._close(*arguments, **options)

    def known(self) -> dict[str, Any]:
        """TLS puts another socket in the place of the first."""
        return {"socket": self._conn.sock, "peername": self._conn.client}

    def is_closing(self) -> bool:
        """Whether gunicorn has closed it."""
        return bool(self._conn.sock.fileno() < 0)

    def close(self) -> None:
        """Let gunicorn see its end."""
        with self._lock, contextlib.suppress(OSError):
            socket.socket.shutdown(
                self._conn.sock, socket.SHUT_RDWR
            )  # TLS's own is for the thread that reads

    abort = close

    def phase(self) -> Phase:
        if not self.answering:
            return (
                Phase.KEEP_ALIVE
            )  # or its first byte, or the rest of its headers: the kernel tells them apart
        return Phase.BODY if self.receiving else Phase.IN_FLIGHT


class ThreadWorker(gthread.ThreadWorker):  # type: ignore[misc]
    """gunicorn's worker with guarded connections.

    Its `--keep-alive` holds where reaper.toml and REAPER_* leave `timeouts.keep_alive` at its
    default.
    """

    def init_process(self) -> None:
        """Start the thread that judges, and go on."""
        self._settings = kept_alive(
            ReaperConfig.load(os.environ.get("REAPER_CONFIG")), self.cfg.keepalive or None
        )
        self._loop = asyncio.new_event_loop()
        self._judging = threading.Thread(target=self._loop.run_forever, name="reaper", daemon=True)
        self._judging.start()
        super().init_process()

    def enqueue_req(self, conn: Any) -> None:
        """A connection is new, or has spoken again."""
        if not hasattr(conn, "face"):
            conn.face = face = Face(conn)
            self._loop.call_soon_threadsafe(self._watch, face)
        super().enqueue_req(conn)

    def _watch(self, face: Face) -> None:
        reaper: AsyncioReaper = reaper_of(self._loop, self._settings)
        with contextlib.suppress(OSError):  # it is closed already
            polled.watch(
                reaper, face, lambda _: face.phase()
            )  # the guard holds the face: it is freed in this thread

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer, and let it be known whether the client has to send more for that."""
        face: Face = conn.face
        unreader = getattr(conn.parser, "unreader", None)
        if unreader is not None and "chunk" not in vars(unreader):
            unreader.chunk = _noted(face, unreader.chunk)
        face.answering = True
        try:
            return super().handle_request(req, conn)
        finally:
            face.answering = False

    def murder_keepalived(self, force: bool = False) -> None:
        """Ours are closed by their own limits; while the worker stops, gunicorn's bound holds."""
        if force or not self.alive:
            super().murder_keepalived(force)

    def murder_pending(self) -> None:
        """As for those that are kept alive."""
        if not self.alive:
            super().murder_pending()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: accept for `timeouts.drain_delay` still, each answer the last of its connection,
        then stop.
        """
        delay = self._settings.timeouts.drain_delay
        if not delay or not self.alive:
            super().handle_exit(sig, frame)
            return
        self.max_keepalived = 0
        ending = threading.Timer(delay, super().handle_exit, (sig, frame))
        ending.daemon = True
        ending.start()


def _noted(face: Face, chunk: Any) -> Any:
    def noted(*arguments: Any) -> Any:
        face.receiving = True
        try:
            return chunk(*arguments)
        finally:
            face.receiving = False

    return noted
