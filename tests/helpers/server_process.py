"""Our servers as processes, for tests that send them signals: each in a process group
of its own, on a free port.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scripts.serving import PATIENCE, ROOT, Server, example, tree
from scripts.tools import Missing, tool

__all__ = [
    "PATIENCE",
    "ROOT",
    "Process",
    "answer",
    "ask",
    "installed",
    "load",
    "server",
    "wait_until",
]


class Process(Server):
    """A server in a process group of its own, once it listens. What it said outlives
    it.
    """

    def __init__(self, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._last: str | None = None
        super().__init__(example(*arguments), Path(self._folder.name) / "log", session=True)
        try:
            self.wait_until_it_listens()
        except BaseException:
            self.stop()
            raise

    def said(self) -> str:
        return super().said() if self._last is None else self._last

    def says(self, wanted: str) -> str:
        """Wait for a line in which *wanted* is found."""
        until = time.monotonic() + PATIENCE
        while True:
            over = self.status is not None or time.monotonic() > until
            for line in self.said().splitlines():
                if re.search(wanted, line):
                    return line
            assert not over, f"never said {wanted!r}, but:\n{self.said()}"
            time.sleep(0.02)

    def group(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor and all workers, as a terminal and systemd
        do.
        """
        os.killpg(self.pid, number)

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return tree(self.pid)[1:]

    def stop(self) -> int:  # type: ignore[override]  # it also waits
        """Send SIGTERM unless it has ended. Returns its exit status once it has."""
        super().stop()
        return self.end()

    def end(self, patience: float = PATIENCE) -> int:
        try:
            return super().end(patience)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._last = self.said()
            self._folder.cleanup()


@contextmanager
def server(*arguments: str) -> Iterator[Process]:
    """A server with one worker unless told otherwise, ended at the end of the block."""
    process = Process(*arguments, *(["--workers", "1"] if "--workers" not in arguments else []))
    try:
        yield process
    finally:
        process.stop()


def ask(address: tuple[str, int], target: str = "/sleep?s=0") -> http.client.HTTPConnection:
    """Send a request on a connection of its own; `getresponse()` is the caller's."""
    client = http.client.HTTPConnection(*address, timeout=PATIENCE)
    client.request("GET", target)
    return client


def answer(client: http.client.HTTPConnection) -> int | str:
    """The status, after which the connection is closed; or what went wrong instead."""
    try:
        response = client.getresponse()
        response.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        client.close()
    return response.status


@contextmanager
def load(address: tuple[str, int], clients: int, *, keeps: bool) -> Iterator[list[object]]:
    """Have *clients* upload again and again meanwhile: a request that no proxy may send
    twice.

    Each keeps its connection if it *keeps* them, and otherwise makes one for each
    request. The list that is yielded grows: the status of each answer, or what went
    wrong instead.
    """
    done = threading.Event()
    answers: list[object] = []

    def upload() -> None:
        client = http.client.HTTPConnection(*address, timeout=PATIENCE)
        while not done.is_set():
            try:
                client.request("POST", "/upload", b"x" * 100)
                with client.getresponse() as response:
                    response.read()
                answers.append(response.status)
            except (OSError, http.client.HTTPException) as error:
                answers.append(repr(error))
                client.close()
            if not keeps:
                client.close()
            time.sleep(0.002)
        client.close()

    threads = [threading.Thread(target=upload) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        done.set()
        for thread in threads:
            thread.join()


def installed(name: str, package: str = "") -> str:
    """The path of the tool *name*. Without it the test is skipped, and names its Debian
    package.
    """
    try:
        return tool(name, package)
    except Missing as missing:
        pytest.skip(str(missing))


def wait_until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until *condition* holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen"
        time.sleep(0.02)
