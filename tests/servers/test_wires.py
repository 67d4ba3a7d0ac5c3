"""The wires of servers that have no transport of asyncio's."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from reaper.driver.served import Wire
from reaper.policy import Phase
from reaper.servers.tornado.phases import StreamWire
from reaper.servers.twisted.phases import ServerWire, Twisted
from tests.helpers.served import bare


class Whose:
    """The server's object."""

    socket: Any

    def getHandle(self) -> Any:  # noqa: N802
        return self.socket


@pytest.mark.parametrize("kind", [ServerWire, StreamWire])
def test_a_wire_whose_connection_is_freed_is_closed(kind: Any) -> None:
    whose = Whose()
    with socket.socket() as whose.socket:
        made: Wire = kind(whose)
        del whose
        assert not made.is_open
        assert made.socket() is None
        assert made.buffered() == 0
        made.close(b"408")
        made.reset()


class Connection(Whose):
    """A connection of Twisted's, or what stands between one and its protocol: TLS."""

    connected, disconnecting = True, False
    dataBuffer, _tempDataLen = b"", 0  # noqa: N815

    def __init__(self, protocol: Any, did: list[str], name: str) -> None:
        self.protocol, self._did, self._name = protocol, did, name

    def write(self, data: bytes) -> None:
        self._did.append(f"{self._name} writes {data!r}")

    def loseConnection(self) -> None:  # noqa: N802
        self._did.append(f"{self._name} closes")


class Tls(Connection):
    """Twisted's TLS."""

    def __init__(self, inner: Any, did: list[str], *, shaken: bool) -> None:
        super().__init__(None, did, "TLS")
        self.wrappedProtocol, self._handshakeDone = inner, shaken


class Http:
    """A protocol with half a head."""

    def __init__(self, negotiated: bytes | None = b"http/1.1") -> None:
        self._negotiatedProtocol = negotiated

    class _channel:  # noqa: N801
        requests: tuple[Any, ...] = ()
        _buffer = (b"GET / HT",)


@pytest.mark.parametrize(
    ("shaken", "negotiated", "phase"),
    [
        (False, None, Phase.HANDSHAKE),
        (True, None, Phase.FIRST_BYTE),
        (True, b"http/1.1", Phase.HEADERS),
    ],
)
def test_over_tls_twisted_is_asked_and_told_through_it(
    shaken: bool, negotiated: bytes | None, phase: Phase
) -> None:
    did: list[str] = []
    whose = Connection(Tls(Http(negotiated), did, shaken=shaken), did, "TCP")
    with socket.socket() as sock:
        whose.socket = sock
        wire = ServerWire(whose)
        assert bare(Twisted, whose).phase() is phase
        wire.close(b"408")
    assert did == ["TLS writes b'408'", "TLS closes", "TCP closes"]


def test_in_clear_text_there_is_nothing_between() -> None:
    did: list[str] = []
    whose = Connection(Http(), did, "TCP")
    with socket.socket() as sock:
        whose.socket = sock
        wire = ServerWire(whose)
        assert bare(Twisted, whose).phase() is Phase.HEADERS
        wire.close(b"408")
    assert did == ["TCP writes b'408'", "TCP closes"]
