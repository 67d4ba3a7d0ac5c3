"""`reaper run` as a process, and clients of what it guards, for the tests of several
modules.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scripts.programs.trial import APPS
from scripts.serving import ROOT, Server, free_port, serving
from tests.helpers.lagging import Lagged, in_time
from tests.helpers.server_process import wait_until

REAPER = [sys.executable, "-m", "reaper"]
PATIENCE = 30.0
"""Seconds in which what must happen has happened, on a busy machine."""

SLOW = "1.5"
"""Seconds that the slow answer takes: longer than every limit of `LIMITS`."""
LIMITS = [
    *("--first-byte", "400ms"),
    *("--headers", "400ms"),
    *("--body", "400ms"),
    *("--keep-alive", "500ms"),
    *("--tick", "100ms"),
]
OWN_LAG = 0.3
"""Seconds from connect(2) to the request after which a client that is not answered
proves nothing.
"""
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`reaper run` with *arguments*, until it ends; *options* are those of
    `subprocess.run`. It has a process group of its own: one process speaks for a group.
    """
    options = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "process_group": 0, **options}
    return subprocess.run(
        [*REAPER, "run", *arguments], capture_output=True, text=True, timeout=PATIENCE, **options
    )


@contextmanager
def guarded(
    command: Sequence[str],
    tmp_path: Path,
    *flags: str,
    said: Sequence[str] = ("is guarded from",),
    limits: Sequence[str] = LIMITS,
    before: Sequence[Path] = (),
) -> Iterator[tuple[Server, Path]]:
    """*command* under `reaper run`, and the file of what it says, once it has said all
    of *said*. It imports what is in the folders *before* rather than what is installed.

    `{port}` in a word of *command* stands for the port that it gets.
    """
    port = free_port()
    words = [word.format(port=port) for word in command]
    environment = os.environ | {
        "SLOW": SLOW,
        "PYTHONPATH": os.pathsep.join(map(str, [*before, APPS])),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    log = tmp_path / "log"
    with serving(
        [*REAPER, "run", *limits, *flags, "--", *words],
        log,
        port=port,
        environment=environment,
        session="--inside" in flags,  # no watcher hears it: one process speaks for a group
    ) as started:
        wait_until(
            lambda: all(each in log.read_text() for each in said), "the word of what is guarded"
        )
        yield started, log


def ends(port: int, sent: bytes = b"", answered: bytes = b"\0") -> bytes:
    """What a connection that sent *sent*, and was not too late with it, received before
    it ended.
    """

    def once() -> bytes:
        began, found, late = time.monotonic(), b"", True
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE) as sock,
            suppress(ConnectionResetError),
        ):
            sock.sendall(sent)
            late = time.monotonic() - began > OWN_LAG
            while answered not in found and (data := sock.recv(65536)):
                found += data
        if sent and late and b" 200" not in found:
            raise Lagged
        return found

    return in_time(once)
