"""Faults that only clients on another machine cause: two network namespaces stand for
two machines.

Each is found, and the command that is printed mends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from reaper.attach.kernel import Linux
from scripts.serving import free_port
from tests.helpers import namespaces
from tests.helpers.attach_servers import ROOT, until
from tests.helpers.namespaces import Link
from tests.helpers.planted_faults import HANDSHAKES, examine, kinds, mend

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="doctor may enter a server's network namespace as root only"
    ),
]

NOBODY = "198.18.0"
"""The beginning of addresses that nobody has."""
CLIENT = """
import socket, sys, time
kept = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(3)]
for one in kept:
    one.sendall(b"hello")
    one.recv(100)
    time.sleep(0.1)
    one.sendall(b"more")
print("ready", flush=True)
time.sleep(3600)
"""
UPSTREAM = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
time.sleep(3600)
"""


@contextmanager
def program(prefix: list[str], *words: str, says: str = "") -> Iterator[subprocess.Popen[str]]:
    """A Python in a namespace; `nsenter` becomes it, so its id is that of the
    server.
    """
    command = [*prefix, sys.executable, *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert not says or process.stdout.readline() == f"{says}\n"
            yield process
        finally:
            process.kill()


@contextmanager
def served(fault: str, link: Link, *more: str) -> Iterator[tuple[int, int]]:
    """The process and the port of a server with *fault* on its end of the link."""
    port = free_port()
    words = ("-m", "tests.helpers.planted_faults", fault, link.address, str(port), *more)
    with program(link.server, *words) as server:
        until(lambda: listens(server.pid, port), f"{fault} listens")
        yield server.pid, port


def listens(pid: int, port: int) -> bool:
    kernel = Linux(pid)
    try:
        return any(one.address.port == port for one in kernel.listeners())
    finally:
        kernel.close()


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with namespaces.opened() as opened:
        yield opened


def test_handshakes_that_nobody_completes_are_given_up(link: Link) -> None:
    with served("echo", link) as (pid, port):
        namespaces.run(*link.server, *f"ip route add {NOBODY}.0/24 via {link.peer}".split())
        words = ("-m", "tests.helpers.planted_faults", "handshakes", link.address, str(port))
        subprocess.run([*link.client, sys.executable, *words, NOBODY], cwd=ROOT, check=True)
        (found,) = examine("--pid", str(pid), seconds="5s")["findings"]
        assert (found["kind"], found["count"]) == ("half-open", HANDSHAKES)
        mend(found, lambda: kinds(examine("--pid", str(pid), seconds="4s")) == [])


def test_quiet_connections_from_afar_without_keep_alives_get_some(link: Link) -> None:
    with served("answers-late", link) as (pid, port), ExitStack() as stack:
        clients = ("-c", CLIENT, link.address, str(port))
        stack.enter_context(program(link.client, *clients, says="ready"))
        time.sleep(2.0)
        flags = ("--pid", str(pid), "--idle", "2s")
        (found,) = examine(*flags)["findings"]
        assert (found["kind"], found["count"]) == ("no-keep-alive", 3)
        mend(found, lambda: kinds(examine(*flags)) == [])
        assert examine(*flags)["connections"] == 3


def test_a_pool_that_is_silent_for_longer_than_a_nat_remembers_gets_keep_alives(
    link: Link,
) -> None:
    port = free_port()
    upstream = ("-c", UPSTREAM, link.peer, str(port))
    with (
        program(link.client, *upstream, says="ready"),
        served("pools", link, link.peer, str(port)) as (pid, _),
    ):
        time.sleep(2.0)
        flags = ("--pid", str(pid), "--idle", "2s")
        (found,) = examine(*flags)["findings"]
        assert (found["kind"], found["count"]) == ("outgoing", 3)
        mend(found, lambda: kinds(examine(*flags)) == [])
        assert examine(*flags)["connections"] == 3


def test_a_stream_whose_client_has_vanished_is_found() -> None:
    with namespaces.opened() as link, served("streams", link) as (pid, port), ExitStack() as stack:
        reader = f"import socket\nwith socket.create_connection(({link.address!r}, {port})) as s:\n"
        reader += "    print('ready', flush=True)\n    while s.recv(9999): pass"
        stack.enter_context(program(link.client, "-c", reader, says="ready"))
        link.down()
        time.sleep(1.0)
        (found,) = examine("--pid", str(pid), seconds="12s")["findings"]
        assert (found["kind"], found["count"]) == ("takes-nothing", 1)
        assert found["example"].startswith(f"{link.peer}:")
