"""Sessions above sockets (MCP, Streamlit), which most clients never end. The core alone
forgets those that nobody uses; it needs no framework and no task.

    sessions = Sessions(idle=1800)  # in the handler; sessions.sweep() every few seconds
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import reaper


class Sessions(dict[str, Any]):
    """What is kept for each session, by its name."""

    def __init__(self, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle, self.clock = idle, clock
        self.core = reaper.IdleReaper(tick=1.0)
        self.leases: dict[str, reaper.Lease] = {}
        self.streams: Counter[str] = Counter()  # those that are open

    def begin(self, state: Any) -> str:
        self[name := uuid.uuid4().hex] = state
        self.leases[name] = self.core.register(name, self.idle, self.clock())
        return name

    def touch(self, name: str) -> bool:
        """A request names it. False: there is none; answer 404, so it begins anew."""
        return self.core.touch(name)

    @contextlib.contextmanager
    def in_use(self, name: str) -> Iterator[None]:
        """While a stream of it is open it is kept, however quiet it is."""
        lease = self.leases[name]
        self.streams[name] += 1
        lease.suspend()
        try:
            yield
        finally:
            self.streams[name] -= 1
            if not self.streams[name]:
                del self.streams[name]
                lease.resume(self.clock())

    def end(self, name: str) -> None:
        """The client ends it, or nobody has used it."""
        if name in self:
            del self[name]
            self.leases.pop(name).release()

    def sweep(self) -> None:
        for ended in self.core.advance(self.clock()):
            self.end(ended.uid)
