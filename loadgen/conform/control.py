"""The control: a server of our own that closes each connection some seconds after it
came.

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

EVERY = 0.1
"""Seconds between two connections to the control."""


class _Closes(asyncio.Protocol):
    after = 1.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        asyncio.get_running_loop().call_later(self.after, transport.close)


async def _serve(after: float) -> None:
    _Closes.after = after
    server = await asyncio.get_running_loop().create_server(_Closes, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass
class Lag:
    """By how many seconds a close of the control was late at most, so far."""

    seconds: float = 0.0


@asynccontextmanager
async def control(after: float = 1.0) -> AsyncIterator[Lag]:
    """A control beside the block, which is asked all the time, and closes *after* so
    many seconds. It is a file of its own: no package has to be found by it.
    """
    command = (sys.executable, "-P", __file__, str(after))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    lag = Lag()
    port = int(await process.stdout.readline())
    asking = asyncio.create_task(_ask(port, lag, after))
    try:
        yield lag
    finally:
        asking.cancel()
        process.terminate()
        await process.communicate()
        await asyncio.wait([asking])


async def _ask(port: int, lag: Lag, after: float) -> None:
    loop = asyncio.get_running_loop()

    async def one() -> None:
        with socket.socket() as sock:
            sock.setblocking(False)
            began = loop.time()
            await loop.sock_connect(sock, ("127.0.0.1", port))
            with suppress(ConnectionError):
                await loop.sock_recv(sock, 1)
            lag.seconds = max(lag.seconds, loop.time() - began - after)

    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(one())
            began = loop.time()
            await asyncio.sleep(EVERY)
            lag.seconds = max(lag.seconds, loop.time() - began - EVERY)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(float(sys.argv[1])))
