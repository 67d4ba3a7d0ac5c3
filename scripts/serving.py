"""Starts a server and waits until it listens: demos, trials, benchmarks and tests do it
here.

One rule: no server outlives its block. It is ended by its own process id - SIGTERM
first, SIGKILL for the whole tree if that does not help - and what it says goes to a
file, so that no full pipe can stop it.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
"""Seconds for a server to listen, or to end; a busy machine starts ten of them in
thirty.
"""
LOOK = 0.02
KEPT = 64
"""Ports that `free_port` keeps from others at once: a descriptor each."""
LISTENING = re.compile(r"(?:^|\"message\": \")listening on \[?([^\s\]]+)\]?:(\d+)", re.MULTILINE)
"""What our servers say when they do."""


class DidNotStart(RuntimeError):
    """The server ended, or did not listen in time; the message has the last that it
    said.
    """


def hear_interrupts() -> None:
    """Have whoever is started from now on end at SIGINT, unless it says otherwise
    itself.

    A shell starts what runs in its background with SIGINT ignored, and that is
    inherited: a server that installs no handler would then be judged as one that does
    not end. Only the main thread may call this.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def example(kind: str, *flags: str) -> list[str]:
    """The command of the example server: *kind* is `echo` or `http`, its port is the
    kernel's choice.
    """
    return [sys.executable, "-m", "server_example", kind, "--port", "0", *flags]


def stock(application: str, aiohttp: str) -> dict[str, list[str]]:
    """The commands of seven servers of other people; the port of each, or its address
    after `-b`, is the last word that is missing.

    Args:
        application: The ASGI application.
        aiohttp: The module that serves the same with aiohttp.
    """
    python = [sys.executable, "-m"]
    gunicorn = [*python, "gunicorn", application, "--no-control-socket", "-k"]
    return {
        "uvicorn": [*python, "uvicorn", application, "--http", "httptools", "--port"],
        "uvicorn, h11": [*python, "uvicorn", application, "--http", "h11", "--port"],
        "hypercorn": [*python, "hypercorn", application, "-b"],
        "hypercorn, trio": [*python, "hypercorn", application, "-k", "trio", "-b"],
        "gunicorn, asgi": [*gunicorn, "asgi", "-b"],
        "gunicorn, uvicorn": [*gunicorn, "uvicorn.workers.UvicornWorker", "-b"],
        "aiohttp": [*python, aiohttp],
    }


def load(target: str, flags: str, *more: str) -> list[str]:
    """The command of the load generator against *target*; *flags* are words with blanks
    between them.
    """
    return [sys.executable, "-m", "loadgen", "run", "--target", target, *flags.split(), *more]


_kept: deque[socket.socket] = deque()


@atexit.register
def _let_go() -> None:
    for port in _kept:
        port.close()


def free_port() -> int:
    """A port for a server that cannot choose one by itself; the kernel gives it to
    nobody else until we have asked for `KEPT` more.

    It stays bound here, and never listens: with SO_REUSEADDR, which servers set,
    another can still take it by number.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    if len(_kept) > KEPT:
        _kept.popleft().close()
    port: int = kept.getsockname()[1]
    return port


def tree(pid: int) -> list[int]:
    """*pid* and all processes that come from it; those that have ended are left out."""
    found = [pid]
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += tree(int(child))
    return found


class Server:
    """A server's process. `host` and `port` are where it listens; *log* holds what it
    says.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        port: int | None = None,
        says: re.Pattern[str] = LISTENING,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        session: bool = False,
    ) -> None:
        """Start *command* and return at once.

        Args:
            log: Where its output goes, both streams.
            port: Where it was told to listen; None: it says so itself, as ours do:
            says: so, with host and port as groups if it has any.
            session: Whether it gets a session of its own, which Ctrl-C does not reach.
        """
        self.command = command
        self.log = log
        self.host, self.port = "127.0.0.1", port or 0
        self._says = None if port else says
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=session,
            )

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        """As a socket takes it."""
        return self.host, self.port

    @property
    def target(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.process.poll()

    def said(self) -> str:
        """All that it has said so far."""
        return self.log.read_text(errors="replace")

    def sockets(self) -> Iterator[Any]:
        """The TCP sockets that its processes hold now, as psutil has them."""
        for pid in tree(self.pid):
            with suppress(psutil.Error):  # it has ended
                yield from psutil.Process(pid).net_connections("tcp")

    def connections(self) -> int:
        """How many connections its processes hold."""
        return sum(bool(each.raddr) for each in self.sockets())

    def wait_until_it_listens(self, patience: float = PATIENCE) -> None:
        """Return when it accepts connections. Raises DidNotStart."""
        until = time.monotonic() + patience
        while not self._listens():
            if self.status is not None:
                raise DidNotStart(
                    f"{self._name} ended with status {self.status}: {self.said()[-500:]}"
                )
            if time.monotonic() > until:
                raise DidNotStart(
                    f"{self._name} did not listen within {patience:g} s: {self.said()[-500:]}"
                )
            time.sleep(LOOK)

    def stop(self) -> None:
        """SIGTERM, if it still runs. A second one could cut short what the first began:
        give one only.
        """
        if self.process.poll() is None:
            self.process.terminate()

    def end(self, patience: float = PATIENCE) -> int:
        """Wait for its end; SIGKILL for all of its processes when it takes longer than
        *patience*, or when the wait is interrupted, whose exception is then raised. Its
        exit status.
        """
        try:
            status = self.process.wait(patience)
        except BaseException as error:
            for pid in tree(self.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            status = self.process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        if self.process.stdin is not None:
            self.process.stdin.close()
        return status

    @property
    def _name(self) -> str:
        return " ".join(self.command[:4])

    def _listens(self) -> bool:
        if self._says is not None:
            found = self._says.search(self.said())
            if found is not None and found.groups():
                self.host, self.port = found[1], int(found[2])
            return found is not None
        # Not by a connection: the server would count that one, and hold it as long as
        # it holds a silent client.
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == self.port
            for each in self.sockets()
        )


@contextmanager
def serving(
    command: Sequence[str], log: Path, *, patience: float = PATIENCE, **options: Any
) -> Iterator[Server]:
    """A server that listens, for the length of the block. *options* as those of
    `Server`; raises DidNotStart.
    """
    server = Server(command, log, **options)
    try:
        server.wait_until_it_listens(patience)
        yield server
    finally:
        server.stop()
        server.end(patience)
