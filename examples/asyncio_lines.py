"""Plain asyncio: a server of lines whose silent clients are closed, by one more
argument to `start_server`.

python -m examples.asyncio_lines 8080
"""

from __future__ import annotations

import asyncio
import sys

import reaper.asyncio


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
    except ConnectionError:
        pass  # the client has gone
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await reaper.asyncio.start_server(shout, "127.0.0.1", port, idle=2)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
