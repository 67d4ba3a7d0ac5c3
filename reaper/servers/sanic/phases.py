"""What a connection waits for, read from Sanic.

The rule of this module: *what the server knows is read when a connection comes due,
never kept beside it*. Where its private attributes do not say, the connection counts as
in use, and is not closed.
"""

from __future__ import annotations

import functools
from typing import Any

from ...asyncio.guards import OnTransport
from ...config.settings import DEFAULT, ReaperConfig
from ...policy import Phase

OWN_GRACE = 15.0
"""Seconds; Sanic's default of `GRACEFUL_SHUTDOWN_TIMEOUT`."""


class Sanic(OnTransport):
    """A connection of Sanic's `HttpProtocol`."""

    __slots__ = ()

    def phase(self) -> Phase:
        protocol = self.protocol
        # one of HTTP alone has no such attribute
        if getattr(protocol, "websocket", None) is not None:
            return Phase.TUNNEL
        http = protocol._http
        stage = http.stage.name
        if stage in ("IDLE", "REQUEST"):
            return Phase.HEADERS if http.recv_buffer else Phase.KEEP_ALIVE
        wanted = stage == "HANDLER" and http.request_body and _lacks(http)
        return Phase.BODY if wanted else Phase.IN_FLIGHT

    def owes(self) -> bool:
        """True: Sanic waits for a body only until its answer begins."""
        return True

    def be_last(self) -> None:
        _tell_last(self.protocol)


def stops(protocol: Any, close_if_idle: Any, config: ReaperConfig) -> bool:
    """Stands for `HttpProtocol.close_if_idle`, which Sanic calls for each connection
    when it stops: have its answers say that they are the last, and close it if it is
    idle after `timeouts.drain_idle`, for a request may be on its way.

    Sanic then waits for `GRACEFUL_SHUTDOWN_TIMEOUT` at most, which it reads afterwards,
    and resets what is left: half of that is never exceeded here.
    """
    _tell_last(protocol)
    grace = _grace(protocol.app.config, config)
    protocol.loop.call_later(min(config.timeouts.drain_idle, grace / 2), close_if_idle, protocol)
    return False


def _grace(own: Any, config: ReaperConfig) -> float:
    """The seconds for which Sanic with the settings *own* waits as it stops:
    `timeouts.drain`, if that is set and Sanic's is not.
    """
    if config.origin("timeouts.drain") != DEFAULT and own.GRACEFUL_SHUTDOWN_TIMEOUT == OWN_GRACE:
        own.GRACEFUL_SHUTDOWN_TIMEOUT = config.timeouts.drain
    return float(own.GRACEFUL_SHUTDOWN_TIMEOUT)


def _tell_last(protocol: Any) -> None:
    """Have the next answer of *protocol* after which no request waits say that it is
    the last.
    """
    http: Any = getattr(protocol, "_http", None)
    if hasattr(http, "http1_response_header") and hasattr(http, "keep_alive"):
        kind: Any = type(http)
        begins = getattr(http, "response_func", None) == http.http1_response_header
        http.__class__ = _ending(kind)
        if begins:  # the answer in hand has been given the method of the first class
            http.response_func = http.http1_response_header


def _lacks(http: Any) -> bool:
    """Whether Sanic's *http* has nothing for the application: no byte of a body, or,
    between two chunks, no whole line with the size of the next.
    """
    came = http.recv_buffer
    between = http.request_body == "chunked" and http.request_bytes_left == 0
    return came.find(b"\r\n", len(b"\r\n0")) < 0 if between else not came


@functools.lru_cache(maxsize=8)
def _ending(kind: Any) -> Any:
    """Derive from *kind*, Sanic's `Http`, a class whose answers say `Connection:
    close`. Sanic reads the request's wish anew each time, so this is set when the
    answer begins.
    """

    async def http1_response_header(self: Any, data: bytes, end_stream: bool) -> None:
        # Who has sent the next request already is answered first.
        if self.request_body or not self.recv_buffer:
            self.keep_alive = False
        await kind.http1_response_header(self, data, end_stream)

    members = {"__slots__": (), "http1_response_header": http1_response_header}
    return type(kind)(kind.__name__, (kind,), members)
