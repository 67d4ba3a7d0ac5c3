"""What all workers say of themselves, where any of them can answer for all: for
Prometheus and `reaper top`.

One rule: *nothing is surveyed until it is asked for*. The worker that is asked asks the
others, each at a socket of its own, which a successor takes over. Metrics are counters
that exist anyway; only a status looks at every connection, which costs as much as many
requests.

Both tell an operator what the server is doing, so both are for this machine, and for
the address of `server.status`: see `http.routes.show`. `/ready` is for everybody.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import trio

from reaper.driver.sockets import listen_as, same_user
from reaper.driver.status import survey
from reaper.metrics import CONTENT_TYPE, Family, exposition, families, merged
from reaper.policy.pressure import Pressure
from reaper.status import JSON, Unavailable, document
from reaper.trio import TrioReaper, serve_pages
from reaper.trio.status import answer

PATIENCE = 1.5
"""Seconds that an answer waits for the other workers."""


class Doors:
    """The sockets at which workers are asked. They are made before the first worker is
    forked.

    Args:
        workers: How many.
        public: A listening socket for the operator's questions, besides the server's
            own port; None: there is none.
    """

    def __init__(self, workers: int, public: socket.socket | None = None) -> None:
        self.public = public
        name = f"reaper-example/{os.getpid()}/"
        self.inner = [listen_as(name) for _ in range(workers)] if workers > 1 else []

    def close(self) -> None:
        """Close this process's copies of all the sockets."""
        for each in filter(None, (*self.inner, self.public)):
            each.close()


class Shown(Protocol):
    """What a desk needs to know of the server of its worker: `EchoServer` and
    `HttpServer` have it.

    Attributes:
        kind: "echo" or "http".
        leaving: Whether newcomers should go elsewhere.
        watcher: The reaper, whose connections are surveyed.
    """

    kind: str
    leaving: bool
    watcher: TrioReaper

    def families(self) -> tuple[Family, ...]:
        """Metrics besides those of the reaper."""
        ...


class Desk:
    """Answers for all workers, in one of them.

    Args:
        server: The connections of this worker.
        doors: The sockets of all workers; None: this is the only worker.
        worker: The number of this worker.
        pressure: What its pressure is judged by; None: nothing is.
    Attributes:
        pages: What it shows, by path.
    """

    def __init__(
        self,
        server: Shown,
        doors: Doors | None = None,
        worker: int = 0,
        pressure: Pressure | None = None,
    ) -> None:
        self._server, self._worker, self._pressure = server, worker, pressure
        self._doors = Doors(1) if doors is None else doors
        self._open = trio.CancelScope()
        self.pages = {
            "/status": self.show_status,
            "/metrics": self.show_metrics,
            "/ready": self.show_ready,
        }

    def close(self) -> None:
        """Answer nobody any more, because a successor has this worker's place."""
        self._open.cancel()

    async def run(self) -> None:
        """Answer the other workers, and everyone at the public door if there is one.

        Runs until it is cancelled or closed.
        """
        with self._open:
            await self._answer()

    async def _answer(self) -> None:
        async with trio.open_nursery() as nursery:
            if self._doors.public is not None:
                nursery.start_soon(serve_pages, self._doors.public, self.pages)
            if self._doors.inner:
                inner = trio.socket.from_stdlib_socket(self._doors.inner[self._worker])
                await trio.serve_listeners(
                    self._tell, [trio.SocketListener(inner)], handler_nursery=nursery
                )

    async def _tell(self, asking: trio.SocketStream) -> None:
        if same_user(asking.socket):
            own = (("/status", self._own_status), ("/metrics", self._own_metrics))
            await answer(asking, {path: partial(_in_json, page) for path, page in own})

    async def _own_status(self) -> dict[str, Any]:
        return await survey(self._server.watcher, self._pressure, self._worker)

    async def _own_metrics(self) -> str:
        pressure = () if self._pressure is None else self._pressure.families()
        own = (
            *self._server.families(),
            *families(self._server.watcher.statistics()),
            *pressure,
        )
        return exposition([({}, own)])

    async def _all(self, path: str, own: Callable[[], Awaitable[Any]]) -> dict[int, Any]:
        """What each worker answers to *path* now, by its number; this one answers with
        *own*.

        Workers that do not answer within `PATIENCE` seconds are left out.
        """
        found = {self._worker: await own()}

        async def ask(worker: int, name: bytes) -> None:
            with suppress(OSError, ValueError), trio.socket.socket(socket.AF_UNIX) as asking:
                await asking.connect(name)
                await asking.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                answer = b""
                while piece := await asking.recv(65536):
                    answer += piece
                found[worker] = json.loads(answer.partition(b"\r\n\r\n")[2])

        with trio.move_on_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for worker, door in enumerate(self._doors.inner):
                    if worker != self._worker:
                        nursery.start_soon(ask, worker, door.getsockname())
        return dict(sorted(found.items()))

    async def show_ready(self) -> tuple[str, bytes]:
        """Tell a load balancer that newcomers may come.

        Raises:
            Unavailable: this worker has been told to end.
        """
        if self._server.leaving:
            raise Unavailable("leaving")
        return "text/plain; charset=utf-8", b"ready\n"

    async def show_metrics(self) -> tuple[str, bytes]:
        """The metrics of every worker.

        Each sample has a label with its worker, unless there is only one.
        """
        said = await self._all("/metrics", self._own_metrics)
        found = {str(number): text for number, text in said.items()}
        text: str = merged(found, "worker") if self._doors.inner else found["0"]
        return CONTENT_TYPE, text.encode()

    async def show_status(self) -> tuple[str, bytes]:
        """The status of all workers; those that do not answer are named."""
        found = await self._all("/status", self._own_status)
        missing = [number for number in range(len(self._doors.inner)) if number not in found]
        return JSON, document(self._server.kind, list(found.values()), missing)


async def _in_json(page: Callable[[], Awaitable[Any]]) -> tuple[str, bytes]:
    return JSON, json.dumps(await page()).encode()
