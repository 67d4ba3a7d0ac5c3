"""Draws docs/img/top.svg: `reaper top` of a real server with real connections in every phase.

One rule: *nothing in the picture is made up*. Run it after the view has changed:

    python -m scripts.top_picture [--connections 600] [--seconds 25] [--out docs/img/top.svg]
"""

from __future__ import annotations

import argparse
import io
import random
import re
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console

from reaper.top.picture import Picture, picture_of, rates
from reaper.top.sources import Http
from reaper.top.view import Frame, draw

from .serving import ROOT, example, serving

PICTURE = ROOT / "docs" / "img" / "top.svg"
WIDTH, HEIGHT = 100, 30
FLAGS = ("--workers", "2", "--keep-alive", "60s", "--first-byte", "20s", "--headers", "15s", "--drain-idle", "0s")
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SPEAKS = (
    (0.70, REQUEST),  # and then it is silent
    (0.10, b"GET / HTTP/1.1\r\nHost: "),
    (0.08, b"GET /sleep?s=200 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (0.05, b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nfirst"),
    (0.07, b""),
)
"""Shares of the clients, and what each has said."""


def connected(address: tuple[str, int], count: int, seconds: float) -> list[socket.socket]:
    """*count* clients that come spread over so many seconds, and of which some ask again now and then."""
    random.seed(7)
    clients: list[socket.socket] = []
    keeping: list[socket.socket] = []
    begun = time.monotonic()
    for number in range(count):
        client = socket.create_connection(address, timeout=30)
        clients.append(client)
        said = random.choices([said for _, said in SPEAKS], [share for share, _ in SPEAKS])[0]
        client.sendall(said)
        if said == REQUEST:
            keeping.append(client)
        if number % 10 == 0 and keeping:
            with suppress(OSError):
                random.choice(keeping).sendall(REQUEST)
        time.sleep(max(0.0, begun + seconds * (number + 1) / count - time.monotonic()))
    return clients


def main() -> int:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=25.0, help="over which the clients come")
    parser.add_argument("--out", type=Path, default=PICTURE)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        server = stack.enter_context(serving(example("http", *FLAGS, "--pressure"), Path(directory) / "log"))
        source = Http("http://{}:{}".format(*server.address))
        print(f"{source.name}, pid {server.process.pid}", flush=True)
        for client in connected(server.address, parsed.connections, parsed.seconds):
            stack.callback(client.close)
        before = picture_of(source.ask())
        time.sleep(2.0)
        found = picture_of(source.ask())
        _draw(found, rates(before, found), parsed.out)
    return 0


def _draw(found: Picture, rate: dict[str, float], out: Path) -> None:
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    for line in draw(found, rate, Frame(WIDTH, HEIGHT), time.strftime("%H:%M:%S")):
        console.print(line, no_wrap=True, crop=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = console.export_svg(title="reaper top --connect http://127.0.0.1:9180", unique_id="reaper-top")
    out.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL))  # a page must not load fonts from afar
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
