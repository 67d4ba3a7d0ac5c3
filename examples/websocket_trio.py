"""A WebSocket server on trio (needs trio-websocket): a client whose machine answers a
ping is there, another is closed.

python -m examples.websocket_trio 8080
"""

from __future__ import annotations

import sys

import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, wrap_server_stream

import reaper.trio


async def main(port: int) -> None:
    async with reaper.trio.open_reaper(tick=0.5) as r:

        async def serve(stream: trio.SocketStream) -> None:
            socket: WebSocketConnection | None = None

            async def ping(connection: reaper.trio.Connection) -> None:
                if socket is not None:  # otherwise it has not even shaken hands
                    await socket.ping()  # returns when the pong has come

            try:
                with r.watch(stream, idle=2, probe=ping, grace=1) as connection:
                    async with trio.open_nursery() as nursery:
                        request = await wrap_server_stream(nursery, connection.stream)
                        socket = await request.accept()
                        while True:
                            message = await socket.get_message()
                            with connection.in_use():  # the library reads on meanwhile
                                await socket.send_message(message)
            except* (ConnectionClosed, HandshakeError, trio.BrokenResourceError):
                pass  # it has gone, or it was no WebSocket

        await trio.serve_tcp(serve, port, host="127.0.0.1")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
