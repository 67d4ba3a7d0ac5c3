"""What a connection waits for, read from Sanic.

The rule of this module: *what the server knows is read when a connection comes due, never kept
beside it*. Where its private attributes do not say, the connection counts as in use, and is not
closed.
"""

from __future__ import annotations

from typing import Any

from ...policy import Phase


def phase_of(transport: Any) -> Phase:
    """The phase of the connection of *transport*, which serves Sanic's `HttpProtocol`."""
    protocol = transport.get_protocol()
    if getattr(protocol, "websocket", None) is not None:
        return Phase.TUNNEL
    http: Any = getattr(protocol, "_http", None)
    stage = getattr(getattr(http, "stage", None), "name", "")
    if stage in ("IDLE", "REQUEST"):
        return Phase.KEEP_ALIVE
    wanted = stage == "HANDLER" and http.request_body and not http.recv_buffer
    return Phase.BODY if wanted else Phase.IN_FLIGHT
