"""Servers that end when nobody is there: `reaper run --exit-when-idle` before programs
that others wrote, with clients that come and go by chance.

    python -m scripts.idle_exits [--schedules 14] [--at-once 3] [--seed 1] [NAME ...]

A schedule is one life of a server: it is started, a few clients come, ask, hold their
connections and leave, and then nobody comes. What is noted is when each client left,
and when the line came that says that SIGTERM goes out.

One rule: *a client counts until it has closed, by its own clock*. Exit status: 0 no
server was ended while a client was connected, or early, or with another status than 0,
and each was tried; 1 one was; 2 one could not be tried.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from reaper.config.flags import Parser

from .doctor_trials import GET, PYTHON, SERVERS, STARTS
from .serving import ROOT, free_port, tree
from .tools import Missing, tool

IDLE, TICK = 1.5, 0.3
"""Seconds, as the servers are run."""

ENDS = 60.0
"""Seconds that a server has to end, once nobody is there."""

ECHO = """
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""
WEBSOCKETS = """
import asyncio, sys
from websockets.asyncio.server import serve
async def hello(connection):
    await connection.send("hello")
    await connection.wait_closed()
async def main():
    async with serve(hello, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""
UNIX = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(4096):
            self.request.sendall(data)
socketserver.ThreadingUnixStreamServer.daemon_threads = True
socketserver.ThreadingUnixStreamServer(sys.argv[1], Echo).serve_forever()
"""
GO = """
package main
import ("net/http"; "os")
func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("hello")) })
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}
"""

Place = tuple[str, int] | str
"""Where a server listens: a port, or the path of a unix socket."""


@dataclass(frozen=True)
class Program:
    """A program as others wrote it.

    Attributes:
        command: Makes the command that serves at a port, and may write in a folder.
        question: What a client says.
        unix: Whether it listens on the socket `unix` in its folder.
    """

    command: Callable[[int, Path], list[str]]
    question: bytes = GET
    unix: bool = False


def _go(port: int, folder: Path) -> list[str]:
    source, made = folder / "hello.go", folder / "hello"
    source.write_text(GO)
    environment = ["env", f"HOME={folder}", "GOFLAGS=-mod=mod"]
    build = [*environment, tool("go"), "build", "-o", str(made), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    return [str(made), str(port)]


def _daphne(port: int, folder: Path) -> list[str]:
    command = SERVERS["hypercorn"].command(port, folder)[:-3]
    return [*command[:-1], "daphne", "-b", "127.0.0.1", "-p", str(port), "made:app"]


def _gunicorn_asgi(port: int, folder: Path) -> list[str]:
    command = SERVERS["hypercorn"].command(port, folder)[:-4]
    more = ["gunicorn", "made:app", "-k", "asgi", "--no-control-socket"]
    return [*command, *more, "-b", f"127.0.0.1:{port}"]


NAMES = (
    *("nginx", "redis", "haproxy", "apache2", "node", "uvicorn", "gunicorn, threads"),
    *("gunicorn, sync", "hypercorn", "aiohttp"),
)
PROGRAMS = {
    "http.server": Program(
        lambda port, folder: [PYTHON, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    ),
    **{name: Program(SERVERS[name].command, SERVERS[name].question) for name in NAMES},
    "gunicorn, asgi": Program(_gunicorn_asgi),
    "go net/http": Program(_go),
    "daphne": Program(_daphne),
    "asyncio": Program(lambda port, folder: [PYTHON, "-c", ECHO, str(port)], b"x"),
    "websockets": Program(lambda port, folder: [PYTHON, "-c", WEBSOCKETS, str(port)]),
    "a unix socket": Program(
        lambda port, folder: [PYTHON, "-c", UNIX, str(folder / "unix")], b"x", unix=True
    ),
}


@dataclass
class Life:
    """What was seen of one schedule.

    Attributes:
        left: When each client had closed its connection, monotonic seconds.
        open: How many are connected now.
        signalled: When the line came that says that SIGTERM goes out; None: it did not.
        cut: How many clients were connected then.
        status: Of `reaper run`.
        said: All lines.
    """

    left: list[float] = field(default_factory=list)
    open: int = 0
    signalled: float | None = None
    cut: int = 0
    status: int | None = None
    said: list[str] = field(default_factory=list)

    @property
    def after(self) -> float:
        """Seconds from the last leave to the signal."""
        return (self.signalled or time.monotonic()) - max(self.left)

    @property
    def wrong(self) -> str:
        """What broke the law; empty: nothing."""
        if self.cut:
            return f"{self.cut} connected when it was ended"
        if self.signalled is None:
            return f"not ended; it said {self.said[-3:]}"
        if self.after < IDLE:
            return f"ended {IDLE - self.after:.3f} s early"
        return "" if self.status == 0 else f"status {self.status}; it said {self.said[-3:]}"


def _connected(place: Place) -> socket.socket:
    if isinstance(place, str):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(STARTS)
        client.connect(place)
        return client
    return socket.create_connection(place, timeout=STARTS)


def _come(life: Life, lock: threading.Lock, place: Place, question: bytes, stays: float) -> None:
    """Be a client: connect, ask, stay, leave."""
    with lock:  # counted before it connects: it may have to wait for that
        life.open += 1
    with suppress(OSError), _connected(place) as client:
        if question:
            client.sendall(question)
            client.recv(4096)
        until = time.monotonic() + stays
        client.settimeout(max(until - time.monotonic(), 0.01))
        with suppress(TimeoutError):
            client.recv(65536)  # a server that keeps no connection closes it here
    with lock:
        life.open -= 1
        life.left.append(time.monotonic())


def play(program: Program, seed: int, clients: int = 4) -> Life:
    """One schedule. The same *seed* has the same clients.

    Raises:
        Missing: a tool is not installed.
        TimeoutError: the server does not listen.
    """
    chance, life, lock = random.Random(seed), Life(), threading.Lock()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # some servers read it as another user
        port = free_port()
        place: Place = str(folder / "unix") if program.unix else ("127.0.0.1", port)
        command = program.command(port, folder)
        run = [PYTHON, "-m", "reaper", "run", "--exit-when-idle", f"{IDLE}s", "--tick", f"{TICK}s"]
        served = subprocess.Popen(
            [*run, "--", *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

        def hear() -> None:
            assert served.stderr is not None
            for line in served.stderr:
                with lock:
                    if "nobody has been connected" in line:
                        life.signalled, life.cut = time.monotonic(), life.open
                    life.said.append(line.rstrip())

        hearing = threading.Thread(target=hear, daemon=True)
        hearing.start()
        try:
            _until_it_listens(place, served)
            life.left.append(time.monotonic())
            coming = []
            for _ in range(chance.randint(0, clients)):
                stays = chance.choice([0.0, TICK, chance.uniform(0, 2 * IDLE)])
                words = (life, lock, place, program.question, stays)
                coming.append(threading.Thread(target=_come, args=words))
                coming[-1].start()
                time.sleep(chance.choice([0.0, chance.uniform(0, 0.6 * IDLE)]))
            for client in coming:
                client.join()
            with suppress(subprocess.TimeoutExpired):
                life.status = served.wait(ENDS)
        finally:
            _end(served)
            hearing.join(5)
    return life


def _until_it_listens(place: Place, served: subprocess.Popen[str]) -> None:
    until = time.monotonic() + STARTS
    while time.monotonic() < until and served.poll() is None:
        with suppress(OSError):
            _connected(place).close()
            return
        time.sleep(0.05)
    raise TimeoutError("it does not listen")


def _end(served: subprocess.Popen[str]) -> None:
    """End what still runs of *served*, by process ids."""
    if served.poll() is None:
        for pid in reversed(tree(served.pid)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    served.wait()


def main(words: list[str] | None = None) -> int:
    """Play the schedules; returns the exit status."""
    parser = Parser(prog="python -m scripts.idle_exits", description=__doc__)
    parser.add_argument("--schedules", type=int, default=14, help="of each program")
    parser.add_argument("--at-once", type=int, default=3, help="lives beside each other")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parsed = parser.parse_args(words)
    if unknown := set(parsed.names) - set(PROGRAMS):
        parser.error(f"NAME {', '.join(sorted(unknown))}: expected any of {', '.join(PROGRAMS)}")
    worst = 0
    for name in parsed.names or PROGRAMS:
        seeds = range(parsed.seed, parsed.seed + parsed.schedules)
        with ThreadPoolExecutor(parsed.at_once) as pool:
            try:
                lives = list(pool.map(lambda seed, of=PROGRAMS[name]: play(of, seed), seeds))
            except (Missing, OSError, subprocess.SubprocessError, TimeoutError) as error:
                print(f"{name}: NOT TRIED: {error}", flush=True)
                worst = 2
                continue
        wrong = [
            f"{seed}: {life.wrong}" for seed, life in zip(seeds, lives, strict=True) if life.wrong
        ]
        late = max((life.after - IDLE for life in lives), default=0.0)
        print(
            f"{name}: {len(lives)} lives, at most {late:.2f} s after {IDLE} s: "
            f"{'; '.join(wrong) or 'none was ended while somebody was there'}",
            flush=True,
        )
        worst = max(worst, 1) if wrong else worst
    return worst


if __name__ == "__main__":
    sys.exit(main())
