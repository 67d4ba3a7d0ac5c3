"""A timeout around each read, and clients whose bytes came while the loop stood still.

A hundred clients connect. The loop is then blocked for three timeouts; meanwhile each
client sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time

import reaper.asyncio

CLIENTS, IDLE = 100, 0.5


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def echo_with_timeout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(TimeoutError):
        while not reader.at_eof():
            async with asyncio.timeout(IDLE):
                data = await reader.read(100)
            writer.write(data)
    writer.close()


async def answered(way: str) -> int:
    if way == "reaper":
        server = await reaper.asyncio.start_server(echo, "127.0.0.1", 0, idle=IDLE, tick=0.1)
    else:
        server = await asyncio.start_server(echo_with_timeout, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        clients = [socket.create_connection(address) for _ in range(CLIENTS)]
        await asyncio.sleep(IDLE / 5)  # all are accepted, and none is due
        sender = threading.Thread(target=lambda: [client.sendall(b"x") for client in clients])
        sender.start()
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
    print(f"{asyncio.run(answered(sys.argv[1]))} of {CLIENTS} clients got their answer")
