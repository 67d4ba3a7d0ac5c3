"""Servers that are healthy, under load: `reaper doctor` finds nothing wrong with any.

    python -m scripts.doctor_trials [--for 12s] [NAME ...]

One rule: *a finding here is false until somebody shows that it is not*. Each server is
as its makers ship it; a load generator that suits it keeps it busy, some of its clients
have asked once and say no more, and the doctor looks by process and by address at once.
Exit status: 0 nothing was found and each was tried, 1 something was found, 2 one could
not be tried.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from reaper.config.durations import parse_duration
from reaper.config.flags import Parser, duration

from .serving import ROOT, free_port
from .tools import Missing, nginx, tool

QUIET = 20
"""Clients that ask once, and say no more."""
LONGER = 300.0
"""Seconds by which a load may outlast the looking, which a busy machine makes
longer.
"""
STARTS = 30.0
"""Seconds that a server has until it listens."""
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PYTHON = sys.executable

ASGI = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
"""
WSGI = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]
"""
AIOHTTP = """
import sys
from aiohttp import web
async def hello(request):
    return web.Response(text="hello")
made = web.Application()
made.router.add_get("/", hello)
web.run_app(made, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
NODE = """
require("http").createServer((request, response) => response.end("hello"))
    .listen(Number(process.argv[1]), "127.0.0.1");
"""
HAPROXY = """
global
    maxconn 500
defaults
    mode http
    timeout client 1m
    timeout connect 5s
    timeout server 1m
frontend all
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string hello
"""
APACHE = """
ServerRoot {folder}
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/apache.pid
ErrorLog {folder}/error.log
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dir_module {modules}/mod_dir.so
DocumentRoot {folder}
User www-data
Group www-data
"""
LIGHTTPD = """
server.document-root = "{folder}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{folder}/error.log"
index-file.names = ("index.html")
"""


@dataclass(frozen=True)
class Healthy:
    """A server, and what keeps it busy.

    Attributes:
        command: Makes the command that serves at a port, and may write in a folder.
        load: Makes the command that asks at that port for so many seconds; None:
            `_asked`.
        question: What a client asks once.
    """

    command: Callable[[int, Path], list[str]]
    load: Callable[[int, float], list[str]] | None
    question: bytes = GET


def wrk(port: int, seconds: float) -> list[str]:
    """Fifty connections that are kept."""
    return [tool("wrk"), "-t1", "-c50", f"-d{seconds:.0f}s", f"http://127.0.0.1:{port}/"]


def ab(port: int, seconds: float) -> list[str]:
    """Ten at once, and a connection for each request."""
    times = ["-q", "-t", f"{seconds:.0f}", "-n", "1000000", "-c", "10"]
    return [tool("ab", "apache2-utils"), *times, f"http://127.0.0.1:{port}/"]


def redis_benchmark(port: int, seconds: float) -> list[str]:
    """Fifty connections, until they are told to stop."""
    return [tool("redis-benchmark", "redis-tools"), "-p", str(port), "-q", "-l", "-t", "get,set"]


def pgbench(port: int, seconds: float) -> list[str]:
    """Eight sessions that select."""
    flags = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-n", "-c", "8", "-f"]
    select = Path(tempfile.gettempdir()) / f"select-{os.getpid()}.sql"
    select.write_text("select 1;\n")
    return [str(_postgres("pgbench")), *flags, str(select), "-T", f"{seconds:.0f}", "postgres"]


def _postgres(name: str) -> Path:
    """A program of PostgreSQL, which is on no PATH. Raises Missing."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not found:
        raise Missing(f"{name} is not installed (Debian: apt-get install postgresql)")
    return found[-1]


def postgres(port: int, folder: Path) -> list[str]:
    """A new cluster; PostgreSQL refuses to run as root."""
    server, make = _postgres("postgres"), _postgres("initdb")
    user = [] if os.geteuid() else [tool("runuser", "util-linux"), "-u", "postgres", "--"]
    data = folder / "data"
    if user:
        shutil.chown(folder, "postgres")
    command = [*user, str(make), "-D", str(data), "-U", "postgres", "-A", "trust"]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return [*user, str(server), "-D", str(data), "-p", str(port), "-k", str(folder)]


def file(folder: Path, name: str, text: str) -> str:
    """Write *text* to a file of *folder*; its path."""
    (folder / name).write_text(text)
    return str(folder / name)


def module(folder: Path, text: str, *command: str) -> list[str]:
    """*command*, which finds *text* as the module `made`."""
    file(folder, "made.py", text)
    return ["env", f"PYTHONPATH={folder}", PYTHON, "-m", *command]


def served(folder: Path) -> Path:
    """*folder* with a page in it."""
    file(folder, "index.html", "hello\n")
    return folder


def _nginx(port: int, folder: Path) -> list[str]:
    http = f'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello"; }} }}'
    return nginx(folder, http, main="worker_processes 2;")


def _apache(port: int, folder: Path) -> list[str]:
    text = APACHE.format(port=port, folder=served(folder), modules="/usr/lib/apache2/modules")
    return [tool("apache2"), "-f", file(folder, "apache.conf", text), "-DFOREGROUND"]


def _lighttpd(port: int, folder: Path) -> list[str]:
    text = LIGHTTPD.format(port=port, folder=served(folder))
    return [tool("lighttpd"), "-D", "-f", file(folder, "lighttpd.conf", text)]


def _haproxy(port: int, folder: Path) -> list[str]:
    return [tool("haproxy"), "-W", "-f", file(folder, "haproxy.cfg", HAPROXY.format(port=port))]


def _memcached(port: int, folder: Path) -> list[str]:
    user = [] if os.geteuid() else ["-u", "nobody"]
    return [tool("memcached"), "-l", "127.0.0.1", "-p", str(port), *user]


SERVERS = {
    "nginx": Healthy(_nginx, wrk),
    "nginx, a connection per request": Healthy(_nginx, ab),
    "redis": Healthy(
        lambda port, folder: [
            tool("redis-server"), "--port", str(port), "--save", "", "--dir", str(folder)
        ],
        redis_benchmark, b"PING\r\n",
    ),
    "postgres": Healthy(postgres, pgbench, b""),
    "memcached": Healthy(_memcached, None, b"version\r\n"),
    "haproxy": Healthy(_haproxy, wrk),
    "apache2": Healthy(_apache, wrk),
    "lighttpd": Healthy(_lighttpd, wrk),
    "node": Healthy(
        lambda port, folder: [tool("node", "nodejs"), "-e", NODE, str(port)], wrk
    ),
    "uvicorn": Healthy(
        lambda port, folder: module(
            folder, ASGI, "uvicorn", "made:app", "--port", str(port), "--workers", "2"
        ),
        wrk,
    ),
    "gunicorn, threads": Healthy(
        lambda port, folder: module(
            folder, WSGI, "gunicorn", "made:app", "-b", f"127.0.0.1:{port}", "--threads", "8"
        ),
        wrk,
    ),
    "gunicorn, sync": Healthy(
        lambda port, folder: module(
            folder, WSGI, "gunicorn", "made:app", "-b", f"127.0.0.1:{port}", "-w", "2"
        ),
        ab,
        b"",
    ),
    "hypercorn": Healthy(
        lambda port, folder: module(
            folder, ASGI, "hypercorn", "made:app", "-b", f"127.0.0.1:{port}"
        ),
        wrk,
    ),
    "aiohttp": Healthy(lambda port, folder: [PYTHON, "-c", AIOHTTP, str(port)], wrk),
    "the reference server": Healthy(
        lambda port, folder: [
            PYTHON, "-m", "server_example", "http", "--port", str(port), "--workers", "2"
        ],
        wrk,
    ),
}  # fmt: skip


def main() -> int:
    """Try the servers; returns the exit status."""
    parser = Parser(prog="python -m scripts.doctor_trials", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=duration(1.0), default=parse_duration("12s"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SERVERS))
    parsed = parser.parse_args()
    if unknown := set(parsed.names) - set(SERVERS):
        parser.error(f"NAME {', '.join(sorted(unknown))}: expected any of {', '.join(SERVERS)}")
    worst = 0
    for name in parsed.names or SERVERS:
        try:
            said = trial(SERVERS[name], parsed.seconds)
        except (Missing, OSError, subprocess.SubprocessError, TimeoutError) as error:
            print(f"{name}: NOT TRIED: {error}", flush=True)
            worst = 2
            continue
        found = [line for one in said for line in one.findings]
        seen = ", ".join(f"{one.connections:,} connections by {one.by}" for one in said)
        print(f"{name}: {seen}: {'; '.join(found) or 'nothing is wrong'}", flush=True)
        worst = max(worst, 1) if found else worst
    return worst


@dataclass(frozen=True)
class Said:
    """What one examination said."""

    by: str
    connections: int
    findings: list[str]


def trial(server: Healthy, seconds: float) -> list[Said]:
    """What the doctor says of *server* under load, by process and by address.

    Raises:
        Missing: a tool is not installed.
        TimeoutError: the server does not listen.
    """
    port = free_port()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # some servers read it as another user
        command = server.command(port, folder)
        serving = stack.enter_context(Group(command, cwd=folder if "-c" in command else ROOT))
        _until_it_listens(port, serving)
        for _ in range(QUIET):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(server.question)
        over = threading.Event()
        if server.load is None:
            threading.Thread(target=_asked, args=(port, server.question, over)).start()
            stack.callback(over.set)
        else:
            stack.enter_context(Group(server.load(port, seconds + LONGER)))
        time.sleep(1.0)  # until the load is under way
        asked = {
            "process": ["--pid", str(serving.pid)],
            "address": ["--listen", f"127.0.0.1:{port}"],
        }
        looking = {by: stack.enter_context(_doctor(flags, seconds)) for by, flags in asked.items()}
        return [_said(by, one) for by, one in looking.items()]


def _asked(port: int, question: bytes, over: threading.Event) -> None:
    """Ask again and again on one connection, until it is *over*."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
        while not over.is_set():
            client.sendall(question)
            client.recv(65536)


def _doctor(flags: list[str], seconds: float) -> subprocess.Popen[str]:
    command = [PYTHON, "-m", "reaper", "doctor", "--json", "--for", f"{seconds:.0f}s", *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _said(by: str, doctor: subprocess.Popen[str]) -> Said:
    out, _ = doctor.communicate()
    if doctor.returncode == 2:
        raise OSError(f"the doctor cannot look by {by}")
    said = json.loads(out)
    found = [f"{one['kind']} by {by}: {one['evidence']}" for one in said["findings"]]
    return Said(by, said["connections"], found)


class Group(subprocess.Popen[bytes]):
    """A process that is ended, with its group, when the block is."""

    def __init__(self, command: list[str], cwd: Path = ROOT) -> None:
        silent = subprocess.DEVNULL
        super().__init__(command, cwd=cwd, stdout=silent, stderr=silent, process_group=0)

    def __exit__(self, *exc: object) -> None:
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, 9)
        self.wait()


def _until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTS
    while server.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise TimeoutError(f"it does not listen; its exit status is {server.returncode}")


if __name__ == "__main__":
    sys.exit(main())
