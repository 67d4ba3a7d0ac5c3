"""What a connection waits for, read from Twisted.

The rule of this module: *what the server knows is read when a connection comes due,
never kept beside it*. Where its private attributes do not say, the connection counts as
in use, and is not closed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...asyncio.reaper import reaper_of
from ...driver.served import Served, Wire, watch
from ...driver.sockets import reset_on_close
from ...policy import Phase
from ..configured import settings


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


class ServerWire(Wire):
    """A `twisted.internet.tcp.Server`, which refers to this object, and which this one
    refers to weakly.
    """

    __slots__ = ("_socket",)

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._socket = server.getHandle()

    def socket(self) -> Any:
        return None if self._whose() is None else self._socket

    @property
    def is_open(self) -> bool:
        whose = self._whose()
        return whose is not None and bool(
            (whose.connected and not whose.disconnecting) or self.buffered()
        )

    def buffered(self) -> int:
        whose = self._whose()
        return 0 if whose is None else len(whose.dataBuffer) + int(whose._tempDataLen)

    def write(self, data: bytes) -> None:
        above(self._whose()).write(data)

    def close(self, says: bytes) -> None:
        if (whose := self._whose()) is not None:
            tls = above(whose)
            if says and whose.connected and not whose.disconnecting:
                tls.write(says)
            if tls is not whose:
                tls.loseConnection()
            # TLS would wait for the client's goodbye; this, for what is buffered alone.
            whose.loseConnection()
            self.shut()

    def reset(self) -> None:
        if (whose := self._whose()) is not None:
            reset_on_close(self._socket)
            whose.abortConnection()

    def wakes(self, served: Served) -> bool:
        whose_of, wake = self._whose, served.waker()

        def came(data: bytes) -> Any:
            whose = whose_of()
            del whose._dataReceived
            wake()
            return whose._dataReceived(data)

        whose_of()._dataReceived = came
        return True


class Twisted(Served):
    """A connection of a `twisted.internet.tcp.Server`."""

    __slots__ = ()

    LIMITED: ClassVar[tuple[Phase, ...]] = (*Served.LIMITED, Phase.HANDSHAKE)

    wire: ServerWire

    def phase(self) -> Phase:
        """As the base class says; in use if it does not speak HTTP."""
        whose = self.wire.whose
        if not getattr(above(whose), "_handshakeDone", True):
            return Phase.HANDSHAKE
        protocol = spoken(whose)
        channel = getattr(protocol, "_channel", None)  # HTTP's; other protocols have none
        if channel is None:
            opened = getattr(protocol, "state", None) == getattr(protocol, "STATE_OPEN", 3)
            socket = opened and hasattr(protocol, "websocket_version")
            return Phase.TUNNEL if socket else Phase.IN_FLIGHT
        if protocol._negotiatedProtocol is None:
            return Phase.FIRST_BYTE  # over TLS its client was heard before, in the handshake
        requests = getattr(channel, "requests", None)
        if requests is None:
            return Phase.IN_FLIGHT  # HTTP/2
        if not requests:
            return Phase.HEADERS if channel._buffer else Phase.KEEP_ALIVE
        if channel._handlingRequest:
            return Phase.IN_FLIGHT
        # A request has begun: without a decoder its headers are read, with one its
        # body.
        return Phase.HEADERS if channel._transferDecoder is None else Phase.BODY

    def owes(self) -> bool:
        return not spoken(self.wire.whose)._channel.requests[-1].startedWriting

    def be_last(self) -> None:
        channel: Any = getattr(spoken(self.wire.whose), "_channel", None)
        if hasattr(channel, "checkPersistence"):
            channel.checkPersistence = _ends


def note(transport: Any) -> None:
    """Guard the connection of *transport*, a `twisted.internet.tcp.Server` on an
    asyncio loop.
    """
    terms = Twisted.terms(reaper_of(config=settings))
    transport._reaper_served = served = watch(terms, Twisted, ServerWire(transport))
    served.opened()


def _ends(request: Any, _version: bytes) -> bool:
    """Stands for `HTTPChannel.checkPersistence`: the connection ends with the answer to
    *request*.
    """
    request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
    return False
