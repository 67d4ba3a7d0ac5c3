"""Servers that send back what they were sent: the body of a POST, a message, bytes.

    python -m benchmarks.servers.tls_apps KIND PORT CERTIFICATE KEY

`KIND` is `aiohttp` or `websockets`, or one of a bare loop, stock and guarded:
`streams`, `start_server`, `protocol` or `guard`.

One rule: *each imports only what it serves with*, for its memory is measured.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import Any

from scripts.lifespan import lifespan

LARGEST = 1 << 20
IDLE = 600.0
"""Seconds; longer than any run."""


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """For uvicorn, hypercorn and gunicorn's `asgi` worker."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_aiohttp(port: int, context: ssl.SSLContext) -> None:
    """aiohttp's own server, its access log off."""
    from aiohttp import web

    async def back(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=LARGEST)
    app.router.add_post("/", back)
    web.run_app(
        app,
        host="127.0.0.1",
        port=port,
        ssl_context=context,
        keepalive_timeout=IDLE,
        access_log=None,
        print=None,
    )


async def serve_websockets(port: int, context: ssl.SSLContext) -> None:
    """The server of websockets, without compression, which keeps a window for each
    client, and without pings, for these clients do not answer.
    """
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed

    async def back(connection: ServerConnection) -> None:
        try:
            while True:
                # In no variable, which would hold it while the client is silent.
                await connection.send(await connection.recv())
        except ConnectionClosed:
            pass

    async with serve(
        back, "127.0.0.1", port, ssl=context, compression=None, ping_interval=None
    ) as server:
        await server.serve_forever()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The handler of both kinds of streams."""
    try:
        while data := await reader.read(4096):  # what it holds while it waits
            writer.write(data)
            await writer.drain()
    except OSError:  # the clients leave without a word
        pass
    finally:
        writer.close()


class Echo(asyncio.Protocol):
    """The protocol that is served as it is, and by `guard`."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve_bare(kind: str, port: int, context: ssl.SSLContext) -> None:
    """A server of a bare loop."""
    where: Any = {"host": "127.0.0.1", "port": port, "ssl": context}
    if kind == "streams":
        server = await asyncio.start_server(echo, **where)
    elif kind == "protocol":
        server = await asyncio.get_running_loop().create_server(Echo, **where)
    else:
        import reaper.asyncio

        if kind == "start_server":
            server = await reaper.asyncio.start_server(echo, idle=IDLE, **where)
        else:
            guarded = reaper.asyncio.guard(Echo, idle=IDLE)
            server = await asyncio.get_running_loop().create_server(guarded, **where)
    await server.serve_forever()


def main(kind: str, port: int, certificate: str, key: str) -> None:
    """Serve until the process is ended."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    if kind == "aiohttp":
        serve_aiohttp(port, context)
    elif kind == "websockets":
        asyncio.run(serve_websockets(port, context))
    else:
        asyncio.run(serve_bare(kind, port, context))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
