"""trio: an echo server whose silent clients cost no task, only a descriptor and a
lease.

python -m examples.parked_echo 8080
"""

from __future__ import annotations

import sys

import trio

import reaper.trio


async def echo(stream: trio.abc.Stream) -> None:
    """Begins anew with the bytes that end a silence, so keep no state in local
    variables.
    """
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass  # the client reset the connection


async def main(port: int) -> None:
    await reaper.trio.serve_parked(echo, port, host="127.0.0.1", idle=2, tick=0.5)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
