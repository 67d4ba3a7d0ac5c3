"""The command at real servers: healthy ones under way, and each trouble that can be planted here."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from reaper.__main__ import main
from tests.conftest import Ran
from tests.helpers.attach_servers import Client, Echo, Nginx, Redis, at, running


def examine(call: Ran, *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit status of an examination, and what it said."""
    status, out, err = call(main, "doctor", "--for", "1s", "--json", *flags)
    assert err == ""
    return status, json.loads(out)


def kinds(said: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in said["findings"]]


HTTP = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1")
UVICORN = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_level="critical")
"""
HEALTHY: dict[str, Callable[[int, Path], Any]] = {
    "redis": lambda port, folder: Redis.server(port, folder),
    "nginx": lambda port, folder: Nginx.server(port, folder),
    "echo, three workers": lambda port, folder: Echo.server(port, workers=3),
    "http.server": lambda port, folder: running(*HTTP, str(port), port=port, cwd=folder),
    "uvicorn": lambda port, folder: running(sys.executable, "-c", UVICORN, str(port), port=port),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", HEALTHY)
def test_a_healthy_server_in_use_has_no_finding(
    which: str, port: int, tmp_path: Path, call: Ran
) -> None:
    with HEALTHY[which](port, tmp_path) as server:
        clients = [Client(port) for _ in range(20)]
        for client in clients[:10]:
            client.sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for flags in (at(port), ("--pid", str(server.pid))):
            status, said = examine(call, *flags)
            assert (status, said["findings"]) == (0, [])


@pytest.mark.slow
def test_silent_clients_are_found_with_the_command_that_closes_them(port: int, call: Ran) -> None:
    with Echo.server(port) as server:
        clients = [Echo.answered(port) for _ in range(3)]
        time.sleep(2.0)
        status, said = examine(call, "--pid", str(server.pid), "--idle", "2s")
        assert (status, kinds(said)) == (1, ["silent"])
        (found,) = said["findings"]
        assert found["mend"] == f"reaper attach --pid {server.pid} --idle 2s --close"
        assert found["evidence"].startswith("3 connections silent for longer than 2s")
        for client in clients:
            client.exchange()


FAULTY = """
import resource, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
kept = []
if "descriptors" in sys.argv:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    kept += [socket.socket() for _ in range(85)]
while True:
    kept.append(listener.accept()[0])
    if "floods" in sys.argv:
        kept[-1].setblocking(False)
        try:
            while True:
                kept[-1].send(bytes(65536))
        except OSError:  # it is full, or whoever tried whether we listen has gone
            pass
"""


@pytest.mark.slow
def test_a_process_near_its_limit_of_descriptors_is_found(port: int, call: Ran) -> None:
    with running(sys.executable, "-c", FAULTY, str(port), "descriptors", port=port) as server:
        status, said = examine(call, "--pid", str(server.pid))
        assert status == 1
        assert "descriptors" in kinds(said)
        assert f"prlimit --pid {server.pid} " in said["findings"][0]["mend"]


@pytest.mark.slow
def test_a_connection_that_the_program_forgot_to_close_is_found(port: int, call: Ran) -> None:
    with running(sys.executable, "-c", FAULTY, str(port), port=port), ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"x")
        stack.close()
        time.sleep(5.5)
        status, said = examine(call, *at(port))
        assert (status, kinds(said)) == (1, ["close-wait"])


@pytest.mark.slow
def test_a_client_that_takes_nothing_is_found(port: int, call: Ran) -> None:
    flooding = running(sys.executable, "-c", FAULTY, str(port), "floods", port=port)
    with flooding, socket.create_connection(("127.0.0.1", port)) as client:
        assert client.recv(1, socket.MSG_PEEK)
        time.sleep(1.0)  # until its buffer is full
        status, out, _ = call(main, "doctor", "--for", "11s", *at(port))
        assert status == 1
        assert "takes-nothing" in out
        assert "--stalled-write 1m --close" in out


@pytest.mark.slow
def test_a_command_is_started_examined_and_ended(port: int, call: Ran) -> None:
    command = ("--", *HTTP, str(port))
    status, out, _ = call(main, "doctor", "--for", "1s", *command)
    assert (status, "nothing is wrong" in out) == (0, True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_timeout_that_does_not_suit_the_proxy_is_found(
    port: int, tmp_path: Path, call: Ran
) -> None:
    config = tmp_path / "reaper.toml"
    config.write_text('[server]\nbehind = "nginx"\n[timeouts]\nkeep_alive = "5s"\n')
    with Echo.server(port):
        status, said = examine(call, *at(port), "--config", str(config))
    assert (status, kinds(said)) == (1, ["proxy"])
    assert said["findings"][0]["mend"] == f"reaper check {config}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "say what to look at"),
        (("--pid", "1", "--listen", ":1"), "say what to look at"),
        (("--pid", "4194304"), "no such process"),
        (("--listen", "127.0.0.1:1"), "nothing listens there"),
        (("--config", "/none.toml", "--listen", ":1"), "cannot be read"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line_and_status_2(
    flags: tuple[str, ...], said: str, call: Ran
) -> None:
    status, out, err = call(main, "doctor", *flags)
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert said in line
