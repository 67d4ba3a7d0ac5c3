"""A busy connection that has become too old ends after an answer that says so: no
request is lost on its way, whichever server is guarded.
"""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from scripts.programs.declared import Program
from tests.helpers.lagging import Lagged, in_time
from tests.helpers.reaper_run import PATIENCE, guarded
from tests.run.test_programs import GUNICORN, OWN, command_of, named

pytestmark = pytest.mark.slow

PROGRAMS = [
    Program("gunicorn asgi", f"{GUNICORN} -k asgi asgi:app"),
    Program("gunicorn threads", f"{GUNICORN} -k gthread --threads 16 wsgi:app"),
    Program("hypercorn", "hypercorn -b 127.0.0.1:{port} asgi:app"),
    Program("aiohttp", f"{OWN} aiohttp {{port}}"),
    Program("sanic", f"{OWN} sanic {{port}}"),
    Program("tornado", f"{OWN} tornado {{port}}"),
    Program("daphne", "daphne -b 127.0.0.1 -p {port} asgi:app"),
]
AGED = [*("--max-age", "600ms"), *("--tick", "100ms")]
CLIENTS = 8
KEPT = 1.0
"""Seconds for which one that is too old and idle is kept: `timeouts.drain_idle`."""
WAY = 0.04
"""Seconds between an answer and the next request as the server sees it: the way there
and back.
"""
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def whole(answer: bytes) -> bool:
    """Whether *answer* has come whole."""
    head, parted, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return bool(parted) and len(body) >= int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")  # chunked


def asks_on(port: int, ends: list[str]) -> None:
    """How a client ends that this machine did not hold up."""
    ends.append(in_time(lambda: asked(port)))


def asked(port: int) -> str:
    """Ask again and again, as a client does that is never told too late: until an
    answer says that it is the last, "told", or a request is "lost". Raises `Lagged` if
    it was silent for so long before that one that the connection was idle.
    """
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        spoke = time.monotonic()
        while True:
            before, spoke, answer = spoke, time.monotonic(), b""
            try:
                try:
                    client.sendall(GET)
                finally:
                    sent = time.monotonic()
                while not whole(answer):
                    data = client.recv(65536)
                    if not data:
                        break
                    answer += data
            except ConnectionError:
                answer = b""
            if not whole(answer):
                if sent - before >= KEPT:
                    raise Lagged
                return "lost"
            if b"connection: close" in answer.partition(b"\r\n\r\n")[0].lower():
                return "told"
            time.sleep(WAY)


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_a_busy_connection_that_is_too_old_is_told_with_an_answer(
    program: Program, tmp_path: Path
) -> None:
    pytest.importorskip(program.name.split()[0])
    with guarded(command_of(program), tmp_path, limits=AGED) as (server, _):
        ends: list[str] = []
        clients = [
            threading.Thread(target=asks_on, args=(server.port, ends)) for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert ends == ["told"] * CLIENTS
