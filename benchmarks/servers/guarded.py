"""uvicorn guarded by reaper, compared with stock: requests per second, server CPU per request, bytes per connection.

The servers of a pair differ in `--http` alone; wrk loads one after the other, in turns. A third, stock again, is the
control: how far its ratio is from 1.00 is how far the other may be wrong.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ..common import Note, Scale, by_scale, figure, markdown, ratios, spread, times
from .idle import SAID, burst, bytes_of, dialling, one
from .process import ALL_KINDS, Kind, installed, running
from .run import Size, wrk_rounds

PARSERS = {"httptools": "reaper.uvicorn:HttpTools", "h11": "reaper.uvicorn:H11"}
LOOPS = ("asyncio", "uvloop")


async def app(scope: Any, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Nothing but the answer that all have, so that what is measured is the server."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def kind(loop: str, http: str) -> Kind:
    """uvicorn on *loop* with *http*."""

    def command(port: int, most: int, folder: Path) -> list[str]:
        flags = ["--loop", loop, "--http", http, "--lifespan", "off", "--no-access-log", "--log-level", "warning"]
        flags += ["--port", str(port), "--timeout-keep-alive", "600", "--backlog", "4096"]
        return [sys.executable, "-m", "uvicorn", "benchmarks.servers.guarded:app", *flags]

    return Kind(f"uvicorn, {loop}, {http}", command)


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`pairs[loop, parser]`: guarded / stock and stock / stock, of requests per second and of CPU; `bytes[parser]`."""
    if installed("wrk") is None:
        return {"absent": "wrk is not installed (Debian: apt-get install wrk)"}
    rounds, clients = by_scale(scale, (2, 60), (3, 500), (15, 3000))
    found: dict[str, Any] = {"pairs": {}, "bytes": {}, "clients": clients}
    for parser, guarded in PARSERS.items():
        for loop in LOOPS:
            note(f"{loop}, {parser}: stock, guarded, stock again")
            names = {"stock": kind(loop, parser), "guarded": kind(loop, guarded), "control": kind(loop, parser)}
            ALL_KINDS.update(names)
            with tempfile.TemporaryDirectory() as folder, running(list(names), 1000, Path(folder)) as servers:
                figures = wrk_rounds(servers, Size(0, 0, rounds), note)
            pair = found["pairs"].setdefault(f"{loop}, {parser}", {})
            pair["stock"] = spread(figures["stock"]["requests_per_second"])
            for who in ("guarded", "control"):
                for what in ("requests_per_second", "cpu_us"):
                    pair[f"{who}_{what}"] = ratios(figures[who][what], figures["stock"][what])
        found["bytes"][parser] = {
            who: {"silent": _bytes(who, clients, ""), "idle after a request": _bytes(who, clients, "burst")}
            for who in ("stock", "guarded")
        }
    return found


def _bytes(name: str, clients: int, how: str) -> float:
    with one(name, clients) as server:
        if how == "burst":
            return burst(server, clients, 4.0)
        return bytes_of(server, clients, 4.0, dialling(SAID["silent"], 0))


def table(found: dict[str, Any]) -> str:
    """A row per pair, then a row per parser."""
    rows = []
    for name, pair in found["pairs"].items():
        cells = [
            times(pair[f"{who}_{what}"], 3)
            for what in ("requests_per_second", "cpu_us")
            for who in ("guarded", "control")
        ]
        rows.append([name, figure(pair["stock"]["median"]), *cells])
    head = [
        "uvicorn, by wrk",
        "stock, requests per s",
        "guarded / stock",
        "stock / stock",
        "CPU: guarded / stock",
        "stock / stock",
    ]
    memory = [
        [
            parser,
            *(figure(each[who][what]) for what in ("silent", "idle after a request") for who in ("stock", "guarded")),
        ]
        for parser, each in found["bytes"].items()
    ]
    bytes_head = [
        f"bytes per connection, {found['clients']:,} of them",
        "silent: stock",
        "guarded",
        "idle: stock",
        "guarded",
    ]
    return markdown(head, rows) + "\n\n" + markdown(bytes_head, memory)
