"""The server of websockets, guarded:
`serve(..., create_connection=reaper.websockets.connection(idle=300))`.

Stability: public.
"""

from __future__ import annotations

from .errors import needs

with needs("reaper.websockets", "websockets"):
    from .servers.websockets.connection import GuardedConnection, connection

__all__ = ["connection", "GuardedConnection"]
