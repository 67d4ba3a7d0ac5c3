"""Standard output of a watch that must not wait for whatever reads it.

One rule: *a line is written whole, later, or counted as dropped*. A thread writes; the loop only puts lines where the
thread finds them, so a full pipe or a stopped terminal delays no close.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

MOST_BYTES = 1 << 20
"""Of lines that wait: some 6,000 events."""
PATIENCE = 1.0
"""Seconds that the last lines have to go out when the watch is over."""


def in_words(count: int) -> str:
    """What stands in the place of *count* lines that were dropped."""
    return f"{count} lines dropped: this output is not read fast enough"


class Output:
    """Writes lines to *descriptor*.

    Args:
        descriptor: Of a file, a pipe or a terminal; stays its owner's, and blocking.
        said: The line that stands in the place of so many dropped ones.
        most: Bytes that may wait.
    Attributes:
        dropped: Lines, so far.
    """

    def __init__(self, descriptor: int, said: Callable[[int], str] = in_words, most: int = MOST_BYTES) -> None:
        self._descriptor = descriptor
        self._said = said
        self._most = most
        self._waiting: deque[tuple[bytes, int]] = deque()  # a line, or what stands for so many that were dropped
        self._bytes = 0
        self._unsaid = 0
        self.dropped: int = 0
        self._broken = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def line(self, text: str) -> None:
        """Have *text* and an end of line written; drop it when too much waits.

        Raises:
            BrokenPipeError: an earlier one found the other end closed.
        """
        self.write(text + "\n")

    def write(self, text: str) -> int:
        """As `line`, without an end of line: all of it or nothing. The length of *text*, for what expects a file."""
        data = text.encode(errors="replace")
        with self._changed:
            if self._broken:
                raise BrokenPipeError("standard output is closed")
            if self._bytes + len(data) > self._most:
                self.dropped += 1
                self._unsaid += 1
                return len(text)
            if self._unsaid:
                self._say()
            self._put(data, 1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reaper.attach.output", daemon=True)
                self._thread.start()
            self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Nothing: what is written is on its way."""

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
        with self._changed:
            if self._unsaid and not self._broken:
                self._say()
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(patience)
        with self._changed:
            return 0 if self._broken else sum(lines for _, lines in self._waiting)

    def _say(self) -> None:
        self._put((self._said(self._unsaid) + "\n").encode(), self._unsaid)
        self._unsaid = 0

    def _put(self, data: bytes, lines: int) -> None:
        self._waiting.append((data, lines))
        self._bytes += len(data)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                data = self._waiting[0][0]
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # `attach | head`, or a terminal that is gone
                with self._changed:
                    self._broken = True
                    self._waiting.clear()
                return
            with self._changed:
                self._bytes -= len(self._waiting.popleft()[0])
