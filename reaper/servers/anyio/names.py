"""The names of anyio that are used here although nobody has promised them, and the
versions that the tests ran.
"""

from __future__ import annotations

from ...foreign import Foreign

ANYIO = Foreign(
    "anyio",
    ("4.9.0", "4.16.0"),
    {
        "anyio._core._sockets:": "=create_tcp_listener",
        "anyio._core._synchronization:ResourceGuard": "_guarded",
        "anyio.streams.stapled:MultiListener": "listeners",
        "anyio._backends._asyncio:SocketStream": "_protocol _receive_guard _transport",
        "anyio._backends._asyncio:TCPSocketListener": "=accept extra",
    },
)

ALL: tuple[Foreign, ...] = (ANYIO,)
