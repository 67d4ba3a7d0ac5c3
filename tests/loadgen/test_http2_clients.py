"""Clients of HTTP/2 that hold a connection, at a server that answers sooner than they
expect, and one client that fails. The server's frames are made by h2, so that no
mistake of the clients is its own, too.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("h2")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from loadgen import http2
from loadgen.clients import Ended, Speech
from loadgen.probe import as_text, probe
from loadgen.units import Target, parse_target
from tests.helpers.listeners import against


async def answers_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    while data := await reader.read(65536):
        for event in connection.receive_data(data):
            if isinstance(event, RequestReceived):
                connection.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
        writer.write(connection.data_to_send())


async def speaks_something_else(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(bytes((0, 0, 0, 0, 0, 0, 0, 0, 0)))  # DATA of no stream
    await reader.read()


@pytest.mark.parametrize("kind", ["slow_reader", "unopened_pings"])
def test_a_stream_that_the_server_has_answered_is_no_failure(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe of stock hypercorn ended by a traceback of this, without a table."""
    monkeypatch.setattr(http2, "EVERY", 0.05)

    async def play(target: Target) -> Ended:
        return await http2.play(kind, target, Speech("http2"), patience=0.4)

    ended = against(answers_at_once, play)
    assert (ended.how, ended.failure, ended.answered) == ("left", "", 1)


def test_a_server_that_speaks_something_else_is_named() -> None:
    async def play(target: Target) -> Ended:
        return await http2.play("no_stream", target, Speech("http2"), patience=5.0)

    ended = against(speaks_something_else, play)
    assert ended.failure.startswith("ProtocolError")


BORNE = 0.5
"""Seconds."""


@pytest.mark.parametrize("kind", ["mute", "silent"])
def test_a_client_that_is_late_to_read_finds_no_close_early(kind: str) -> None:
    counts = threading.Event()

    def close_in_law(listener: socket.socket) -> None:
        """Close who has connected, or has its answer, `BORNE` seconds later."""
        connection = H2Connection(H2Configuration(client_side=False))
        with listener.accept()[0] as sock:
            asked = kind == "mute"
            while not asked:
                for event in connection.receive_data(sock.recv(65536)):
                    if isinstance(event, RequestReceived):
                        asked = True
                        headers = [(":status", "200")]
                        connection.send_headers(event.stream_id, headers, end_stream=True)
                sock.sendall(connection.data_to_send())
            counts.set()
            time.sleep(BORNE)

    async def late(target: Target) -> Ended:
        playing = asyncio.create_task(http2.play(kind, target, Speech("http2"), patience=10.0))
        while not counts.is_set():
            await asyncio.sleep(0)
        time.sleep(0.4 * BORNE)  # what has come meanwhile is read after that
        return await playing

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as server:
        server.submit(close_in_law, listener)
        target = parse_target(f"127.0.0.1:{listener.getsockname()[1]}")
        borne = asyncio.run(late(target)).borne
    assert borne is not None
    assert borne >= BORNE


def test_a_trial_that_fails_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(http2, "play", fails)
    target = parse_target("127.0.0.1:1")
    (found,) = probe(target, Speech("http2"), 0.1, trials=2, only={"keep_alive"})
    assert found.failures == ["RuntimeError: odd"]
    assert "RuntimeError: odd" in as_text([found])
