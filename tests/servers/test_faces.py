"""What stands for the transport of a server that has none of asyncio's, after its
end.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import reaper.asyncio
from reaper.policy import Phase
from reaper.servers import polled
from reaper.servers.polled import SocketFace
from reaper.servers.tornado.phases import TornadoFace
from reaper.servers.twisted.phases import TwistedFace, phase_of


class Whose:
    """The server's object."""


@pytest.mark.parametrize("face", [TwistedFace, TornadoFace])
def test_a_face_whose_connection_is_freed_is_closing(face: type[SocketFace]) -> None:
    whose = Whose()
    with socket.socket() as sock:
        made: Any = face(whose, sock)
        del whose
        assert made.is_closing()
        assert made.get_write_buffer_size() == 0
        made.close()
        made.abort()


class Connection:
    """A connection of Twisted's, or what stands between one and its protocol: TLS."""

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

    class _channel:  # noqa: N801
        requests: tuple[Any, ...] = ()
        _buffer = (b"GET / HT",)


@pytest.mark.parametrize(("shaken", "phase"), [(False, Phase.FIRST_BYTE), (True, Phase.HEADERS)])
def test_over_tls_twisted_is_asked_and_told_through_it(shaken: bool, phase: Phase) -> None:
    did: list[str] = []
    whose = Connection(Tls(Http(), did, shaken=shaken), did, "TCP")
    with socket.socket() as sock:
        face = TwistedFace(whose, sock)
        assert phase_of(face) is phase
        face.write(b"408")
        face.close()
    assert did == ["TLS writes b'408'", "TLS closes", "TCP closes"]


def test_in_clear_text_there_is_nothing_between() -> None:
    did: list[str] = []
    whose = Connection(Http(), did, "TCP")
    with socket.socket() as sock:
        face = TwistedFace(whose, sock)
        assert phase_of(face) is Phase.HEADERS
        face.write(b"408")
        face.close()
    assert did == ["TCP writes b'408'", "TCP closes"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_connections_that_are_watched_alike_share_their_rules(anyio_backend: str) -> None:
    def asks(transport: Any) -> Phase:
        return Phase.KEEP_ALIVE

    def owes(transport: Any) -> bool:
        return False

    async with reaper.asyncio.open_reaper() as watcher:
        ours, theirs = zip(*(socket.socketpair() for _ in range(3)), strict=True)
        streams = [await asyncio.open_connection(sock=sock) for sock in ours]
        for owed, (_, writer) in zip((owes, owes, polled.nothing_known), streams, strict=True):
            polled.watch(watcher, writer.transport, asks, owes=owed)
        guards: list[Any] = list(watcher.driver.connections.values())
        first, second, third = (guard._rules for guard in guards)
        assert first is second is not third
        for (_, writer), other in zip(streams, theirs, strict=True):
            writer.close()
            other.close()
