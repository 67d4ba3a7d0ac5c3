"""What the interoperation runs share: a server to run against, tools that may be missing, a folder for what they say.

One rule: *nothing outlives a run*. Threads and servers belong to `with` blocks.
"""

from __future__ import annotations

import http.client
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from ..serving import ROOT, example, serving

OUT = ROOT / "out" / "interop"
SERVER = example("http", "--workers", "1")
PATIENCE = 20.0  # seconds for an answer


class Missing(Exception):
    """A tool or a package that a run needs is not installed."""


def tool(name: str, package: str) -> str:
    """Where the command *name* is. Raises Missing, with the Debian package it comes in."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")
    if found is None:
        raise Missing(f"{name} is not installed (Debian package {package})")
    return found


@contextmanager
def server(*flags: str, log: str = "server.log") -> Iterator[tuple[str, int]]:
    """Our HTTP server in a process of its own, with one worker. Yields its address."""
    with serving(example("http", "--workers", "1", *flags), OUT / log) as started:
        yield started.address


def get(address: tuple[str, int], target: str, timeout: float = PATIENCE) -> tuple[int, bytes]:
    """One GET on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def metrics(address: tuple[str, int]) -> dict[str, float]:
    """The server's counters, by name with labels."""
    lines = get(address, "/metrics")[1].decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


class Established:
    """How many connections the kernel holds to the server's port, looked up several times per second."""

    def __init__(self, port: int, interval: float = 0.2) -> None:
        self._needle = f":{port:04X} "
        self._interval = interval
        self.samples: list[tuple[float, int]] = []

    def __enter__(self) -> Established:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        start = time.monotonic()
        done = False
        while not done:
            done = self._done.wait(self._interval)  # a look at the end too: one takes long where there are many sockets
            lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
            rows = (line.split() for line in lines if self._needle in line)
            count = sum(row[1].endswith(self._needle.strip()) and row[3] == "01" for row in rows)
            self.samples.append((time.monotonic() - start, count))

    def held(self, few: int) -> tuple[int, float | None]:
        """The most at once, and the seconds from the last increase until at most *few* were left; None: never.

        The last increase is that by more than *few*; where they came one by one, that to all but *few* of them.
        """
        peak = max((count for _, count in self.samples), default=0)
        pairs = pairwise(self.samples)
        risen = max((at for (_, before), (at, count) in pairs if count > before + few), default=0.0)
        risen = max(risen, next((at for at, count in self.samples if count >= peak - few), 0.0))
        gone = min((at for at, count in self.samples if at > risen and count <= few), default=None)
        return peak, None if gone is None else round(gone - risen, 2)

    def delay(self) -> float:
        """The most seconds by which a look was later than its interval: so much longer may have been seen as held."""
        ends = [0.0, *(at for at, _ in self.samples)]
        return max(after - before for before, after in pairwise(ends)) - self._interval
