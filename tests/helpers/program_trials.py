"""What every program of README, docs and examples has to do: end who goes or falls silent, keep who
speaks.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import psutil

from reaper.driver.sockets import reset_on_close
from scripts.serving import Server
from tests.helpers.server_process import wait_until

PATIENCE = 60.0


class Addressed(Protocol):
    """Whatever listens on an address: a process, or a server in a thread of this one."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""


def connect(server: Addressed) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE)


def reset(client: socket.socket) -> None:
    reset_on_close(client)
    client.close()


def heard(client: socket.socket, end: bytes = b"hello") -> bytes:
    """Everything up to *end*, which has to come."""
    said = b""
    while end not in said:
        data = client.recv(100_000)
        assert data, f"closed after {said[-200:]!r}"
        said += data
    return said


def rest(client: socket.socket) -> bytes:
    """Everything up to the end of file, or the reset, which has to come."""
    said = b""
    with suppress(ConnectionError):
        while data := client.recv(100_000):
            said += data
    return said


def connections(server: Server) -> int:
    """TCP connections that the server holds, and has not shut by itself."""
    return sum(
        each.status in (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)
        for each in server.sockets()
    )


def cpu(server: Server) -> float:
    """CPU seconds that the process has used."""
    return sum(psutil.Process(server.pid).cpu_times()[:2])


def trial(
    server: Server,
    least: float,
    says: bytes = b"x\n",
    wrap: Callable[[socket.socket], socket.socket] = lambda client: client,
) -> None:
    """Clients that say goodbye, close, reset, fall silent and go on talking, all at once; *server*
    answers *says*.

    The silent one is closed after *least* seconds or later, and the one that talks still is
    answered then. *wrap* has each speak TLS.
    """
    talker, silent, leaves, closes, resets = (wrap(connect(server)) for _ in range(5))
    closes.close()
    reset(resets)
    leaves.sendall(says)
    leaves.shutdown(socket.SHUT_WR)
    began = time.monotonic()
    silent.sendall(says)
    assert silent.recv(1000)
    while not select.select([silent], [], [], least / 8)[0] or silent.recv(
        1000
    ):  # it may be asked before it is closed
        talker.sendall(says)
        assert talker.recv(1000)
        assert time.monotonic() - began < PATIENCE
    assert time.monotonic() - began >= least
    rest(leaves)
    used = cpu(server)
    talker.sendall(says)
    assert talker.recv(1000)
    time.sleep(0.5)
    assert cpu(server) - used < 0.4  # a handler that spins on an end of file would take it all
    for client in (silent, leaves):
        client.close()
    # The talker may be silent for too long meanwhile.
    wait_until(lambda: connections(server) <= 1, "the end of all that have gone")
    talker.close()
