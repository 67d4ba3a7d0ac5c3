"""Servers behind a UNIX socket, as nginx reaches them: the kernel says nothing of when
bytes moved there. Who speaks stays, and who is silent is closed.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from scripts.serving import Server
from tests.helpers.lagging import Lagged, in_time
from tests.helpers.server_process import PATIENCE, wait_until

ASGI, WSGI = "tests.helpers.asgi:application", "tests.helpers.wsgi:application"
SERVERS = {
    "uvicorn": f"reaper run -- uvicorn {ASGI} --uds PATH",
    "hypercorn": f"reaper run -- hypercorn {ASGI} -b unix:PATH",
    "hypercorn on trio": f"reaper run -- hypercorn -k trio {ASGI} -b unix:PATH",
    "gunicorn": f"gunicorn {ASGI} -k reaper.gunicorn.ASGIWorker --no-control-socket -b unix:PATH",
    "gunicorn with uvicorn": f"gunicorn {ASGI} -k reaper.gunicorn.UvicornWorker --no-control-socket -b unix:PATH",
    "gunicorn with threads": (
        f"gunicorn {WSGI} -k reaper.gunicorn.ThreadWorker --threads 12 --no-control-socket -b unix:PATH"
    ),
    "daphne": f"reaper run -- daphne -u PATH {ASGI}",
    "aiohttp": "python -m tests.helpers.unix_programs ours PATH",
    "aiohttp under reaper run": "reaper run -- python -m tests.helpers.unix_programs aiohttp PATH",
    "tornado": "reaper run -- python -m tests.helpers.unix_programs tornado PATH",
    "sanic": "reaper run -- python -m tests.helpers.unix_programs sanic PATH",
}
LIMIT = 2.0
PAUSE = 0.35 * LIMIT
LONGER = 2.5 * LIMIT
"""Seconds for which who speaks is looked at: a guard that knows nothing of his bytes
would have ended him.
"""
LEAST_RATE = 240
SETTINGS = {
    "REAPER_TICK": "100ms",
    "REAPER_TIMEOUTS_FIRST_BYTE": f"{LIMIT}s",
    "REAPER_TIMEOUTS_KEEP_ALIVE": f"{LIMIT}s",
    "REAPER_TIMEOUTS_BODY": f"{LIMIT}s",
    "REAPER_TIMEOUTS_WRITE": f"{LIMIT}s",
    "REAPER_LIMITS_MIN_IN_RATE": f"{LEAST_RATE}",
    "REAPER_LIMITS_MIN_IN_GRACE": f"{0.8 * LONGER}s",
    "REAPER_LIMITS_MIN_OUT_GRACE": f"{0.8 * LONGER}s",
}

Client = Callable[[socket.socket], str]
Said = TypeVar("Said")


def pause(seconds: float = PAUSE) -> None:
    began = time.monotonic()
    time.sleep(seconds)
    if time.monotonic() - began > LIMIT - 0.5:
        raise Lagged


def asks(client: socket.socket, path: str = "/") -> str:
    """The status of an answer, all of which has been read."""
    client.sendall(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
    return answer(client)


def answer(client: socket.socket) -> str:
    head = b""
    while b"\r\n\r\n" not in head:
        if not (piece := client.recv(65536)):
            return f"lost after {head!r}"
        head += piece
    head, _, body = head.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while not (len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")):
        if not (piece := client.recv(1 << 20)):
            return f"lost after {len(body)} bytes"
        body += piece
    return head[9:12].decode()


def speaks_after_a_while(client: socket.socket) -> str:
    pause(0.6 * LIMIT)
    return asks(client)


def asks_again_and_again(client: socket.socket) -> str:
    said = {asks(client)}
    for _ in range(int(LONGER / PAUSE)):
        pause()
        said.add(asks(client))
    return ", ".join(said)


def sends_a_long_body(client: socket.socket) -> str:
    pieces = [bytes(int(1.5 * LEAST_RATE * PAUSE))] * int(LONGER / PAUSE)
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    client.sendall(head % sum(map(len, pieces)))
    for piece in pieces:
        pause()
        client.sendall(piece)
    return answer(client)


def waits_for_an_answer(client: socket.socket) -> str:
    return asks(client, f"/slow?{LONGER}")


def reads_slowly(client: socket.socket) -> str:
    client.sendall(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
    head, came = client.recv(12), 0
    for _ in range(int(LONGER / PAUSE)):
        pause()
        came += len(client.recv(300_000))
    while came < 20_000_000 and (piece := client.recv(1 << 20)):
        came += len(piece)
    return head[9:].decode() if came >= 20_000_000 else f"lost after {came} bytes"


LIVE: list[Client] = [
    speaks_after_a_while,
    asks_again_and_again,
    sends_a_long_body,
    waits_for_an_answer,
    reads_slowly,
]


def says_nothing(client: socket.socket, came: float) -> float:
    return until_it_is_closed(client, came)


def asks_once(client: socket.socket, came: float) -> float:
    began = time.monotonic()
    asks(client)
    return until_it_is_closed(client, began)


def stops_amid_a_body(client: socket.socket, came: float) -> float:
    client.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")
    pause()
    began = time.monotonic()
    client.sendall(b"x")
    return until_it_is_closed(client, began)


def until_it_is_closed(client: socket.socket, began: float) -> float:
    """Seconds since *began*, which is before the client's last act, until the server
    has closed it.
    """
    while client.recv(65536):
        pass
    return time.monotonic() - began


SILENT: list[Callable[[socket.socket, float], float]] = [says_nothing, asks_once, stops_amid_a_body]


@contextmanager
def started(name: str, folder: Path) -> Iterator[str]:
    """The path at which the server *name* listens."""
    path = f"/tmp/reaper-test-{os.getpid()}-{time.monotonic_ns()}"  # a socket's is short
    words = [word.replace("PATH", path) for word in SERVERS[name].split() if word != "python"]
    command = [sys.executable, *(words if words[0] == "-m" else ["-m", *words])]
    if "--" in command:
        place = command.index("--") + 1
        rest = command[place:]
        command[place:] = [sys.executable, *(rest if rest[0] == "-m" else ["-m", *rest])]
    server = Server(command, folder / "log", environment=os.environ | SETTINGS)
    try:
        wait_until(lambda: _listens(path) or server.status is not None, "a server that listens")
        assert server.status is None, server.said()
        yield path
    finally:
        server.stop()
        server.end()
        Path(path).unlink(missing_ok=True)


def _listens(path: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(PATIENCE)
        try:
            client.connect(path)
            return asks(client) == "200"
        except OSError:
            return False


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_who_speaks_stays_and_who_is_silent_is_closed(tmp_path: Path, name: str) -> None:
    with started(name, tmp_path) as path:

        def once(act: Callable[[socket.socket, float], Said]) -> Said:
            with closing(socket.socket(socket.AF_UNIX)) as client:
                client.settimeout(PATIENCE)
                came = time.monotonic()
                client.connect(path)
                return act(client, came)

        def tried(act: Callable[[socket.socket, float], Said]) -> Said:
            return in_time(partial(once, act))

        def lives(act: Client) -> str:
            try:
                return f"{act.__name__}: {tried(lambda client, _: act(client))}"
            except OSError as error:
                return f"{act.__name__}: {error!r}"

        with ThreadPoolExecutor(len(LIVE) + len(SILENT)) as threads:
            silent = [threads.submit(tried, act) for act in SILENT]
            said = list(threads.map(lives, LIVE))
            assert [each for each in said if not each.endswith(": 200")] == []
            for each in silent:
                assert each.result() >= LIMIT
