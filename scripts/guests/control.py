"""The control: a server without reaper that closes each connection `LIMIT` seconds
after it came.

By how much its closes are late is what the machine and the harness cost, and no
server's doing.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from .kinds import LIMIT

EVERY = 0.1
"""Seconds between two connections to the control."""


class _Closes(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        asyncio.get_running_loop().call_later(LIMIT, transport.close)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Closes, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass
class Lag:
    """By how many seconds a close of the control was late at most, so far."""

    seconds: float = 0.0


@asynccontextmanager
async def control() -> AsyncIterator[Lag]:
    """A control beside the block, which is asked all the time."""
    command = (sys.executable, "-m", "scripts.guests.control")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    lag = Lag()
    asking = asyncio.create_task(_ask(int(await process.stdout.readline()), lag))
    try:
        yield lag
    finally:
        asking.cancel()
        process.terminate()
        await process.communicate()
        await asyncio.wait([asking])


async def _ask(port: int, lag: Lag) -> None:
    loop = asyncio.get_running_loop()

    async def one() -> None:
        with socket.socket() as sock:
            sock.setblocking(False)
            began = loop.time()
            await loop.sock_connect(sock, ("127.0.0.1", port))
            with suppress(ConnectionError):
                await loop.sock_recv(sock, 1)
            lag.seconds = max(lag.seconds, loop.time() - began - LIMIT)

    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(one())
            began = loop.time()
            await asyncio.sleep(EVERY)
            lag.seconds = max(lag.seconds, loop.time() - began - EVERY)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve())
