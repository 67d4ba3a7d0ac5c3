"""What a quiet event stream costs, pinged by `timeouts.stream_ping`, by its application
and by nobody.

All servers run at once, each with as many streams, so the machine's moods meet all of
them. A round is as long as `PINGS` times between two pings; ours come up to a tick
later than its setting says, so a round may have one less of them. The CPU time is that
of the server's process, which carries the packets of both ends of a connection.

*Every stream is still open afterwards, and was pinged as it should be*: anything else
is an error here, and no figure.
"""

from __future__ import annotations

import importlib.util
import os
import select
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psutil

from loadgen.plan.capacity import raise_descriptor_limit
from scripts.serving import free_port, serving, tree

from ..common import Note, Scale, by_scale, figure, markdown, spread
from .stream_apps import FIRST

AT_A_TIME = 50
"""Clients that come together."""
WARM = 50
"""Streams that come and go before memory is looked at."""
PATIENCE = 60.0
PINGS = 4
"""Pings of every stream in a round."""


@dataclass(frozen=True)
class Kind:
    """A server to compare."""

    about: str
    app: str
    guard: bool = False
    pinged: bool = False
    needs: str = ""


KINDS = {
    "stock": Kind("stock, nobody pings", "quiet"),
    "own": Kind("stock, the application pings: a task for each stream", "own", pinged=True),
    "guarded": Kind("guarded, nobody pings", "quiet", guard=True),
    "pinged": Kind("**guarded, `stream_ping`**", "quiet", guard=True, pinged=True),
    "starlette": Kind(
        "stock, Starlette's `StreamingResponse`, nobody pings", "starlette", needs="starlette"
    ),
    "sse-starlette": Kind(
        "stock, sse-starlette, which pings", "sse_starlette", pinged=True, needs="sse_starlette"
    ),
}
UVICORN = "-m uvicorn --loop asyncio --no-access-log --log-level warning --lifespan on"
APPS = "benchmarks.servers.stream_apps"


def command_of(kind: Kind, host: str, port: int) -> list[str]:
    """How *kind* is started."""
    http = "reaper.uvicorn:HttpTools" if kind.guard else "httptools"
    factory = ["--factory"] if kind.needs else []
    where = ["--host", host, "--port", str(port), "--http", http]
    return [sys.executable, *UVICORN.split(), *where, *factory, f"{APPS}:{kind.app}"]


class Site:
    """A server and its clients, which are a process of their own."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, number: int, ping: float) -> None:
        self.name, self.kind = name, KINDS[name]
        environment = os.environ | {"STREAMS_PING": f"{ping:g}", "REAPER_TIMEOUTS_VANISHED": "0s"}
        if self.kind.guard and self.kind.pinged:
            environment["REAPER_TIMEOUTS_STREAM_PING"] = f"{ping:g}s"
        host, port = f"127.0.4.{number + 1}", free_port()  # each has ports of its own
        command = command_of(self.kind, host, port)
        self._server = stack.enter_context(
            serving(command, folder / name, port=port, environment=environment)
        )
        clients = [sys.executable, "-m", "benchmarks.servers.streams", host, str(port)]
        self._clients = stack.enter_context(Popen(clients, stdin=PIPE, stdout=PIPE, text=True))
        stack.callback(self._clients.kill)

    def asked(self, count: int) -> tuple[int, int, int]:
        """Have *count* streams open. Returns how many are, the bytes that have come so
        far after the first event of each, and the pings in them.
        """
        assert self._clients.stdin is not None
        assert self._clients.stdout is not None
        self._clients.stdin.write(f"{count}\n")
        self._clients.stdin.flush()
        open_now, heard, pings = map(int, self._clients.stdout.readline().split())
        return open_now, heard, pings

    def cpu_us(self) -> float:
        """CPU microseconds of the server so far."""
        # The kernel's number for "CPU clock of that process".
        used = sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in tree(self._server.pid))
        return used / 1000

    def rss(self) -> int:
        """Resident bytes of the server."""
        return sum(int(psutil.Process(pid).memory_info().rss) for pid in tree(self._server.pid))


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[server]`: `cpu_us` a second and stream, `memory` and `sent`, bytes of a
    stream, the latter in a minute.

    Raises:
        RuntimeError: a server has ended streams, or did not ping as it should.
    """
    count, ping, rounds = by_scale(scale, (40, 0.5, 1), (1_000, 4.0, 2), (10_000, 15.0, 4))
    few = ("stock", "own", "guarded", "pinged")
    names = by_scale(scale, few, tuple(KINDS), tuple(KINDS))
    not_run = {
        name: f"{kind.needs} is not installed"
        for name, kind in KINDS.items()
        if name in names and kind.needs and importlib.util.find_spec(kind.needs) is None
    }
    names = [name for name in names if name not in not_run]
    results: dict[str, dict[str, Any]] = {}
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        sites, empty = [], {}
        for number, name in enumerate(names):
            note(f"{count:,} streams: {name}")
            site = Site(stack, Path(scratch), name, number, ping)
            site.asked(WARM)
            site.asked(0)
            time.sleep(1.0)  # while it tidies up after them
            empty[name] = site.rss()
            site.asked(count)
            sites.append(site)
        time.sleep(ping)
        cpu: dict[str, list[float]] = {site.name: [] for site in sites}
        before = {site.name: site.asked(count) for site in sites}
        began = time.monotonic()
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}: {PINGS * ping:g} s")
            since, used = time.monotonic(), {site.name: site.cpu_us() for site in sites}
            time.sleep(PINGS * ping)
            seconds = time.monotonic() - since
            for site in sites:
                cpu[site.name].append((site.cpu_us() - used[site.name]) / seconds / count)
        waited = time.monotonic() - began
        periods = waited / (ping + min(1.0, ping / 4))  # a ping may be a tick late
        for site in sites:
            memory = (site.rss() - empty[site.name]) / count
            left, heard, pings = site.asked(count)
            heard, pings = heard - before[site.name][1], pings - before[site.name][2]
            least = count * int(periods - 1) if site.kind.pinged else 0
            if left != count or pings < least or bool(pings) != site.kind.pinged:
                raise RuntimeError(
                    f"{site.name}: {left} of {count} streams are open, {pings} pings"
                )
            results[site.name] = {
                "cpu_us": spread(cpu[site.name]),
                "memory": memory,
                "sent": heard / count / waited * 60,
            }
    return {"streams": count, "ping_s": ping, "results": results, "not_run": not_run}


def table(found: dict[str, Any]) -> str:
    """A row per server."""
    rows = []
    for name, each in found["results"].items():
        cpu = each["cpu_us"]
        rows.append(
            [
                KINDS[name].about,
                f"{cpu['median']:.2f} ({cpu['min']:.2f} to {cpu['max']:.2f})",
                figure(each["memory"]),
                figure(each["sent"]),
            ]
        )
    head = [
        f"{found['streams']:,} quiet streams of uvicorn, pings {found['ping_s']:g} s apart",
        "CPU, us a second and stream",
        "resident bytes a stream",
        "bytes sent a minute and stream",
    ]
    said = (
        "Guarded, each connection is looked at once in `keep_alive`, here uvicorn's 5 s. "
        "`vanished` is off: its table is the next. Every stream was open at the end."
    )
    said += "".join(f" NOT RUN: {name}: {why}." for name, why in found["not_run"].items())
    return markdown(head, rows) + f"\n\n{said}"


# ---- the clients


class Clients:
    """Readers of streams, and what they have heard after the first event of each."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self.heard = self.pings = 0

    def __len__(self) -> int:
        return len(self._open)

    def be(self, count: int) -> None:
        """Come or go until *count* are there."""
        while len(self._open) > count:
            descriptor, client = self._open.popitem()
            self._poll.unregister(descriptor)
            client.close()
        while len(self._open) < count:
            few = [
                socket.create_connection(self._address, timeout=PATIENCE)
                for _ in range(min(AT_A_TIME, count - len(self._open)))
            ]
            for client in few:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            for client in few:
                said = b""
                while FIRST.strip() not in said:
                    if not (data := client.recv(4096)):
                        raise RuntimeError(f"closed after {said!r}")
                    said += data
                client.setblocking(False)
                self._open[client.fileno()] = client
                self._poll.register(client.fileno(), select.EPOLLIN)
            self.listen(0)

    def listen(self, seconds: float) -> bool:
        """Read what has come within *seconds*, or until there is a word on stdin, and
        return whether there is.
        """
        for descriptor, _ in self._poll.poll(seconds):
            if descriptor == sys.stdin.fileno():
                return True
            data = self._open[descriptor].recv(65536)
            if data:
                self.heard += len(data)
                self.pings += data.count(b"\r\n:")  # a chunk that is a comment
            else:
                self._open.pop(descriptor).close()
        return False

    def obey(self) -> None:
        """For each line on stdin be as many, and say what was heard."""
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        while True:
            if self.listen(-1):
                line = sys.stdin.readline()
                if not line:
                    return
                self.be(int(line))
                print(len(self), self.heard, self.pings, flush=True)


if __name__ == "__main__":
    raise_descriptor_limit()
    Clients((sys.argv[1], int(sys.argv[2]))).obey()
