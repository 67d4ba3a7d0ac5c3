"""The examples as they stand, with real clients: they answer, and a client that says
nothing is closed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import websockets.sync.client

from scripts.serving import Server, free_port, serving
from scripts.tools import metrics
from tests.helpers.program_trials import PATIENCE, connect, connections, heard, reset, rest, trial
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.slow

UVICORN = "uvicorn --http reaper.uvicorn:HttpTools --port {port} examples."
(README_LINE,) = re.findall(r"^    (uvicorn .*)$", Path("README.md").read_text(), re.MULTILINE)
WEB = {
    "fastapi": README_LINE.replace("app:app", "examples.fastapi_app:app --port {port}"),
    "starlette": f"{UVICORN}starlette_websocket:app",
    "django": f"{UVICORN}django_app:app --lifespan off",
    "aiohttp": "examples.aiohttp_app {port}",
    "gunicorn": "gunicorn examples.fastapi_app:app -c examples/gunicorn_conf.py"
    " --bind 127.0.0.1:{port}",
}
"""Modules and their arguments."""


@contextlib.contextmanager
def started(tmp_path: Path, *words: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", *(word.format(port=port) for word in words)]
    settings = {
        "REAPER_TICK": "100ms",
        "REAPER_TIMEOUTS_FIRST_BYTE": "500ms",
        "PYTHONPATH": os.getcwd(),
    }
    with serving(command, tmp_path / "log", port=port, environment=os.environ | settings) as server:
        yield server


def example(
    tmp_path: Path, name: str, *arguments: str
) -> contextlib.AbstractContextManager[Server]:
    return started(tmp_path, f"examples.{name}", "{port}", *arguments)


@pytest.mark.parametrize("name", WEB)
def test_a_web_server_answers_who_asks_and_closes_who_says_nothing(
    tmp_path: Path, name: str
) -> None:
    with started(tmp_path, *WEB[name].split()) as server:
        start = time.monotonic()
        with connect(server) as silent:
            assert silent.recv(1) == b""
        assert time.monotonic() - start >= 0.5
        client = http.client.HTTPConnection(*server.address, timeout=PATIENCE)
        if name == "starlette":
            with websockets.sync.client.connect(
                f"ws://{server.target}/ws", ping_interval=None
            ) as websocket:
                websocket.send("hello")
                assert websocket.recv() == "hello"
            return
        for _ in range(3):
            client.request("GET", "/")
            assert json.loads(client.getresponse().read()) == {"hello": "world"}
        if name == "fastapi":
            client.request("POST", "/upload", body=bytes(300_000))
            assert json.loads(client.getresponse().read()) == {"bytes": 300_000}
            client.request("GET", "/metrics/")
            assert b"reaper_leases" in client.getresponse().read()
        client.close()


OWN = [
    ("asyncio_lines",),
    ("anyio_echo", "asyncio"),
    ("anyio_echo", "trio"),
    ("parked_echo",),
    ("threads",),
    ("attach_leaky",),
]
OWN += [("prometheus_metrics", "{metrics}")]


@pytest.mark.parametrize("words", OWN, ids=" ".join)
def test_a_server_of_ones_own_ends_who_goes_or_is_silent_and_keeps_who_speaks(
    tmp_path: Path, port: int, words: tuple[str, ...]
) -> None:
    with example(tmp_path, *(word.replace("{metrics}", str(port)) for word in words)) as server:
        trial(server, 1.9)
        if words == ("attach_leaky",):
            os.kill(server.pid, signal.SIGTERM)
            assert server.end() == 0
            assert "closed" in server.said()
        if words[0] == "prometheus_metrics":
            assert metrics(("127.0.0.1", port))['reaper_reaped_total{reason="idle"}'] == 1
        assert "Traceback" not in server.said() or words == (
            "threads",
        )  # socketserver prints one for each reset


def test_the_chat_asks_a_silent_client_and_closes_one_that_does_not_answer(tmp_path: Path) -> None:
    with example(tmp_path, "chat") as server:
        silent = time.monotonic()
        talker, listener, deaf, closes, resets = (connect(server) for _ in range(5))
        wait_until(lambda: connections(server) == 5)
        closes.close()
        reset(resets)
        wait_until(lambda: connections(server) == 3)
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
        wait_until(lambda: connections(server) == 2)  # the deaf one has gone
        assert time.monotonic() - silent >= 3
        for client in (talker, listener, deaf):
            client.close()
        wait_until(lambda: connections(server) == 0)


def test_a_tls_handshake_that_drips_is_ended_and_a_whole_one_is_served(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    with example(tmp_path, "tls_echo", *certificate) as server:
        begun = time.monotonic()
        with connect(server) as dripping, contextlib.suppress(ConnectionError):
            for byte in b"\x16\x03\x01\x02\x00" * 100:
                dripping.sendall(bytes([byte]))
                if select.select([dripping], [], [], 0.1)[0]:
                    break
        assert time.monotonic() - begun >= 2
        wait_until(lambda: "closed: handshake" in server.said())
        trial(server, 2.9, wrap=partial(trust.wrap_socket, server_hostname="127.0.0.1"))
        wait_until(lambda: connections(server) == 0)


def test_a_websocket_lives_while_pings_are_answered(tmp_path: Path) -> None:
    with example(tmp_path, "websocket_trio") as server:
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        shake = (
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + key
            + b"\r\n"
        )
        begun = time.monotonic()
        mute, deaf, closes, resets = (connect(server) for _ in range(4))
        for client in (deaf, closes, resets):
            client.sendall(shake)
            assert heard(client, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
        closes.close()
        reset(resets)

        with websockets.sync.client.connect(
            f"ws://{server.target}/", ping_interval=None
        ) as websocket:
            for client in (mute, deaf):
                rest(client)
                client.close()
            wait_until(lambda: connections(server) == 1)
            assert time.monotonic() - begun >= 2
            time.sleep(2)
            websocket.send("still here")
            assert websocket.recv() == "still here"
        wait_until(lambda: connections(server) == 0)


def test_at_sigterm_the_idle_go_the_busy_are_answered_and_the_server_ends(tmp_path: Path) -> None:
    with example(tmp_path, "graceful_shutdown") as server:
        idle, busy = connect(server), connect(server)
        wait_until(lambda: connections(server) == 2)
        busy.sendall(b"question")
        time.sleep(0.2)
        os.kill(server.pid, signal.SIGTERM)
        assert idle in select.select([idle, busy], [], [], PATIENCE)[0]
        assert idle.recv(1) == b""
        assert busy.recv(100) == b"QUESTION"
        assert busy.recv(1) == b""
        assert server.end() == 0
        assert "all have gone" in server.said()
        for client in (idle, busy):
            client.close()


def test_an_event_stream_says_goodbye_when_its_server_is_told_to_stop(tmp_path: Path) -> None:
    with example(tmp_path, "goodbye_events") as server:
        with connect(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            said = b""
            while b"still here" not in said:
                said += client.recv(1000)
            os.kill(server.pid, signal.SIGTERM)
            while data := client.recv(1000):
                said += data
        assert re.search(rb"retry: \d+\ndata: goodbye\n\n$", said)
        assert server.end() == 0


def test_the_example_of_a_test_passes_and_fails_where_it_should(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from examples import testing_my_server

    testing_my_server.test_a_silent_client_is_closed_after_its_timeout_and_at_most_a_tick_later()
    testing_my_server.test_a_client_that_speaks_every_20_seconds_stays()
    monkeypatch.setattr(testing_my_server, "IDLE", 15.0)
    with pytest.raises(ExceptionGroup):
        testing_my_server.test_a_client_that_speaks_every_20_seconds_stays()


def line_of(server: Server, text: str) -> None:
    """Wait until *server* has said *text*."""
    wait_until(lambda: text in server.said())


def test_a_sandbox_is_kept_while_it_works_and_ended_when_nobody_asks(tmp_path: Path) -> None:
    with example(tmp_path, "keeper_processes", "0.4") as server:
        with connect(server) as alice, connect(server) as bob:
            alice.sendall(b"alice 6*7\n")
            assert heard(alice, b"42\n") == b"42\n"
            bob.sendall(b"bob __import__('time').sleep(1.2)\n")  # three times the timeout
            assert heard(bob, b"None\n") == b"None\n"
            line_of(server, "alice: sandbox")
            alice.sendall(b"alice __import__('os')._exit(1)\n")
            assert heard(alice, b"died\n") == b"your sandbox died\n"
            alice.sendall(b"alice 1+1\n")
            assert heard(alice, b"2\n") == b"2\n"
        line_of(server, "bob: sandbox")
        os.kill(server.pid, signal.SIGINT)
        assert server.end() == 0
        assert "Traceback" not in server.said()


def test_ctrl_c_waits_for_no_client_of_a_keeper(tmp_path: Path) -> None:
    with example(tmp_path, "keeper_processes", "0.4") as server, connect(server) as carol:
        carol.sendall(b"carol 1+2\n")
        assert heard(carol, b"3\n") == b"3\n"
        os.kill(server.pid, signal.SIGINT)
        assert server.end() == 0


def test_a_model_is_loaded_once_for_all_who_ask_and_leaves_memory(tmp_path: Path) -> None:
    with example(tmp_path, "keeper_model", "1") as server:

        def ask(number: int) -> bytes:
            client = http.client.HTTPConnection(*server.address, timeout=PATIENCE)
            client.request("GET", f"/small?text=hello{number}")
            answer = client.getresponse().read()
            client.close()
            return answer

        with ThreadPoolExecutor(5) as pool:
            answers = sorted(pool.map(ask, range(5)))
        assert answers == [f"HELLO{number}\n".encode() for number in range(5)]
        line_of(server, "small: out of memory, idle")
        assert server.said().count("small: loading") == 1


def test_pooled_clients_are_shared_and_closed_after_a_rest(tmp_path: Path) -> None:
    with example(tmp_path, "keeper_model", "30") as server:
        url = f"http://{server.target}/small"
        command = [sys.executable, "-m", "examples.keeper_clients", url, "0.4"]
        # It says for how long its loop stood still. No client is closed for that time,
        # and of the rest after which none is left, a tenth of a second is to spare.
        for _ in range(5):
            said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            lags = re.findall(r"loop stalled: it came back ([\d.]+) s late", said.stderr)
            if "closed, idle" in said.stdout or sum(map(float, lags)) < 0.1:
                break
    assert "Traceback" not in said.stderr
    assert "1 clients for 3 requests" in said.stdout
    assert "closed, idle" in said.stdout
    assert said.stdout.endswith("0 clients after a rest\n")


def test_a_room_outlives_who_leaves_it_and_not_for_ever(tmp_path: Path) -> None:
    with example(tmp_path, "keeper_rooms", "1") as server:
        address = f"ws://{server.target}/lobby"
        with websockets.sync.client.connect(address) as first:
            first.send("hello")
            assert first.recv() == "hello"
            time.sleep(1.5)  # quiet for longer than the timeout, and not left
        with websockets.sync.client.connect(address) as again:
            assert again.recv() == "hello"
        line_of(server, "1 messages forgotten, idle")


def test_only_asyncios_timeouts_around_a_read_lose_what_arrived_in_a_stall() -> None:
    got: dict[str, str] = {}
    for program in ("stalled_timeout", "stalled_timeout_trio"):
        command = [sys.executable, "-m", f"examples.{program}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert "Traceback" not in done.stderr
        rows = re.findall(r"(\S+) +(\d+) of 100 clients got their answer\n", done.stdout)
        got |= dict(rows)
    assert got == {
        "asyncio.timeout": "0",
        "asyncio.wait_for": "0" if sys.version_info >= (3, 12) else "100",
        "timeout.reschedule": "0",
        "reaper": "100",
        "trio.fail_after": "100",
    }


def test_an_example_needs_nothing_of_this_checkout_but_reaper_and_is_short() -> None:
    ours = {"scripts", "tests", "examples", "benchmarks", "loadgen", "server_example"}
    for file in Path("examples").glob("*.py"):
        text = file.read_text()
        assert not ours & set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)), file
        assert len(text.splitlines()) <= 60, file
