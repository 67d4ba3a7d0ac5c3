"""The same answer from every server that is compared: `GET` anything, 200, two bytes;
or the bytes that came.

    python -m benchmarks.servers.apps asyncio|asyncio-echo|aiohttp|ours PORT ...

One rule: *each imports only what it serves with*, for its memory is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from scripts.lifespan import lifespan

BODY = b"ok"
PATH = "/ok"
KEPT = 600
"""Seconds that every server keeps a silent connection: longer than any run."""


async def asgi(
    scope: Mapping[str, Any],
    receive: Callable[[], Awaitable[Mapping[str, Any]]],
    send: Callable[[Mapping[str, Any]], Awaitable[None]],
) -> None:
    """For hypercorn and uvicorn."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


def wsgi(environ: Mapping[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    """For gunicorn's threads."""
    headers = [("content-type", "text/plain"), ("content-length", str(len(BODY)))]
    start_response("200 OK", headers)
    return [BODY]


def serve_asyncio(port: int, *, echo: bool) -> None:
    """A Protocol with no parser, no timeout and no limit: what asyncio costs by
    itself.
    """
    import asyncio

    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (
        len(BODY),
        BODY,
    )

    class Bare(asyncio.Protocol):
        transport: asyncio.WriteTransport
        unread = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            if echo:
                self.transport.write(data)
                return
            *requests, self.unread = (self.unread + data).split(b"\r\n\r\n")
            self.transport.write(answer * len(requests))

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(
            Bare, "127.0.0.1", port, backlog=1000
        )
        await server.serve_forever()

    asyncio.run(main())


def serve_aiohttp(port: int) -> None:
    """aiohttp's own server, its access log off."""
    from aiohttp import web

    async def ok(request: web.Request) -> web.Response:
        return web.Response(body=BODY, content_type="text/plain")

    app = web.Application()
    app.router.add_get(PATH, ok)
    web.run_app(
        app,
        host="127.0.0.1",
        port=port,
        keepalive_timeout=KEPT,
        access_log=None,
        print=None,
        backlog=1000,
    )


def serve_ours(arguments: list[str]) -> int:
    """The example server, with the route that all have."""
    from server_example.__main__ import main
    from server_example.http import routes as http_routes
    from server_example.http.connection import Exchange, Route

    async def ok(exchange: Exchange) -> None:
        await exchange.respond(200, BODY, "text/plain")

    cast(dict[str, Route], http_routes.ROUTES)[PATH] = ok
    return main(arguments)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "ours":
        sys.exit(serve_ours(rest))
    elif kind == "aiohttp":
        serve_aiohttp(int(rest[0]))
    else:
        serve_asyncio(int(rest[0]), echo=kind == "asyncio-echo")
