"""What giving buffers back costs a TLS connection on asyncio: when it wakes, and while
it is busy.

    python -m benchmarks run tls-costs

Four servers run side by side: stock, guarded, guarded with `release_buffers` off, and
stock once more, the control. Each has its clients, and their processor time is read
from the system: what others take meanwhile is not in it.

- A wake: all clients have rested, and each has one message sent back; then each has
  another one. The difference, per client, is what the rest has made dearer. A stock
  server has no buffer to make anew, but its caches have grown cold, too.
- Busy: a few clients have messages sent back one after the other. The servers take
  turns, and a round is a ratio.
"""

from __future__ import annotations

import os
import random
import shlex
import ssl
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts import serving
from scripts.tools import certificate

from ..common import Note, Scale, by_scale, markdown, ratios, times
from . import tls

SERVERS = ("uvicorn", "`start_server`", "`guard` of a protocol")
SIDES = {"stock": "stock", "guarded": "guarded", "not released": "guarded", "again": "stock"}
"""By its name here, the command that a side has in `tls.Pair`."""
SWITCH = {"REAPER_RELEASE_BUFFERS": "false"}
SIZE = 100
BUSY = 8
REST = 14.0
"""Seconds: a connection is at rest after 4 to 8, and a server lets 128 a second give
back theirs.
"""
GOAL_US = 20.0


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[server]` = {"wake_us": {side: [rounds]}, "cpu": {...}, "rate": {...}}.

    Raises:
        RuntimeError: a server has closed a client.
        scripts.serving.DidNotStart: one does not listen.
    """
    clients, rounds, rest = by_scale(scale, (5, 1, 0.2), (100, 3, REST), (300, 7, REST))
    exchanges, turns = by_scale(scale, (20, 2), (400, 7), (1000, 15))
    results = {}
    for name in SERVERS:
        note(f"{clients} clients of {name} that rest, and {BUSY} that do not")
        with ExitStack() as stack:
            sides = {
                side: stack.enter_context(
                    Side(tls.PAIRS[name], kind, SWITCH if side == "not released" else {})
                )
                for side, kind in SIDES.items()
            }
            for each in sides.values():
                each.dial(clients)
            wakes = [_wakes(sides, rest) for _ in range(rounds)]
            busy = [_busy(sides, exchanges) for _ in range(turns)]
        results[name] = {
            "wake_us": {side: [each[side] for each in wakes] for side in SIDES},
            **{
                what: {
                    side: ratios(
                        [each[side][index] for each in busy],
                        [each["stock"][index] for each in busy],
                    )
                    for side in SIDES
                    if side != "stock"
                }
                for index, what in enumerate(("cpu", "rate"))
            },
        }
    return {"clients": clients, "rest_s": rest, "goal_us": GOAL_US, "results": results}


class Side:
    """A server and its clients."""

    def __init__(self, pair: tls.Pair, kind: str, more: dict[str, str]) -> None:
        self._pair, self._kind, self._more = pair, kind, more
        self._speak = tls.SPEAKING[pair.speaks]
        self._stack = ExitStack()
        self.held: list[ssl.SSLSocket] = []

    def __enter__(self) -> Side:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._port = port = serving.free_port()
            cert, key = certificate(folder)
            command = getattr(self._pair, self._kind).format(port=port, cert=cert, key=key)
            self._trust = ssl.create_default_context(cafile=cert)
            self._server = stack.enter_context(
                serving.serving(
                    shlex.split(command),
                    folder / "log",
                    port=port,
                    environment={**os.environ, **tls.QUIET, **self._more},
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self.held:
            client.close()
        self._stack.close()

    def dial(self, clients: int) -> None:
        """Have so many clients, each of which has spoken."""
        for _ in range(clients):
            self.held.append(tls.dialled(self._port, self._trust, self._pair.speaks, SIZE))

    def cpu_us(self) -> float:
        """Processor time of the server so far."""
        # The kernel's number for "CPU clock of that process".
        return sum(
            time.clock_gettime_ns(~pid << 3 | 2) / 1000.0 for pid in serving.tree(self._server.pid)
        )

    def ask(self, clients: Sequence[ssl.SSLSocket]) -> float:
        """Have each of *clients* ask once; microseconds of the server for each."""
        before = self.cpu_us()
        for client in clients:
            self._speak(client, SIZE)
        return (self.cpu_us() - before) / len(clients)


def _turns(sides: dict[str, Side]) -> list[str]:
    return random.sample(list(sides), len(sides))


def _wakes(sides: dict[str, Side], rest: float) -> dict[str, float]:
    """How much more the first exchange after a rest costs than the next one."""
    time.sleep(rest)
    found = {}
    for side in _turns(sides):
        first = sides[side].ask(sides[side].held)
        found[side] = first - sides[side].ask(sides[side].held)
    return found


def _busy(sides: dict[str, Side], exchanges: int) -> dict[str, tuple[float, float]]:
    """Microseconds of the server for an exchange, and exchanges a second."""
    found = {}
    for side in _turns(sides):
        clients = sides[side].held[:BUSY] * (exchanges // BUSY)
        began = time.perf_counter()
        spent = sides[side].ask(clients)
        found[side] = spent, len(clients) / (time.perf_counter() - began)
    return found


def table(found: dict[str, Any]) -> str:
    """What a wake costs, and what a busy connection does: a row per server."""
    rows, busy = [], []
    words = {"cpu": "CPU of an exchange", "rate": "exchanges a second"}
    ratios = [(what, side) for what in words for side in ("guarded", "again")]
    for name, each in found["results"].items():
        wakes = {side: statistics.median(rounds) for side, rounds in each["wake_us"].items()}
        rows.append([name, *(f"{wakes[side]:.0f}" for side in SIDES)])
        busy.append([name, *(times(each[what][side]) for what, side in ratios)])
    heads = [f"{words[what]}: {side}" for what, side in ratios]
    said = (
        f"A wake: what the first message after {found['rest_s']:g} s of rest costs the server "
        f"more than the next one, median of rounds of {found['clients']} clients; the goal is "
        f"{found['goal_us']:g} us more than with *not released*, which is guarded without "
        f"`release_buffers`. The others are ratios to stock of {BUSY} clients "
        "that are busy; *again* is stock once more, the control."
    )
    wake = markdown(["", *(f"a wake, us: {side}" for side in SIDES)], rows)
    return f"{wake}\n\n{markdown(['', *heads], busy)}\n\n{said}"
