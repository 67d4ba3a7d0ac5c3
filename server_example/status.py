"""What all workers say of themselves, where any of them can answer for all: for Prometheus and
`reaper top`.

One rule: *nothing is surveyed until it is asked for*. The worker that is asked asks the others,
each at a socket of its own, which a successor takes over.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
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
    """Where the workers are asked. Made before the first of them is forked.

    Args:
        workers: How many.
        public: A listening socket for `/status` and `/metrics`, besides the server's own port;
            None: there is none.
    """

    def __init__(self, workers: int, public: socket.socket | None = None) -> None:
        self.public = public
        name = f"reaper-example/{os.getpid()}/"
        self.inner = [listen_as(name) for _ in range(workers)] if workers > 1 else []

    def close(self) -> None:
        """Close this process's copies of all of them."""
        for each in filter(None, (*self.inner, self.public)):
            each.close()


class Shown(Protocol):
    """What a desk needs to know of the server of its worker: `EchoServer` and `HttpServer` have it.

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
    """Where one worker answers for all.

    Args:
        server: Of this worker.
        doors: Of all workers; None: this is the only one.
        worker: Which of them this is.
        pressure: What its pressure is judged by.
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
            await answer(asking, {"/": self._show_own})

    async def _show_own(self) -> tuple[str, bytes]:
        return JSON, json.dumps(await self._own()).encode()

    async def _own(self) -> dict[str, Any]:
        watcher, pressure = self._server.watcher, self._pressure
        more = () if pressure is None else pressure.families()
        metrics = exposition(
            [({}, (*self._server.families(), *families(watcher.statistics()), *more))]
        )
        return {"status": await survey(watcher, pressure, self._worker), "metrics": metrics}

    async def _all(self) -> dict[int, dict[str, Any]]:
        """What each worker says of itself now; those that do not answer in time are not in it."""
        found = {self._worker: await self._own()}

        async def ask(worker: int, name: bytes) -> None:
            with suppress(OSError, ValueError), trio.socket.socket(socket.AF_UNIX) as asking:
                await asking.connect(name)
                await asking.send(b"GET / HTTP/1.1\r\n\r\n")
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
        """For a load balancer: whether newcomers should come. Raises Unavailable: this worker has
        been told to end.
        """
        if self._server.leaving:
            raise Unavailable("leaving")
        return "text/plain; charset=utf-8", b"ready\n"

    async def show_metrics(self) -> tuple[str, bytes]:
        """Metrics of every worker, each sample labelled with its worker; without a label if there
        is only one.
        """
        found = {str(number): said["metrics"] for number, said in (await self._all()).items()}
        text: str = merged(found, "worker") if self._doors.inner else found["0"]
        return CONTENT_TYPE, text.encode()

    async def show_status(self) -> tuple[str, bytes]:
        """The status of all workers; those that do not answer are named."""
        found = await self._all()
        missing = [number for number in range(len(self._doors.inner)) if number not in found]
        return JSON, document(
            self._server.kind, [said["status"] for said in found.values()], missing
        )
