"""Loops in threads: each has a reaper of its own, and none knows of the others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter

import pytest
import trio

import reaper.asyncio
import reaper.trio

THREADS, CLIENTS = 4, 20

pytestmark = pytest.mark.slow


async def on_asyncio(reasons: Counter[str]) -> None:
    """Watch clients that are silent, and one that speaks, until the silent ones are
    closed.
    """
    async with reaper.asyncio.open_reaper(tick=0.05) as r:

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await reaper.asyncio.start_server(handle, "127.0.0.1", 0, idle=0.5, reaper=r)
        async with server:
            address = server.sockets[0].getsockname()
            silent = [await asyncio.open_connection(*address) for _ in range(CLIENTS)]
            reader, writer = await asyncio.open_connection(*address)

            async def speak() -> None:
                while True:
                    writer.write(b"x")
                    assert await reader.readexactly(1) == b"x"
                    await asyncio.sleep(0.1)

            speaking = asyncio.ensure_future(speak())
            for heard, _ in silent:
                assert await heard.read() == b""
            assert not speaking.done(), "who speaks stays"
            speaking.cancel()
            for each in (writer, *(one for _, one in silent)):
                each.close()
            await asyncio.sleep(0.1)
        reasons.update(r.statistics().reasons)


async def on_trio(reasons: Counter[str]) -> None:
    """The same on trio, with socket pairs."""
    async with reaper.trio.open_reaper(tick=0.05) as r, trio.open_nursery() as nursery:
        pairs = [socket.socketpair() for _ in range(CLIENTS)]

        async def watch(sock: socket.socket) -> None:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            async with stream:
                with r.watch(stream, idle=0.5) as connection:
                    await stream.receive_some()
            assert connection.reaped

        for ours, _ in pairs:
            nursery.start_soon(watch, ours)
        while nursery.child_tasks:
            await trio.sleep(0.05)
        for _, theirs in pairs:
            theirs.close()
        reasons.update(r.statistics().reasons)


def test_a_reaper_in_each_thread_closes_its_own_silent_clients_and_no_other() -> None:
    seen = [Counter[str]() for _ in range(2 * THREADS)]
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            if number % 2:
                asyncio.run(on_asyncio(seen[number]))
            else:
                trio.run(on_trio, seen[number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(seen))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen == [{"idle": CLIENTS}] * len(seen)
