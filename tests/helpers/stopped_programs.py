"""Servers that stop as their documentation has it: `python -m
tests.helpers.stopped_programs NAME PORT`.

Each prints `asked` when it is asked for `/slow`, and answers that once it has been told
to stop. It prints `stops` then.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

REST = 0.3
"""Seconds from the stop to the slow answer."""


class Stop:
    """Whether the server stops."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    def begin(self) -> None:
        self._begun.set()
        print("stops", flush=True)

    async def answers(self, path: str) -> None:
        """Wait until the request of *path* is to be answered."""
        if path == "/slow":
            print("asked", flush=True)
            await self._begun.wait()
            await asyncio.sleep(REST)


def tornado(port: int) -> None:
    from tornado.httpserver import HTTPServer
    from tornado.web import Application, RequestHandler

    async def main() -> None:
        stop, told = Stop(), asyncio.Event()

        class Answer(RequestHandler):
            async def get(self) -> None:
                await stop.answers(self.request.path)
                self.write("ok")

            post = get

        server = HTTPServer(Application([("/.*", Answer)]))
        server.listen(port, "127.0.0.1")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        await told.wait()
        server.stop()
        stop.begin()
        await server.close_all_connections()

    asyncio.run(main())


def sanic(port: int) -> None:
    from sanic import HTTPResponse, Request, Sanic
    from sanic.response import text

    app: Any = Sanic("stops")

    @app.before_server_start
    async def begin(app: Any) -> None:
        app.ctx.stop = Stop()

    @app.before_server_stop
    async def end(app: Any) -> None:
        app.ctx.stop.begin()

    @app.route("/", methods=["GET", "POST"], name="root")
    @app.route("/<path:path>", name="any")
    async def answer(request: Request, path: str = "") -> HTTPResponse:
        await request.app.ctx.stop.answers(f"/{path}")
        return text("ok")

    app.run(host="127.0.0.1", port=port, single_process=True, access_log=False, motd=False)


if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]))
