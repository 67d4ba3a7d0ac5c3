"""Servers that others wrote, at a UNIX socket:
`python -m tests.helpers.unix_programs KIND PATH`.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp.web

import reaper.aiohttp
from tests.helpers.asgi import BIG
from tests.helpers.guarded_programs import aiohttp_app


def run_ours(path: str) -> None:
    """aiohttp by our `run_app`."""
    reaper.aiohttp.run_app(aiohttp_app(), path=path)


def run_aiohttp(path: str) -> None:
    """aiohttp as it comes."""
    aiohttp.web.run_app(aiohttp_app(), path=path)


def run_tornado(path: str) -> None:
    """tornado; answers as tests/helpers/asgi.py does."""
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_unix_socket
    from tornado.web import Application, RequestHandler

    class Answer(RequestHandler):
        async def get(self) -> None:
            if self.request.path == "/slow":
                await asyncio.sleep(float(self.request.query))
            self.write(BIG if self.request.path == "/big" else self.request.body or b"hello")

        post = get

    async def main() -> None:
        HTTPServer(Application([("/.*", Answer)])).add_socket(bind_unix_socket(path))
        await asyncio.Event().wait()

    asyncio.run(main())


def run_sanic(path: str) -> None:
    """Sanic; the same."""
    from sanic import Sanic
    from sanic.request import Request
    from sanic.response import HTTPResponse, raw

    app = Sanic("unix")

    @app.route("/<path:path>", methods=["GET", "POST"], unquote=True)
    async def answer(request: Request, path: str) -> HTTPResponse:
        if path == "slow":
            await asyncio.sleep(float(request.query_string))
        return raw(BIG if path == "big" else request.body or b"hello")

    app.run(unix=path, single_process=True)


if __name__ == "__main__":
    globals()[f"run_{sys.argv[1]}"](sys.argv[2])
