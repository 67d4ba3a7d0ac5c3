"""Live clients behind bad links: slow, lossy, of several paths. `vanished` closes none
of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers import bad_link, namespaces

pytestmark = pytest.mark.slow

PORT = 7790

SERVER = """
import asyncio, json, signal, socket, sys
import reaper.asyncio
from reaper.config import ReaperConfig

async def serve(reader, writer):
    mode = await reader.readexactly(1)
    while mode == b"s":
        writer.write(b"event\\n")
        await asyncio.sleep(0.3)
    while data := await reader.read(1000):
        writer.write(data)

async def main(vanished, protocol):
    config = ReaperConfig.load(environ={}, overrides={"timeouts.vanished": vanished})
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(protocol))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("0.0.0.0", PORT))
    async with reaper.asyncio.open_reaper(config, tick=0.25) as r:
        server = await reaper.asyncio.start_server(serve, sock=listening, idle=0, reaper=r)
        print("ready", flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        print(json.dumps({"open": len(r), "reasons": dict(r.statistics().reasons)}), flush=True)
        server.close()

asyncio.run(main(*sys.argv[1:]))
""".replace("PORT", str(PORT))

CLIENT = """
import asyncio, json, sys

async def one(address, mode, counts):
    reader, writer = await asyncio.open_connection(address, PORT)
    writer.write(mode)
    counts["open"] += 1
    if counts["open"] == counts["wanted"]:
        print("ready", flush=True)
    try:
        while await reader.read(1000):
            pass
    except OSError as error:
        counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
    counts["open"] -= 1

async def main(address, mode, wanted):
    counts = {"wanted": int(wanted), "open": 0}
    await asyncio.gather(*(one(address, mode.encode(), counts) for _ in range(int(wanted))))

asyncio.run(main(*sys.argv[1:]))
""".replace("PORT", str(PORT))


@contextmanager
def serving(link: namespaces.Link, vanished: str, protocol: int = 0) -> Iterator[Callable[[], Any]]:
    """A server in its namespace; call the result for what it says when it is
    stopped.
    """
    words = [*link.server, sys.executable, "-c", SERVER, vanished, str(protocol)]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"

            def stopped() -> Any:
                assert server.stdout is not None
                server.send_signal(signal.SIGTERM)
                return json.loads(server.stdout.readline())

            yield stopped
        finally:
            server.kill()


@contextmanager
def clients(link: namespaces.Link, mode: str, number: int) -> Iterator[None]:
    """So many connected clients in their namespace; *mode*: "s" are sent events, "q"
    nothing.
    """
    words = [*link.client, sys.executable, "-c", CLIENT, bad_link.ADDRESS, mode, str(number)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as them:
        try:
            assert them.stdout is not None
            assert them.stdout.readline() == "ready\n"
            yield
        finally:
            them.kill()


def test_a_round_trip_of_two_thirds_of_vanished_costs_no_event_stream() -> None:
    with (
        namespaces.opened() as link,
        bad_link.between(link, delay=2.0),
        serving(link, "6s") as stopped,
        clients(link, "s", 20),
    ):
        time.sleep(20)
        told = subprocess.run([*link.server, "ss", "-tin"], capture_output=True, text=True).stdout
        waits = [int(wait) for wait in re.findall(r"\brto:(\d+)", told)]
        assert len(waits) == 20
        assert min(waits) > 4000  # ms: the kernel waits for an answer before it sends again
        assert stopped() == {"open": 20, "reasons": {}}


TALKER = f"""
import socket, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
client.settimeout(5)
client.connect(("{bad_link.ADDRESS}", {PORT}))
client.send(b"q")
print("ready", flush=True)
try:
    while True:
        if sys.argv[1] == "talks":
            client.send(b"x")
            if not client.recv(1):
                break
        time.sleep(0.3)
except OSError as error:
    print("ended:", error, flush=True)
"""


@pytest.mark.parametrize("how", ["talks", "is silent"])
def test_a_multipath_client_whose_first_path_has_gone_lives(how: str) -> None:
    with (
        namespaces.opened() as link,
        bad_link.between(link, delay=0.0) as first,
        serving(link, "4s", socket.IPPROTO_MPTCP) as stopped,
    ):
        for prefix in (link.server, link.client):
            namespaces.run(
                *prefix, *["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"]
            )
        second = f"ip mptcp endpoint add {link.address} dev s signal"
        namespaces.run(*link.server, *second.split())
        words = [*link.client, sys.executable, "-c", TALKER, how]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as talker:
            try:
                assert talker.stdout is not None
                assert talker.stdout.readline() == "ready\n"
                time.sleep(2)
                assert first.stdin is not None
                first.stdin.write("0 1\n")  # nothing arrives any more
                first.stdin.flush()
                time.sleep(14)
                assert stopped() == {"open": 1, "reasons": {}}
            finally:
                talker.kill()
