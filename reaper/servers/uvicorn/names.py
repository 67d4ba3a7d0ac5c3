"""The private names of uvicorn's that the guarded protocols use, and whether the installed version
has them.

The rule of this module: *a name is listed before it is used*. CI holds the list against the lowest
and the latest supported version.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:  # httptools is an extra of uvicorn's
    PROTOCOLS: tuple[type, ...] = (H11Protocol,)
else:
    PROTOCOLS = (H11Protocol, HttpToolsProtocol)
"""uvicorn's HTTP protocols that are installed."""

CYCLES: tuple[Any, ...] = tuple(
    vars(sys.modules[protocol.__module__])["RequestResponseCycle"] for protocol in PROTOCOLS
)
"""uvicorn's object for one request and its response, of each of them. Within its method `run_asgi`,
which is the coroutine of a task, it is `self`.
"""

HTTP2 = "uvicorn.protocols.http.zttp_h2_impl"
"""uvicorn's module of HTTP/2. It is imported by who takes HTTP/2 alone: it needs zttp."""


def cycles() -> tuple[Any, ...]:
    """`CYCLES`, and that of HTTP/2 where it is imported."""
    module = sys.modules.get(HTTP2)
    return CYCLES if module is None else (*CYCLES, vars(module)["RequestResponseCycle"])


TESTED = ("0.36.0", "0.54.0")
"""The lowest version of uvicorn that is supported (the first whose --http takes any class), and the
latest tried.
"""

_OF_BOTH = """
app client config connection_lost connection_made cycle data_received eof_received flow
handle_websocket_upgrade loop on_response_complete pause_writing scope shutdown
timeout_keep_alive_handler transport ws_protocol_class
"""
_OF_CYCLE = """
default_headers disconnected flow keep_alive message_event more_body receive response_complete
response_started run_asgi scope send transport waiting_for_100_continue
"""

_OF_HTTP2 = """
app client conn connection_lost connection_made cycles data_received eof_received flow flush
handle_request handle_rst_stream loop on_response_complete pause_writing resume_reading_if_idle
resume_writing shutdown transport
"""
_OF_HTTP2_CYCLE = """
body default_headers disconnected flow message_event more_body receive response_complete
response_started resume_reading run_asgi scope send transport
"""

NAMES: dict[str, tuple[str, ...]] = {
    "Config": (
        *("encoded_headers", "load", "loaded", "ssl", "timeout_keep_alive", "ws_protocol_class"),
        "loaded_app",
    ),
    "FlowControl": ("read_paused", "write_paused"),
    "H11Protocol": ("conn",),
    "HttpToolsProtocol": ("parser", "pipeline"),
    "ServerState": ("connections", "default_headers", "tasks"),
    "protocol": tuple(_OF_BOTH.split()),
    "cycle": tuple(_OF_CYCLE.split()),
    "ZttpH2Protocol": tuple(_OF_HTTP2.split()),
    "cycle of HTTP/2": tuple(_OF_HTTP2_CYCLE.split()),
}
"""The names of uvicorn's that are used here, by the class they belong to; `protocol` and `cycle`
are those of both HTTP protocols.
"""


def missing(*, http2: bool = False) -> list[str]:
    """The `NAMES` that the installed uvicorn does not have, as `Class.name`; empty: it fits.

    Args:
        http2: Whether those of HTTP/2 are needed, too; its module is imported then.
    """
    made: list[tuple[type, str]] = [
        (kind, kind.__name__) for kind in (Config, FlowControl, ServerState)
    ]
    for protocol, cycle in zip(PROTOCOLS, CYCLES, strict=True):
        made += [(protocol, protocol.__name__), (protocol, "protocol"), (cycle, "cycle")]
    if http2:
        from uvicorn.protocols.http import zttp_h2_impl

        made += [(zttp_h2_impl.ZttpH2Protocol, "ZttpH2Protocol")]
        made += [(zttp_h2_impl.RequestResponseCycle, "cycle of HTTP/2")]
    return [
        f"{kind.__name__}.{name}"
        for kind, group in made
        for name in NAMES[group]
        if name not in _names_of(kind)
    ]


def _names_of(kind: type) -> set[str]:
    """The attributes of *kind*, those that its methods set included."""
    functions = [
        inspect.unwrap(value) for value in vars(kind).values() if inspect.isfunction(value)
    ]
    return set(dir(kind)).union(*(function.__code__.co_names for function in functions))
