"""ThreadReaper: the driver of a keeper that threads share, in a thread of its own.

The rule of this module: *who calls the driver holds the lock*. Between the two steps of
a wake the lock is free, so that a thread that has something to say comes in.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from ..driver.ends import log
from ..driver.reaper import Reaper

PASS = 0.001
"""Seconds that other threads have between the two steps of a wake, twice: those that
wait for the lock, or come back from a stop of the whole process, speak first.
"""


@types.coroutine
def _breathe(seconds: float) -> Generator[None, None, None]:
    """Give way: who runs the steps of a coroutine lets go of the lock."""
    yield


class ThreadReaper(Reaper):
    """Watches what threads keep. Call nothing of it without its `lock`, but `start` and
    `stop`.

    Args:
        options: As in `reaper.driver.reaper.Reaper`.
    Attributes:
        lock: Held by whoever calls the driver.
    """

    _hints: ClassVar[Mapping[str, str]] = {
        "not started": "start() it first",
        "stopped": "it was stopped",
    }

    def __init__(self, config: Any, **options: Any) -> None:
        self.lock: threading.Lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        super().__init__(time.monotonic, _breathe, config, **options)

    def start(self) -> None:
        """Reap from now on."""
        self._begin()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Reap no longer, and wait for the thread to end."""
        with self.lock:
            self._end("stopped")
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        self._changed.notify_all()

    def _run(self) -> None:
        driver = self.driver
        with self.lock:
            while self.running:
                seconds = driver.rest() - time.monotonic()
                if seconds > 0:
                    self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
                    continue  # something due earlier was armed, or the time has come
                try:
                    if driver.look():
                        self._let_others_speak()
                        driver.act()
                except Exception:
                    log.exception("the thread of a reaper goes on after an error")
                # Or, where more is due than a slice, nobody else would get the lock.
                self.lock.release()
                time.sleep(0)
                self.lock.acquire()

    def _let_others_speak(self) -> None:
        for _ in range(2):
            self.lock.release()
            try:
                time.sleep(PASS)
            finally:
                self.lock.acquire()
