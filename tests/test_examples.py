"""The examples as they stand, with real clients: they answer, and a client that says nothing is closed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import struct
import sys
import time

import pytest
import websockets.asyncio.client

from scripts.serving import free_port, serving

pytestmark = pytest.mark.slow

PATIENCE = 60.0
SETTINGS = {"REAPER_TICK": "100ms", "REAPER_TIMEOUTS_FIRST_BYTE": "500ms"}
UVICORN = [sys.executable, "-m", "uvicorn", "--http", "reaper.uvicorn:HttpTools", "--port", "{port}"]
PROGRAMS = {
    "fastapi": [*UVICORN, "examples.fastapi_app:app"],
    "starlette": [*UVICORN, "examples.starlette_websocket:app"],
    "django": [*UVICORN, "examples.django_app:app", "--lifespan", "off"],
    "aiohttp": [sys.executable, "-m", "examples.aiohttp_app", "{port}"],
    "asyncio": [sys.executable, "-m", "examples.asyncio_lines", "{port}"],
    "threads": [sys.executable, "-m", "examples.threads", "{port}"],
    "gunicorn": [
        *(sys.executable, "-m", "gunicorn", "examples.fastapi_app:app", "-c", "examples/gunicorn_conf.py"),
        *("--bind", "127.0.0.1:{port}"),
    ],
}


@pytest.fixture
def server(request, tmp_path):
    port = free_port()
    command = [part.format(port=port) for part in PROGRAMS[request.param]]
    environment = os.environ | SETTINGS | {"PYTHONPATH": os.getcwd()}
    with serving(command, tmp_path / "log", port=port, environment=environment, patience=PATIENCE) as server:
        yield server


@pytest.mark.parametrize("server", PROGRAMS, indirect=True)
def test_a_client_that_says_nothing_is_closed(server):
    start = time.monotonic()
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        assert client.recv(1) == b""
        assert time.monotonic() - start >= 0.5


@pytest.mark.parametrize("server", ["fastapi", "django", "aiohttp", "gunicorn"], indirect=True)
def test_a_client_that_asks_is_answered(server):
    client = http.client.HTTPConnection(*server.address, timeout=PATIENCE)
    for _ in range(3):
        client.request("GET", "/")
        assert json.loads(client.getresponse().read()) == {"hello": "world"}
    client.close()


@pytest.mark.parametrize("server", ["fastapi"], indirect=True)
def test_fastapi_takes_an_upload_and_tells_its_metrics(server):
    client = http.client.HTTPConnection(*server.address, timeout=PATIENCE)
    client.request("POST", "/upload", body=bytes(300_000))
    assert json.loads(client.getresponse().read()) == {"bytes": 300_000}
    client.request("GET", "/metrics/")
    assert b"reaper_leases" in client.getresponse().read()
    client.close()


@pytest.mark.parametrize("server", ["starlette"], indirect=True)
def test_starlettes_websocket_echoes(server):
    async def talk():
        async with websockets.asyncio.client.connect(f"ws://{server.target}/ws") as websocket:
            await websocket.send("hello")
            assert await websocket.recv() == "hello"

    asyncio.run(talk())


@pytest.mark.parametrize("server", ["asyncio"], indirect=True)
def test_plain_asyncio_shouts(server):
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        client.sendall(b"hello\n")
        assert client.recv(100) == b"HELLO\n"
        assert client.recv(100) == b""


@pytest.mark.parametrize("end", ["FIN", "RST", "silence"])
@pytest.mark.parametrize("server", ["threads"], indirect=True)
def test_a_server_of_threads_ends_each_client_that_goes_or_is_silent_and_none_that_speaks(server, end):
    with (
        socket.create_connection(server.address, timeout=PATIENCE) as talker,
        socket.create_connection(server.address, timeout=PATIENCE) as client,
    ):
        client.sendall(b"hello\n")
        assert client.recv(100) == b"HELLO\n"
        asked = time.monotonic()
        threads = len(os.listdir(f"/proc/{server.pid}/task"))
        if end == "FIN":
            client.shutdown(socket.SHUT_WR)
        if end == "RST":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        spoke = asked
        while len(os.listdir(f"/proc/{server.pid}/task")) == threads:
            assert time.monotonic() - asked < PATIENCE
            talker.sendall(b"x\n")
            heard, silence, spoke = talker.recv(100), time.monotonic() - spoke, time.monotonic()
            assert heard == b"X\n" or silence >= 2  # a machine that stalls may have kept it from speaking
            time.sleep(0.1)
        if end == "silence":
            assert client.recv(1) == b""
            assert time.monotonic() - asked >= 2
        if end == "FIN":
            assert client.recv(1) == b""
