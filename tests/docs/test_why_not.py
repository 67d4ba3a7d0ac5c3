"""What the page why-not-timeouts.md says of clients that take no answer, and its
program.
"""

from __future__ import annotations

import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from reaper.config import ReaperConfig
from scripts.serving import free_port, serving
from tests.helpers.program_trials import trial
from tests.helpers.server_process import PATIENCE, ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "why-not-timeouts.md").read_text()
IDLE = 0.5
ESTABLISHED = b"\1"
STAYS = 6 * IDLE
"""Seconds after which a client that has not been closed is one that stays."""

ASYNCIO = """
import asyncio, sys, reaper.asyncio
async def answer(reader, writer):
    try:
        if {deadline}:
            reader.connection.deadline({deadline}, "all")
        while data := await {read}:
            writer.write({data})
            try:
                async with asyncio.timeout({bound} or None):
                    await writer.drain()
            except TimeoutError:
                writer.transport.abort()
                return
    finally:
        print("over", flush=True)
        writer.close()
async def main():
    server = await {start}(answer, "127.0.0.1", 0, **{options})
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
TRIO = """
import trio, reaper.trio
from functools import partial
async def answer(stream):
    try:
        if {deadline}:
            stream.connection.deadline({deadline}, "all")
        async for data in stream:
            with trio.move_on_after({bound} or float("inf")) as bound:
                await stream.send_all({data})
            if bound.cancelled_caught:
                return
    finally:
        print("over", flush=True)
async def main():
    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, answer, 0, host="127.0.0.1", **{options})
        (listener,) = await nursery.start(serve)
        print(listener.socket.getsockname()[1], flush=True)
trio.run(main)
"""
GUARDED = {"options": {"idle": IDLE, "tick": 0.1}, "read": "reader.read(4096)"}
SERVERS = {
    "usual": (
        ASYNCIO,
        {
            "start": "asyncio.start_server",
            "options": {},
            "read": f"asyncio.wait_for(reader.read(4096), {IDLE})",
        },
    ),
    "asyncio": (ASYNCIO, {"start": "reaper.asyncio.start_server", **GUARDED}),
    "trio": (TRIO, GUARDED),
}
ASKS, FLOODS = 'b"y" * 20_000_000', "data"


@contextmanager
def served(
    name: str, data: str, deadline: float, bound: float
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The port of a server that answers each read with *data*, and its process. The
    connection has a *deadline*, and each answer a *bound*, in seconds; 0: none.
    """
    text, words = SERVERS[name]
    program = text.format(data=data, deadline=deadline, bound=bound, **words)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def is_over(process: subprocess.Popen[str], within: float) -> bool:
    """Whether the handler ends *within* seconds."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], within)[0])


def is_stuck(client: socket.socket, process: subprocess.Popen[str]) -> bool:
    """Whether the server reads no more by itself. One that this machine keeps from
    running would read on, and its handler end for a client that says nothing.
    """
    if select.select([], [client], [], 0)[1]:
        return False
    return psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize(
    ("name", "data", "deadline", "bound", "closed"),
    [
        ("usual", ASKS, 0, 0, False),
        ("asyncio", ASKS, 0, 0, True),
        ("trio", ASKS, 0, 0, True),
        ("usual", FLOODS, 0, 0, False),
        ("asyncio", FLOODS, 0, 0, False),
        ("trio", FLOODS, 0, 0, False),
        ("asyncio", FLOODS, 3 * IDLE, 0, False),
        ("trio", FLOODS, 3 * IDLE, 0, False),
        ("usual", FLOODS, 0, IDLE, True),
        ("asyncio", FLOODS, 0, IDLE, True),
        ("trio", FLOODS, 0, IDLE, True),
    ],
)
def test_a_client_that_takes_no_answer_is_closed_as_the_page_says(
    name: str, data: str, deadline: float, bound: float, closed: bool
) -> None:
    with (
        served(name, data, deadline, bound) as (port, process),
        socket.create_connection(("127.0.0.1", port), PATIENCE) as client,
    ):
        client.sendall(b"x")
        if data == FLOODS:
            client.settimeout(IDLE)
            with suppress(ConnectionError):  # it is closed
                while not is_stuck(client, process):
                    with suppress(TimeoutError):
                        while True:
                            client.sendall(b"x" * 65536)
        assert is_over(process, PATIENCE if closed else STAYS) is closed


def test_a_closed_client_keeps_its_socket_and_its_answer_for_as_long_as_linger() -> None:
    with (
        served("asyncio", ASKS, 0, 0) as (port, process),
        socket.create_connection(("127.0.0.1", port), PATIENCE) as client,
    ):
        client.sendall(b"x")
        assert is_over(process, PATIENCE)
        closed = time.monotonic()
        while client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == ESTABLISHED:
            assert time.monotonic() < closed + PATIENCE
            time.sleep(0.01)
        linger = ReaperConfig().timeouts.linger
        assert f"`timeouts.linger`, {linger:g} s." in PAGE
        assert time.monotonic() - closed > linger / 2  # when we heard of it, it had begun


def test_the_usual_way_serves_and_closes_who_is_silent(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    port = free_port()
    text = program.replace("8080", str(port)).replace("timeout(30)", "timeout(1)")
    assert text.count("timeout(1)") == 1
    (tmp_path / "server.py").write_text(text)
    command = [sys.executable, "server.py"]
    with serving(command, tmp_path / "log", port=port, cwd=tmp_path) as server:
        trial(server, 1.0)
        assert server.said() == ""
