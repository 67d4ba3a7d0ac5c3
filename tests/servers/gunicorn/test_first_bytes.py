"""Whoever has asked rests, however soon it did: gunicorn's thread may read its first
bytes before ours has begun to guard it.
"""

from __future__ import annotations

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

LIMITS = {"TIMEOUTS_FIRST_BYTE": "500ms", "TIMEOUTS_KEEP_ALIVE": "1h", "TICK": "100ms"}
CLIENTS = 300


def wsgi(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@pytest.mark.slow
def test_nobody_who_was_answered_is_ended_as_one_that_never_asked() -> None:
    with (
        configured(LIMITS),
        worker(reaper.gunicorn.ThreadWorker, wsgi, worker_connections="1000") as server,
        ExitStack() as stack,
    ):
        clients = []
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.create_connection(server.address, PATIENCE))
            client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            clients.append(client)
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        time.sleep(1.5)  # the kernel's clock says how long they have rested
        ended = 0
        for client in clients:
            client.setblocking(False)
            with suppress(BlockingIOError):
                while client.recv(4096):  # the rest of its answer
                    pass
                ended += 1
        assert ended == 0
