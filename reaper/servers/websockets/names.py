"""The names of websockets that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

WEBSOCKETS = Foreign(
    "websockets",
    ("14.0", "17.4"),
    {
        "websockets.asyncio.server:": "=serve",
        "websockets.asyncio.server:Server": "=_await|wrap sockets",
        "websockets.asyncio.server:ServerConnection": """
            close connection_lost connection_made data_received process_event protocol send_data
            state
        """,
        "websockets.frames:Frame": "+data opcode",
        "websockets.protocol:Protocol": "reader state writes",
        "websockets.streams:StreamReader": "buffer",
    },
)

ALL: tuple[Foreign, ...] = (WEBSOCKETS,)
