"""The routes: enough of them to try every phase.

One rule: *a route knows nothing of timeouts*. It receives, sends and sleeps; the
connection tells the policy what it waits for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

import trio

import reaper
from reaper.config.durations import parse_duration
from reaper.errors import InvalidArgument
from reaper.status import JSON, Unavailable

from .connection import Exchange, HttpError, Route

PIECE = 65536  # bytes of a download sent at once
PIECES_PER_SECOND = 10  # of a download at a given rate
LONGEST_SLEEP = 300.0  # seconds
LONGEST = 86400.0  # seconds between two events at most

TEXT = "text/plain; charset=utf-8"
FRESH = [("cache-control", "no-store")]


async def index(exchange: Exchange) -> None:
    """`/`: the routes."""
    await exchange.respond(200, INDEX, TEXT)


async def sleep(exchange: Exchange) -> None:
    """`/sleep?s=2s`: a request in flight for as long as asked."""
    seconds = _number(exchange, "s", 1.0, LONGEST_SLEEP)
    await trio.sleep(seconds)
    await exchange.respond(200, f"slept {seconds:g} s\n".encode(), TEXT)


async def download(exchange: Exchange) -> None:
    """`/download?bytes=1000000&rate=0`: a response of that size, at most that many
    bytes per second; 0: all.
    """
    left = int(_number(exchange, "bytes", 1_000_000, 1e12))
    rate = _number(exchange, "rate", 0.0, 1e12)
    await exchange.start(
        200, [("content-type", "application/octet-stream"), ("content-length", str(left))]
    )
    if exchange.method == "HEAD":
        left = 0
    piece = bytes(min(PIECE, max(1, int(rate / PIECES_PER_SECOND))) if rate else PIECE)
    while left:
        data = piece[:left]
        await exchange.send(data)
        left -= len(data)
        if rate and left:
            await trio.sleep(len(data) / rate)
    await exchange.finish()


async def upload(exchange: Exchange) -> None:
    """`/upload`: reads the request body and tells its length and SHA-256."""
    digest, total = hashlib.sha256(), 0
    async for data in exchange.body():
        digest.update(data)
        total += len(data)
    await exchange.respond(
        200, json.dumps({"bytes": total, "sha256": digest.hexdigest()}).encode() + b"\n", JSON
    )


# A route without this attribute answers GET and HEAD.
upload.methods = ("POST", "PUT")  # type: ignore[attr-defined]


async def events(exchange: Exchange) -> None:
    """`/events?every=1s&ping=15s&count=0`: server-sent events; a comment whenever
    nothing was sent for `ping`, 0s: never.
    """
    every = _number(exchange, "every", 1.0, LONGEST)
    ping = _number(exchange, "ping", 15.0, LONGEST)
    count = int(_number(exchange, "count", 0.0, 1e9))
    await exchange.start(
        200, [("content-type", "text/event-stream"), ("cache-control", "no-store")]
    )
    if exchange.method == "HEAD":
        await exchange.finish()
        return
    start, told = trio.current_time(), reaper.stopping()
    number = 1
    while not exchange.hung_up and not told and (not count or number <= count):
        due, quiet_until = start + number * every, trio.current_time() + (ping or math.inf)
        with trio.move_on_at(min(due, quiet_until)):
            await told.wait()
            break
        if due <= quiet_until:
            await exchange.send(f"id: {number}\ndata: {trio.current_time():.3f}\n\n".encode())
            number += 1
        else:
            await exchange.send(b": ping\n\n")
    await exchange.finish()


async def tunnel(exchange: Exchange) -> None:
    """`/tunnel`: with `Upgrade: echo`, leaves HTTP and sends back what comes."""
    if not exchange.asks_for("echo"):
        await exchange.respond(
            426,
            b"426 Upgrade Required: echo\n",
            TEXT,
            [("upgrade", "echo"), ("connection", "upgrade")],
        )
        return
    through = await exchange.upgrade("echo")
    while data := await through.receive():
        await through.send(data)


async def show(exchange: Exchange) -> None:
    """`/metrics`, `/ready`, `/status`: for Prometheus and `reaper top` on this machine,
    and for a load balancer.
    """
    if exchange.path != "/ready" and not exchange.is_local:
        raise HttpError(403, "for this machine only: see server.status")
    try:
        kind, body = await exchange.server.desk.pages[exchange.path]()
    except Unavailable as error:
        await exchange.respond(503, f"{error}\n".encode(), TEXT, FRESH)
    else:
        await exchange.respond(200, body, kind, FRESH)


def _about(route: Route) -> str:
    """What the docstring of *route* says after its path, in one line."""
    return " ".join((route.__doc__ or "").split()).partition(": ")[2]


def _number(exchange: Exchange, name: str, default: float, most: float) -> float:
    """A parameter of the query: a number, or a duration in seconds, in 0..*most*
    (inclusive).

    Raises:
        HttpError: 400, it is neither, or out of range.
    """
    text = exchange.query.get(name)
    if text is None:
        return default
    try:
        value = parse_duration(text) if text[-1:].isalpha() else float(text)
    except (ValueError, InvalidArgument):
        value = -1.0
    if not 0 <= value <= most:
        raise HttpError(400, f"{name}={text}: expected a number 0..{most:g}")
    return value


ROUTES: Mapping[str, Route] = {
    "/": index,
    "/sleep": sleep,
    "/download": download,
    "/upload": upload,
    "/events": events,
    "/tunnel": tunnel,
    **dict.fromkeys(("/metrics", "/ready", "/status"), show),
}
"""The routes by path."""

INDEX = "".join(f"{path:14} {_about(route)}\n" for path, route in ROUTES.items()).encode()
"""The page at `/`."""
