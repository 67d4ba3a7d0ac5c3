"""What the demo does to a server besides attacking it: a healthy client, a pause of the process, and load.

The rule of this module: *both servers go through the same*, in turns, so that what else the machine does hits both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from statistics import median

from scripts.serving import Server

REQUEST = b"GET / HTTP/1.1\r\nhost: demo\r\n\r\n"
CONNECTIONS = 64
WAITING = 30
"""Requests that wait in the kernel while the process is paused."""


async def healthy(port: int, seconds: float) -> tuple[int, int]:
    """Ask ten times per second, on a new connection each time: how many were answered, and how many were not."""
    end = time.monotonic() + seconds
    answered = failed = 0
    while time.monotonic() < end:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST)
                await reader.readuntil(b"hello")
                writer.close()
            answered += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            failed += 1
        await asyncio.sleep(0.1)
    return answered, failed


def paused(server: Server, seconds: float) -> int:
    """Stop the process for *seconds* while requests come in on idle connections: how many are answered then."""
    clients = [socket.create_connection(server.address, timeout=10) for _ in range(WAITING)]
    for client in clients:
        client.sendall(REQUEST)
        _answered(client)
    os.kill(server.pid, signal.SIGSTOP)
    for client in clients:
        client.sendall(REQUEST)
    time.sleep(seconds)
    os.kill(server.pid, signal.SIGCONT)
    answered = sum(_answered(client) for client in clients)
    for client in clients:
        client.close()
    return answered


def _answered(client: socket.socket) -> bool:
    said = b""
    with contextlib.suppress(OSError):
        while not said.endswith(b"hello"):
            data = client.recv(10_000)
            if not data:
                return False
            said += data
        return True
    return False


def requests_per_second(servers: list[Server], rounds: int, seconds: float) -> list[float]:
    """The median of each, measured in turns: by wrk if it is there, else by a client in Python (say which)."""
    measured: list[list[float]] = [[] for _ in servers]
    for server in servers:
        load(server.port, 0.5)
    for number in range(rounds):
        order = range(len(servers)) if number % 2 else reversed(range(len(servers)))
        for index in order:
            measured[index].append(load(servers[index].port, seconds))
    return [median(one) for one in measured]


def loader() -> str:
    """What makes the load."""
    return "wrk" if shutil.which("wrk") else "a Python client (install wrk to measure the servers, not the client)"


def load(port: int, seconds: float) -> float:
    """Requests per second that `CONNECTIONS` clients had answered."""
    if not shutil.which("wrk"):
        return asyncio.run(_python_load(port, seconds))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", f"http://127.0.0.1:{port}/"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert found is not None, said
    return float(found[1])


async def _python_load(port: int, seconds: float) -> float:
    end = time.monotonic() + seconds

    async def client() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.monotonic() < end:
            writer.write(REQUEST)
            await reader.readuntil(b"hello")
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*(client() for _ in range(CONNECTIONS)))) / seconds
