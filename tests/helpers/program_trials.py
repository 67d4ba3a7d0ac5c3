"""What every program of README, docs and examples has to do: it closes clients that go
or fall silent, and keeps those that speak.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol

import psutil

from reaper.driver.sockets import reset_on_close
from scripts.serving import Server
from tests.helpers.lagging import Lagged, in_time
from tests.helpers.server_process import wait_until

PATIENCE = 60.0


class Addressed(Protocol):
    """Whatever listens on an address: a process, or a server in a thread of this
    one.
    """

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""


def connect(server: Addressed) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE)


def reset(client: socket.socket) -> None:
    reset_on_close(client)
    client.close()


def heard(client: socket.socket, end: bytes = b"hello") -> bytes:
    """Read up to *end*, which has to come. Returns all that came."""
    said = b""
    while end not in said:
        data = client.recv(100_000)
        assert data, f"closed after {said[-200:]!r}"
        said += data
    return said


def rest(client: socket.socket) -> bytes:
    """Read up to the end of file or the reset, one of which has to come. Returns all
    that came.
    """
    said = b""
    with suppress(ConnectionError):
        while data := client.recv(100_000):
            said += data
    return said


def connections(server: Server) -> int:
    """How many TCP connections the server holds and has not shut by itself."""
    return sum(
        each.status in (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)
        for each in server.sockets()
    )


def cpu(server: Server) -> float:
    """CPU seconds that the process has used."""
    return float(sum(psutil.Process(server.pid).cpu_times()[:2]))


def trial(
    server: Server,
    least: float,
    says: bytes = b"x\n",
    wrap: Callable[[socket.socket], socket.socket] = lambda client: client,
) -> None:
    """Try a server with five clients at once: they say goodbye, close, reset, fall
    silent, go on. Once more, if the one that talks was itself silent for too long.

    The silent one has to be closed after *least* seconds or later, and the one that
    talks has to be answered still. *server* answers *says*; *wrap* makes a client speak
    TLS.
    """

    def once() -> None:
        with ExitStack() as opened:
            _try(server, least, says, lambda: opened.enter_context(wrap(connect(server))))

    in_time(once)


def _try(server: Server, least: float, says: bytes, connected: Callable[[], socket.socket]) -> None:
    spoke = time.monotonic()  # or came
    talker, silent, leaves, closes, resets = (connected() for _ in range(5))

    def talk() -> None:
        nonlocal spoke
        before, spoke = spoke, time.monotonic()
        answered = False
        with suppress(ConnectionError):
            talker.sendall(says)
        silence = time.monotonic() - before
        with suppress(ConnectionError):
            answered = bool(talker.recv(1000))
        if not answered and silence > least / 2:
            raise Lagged
        assert answered, f"closed, {silence:.3f} s after it spoke"

    closes.close()
    reset(resets)
    came, answered = spoke, False
    try:
        leaves.sendall(says)
        leaves.shutdown(socket.SHUT_WR)
        began = time.monotonic()
        silent.sendall(says)
        answered = bool(silent.recv(1000))
    except TimeoutError:
        raise
    except OSError:
        if time.monotonic() - came <= least / 2:
            raise
    if not answered and time.monotonic() - came > least / 2:
        raise Lagged  # they had connected, and said nothing for too long
    assert answered
    while not select.select([silent], [], [], least / 8)[0] or silent.recv(
        1000
    ):  # it may be asked before it is closed
        talk()
        assert time.monotonic() - began < PATIENCE
    assert time.monotonic() - began >= least
    rest(leaves)
    used = cpu(server)
    talk()
    time.sleep(0.5)
    assert cpu(server) - used < 0.4  # a handler that spins on an end of file would take it all
    for client in (silent, leaves):
        client.close()
    # The talker may be silent for too long meanwhile.
    wait_until(lambda: connections(server) <= 1, "the end of all that have gone")
    talker.close()
