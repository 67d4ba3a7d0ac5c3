"""Readers who leave a stream behind a proxy, and when that lets go of the server.

One rule: *two ends are told apart*. The connection ends when the server's kernel says
so, and the handler when the application does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from loadgen.plan.acts import Act, Kind, Reset, Send, Until
from loadgen.plan.requests import get
from loadgen.playing.play import played
from loadgen.vanish import CLONE_NEWNET

from ..acting import Actor
from ..serving import Server, free_port, serving
from .proxies import PROXIES, command_of
from .words import BEGINS, ENDS, FIRST

LOOK = 0.1
CONNECTING = 20.0
LONG = "1h"
"""The proxy's read timeout: nothing of what is measured is its doing."""
SERVER = "-m uvicorn scripts.streams.app:application --no-access-log --timeout-graceful-shutdown 1"
COMMON = {
    "REAPER_TICK": "250ms",
    "REAPER_LIMITS_MAX_AGE_JITTER": "0",
    "REAPER_TIMEOUTS_VANISHED": "0s",
}
SETTINGS: dict[str, dict[str, str] | None] = {
    "stock": None,
    "`vanished` 6 s": {"VANISHED": "6s"},
    "`stream_ping` 1 s": {"STREAM_PING": "1s"},
    "and `abandoned` 2 s": {"STREAM_PING": "1s", "ABANDONED": "2s"},
    "and `stream_age` 15 s": {"STREAM_PING": "1s", "STREAM_AGE": "15s"},
}
"""What the server is given, by the column's name; None: it is not guarded."""

CLOSES, RESETS, VANISHES, STOPS = "closes", "resets", "vanishes", "stops reading"
WAYS = (CLOSES, RESETS, VANISHES, STOPS)


class Left(NamedTuple):
    """Seconds from when a reader has left; None: not within the patience."""

    connection: float | None
    handler: float | None


Way = tuple[str, str]
"""A proxy, and how its reader leaves."""


class Readers:
    """A server with *given* settings, the proxies before it, and a reader for each way
    of leaving.

    Args:
        stack: Ends them.
        folder: Their files are written there.
        given: By the names of `[timeouts]`; None: the server is not guarded.
        away: The name of a network namespace, and our address for those within: some
            come from there, and vanish with its link.
    """

    def __init__(
        self, stack: ExitStack, folder: Path, given: dict[str, str] | None, away: tuple[str, str]
    ) -> None:
        backend = free_port()
        environment = os.environ | COMMON
        environment |= {f"REAPER_TIMEOUTS_{name}": value for name, value in (given or {}).items()}
        command = [sys.executable, *SERVER.split(), "--port", str(backend)]
        command += [] if given is None else ["--http", "reaper.uvicorn:Auto"]
        self._server = stack.enter_context(
            serving(command, folder / "server.log", port=backend, environment=environment)
        )
        self._readers: dict[Way, Actor] = {}
        for proxy in PROXIES:
            port = free_port()
            words = command_of(proxy, folder / proxy, port, backend, LONG, most=100, host="0.0.0.0")
            stack.enter_context(serving(words, folder / f"{proxy}.log", port=port))
            for number, way in enumerate(WAYS):
                here = way != VANISHES
                reader = Actor(_come("127.0.0.1", port) if here else _in(away[0], away[1], port))
                stack.callback(reader.close)
                reader.do(*_asks(f"/quiet/3600?{proxy}-{number}"))
                self._readers[proxy, way] = reader

    def leave(self) -> None:
        """Those who close or reset do so."""
        for (_, way), reader in self._readers.items():
            if way == RESETS:
                reader.do(Reset())
            if way in (CLOSES, RESETS):
                reader.close()

    def watched(self, patience: float) -> dict[Way, Left]:
        """What becomes of each within *patience* seconds."""
        left = time.monotonic()
        ports = _ports(self._server)
        connections: dict[Way, float] = {}
        handlers: dict[Way, float] = {}
        while time.monotonic() < left + patience:
            time.sleep(LOOK)
            now = time.monotonic() - left
            still = {each.raddr.port for each in self._server.sockets() if each.raddr}
            ended = set(re.findall(rf"{ENDS} (\S+)", self._server.said()))
            for key, port in ports.items():
                if port not in still:
                    connections.setdefault(key, now)
                if f"{key[0]}-{WAYS.index(key[1])}" in ended:
                    handlers.setdefault(key, now)
        return {key: Left(connections.get(key), handlers.get(key)) for key in ports}


def cut_after(folder: Path, proxy: str, patience: float) -> float | None:
    """Seconds after which *proxy*, with its own read timeout, cuts a stream that is
    silent; None: not within *patience*. Nothing is guarded.
    """
    backend, port = free_port(), free_port()
    command = [sys.executable, *SERVER.split(), "--port", str(backend)]
    words = command_of(proxy, folder, port, backend, "", most=10)
    with (
        serving(command, folder / "server.log", port=backend),
        serving(words, folder / "proxy.log", port=port),
    ):
        kind = Kind(name="reads", acts=_asks("/quiet/3600"), limit="any")
        seen = asyncio.run(played(kind, ("127.0.0.1", port), patience))
        return None if seen.ended is None else seen.ended - seen.marks[-1][1]


def _come(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=CONNECTING)


def _in(name: str, host: str, port: int) -> socket.socket:
    """A connection from the network namespace *name*."""
    made: list[socket.socket] = []

    def connect() -> None:
        with open(f"/run/netns/{name}") as handle:
            if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns: {name}")
        made.append(_come(host, port))

    thread = threading.Thread(target=connect)  # that thread alone is elsewhere
    thread.start()
    thread.join()
    return made[0]


def _asks(path: str) -> tuple[Act, ...]:
    """Ask for the stream at *path*, and wait for its first event."""
    return Send(get(path)), Until(text=FIRST)


def _ports(server: Server) -> dict[Way, int]:
    """The ports from which the proxies ask *server*, by proxy and way."""
    found = re.findall(rf"{BEGINS} (\w+)-(\d+) (\d+)", server.said())
    return {(proxy, WAYS[int(number)]): int(port) for proxy, number, port in found}
