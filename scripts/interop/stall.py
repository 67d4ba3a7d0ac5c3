"""A stalled event loop: how many requests that arrived in time does a server throw away when it wakes up?

One rule: *the same clients for every server*. Each of 100 connections has had one answer; the loop is then held for 3 s
with a keep-alive timeout of 2 s, and each sends its next request while it is held, long before its timeout.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
import sys
import time
from contextlib import ExitStack, suppress

from ..serving import free_port, serving
from .tools import OUT

CLIENTS = 100
KEEP_ALIVE = 2
STALL = 3.0
PATIENCE = 15.0

ASGI = f"""
import time
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({{"type": message["type"] + ".complete"}})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/block":
        time.sleep({STALL})
    await send({{"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}})
    await send({{"type": "http.response.body", "body": b"ok"}})
"""

AIOHTTP = f"""
import sys, time
from aiohttp import web
async def answer(request):
    if request.path == "/block":
        time.sleep({STALL})
    return web.Response(text="ok")
app = web.Application()
app.router.add_get("/{{path:.*}}", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), keepalive_timeout={KEEP_ALIVE}, print=None)
"""

OURS = f"""
import socket, sys, time, trio, reaper.trio
from reaper.config import ReaperConfig
from server_example.http.server import HttpServer
from server_example.http.routes import ROUTES
async def block(exchange):
    time.sleep({STALL})
    await exchange.respond(200, b"ok", "text/plain")
async def main():
    settings = {{"timeouts.keep_alive": "{KEEP_ALIVE}s", "reaper.tick": sys.argv[2]}}
    config = ReaperConfig.load(environ={{}}, overrides=settings)
    async with reaper.trio.open_reaper(config) as watcher:
        listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
        async with HttpServer(config, watcher, {{**ROUTES, "/block": block}}).running() as admit:
            await reaper.trio.accepting.accept(listening, admit)
trio.run(main)
"""


def run() -> dict[str, object]:
    """Every server that is installed, three times. Ours must lose nothing."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, text in (("stall_asgi.py", ASGI), ("stall_aiohttp.py", AIOHTTP), ("stall_ours.py", OURS)):
        (OUT / name).write_text(text)
    ours = [sys.executable, "-m", "out.interop.stall_ours"]
    asgi = ["--bind", "127.0.0.1:{port}", "--keep-alive", str(KEEP_ALIVE), "out.interop.stall_asgi:app"]
    uvicorn = f"--http h11 --port {{port}} --timeout-keep-alive {KEEP_ALIVE} --app-dir {OUT} --log-level warning"
    table = {
        "ours, tick 1s": ("", [*ours, "{port}", "1s"]),
        "ours, tick 100ms": ("", [*ours, "{port}", "100ms"]),
        "hypercorn (trio)": ("hypercorn", [sys.executable, "-m", "hypercorn", "-k", "trio", *asgi]),
        "hypercorn (asyncio)": ("hypercorn", [sys.executable, "-m", "hypercorn", "-k", "asyncio", *asgi]),
        "uvicorn (h11)": ("uvicorn", [sys.executable, "-m", "uvicorn", *uvicorn.split(), "stall_asgi:app"]),
        "aiohttp": ("aiohttp", [sys.executable, str(OUT / "stall_aiohttp.py"), "{port}"]),
    }
    found: dict[str, dict[str, object]] = {}
    for name, (package, command) in table.items():
        if package and importlib.util.find_spec(package) is None:
            found[name] = {"skipped": f"{package} is not installed"}
            continue
        version = importlib.metadata.version(package) if package else "this checkout"
        found[name] = {"version": version, "lost": [_lost(command) for _ in range(3)], "of": CLIENTS}
    mine = [lost for name, row in found.items() if name.startswith("ours") for lost in row["lost"]]  # type: ignore[attr-defined]
    return {"servers": found, "passed": not any(mine)}


def _lost(command: list[str]) -> int:
    port = free_port()
    filled = [word.replace("{port}", str(port)) for word in command]
    with serving(filled, OUT / "stall.log", port=port), ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for client in clients:
            _answer(client)
        blocking = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
        blocking.sendall(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(KEEP_ALIVE / 2)
        lost = 0
        for client in clients:
            with suppress(OSError):
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for client in clients:
            try:
                lost += not _answer(client).startswith(b"HTTP/1.1 200")
            except OSError:
                lost += 1
        return lost


def _answer(client: socket.socket) -> bytes:
    """One whole answer with a small body; shorter when the connection ends before."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    while len(body) < length and (piece := client.recv(65536)):
        body += piece
    return data
