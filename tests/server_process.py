"""Our servers as processes, for tests that send them signals: each in a process group of its own, on a free port."""

from __future__ import annotations

import http.client
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0
"""Seconds that a test waits for what must happen; only a broken server makes it wait that long."""


class Process:
    """A server in a process group of its own.

    Args:
        json_lines: Whether it was told to say everything in JSON.
    """

    def __init__(self, *arguments: str, json_lines: bool = False) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-m", "server_example", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self.running.pid
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        begins = '"message": "' if json_lines else "^"
        host, port = self.says(begins + r"listening on (\S+):(\d+) ").groups()
        self.address = (host, int(port))

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def says(self, wanted: str) -> re.Match[str]:
        """Wait for a line in which *wanted* is found."""
        until = time.monotonic() + PATIENCE
        while (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                line = self._lines.get(timeout=left)
                if line is None:
                    break
                self.said.append(line)
                if found := re.search(wanted, line):
                    return found
        raise AssertionError(f"never said {wanted!r}, but:\n{''.join(self.said)}")

    def rest(self) -> str:
        """All it said, once it has ended."""
        while (line := self._lines.get()) is not None:
            self.said.append(line)
        return "".join(self.said)

    def group(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor and all workers, as a terminal and systemd do."""
        os.killpg(self.pid, number)

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def stop(self) -> int:
        """SIGTERM unless it has ended, then its exit status; SIGKILL if it takes too long."""
        if self.running.poll() is None:
            self.running.terminate()
        return self.wait()

    def wait(self) -> int:
        try:
            return self.running.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.running.wait()
            self._reader.join()
            assert self.running.stdout is not None
            self.running.stdout.close()


@contextmanager
def server(*arguments: str) -> Iterator[Process]:
    """A server with one worker, ended at the end of the block; with `--port 0` unless told otherwise."""
    defaults = ["--workers", "1"] if "--workers" not in arguments else []
    defaults += ["--port", "0"] if "--port" not in arguments else []
    process = Process(*arguments, *defaults)
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


def wait_until(condition: object, what: str = "it") -> None:
    """Wait until *condition* holds."""
    until = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, f"{what} did not happen"
        time.sleep(0.02)
