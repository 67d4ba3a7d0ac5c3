"""A connection that is reaped ends for its client, although another process still has a
copy of its descriptor: one that was forked while it was open.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import reaper.asyncio
from reaper.trio import serve_parked, serve_tcp
from tests.helpers import asgi
from tests.helpers.hypercorn_here import hypercorn_here
from tests.helpers.loops import Asyncio, Trio
from tests.helpers.streams import SECONDS


@contextmanager
def copied(client: socket.socket) -> Iterator[None]:
    """Within the block there is a copy of the descriptor at the other end of *client*,
    which is in this process.
    """
    copies = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is no socket, has no peer, or is closed by now
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                raise
            with found:
                if found.getpeername() == client.getsockname():
                    copies.append(os.dup(copy))
    assert copies
    try:
        yield
    finally:
        for copy in copies:
            os.close(copy)


def ends_for(client: socket.socket) -> None:
    """*client* hears the end of its connection, and nothing else."""
    client.settimeout(SECONDS)
    assert client.recv(9) == b""


async def reads(stream: Any, writer: object = None) -> None:
    await (stream.receive_some(9) if writer is None else stream.read(9))


@pytest.mark.parametrize("serve", [serve_tcp, serve_parked])
def test_on_trio(serve: Any) -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            start = partial(serve, reads, 0, host="127.0.0.1", idle=10)
            (listener,) = await nursery.start(start)
            with socket.create_connection(listener.socket.getsockname()) as client:
                await trio.sleep(5)
                with copied(client):
                    await trio.sleep(10)
                    ends_for(client)
            nursery.cancel_scope.cancel()

    Trio().run(body)


def test_on_asyncio() -> None:
    async def body() -> None:
        server = await reaper.asyncio.start_server(reads, "127.0.0.1", 0, idle=10)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                await Asyncio.sleep(5)
                with copied(client):
                    await Asyncio.sleep(10)
                    ends_for(client)

    Asyncio().run(body)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["asyncio", "trio"])
def test_under_hypercorn(flavour: str, tmp_path: Path) -> None:
    settings = {"TIMEOUTS_KEEP_ALIVE": "1s", "TICK": "100ms"}
    with (
        hypercorn_here(flavour, tmp_path / "log", asgi.application, settings) as server,
        socket.create_connection(server.address) as client,
    ):
        client.settimeout(SECONDS)
        client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        while b"hello" not in client.recv(65536):
            pass
        with copied(client):
            ends_for(client)
