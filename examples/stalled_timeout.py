"""A timeout around each read, and clients that speak while the loop stands still."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from asyncio import StreamReader, StreamWriter, Timeout
from functools import partial

import reaper.asyncio

CLIENTS, IDLE = 100, 0.5


async def read(way: str, reader: StreamReader, scope: Timeout) -> bytes:
    if way == "asyncio.timeout":
        async with asyncio.timeout(IDLE):
            return await reader.read(100)
    if way == "asyncio.wait_for":
        return await asyncio.wait_for(reader.read(100), IDLE)
    if way == "timeout.reschedule":
        scope.reschedule(asyncio.get_running_loop().time() + IDLE)
    return await reader.read(100)


async def answered(way: str) -> int:
    async def echo(reader: StreamReader, writer: StreamWriter) -> None:
        begun.append(writer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as scope:
                while data := await read(way, reader, scope):
                    writer.write(data)
        writer.close()

    begun: list[StreamWriter] = []
    ours = partial(reaper.asyncio.start_server, idle=IDLE, tick=0.1)
    start = ours if way == "reaper" else asyncio.start_server
    async with await start(echo, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        clients = [socket.create_connection(address) for _ in range(CLIENTS)]
        while len(begun) < CLIENTS:
            await asyncio.sleep(0)
        threading.Thread(target=lambda: [client.sendall(b"x") for client in clients]).start()
        time.sleep(3 * IDLE)  # the stall: nothing is read, and no timer fires
        await asyncio.sleep(IDLE / 5)
        got = 0
        for client in clients:
            client.setblocking(False)
            with client, contextlib.suppress(OSError):  # not answered, or reset
                got += client.recv(1) == b"x"
        await asyncio.sleep(IDLE / 5)  # the handlers hear of the ends
        return got


if __name__ == "__main__":
    for way in "asyncio.timeout", "asyncio.wait_for", "timeout.reschedule", "reaper":
        print(f"{way:20}{asyncio.run(answered(way))} of {CLIENTS} clients got their answer")
