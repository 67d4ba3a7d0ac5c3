"""The names of hypercorn that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import PYTHON, Foreign
from ..http2.names import H2

TESTED = ("0.18.0", "0.18.0")

_SERVER = """
    =_close =_idle_timeout =_initiate_server_close =_read_data app config context idle_task protocol =run
    send_lock
"""

CONFIG = Foreign(
    "hypercorn",
    TESTED,
    {
        "hypercorn.config:Config": """
            =create_sockets +graceful_timeout h2_max_concurrent_streams keep_alive_max_requests
            +keep_alive_timeout log ssl_handshake_timeout
        """
    },
)

_BOTH = {
    "hypercorn.app_wrappers:ASGIWrapper": "+app",
    "hypercorn.events:": "Closed RawData Updated",
    "hypercorn.protocol:ProtocolWrapper": "protocol",
    "hypercorn.protocol.events:": "Response StreamClosed",
    "hypercorn.protocol.events:Response": "headers status_code",
    "hypercorn.protocol.h11:H11Protocol": """
        +can_read config connection context +keep_alive_requests send stream =stream_send
    """,
    "hypercorn.protocol.h11:H11WSConnection": "h11_connection",
    "hypercorn.protocol.h2:H2Protocol": """
        =_close_stream =_create_stream _flush =_handle_events _window_updated config connection context
        =handle idle =initiate send stream_buffers =stream_send streams task_group
    """,
    "hypercorn.protocol.h2:StreamBuffer": "_complete buffer close =pop",
    "hypercorn.protocol.http_stream:HTTPStream": "app closed =handle send state stream_id",
    "hypercorn.protocol.http_stream:ASGIHTTPState": "REQUEST",
    "hypercorn.protocol.ws_stream:WSStream": "handshake state",
    "hypercorn.protocol.ws_stream:ASGIWebsocketState": "CONNECTED",
}

ASYNCIO = Foreign(
    "hypercorn",
    TESTED,
    _BOTH
    | {
        "hypercorn.asyncio.tcp_server:TCPServer": f"{_SERVER} reader writer",
        "hypercorn.asyncio.worker_context:WorkerContext": "sleep terminated",
    },
)
TRIO = Foreign(
    "hypercorn",
    TESTED,
    _BOTH
    | {
        "hypercorn.trio.tcp_server:TCPServer": f"{_SERVER} +stream",
        "hypercorn.trio.worker_context:WorkerContext": "sleep terminated",
    },
)
READER = Foreign(
    PYTHON,
    ("3.11", "3.14"),
    {
        "asyncio.streams:StreamReader": "_buffer _waiter",
        "asyncio.streams:StreamWriter": "+close",
    },
)

ON_ASYNCIO: tuple[Foreign, ...] = (ASYNCIO, H2, READER)
ON_TRIO: tuple[Foreign, ...] = (TRIO, H2)
"""All that is used in either flavour, beside `CONFIG`; hypercorn is the first."""
