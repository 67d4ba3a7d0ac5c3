"""aiohttp, guarded: `reaper.aiohttp.run_app` in place of `aiohttp.web.run_app`.

python -m examples.aiohttp_app 8080
"""

from __future__ import annotations

import sys

from aiohttp import web

import reaper.aiohttp


async def hello(request: web.Request) -> web.Response:
    return web.json_response({"hello": "world"})


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.get("/", hello)])
    reaper.aiohttp.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
