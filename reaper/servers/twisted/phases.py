"""What a connection waits for, read from Twisted.

The rule of this module: *what the server knows is read when a connection comes due,
never kept beside it*. Where its private attributes do not say, the connection counts as
in use, and is not closed.
"""

from __future__ import annotations

from typing import Any

from ...asyncio.reaper import reaper_of
from ...policy import Phase
from .. import polled
from ..configured import settings
from ..polled import SocketFace


def spoken(whose: Any) -> Any:
    """The protocol that the client of *whose*, a `twisted.internet.tcp.Server`, speaks:
    over TLS that is within Twisted's own; None if there is none.
    """
    protocol = getattr(whose, "protocol", None)
    return getattr(protocol, "wrappedProtocol", protocol)


def above(whose: Any) -> Any:
    """What the answers of *whose*, a `twisted.internet.tcp.Server`, are written to: its
    protocol if that is TLS, otherwise itself.
    """
    protocol = getattr(whose, "protocol", None)
    return protocol if hasattr(protocol, "wrappedProtocol") else whose


class TwistedFace(SocketFace):
    """Stands for the transport of a `twisted.internet.tcp.Server`."""

    def is_closing(self) -> bool:
        whose = self.whose
        return whose is None or not whose.connected or bool(whose.disconnecting)

    def get_write_buffer_size(self) -> int:
        whose = self.whose
        return 0 if whose is None else len(whose.dataBuffer) + int(whose._tempDataLen)

    def close(self) -> None:
        if (whose := self.whose) is not None:
            if (tls := above(whose)) is not whose:
                tls.loseConnection()
            # TLS would wait for the client's goodbye; this, for what is buffered alone.
            whose.loseConnection()

    def write(self, data: bytes) -> None:
        if (whose := self.whose) is not None:
            above(whose).write(data)

    def abort(self) -> None:
        if (whose := self.whose) is not None:
            whose.abortConnection()


def watch(transport: Any) -> None:
    """Guard the connection of *transport*, a `twisted.internet.tcp.Server` on an
    asyncio loop.
    """
    transport._reaper_face = TwistedFace(transport, transport.getHandle())
    polled.watch(reaper_of(config=settings), transport._reaper_face, phase_of, be_last, owes)


def owes(face: Any) -> bool:
    """Whether no part of the answer was sent yet while the request's body is awaited on
    the connection of *face*.
    """
    return not spoken(face.whose)._channel.requests[-1].startedWriting


def be_last(face: Any) -> None:
    """Have the next answer on the connection of *face* say `Connection: close`."""
    channel: Any = getattr(spoken(face.whose), "_channel", None)
    if hasattr(channel, "checkPersistence"):
        channel.checkPersistence = _ends


def _ends(request: Any, _version: bytes) -> bool:
    """Stands for `HTTPChannel.checkPersistence`: the connection ends with the answer to
    *request*.
    """
    request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
    return False


def phase_of(face: Any) -> Phase:
    """The phase of the connection of *face*, a `TwistedFace`; in use if it does not
    speak HTTP.
    """
    if not getattr(above(face.whose), "_handshakeDone", True):
        return Phase.FIRST_BYTE
    protocol = spoken(face.whose)
    channel = getattr(protocol, "_channel", None)  # HTTP's; other protocols have none
    if channel is None:
        opened = getattr(protocol, "state", None) == getattr(protocol, "STATE_OPEN", 3)
        return (
            Phase.TUNNEL if opened and hasattr(protocol, "websocket_version") else Phase.IN_FLIGHT
        )
    requests = getattr(channel, "requests", None)
    if requests is None:
        return Phase.IN_FLIGHT  # HTTP/2
    if not requests:
        return Phase.HEADERS if channel._buffer else Phase.KEEP_ALIVE
    if channel._handlingRequest:
        return Phase.IN_FLIGHT
    # A request has begun: without a decoder its headers are read, with one its body.
    return Phase.HEADERS if channel._transferDecoder is None else Phase.BODY
