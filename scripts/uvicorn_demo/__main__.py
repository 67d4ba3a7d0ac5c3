"""`make uvicorn-demo`: a FastAPI application under uvicorn twice, stock and guarded; both are attacked and measured.

One rule: the two differ in one flag. Exit status 0: every attack on the guarded server ended, and none too early.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from scripts.serving import Server, free_port, serving

from .attacks import PLAIN, Attack, Borne, all_borne, grows_old
from .trials import WAITING, healthy, loader, paused, requests_per_second

TIMEOUT = 3.0
"""Seconds, of every kind in the demo, so that the demo is short; `max_age` is longer than one."""

MAX_AGE = 5.0
PAUSE = 3 * TIMEOUT
GUARDED = "reaper.uvicorn:HttpTools"
SETTINGS = {
    "REAPER_TICK": "500ms",
    **{
        f"REAPER_TIMEOUTS_{name}": f"{TIMEOUT:g}s"
        for name in ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "HALF_CLOSED", "TUNNEL", "LINGER")
    },
    "REAPER_TIMEOUTS_MAX_AGE": f"{MAX_AGE:g}s",
}
# max_age is shortened at random by up to a tenth, so that not all go at once.
EARLIEST: dict[Attack, float] = {grows_old: MAX_AGE * 0.9}


def start(stack: ExitStack, folder: Path, http: str, settings: Mapping[str, str] = MappingProxyType({})) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "scripts.uvicorn_demo.app:app", "--http", http, "--no-access-log"]
    command += ["--port", str(port), "--timeout-keep-alive", f"{TIMEOUT:g}"]
    log = folder / f"{http.partition(':')[0]}.log"
    return stack.enter_context(serving(command, log, port=port, environment=os.environ | SETTINGS | dict(settings)))


async def attacked(server: Server, patience: float) -> tuple[dict[Attack, list[Borne]], tuple[int, int]]:
    return await asyncio.gather(all_borne(PLAIN, server.port, patience), healthy(server.port, patience))


def shown(borne: Borne) -> str:
    return "never" if borne.seconds is None else f"{borne.seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="uvicorn_demo", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of load on each server; default 5")
    parser.add_argument("--patience", type=float, default=15.0, help="seconds that attackers hold out; default 15")
    parser.add_argument("--no-pause", action="store_true", help="do not stop the processes for a while")
    arguments = parser.parse_args()
    rounds: int = arguments.rounds
    patience: float = arguments.patience
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [start(stack, folder, "httptools"), start(stack, folder, GUARDED)]
        print(f"FastAPI under uvicorn: stock, and with --http {GUARDED}; every timeout {TIMEOUT:g} s, tick 0.5 s.")
        print(f"When the server closes; never: not within {patience:g} s.\n")
        found, clients = zip(*asyncio.run(both_attacked(servers, patience)), strict=True)
        rows = [[doing(attack), shown(found[0][attack][0]), shown(found[1][attack][0])] for attack in PLAIN]
        rows.append(["healthy clients meanwhile", *(f"{ok} of {ok + bad} answered" for ok, bad in clients)])
        waited = [WAITING, WAITING]
        if not arguments.no_pause:
            waited = [paused(server, PAUSE) for server in servers]
            name = f"process paused for {PAUSE:g} s: requests that waited"
            rows.append([name, *(f"{count} of {WAITING} answered" for count in waited)])
        rates = requests_per_second(servers, rounds, 2.0) if rounds else []
        if rates:
            rows.append([f"requests per second, {loader()}", *(f"{rate:,.0f}" for rate in rates)])
    show(["the client...", "stock", "guarded"], rows)
    bad = [attack for attack in PLAIN if not well(attack, found[1][attack][0])]
    for attack in bad:
        print(f"guarded: {doing(attack)}: {shown(found[1][attack][0])}", file=sys.stderr)
    return 1 if bad or waited[1] < WAITING else 0


async def both_attacked(
    servers: list[Server], patience: float
) -> list[tuple[dict[Attack, list[Borne]], tuple[int, int]]]:
    return await asyncio.gather(*(attacked(server, patience) for server in servers))


def well(attack: Attack, borne: Borne) -> bool:
    """Whether the attack ended, and not too early."""
    return borne.seconds is not None and borne.seconds >= EARLIEST.get(attack, TIMEOUT)


def doing(attack: Attack) -> str:
    """What the attacker does, as its docstring says."""
    said = (attack.__doc__ or attack.__name__).strip().rstrip(".")
    return said[0].lower() + said[1:]


def show(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


if __name__ == "__main__":
    sys.exit(main())
