"""A keep-alive race, planted: uvicorn behind a slow wire, a proxy in front of it, and a
client that asks again just before the proxy can know that uvicorn has closed.

The wire delays each direction, so that uvicorn's close and the next request cross on
it. A client that rests for less than the keep-alive minus a round trip meets no race.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.attach_servers import free_port, running

KEEP_ALIVE = 1
"""Seconds of uvicorn's keep-alive, the least that its flag takes."""
DELAY = 0.3
"""Seconds of the wire, each way."""
IN_A_RACE, IN_TIME = 0.7, 0.05
"""How long a client rests to meet a race, or none."""

APP = """
import asyncio, os
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await receive()
    if scope["path"] == "/die":
        await asyncio.sleep(1.5)
        scope["extensions"]["tls"]
    status = 500 if scope["path"] == "/500" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


@contextmanager
def wire(port: int) -> Iterator[int]:
    """The port of a wire to *port*, on which all takes `DELAY`."""
    ours, stop, ready = free_port(), asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    ends: set[asyncio.StreamWriter] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            loops[0].call_later(DELAY, deliver, writer, data)
            if not data:
                return

    def deliver(writer: asyncio.StreamWriter, data: bytes) -> None:
        if data:
            writer.write(data)
        else:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.add(writer)
        try:
            theirs = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        ends.add(theirs[1])
        await asyncio.gather(pass_on(reader, theirs[1]), pass_on(theirs[0], writer))

    async def served() -> None:
        loops.append(asyncio.get_running_loop())
        server = await asyncio.start_server(serve, "127.0.0.1", ours)
        ready.set()
        await stop.wait()
        server.close()
        for writer in ends:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # each is told that it is over

    thread = threading.Thread(target=asyncio.run, args=(served(),), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield ours
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


@contextmanager
def uvicorn(folder: Path) -> Iterator[int]:
    """The port of uvicorn."""
    (folder / "raced.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "raced:app", "--app-dir", str(folder)]
    command += ["--port", str(port), "--timeout-keep-alive", str(KEEP_ALIVE), "--no-access-log"]
    with running(*command, port=port):
        yield port


def asked(port: int, rests: list[float], path: str = "/", *, afresh: bool = False) -> int:
    """POST after each of *rests*, on one connection as long as it lasts, or each on a
    connection of its own (*afresh*). Returns how many were lost: answered by 502, or
    not at all.
    """
    headers = {"Connection": "close"} if afresh else {}
    lost, client = 0, http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for rest in rests:
        time.sleep(rest)
        try:
            client.request("POST", path, b"x", headers)
            answer = client.getresponse()
            answer.read()
            lost += answer.status == 502
        except (OSError, http.client.HTTPException):
            client.close()
            lost += 1
    client.close()
    return lost


def tried(
    port: int, rests: list[float], wanted: Callable[[int], bool], *, afresh: bool = False
) -> tuple[int, int]:
    """`asked`, again until as many of *rests* are lost as is *wanted*: a pause of the
    machine makes a race, or spoils one. Returns how many were lost and asked in all.
    """
    total = 0
    for times in range(1, 6):
        lost = asked(port, rests, afresh=afresh)
        total += lost
        if wanted(lost):
            return total, times * len(rests)
    raise AssertionError(f"five times {rests}: {total} lost")


@contextmanager
def datagrams() -> Iterator[tuple[int, list[str]]]:
    """A port to which a proxy may send its log, and the lines that have come."""
    lines: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))

        def listen() -> None:
            while (data := heard.recv(1 << 16)) != b"end":
                lines.append(data.decode())

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        port = heard.getsockname()[1]
        try:
            yield port, lines
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as said:
                said.sendto(b"end", ("127.0.0.1", port))
            thread.join()
