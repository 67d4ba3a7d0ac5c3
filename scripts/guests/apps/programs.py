"""The same as `asgi`, of servers that are programs: `python -m
scripts.guests.apps.programs NAME PORT [--guarded] [--tls FOLDER]`.

With `--guarded` a program guards itself as its users do it by hand; without it, it
imports nothing of reaper.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from ..lengths import LENGTHS
from .asgi import BIG, pieces_of
from .heard import tell, told
from .objects import fork, objects


def tls() -> ssl.SSLContext | None:
    """With the certificate of the folder that `--tls` names; None: in clear text."""
    if "--tls" not in sys.argv:
        return None
    folder = sys.argv[sys.argv.index("--tls") + 1]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    return context


def answer_to(path: str, number: float, body: bytes) -> bytes:
    """The answer of those routes that take no time of their own."""
    if path in ("/echo", "/late"):
        return body
    if path == "/objects":
        return objects()
    if path == "/fork":
        return fork(number)
    if path == "/tell":
        return tell(number)
    if path == "/told":
        return told(number)
    return bytes(int(number)) if path == "/some" else b"hello"


SAYS: dict[Any, Callable[[], bytes]] = {
    "big": lambda: BIG,
    "objects": objects,
    "fork": lambda: fork(6.0),
    "told": told,
}
"""What a WebSocket answers with something else than what it was sent."""


def aiohttp(port: int, guarded: bool) -> None:
    """aiohttp, by its `run_app` or ours."""
    from aiohttp import web

    async def websocket(request: web.Request) -> web.StreamResponse:
        talk = web.WebSocketResponse()
        await talk.prepare(request)
        async for message in talk:
            if message.data in SAYS:
                await talk.send_bytes(SAYS[message.data]())
            elif message.data == "tell":
                tell()
            elif isinstance(message.data, str):
                await talk.send_str(message.data)
            else:
                await talk.send_bytes(message.data)
        return talk

    async def answer(request: web.Request) -> web.StreamResponse:
        path, number = request.path, float(request.query_string or 0)
        if path in ("/events", "/pause"):
            response = web.StreamResponse()
            if path == "/pause":
                response.content_length = 10
            else:
                response.content_type = "text/event-stream"
            await response.prepare(request)
            pieces, rest = pieces_of(path, number)
            for place, piece in enumerate(pieces):
                await asyncio.sleep(rest if place else 0)
                await response.write(piece)
            return response
        if path in ("/slow", "/late"):
            await asyncio.sleep(number)
        body = b"" if path == "/early" else await request.read()
        return web.Response(body=answer_to(path, number, body))

    made = web.Application(client_max_size=10**8)
    made.router.add_get("/ws", websocket)
    made.router.add_route("*", "/{any:.*}", answer)
    if guarded:
        import reaper.aiohttp

        reaper.aiohttp.run_app(made, host="127.0.0.1", port=port, print=None, ssl_context=tls())
    else:
        own: Any = {}
        if kept := os.environ.get("AIOHTTP_KEEP_ALIVE"):
            own["keepalive_timeout"] = float(kept)
        web.run_app(made, host="127.0.0.1", port=port, print=None, ssl_context=tls(), **own)


def tornado(port: int, guarded: bool) -> None:
    """tornado."""
    from tornado.web import Application, RequestHandler
    from tornado.websocket import WebSocketHandler

    class Answer(RequestHandler):
        async def get(self) -> None:
            path, number = self.request.path, float(self.request.query or 0)
            if path in ("/events", "/pause"):
                if path == "/pause":
                    self.set_header("Content-Length", "10")
                else:
                    self.set_header("Content-Type", "text/event-stream")
                pieces, rest = pieces_of(path, number)
                for place, piece in enumerate(pieces):
                    await asyncio.sleep(rest if place else 0)
                    self.write(piece)
                    await self.flush()
                return
            if path in ("/slow", "/late"):
                await asyncio.sleep(number)
            self.write(answer_to(path, number, self.request.body))

        post = put = head = get

    class Talk(WebSocketHandler):
        async def on_message(self, message: str | bytes) -> None:
            if message in SAYS:
                await self.write_message(SAYS[message](), binary=True)
            elif message == "tell":
                tell()
            else:
                await self.write_message(message, binary=isinstance(message, bytes))

    async def main() -> None:
        application = Application([("/ws", Talk), ("/.*", Answer)])
        options: dict[str, Any] = {"max_body_size": 10**8, "ssl_options": tls()}
        application.listen(port, "127.0.0.1", **options)
        await asyncio.Event().wait()

    asyncio.run(main())


def sanic(port: int, guarded: bool) -> None:
    """Sanic, in one process."""
    from sanic import HTTPResponse, Request, Sanic, Websocket
    from sanic.response import raw

    made: Any = Sanic("guests")

    @made.websocket("/ws")  # type: ignore[untyped-decorator]
    async def talk(request: Request, websocket: Websocket) -> None:
        async for message in websocket:
            if message == "tell":
                tell()
            else:
                await websocket.send(SAYS[message]() if message in SAYS else message)

    @made.route("/", methods=["GET", "POST", "HEAD"], name="root")  # type: ignore[untyped-decorator]
    @made.route("/<path:path>", methods=["GET", "POST", "HEAD"], name="any")  # type: ignore[untyped-decorator]
    async def answer(request: Request, path: str = "") -> HTTPResponse | None:
        number = float(request.query_string or 0)
        path = f"/{path}"
        if path in ("/events", "/pause"):
            headers = {"Content-Length": "10"} if path == "/pause" else {}
            kind = "text/plain" if path == "/pause" else "text/event-stream"
            response = await request.respond(headers=headers, content_type=kind)
            pieces, rest = pieces_of(path, number)
            for place, piece in enumerate(pieces):
                await asyncio.sleep(rest if place else 0)
                await response.send(piece)
            return None
        if path in ("/slow", "/late"):
            await asyncio.sleep(number)
        return raw(answer_to(path, number, request.body or b""))

    quiet: dict[str, Any] = {"access_log": False, "motd": False}
    made.run(host="127.0.0.1", port=port, single_process=True, ssl=tls(), **quiet)


def websockets(port: int, guarded: bool) -> None:
    """The library websockets, which pings nobody here."""
    from websockets.asyncio.server import ServerConnection, serve

    async def talk(connection: ServerConnection) -> None:
        async for message in connection:
            if message in SAYS:
                await connection.send(SAYS[message]())
            elif message == "tell":
                tell()
            else:
                await connection.send(message)

    async def main() -> None:
        options: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            if guarded:
                import reaper.asyncio
                import reaper.websockets

                watcher = await stack.enter_async_context(reaper.asyncio.open_reaper(tick=0.25))
                options["create_connection"] = reaper.websockets.connection(
                    idle=LENGTHS["tunnel"], reaper=watcher
                )
            async with serve(
                talk, "127.0.0.1", port, ping_interval=None, compression=None, **options
            ) as server:
                await server.serve_forever()

    asyncio.run(main())


def line_answer(line: bytes) -> bytes:
    """What a server of lines says to a line."""
    if line == b"objects\n":
        return objects() + b"\n"
    if line == b"tell\n":
        return tell() + b"\n"
    if line == b"told\n":
        return told() + b"\n"
    return fork(6.0) + b"\n" if line == b"fork\n" else line


def start_server(port: int, guarded: bool, *, hands_over: bool = False) -> None:
    """`asyncio.start_server`, or ours, with a server of lines.

    Args:
        hands_over: Whether its handler gives the connection to a task, and returns at
            once.
    """
    start: Any = asyncio.start_server
    options: dict[str, Any] = {}
    if guarded:
        import reaper.asyncio

        start, options = reaper.asyncio.start_server, {"idle": LENGTHS["idle"], "tick": 0.25}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(line_answer(line))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    tasks = set()

    async def hand_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(talk(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def main() -> None:
        server = await start(
            hand_over if hands_over else talk, "127.0.0.1", port, limit=10**7, **options
        )
        await server.serve_forever()

    asyncio.run(main())


def handed(port: int, guarded: bool) -> None:
    """The same, whose handler gives the connection to a task, and returns at once."""
    start_server(port, guarded, hands_over=True)


def anyio(port: int, guarded: bool) -> None:
    """anyio's `create_tcp_listener` on asyncio, with a server of lines."""
    from anyio import BrokenResourceError, create_tcp_listener
    from anyio.abc import SocketStream

    async def talk(stream: SocketStream) -> None:
        held = b""
        async with stream:
            try:
                async for data in stream:
                    *lines, held = (held + data).split(b"\n")
                    for line in lines:
                        await stream.send(line_answer(line + b"\n"))
            except BrokenResourceError:
                pass

    async def main() -> None:
        listener = await create_tcp_listener(local_host="127.0.0.1", local_port=port)
        await listener.serve(talk)

    asyncio.run(main())


def _on_trio(port: int, serve: Any, **options: Any) -> None:
    import trio

    async def talk(stream: Any) -> None:
        held = b""
        try:
            async for data in stream:
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    await stream.send_all(line_answer(line + b"\n"))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    trio.run(lambda: serve(talk, port, host="127.0.0.1", **options))


def serve_tcp(port: int, guarded: bool) -> None:
    """`trio.serve_tcp`, or ours."""
    import trio

    if guarded:
        import reaper.trio

        _on_trio(port, reaper.trio.serve_tcp, idle=LENGTHS["idle"], tick=0.25)
    else:
        _on_trio(port, trio.serve_tcp)


def serve_parked(port: int, guarded: bool) -> None:
    """`trio.serve_tcp`, or our `serve_parked`, whose handler keeps no half of a line:
    it sends back bytes as they come.
    """
    import trio

    async def talk(stream: Any) -> None:
        try:
            async for data in stream:
                await stream.send_all(line_answer(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    serve: Any = trio.serve_tcp
    options: dict[str, Any] = {}
    if guarded:
        import reaper.trio

        serve, options = reaper.trio.serve_parked, {"idle": LENGTHS["idle"], "tick": 0.25}
    trio.run(lambda: serve(talk, port, host="127.0.0.1", **options))


if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]), "--guarded" in sys.argv)
