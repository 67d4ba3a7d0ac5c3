"""Starts the server that is tried, waits until it listens, and ends it.

One rule: *no server outlives its block*: SIGTERM first, SIGKILL for its whole session
if that does not help.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import IO, Any

from ..units import BadArgument

PATIENCE = 30.0
"""Seconds for a server to listen, or to end once it was killed."""
LOOK = 0.05
HOST = "127.0.0.1"


class Served:
    """A server's process, which listens.

    Attributes:
        command: Its words, as they were given; `{port}` stands for the port.
        address: Where it listens.
    """

    def __init__(self, command: Sequence[str], log: IO[bytes], port: int = 0) -> None:
        """Start *command*. *port*: where it listens, if that is not for us to say.

        Raises BadArgument: there is no such program, or it does not listen in time.
        """
        self.command = command
        self._log = log
        self.address = (HOST, port or free_port())
        words = [word.replace("{port}", str(self.address[1])) for word in command]
        environment = os.environ | {"PORT": str(self.address[1])}
        try:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise BadArgument(
                f"{words[0]}: {error.strerror}: give a command that starts a server"
            ) from None

    def listens(self) -> None:
        """Return when it listens. Raises BadArgument: it does not."""
        until = monotonic() + PATIENCE
        while monotonic() < until and self.status is None:
            with suppress(OSError), socket.create_connection(self.address, timeout=1.0):
                return
            sleep(LOOK)
        how = "did not listen" if self.status is None else f"ended with status {self.status}"
        raise BadArgument(
            f"{self.command[0]} {how} at port {self.address[1]}: {{port}} in the command stands"
            f" for it, as PORT in its environment does; if it has a port of its own, name it:"
            f" conform {HOST}:8080 -- COMMAND; it said: {self.said()!r}"
        )

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.process.poll()

    def said(self) -> str:
        """The end of what it has said."""
        self._log.seek(0)
        return self._log.read()[-300:].decode(errors="replace").strip()

    def told(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal, if it still runs."""
        if self.status is None:
            self.process.send_signal(number)

    def end(self, patience: float = PATIENCE) -> None:
        """SIGTERM, and SIGKILL for its session if it is there *patience* seconds
        later.
        """
        self.told()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@contextmanager
def serving(command: Sequence[str], port: int = 0, patience: float = 5.0) -> Iterator[Served]:
    """A server that listens, for the length of the block. Raises BadArgument."""
    log: Any
    with tempfile.TemporaryFile() as log:
        server = Served(command, log, port)
        try:
            server.listens()
            yield server
        finally:
            server.end(patience)


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port
