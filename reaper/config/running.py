"""What commands share that run for a while: they say how far they are, they are ended
by a signal, and they keep a directory to themselves.

One rule: *the second Ctrl-C ends a command at once*. The first one, like SIGTERM, lets
it finish its present step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any


def progress_on_stderr(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line of text on stderr, with the seconds since
    now before it; it prints nothing if *quiet*.
    """
    began = time.monotonic()

    def progress(text: str) -> None:
        if not quiet:
            print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    return progress


class _Asked(Event):
    """An event that a signal's handler may set in the thread that waits for it.
    `threading.Event` would deadlock there: its lock is held by the thread that the
    handler interrupts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = False
        self._waker: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt its `get`

    def set(self) -> None:
        self._asked = True
        self._waker.put(None)

    def is_set(self) -> bool:
        return self._asked

    def wait(self, timeout: float | None = None) -> bool:
        with suppress(Empty):
            if not self._asked:
                self._waker.get(timeout=timeout)
        return self._asked


@contextmanager
def stoppable(note: Callable[[], object] = lambda: None) -> Iterator[Event]:
    """Yield an event that SIGTERM and Ctrl-C set. To be used in the main thread only.

    Args:
        note: Called when it is set, within the signal's handler.
    """
    stop = _Asked()

    def asked(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()
        note()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def alone(lock: Path, busy: Callable[[str], Exception]) -> Iterator[None]:
    """Hold the file *lock*, which is made if it is missing, and which holds the id of
    this process.

    Args:
        busy: Makes the exception that is raised if another process holds the file. It
            is called with the id of that process, or `?` if that is not known.
    Raises:
        OSError: the file cannot be opened or written.
    """
    import fcntl  # not on Windows

    with lock.open("a+", encoding="ascii") as file:
        try:
            # The kernel drops the lock with the process, however that ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise busy(file.read().strip() or "?") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
