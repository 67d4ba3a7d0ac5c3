"""A pool of sandboxes, browsers, kernels: child processes, one for each user, started
when it is asked for. One that has been idle for a while is ended; one that works never
is, however long it takes.

    python -m examples.keeper_processes 8080, then: echo 'alice 6*7' | nc 127.0.0.1 8080
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from functools import partial
from typing import Any

import reaper.asyncio

SANDBOX = "for line in iter(input, ''): print(eval(line, {}), flush=True)"


async def make(user: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", SANDBOX, stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL
    )


async def end(user: str, process: Process, reason: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
    print(f"{user}: sandbox {process.pid} ended, {reason}", flush=True)


async def answer(keeper: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for line in reader:
        user, _, expression = line.decode().partition(" ")
        async with keeper.use(user) as process:
            process.stdin.write(expression.encode())
            result = await process.stdout.readline()
            if not result:  # it died of the expression: the next one gets another
                await keeper.end(user)
        writer.write(result or b"your sandbox died\n")
    writer.close()


async def main(port: int, idle: float = 60.0) -> None:
    async with reaper.asyncio.open_keeper(make, end, idle=idle, tick=idle / 10, most=50) as keeper:
        await asyncio.start_server(partial(answer, keeper), "127.0.0.1", port)
        # Not `serve_forever`, which from Python 3.12 on ends when the last client has
        # left.
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), *map(float, sys.argv[2:])))
