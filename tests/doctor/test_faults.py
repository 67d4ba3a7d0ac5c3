"""A fault that a real server has is found, and the command that is printed mends it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from reaper.attach.kernel import Linux
from tests.helpers.attach_servers import Client, Echo, Running, at, running
from tests.helpers.planted_faults import examine, kinds, mend

pytestmark = pytest.mark.slow


def planted(fault: str, port: int) -> Running:
    """The server with *fault*."""
    words = ("-m", "tests.helpers.planted_faults", fault, "127.0.0.1", str(port))
    return running(sys.executable, *words, port=port)


def test_a_process_near_its_limit_of_descriptors_gets_more(port: int) -> None:
    with planted("crowded", port) as server, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        pid = ("--pid", str(server.pid))
        (found,) = examine(*pid)["findings"]
        assert found["kind"] == "descriptors"
        assert "of 64 descriptors in use" in found["evidence"]
        assert found["example"] == "127.0.0.1 has 50 of the connections"
        mend(found, lambda: kinds(examine(*pid)) == [])


@pytest.mark.skipif(os.geteuid() != 0, reason="ending connections by SOCK_DESTROY needs root")
def test_connections_that_the_program_forgot_to_close_are_ended(port: int) -> None:
    with Echo.server(port, "deaf") as server:
        for _ in range(4):
            Echo.answered(port).sock.close()
        time.sleep(5.0)
        (found,) = examine(*at(port))["findings"]
        assert (found["kind"], found["count"] >= 4) == ("close-wait", True)
        assert f"held by process {server.pid}" in found["example"]
        assert found["seconds"] >= 5.0
        mend(found, lambda: kinds(examine(*at(port))) == [])


def test_silent_clients_are_closed(port: int) -> None:
    with Echo.server(port) as server:
        clients = [Echo.answered(port) for _ in range(3)]
        time.sleep(2.0)
        (found,) = examine("--pid", str(server.pid), "--idle", "2s")["findings"]
        assert (found["kind"], found["count"]) == ("silent", 3)
        mend(found, lambda: all(ended(client) for client in clients))


def ended(client: Client) -> bool:
    client.sock.settimeout(0.01)
    try:
        return client.sock.recv(1) == b""
    except TimeoutError:
        return False


def test_a_client_that_reads_nothing_of_a_stream_is_closed(port: int) -> None:
    with planted("floods", port) as server, socket.socket() as client:
        client.connect(("127.0.0.1", port))
        assert client.recv(1, socket.MSG_PEEK)
        time.sleep(1.0)  # until its buffer is full
        pid = ("--pid", str(server.pid))
        (found,) = examine(*pid, seconds="11s")["findings"]
        assert (found["kind"], found["count"]) == ("takes-nothing", 1)
        assert found["mend"] == f"reaper attach --pid {server.pid} --stalled-write 1m --close"
        sooner = {"mend": found["mend"].replace("1m", "1s --tick 100ms")}
        mend(sooner, lambda: examine(*pid)["connections"] == 0)


def test_a_queue_that_overflows_gets_more_room(port: int) -> None:
    with planted("accepts-slowly", port) as server, ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        pid = ("--pid", str(server.pid))
        (found,) = examine(*pid, seconds="4s")["findings"]
        assert found["kind"] == "backlog"
        assert "has room for 4" in found["evidence"]
        mend(found, lambda: room(port) == 4096)
        assert kinds(examine(*pid)) == []


def room(port: int) -> int:
    """How many connections may wait at *port*."""
    kernel = Linux()
    try:
        return next(one.room for one in kernel.listeners() if one.address.port == port)
    finally:
        kernel.close()


STOCK = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
"""


def test_a_timeout_shorter_than_that_of_the_proxy_is_made_longer(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "uvicorn", "stock:app", "--port", str(port)]
    with running(*command, port=port) as server:
        (found,) = examine("--pid", str(server.pid), "--behind", "nginx")["findings"]
        assert (found["kind"], "nginx's idle time of 75s" in found["evidence"]) == ("proxy", True)
        server.send_signal(signal.SIGTERM)
        server.wait(20)
        with running(*shlex.split(found["mend"]), port=port) as anew:
            said = examine("--pid", str(anew.pid), "--behind", "nginx")
            assert kinds(said) == []
            assert not any(one.startswith("proxy") for one in said["not_judged"])
