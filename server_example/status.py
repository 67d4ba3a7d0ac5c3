"""What all workers say of themselves, where any of them can answer for all: for Prometheus and `reaper top`.

One rule: *nothing is surveyed until it is asked for*. Metrics are text that each worker writes twice a second; a survey
of every connection is made only while one was asked for a moment ago.
"""

from __future__ import annotations

import json
import mmap
import socket
import time
from collections.abc import Callable
from typing import Any

import trio

from reaper.metrics import CONTENT_TYPE, merged
from reaper.policy.pressure import Pressure
from reaper.status import JSON, document
from reaper.trio import TrioReaper, serve_pages
from reaper.trio.status import survey_of

from .bulletins import Bulletins

EVERY = 0.5
"""Seconds between two texts of a worker."""

WANTED_FOR = 10.0
"""Seconds for which surveys are made after one was asked for."""

PATIENCE = 1.5
"""Seconds that an answer waits for the other workers."""


class Board:
    """One place per worker for its metrics and its survey, in memory they share. Made before the first is forked.

    Args:
        workers: How many.
        listening: Where `/status` and `/metrics` are served, besides the server's own port; None: nowhere.
    """

    def __init__(self, workers: int, listening: socket.socket | None = None) -> None:
        self.workers = workers
        self.listening = listening
        self.metrics = Bulletins(workers)
        self.surveys = Bulletins(workers)
        self.asked = memoryview(mmap.mmap(-1, 8)).cast("d")  # when a survey was last asked for, on the monotonic clock


class Desk:
    """What one worker writes on the board, and what it answers for all.

    Args:
        board: Shared by all workers.
        worker: Which of them this is.
        kind: Of the server: echo, http.
        reaper: Of this worker.
        metrics: Makes this worker's own text.
        pressure: What its pressure is judged by.
    """

    def __init__(
        self,
        board: Board,
        worker: int,
        kind: str,
        reaper: TrioReaper,
        metrics: Callable[[], str],
        pressure: Pressure | None = None,
    ) -> None:
        self._board, self._worker, self._kind = board, worker, kind
        self._reaper, self._metrics, self._pressure = reaper, metrics, pressure

    async def run(self) -> None:
        """Write, and answer on the board's own port if it has one, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._board.listening is not None:
                pages = {"/status": self.show_status, "/metrics": self.show_metrics}
                nursery.start_soon(serve_pages, self._board.listening, pages)
            if self._board.workers > 1:
                nursery.start_soon(self._write)
            await trio.sleep_forever()

    async def _write(self) -> None:
        board = self._board
        while True:
            board.metrics.put(self._worker, self._metrics().encode())
            if time.monotonic() - board.asked[0] < WANTED_FOR:
                board.surveys.put(self._worker, json.dumps(await self._survey()).encode())
            await trio.sleep(EVERY)

    async def _survey(self) -> dict[str, Any]:
        return await survey_of(self._reaper, self._pressure, self._worker)

    async def show_metrics(self) -> tuple[str, bytes]:
        """Metrics of every worker, each sample labelled with its worker; without a label if there is only one.

        What the others say is up to half a second old.
        """
        own = self._metrics()
        if self._board.workers == 1:
            return CONTENT_TYPE, own.encode()
        said = {str(n): text.decode() for n, text in enumerate(self._board.metrics.all())}
        return CONTENT_TYPE, merged({**said, str(self._worker): own}, "worker").encode()

    async def show_status(self) -> tuple[str, bytes]:
        """The status of all workers, none of it older than the question; those that do not answer are named."""
        board, asked = self._board, time.monotonic()
        board.asked[0] = asked
        found = {self._worker: await self._survey()}
        while len(found) < board.workers and time.monotonic() - asked < PATIENCE:
            await trio.sleep(0.05)
            for number, text in enumerate(board.surveys.all()):
                if number not in found and text and (said := json.loads(text))["at"] >= asked:
                    found[number] = said
        missing = [number for number in range(board.workers) if number not in found]
        return JSON, document(self._kind, [found[number] for number in sorted(found)], missing)
