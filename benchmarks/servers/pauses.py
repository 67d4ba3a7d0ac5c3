"""How long one client waits while a server has much to do for a crowd: stock, and
guarded.

    python -m benchmarks run pauses

A live client asks every two milliseconds; the crowd, in a process of its own, comes,
asks once, falls silent, and is closed by the server's keep-alive limit. A second crowd
is there while a server that can reloads, and while it stops; what is looked at then is
an answer in small pieces, 4 ms apart, for nobody can ask a server that stops.

Of each wait two figures are kept. *The wait* is by the clock, and what else runs on the
machine is in it. *The work* is the processor time that the server's processes spent
between the question and its answer: what the client waited for, and the same on a busy
machine. The longest of each is shown.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loadgen.plan.capacity import SPARE_DESCRIPTORS, raise_descriptor_limit
from scripts import serving
from scripts.guests.columns import COLUMNS, Column
from scripts.programs.declared import LIBRARIES

from ..common import ROOT, Note, Scale, by_scale, figure, markdown
from .crowd import END, PATIENCE, REQUEST

SERVERS = (
    *("uvicorn, httptools", "uvicorn, h11", "hypercorn", "hypercorn, trio"),
    *("gunicorn, asgi", "gunicorn, threads", "aiohttp, `reaper run`", *LIBRARIES, "daphne"),
    "the reference",
)
PHASES = ("connect", "burst", "rest", "reap", "reload", "drain")
EVERY = 0.002
"""Seconds between an answer and the next question of the live client."""
GOAL_MS = 10
"""The longest that a client should wait, unless it waits longer in the stock server."""
KEEPS = {
    "uvicorn": " --timeout-keep-alive {}",
    "hypercorn": " --keep-alive {}",
    "gunicorn": " --keep-alive {} --worker-connections 100000",
}
"""How a server is told its own limit, so that stock and guarded close at one time."""
RELOADS = ("gunicorn", "the reference")
DRAIN = 3.0


class Live:
    """A client that asks the server at *port* again and again, in a thread.

    Attributes:
        phase: What the waits from now on count for.
        longest: Phase -> the longest wait, and the most work in one, both in seconds.
        asked: Phase -> how many waits there were.
    """

    def __init__(self, server: serving.Server) -> None:
        self.phase = ""
        self.longest: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.asked: dict[str, int] = defaultdict(int)
        self._server = server
        self._clocks: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self, phase: str) -> None:
        """What comes from now on is of *phase*; the server's processes are looked for
        anew.
        """
        self.look()
        self.phase = phase
        if not self._thread.is_alive():
            self._thread.start()

    def look(self) -> None:
        """Count the work of the processes that the server has now."""
        # The kernel's number for "CPU clock of that process".
        self._clocks = [~pid << 3 | 2 for pid in serving.tree(self._server.pid)]

    def settle(self) -> None:
        """Return once a question of this phase has been answered, and its work is
        known: the kernel may tell of a millisecond only later.
        """
        until = time.monotonic() + PATIENCE
        while not self.longest[self.phase][1] and time.monotonic() < until:
            time.sleep(EVERY)

    def end(self) -> None:
        """Ask no more. Returns when the thread has ended."""
        self._over.set()
        self._thread.join()

    def worked(self) -> dict[int, int]:
        """Nanoseconds of processor time of the server's processes so far, by the clock
        of each.
        """
        found = {}
        for clock in self._clocks:
            with suppress(OSError):
                found[clock] = time.clock_gettime_ns(clock)
        return found

    def waited(self, since: float, worked: dict[int, int], phase: str) -> None:
        """Note a wait that began at *since*, when the server's processes had *worked*
        so long. Those that have come or ended meanwhile are not in it.
        """
        longest = self.longest[phase]
        longest[0] = max(longest[0], time.monotonic() - since)
        work = 0
        for clock, before in worked.items():
            with suppress(OSError):
                work += time.clock_gettime_ns(clock) - before
        longest[1] = max(longest[1], work / 1e9)
        self.asked[phase] += 1

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError), self._dial() as client:
                self.look()  # at a reload it may be another process that answers from here on
                while not self._over.is_set() and self._once(client):
                    time.sleep(EVERY)
            time.sleep(EVERY)

    def _dial(self) -> socket.socket:
        return socket.create_connection(self._server.address, PATIENCE)

    def _once(self, client: socket.socket) -> bool:
        """One question; False: the server has ended the connection."""
        phase, since, worked = self.phase, time.monotonic(), self.worked()
        client.sendall(REQUEST)
        said = b""
        while END not in said:
            if not (got := client.recv(4096)):
                return False
            said += got
        self.waited(since, worked, phase)
        return True


def pieces(live: Live, server: serving.Server, phase: str, begun: threading.Event) -> None:
    """Read a long answer in small pieces until it ends; each gap counts for *phase*
    once *begun*.
    """
    with suppress(OSError), socket.create_connection(server.address, PATIENCE) as client:
        client.sendall(b"GET /drops?1000000 HTTP/1.1\r\nhost: x\r\n\r\n")
        while True:
            since, worked, counts = time.monotonic(), live.worked(), begun.is_set()
            if not client.recv(4096):
                break
            if counts:
                live.waited(since, worked, phase)


@contextmanager
def crowd(server: serving.Server) -> Iterator[Callable[..., int]]:
    """Tells a crowd of clients of *server* what to do, see `crowd`."""
    command = [sys.executable, "-m", "benchmarks.servers.crowd", str(server.port)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tell(word: str, number: float = 0) -> int:
            process.stdin.write(f"{word} {number}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return int(process.stdout.readline())  # type: ignore[union-attr]

        try:
            yield tell
        finally:
            process.stdin.close()


def measure(column: Column, guarded: bool, clients: int, kept: float) -> dict[str, Any]:
    """Phase -> the longest `wait` and `work` in ms, of how many `asked`; and how many
    of the crowd were `answered` and `closed`.

    Raises:
        DidNotStart: the server does not listen.
    """
    environment = {**os.environ}
    if guarded:
        environment |= {
            "REAPER_TIMEOUTS_KEEP_ALIVE": f"{kept}s",
            "REAPER_TIMEOUTS_FIRST_BYTE": "10m",
            "REAPER_TIMEOUTS_DRAIN": f"{DRAIN}s",
            "REAPER_LIMITS_MAX_CONNECTIONS": "100000",
        }
    with tempfile.TemporaryDirectory(prefix="reaper-pauses-") as folder:
        port = serving.free_port()
        own = next((KEEPS[name] for name in KEEPS if column.name.startswith(name)), "")
        words = column.command(port, Path(folder), guarded=guarded)
        words += own.format(round(kept)).split()
        server = serving.Server(words, Path(folder) / "log", port=port, environment=environment)
        live = Live(server)
        try:
            server.wait_until_it_listens()
            found = _played(column, server, live, clients, kept)
        finally:
            live.end()
            server.stop()
            server.end()
    phases = {
        phase: {"wait": wait * 1e3, "work": work * 1e3, "asked": live.asked[phase]}
        for phase, (wait, work) in live.longest.items()
        if phase in PHASES
    }
    return {"phases": phases, **found}


def _played(
    column: Column, server: serving.Server, live: Live, clients: int, kept: float
) -> dict[str, int]:
    with crowd(server) as tell:
        live.begin("warm")
        time.sleep(0.5)
        live.begin("connect")
        tell("connect", clients)
        live.settle()
        live.begin("burst")
        answered = tell("ask")
        live.settle()
        live.begin("rest")
        time.sleep(min(3.0, kept / 2))
        live.begin("reap")
        closed = tell("gone", kept + 3)
        live.settle()
        live.begin("between")
        tell("leave")
        if column.name.startswith(RELOADS):
            tell("connect", clients)
            tell("ask")
            live.begin("reload")
            server.process.send_signal(signal.SIGHUP)
            time.sleep(DRAIN + 1)
            live.begin("between")
            tell("leave")
        tell("connect", clients)
        tell("ask")
        begun = threading.Event()
        reader = threading.Thread(target=pieces, args=(live, server, "drain", begun))
        reader.start()
        live.begin("stop")
        time.sleep(0.5)
        begun.set()
        server.stop()
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(DRAIN + 2)
        if server.status is None:
            server.process.kill()  # a stock server waits for the stream's end
        reader.join()
    return {"answered": answered, "closed": closed}


def run(scale: Scale, note: Note, only: Sequence[str] = SERVERS) -> dict[str, Any]:
    """`results[server]["stock" | "guarded"]`, see `measure`.

    Raises:
        RuntimeError: so many clients are more than a process may hold descriptors.
    """
    clients = by_scale(scale, 40, 1000, 8000)
    kept = by_scale(scale, 1.0, 6.0, 20.0)
    if clients > (most := raise_descriptor_limit() - SPARE_DESCRIPTORS):
        raise RuntimeError(f"{clients} clients are more than the {most} descriptors allow")
    results: dict[str, dict[str, Any]] = {}
    for name in only:
        results[name] = {}
        for side in ("stock", "guarded"):
            note(f"{clients:,} clients: {name}, {side}")
            results[name][side] = measure(COLUMNS[name], side == "guarded", clients, kept)
    return {"clients": clients, "kept": kept, "results": results}


def table(found: dict[str, Any]) -> str:
    """A row per server: the most work in a wait, guarded / stock, in each phase; and
    one of the waits.
    """
    parts = []
    for what, head in (("work", "the server's work in a wait, ms"), ("wait", "the wait, ms")):
        rows = []
        for name, sides in found["results"].items():
            cells = [_cell(sides, phase, what) for phase in PHASES]
            rows.append([name, *cells])
        parts.append(markdown([head, *PHASES], rows))
    told = (
        f"The longest of one client beside {found['clients']:,} others, guarded / stock. Bold: "
        f"more than {GOAL_MS} ms, and than stock. `-`: it does not reload, or its application here has "
        "no long answer to be looked at during a stop. A guarded uvicorn makes the protocol of a "
        "connection at its first byte, stock when it is accepted: compare connect and burst "
        "together. Most of both is Python's collector, which visits what all connections hold, "
        "stock and guarded: `tame_gc` keeps it out."
    )
    return "\n\n".join([told, *parts])


def _cell(sides: dict[str, Any], phase: str, what: str) -> str:
    of = [sides[side]["phases"].get(phase, {}).get(what) for side in ("guarded", "stock")]
    said = " / ".join(map(figure, of))
    ours, stock = of
    return f"**{said}**" if ours is not None and ours > max(GOAL_MS, stock or 0) else said
