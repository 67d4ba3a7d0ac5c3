"""The servers that are compared: how each is started, asked, looked at from outside,
and ended.

One rule: *no server is measured before it has answered correctly*, twice on one
connection.
"""

from __future__ import annotations

import re
import shlex
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts import serving
from scripts.tools import Missing, nginx, tool

from .apps import BODY, KEPT, PATH

PATIENCE = 60.0  # seconds for a server to answer
BUSY = 50
"""Connections of a client that asks again and again."""
REQUEST = f"GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
END = b"\r\n\r\n" + BODY
APPS = "benchmarks.servers.apps"
NGINX = """keepalive_timeout {kept}s; keepalive_requests 1000000000;
    server {{ listen 127.0.0.1:{port} backlog=1000 {tls};
        location = {path} {{ default_type text/plain; return 200 "{body}"; }} }}"""
NGINX_TLS = "ssl; ssl_certificate {cert}; ssl_certificate_key {key}"


@dataclass(frozen=True)
class Kind:
    """A server to compare: what it is, and the words after `python -m`."""

    about: str
    command: str = ""  # {port}, {most} connections; none: nginx
    tls: str = ""  # what its command gets besides, to speak TLS: {cert}, {key}
    stock: str = ""  # the same without the guard


OURS = (
    f"{APPS} ours http --port {{port}} --workers 1 "
    f"--keep-alive {KEPT}s --first-byte {KEPT}s --headers {KEPT}s "
    "--max-requests 0 --max-connections {most}"
)
UVICORN = (
    f"uvicorn {APPS}:asgi --http {{}} --loop asyncio --port {{{{port}}}} "
    f"--timeout-keep-alive {KEPT} --backlog 1000 --no-access-log --log-level warning"
)
UVICORN_TLS = "--ssl-certfile {cert} --ssl-keyfile {key}"
HYPERCORN = (
    f"hypercorn -k trio -w 1 -b 127.0.0.1:{{port}} --keep-alive {KEPT} --backlog 1000 {APPS}:asgi"
)
RUN = f"reaper run -- {shlex.quote(sys.executable)} -m"
KINDS = {
    "ours-parked": Kind(
        "the example HTTP server, parked (trio, h11)", OURS, tls="--tls-cert {cert} --tls-key {key}"
    ),
    "hypercorn": Kind("hypercorn (trio, h11)", HYPERCORN, tls="--certfile {cert} --keyfile {key}"),
    "guarded-hypercorn": Kind(
        "the same, guarded",
        f"{RUN} {HYPERCORN}",
        tls="--certfile {cert} --keyfile {key}",
        stock="hypercorn",
    ),
    "uvicorn": Kind("uvicorn with h11", UVICORN.format("h11"), tls=UVICORN_TLS),
    "guarded": Kind(
        "the same, guarded", UVICORN.format("reaper.uvicorn:H11"), tls=UVICORN_TLS, stock="uvicorn"
    ),
    "again": Kind("the same, stock again (control)", UVICORN.format("h11"), stock="uvicorn"),
    "httptools": Kind("uvicorn with httptools (C)", UVICORN.format("httptools")),
    "guarded-httptools": Kind(
        "the same, guarded", UVICORN.format("reaper.uvicorn:HttpTools"), stock="httptools"
    ),
    "aiohttp": Kind("aiohttp (C parser)", f"{APPS} aiohttp {{port}}"),
    "guarded-aiohttp": Kind("the same, guarded", f"{RUN} {APPS} aiohttp {{port}}", stock="aiohttp"),
    "asyncio": Kind("a bare asyncio Protocol: no parser, no limits", f"{APPS} asyncio {{port}}"),
    "nginx": Kind("nginx, `return 200` (C)", tls=NGINX_TLS),
}


def command_of(
    kind: Kind, port: int, most: int, folder: Path, tls: tuple[str, str] | None
) -> Sequence[str]:
    """How *kind* is started. Raises Missing; RuntimeError: it is not set up to speak
    TLS.
    """
    if tls is not None and not kind.tls:
        raise RuntimeError(f"{kind.about} is not set up to speak TLS")
    more = "" if tls is None else kind.tls.format(cert=tls[0], key=tls[1])
    if kind.command:
        return [
            sys.executable,
            "-m",
            *shlex.split(kind.command.format(port=port, most=most)),
            *more.split(),
        ]
    http = NGINX.format(kept=KEPT, port=port, path=PATH, body=BODY.decode(), tls=more)
    return nginx(
        folder, http, most=most * 8 // 7 + 16
    )  # it drops silent clients when a sixteenth is left


def not_here(names: Iterable[str]) -> dict[str, str]:
    """Those of *names* that cannot be run here, and why."""
    try:
        tool("nginx")
    except Missing as missing:
        return {name: str(missing) for name in names if not KINDS[name].command}
    return {}


class Server(serving.Server):
    """One that runs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        port: int,
        tls: ssl.SSLContext | None = None,
        cwd: Path = serving.ROOT,
    ) -> None:
        super().__init__(command, log, port=port, cwd=cwd)
        self.name = name
        self._tls = tls

    def dial(self) -> socket.socket:
        """A new connection to it, after the handshake if it speaks TLS."""
        dialled = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        return (
            dialled
            if self._tls is None
            else self._tls.wrap_socket(dialled, server_hostname="127.0.0.1")
        )

    def ask(self, clients: Sequence[socket.socket]) -> None:
        """One request on each, all at once; returns when all are answered.
        ConnectionError if one is not.
        """
        for client in clients:
            client.sendall(REQUEST)
        for client in clients:
            self._answer(client)

    def _answer(self, client: socket.socket) -> bytes:
        data = b""
        while not data.endswith(END):
            got = client.recv(4096)
            if not got:
                raise ConnectionError(f"{self.name} hung up after {data!r}")
            data += got
        return data

    def check(self) -> None:
        """Two requests on one connection, each answered as it should be. Raises
        RuntimeError if not.
        """
        with self.dial() as client:
            self.ask([client])
            client.sendall(REQUEST)
            data = self._answer(client)
        head = data[: -len(END)].lower()
        length = re.search(rb"\r\ncontent-length: *(\d+)", head)
        if not head.startswith(b"http/1.1 200") or length is None or int(length[1]) != len(BODY):
            raise RuntimeError(f"{self.name} does not answer as it should: {data!r}")
        if b"connection: close" in head:
            raise RuntimeError(f"{self.name} does not keep its connections: {data!r}")

    def cpu_ns(self) -> int:
        """CPU nanoseconds of all its processes so far."""
        # The kernel's number for "CPU clock of that process".
        return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in serving.tree(self.pid))

    def rss(self) -> int:
        """Resident bytes of all its processes."""
        return sum(psutil.Process(pid).memory_info().rss for pid in serving.tree(self.pid))


@contextmanager
def running(
    names: Sequence[str], most: int, folder: Path, tls: tuple[str, str] | None = None
) -> Iterator[dict[str, Server]]:
    """All of *names* at once, each in a process of its own and checked; all ended after
    the block.

    Args:
        names: Of `KINDS`; a server that needs a tool needs it installed.
        most: Connections that each has to take.
        folder: For their files and what they say on stderr.
        tls: The certificate that they show, and its key; None: they speak plainly.
    Raises:
        RuntimeError: One does not listen, or does not answer as it should.
    """
    servers: dict[str, Server] = {}
    try:
        for name in names:
            command = command_of(KINDS[name], port := serving.free_port(), most, folder, tls)
            context = tls and ssl.create_default_context(cafile=tls[0])
            servers[name] = Server(name, command, folder / f"{name}.log", port, context)
        for server in servers.values():
            server.wait_until_it_listens()
            server.check()
        yield servers
    finally:
        for server in servers.values():
            server.stop()  # all at once, then `end` one by one
        for server in servers.values():
            server.end()
