"""What all workers say of themselves, where any of them can answer for all: for Prometheus and `reaper top`.

One rule: *nothing is surveyed until it is asked for*. The worker that is asked notes when, in memory they share; the
others see that a moment later and write there what they have to say.
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

LOOK = 0.25
"""Seconds between two looks of a worker whether one of the others was asked."""

PATIENCE = 1.5
"""Seconds that an answer waits for the other workers."""

SIZE = 131072
"""Bytes of one place. A text that does not fit is not written."""

_HEADER = struct.Struct("<QI")


class Board:
    """One text per worker, in memory they share. Made before the first of them is forked.

    A reader never waits and never sees half a text. Each place has one writer, which makes the version odd, writes, and
    makes it even; a reader that saw it change, or odd, finds nothing yet. A writer that was killed in the middle leaves
    nothing to read until its successor has written.

    Args:
        workers: How many.
        listening: Where `/status` and `/metrics` are served, besides the server's own port; None: nowhere.
    """

    def __init__(self, workers: int, listening: socket.socket | None = None) -> None:
        self.workers = workers
        self.listening = listening
        self.asked = memoryview(mmap.mmap(-1, 8)).cast("d")  # when one was last asked, on the monotonic clock
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
        before = _HEADER.unpack_from(self._memory, start)
        text = self._memory[start + _HEADER.size : start + _HEADER.size + before[1]]
        return text if before[0] % 2 == 0 and _HEADER.unpack_from(self._memory, start) == before else b""


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
        """Write when it is asked for, and answer on the board's own port if it has one, until cancelled."""
        board, answered = self._board, 0.0
        async with trio.open_nursery() as nursery:
            if board.listening is not None:
                pages = {"/status": self.show_status, "/metrics": self.show_metrics, "/ready": self.show_ready}
                nursery.start_soon(serve_pages, board.listening, pages)
            while board.workers > 1:
                if board.asked[0] > answered:
                    answered = time.monotonic()
                    board.put(self._worker, json.dumps(await self._say()).encode())
                await trio.sleep(LOOK)

    async def _say(self) -> dict[str, Any]:
        more = () if self._pressure is None else self._pressure.families()
        metrics = exposition([({}, (*self._own(), *families(self._reaper.statistics()), *more))])
        return {"status": await survey_of(self._reaper, self._pressure, self._worker), "metrics": metrics}

    async def _ask_all(self) -> dict[int, dict[str, Any]]:
        """What each worker says, none of it older than now; those that do not answer in time are not in it."""
        board, asked = self._board, time.monotonic()
        board.asked[0] = asked
        found = {self._worker: await self._say()}
        while len(found) < board.workers and time.monotonic() - asked < PATIENCE:
            await trio.sleep(0.05)
            for number in range(board.workers):
                text = b"" if number in found else board.get(number)
                if text and (said := json.loads(text))["status"]["at"] >= asked:
                    found[number] = said
        return dict(sorted(found.items()))

    async def show_ready(self) -> tuple[str, bytes]:
        """For a load balancer: whether newcomers should come. Raises Unavailable: this worker has been told to end."""
        if self._leaving():
            raise Unavailable("leaving")
        return "text/plain; charset=utf-8", b"ready\n"

    async def show_metrics(self) -> tuple[str, bytes]:
        """Metrics of every worker, each sample labelled with its worker; without a label if there is only one."""
        found = {str(number): said["metrics"] for number, said in (await self._ask_all()).items()}
        text: str = found["0"] if self._board.workers == 1 else merged(found, "worker")
        return CONTENT_TYPE, text.encode()

    async def show_status(self) -> tuple[str, bytes]:
        """The status of all workers; those that do not answer are named."""
        found = await self._ask_all()
        missing = [number for number in range(self._board.workers) if number not in found]
        return JSON, document(self._kind, [said["status"] for said in found.values()], missing)
