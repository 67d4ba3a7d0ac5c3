"""The names of Sanic that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

TESTED = ("25.12.1", "25.12.1")

HTTP = Foreign(
    "sanic",
    TESTED,
    {
        "sanic.http.constants:Stage": "HANDLER IDLE REQUEST",
        "sanic.http.http1:Http": """
            +response_func http1_response_header keep_alive recv_buffer request_body request_bytes_left
            stage
        """,
        "sanic.server.protocols.http_protocol:HttpProtocol": "_http =close_if_idle loop",
    },
)
WEBSOCKET = Foreign(
    "sanic",
    TESTED,
    {"sanic.server.protocols.websocket_protocol:WebSocketProtocol": "websocket"},
)
