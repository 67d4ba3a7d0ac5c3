"""Requests at the edge of the keep-alive, behind proxies with pools: what each guest
loses, stock and guarded.

    python -m scripts.guests.edge [--only GUEST] [--proxy NAME] [--scans 9] [--advised]

The rule of this module: *who is compared is asked at the same time, and all of the race
lies in the window*. Clients POST through a proxy, all at once, and again after a rest,
when `keep_alive` is about to be over. A proxy repeats no POST, so one that crosses the
server's close is lost. Between proxy and server is a wire on which all takes 20 ms.

A scan tries rests from the beginning of the window to its end. A window that begins too
late spares whoever closes first, and one that ends too early whoever closes last.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reaper.config.flags import Parser

from ..edges import PROXIES, proxy, volley
from ..races import wire
from ..serving import free_port, serving
from ..tools import Missing
from .columns import COLUMNS, Column

TICK, WIRE = 0.1, 0.02
"""Seconds: of the guard, and of the wire each way."""
AMISS = 0.15
"""Seconds by which a busy machine may have a request come later than it was meant to,
or a server close later.
"""


@dataclass(frozen=True)
class Edge:
    """When the second POST goes out.

    Attributes:
        keep_alive: Seconds, of the server.
        low, high: Seconds after the answer to the first, at the least and at the most.
        gives_up: Whether the proxy's pool gives an idle connection up within 2 s.
    """

    keep_alive: float
    low: float
    high: float
    gives_up: bool = False


RACE = Edge(2.0, 2.0 - 2 * WIRE - AMISS, 2.0 + TICK + AMISS)
"""The pool outlives the keep-alive."""
ADVISED = Edge(4.0, 1.7, 4.3, gives_up=True)
"""The pool gives up first, as docs/howto/proxies.md advises."""
CLIENTS, RESTS, COPIES = 10, 20, 3
"""Clients at once, rests of a scan, and proxies of a kind that are scanned at once."""
APART = 0.15
"""Seconds between the beginnings of scans, which would otherwise be in step."""
DEVIATIONS = 2.5
"""Standard deviations that are not left to chance: a table has 32 cells."""
GUESTS = (
    *("uvicorn, httptools", "uvicorn, h11", "gunicorn, asgi", "gunicorn, threads"),
    *("aiohttp, `reaper run`", "aiohttp, `run_app`", "hypercorn", "hypercorn, trio"),
)
"""Those whose programs can be told a keep-alive, so that stock has the same."""
OWN = {
    "uvicorn": "--timeout-keep-alive {:.0f}",
    "hypercorn": "--keep-alive {:.0f}",
    "gunicorn": "--keep-alive {:.0f}",
}
"""How a stock server is told its keep-alive; aiohttp's program reads a variable."""


@contextmanager
def guest(column: Column, seconds: float, *, guarded: bool) -> Iterator[int]:
    """The port of *column*, stock or guarded, whose keep-alive is *seconds*. Each keeps
    the limit by itself: a server that has two may close by either.
    """
    port = free_port()
    told = {"REAPER_TICK": f"{TICK:g}s", "REAPER_TIMEOUTS_KEEP_ALIVE": f"{seconds:g}s"}
    environment = os.environ | (told if guarded else {"AIOHTTP_KEEP_ALIVE": f"{seconds:g}"})
    own = next((OWN[name] for name in OWN if column.name.startswith(name)), "")
    with tempfile.TemporaryDirectory() as folder:
        words = column.command(port, Path(folder), guarded=guarded)
        words += [] if guarded else own.format(seconds).split()
        if column.name.startswith("gunicorn"):
            words += ["--worker-connections", "2000"]
        with serving(words, Path(folder) / "log", port=port, environment=environment):
            yield port


@dataclass
class Cell:
    """A guest behind a proxy.

    Attributes:
        scans: What each scan lost, and tried: stock, guarded.
    """

    scans: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)

    @property
    def lost(self) -> tuple[int, int]:
        """How many second POSTs were lost, stock and guarded."""
        return sum(each[0][0] for each in self.scans), sum(each[1][0] for each in self.scans)

    @property
    def is_worse(self) -> bool:
        """Whether the guarded one loses more, beyond what chance explains.

        POSTs of a volley are lost together, so scans are compared, and not POSTs. If
        nothing but chance made stock and guarded differ in a scan, either might as well
        have been the other, and each difference be of either sign.
        """
        apart = [guarded[0] - stock[0] for stock, guarded in self.scans]
        return sum(apart) > DEVIATIONS * math.sqrt(sum(each * each for each in apart))

    def __str__(self) -> str:
        return f"{self.lost[0]} / {self.lost[1]} of {sum(each[1][1] for each in self.scans):,}"


def rests(edge: Edge, scan: int, scans: int) -> list[float]:
    """The rests of a *scan*, the first is 0, of so many *scans*, in an order of its
    own. No two scans try the same one.
    """
    step = (edge.high - edge.low) / RESTS
    found = [edge.low + (place + (scan + 0.5) / scans) * step for place in range(RESTS)]
    random.Random(scan).shuffle(found)
    return found


def raced(
    column: Column,
    proxies: Sequence[str],
    scans: int,
    note: Callable[[str], None],
    edge: Edge = RACE,
) -> dict[str, Cell]:
    """What is lost behind each of *proxies*, in so many *scans*.

    Raises:
        Missing: a proxy is not installed.
        RuntimeError: nobody answers.
    """
    cells = {name: Cell() for name in proxies}

    async def scanned(cell: Cell, ports: Sequence[int], copy: int, late: float) -> None:
        await asyncio.sleep(late)
        for scan in range(copy, scans, COPIES):
            sums = [(0, 0), (0, 0)]
            for rest in rests(edge, scan, scans):
                found = await volley(ports, rest, CLIENTS)
                sums = [(a + c, b + d) for (a, b), (c, d) in zip(sums, found, strict=True)]
            cell.scans.append((sums[0], sums[1]))
            note(f"{column.name}: lost, and tried, stock and guarded: {sums[0]}, {sums[1]}")

    async def all_scanned() -> None:
        async with asyncio.TaskGroup() as tasks:
            for place, ((name, copy), ports) in enumerate(lanes.items()):
                tasks.create_task(scanned(cells[name], ports, copy, place * APART))

    with ExitStack() as stack:
        lanes: dict[tuple[str, int], list[int]] = {}
        for guarded in (False, True):
            server = stack.enter_context(guest(column, edge.keep_alive, guarded=guarded))
            far = stack.enter_context(wire(server, WIRE))
            for copy in range(min(COPIES, scans)):
                for name in proxies:
                    port = stack.enter_context(proxy(name, far, gives_up=edge.gives_up))
                    lanes.setdefault((name, copy), []).append(port)
        asyncio.run(all_scanned())
    return cells


def main(words: list[str] | None = None) -> int:
    """Print the table. Exit status: 0 no guest loses more than stock does, 1 one does,
    2 a proxy is not installed, or a name is not known.
    """
    parser = Parser(prog="python -m scripts.guests.edge", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="GUEST", choices=GUESTS, help=", ".join(GUESTS))
    parser.add_argument("--proxy", choices=PROXIES, help="this one alone")
    parser.add_argument("--scans", type=_scans, default=9, help="of each cell, of 200 POSTs")
    parser.add_argument(
        "--advised", action="store_true", help="the pool gives up first; 1 if any is lost"
    )
    given = parser.parse_args(words)
    proxies = [given.proxy] if given.proxy else list(PROXIES)
    edge, worse = ADVISED if given.advised else RACE, []
    print("| lost of POSTs, stock / guarded | " + " | ".join(proxies) + " |")
    print("| --- |" + " ---: |" * len(proxies), flush=True)
    for name in [given.only] if given.only else GUESTS:
        try:
            found = raced(COLUMNS[name], proxies, given.scans, _note, edge)
        except Missing as missing:
            parser.error(str(missing))
        print("| " + " | ".join([name, *map(str, found.values())]) + " |", flush=True)
        worse += [
            f"{name} behind {proxy}"
            for proxy, cell in found.items()
            if (any(cell.lost) if edge.gives_up else cell.is_worse)
        ]
    if worse:
        what = "some are lost" if edge.gives_up else "guarded loses more than stock, beyond chance"
        print(f"{what}: {', '.join(worse)}")
    return 1 if worse else 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _scans(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
