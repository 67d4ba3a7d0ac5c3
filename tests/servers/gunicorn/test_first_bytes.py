"""Whoever has asked rests, however soon it did: gunicorn's thread may read its first
bytes before ours has begun to guard it.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest

pytest.importorskip("gunicorn")

import reaper.gunicorn
from scripts.serving import PATIENCE
from tests.helpers.hypercorn_here import configured
from tests.helpers.servers_here import worker

FIRST_BYTE = 0.5
LIMITS = {"TIMEOUTS_FIRST_BYTE": "500ms", "TIMEOUTS_KEEP_ALIVE": "1h", "TICK": "100ms"}
CLIENTS = 300


def wsgi(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


def served(stack: ExitStack, address: tuple[str, int]) -> list[socket.socket]:
    """Clients that came together, asked at once and have the head of their answer. One
    that the machine kept from asking proves nothing: another one comes.
    """
    clients: list[socket.socket] = []
    while len(clients) < CLIENTS:
        came = time.monotonic()
        client = stack.enter_context(socket.create_connection(address, PATIENCE))
        with suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        if time.monotonic() - came < FIRST_BYTE:
            clients.append(client)
    for client in clients:
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
    return clients


@pytest.mark.slow
def test_nobody_who_was_answered_is_ended_as_one_that_never_asked() -> None:
    with (
        configured(LIMITS),
        worker(reaper.gunicorn.ThreadWorker, wsgi, worker_connections="1000") as server,
        ExitStack() as stack,
    ):
        clients = served(stack, server.address)
        time.sleep(1.5)  # the kernel's clock says how long they have rested
        ended = 0
        for client in clients:
            client.setblocking(False)
            with suppress(BlockingIOError):
                while client.recv(4096):  # the rest of its answer
                    pass
                ended += 1
        assert ended == 0


@pytest.mark.slow
def test_a_second_head_counts_from_its_own_first_byte() -> None:
    limits = {**LIMITS, "TIMEOUTS_HEADERS": "3s", "TIMEOUTS_FIRST_BYTE": "3s"}
    with (
        configured(limits),
        worker(
            *(reaper.gunicorn.ThreadWorker, wsgi),
            worker_connections="1000",
            threads=str(CLIENTS),  # each reads a head
        ) as server,
        ExitStack() as stack,
    ):
        clients = served(stack, server.address)
        time.sleep(1)  # before the guard has looked at any of them
        begun: dict[Any, float] = {}
        ended: dict[Any, float] = {}
        with selectors.DefaultSelector() as waits:
            for client in clients:
                waits.register(client, selectors.EVENT_READ)
                begun[client] = time.monotonic()
                client.sendall(b"GET / HTTP/1.1\r\n")
            while len(ended) < CLIENTS:
                for key, _ in waits.select(PATIENCE):
                    one: Any = key.fileobj
                    if not one.recv(4096):
                        ended[one] = time.monotonic()
                        waits.unregister(one)
        assert min(ended[client] - begun[client] for client in clients) >= 3
