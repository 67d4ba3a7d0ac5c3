"""Foreign servers for the tests of attach, each with its own timeouts off, and the
command that guards them.
"""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from reaper.__main__ import main
from scripts import tools
from scripts.serving import free_port
from tests.helpers.server_process import PATIENCE, ROOT
from tests.helpers.server_process import installed as tool
from tests.helpers.server_process import wait_until as until

Running = AbstractContextManager[subprocess.Popen[bytes]]
__all__ = ["PATIENCE", "ROOT", "free_port", "tool", "until"]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@contextmanager
def running(*command: str, port: int, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that listens on *port*; ended by its pid, and its clients are
    closed.
    """
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    ) as process:
        try:
            until(lambda: accepts(port) or process.poll() is not None, f"{command[0]} listens")
            assert process.poll() is None, f"{command[0]} ended with status {process.returncode}"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            while Client.made:
                Client.made.pop().close()


class Client:
    """One connection; `exchange` is a question and its whole answer.

    Attributes:
        spoke: When its last question began to be sent.
        sent: When that had been sent, or could not be.
    """

    question = b"PING\r\n"
    answer_ends = b"+PONG\r\n"
    made: ClassVar[list[socket.socket]] = []

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port, self.host = port, host
        self.connect()

    def connect(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE, (self.host, 0))
        self.made.append(self.sock)
        self.spoke = self.sent = time.monotonic()

    @classmethod
    def answered(cls, port: int) -> Self:
        """One that has asked, and has its answer."""
        made = cls(port)
        made.exchange()
        return made

    @property
    def name(self) -> str:
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def exchange(self) -> None:
        self.spoke = time.monotonic()
        try:
            self.sock.sendall(self.question)
        finally:
            self.sent = time.monotonic()
        self.read_answer()

    def read_answer(self) -> None:
        data = b""
        while self.answer_ends not in data:
            more = self.sock.recv(65536)
            assert more, f"closed in the middle of an answer: {data!r}"
            data += more

    def wait_for_the_end(self) -> float:
        """Seconds from the last question to the end that the server, or the guard,
        made.
        """
        with suppress(ConnectionResetError):
            while self.sock.recv(65536):
                pass
        return time.monotonic() - self.spoke


class Redis(Client):
    @staticmethod
    def server(port: int, folder: Path) -> Running:
        command = (
            tool("redis-server"),
            "--bind",
            "127.0.0.1",  # on all addresses the port may be a client's of somebody else
            "--port",
            str(port),
            "--save",
            "",
            "--dir",
            str(folder),
            "--timeout",
            "0",
        )
        return running(*command, port=port)


ECHO = """
import asyncio, ctypes, os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=True)
for _ in range(int(sys.argv[2]) - 1):
    if not os.fork():
        ctypes.CDLL(None).prctl(1, 9)  # ends with its parent
        break

async def echo(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
    if "deaf" in sys.argv:
        await asyncio.Event().wait()
    writer.close()

async def main():
    await (await asyncio.start_server(echo, sock=listener)).serve_forever()

asyncio.run(main())
"""


class Echo(Client):
    """A server of our own user, in its own process, without a timeout: no tool and no
    right is needed.
    """

    question, answer_ends = b"hello", b"hello"

    @staticmethod
    def server(port: int, *words: str, workers: int = 1) -> Running:
        return running(sys.executable, "-c", ECHO, str(port), str(workers), *words, port=port)


NGINX = """
    keepalive_timeout 1h; keepalive_requests 1000000;
    client_header_timeout 1h; client_body_timeout 1h; send_timeout 1h;
    server {{ listen 127.0.0.1:{port} {listen}; location / {{ {location} }} }}
"""


class Nginx(Client):
    question, answer_ends = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"hello"

    @staticmethod
    def server(
        port: int, folder: Path, listen: str = "", location: str = 'return 200 "hello";'
    ) -> Running:
        tool("nginx")
        http = NGINX.format(port=port, listen=listen, location=location)
        return running(*tools.nginx(folder, http, main="worker_processes 2;"), port=port)


SERVERS = [Redis, Nginx]


def at(port: int) -> tuple[str, str]:
    """The flags by which attach watches what listens on *port*."""
    return "--listen", f"127.0.0.1:{port}"


class Attach:
    """`python -m reaper attach ... --json`, with what it said so far."""

    def __init__(
        self, *flags: str, prefix: tuple[str, ...] = (), json: tuple[str, ...] = ("--json",)
    ) -> None:
        command = [*prefix, sys.executable, "-m", "reaper", "attach", *json, *flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._out, self._err = self.process.stdout, self.process.stderr
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until(lambda: self.events or self.process.poll() is not None, "attach starts")
        assert self.process.poll() is None, self._err.read()

    def _read(self) -> None:
        for line in self._out:
            self.events.append(json.loads(line))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def clients(self, kind: str) -> list[str]:
        return [event["client"] for event in self.of(kind)]

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """End it; (exit status, standard error)."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        said = self._err.read()
        self._out.close()
        self._err.close()
        return status, said

    def __enter__(self) -> Attach:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._out.closed:
            self.process.send_signal(signal.SIGCONT)
            self.stop()


def refused(*flags: str, prefix: tuple[str, ...] = ()) -> str:
    """What a call that cannot work says; it must say it in one line, with status 2.
    With *prefix*: in a process.
    """
    out, err = io.StringIO(), io.StringIO()
    if prefix:
        command = [*prefix, sys.executable, "-m", "reaper", "attach", *flags]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        status, said, complaint = done.returncode, done.stdout, done.stderr
    else:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            sys.exit(main(["attach", *flags]))
        assert isinstance(end.value.code, int)
        status, said, complaint = end.value.code, out.getvalue(), err.getvalue()
    assert (status, said) == (2, ""), complaint
    (line,) = complaint.splitlines()
    return line
