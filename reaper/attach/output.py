"""Standard output of a watch that must not wait for whatever reads it.

One rule: *a line is written whole, later, or counted as dropped*. A thread writes; the loop only
puts lines where the thread finds them, so a full pipe or a stopped terminal delays no close.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue

MOST_LINES = 8192
"""Lines that may wait: about 1 MiB."""
PATIENCE = 1.0
"""Seconds that the last lines have to go out when the watch is over."""


def in_words(count: int) -> str:
    """What says that *count* lines were dropped."""
    return f"{count} lines dropped: this output is not read fast enough"


class Output:
    """Writes lines to *descriptor*.

    Args:
        descriptor: Of a file, a pipe or a terminal; stays its owner's, and blocking.
        notice: The line that says how many were dropped.
        most: Lines that may wait.
    Attributes:
        dropped: Lines, so far.
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
        """Have *text* and an end of line written; drop it when too much waits.

        Raises:
            BrokenPipeError: an earlier one found the other end closed.
        """
        self.write(text + "\n")

    def write(self, text: str) -> int:
        """As `line`, without an end of line: all of it or nothing. The length of *text*, for what
        expects a file.
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
        """Nothing: what is written is on its way."""

    @property
    def waits(self) -> bool:
        """Whether something has not been taken yet."""
        return not self._waiting.empty()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def close(self, patience: float = PATIENCE) -> int:
        """Wait until all has been written, at most *patience* seconds.

        Returns:
            How many lines will never be seen and were not reported in the output itself.
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
