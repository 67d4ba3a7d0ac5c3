"""`make uvicorn-demo`: a FastAPI application under uvicorn twice, stock and guarded; both are attacked and measured.

*The two differ in one flag.* Exit status 0: every attack on the guarded server ended, and none too early.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from loadgen.clients import Account, Client, Ended, Speech, behaviour, keep_asking, play, play_all
from loadgen.drive.protocols import Paths
from loadgen.plan.behaviours import KINDS
from scripts.serving import Server, free_port, serving

TIMEOUT = 3.0
"""Seconds, of every kind in the demo, so that the demo is short; `max_age` is longer than one."""
MAX_AGE = 5.0
PAUSE = 3 * TIMEOUT
WAITING = 30
"""Requests that wait in the kernel while the process is paused."""
GUARDED = "reaper.uvicorn:HttpTools"
SETTINGS = {
    "REAPER_TICK": "500ms",
    **{
        f"REAPER_TIMEOUTS_{name}": f"{TIMEOUT:g}s"
        for name in ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "HALF_CLOSED", "TUNNEL", "LINGER")
    },
    "REAPER_TIMEOUTS_MAX_AGE": f"{MAX_AGE:g}s",
}
ATTACKS = {
    "mute": "connects and says nothing",
    "slow_headers": "sends its headers a line at a time, without an end",
    "slow_second_headers": "the same, of a second request",
    "stalled_body": "announces a body and stops in the middle of it",
    "slow_body": "sends a body a byte at a time",
    "unread": "asks for much and reads nothing of it",
    "slow_read": "asks for much and reads a few bytes per second",
    "unread_half_closed": "asks for much, half-closes, and reads nothing",
    "silent": "one request, then silence",
    "chatty": "one request after the other, for ever",
    "slow_upgrade": "sends the handshake of a WebSocket a line at a time",
    "silent_upgrade": "opens a WebSocket and answers nothing, no ping either",
}
"""Of `loadgen.plan.behaviours`; `chatty` is no attack, but must not stay for ever either."""
SPEECH = Speech(paths=Paths("/", "/echo", "/big"))
HANDSHAKE = Speech(protocol="ws", paths=Paths("/ws"))


def start(stack: ExitStack, folder: Path, http: str, settings: Mapping[str, str] = MappingProxyType({})) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "scripts.uvicorn_demo.app:app", "--http", http, "--no-access-log"]
    command += ["--port", str(port), "--timeout-keep-alive", f"{TIMEOUT:g}"]
    log = folder / f"{http.partition(':')[0]}.log"
    return stack.enter_context(serving(command, log, port=port, environment=os.environ | SETTINGS | dict(settings)))


async def attacked(server: Server, patience: float) -> tuple[dict[str, Ended], Account]:
    """Every attack, and a healthy client meanwhile."""
    account, end = Account(), time.monotonic() + patience
    plain = [kind for kind in ATTACKS if "ws" not in KINDS[kind].protocols and kind != "slow_read"]
    found, upgraded, slow, _ = await asyncio.gather(
        play_all(plain, server.address, SPEECH, patience),
        play_all(["silent_upgrade"], server.address, HANDSHAKE, patience),
        play(behaviour("slow_read", every="2s"), server.address, SPEECH, patience),
        keep_asking(server.address, lambda: time.monotonic() > end, account, 0.1),
    )
    return {"slow_read": slow, **{kind: ends[0] for kind, ends in (found | upgraded).items()}}, account


def borne(kind: str, ended: Ended) -> float | None:
    """How long the server bore it; a client that talks for ever is borne from its beginning on."""
    return ended.at - ended.connected if kind == "chatty" and ended.borne is not None else ended.borne


async def both_attacked(servers: list[Server], patience: float) -> list[tuple[dict[str, Ended], Account]]:
    return await asyncio.gather(*(attacked(server, patience) for server in servers))


async def paused(server: Server, seconds: float) -> int:
    """Stop the process for *seconds* while requests come in on idle connections: how many are answered then."""
    stopped = time.monotonic() + 1.0
    spoken = behaviour("chatty", 2.0, shortest="1500ms", longest="1500ms")
    clients = [Client(spoken, server.address) for _ in range(WAITING)]
    load = asyncio.gather(*(client.play(lambda one=client: one.ended.answered >= 2, 3 * seconds) for client in clients))  # type: ignore[misc]
    await asyncio.sleep(stopped - time.monotonic())
    os.kill(server.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(server.pid, signal.SIGCONT)
    return sum(ended.answered >= 2 for ended in await load)


def shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="uvicorn_demo", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--patience", type=float, default=15.0, help="seconds that attackers hold out; default 15")
    parser.add_argument("--no-pause", action="store_true", help="do not stop the processes for a while")
    arguments = parser.parse_args()
    patience: float = arguments.patience
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [start(stack, folder, "httptools"), start(stack, folder, GUARDED)]
        print(f"FastAPI under uvicorn: stock, and with --http {GUARDED}; every timeout {TIMEOUT:g} s, tick 0.5 s.")
        print(f"When the server closes; never: not within {patience:g} s.\n")
        both = asyncio.run(both_attacked(servers, patience))
        found = {kind: [borne(kind, ends[kind]) for ends, _ in both] for kind in ATTACKS}
        rows = [[ATTACKS[kind], *map(shown, each)] for kind, each in found.items()]
        healthy = [f"{account.asked - len(account.lost)} of {account.asked} answered" for _, account in both]
        rows.append(["healthy clients meanwhile", *healthy])
        waited = [WAITING, WAITING]
        if not arguments.no_pause:
            waited = [asyncio.run(paused(server, PAUSE)) for server in servers]
            name = f"process paused for {PAUSE:g} s: requests that waited"
            rows.append([name, *(f"{count} of {WAITING} answered" for count in waited)])
    show(["the client...", "stock", "guarded"], rows)
    bad = [kind for kind, (_, guarded) in found.items() if not well(kind, guarded)]
    for kind in bad:
        print(f"guarded: {ATTACKS[kind]}: {shown(found[kind][1])}", file=sys.stderr)
    return 1 if bad or waited[1] < WAITING else 0


def well(kind: str, seconds: float | None) -> bool:
    """Whether it ended, and not too early; max_age is shortened at random by up to a tenth."""
    return seconds is not None and seconds >= (MAX_AGE * 0.9 if kind == "chatty" else TIMEOUT)


def show(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


if __name__ == "__main__":
    sys.exit(main())
