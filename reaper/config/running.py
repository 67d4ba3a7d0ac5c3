"""Commands that run for a while: how far they are, how they are ended, and a directory that they
have to themselves.

One rule: *the second Ctrl-C ends it at once*. The first, as SIGTERM, lets it finish the step that
it is at.
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
    """What prints one line of text with the seconds since now before it; nothing if *quiet*."""
    began = time.monotonic()

    def progress(text: str) -> None:
        if not quiet:
            print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    return progress


class _Asked(Event):
    """An event that a signal's handler may set in the thread that waits for it: a lock of Python's
    would not open.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = False
        self._waker: SimpleQueue[None] = SimpleQueue()  # whose `put` may interrupt a `get`

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
    """An event that SIGTERM and Ctrl-C set. From the main thread only.

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
    """Hold the file *lock*, made if missing, which says which process has it.

    Args:
        busy: Makes what is raised where another process holds it, of that process's id (`?`: not
            known).
    Raises:
        OSError: the file cannot be opened or written.
    """
    import fcntl  # not on Windows

    with lock.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(
                file, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # the kernel drops it with the process, however it ends
        except BlockingIOError:
            file.seek(0)
            raise busy(file.read().strip() or "?") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
