"""The crowd of idle clients: who is answered what, and who is open still."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from scripts.campaign.crowd import REQUEST, come, ended, still_open

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[tuple[tuple[str, int], list[socket.socket]]]:
    """A server that gives each client the next of *answers*: its address, and its
    connections.
    """
    made: list[socket.socket] = []

    def serve() -> None:
        for each in answers:
            connection, _ = listening.accept()
            made.append(connection)
            connection.recv(len(REQUEST), socket.MSG_WAITALL)
            connection.sendall(each)
            if not ended(each):
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname(), made
        finally:
            thread.join()
            for connection in made:
                connection.close()


def test_it_counts_who_was_answered_what() -> None:
    with answering(OK, BUSY, b"HTTP/1.1 2", OK) as (address, _):
        kept, heard = come(address, 4, "127.0.0.1")
    for client in kept:
        client.close()
    assert heard == {"200": 2, "503": 1, "lost": 1}
    assert len(kept) == 2


def test_it_counts_who_is_open_still() -> None:
    with answering(OK, OK, OK) as (address, connections):
        kept, _ = come(address, 3, "127.0.0.1")
        connections[1].shutdown(socket.SHUT_WR)
        left = still_open(kept)
        for client in kept:
            client.close()
    assert left == 2


@pytest.mark.parametrize("heard", [b"", OK[:20], OK[:-1]])
def test_a_part_of_an_answer_is_not_its_end(heard: bytes) -> None:
    assert ended(OK)
    assert not ended(heard)
