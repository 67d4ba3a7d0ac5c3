"""The names of uvicorn that are used here although nobody has promised them, and the
versions that the tests ran.

CI holds them against the lowest and the latest supported version.
"""

from __future__ import annotations

from ...foreign import Foreign

TESTED = ("0.36.0", "0.54.0")
"""The lowest version of uvicorn that is supported (the first whose --http takes any
class), and the latest tried.
"""

HTTP2_MODULE = "uvicorn.protocols.http.zttp_h2_impl"
"""uvicorn's module of HTTP/2. Only HTTP/2 imports it: it needs zttp."""

_PROTOCOL = """
app client config connection_lost connection_made cycle data_received eof_received flow
handle_websocket_upgrade loop on_response_complete pause_writing scheme scope shutdown
timeout_keep_alive_handler transport ws_protocol_class
"""
_CYCLE = """
+default_headers +disconnected flow +keep_alive message_event +more_body receive response_complete
response_started run_asgi scope +send transport waiting_for_100_continue
"""

STARTS = Foreign(
    "uvicorn",
    TESTED,
    {
        "uvicorn.config:Config": "+http +loop =__init__ http_protocol_class timeout_keep_alive",
        "uvicorn.server:Server": "servers =startup",
    },
)
"""What `reaper run` changes."""

UVICORN = Foreign(
    "uvicorn",
    TESTED,
    {
        "uvicorn.config:Config": """
            +encoded_headers load loaded loaded_app ssl timeout_keep_alive ws_protocol_class
        """,
        "uvicorn.protocols.http.flow_control:FlowControl": "read_paused write_paused",
        "uvicorn.protocols.http.h11_impl:H11Protocol": f"{_PROTOCOL} conn",
        "uvicorn.protocols.http.h11_impl:RequestResponseCycle": _CYCLE,
        "uvicorn.server:ServerState": "connections +default_headers tasks",
    },
)
HTTPTOOLS = Foreign(
    "uvicorn",
    TESTED,
    {
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol": f"{_PROTOCOL} on_message_complete parser pipeline",
        "uvicorn.protocols.http.httptools_impl:RequestResponseCycle": _CYCLE,
    },
    optional=True,  # httptools is an extra of uvicorn's
)
HTTP2 = Foreign(
    "uvicorn",
    TESTED,
    {
        "uvicorn.config:Config": "+http2",
        f"{HTTP2_MODULE}:ZttpH2Protocol": """
            alpn_protocols app client conn connection_lost connection_made cycles data_received
            eof_received flow flush handle_request handle_rst_stream loop on_response_complete on_stream_closed
            pause_writing resume_reading_if_idle resume_writing shutdown transport
        """,
        f"{HTTP2_MODULE}:RequestResponseCycle": """
            body default_headers +disconnected flow message_event +more_body receive
            response_complete response_started +resume_reading run_asgi scope +send transport
        """,
    },
)

NEEDS: tuple[Foreign, ...] = (UVICORN, HTTPTOOLS)
"""All that a guarded protocol of HTTP/1 uses; that of HTTP/2 needs `HTTP2`, too."""
