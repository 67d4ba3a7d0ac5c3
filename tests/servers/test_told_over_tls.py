"""Over TLS, too, a client is told why it is closed: by whoever may write on its
connection.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gunicorn")

import reaper.gunicorn
from scripts.guests.columns import COLUMNS, LIMITS
from scripts.guests.trial import pair
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE
from tests.helpers.hypercorn_here import configured, hypercorn_here
from tests.helpers.servers_here import worker
from tests.servers.test_half_handshakes import GUESTS, HALF

SOON = {"TIMEOUTS_HEADERS": "200ms", "TIMEOUTS_BODY": "200ms", "TICK": "100ms"}
HALVES = {
    "a head": b"GET / HTTP/1.1\r\nHost: h\r\n",
    "a body": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n01234",
}


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@contextmanager
def serving(name: str, files: tuple[str, str], log: Path) -> Iterator[tuple[str, int]]:
    if name == "gunicorn, threads":
        given = {"certfile": files[0], "keyfile": files[1]}
        kind = reaper.gunicorn.ThreadWorker
        with configured(SOON), worker(kind, wsgi, **given) as running:
            yield running.address
    else:
        with hypercorn_here("trio", log, application, SOON, certificate=files) as here:
            yield here.address


@pytest.mark.slow
@pytest.mark.parametrize("name", GUESTS)
def test_whoever_has_shaken_hands_and_says_nothing_is_ended_by_first_byte(
    name: str, tmp_path: Path
) -> None:
    """And not by `keep_alive`, an hour here: its handshake is no request."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    # The client that asks may be held up for a while before it does.
    limits = LIMITS | {"REAPER_TIMEOUTS_FIRST_BYTE": "2s", "REAPER_TIMEOUTS_KEEP_ALIVE": "1h"}
    limits |= {"REAPER_TIMEOUTS_HANDSHAKE": "10s"}
    with (
        pair(COLUMNS[name], tmp_path, limits) as (_, server),
        socket.create_connection(server.address, PATIENCE) as plain,
        trust.wrap_socket(plain) as silent,
        socket.create_connection(server.address, PATIENCE) as other,
        trust.wrap_socket(other) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 ")
        assert silent.recv(4096) == b""
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while client.recv(4096):
                pass
            raise AssertionError("who has asked was ended, too")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in GUESTS if name != "tornado, TLS"])
def test_whoever_never_ends_its_handshake_is_ended_by_that_limit(name: str, tmp_path: Path) -> None:
    """And by no other, each an hour here. tornado's page says that it has none."""
    others = ("FIRST_BYTE", "HEADERS", "KEEP_ALIVE", "IDLE")
    limits = LIMITS | {f"REAPER_TIMEOUTS_{each}": "1h" for each in others}
    with (
        pair(COLUMNS[name], tmp_path, limits | {"REAPER_TIMEOUTS_HANDSHAKE": "1s"}) as (_, server),
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(HALF)
        with suppress(ConnectionResetError):
            while client.recv(4096):
                pass


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["gunicorn, threads", "hypercorn, trio"])
def test_whoever_sends_half_of_it_is_told_408(
    name: str, half: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    with serving(name, certificate, tmp_path / "log") as address:
        with (
            socket.create_connection(address, PATIENCE) as plain,
            trust.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(HALVES[half])
            assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
        with (
            socket.create_connection(address, PATIENCE) as plain,
            trust.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
