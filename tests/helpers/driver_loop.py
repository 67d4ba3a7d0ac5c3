"""A loop for the driver that is a variable: every wake and every stall is the test's to
choose.
"""

from __future__ import annotations

from typing import Any

from reaper.driver.driver import Driver
from reaper.driver.watched import Watched


class Connection(Watched):
    """A connection whose handler is a list of reasons."""

    __slots__ = ("cuts", "fd")

    def __init__(self, driver: Driver, uid: int, fd: int = -1) -> None:
        super().__init__(driver, uid)
        self.cuts: list[str] = []
        self.fd = fd

    @property
    def descriptor(self) -> int:
        return self.fd

    def _cut(self, reason: str) -> None:
        self.cuts.append(reason)


async def ping(connection: object) -> None:
    """What a probe looks like; the loop here only takes note of it."""


class Loop:
    """An event loop that wakes exactly when it should, but for the stalls it is told
    of.
    """

    def __init__(self, **options: Any) -> None:
        self.time = 0.0
        self.probed: list[Connection] = []
        self.driver = Driver(
            lambda: self.time, lambda: None, self.probed.append, **{"tick": 1.0, **options}
        )

    def watch(
        self, idle: float, fd: int = -1, kind: type[Connection] = Connection, **options: Any
    ) -> Connection:
        return self.driver.watch(lambda uid: kind(self.driver, uid, fd), None, idle, **options)

    def wake(self) -> None:
        if self.driver.look():
            self.driver.act()

    def run_until(self, end: float) -> list[float]:
        """The instants at which it has woken."""
        wakes = []
        while (rest := self.driver.rest()) <= end:
            self.time = max(self.time, rest)
            wakes.append(self.time)
            self.wake()
        self.time = end
        return wakes
