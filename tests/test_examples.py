"""The examples as they stand, with real clients: they answer, and a client that says nothing is closed."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import http.client
import json
import os
import select
import signal
import socket
import ssl
import struct
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import websockets.asyncio.client
from server_process import wait_until

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


# -- servers of one's own: clients that close, reset, fall silent and go on talking, at the same time


@contextlib.contextmanager
def started(tmp_path, name, *arguments):
    port = free_port()
    command = [sys.executable, "-m", f"examples.{name}", str(port), *arguments]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with serving(command, tmp_path / "log", port=port, environment=environment, patience=PATIENCE) as server:
        yield server


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio_is_served_by_the_reaper_of_its_backend(tmp_path, backend):
    with started(tmp_path, "anyio_echo", backend) as server:
        with socket.create_connection(server.address, timeout=PATIENCE) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
            asked = time.monotonic()
            assert client.recv(100) == b"", "silent for two seconds"
            assert time.monotonic() - asked >= 1.9
        with socket.create_connection(server.address, timeout=PATIENCE) as client:
            client.sendall(b"bye")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b"bye"
            assert client.recv(100) == b""
        assert "Traceback" not in server.said()


def connections(server):
    """Sockets that the server's processes hold."""
    return len(server.sockets())


def connect(server):
    return socket.create_connection(server.address, timeout=PATIENCE)


def reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def heard(client, end):
    said = b""
    while not said.endswith(end):
        data = client.recv(1000)
        assert data, f"closed after {said!r}"
        said += data
    return said


def rest(client):
    """Everything up to the end of file, which has to come."""
    said = b""
    while data := client.recv(1000):
        said += data
    return said


def test_the_chat_asks_a_silent_client_and_closes_one_that_does_not_answer(tmp_path):
    with started(tmp_path, "chat") as server:
        alone = connections(server)
        talker, listener, deaf, closes, resets = (connect(server) for _ in range(5))
        wait_until(lambda: connections(server) == alone + 5)
        closes.close()
        reset(resets)
        wait_until(lambda: connections(server) == alone + 3)
        silent = time.monotonic()
        talker.sendall(b"hello\n")
        for client in (listener, deaf):
            assert heard(client, b"hello\n") == b"hello\n"
        for _ in range(2):
            assert heard(listener, b"are you there?\n")
            listener.sendall(b"yes\n")
            said = heard(talker, b"yes\n")
            assert b"hello" not in said
            assert b"good" not in said
            talker.sendall(b"good\n")
            assert b"yes" not in heard(listener, b"good\n")
        wait_until(lambda: connections(server) == alone + 2)  # the deaf one has gone
        assert time.monotonic() - silent >= 3
        for client in (talker, listener, deaf):
            client.close()
        wait_until(lambda: connections(server) == alone)


def test_a_tls_handshake_that_drips_is_ended_and_a_whole_one_is_served(tmp_path, certificate):
    context = ssl.create_default_context(cafile=certificate[0])
    with started(tmp_path, "tls_echo", *certificate) as server:
        alone = connections(server)
        dripping, begun = connect(server), time.monotonic()
        others = [context.wrap_socket(connect(server), server_hostname="127.0.0.1") for _ in range(3)]
        for client in others:
            client.sendall(b"hello")
            assert client.recv(10) == b"hello"
        silent, spoke = others[2], time.monotonic()
        others[0].close()
        reset(others[1])
        for byte in b"\x16\x03\x01\x02\x00" * 100:
            dripping.settimeout(0.1)
            try:
                dripping.sendall(bytes([byte]))
                if dripping.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - begun >= 2
        wait_until(lambda: "closed: handshake" in server.said())
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert silent.recv(1) == b""
        assert time.monotonic() - spoke >= 3
        wait_until(lambda: connections(server) == alone)
        for client in (dripping, silent):
            client.close()


def test_a_websocket_lives_while_pings_are_answered(tmp_path):
    with started(tmp_path, "websocket_trio") as server:
        alone = connections(server)
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        shake = b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + key + b"\r\n"
        mute, deaf, closes, resets = (connect(server) for _ in range(4))
        begun = time.monotonic()
        for client in (deaf, closes, resets):
            client.sendall(shake)
            assert heard(client, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
        closes.close()
        reset(resets)

        async def talk():
            async with websockets.asyncio.client.connect(f"ws://{server.target}/", ping_interval=None) as websocket:
                await websocket.send("hello")
                assert await websocket.recv() == "hello"
                for client in (mute, deaf):
                    await asyncio.to_thread(rest, client)
                await asyncio.to_thread(wait_until, lambda: connections(server) == alone + 1)
                assert time.monotonic() - begun >= 2
                await asyncio.sleep(2)
                await websocket.send("still here")
                assert await websocket.recv() == "still here"

        asyncio.run(talk())
        wait_until(lambda: connections(server) == alone)
        for client in (mute, deaf):
            client.close()


def test_at_sigterm_the_idle_go_the_busy_are_answered_and_the_server_ends(tmp_path):
    with started(tmp_path, "graceful_shutdown") as server:
        alone = connections(server)
        idle, busy, closes, resets = (connect(server) for _ in range(4))
        wait_until(lambda: connections(server) == alone + 4)
        closes.close()
        reset(resets)
        wait_until(lambda: connections(server) == alone + 2)
        busy.sendall(b"question")
        time.sleep(0.2)
        os.kill(server.pid, signal.SIGTERM)
        assert idle in select.select([idle, busy], [], [], PATIENCE)[0]
        assert idle.recv(1) == b""
        assert busy.recv(100) == b"QUESTION"
        assert busy.recv(1) == b""
        wait_until(lambda: server.status is not None)
        assert server.status == 0
        assert "all have gone" in server.said()
        for client in (idle, busy):
            client.close()


def test_prometheus_is_told_of_every_close(tmp_path):
    metrics = free_port()
    with started(tmp_path, "prometheus_metrics", str(metrics)) as server:
        talker, silent, closes, resets = (connect(server) for _ in range(4))
        closes.close()
        reset(resets)
        begun = time.monotonic()
        while not select.select([silent], [], [], 0.5)[0]:
            talker.sendall(b"x")
            assert talker.recv(1) == b"x"
        assert silent.recv(1) == b""
        assert time.monotonic() - begun >= 1.9
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=PATIENCE) as page:
            assert 'reaper_reaped_total{reason="idle"} 1.0' in page.read().decode().splitlines()
        talker.close()
        silent.close()


def test_a_leaky_server_is_guarded_from_outside(tmp_path):
    with started(tmp_path, "attach_leaky") as server:
        talker, silent, closes, resets = (connect(server) for _ in range(4))
        closes.close()
        reset(resets)
        silent.sendall(b"hello\n")
        assert heard(silent, b"\n") == b"HELLO\n"
        begun = time.monotonic()
        while not select.select([silent], [], [], 0.5)[0]:
            talker.sendall(b"x\n")
            assert heard(talker, b"\n") == b"X\n"
            assert time.monotonic() - begun < PATIENCE
        assert silent.recv(1) == b""
        assert time.monotonic() - begun >= 1.9
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: server.status is not None)
        assert server.status == 0
        assert "closed" in server.said()
        talker.close()
        silent.close()


def test_the_example_of_a_test_passes_and_fails_where_it_should(monkeypatch):
    from examples import testing_my_server as example

    example.test_a_silent_client_is_closed_after_its_timeout_and_at_most_a_tick_later()
    example.test_a_client_that_speaks_every_20_seconds_stays()
    monkeypatch.setattr(example, "IDLE", 15.0)
    with pytest.raises(ExceptionGroup):
        example.test_a_client_that_speaks_every_20_seconds_stays()


def test_an_example_needs_nothing_of_this_checkout_but_reaper_and_is_short():
    ours = {"scripts", "tests", "examples", "benchmarks", "loadgen", "server_example"}
    for file in Path("examples").glob("*.py"):
        text = file.read_text()
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name.name for node in found if isinstance(node, ast.Import) for name in node.names}
        names |= {str(node.module) for node in found if isinstance(node, ast.ImportFrom)}
        assert not {name.partition(".")[0] for name in names} & ours, file
        assert len(text.splitlines()) <= 60, file
