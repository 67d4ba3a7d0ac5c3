"""An echo server on anyio, on asyncio or on trio, whose silent clients go:
`python -m examples.anyio_echo 8080 trio`.

There is no reaper for anyio: the one of the backend does. It is given the socket, so
that it can ask the kernel for unread bytes.
"""

import sys
from contextlib import suppress
from types import ModuleType

import anyio
import sniffio
from anyio.abc import SocketAttribute, SocketStream

IDLE = 2.0
"""Seconds of silence allowed."""


def reaper_of_the_backend() -> ModuleType:
    """The adapter for the loop that runs: `reaper.trio` or `reaper.asyncio`."""
    if sniffio.current_async_library() == "trio":
        import reaper.trio as adapter
    else:
        import reaper.asyncio as adapter
    return adapter


async def serve(port: int, idle: float = IDLE) -> None:
    async with reaper_of_the_backend().open_reaper(idle=idle) as reaper:

        async def echo(stream: SocketStream) -> None:
            async with stream:
                # A client that resets ends its own connection, and not the server.
                with (
                    suppress(anyio.BrokenResourceError),
                    reaper.watch(stream.extra(SocketAttribute.raw_socket)) as connection,
                ):
                    async for data in stream:
                        connection.touch()
                        await stream.send(data)

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        print(f"listening on 127.0.0.1:{listener.extra(SocketAttribute.local_port)}", flush=True)
        await listener.serve(echo)


if __name__ == "__main__":
    anyio.run(serve, int(sys.argv[1]), backend=sys.argv[2] if len(sys.argv) > 2 else "asyncio")
