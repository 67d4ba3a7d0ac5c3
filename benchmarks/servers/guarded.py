"""What a request costs in machine instructions, in servers that others wrote: stock,
and guarded.

    python -m benchmarks run guarded          needs valgrind

One client on one connection asks for two bytes, again and again, each time when the
answer before is whole; everything is at its defaults. The server runs under callgrind,
which counts, in user mode and in all processes of it, from a request of the warmed-up
server to the last. The client is a process apart. What the kernel does is not counted.
`stock, again` is the first server once more: how far that is from 1.00 is the error.

What falls between two requests is counted, too: the ticks of the guard, and the timers
of the server. A program is some fifty times slower under callgrind, so there are more
of these to a request than in the world.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from scripts import serving
from scripts.tools import certificate

from ..common import Note, Scale, by_scale, markdown
from .apps import BODY, PATH

AGAIN = "the first, again (control)"
PATIENCE = 180.0
"""Seconds; a server starts slowly under callgrind, beside another one."""
WARM = 200
APPS = "benchmarks.servers.apps"
PYTHON = f"{shlex.quote(sys.executable)} -m"
RUN = f"{PYTHON} reaper run --"

HTTP, HTTP2, TLS = "http", "http2", "tls"


class Pair(NamedTuple):
    """The commands of a server. They name a port, and over TLS a certificate and its
    key.
    """

    stock: str
    guarded: str
    speaks: str = HTTP
    """`HTTP`, `HTTP2` in the clear, or HTTP over `TLS`."""
    streams: int = 1
    """Requests that are asked at once, where it speaks HTTP/2."""


def _uvicorn(stock: str, guarded: str, loop: str, speaks: str = HTTP, before: str = "") -> Pair:
    secured = "--ssl-certfile {cert} --ssl-keyfile {key} " if speaks == TLS else ""
    command = (
        f"{PYTHON} uvicorn {APPS}:asgi --port {{port}} --no-access-log --log-level warning "
        f"{secured}--loop {loop} --http"
    )
    return Pair(f"{command} {stock}", f"{before}{command} reaper.uvicorn:{guarded}", speaks)


def _run(command: str, speaks: str = HTTP) -> Pair:
    return Pair(f"{PYTHON} {command}", f"{RUN} {PYTHON} {command}", speaks)


def _gunicorn(worker: str, speaks: str = HTTP) -> Pair:
    clear = "--http-protocols h1,h2 --http2-cleartext prior-knowledge" if speaks == HTTP2 else ""
    application = f"{APPS}:{'wsgi' if 'gthread' in worker else 'asgi'}"
    # A worker that is slow, as below callgrind, is not to be killed for it.
    command = f"gunicorn {application} --no-control-socket --timeout 600 {clear}"
    return _run(f"{command} -b 127.0.0.1:{{port}} -k {worker}", speaks)


_NOT_RELEASED = "env REAPER_RELEASE_BUFFERS=false "
_HYPERCORN = f"hypercorn {APPS}:asgi -b 127.0.0.1:{{port}}"
_UVICORN_HTTP2 = _uvicorn("zttp --http2", "Http2", "asyncio", HTTP2)
PAIRS: dict[str, Pair] = {
    "uvicorn, httptools, uvloop": _uvicorn("httptools", "HttpTools", "uvloop"),
    "uvicorn, httptools, asyncio": _uvicorn("httptools", "HttpTools", "asyncio"),
    "uvicorn, h11, asyncio": _uvicorn("h11", "H11", "asyncio"),
    "hypercorn": _run(_HYPERCORN),
    "hypercorn, trio": _run(f"{_HYPERCORN} -k trio"),
    "gunicorn, asgi": _gunicorn("asgi"),
    "gunicorn, threads": _gunicorn("gthread --threads 4"),
    "aiohttp": _run(f"{APPS} aiohttp {{port}}"),
    "uvicorn, TLS": _uvicorn("httptools", "HttpTools", "asyncio", TLS),
    "uvicorn, TLS, `release_buffers` off": _uvicorn(
        "httptools", "HttpTools", "asyncio", TLS, before=_NOT_RELEASED
    ),
    "uvicorn, HTTP/2": _UVICORN_HTTP2,
    "uvicorn, HTTP/2, 10 streams": _UVICORN_HTTP2._replace(streams=10),
    "uvicorn, HTTP/2, 100 streams": _UVICORN_HTTP2._replace(streams=100),
    "hypercorn, HTTP/2": _run(_HYPERCORN, HTTP2),
    "hypercorn, HTTP/2, 10 streams": _run(_HYPERCORN, HTTP2)._replace(streams=10),
    "hypercorn, HTTP/2, 100 streams": _run(_HYPERCORN, HTTP2)._replace(streams=100),
    "hypercorn, trio, HTTP/2": _run(f"{_HYPERCORN} -k trio", HTTP2),
    "gunicorn, asgi, HTTP/2": _gunicorn("asgi", HTTP2),
    "gunicorn, threads, HTTP/2": _gunicorn("gthread --threads 4", HTTP2),
}


PARTS = {
    "header": "the response names `keep-alive: timeout=`; less than nothing, because uvicorn's "
    "own headers are checked together with it, once a second and not each time",
    "application": "the application is called by a coroutine of ours, with a `send` of ours, and "
    "the headers of its response are kept: a stream can be told of a stop, pinged, and "
    "ended",
    "received": "after each read: is there anything that is waited for?",
    "idle": "after each response: the touch, and what the last request holds is freed; uvicorn's "
    "own timer is saved, which is in none of these",
}
"""What a part of the guard does, by its name in `without`."""

SWITCHES = {
    "a stream can be told of a stop": "REAPER_TIMEOUTS_DRAIN_STREAMS=0s",
    "an answer names the keep-alive": "REAPER_TIMEOUTS_KEEP_ALIVE=0s",
}
"""What a setting switches off that acts on every request."""
SWITCHED = ("gunicorn, asgi", "gunicorn, threads", "aiohttp")
"""The servers of which that is counted."""
GOALS = {HTTP: 1.05, HTTP2: 1.25, TLS: 1.05}
"""How many times a stock request a guarded one is to cost at the most, by what it
speaks.
"""


def run(scale: Scale = "full", note: Note = lambda _: None) -> dict[str, Any]:
    """`results[server]` = {"stock": n, "guarded": n}, instructions of a request;
    {"absent": why} where a tool is missing.
    """
    for tool in ("valgrind", "callgrind_control"):
        if shutil.which(tool) is None:
            return {"absent": f"{tool} is not installed (Debian: apt-get install valgrind)"}
    # hypercorn ends a connection of HTTP/2 after 1,000 requests.
    exchanges = by_scale(scale, 100, 300, 600)
    found = {"results": count(list(PAIRS), exchanges, note), "exchanges": exchanges}
    return {**found, "parts": parts(exchanges, note), "without": switched_off(exchanges, note)}


def parts(exchanges: int, note: Note = lambda _: None) -> dict[str, int]:
    """Instructions that each of `PARTS` adds to a request of the first of `PAIRS`."""
    command = PAIRS[next(iter(PAIRS))].guarded

    def counted(part: str) -> int:
        note(f"counting without {part}")
        less = command.replace(" uvicorn ", f" benchmarks.servers.without {part} ", 1)
        return instructions(less, exchanges)

    with ThreadPoolExecutor(2) as pool:
        whole, *found = pool.map(counted, ("all", *PARTS))
    each = {part: whole - less for part, less in zip(PARTS, found, strict=True)}
    each["application"] -= each["header"]  # which that one sends
    return each


def switched_off(exchanges: int, note: Note = lambda _: None) -> dict[str, dict[str, int]]:
    """Instructions of a request of each of `SWITCHED` with one of `SWITCHES` off."""
    wanted = [(name, what) for name in SWITCHED for what in SWITCHES]

    def counted(one: tuple[str, str]) -> int:
        name, what = one
        note(f"counting {name}, {SWITCHES[what]}")
        return instructions(f"env {SWITCHES[what]} {PAIRS[name].guarded}", exchanges)

    with ThreadPoolExecutor(2) as pool:
        found = iter(pool.map(counted, wanted))
        return {name: {what: next(found) for what in SWITCHES} for name in SWITCHED}


def count(
    names: list[str], exchanges: int, note: Note = lambda _: None
) -> dict[str, dict[str, int]]:
    """Instructions of a request of each of *names*, and of the first once more.

    Cost: about half a minute for each server, two at a time.
    """
    first = names[0]
    wanted = [
        (name, command) for name in names for command in (PAIRS[name].stock, PAIRS[name].guarded)
    ]
    wanted += [(first, PAIRS[first].stock)]

    def counted(one: tuple[str, str]) -> int:
        name, command = one
        note(f"counting {name}")
        return instructions(command, exchanges, PAIRS[name].speaks, PAIRS[name].streams)

    with ThreadPoolExecutor(2) as pool:
        *found, again = pool.map(counted, wanted)
    results = {
        name: {"stock": found[2 * index], "guarded": found[2 * index + 1]}
        for index, name in enumerate(names)
    }
    return {**results, AGAIN: {"stock": results[first]["stock"], "guarded": again}}


def instructions(command: str, exchanges: int, speaks: str = HTTP, streams: int = 1) -> int:
    """Machine instructions of one request of the server that *command* starts, asked
    *streams* at once.

    Raises:
        RuntimeError: nothing was counted; the message has what the server said.
    """
    port = serving.free_port()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        cert, key = certificate(out) if speaks == TLS else ("", "")
        counting = [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--trace-children=yes"),
            f"--callgrind-out-file={out}/%p.callgrind",
            *shlex.split(command.format(port=port, cert=cert, key=key)),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        with (
            serving.serving(
                counting, out / "log", patience=PATIENCE, port=port, environment=environment
            ) as server,
            closing(_client(_dialled(port, cert), speaks, streams)) as client,
        ):
            try:
                client.ask(max(WARM // streams, 1))
                _instrument(server.pid, "on")
                client.ask(exchanges // streams)
                _instrument(server.pid, "off")
            except RuntimeError as error:
                raise RuntimeError(f"{command}: {error}") from None
            processes = [psutil.Process(each) for each in serving.tree(server.pid)]
        # Each writes its count as it ends, which a worker may do after its parent.
        psutil.wait_procs(processes, PATIENCE)
        totals = [
            int(found[1])
            for file in out.glob("*.callgrind")
            if (found := re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE))
        ]
        if not sum(totals):
            raise RuntimeError(f"{command}: callgrind counted nothing: {server.said()[-2000:]}")
        return round(sum(totals) / (exchanges // streams * streams))


def _instrument(pid: int, how: str) -> None:
    """Have callgrind count, *how* "on", or no longer, in *pid* and its children."""
    for each in serving.tree(pid):
        subprocess.run(
            ["callgrind_control", f"--instr={how}", str(each)],
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )


class Client:
    """*connection*, on which requests are made, one after the other."""

    def __init__(self, connection: socket.socket, once: Callable[[socket.socket], None]) -> None:
        self._socket = connection
        self._once = once

    def ask(self, times: int) -> None:
        """Ask, and read the answer, or all of them, whole, so many *times*."""
        for _ in range(times):
            self._once(self._socket)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _dialled(port: int, cert: str) -> socket.socket:
    """A connection to the server; over TLS, if it has a *cert*."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    if not cert:
        return connection
    trust = ssl.create_default_context(cafile=cert)
    return trust.wrap_socket(connection, server_hostname="127.0.0.1")


def _client(connection: socket.socket, speaks: str, streams: int) -> Client:
    return Client(connection, _asks_http2(streams) if speaks == HTTP2 else _asks())


def _asks() -> Callable[[socket.socket], None]:
    request = f"GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode()

    def once(connection: socket.socket) -> None:
        connection.sendall(request)
        heard = b""
        # gunicorn's threads send an answer of a known length in chunks, or not.
        while not (b"\r\n\r\n" in heard and heard.endswith((BODY, b"0\r\n\r\n"))):
            heard += _read(connection)

    return once


def _asks_http2(streams: int) -> Callable[[socket.socket], None]:
    """It is not the load generator's client: that is slower between two requests, and a
    tick of the server that falls there is counted.
    """
    import h2.config
    import h2.connection
    import h2.events

    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    state.initiate_connection()
    head = [(":method", "GET"), (":path", PATH), (":scheme", "http"), (":authority", "x")]

    def once(connection: socket.socket) -> None:
        for _ in range(streams):
            state.send_headers(state.get_next_available_stream_id(), head, end_stream=True)
        connection.sendall(state.data_to_send())
        unanswered = streams
        while unanswered:
            for event in state.receive_data(_read(connection)):
                unanswered -= isinstance(event, h2.events.StreamEnded)
        if said := state.data_to_send():
            connection.sendall(said)

    return once


def _read(connection: socket.socket) -> bytes:
    heard = connection.recv(65536)
    if not heard:
        raise RuntimeError("the server closed the connection of a client that asks")
    return heard


def table(found: dict[str, Any]) -> str:
    """A row per server: instructions of a request, stock and guarded, and their
    ratio.
    """
    rows = []
    for name, each in found["results"].items():
        stock, guarded = each["stock"], each["guarded"]
        rows.append([name, f"{stock:,}", f"{guarded:,}", f"{guarded / stock:.3f}x"])
    text = markdown(["", "stock", "guarded", "guarded / stock"], rows)
    goals = ", ".join(f"{goal:g}x over {speaks}" for speaks, goal in GOALS.items())
    text += f"\n\nThe goal is {goals}."
    if "without" in found:
        whole = {name: found["results"][name]["guarded"] for name in found["without"]}
        less = [
            [name, *(f"{whole[name] - each[what]:,}" for what in SWITCHES)]
            for name, each in found["without"].items()
        ]
        said = "Of what is above it, so many instructions are what a setting switches off:"
        text += f"\n\n{said}\n\n{markdown(['', *SWITCHES], less)}"
    if "parts" not in found:
        return text
    shown = [[PARTS[part], f"{more:,}"] for part, more in found["parts"].items()]
    said = f"Of what the guard adds to {next(iter(PAIRS))}, counted by taking off a part:"
    return f"{text}\n\n{said}\n\n{markdown(['', 'instructions'], shown)}"
