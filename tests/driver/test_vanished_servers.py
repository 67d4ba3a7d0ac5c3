"""Clients of guarded servers that vanish, with a stock server beside them as the
control: nobody else closes those.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.serving import tree
from tests.helpers import namespaces
from tests.servers.uvicorn.test_limits import UPGRADE, get, open_at

pytestmark = pytest.mark.slow

AFTER = 4.0
PATIENCE = 90.0
KINDS = ("stream", "waits", "socket", "idle")
PARKS = ("stream", "upload", "half", "idle")
"""With a task and without."""

UVICORN = [
    "-m",
    "uvicorn",
    "tests.helpers.asgi:application",
    "--host",
    "0.0.0.0",
    "--ws-ping-interval",
    "3600",
    "--port",
]
EXAMPLE = ["--host=0.0.0.0", "--workers=1", "--min-in-rate=0", "--linger=0s", "--log-level=debug"]
GUNICORN = ["-m", "gunicorn", "--no-control-socket", "-b"]
PROGRAM = ["-m", "tests.helpers.guarded_programs"]
UPLOAD = b"POST /upload HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\n"
ANSWERED = {"stream": get(b"/events"), "socket": UPGRADE, "idle": get()}
REQUESTS = {"waits": get(b"/slow?300"), "upload": UPLOAD, "half": get()[:-2], **ANSWERED}
CLIENT = """
import ast, socket, ssl, sys, time
kept = []
for port, tls, request, is_answered in ast.literal_eval(sys.argv[2]):
    while True:
        try:
            client = socket.create_connection((sys.argv[1], port), 10)
            break
        except OSError:
            time.sleep(0.2)
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = context.wrap_socket(client)
    client.sendall(request)
    if is_answered:
        client.settimeout(30)
        assert client.recv(1000)
    kept.append(client)
print("ready", flush=True)
time.sleep(3600)
"""


def guarded(certificate: tuple[str, str]) -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """What runs each server on a port of its own, and what its clients want of it."""
    tls = ["--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1]]
    http = {name: ["--http", f"reaper.uvicorn:{name}", "--loop"] for name in ("HttpTools", "H11")}
    asgi = ["-k", "reaper.gunicorn.ASGIWorker", "tests.helpers.asgi:application"]
    threads = [
        "-k",
        "reaper.gunicorn.ThreadWorker",
        "--threads",
        "4",
        "tests.helpers.wsgi:application",
    ]
    example = ["-m", "server_example"]
    return {
        "uvicorn, httptools": ([*UVICORN, "{}", *http["HttpTools"], "asyncio"], KINDS),
        "uvicorn, h11 on uvloop": ([*UVICORN, "{}", *http["H11"], "uvloop"], KINDS),
        "uvicorn, TLS": ([*UVICORN, "{}", *http["HttpTools"], "reaper.uvicorn:loop", *tls], KINDS),
        "gunicorn, asgi": ([*GUNICORN, "0.0.0.0:{}", *asgi], KINDS),
        "gunicorn, threads": ([*GUNICORN, "0.0.0.0:{}", *threads], ("waits", "idle")),
        "aiohttp": ([*PROGRAM, "aiohttp", "0.0.0.0", "{}", "3600"], KINDS),
        "websockets": ([*PROGRAM, "websockets", "0.0.0.0", "{}", "3600"], ("socket",)),
        "hypercorn": (
            [*PROGRAM, "hypercorn", "0.0.0.0", "{}", "3600"],
            ("stream", "waits", "idle"),
        ),
        "example, http": ([*example, "http", "--port={}", *EXAMPLE], PARKS),
        "example, echo": ([*example, "echo", "--port={}", *EXAMPLE], ("idle",)),
        "stock uvicorn": ([*UVICORN, "{}", "--timeout-keep-alive", "3600"], KINDS),
    }


def end(pid: int) -> None:
    """A server that waits for a client that has vanished would not end otherwise."""
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def test_every_server_closes_the_clients_that_vanish_and_a_stock_one_keeps_them(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    names = ("KEEP_ALIVE", "FIRST_BYTE", "HEADERS", "BODY", "WRITE", "TUNNEL", "IDLE")
    limits = {f"REAPER_TIMEOUTS_{name}": "1h" for name in names}
    environment = (
        os.environ | limits | {"REAPER_TIMEOUTS_VANISHED": f"{AFTER:g}s", "REAPER_TICK": "250ms"}
    )
    environment |= {"PYTHONPATH": os.getcwd()}
    servers = {
        port: (name, *how)
        for port, (name, how) in enumerate(guarded(certificate).items(), start=7800)
    }
    with namespaces.opened() as link, contextlib.ExitStack() as stack:
        for port, (name, arguments, _) in servers.items():
            command = [
                *link.server,
                sys.executable,
                *(each.replace("{}", str(port)) for each in arguments),
            ]
            log = stack.enter_context((tmp_path / name.replace(" ", "")).open("wb"))
            made = stack.enter_context(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            )
            stack.callback(end, made.pid)
        asks = [
            (port, "TLS" in name, REQUESTS[kind], kind in ANSWERED)
            for port, (name, _, kinds) in servers.items()
            for kind in kinds
        ]
        command = [*link.client, sys.executable, "-c", CLIENT, link.address, repr(asks)]
        client = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(client.kill)
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"

        def held() -> dict[str, int]:
            found = open_at(made.pid)
            return {
                name: found.count(port) for port, (name, *_) in servers.items() if port in found
            }

        asked = {name: len(kinds) for name, _, kinds in servers.values()}
        time.sleep(AFTER)
        assert held() == asked
        link.down()
        until = time.monotonic() + PATIENCE
        while len(left := held()) > 1:
            assert time.monotonic() < until, left
            time.sleep(0.2)
        assert left == {"stock uvicorn": asked["stock uvicorn"]}
    for name in ("uvicorn,httptools", "uvicorn,h11onuvloop", "uvicorn,TLS", "gunicorn,asgi"):
        assert "the client has gone" in (tmp_path / name).read_text(), (
            f"the application of {name} was not told"
        )
    for name, kinds in (("example,http", PARKS), ("example,echo", ("idle",))):
        assert (tmp_path / name).read_text().count("closed: vanished") == len(kinds), (
            f"{name} did not say why"
        )
