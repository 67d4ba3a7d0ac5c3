"""What a client that rests costs a server in processor time: stock, and guarded.

    python -m benchmarks run resting          needs strace for its last columns

Each client has asked once, and keeps its connection: the server looks for those that
have gone (`vanished`) and knows when the client's time is over (`keep_alive`, here 15
minutes). Guarded, it is measured with and without that search: without it, what is left
is what the limit costs.

The time of all threads of all its processes is read from the kernel before there are
clients and while they rest, and the first is taken off. A minute has all that is done
once a minute. The three are measured in the same minute, beside the others. daphne is
not among them: its channel ends whoever rests for a minute, stock and guarded.

System calls are counted afterwards, in another minute: what a stock server makes too is
taken off.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from reaper.servers.cards import rooms
from scripts import serving
from scripts.programs.apps import programs

from ..common import Note, Scale, by_scale, markdown
from .apps import PATH
from .guarded import PAIRS, PATIENCE, RUN

KEEP_ALIVE = 900
"""Seconds for which a client may rest."""
SETTLED = 13.0
"""Seconds until nothing but rest is left: one more than the shortest limit, a tick, and
what each server does after an answer.
"""
TOGETHER = 128
"""Clients that wait for their answers at once."""
AT_ONCE = 3
"""Servers that are measured at the same time, each in every way."""
GOAL = 0.3
"""Microseconds a second that the limit of a resting client is to cost at the most."""
STOCK, GUARDED, ALONE = "stock", "guarded", "`vanished` off"
"""The ways in which a server is measured; the last is guarded, too."""
KEYS = {"us": "us a second", "calls": "calls a minute"}
"""What is measured of a client, and its head in the table."""
PROGRAMS = shlex.join([sys.executable, str(programs.__file__)])

Commands = dict[str, tuple[str, str]]


def _commands() -> Commands:
    """By server, how it is started: stock, and guarded."""
    more = {
        "uvicorn": f" --timeout-keep-alive {KEEP_ALIVE}",
        "hypercorn": f" --keep-alive {KEEP_ALIVE}",
        "gunicorn": f" --keep-alive {KEEP_ALIVE} --worker-connections 9000",
    }
    found = {}
    for name, pair in PAIRS.items():
        if pair.speaks == "http":
            with_more = more.get(name.partition(",")[0], "")
            found[name] = pair.stock + with_more, pair.guarded + with_more
    asked = [room for room, card in rooms().items() if card.family == "asked"]
    for name in filter(partial(hasattr, programs), asked):
        command = f"{PROGRAMS} {name} {{port}}"
        found[name] = command, f"{RUN} {command}"
    return found


def run(scale: Scale = "full", note: Note = lambda _: None) -> dict[str, Any]:
    """`results[server][how]`, *how* being `STOCK`, `GUARDED` and `ALONE`: `us`,
    microseconds of processor a client and second; `calls`, system calls a client and
    minute, or none where strace is missing.
    """
    clients, seconds = by_scale(scale, (20, 1.0), (300, 20.0), (2000, 60.0))
    settled = by_scale(scale, 0.2, SETTLED, SETTLED)
    commands = list(_commands().items())[: by_scale(scale, 1, None, None)]

    def each_way(one: tuple[str, tuple[str, str]]) -> tuple[str, dict[str, dict[str, float]]]:
        name, (stock, guarded) = one
        note(f"{clients:,} clients rest in {name}")
        off = {"REAPER_TIMEOUTS_VANISHED": "0s"}
        ways: dict[str, tuple[str, dict[str, str]]]
        ways = {STOCK: (stock, {}), GUARDED: (guarded, {}), ALONE: (guarded, off)}
        with ThreadPoolExecutor(len(ways)) as pool:
            found = pool.map(
                lambda way: rest(way[0], way[1], clients, settled, seconds), ways.values()
            )
            return name, dict(zip(ways, found, strict=True))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = dict(pool.map(each_way, commands))
    return {"clients": clients, "seconds": seconds, "results": results}


def rest(
    command: str, settings: dict[str, str], clients: int, settled: float, seconds: float
) -> dict[str, float]:
    """What each of *clients* costs the server of *command*, with *settings* in its
    environment.

    Raises:
        RuntimeError: it did not keep them all.
    """
    port = serving.free_port()
    environment = {
        "REAPER_TIMEOUTS_KEEP_ALIVE": f"{KEEP_ALIVE}s",
        "SANIC_KEEP_ALIVE_TIMEOUT": str(KEEP_ALIVE),
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        log = Path(folder) / "log"
        server = held.enter_context(
            serving.serving(
                shlex.split(command.format(port=port)),
                log,
                patience=PATIENCE,
                port=port,
                environment=os.environ | environment | settings,
            )
        )
        for client in come(port, 8):
            client.close()
        time.sleep(settled)
        empty = spent(server.pid, seconds)
        there = [held.enter_context(client) for client in come(port, clients)]
        time.sleep(settled)
        found = {"us": (spent(server.pid, seconds) - empty) / clients * 1e6}
        if shutil.which("strace") is not None:
            found["calls"] = calls(server.pid, seconds) * 60 / seconds / clients
        for client in there:
            client.setblocking(False)
            with suppress(BlockingIOError):
                if not client.recv(1):
                    raise RuntimeError(f"{command}: a client was not kept: {server.said()[-500:]}")
        return found


def come(port: int, clients: int) -> list[socket.socket]:
    """So many connections, each of which has been answered once."""
    request = f"GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    found: list[socket.socket] = []
    while len(found) < clients:
        group = [
            socket.create_connection(("127.0.0.1", port), PATIENCE)
            for _ in range(min(TOGETHER, clients - len(found)))
        ]
        for client in group:
            client.sendall(request)
        for client in group:
            heard = b""
            while not heard.endswith((b"ok", b"0\r\n\r\n")):
                data = client.recv(4096)
                if not data:
                    raise RuntimeError("a server closed the connection of a client that asks")
                heard += data
        found += group
    return found


def spent(pid: int, seconds: float) -> float:
    """The share of a processor that *pid* and its children take for so long."""
    before, began = _processor(pid), time.monotonic()
    time.sleep(seconds)
    return (_processor(pid) - before) / (time.monotonic() - began)


def _processor(pid: int) -> float:
    """Seconds of processor that the threads of *pid* and its children have taken."""
    total = 0
    for each in serving.tree(pid):
        for task in Path(f"/proc/{each}/task").iterdir():
            with suppress(FileNotFoundError):  # it has ended
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def calls(pid: int, seconds: float) -> int:
    """The system calls that *pid* and its children make in so many seconds."""
    with tempfile.NamedTemporaryFile("r") as table:
        pids = [word for each in serving.tree(pid) for word in ("-p", str(each))]
        command = ["strace", "-f", "-c", "-U", "calls,name", "-o", table.name, *pids]
        counting = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        counting.send_signal(signal.SIGINT)
        counting.wait(PATIENCE)
        rows = [line.split() for line in table.read().splitlines()]
    return sum(int(row[0]) for row in rows if len(row) == 2 and row[1] == "total")


def table(found: dict[str, Any]) -> str:
    """A row per server."""
    rows = []
    for name, ways in found["results"].items():
        each = [ways.get(way, {}) for way in (STOCK, GUARDED, ALONE)]
        rows.append([name, *(f"{way[k]:.2f}" if k in way else "" for k in KEYS for way in each)])
    head = ["", *(f"{KEYS[key]}, {way}" for key in KEYS for way in (STOCK, GUARDED, ALONE))]
    said = (
        f"{found['clients']:,} clients, each of which rests for a minute and more of its "
        f"{KEEP_ALIVE // 60} minutes. Guarded, each is asked about twice a minute, because it "
        "may have vanished: that is the most of what it costs. With `vanished` off it is looked "
        f"at once, in its own limit; the goal for that is {GOAL} us. daphne ends them after a "
        "minute by itself."
    )
    return f"{markdown(head, rows)}\n\n{said}"
