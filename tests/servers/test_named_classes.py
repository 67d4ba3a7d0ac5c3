"""Where a program names a class of ours, no name of another package is replaced."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SERVE = """
import asyncio, sys, urllib.request
from importlib import import_module

PACKAGES = "uvicorn", "gunicorn", "asyncio", "h11", "httptools", "uvloop", "socket", "ssl", "signal"
for name in (
    "uvicorn.main uvicorn.workers uvicorn.protocols.http.h11_impl uvicorn.protocols.http.httptools_impl"
    " gunicorn.arbiter gunicorn.workers.gasgi gunicorn.workers.gthread"
).split():
    import_module(name)


def named():
    found = {}
    for module in [each for name, each in sys.modules.items() if name.split(".")[0] in PACKAGES]:
        for name, value in vars(module).items():
            found[module.__name__, name] = value
            if isinstance(value, type):
                found |= {(module.__name__, name, each): got for each, got in vars(value).items()}
    return {name: value for name, value in found.items() if callable(value) or len(name) == 3}


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def serve():
    import uvicorn

    config = uvicorn.Config(app, http="reaper.uvicorn:Auto", port=0, lifespan="off")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}")
    server.should_exit = True
    await running
    return answer.status


before, finders = named(), list(sys.meta_path)
import reaper.gunicorn, reaper.uvicorn

reaper.gunicorn.UvicornWorker, reaper.gunicorn.ASGIWorker, reaper.gunicorn.ThreadWorker
print(asyncio.run(serve()), finders == sys.meta_path)
after = named()
print([name for name, value in before.items() if after.get(name) is not value])
"""


def test_a_class_that_is_named_replaces_nothing_of_uvicorn_gunicorn_or_asyncio() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SERVE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-2:] == ["204 True", "[]"], done.stderr
