"""A chat: what a client says goes to all others. A silent client is asked; one that
does not answer is closed.

python -m examples.chat 8080
"""

from __future__ import annotations

import sys
from contextlib import suppress

import trio

import reaper.trio


async def main(port: int) -> None:
    present: set[trio.SocketStream] = set()
    async with reaper.trio.open_reaper(tick=0.5) as r:

        async def tell(text: bytes | bytearray, stream: trio.SocketStream) -> None:
            # It may have gone, or not have taken yet what it was sent before.
            with suppress(
                trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError
            ):
                await stream.send_all(text)

        async def chat(stream: trio.SocketStream) -> None:
            async def ping(connection: reaper.trio.Connection) -> None:
                await tell(b"are you there?\n", stream)

            present.add(stream)
            try:
                # Listening is no activity, so a client that only listens is asked.
                # Whatever it says is an answer.
                with r.watch(stream, idle=2, probe=ping, grace=1) as connection:
                    async for said in connection.stream:
                        # One that does not read holds this up until it is closed: no
                        # silence of this client's.
                        with connection.in_use():
                            async with trio.open_nursery() as nursery:
                                for other in present - {stream}:
                                    nursery.start_soon(tell, said, other)
            except trio.BrokenResourceError:
                pass  # the client reset the connection
            finally:
                present.remove(stream)

        await trio.serve_tcp(chat, port, host="127.0.0.1")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
