"""What an idle TLS connection holds on asyncio: six servers and two ways to serve by
hand, stock and guarded, after messages of several sizes.

    python -m benchmarks run tls

Each figure is of a server of its own: clients come one by one, each has one message of
that size sent back, and falls silent. All are silent for `REST` seconds before the
server's resident bytes are read, less what it took before they came, per client. *Every
client is still there afterwards, and is answered once more*: a server that closed some
would look cheap, and is an error here instead.
"""

from __future__ import annotations

import os
import shlex
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from loadgen.plan.capacity import SPARE_DESCRIPTORS, raise_descriptor_limit
from scripts import serving
from scripts.tools import certificate

from ..common import Note, Scale, by_scale, markdown

SIZES = {"100 B": 100, "20 KB": 20_000, "100 KB": 100_000}
WARM = 20
"""Clients that come and go, one after the other and with little to say, before anything
is measured: what the server needs once is no client's share.
"""
SMALLEST = min(SIZES.values())
TOGETHER = 5
"""Servers that are measured at the same time. They mostly wait."""
PATIENCE = 60.0
REST = 40.0
"""Seconds: a connection is at rest after 4 to 8, a server looks at 64 a second, and has
the C library give back what is free now and then.
"""
APPS = "benchmarks.servers.tls_apps"
PYTHON = f"{shlex.quote(sys.executable)} -m"
RUN = f"{PYTHON} reaper run --"
QUIET = {"REAPER_TIMEOUTS_KEEP_ALIVE": "10m", "REAPER_TIMEOUTS_IDLE": "10m"}
"""No client is closed while it is measured."""


class Pair(NamedTuple):
    """The commands of a server, and how a client has a message sent back."""

    stock: str
    guarded: str
    speaks: str
    """`http`, `websocket` or `bytes`."""


def _run(command: str, speaks: str = "http") -> Pair:
    return Pair(f"{PYTHON} {command}", f"{RUN} {PYTHON} {command}", speaks)


UVICORN = (
    f"{PYTHON} uvicorn {APPS}:asgi --loop asyncio --no-access-log --log-level warning "
    "--timeout-keep-alive 600 --ssl-certfile {cert} --ssl-keyfile {key} --port {port} --http"
)
ON_UVLOOP = UVICORN.replace("--loop asyncio", "--loop uvloop")
GUNICORN = f"gunicorn {APPS}:asgi -k asgi --no-control-socket --keep-alive 600"
SHOWN = "--certfile {cert} --keyfile {key} -b 127.0.0.1:{port}"
BY_HAND = f"{PYTHON} {APPS} {{}} {{{{port}}}} {{{{cert}}}} {{{{key}}}}"
PAIRS = {
    "uvicorn": Pair(f"{UVICORN} httptools", f"{UVICORN} reaper.uvicorn:HttpTools", "http"),
    "hypercorn": _run(f"hypercorn {APPS}:asgi --keep-alive 600 {SHOWN}"),
    "aiohttp": _run(f"{APPS} aiohttp {{port}} {{cert}} {{key}}"),
    "gunicorn, `asgi` worker": _run(f"{GUNICORN} --asgi-loop asyncio {SHOWN}"),
    "websockets": _run(f"{APPS} websockets {{port}} {{cert}} {{key}}", "websocket"),
    "`start_server`": Pair(BY_HAND.format("streams"), BY_HAND.format("start_server"), "bytes"),
    "`guard` of a protocol": Pair(BY_HAND.format("protocol"), BY_HAND.format("guard"), "bytes"),
    "uvicorn on uvloop": Pair(
        f"{ON_UVLOOP} httptools", f"{ON_UVLOOP} reaper.uvicorn:HttpTools", "http"
    ),
}
"""By the name under which the page shows it."""


def run(scale: Scale, note: Note, only: str = "") -> dict[str, Any]:
    """`results[server][size]` = {"stock": bytes, "guarded": bytes} of a client.

    Args:
        only: The name of one server; empty: all.
    Raises:
        RuntimeError: a server has closed a client.
        scripts.serving.DidNotStart: one does not listen.
    """
    clients, rest = by_scale(scale, (20, 0.2), (300, 20.0), (1000, REST))
    most = (raise_descriptor_limit() - SPARE_DESCRIPTORS) // TOGETHER
    if clients > most:
        raise RuntimeError(f"{clients} clients are more than the {most} that a process may have")
    runs = [
        (name, label, kind)
        for name in ([only] if only else PAIRS)
        for label in SIZES
        for kind in ("stock", "guarded")
    ]

    def one(name: str, label: str, kind: str) -> float:
        note(f"{clients:,} clients of {name}, {kind}, {label}")
        return measured(PAIRS[name], kind, SIZES[label], clients, rest)

    with ThreadPoolExecutor(TOGETHER) as pool:
        figures = pool.map(lambda each: one(*each), runs)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for (name, label, kind), figure in zip(runs, figures, strict=True):
        results.setdefault(name, {}).setdefault(label, {})[kind] = figure
    return {"clients": clients, "rest_s": rest, "results": results}


def measured(pair: Pair, kind: str, size: int, clients: int, rest: float) -> float:
    """Resident bytes of a server for each of *clients* after *rest* seconds of silence.

    Args:
        kind: `stock` or `guarded`.
        size: Bytes of the message that each has sent back before.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, port = Path(scratch), serving.free_port()
        cert, key = certificate(folder)
        command = shlex.split(getattr(pair, kind).format(port=port, cert=cert, key=key))
        trust = ssl.create_default_context(cafile=cert)
        with serving.serving(
            command, folder / "log", port=port, environment={**os.environ, **QUIET}
        ) as server:
            speak = SPEAKING[pair.speaks]
            for _ in range(WARM):
                dialled(port, trust, pair.speaks, SMALLEST).close()
            time.sleep(1.0)  # while it tidies up after them
            empty = _resident(server)
            held = [dialled(port, trust, pair.speaks, size) for _ in range(clients)]
            time.sleep(rest)
            found = (_resident(server) - empty) / clients
            for client in held:
                speak(client, size)
                client.close()
            return found


def dialled(port: int, trust: ssl.SSLContext, speaks: str, size: int) -> ssl.SSLSocket:
    """A client that has had a message of *size* sent back."""
    raw = socket.create_connection(("127.0.0.1", port), PATIENCE)
    client = trust.wrap_socket(raw, server_hostname="127.0.0.1")
    if speaks == "websocket":
        _upgrade(client)
    SPEAKING[speaks](client, size)
    return client


def _resident(server: serving.Server) -> int:
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in serving.tree(server.pid))


def _by_http(client: ssl.SSLSocket, size: int) -> None:
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
    client.sendall(head + b"a" * size)
    heard = bytearray()
    while (end := heard.find(b"\r\n\r\n")) < 0 or len(heard) - end - 4 < size:
        heard += _read(client)
    if not heard.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"a message was not sent back: {bytes(heard[:200])!r}")


def _by_bytes(client: ssl.SSLSocket, size: int) -> None:
    client.sendall(b"a" * size)
    while size:
        size -= len(_read(client))


def _by_websocket(client: ssl.SSLSocket, size: int) -> None:
    length, wide = (size, b"") if size < 126 else (127, size.to_bytes(8, "big"))
    # Masked by zeros: the bytes stay as they are.
    client.sendall(b"\x82" + bytes([0x80 | length]) + wide + bytes(4) + b"a" * size)
    expected = 2 + size + (0 if size < 126 else 2 if size < 65536 else 8)
    while expected:
        expected -= len(_read(client))


def _upgrade(client: ssl.SSLSocket) -> None:
    client.sendall(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    heard = b""
    while not heard.endswith(b"\r\n\r\n"):
        heard += _read(client)


def _read(client: ssl.SSLSocket) -> bytes:
    heard = client.recv(1 << 16)
    if not heard:
        raise RuntimeError("the server has closed a client that it was to keep")
    return heard


SPEAKING: dict[str, Callable[[ssl.SSLSocket, int], None]] = {
    "http": _by_http,
    "bytes": _by_bytes,
    "websocket": _by_websocket,
}


def table(found: dict[str, Any]) -> str:
    """A row per server: bytes of an idle client, stock and guarded, by size."""
    rows = [
        [name, *(f"{each[size][kind]:,.0f}" for size in SIZES for kind in ("stock", "guarded"))]
        for name, each in found["results"].items()
    ]
    head = [f"{size}, {kind}" for size in SIZES for kind in ("stock", "guarded")]
    said = (
        f"Bytes of the server's processes for each of {found['clients']:,} idle TLS clients, "
        f"{found['rest_s']:g} s after a message of that size was sent back to each."
    )
    return markdown(["", *head], rows) + f"\n\n{said}"
