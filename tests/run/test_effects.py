"""The table of what a setting does in which server: every server is watched while it
reads its settings, and the table has to say the same.

That a setting is read is no proof that it acts. `IN_VAIN` lists what is read and does
nothing, and why; what the settings do is tested in tests/servers,
tests/run/test_programs.py and tests/server_example. That `max_connections` acts where
the table says is tested here.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reaper.servers.cards import cards, columns
from scripts.programs.trial import APPS
from scripts.serving import PATIENCE, Server, free_port
from tests.helpers import traced
from tests.helpers.http2_frames import asking, posting
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.slow

PYTHON = sys.executable
APP = "tests.helpers.asgi:application"
HTTP2 = ["--http-protocols", "h1,h2", "--http2-cleartext", "prior-knowledge"]
PROGRAMS = [PYTHON, str(APPS / "programs.py")]
RUN = [PYTHON, "-m", "reaper", "run"]
FILES = [PYTHON, "-m", "http.server", "--bind", "127.0.0.1"]
"""A server that nothing guards from inside. `reaper run` waits for ten seconds whether
anything does.
"""
ANYIO = [PYTHON, "-m", "scripts.guests.apps.programs", "anyio"]
EXAMPLE = [PYTHON, "-m", "server_example"]
MOMENT = 0.7
"""Seconds."""
MOST = 30
"""Connections; one more is refused where that acts."""
SETTINGS = {
    "REAPER_TICK": "250ms",
    "REAPER_REAPS_PER_SECOND": "1000",
    "REAPER_TIMEOUTS_FIRST_BYTE": "60s",
    "REAPER_TIMEOUTS_MAX_AGE": "3s",
    "REAPER_TIMEOUTS_DRAIN": "3s",
    "REAPER_TIMEOUTS_DRAIN_DELAY": "200ms",
    "REAPER_TIMEOUTS_DRAIN_WINDOW": "500ms",
    "REAPER_TIMEOUTS_LINGER": "500ms",
    "REAPER_LIMITS_MAX_CONNECTIONS": str(MOST),
    "SLOW": "2",
}


@dataclass
class Watched:
    """How one server of the table is started: each of *commands* in turn, for it is
    started in more than one way; the port is the last word, or the address after `-b`.

    Attributes:
        environment: Variables besides those of `SETTINGS`.
    """

    commands: list[list[str]]
    environment: dict[str, str] = field(default_factory=dict)


def commands(starts: str) -> list[list[str]]:
    """The words of a card that start a server, without the port at their end."""
    words = starts.format(asgi=APP, wsgi="tests.helpers.wsgi:application", port="").split(" ")
    program, *rest = (word for word in words if word not in ("", "127.0.0.1:"))
    more = {"gunicorn": ["--no-control-socket"], "uvicorn": ["--timeout-keep-alive", "30"]}
    command = [PYTHON, "-m", program, *more.get(program, []), *rest]
    if "--threads" in words or "asgi" in words:
        return [[*command[:-1], *HTTP2, "-b"], command]
    if program == "uvicorn":
        return [[*command[:-1], "--http", http, "--port"] for http in ("httptools", "h11")]
    return [command]


WATCHED = {
    kind.name: Watched(commands(kind.starts))
    for card in cards()
    for kind in card.kinds
    if kind.starts
} | {
    "aiohttp": Watched(
        [
            [PYTHON, "-m", "scripts.stops.app_aiohttp"],
            [PYTHON, "-m", "scripts.stops.app_aiohttp", "--guarded"],
        ]
    ),
    "sanic": Watched([[*PROGRAMS, "sanic"]]),
    "tornado": Watched([[*PROGRAMS, "tornado"]]),
    "websockets": Watched([[PYTHON, "-m", "tests.helpers.traced"]]),
    "anyio": Watched([["env", "REAPER_TIMEOUTS_IDLE=60s", *ANYIO], ANYIO]),
    "outside": Watched(
        [[*RUN, "--", *FILES], [*RUN, "--idle", "60s", "--", *FILES]],
        {"REAPER_LIMITS_MIN_IN_RATE": "1"},
    ),
    "http": Watched([[*EXAMPLE, "http", "--workers", "1", "--port"]]),
    "echo": Watched([[*EXAMPLE, "echo", "--workers", "1", "--port"]]),
}
"""Those that a command of their own starts are started by their card's."""

OF_HTTP = [kind.name for card in cards() for kind in card.kinds if "timeouts.headers" in kind.acts]
IN_VAIN: dict[str, tuple[str, str]] = {
    "timeouts.idle": (
        f"{' '.join(OF_HTTP)} websockets http",
        "the reaper's own default, for connections that are watched without a limit of their own",
    ),
    "limits.max_connections": (
        "tornado twisted echo",
        "the reaper knows it, and nobody asks the reaper before a connection is served",
    ),
    "limits.max_requests": (
        "uvicorn gunicorn-uvicorn",
        "the policy counts, and uvicorn does not ask it",
    ),
    "reaper.release_buffers": (
        "gunicorn-gthread tornado twisted anyio",
        "the reaper of every server reads it, and their TLS is not asyncio's",
    ),
    "reaper.pressure": (
        "outside",
        "reaper run hands it to the servers that are guarded from inside",
    ),
    "timeouts.keep_alive": (
        "websockets anyio aiosmtpd",
        "the reaper of every server under reaper run reads it, and none of these has a next request",
    ),
}
"""Settings that are read without effect: in which servers, and why."""


def sends(server: Server, *parts: bytes, ends: bool = False, hears: bool = True) -> None:
    """A client that sends *parts*, a moment apart; *ends*: then its side is shut;
    *hears*: it reads until the server ends the connection, and otherwise nothing.
    """
    with suppress(OSError), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(server.address)
        for part in parts:
            client.sendall(part)
            time.sleep(0.3)
        if ends:
            client.shutdown(socket.SHUT_WR)
        if hears:
            while client.recv(65536):
                pass
        else:
            time.sleep(2)


def get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
LONG_MESSAGE = b"\x81\xff" + (1 << 20).to_bytes(8) + bytes(4) + b"x" * (1 << 20)
HALF_A_MESSAGE = b"\x81\xfe\x40\x00" + bytes(4) + b"x" * 100
TUNNEL = "Connection: upgrade\r\nUpgrade: echo\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"


def converses(server: Server) -> int:
    """Everything that a setting may be about, at once; how many of too many clients
    were refused.
    """
    plays: list[tuple[tuple[bytes, ...], dict[str, bool]]] = [
        ((get("/"), get("/")), {}),
        ((b"GET / HTTP/1.1\r\nHo", b"st: x\r\n\r\n"), {}),
        ((POST + b"abc", b"def", b"ghi"), {}),
        ((get("/ws", UPGRADE), HALF_A_MESSAGE, b"y" * 100), {}),
        ((get("/tunnel", TUNNEL), b"abc"), {}),
        ((get("/events"),), {}),
        ((get("/slow"),), {"ends": True}),
        ((get("/big"),), {"hears": False}),
        ((get("/big"),), {"hears": False, "ends": True}),
        ((get("/ws", UPGRADE), LONG_MESSAGE), {"hears": False}),
        ((get("/download?bytes=20000000"),), {"hears": False}),
        ((posting("/echo", b"abc"),), {}),
        ((posting("/events", b"abc"),), {}),
        (tuple(asking("/big")), {}),  # it does not open its window again
    ]
    clients = [
        threading.Thread(target=sends, args=(server, *parts), kwargs=how) for parts, how in plays
    ]
    for each in clients:
        each.start()
    time.sleep(1.5)
    refused = refusals(server)
    time.sleep(3)  # those that talk have reached their greatest age
    for last in (get("/events"), *asking("/slow?1")):  # the stop comes during their answers
        threading.Thread(target=sends, args=(server, last)).start()
    time.sleep(0.3)
    return refused


def refusals(server: Server) -> int:
    """Open more connections than `MOST`; how many of them were closed or told so before
    the first of the others had its answer, and a moment after that.
    """
    many, ended = [], 0
    for _ in range(MOST + 5):
        try:
            many.append(socket.create_connection(server.address, timeout=5))
        except ConnectionResetError:  # before connect has returned
            ended += 1
    for client in many:
        with suppress(OSError):  # it has been reset meanwhile: `recv` will say so
            client.sendall(get("/slow"))
    waits, over = list(many), time.monotonic() + MOMENT
    last = over + 10  # a server may answer nobody
    for client in many:
        client.setblocking(False)
    while time.monotonic() < over or not (ended or len(waits) < len(many)):
        if time.monotonic() > last:
            break
        for client in list(waits):
            try:
                data = client.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            refused = not data or b" 503 " in data
            if len(waits) == len(many) and not refused:
                over = time.monotonic() + MOMENT
            ended += refused
            waits.remove(client)
        time.sleep(0.02)
    for client in many:
        client.close()
    return ended


def is_attached(server: Server) -> None:
    """Return when `reaper run` has read what it attaches with, and has met a client."""
    wait_until(lambda: "guarded from outside" in server.said())
    sends(server, get("/"))
    time.sleep(1)


def acting(name: str) -> set[str]:
    """The settings that act in the server *name*, by the table."""
    return set(columns()[name].acts)


def read_by(name: str, tmp_path: Path, certificate: tuple[str, str]) -> tuple[set[str], list[int]]:
    """The settings that the server *name* reads, and how many of too many clients it
    refuses; that of `outside` is the affair of the server that is attached to, and not
    counted.
    """
    found: set[str] = set()
    refused: list[int] = []
    for number, command in enumerate(WATCHED[name].commands):
        folder, port = tmp_path / str(number), free_port()
        where = f"127.0.0.1:{port}" if command[-1] in ("-b", "-l") else str(port)
        words = [*command, where]
        if command[-1] == "--guarded":
            words = [*command[:-1], where, "--guarded"]
        environment = {**os.environ, **SETTINGS, **traced.environment(folder)}
        environment |= WATCHED[name].environment
        if "--guarded" in words or name == "outside":
            environment["REAPER_RUN"] = ""
        if name in ("http", "echo"):
            environment |= {"REAPER_PRESSURE": "true"}
        server = Server(words, folder / "log", port=port, environment=environment, session=True)
        try:
            server.wait_until_it_listens()
            if name == "outside":
                is_attached(server)
                continue
            count = converses(server)
            if HTTP2[0] not in command:  # there nobody is heard who speaks HTTP/1
                refused.append(count)
            for _ in range(2):  # a machine that is busy may deliver at once what was sent in parts
                missing = acting(name) - found - traced.read(folder)
                if not missing or command is not WATCHED[name].commands[-1]:
                    break
                converses(server)
        finally:
            server.stop()
            server.end(10)
            found |= traced.read(folder)
    if name in ("http", "echo"):
        found |= read_with_tls(name, tmp_path / "tls", certificate)
    return found, refused


def read_with_tls(name: str, folder: Path, certificate: tuple[str, str]) -> set[str]:
    port = free_port()
    flags = ["--tls-cert", certificate[0], "--tls-key", certificate[1]]
    environment = {**os.environ, **traced.environment(folder)}
    command = [*WATCHED[name].commands[0], str(port), *flags]
    server = Server(command, folder / "log", port=port, environment=environment, session=True)
    try:
        server.wait_until_it_listens()
        context = ssl.create_default_context(cafile=certificate[0])
        with (
            socket.create_connection(server.address) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            client.sendall(get("/"))
            client.recv(1000)
    finally:
        server.stop()
        server.end(10)
    return traced.read(folder)


@pytest.mark.parametrize("name", WATCHED)
def test_a_server_reads_the_settings_that_act_in_it_and_no_other(
    name: str, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    found, refused = read_by(name, tmp_path, certificate)
    acts = acting(name)
    vain = {path for path, (servers, _) in IN_VAIN.items() if name in servers.split()}
    assert acts - found == set(), "the table says that these act, and nothing reads them"
    assert found - acts - vain == set(), "these are read, and the table says that they do nothing"
    assert vain - found == set(), "these are not read, and IN_VAIN says so"
    assert vain & acts == set()
    wanted = "limits.max_connections" in acts
    assert all(bool(count) is wanted for count in refused), refused


def test_every_column_of_the_table_is_watched() -> None:
    assert columns().keys() == WATCHED.keys()


@pytest.mark.parametrize(("given", "outlasts"), [({}, False), ({"KEEP_ALIVE": "60s"}, True)])
def test_hypercorns_own_keep_alive_holds_unless_ours_is_set(
    given: dict[str, str], outlasts: bool, tmp_path: Path
) -> None:
    port = free_port()
    command = [PYTHON, "-m", "reaper", "run", "--", *WATCHED["hypercorn"].commands[0]]
    environment = os.environ | {f"REAPER_TIMEOUTS_{name}": value for name, value in given.items()}
    words = [*command, f"127.0.0.1:{port}"]
    server = Server(words, tmp_path / "log", port=port, environment=environment, session=True)
    try:
        server.wait_until_it_listens()
        with socket.create_connection(server.address) as client:
            client.sendall(get("/"))
            client.recv(65536)
            client.settimeout(7 if outlasts else PATIENCE)  # hypercorn's own is 5 s
            try:
                while client.recv(65536):
                    pass
                stays = False
            except TimeoutError:
                stays = True
        assert stays is outlasts
    finally:
        server.stop()
        server.end(10)
