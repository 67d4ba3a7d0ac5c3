"""An event stream that says goodbye: at SIGTERM every client is sent a last event, with
the time after which it should come back (`retry:`), and its stream ends properly.

python -m examples.goodbye_events 8080
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys

import reaper
import reaper.asyncio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the client has gone
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        while not reaper.stopping():
            writer.write(b"data: still here\n\n")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reaper.stopping().wait(), timeout=1)
        # Not all in the same instant: the server that comes after this one has to take
        # them all.
        writer.write(b"retry: %d\ndata: goodbye\n\n" % random.randint(500, 3000))
        await writer.drain()
    writer.close()


async def main(port: int) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with reaper.asyncio.open_reaper(tick=0.5) as r:
        # A stream is silent for as long as it likes: `vanished` finds the clients that
        # are gone.
        server = await reaper.asyncio.start_server(events, "127.0.0.1", port, idle=0, reaper=r)
        await told.wait()
        server.close()
        await r.drain(timeout=5)  # from here on `reaper.stopping()` is true
    print("all have gone", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
