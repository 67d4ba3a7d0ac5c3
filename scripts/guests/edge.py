"""Requests at the edge of the keep-alive, behind proxies whose pools outlive it: what
each guest loses, stock and guarded.

    python -m scripts.guests.edge [--only GUEST] [--proxy NAME] [--pairs 400]

The rule of this module: *who is compared is asked in the same minute, in turns*. A
client sends two POSTs through a proxy, the second of which reaches the server about
when `keep_alive` is over: between a tick and a round trip before it, and as much after.
A proxy repeats no POST, so one that crosses the server's close is lost. Between proxy
and server is a wire on which everything takes 20 ms.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from reaper.config.flags import Parser

from ..edges import PROXIES, pairs_lost, proxy
from ..races import wire
from ..serving import free_port, serving
from ..tools import Missing
from .columns import COLUMNS, Column

KEEP_ALIVE, TICK, WIRE = 2.0, 0.1, 0.02
"""Seconds: of the server, of its guard, and of the wire each way."""
SPREAD = TICK + WIRE
"""Seconds on each side of the middle of the window, half a tick after the limit."""
ROUND = 100
"""Clients at once, so that a proxy holds as many connections, all equally old."""
GUESTS = (
    *("uvicorn, httptools", "uvicorn, h11", "gunicorn, asgi", "gunicorn, threads"),
    *("aiohttp, `reaper run`", "aiohttp, `run_app`", "hypercorn", "hypercorn, trio"),
)
"""Those whose programs can be told a keep-alive, so that stock has the same."""
OWN = {
    "uvicorn": " --timeout-keep-alive 2",
    "hypercorn": " --keep-alive 2",
    "gunicorn": " --keep-alive 2 --worker-connections 2000",
}
SETTINGS = {
    "REAPER_TICK": f"{TICK}s",
    "REAPER_TIMEOUTS_KEEP_ALIVE": f"{KEEP_ALIVE}s",
    "AIOHTTP_KEEP_ALIVE": f"{KEEP_ALIVE}",
}


@contextmanager
def guest(column: Column, *, guarded: bool) -> Iterator[int]:
    """The port of *column*, stock or guarded."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        words = column.command(port, Path(folder), guarded=guarded)
        words += next((OWN[name] for name in OWN if column.name.startswith(name)), "").split()
        with serving(words, Path(folder) / "log", port=port, environment=os.environ | SETTINGS):
            yield port


def lost(
    column: Column, proxies: Sequence[str], pairs: int, note: Callable[[str], None]
) -> dict[str, dict[str, tuple[int, int]]]:
    """`[proxy]["stock" | "guarded"]`: how many second POSTs were lost, of how many.

    Raises:
        Missing: a proxy is not installed.
        RuntimeError: nobody answers.
    """
    sums: dict[str, dict[str, Counter[str]]] = {}
    with ExitStack() as stack:
        ports: dict[tuple[str, str], int] = {}
        for side in ("stock", "guarded"):
            server = stack.enter_context(guest(column, guarded=side == "guarded"))
            far = stack.enter_context(wire(server, WIRE))
            for name in proxies:
                ports[name, side] = stack.enter_context(proxy(name, far))
                sums.setdefault(name, {})[side] = Counter()
        for turn in range(-(-pairs // ROUND)):
            for (name, side), port in ports.items():
                of = min(ROUND, pairs - turn * ROUND)
                sums[name][side] += pairs_lost(port, KEEP_ALIVE + TICK / 2, SPREAD, of, turn)
            note(f"{column.name}: {min((turn + 1) * ROUND, pairs)} of {pairs}")
    return {
        name: {side: (found["lost"], found["tried"]) for side, found in each.items()}
        for name, each in sums.items()
    }


def more_than_by_chance(stock: tuple[int, int], guarded: tuple[int, int]) -> bool:
    """Whether *guarded* loses more than *stock*, beyond two standard deviations."""
    (ours, of), (theirs, beside) = guarded, stock
    if not of or not beside:
        return False
    both = (ours + theirs) / (of + beside)
    deviation = math.sqrt(both * (1 - both) * (1 / of + 1 / beside))
    return ours / of - theirs / beside > 2 * deviation


def main(words: list[str] | None = None) -> int:
    """Print the table. Exit status: 0 no guest loses more than stock does, 1 one does,
    2 a proxy is not installed, or a name is not known.
    """
    parser = Parser(prog="python -m scripts.guests.edge", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="GUEST", choices=GUESTS, help=", ".join(GUESTS))
    parser.add_argument("--proxy", choices=PROXIES, help="this one alone")
    parser.add_argument("--pairs", type=_pairs, default=400, help="of each cell")
    given = parser.parse_args(words)
    proxies = [given.proxy] if given.proxy else list(PROXIES)
    worse = []
    print("| lost of pairs, stock / guarded | " + " | ".join(proxies) + " |")
    print("| --- |" + " ---: |" * len(proxies), flush=True)
    for name in [given.only] if given.only else GUESTS:
        try:
            found = lost(COLUMNS[name], proxies, given.pairs, _note)
        except Missing as missing:
            parser.error(str(missing))
        cells = [
            f"{each['stock'][0]} / {each['guarded'][0]} of {each['guarded'][1]}"
            for each in found.values()
        ]
        print("| " + " | ".join([name, *cells]) + " |", flush=True)
        worse += [
            f"{name} behind {proxy}"
            for proxy, each in found.items()
            if more_than_by_chance(each["stock"], each["guarded"])
        ]
    if worse:
        print(f"guarded loses more than stock, beyond chance: {', '.join(worse)}")
    return 1 if worse else 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pairs(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
