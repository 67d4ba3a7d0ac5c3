"""The servers that are compared: how each is started, asked, looked at from outside, and ended.

One rule: *no server is measured before it has answered correctly*, twice on one connection.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts import serving

from .apps import BODY, KEPT, PATH

PATIENCE = 60.0  # seconds for a server to answer
REQUEST = f"GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
APPS = "benchmarks.servers.apps"

NGINX = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections {most}; }}
http {{
    access_log off;
    keepalive_timeout {kept}s;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    server {{
        listen 127.0.0.1:{port} backlog=1000;
        location = {path} {{ default_type text/plain; return 200 "{body}"; }}
    }}
}}
"""


@dataclass(frozen=True)
class Kind:
    """A server to compare: what it is, whether it speaks HTTP or echoes, and its command."""

    about: str
    command: Callable[[int, int, Path], Sequence[str]]  # port, most connections, a folder for its files
    echo: bool = False
    tool: str | None = None  # what has to be installed besides the Python packages
    tls: Callable[[Certificate, Path], Sequence[str]] | None = None  # what its command gets besides, to speak TLS


def _ours(*words: str) -> Callable[[int, int, Path], Sequence[str]]:
    def command(port: int, most: int, folder: Path) -> Sequence[str]:
        return [
            *(sys.executable, "-m", APPS, "ours", *words, "--port", str(port), "--workers", "1"),
            *("--keep-alive", f"{KEPT}s", "--idle", f"{KEPT}s", "--first-byte", f"{KEPT}s", "--headers", f"{KEPT}s"),
            *("--max-requests", "0", "--max-connections", str(most)),
        ]

    return command


def _app(kind: str) -> Callable[[int, int, Path], Sequence[str]]:
    return lambda port, most, folder: [sys.executable, "-m", APPS, kind, str(port)]


def _hypercorn(port: int, most: int, folder: Path) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "hypercorn", "-k", "trio", "-w", "1", "-b", f"127.0.0.1:{port}"),
        *("--keep-alive", str(KEPT), "--backlog", "1000", f"{APPS}:asgi"),
    ]


def _uvicorn(port: int, most: int, folder: Path) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "uvicorn", "--http", "h11", "--loop", "asyncio", "--host", "127.0.0.1"),
        *("--port", str(port), "--timeout-keep-alive", str(KEPT), "--backlog", "1000"),
        *("--no-access-log", "--log-level", "warning", f"{APPS}:asgi"),
    ]


def _nginx(port: int, most: int, folder: Path) -> Sequence[str]:
    config = folder / "nginx.conf"
    # nginx lets silent connections go when less than a sixteenth of its places is free.
    text = NGINX.format(folder=folder, most=most * 8 // 7 + 16, kept=KEPT, port=port, path=PATH, body=BODY.decode())
    config.write_text(text)
    return [installed("nginx") or "nginx", "-p", str(folder), "-e", str(folder / "nginx.log"), "-c", str(config)]


def _flags(cert: str, key: str) -> Callable[[Certificate, Path], Sequence[str]]:
    return lambda made, folder: [cert, made.cert, key, made.key]


def _nginx_tls(made: Certificate, folder: Path) -> Sequence[str]:
    config = folder / "nginx.conf"  # which its command has written
    wrapped = f"backlog=1000 ssl; ssl_certificate {made.cert}; ssl_certificate_key {made.key};"
    config.write_text(config.read_text().replace("backlog=1000;", wrapped))
    return []


OURS_TLS = _flags("--tls-cert", "--tls-key")
KINDS = {
    "ours-parked": Kind(
        "the example HTTP server, no task while a connection is silent (trio, h11)", _ours("http"), tls=OURS_TLS
    ),
    "hypercorn": Kind("hypercorn on its trio worker (h11)", _hypercorn, tls=_flags("--certfile", "--keyfile")),
    "uvicorn": Kind("uvicorn with h11 on asyncio's loop", _uvicorn, tls=_flags("--ssl-certfile", "--ssl-keyfile")),
    "aiohttp": Kind("aiohttp's server (its parser is C)", _app("aiohttp")),
    "asyncio": Kind("a bare asyncio Protocol: no parser, no timeout, no limit", _app("asyncio")),
    "nginx": Kind("nginx, `return 200` (C)", _nginx, tool="nginx", tls=_nginx_tls),
    "ours-echo-parked": Kind("the example echo server, parked (trio)", _ours("echo"), echo=True),
    "asyncio-echo": Kind("a bare asyncio Protocol that echoes: no timeout", _app("asyncio-echo"), echo=True),
}

SESSIONS = "sessions"
ALL_KINDS = {
    **KINDS,
    SESSIONS: Kind(
        "an epoll and an `ssl.SSLSocket` each, with TLS only: what OpenSSL keeps", _app(SESSIONS),
        tls=lambda made, folder: [made.cert, made.key],
    ),
}  # fmt: skip
"""Also those that speak TLS only."""


@dataclass(frozen=True)
class Certificate:
    """A self-signed one for 127.0.0.1."""

    cert: str
    key: str

    @classmethod
    def made(cls, folder: Path) -> Certificate:
        """Files in *folder*. Raises RuntimeError where there is no openssl command."""
        made = cls(str(folder / "cert.pem"), str(folder / "key.pem"))
        command = [
            *(installed("openssl") or "openssl", "req", "-x509", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", made.cert, "-keyout", made.key),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"no certificate can be made: {error}") from error
        return made

    def trusted(self) -> ssl.SSLContext:
        """For clients."""
        return ssl.create_default_context(cafile=self.cert)


def without_their_tool(names: Iterable[str]) -> dict[str, str]:
    """Those of *names*, of `ALL_KINDS`, that cannot be run here, and why."""
    tools = {name: ALL_KINDS[name].tool for name in names}
    return {name: f"{tool} is not installed" for name, tool in tools.items() if tool and installed(tool) is None}


def installed(tool: str) -> str | None:
    """Where a command is; daemons are not on every PATH."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/usr/bin")


class Server:
    """One that runs."""

    def __init__(self, name: str, kind: Kind, started: serving.Server, tls: ssl.SSLContext | None = None) -> None:
        self.name = name
        self._tls = tls
        self.echo = kind.echo
        self.port = started.port
        self._end = REQUEST if kind.echo else b"\r\n\r\n" + BODY
        self._started = started
        self._members: list[int] = []

    def dial(self) -> socket.socket:
        """A new connection to it, after the handshake if it speaks TLS."""
        dialled = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        return dialled if self._tls is None else self._tls.wrap_socket(dialled, server_hostname="127.0.0.1")

    def ask(self, clients: Sequence[socket.socket]) -> None:
        """One request on each, all at once; returns when all are answered. ConnectionError if one is not."""
        for client in clients:
            client.sendall(REQUEST)
        for client in clients:
            self._answer(client)

    def is_whole(self, answer: bytes) -> bool:
        """Whether *answer* is all of one."""
        return answer.endswith(self._end)

    def _answer(self, client: socket.socket) -> bytes:
        data = b""
        while not self.is_whole(data):
            got = client.recv(4096)
            if not got:
                raise ConnectionError(f"{self.name} hung up after {data!r}")
            data += got
        return data

    def check(self) -> None:
        """Two requests on one connection, each answered as it should be. Raises RuntimeError if not."""
        with self.dial() as client:
            self.ask([client])
            client.sendall(REQUEST)
            data = self._answer(client)
        if self.echo:
            if data != REQUEST:
                raise RuntimeError(f"{self.name} does not send back what came: {data!r}")
            return
        head = data[: -len(self._end)].lower()
        length = re.search(rb"\r\ncontent-length: *(\d+)", head)
        if not head.startswith(b"http/1.1 200") or length is None or int(length[1]) != len(BODY):
            raise RuntimeError(f"{self.name} does not answer as it should: {data!r}")
        if b"connection: close" in head:
            raise RuntimeError(f"{self.name} does not keep its connections: {data!r}")

    def wait_until_it_serves(self) -> None:
        """Until it answers as it should. RuntimeError if it ends, does not listen, or answers wrongly."""
        try:
            self._started.wait_until_it_listens()
        except serving.DidNotStart as error:
            raise RuntimeError(f"{self.name} does not serve: {error}") from error
        self.check()
        self._members = serving.tree(self._started.pid)

    def cpu_ns(self) -> int:
        """CPU nanoseconds of all its processes so far."""
        # The kernel's number for "CPU clock of that process".
        return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in self._members)

    def rss(self) -> int:
        """Resident bytes of all its processes."""
        found = (re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()) for pid in self._members)
        return sum(int(match[1]) * 1024 for match in found if match is not None)


@contextmanager
def running(
    names: Sequence[str], most: int, folder: Path, tls: Certificate | None = None
) -> Iterator[dict[str, Server]]:
    """All of *names* at once, each in a process of its own and checked; all ended after the block.

    Args:
        names: Of `ALL_KINDS`; a server that needs a tool needs it installed.
        most: Connections that each has to take.
        folder: For their files and what they say on stderr.
        tls: What they show; None: they speak plainly.
    Raises:
        RuntimeError: One does not serve, or does not answer as it should.
    """
    with ExitStack() as stack:
        servers = {}
        every = []
        for name in names:
            kind, port = ALL_KINDS[name], serving.free_port()
            command = kind.command(port, most, folder)
            if tls is not None:
                if kind.tls is None:
                    raise RuntimeError(f"{name} is not set up to speak TLS")
                command = [*command, *kind.tls(tls, folder)]
            started = serving.Server(command, folder / f"{name}.log", port=port)
            stack.callback(started.end)
            stack.callback(started.stop)
            every.append(started)
            servers[name] = Server(name, kind, started, None if tls is None else tls.trusted())
        for server in servers.values():
            server.wait_until_it_serves()
        try:
            yield servers
        finally:
            for started in every:
                started.stop()  # all at once, then `end` one by one
