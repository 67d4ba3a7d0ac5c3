"""What the tests of parked connections share."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing

from tests.helpers.parking import Secure, peers
from tests.helpers.streams import settle


@pytest.fixture(autouse=True)
def _no_peer_is_left_open() -> Iterator[None]:
    yield
    while peers:
        peers.pop().close()


@pytest.fixture
def server(certificate: tuple[str, str]) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(*certificate)
    return made


@pytest.fixture
def secure(certificate: tuple[str, str]) -> Secure:
    """Makes a client of TLS of a socket; a slow one sends when all others have come to
    a halt.
    """
    trust = ssl.create_default_context(cafile=certificate[0])

    def wrap(sock: socket.socket, slow: bool = False) -> trio.SSLStream[Any]:
        plain: Any = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        send = plain.send_all

        async def send_slowly(data: bytes) -> None:
            await settle()
            await send(data)

        if slow:
            plain.send_all = send_slowly
        return trio.SSLStream(plain, trust, server_hostname="127.0.0.1")

    return wrap
