"""The server of websockets, guarded:
`serve(..., create_connection=reaper.websockets.connection(idle=300))`.

Stability: public.
"""

from __future__ import annotations

from .errors import needs
from .foreign import require
from .servers.websockets.names import ALL

with needs("reaper.websockets", "websockets"):
    import websockets  # noqa: F401

    require("reaper.websockets", ALL)

    from .servers.websockets.connection import GuardedConnection, connection

__all__ = ["connection", "GuardedConnection"]
