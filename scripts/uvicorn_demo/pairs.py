"""Requests per second of a guarded uvicorn compared with a stock one, in one run: four pairs, about a minute each.

    python -m scripts.uvicorn_demo.pairs                       # all four
    python -m scripts.uvicorn_demo.pairs --pair uvloop+h11

One rule: *only ratios within a round are reported*. The two servers of a pair differ in `--http` alone; wrk loads one
after the other, in turns, so what else the machine does hits both. A third server, stock again, is the control: how far
its ratio is from 1.00 is how far the other may be wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from scripts.serving import Server, free_port, serving

from .trials import load

LOOPS = ("asyncio", "uvloop")
PARSERS = {"httptools": "reaper.uvicorn:HttpTools", "h11": "reaper.uvicorn:H11"}
PAIRS = [f"{loop}+{parser}" for parser in PARSERS for loop in LOOPS]
GOALS = {"httptools": 1.0, "h11": 0.98}


async def app(scope: Any, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Nothing but an answer, so that what is measured is the server."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


def start(stack: ExitStack, log: Path, loop: str, http: str, *flags: str, **settings: str) -> Server:
    """One server on *loop* with *http*, more *flags* of uvicorn's and *settings* in its environment."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "scripts.uvicorn_demo.pairs:app", "--lifespan", "off", *flags]
    command += ["--loop", loop, "--http", http, "--no-access-log", "--log-level", "warning", "--port", str(port)]
    return stack.enter_context(serving(command, log, port=port, environment=os.environ | settings))


def processor_seconds(pid: int) -> float:
    """That the one thread of *pid* has used, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def once(server: Server, seconds: float) -> tuple[float, float]:
    """Requests per second, and per second of the server's processor time."""
    before, begun = processor_seconds(server.pid), time.monotonic()
    rate = load(server.port, seconds)
    return rate, rate * (time.monotonic() - begun) / (processor_seconds(server.pid) - before)


def spread(ratios: list[float]) -> str:
    """The median, and the lowest and the highest."""
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def compare(pair: str, rounds: int, seconds: float) -> bool:
    """Print the ratios of *pair*; whether its goal is met, by the clock."""
    loop, _, parser = pair.partition("+")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kinds = (parser, PARSERS[parser], parser)
        stock, guarded, control = (
            start(stack, folder / f"{number}.log", loop, http) for number, http in enumerate(kinds)
        )
        for server in (stock, guarded, control):
            load(server.port, 1.0)
        found: dict[str, tuple[list[float], list[float]]] = {"guarded": ([], []), "control": ([], [])}
        rates: list[float] = []
        for number in range(rounds):
            order = [("stock", stock), ("guarded", guarded), ("control", control)]
            order = order[number % 3 :] + order[: number % 3]
            measured = {name: once(server, seconds) for name, server in order}
            rates.append(measured["stock"][0])
            for name, ratios in found.items():
                for kind in (0, 1):
                    ratios[kind].append(measured[name][kind] / measured["stock"][kind])
    by_clock, by_processor = found["guarded"]
    goal = GOALS[parser]
    met = median(by_clock) >= goal
    said = f"goal {goal:.2f}: {'met' if met else 'MISSED'}"
    print(f"{pair}: {rounds} rounds of {seconds:g} s each; stock {median(rates):,.0f} requests/s")
    print(f"  guarded / stock, requests per second        {spread(by_clock)}, {said}")
    print(f"  stock / stock, the same (the control)       {spread(found['control'][0])}")
    print(f"  guarded / stock, per second of processor    {spread(by_processor)}")
    print(f"  stock / stock, the same (the control)       {spread(found['control'][1])}", flush=True)
    return met


def main() -> int:
    """Run it; exit status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        prog="uvicorn_demo.pairs", description="Guarded uvicorn compared with stock, paired."
    )
    parser.add_argument("--pair", choices=PAIRS, action="append", help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per pair; default 7")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per server and round; default 2")
    arguments = parser.parse_args()
    if not shutil.which("wrk"):
        print("pairs: wrk is not installed: apt-get install wrk", file=sys.stderr)
        return 2
    met = [compare(pair, arguments.rounds, arguments.seconds) for pair in arguments.pair or PAIRS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
