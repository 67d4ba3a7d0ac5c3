"""An ASGI application for any server that `reaper run` guards: /slow answers late, everything else
at once.
"""

import os
import time

import anyio


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for stage in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{stage}.complete"})
        return
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    if message["type"] != "http.request":
        return
    if scope["path"] == "/slow":
        await anyio.sleep(float(os.environ["SLOW"]))
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi(environ, start_response):
    if environ["PATH_INFO"] == "/slow":
        time.sleep(float(os.environ["SLOW"]))
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
