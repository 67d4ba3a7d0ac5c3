"""What all workers say of themselves, where any of them can answer for all: for Prometheus and `reaper top`.

One rule: *nothing is surveyed until it is asked for*. Metrics are text that each worker writes twice a second; a survey
of every connection is made only while one was asked for a moment ago.
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import trio

from reaper.metrics import CONTENT_TYPE, Family, exposition, families, merged
from reaper.policy.pressure import Pressure
from reaper.status import JSON, Unavailable, document
from reaper.trio import TrioReaper, serve_pages
from reaper.trio.status import survey_of

EVERY = 0.5
"""Seconds between two texts of a worker."""

WANTED_FOR = 10.0
"""Seconds for which surveys are made after one was asked for."""

PATIENCE = 1.5
"""Seconds that an answer waits for the other workers."""


SIZE = 65536
"""Bytes of one place. A text that does not fit is not written."""

TRIES = 3

_HEADER = struct.Struct("<QI")


class Bulletins:
    """One text per worker, in memory they share. Made before the first of them is forked.

    A reader never waits and never sees half a text. Each place has one writer, which makes the version odd, writes, and
    makes it even; a reader that saw it change, or odd, reads again. A writer that was killed in the middle leaves
    nothing to read until its successor has written.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, SIZE * workers)

    def put(self, worker: int, text: bytes) -> bool:
        """Write what *worker* says. False: it is too long. Only *worker* itself may call this."""
        if len(text) > SIZE - _HEADER.size:
            return False
        start = worker * SIZE
        version, _ = _HEADER.unpack_from(self._memory, start)
        version += 1 + version % 2  # odd, also after a predecessor that was killed in the middle
        _HEADER.pack_into(self._memory, start, version, 0)
        self._memory[start + _HEADER.size : start + _HEADER.size + len(text)] = text
        _HEADER.pack_into(self._memory, start, version + 1, len(text))
        return True

    def get(self, worker: int) -> bytes:
        """What *worker* said last; empty if it has said nothing, or is in the middle of it."""
        start = worker * SIZE
        for _ in range(TRIES):
            before = _HEADER.unpack_from(self._memory, start)
            text = self._memory[start + _HEADER.size : start + _HEADER.size + before[1]]
            if before[0] % 2 == 0 and _HEADER.unpack_from(self._memory, start) == before:
                return text
        return b""

    def all(self) -> list[bytes]:
        """What each worker said last, by index."""
        return [self.get(worker) for worker in range(self.workers)]


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
        own: The metrics that this kind of server has of its own.
        pressure: What its pressure is judged by.
        leaving: Whether this worker has been told to end.
    """

    def __init__(
        self,
        board: Board,
        worker: int,
        kind: str,
        reaper: TrioReaper,
        own: Callable[[], Iterable[Family]] = tuple,
        pressure: Pressure | None = None,
        leaving: Callable[[], bool] = bool,
    ) -> None:
        self._leaving = leaving
        self._board, self._worker, self._kind = board, worker, kind
        self._reaper, self._own, self._pressure = reaper, own, pressure

    async def run(self) -> None:
        """Write, and answer on the board's own port if it has one, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._board.listening is not None:
                pages = {"/status": self.show_status, "/metrics": self.show_metrics, "/ready": self.show_ready}
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

    def _metrics(self) -> str:
        more = () if self._pressure is None else self._pressure.families()
        return exposition([({}, (*self._own(), *families(self._reaper.statistics()), *more))])

    async def show_ready(self) -> tuple[str, bytes]:
        """For a load balancer: whether newcomers should come. Raises Unavailable: this worker has been told to end."""
        if self._leaving():
            raise Unavailable("leaving")
        return "text/plain; charset=utf-8", b"ready\n"

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
