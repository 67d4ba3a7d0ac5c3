"""Programs that start a server of their own, as people write them: `python programs.py
NAME PORT`.

None of them knows of reaper.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any

SLOW = float(os.environ.get("SLOW", "1"))
HERE = os.path.dirname(os.path.abspath(__file__))


def uvicorn(port: int, **options: Any) -> None:
    import uvicorn

    uvicorn.run("asgi:app", port=port, log_level="warning", app_dir=HERE, **options)


def uvicorn_workers(port: int) -> None:
    uvicorn(port, workers=2)


def uvicorn_reload(port: int) -> None:
    uvicorn(port, reload=True, reload_dirs=[HERE])


def uvicorn_in_a_thread(port: int) -> None:
    import time

    import uvicorn
    from asgi import app  # type: ignore[import-not-found]

    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while True:
        time.sleep(1)


def aiohttp(port: int) -> None:
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        if request.path == "/pause":
            answer = web.StreamResponse(headers={"Content-Length": "9"})
            await answer.prepare(request)
            await answer.write(b"first")
            await asyncio.sleep(SLOW)
            await answer.write(b"last")
            return answer
        await asyncio.sleep(SLOW if request.path == "/slow" else 0)
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


def tornado(port: int) -> None:
    from tornado.web import Application, RequestHandler

    class Answer(RequestHandler):
        async def get(self) -> None:
            if self.request.path == "/pause":
                self.set_header("Content-Length", "9")
                self.write("first")
                await self.flush()
                await asyncio.sleep(SLOW)
                self.write("last")
                return
            await asyncio.sleep(SLOW if self.request.path == "/slow" else 0)
            self.write("ok")

        post = get

    async def main() -> None:
        Application([("/.*", Answer)]).listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())


def sanic(port: int) -> None:
    from sanic import HTTPResponse, Request, Sanic
    from sanic.response import text

    app = Sanic("answers")

    @app.route("/<path:path>", methods=["GET", "POST"])
    async def answer(request: Request, path: str) -> HTTPResponse | None:
        if path == "pause":
            halves = await request.respond(headers={"Content-Length": "9"})
            await halves.send("first")
            await asyncio.sleep(SLOW)
            await halves.send("last")
            return None
        await asyncio.sleep(SLOW if path == "slow" else 0)
        return text("ok")

    app.run(host="127.0.0.1", port=port, single_process=True, access_log=False, motd=False)


def websockets(port: int) -> None:
    from websockets.asyncio.server import ServerConnection, serve

    async def answer(connection: ServerConnection) -> None:
        async for message in connection:
            await asyncio.sleep(SLOW if message == "slow" else 0)
            await connection.send("ok")

    async def main() -> None:
        async with serve(answer, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(main())


def anyio(port: int) -> None:
    from anyio import create_tcp_listener
    from anyio.abc import SocketStream

    async def answer(stream: SocketStream) -> None:
        held = b""
        async with stream:
            async for data in stream:
                held += data
                while b"\r\n\r\n" in held:
                    head, _, held = held.partition(b"\r\n\r\n")
                    path = head.split()[1]
                    await asyncio.sleep(SLOW if path == b"/slow" else 0)
                    if path == b"/pause":
                        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfirst")
                        await asyncio.sleep(SLOW)
                        await stream.send(b"last")
                    else:
                        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def main() -> None:
        listener = await create_tcp_listener(local_host="127.0.0.1", local_port=port)
        await listener.serve(answer)

    asyncio.run(main())


def quart_trio(port: int) -> None:
    from asgi import app as answers
    from quart_trio import QuartTrio

    app = QuartTrio(__name__)
    app.asgi_app = answers  # type: ignore[method-assign]
    app.run(host="127.0.0.1", port=port)


def mcp(port: int) -> None:
    from mcp.server.mcpserver import MCPServer

    MCPServer("answers").run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    globals()[sys.argv[1]](int(sys.argv[2]))
