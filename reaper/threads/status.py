"""The status of what threads keep, for `python -m reaper top --connect` and for
Prometheus: `/status` and `/metrics`.

The rule of this module: *nothing is counted until it is asked for*. It listens on
loopback unless it is told otherwise.
"""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from .. import status
from ..driver.status import pages_of
from .keeper import ThreadKeeper

Result = TypeVar("Result")


def serve_status(
    keeper: ThreadKeeper[Any, Any], port: int, *, host: str = "127.0.0.1", name: str | None = None
) -> socketserver.ThreadingTCPServer:
    """Serve `/status` (JSON, for `python -m reaper top`) and `/metrics` (Prometheus),
    in
    threads of its own, until the result is shut down: `shutdown()`, `server_close()`.

    Args:
        keeper: Whose things.
        port, host: Where to listen.
        name: What the program is called there; None: the keeper's name.
    Raises:
        OSError: the port cannot be had.
    """
    reaper = keeper.reaper
    pages = pages_of(reaper, keeper.statistics().name if name is None else name)

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.settimeout(status.PATIENCE)
                received = b""
                while not status.complete(received) and (data := self.request.recv(4096)):
                    received += data
                if received:
                    answer = _run(status.answer(received, pages), reaper.lock)
                    self.request.sendall(answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server((host, port), Answer)
    threading.Thread(target=server.serve_forever, name="reaper-status", daemon=True).start()
    return server


def _run(steps: Coroutine[Any, Any, Result], lock: threading.Lock) -> Result:
    """The result of *steps*, each of which holds *lock*."""
    while True:
        with lock:
            try:
                steps.send(None)
            except StopIteration as done:
                result: Result = done.value
                return result
        time.sleep(0)
