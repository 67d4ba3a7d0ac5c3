"""Resident memory per connection of a stock and a guarded uvicorn: connected and silent, and idle between two requests.

    python -m scripts.uvicorn_demo.memory

One rule: *the same connections to both*, one after the other, to a server that has answered before.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from .pairs import LOOPS, PARSERS, start

REQUEST = b"GET / HTTP/1.1\r\nhost: demo\r\n\r\n"
RESTED = 4.0
"""Seconds until a guarded connection has come to rest."""


def ask(address: tuple[str, int], speaks: bool) -> socket.socket:
    """A connection that has had an answer, if it *speaks*."""
    client = socket.create_connection(address, 30)
    if speaks:
        client.sendall(REQUEST)
        heard = b""
        while not heard.endswith(b"hello"):
            heard += client.recv(1000)
    return client


def measured(loop: str, http: str, speaks: bool, count: int) -> int:
    """Bytes per connection."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        patient = ("--timeout-keep-alive", "600", "--backlog", "4096")
        server = start(stack, folder / "log", loop, http, *patient, REAPER_TIMEOUTS_FIRST_BYTE="10m")
        stack.enter_context(ask(server.address, True))
        time.sleep(0.5)
        process = psutil.Process(server.pid)
        before = process.memory_info().rss
        for _ in range(count):
            stack.enter_context(ask(server.address, speaks))
        time.sleep(RESTED)
        return int(process.memory_info().rss - before) // count


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="uvicorn_demo.memory", description="Bytes per connection, stock and guarded.")
    parser.add_argument("--connections", type=int, default=3000, help="of each kind; default 3000")
    parser.add_argument("--loop", choices=LOOPS, default="asyncio")
    arguments = parser.parse_args()
    for name, guarded in PARSERS.items():
        for speaks, said in ((False, "silent"), (True, "idle after a request")):
            kinds = (name, guarded)
            stock, ours = (measured(arguments.loop, http, speaks, arguments.connections) for http in kinds)
            print(f"{name}, {said}: stock {stock}, guarded {ours}: {ours / stock:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
