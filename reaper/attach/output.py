"""The standard output of a watch, which must not wait for its reader.

One rule: *a line is written whole, later, or counted as dropped*. A thread writes; the
loop only puts lines where the thread finds them, so a full pipe or a stopped terminal
delays no close.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue

MOST_LINES = 8192
"""The most lines that may wait: about 1 MiB."""
PATIENCE = 1.0
"""Seconds that the last lines have to go out when the watch is over."""


def in_words(count: int) -> str:
    """The line for people that stands in the place of *count* dropped lines."""
    return f"{count} lines dropped: this output is not read fast enough"


class Output:
    """Writes lines to *descriptor*.

    Args:
        descriptor: A file, a pipe or a terminal. It is not closed here, and stays
            blocking.
        notice: Makes the line that says how many lines were dropped.
        most: How many lines may wait; further ones are dropped.
    Attributes:
        dropped: How many lines were dropped so far.
    """

    def __init__(
        self, descriptor: int, notice: Callable[[int], str] = in_words, most: int = MOST_LINES
    ) -> None:
        self._descriptor = descriptor
        self._notice = notice
        self._waiting: Queue[str | None] = Queue(most)
        self._given = self._written = 0
        self.dropped: int = 0
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="reaper.attach.output", daemon=True)
        self._thread.start()

    def line(self, text: str) -> None:
        """Have *text* and an end of line written; drop them when too much waits.

        Raises:
            BrokenPipeError: the other end was found closed by an earlier line.
        """
        self.write(text + "\n")

    def write(self, text: str) -> int:
        """Have *text* written as it is, whole or not at all, and return its length, as
        a file does.

        Raises:
            BrokenPipeError: as `line`.
        """
        if self._broken:
            raise BrokenPipeError("standard output is closed")
        self._given += 1
        try:
            self._waiting.put_nowait(text)
        except Full:
            self.dropped += 1
        return len(text)

    def flush(self) -> None:
        """Does nothing: the thread writes each line at once."""

    @property
    def waits(self) -> bool:
        """Whether a line still waits to be written."""
        return not self._waiting.empty()

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor that lines are written to."""
        return self._descriptor

    def close(self, patience: float = PATIENCE) -> int:
        """Wait until every line has been written, at most *patience* seconds.

        Returns:
            How many lines will never be seen and were not reported in the output
            itself; 0 if their reader has gone.
        """
        with suppress(Full):
            self._waiting.put(None, timeout=patience)
            self._thread.join(patience)
        return 0 if self._broken else self._given - self._written

    def _run(self) -> None:
        noticed = 0
        while (text := self._waiting.get()) is not None:
            missing = self.dropped - noticed
            noticed += missing
            data = (self._notice(missing) + "\n" + text if missing else text).encode(
                errors="replace"
            )
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # `attach | head`, or a terminal that is gone
                self._broken = True
                return
            self._written += 1 + missing
