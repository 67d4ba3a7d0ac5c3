"""What `reaper run` changes in tornado: each stream learns which request it serves."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ..guest import Visit, after, around


def stopping(module: ModuleType, visit: Visit) -> None:
    """Have the last answers of each server that stops say so, and its connections wait
    for a request that is on its way.
    """
    from tornado.tcpserver import TCPServer

    from .phases import connections, rest, tell_last

    @after(TCPServer, "stop")
    def told(_result: None, server: Any) -> None:
        tell_last(server)

    @around(module.HTTPServer, "close_all_connections")
    def gently(close: Any) -> Any:
        async def instead(server: Any) -> None:
            if connections(server):
                tell_last(server)
                await rest(server, visit.host.load().timeouts.drain_idle)
            await close(server)

        return instead


def change(module: ModuleType, visit: Visit) -> None:
    """Guard every connection that a server reads requests from."""
    from tornado.tcpserver import TCPServer

    from ...driver.served import tried
    from .phases import note

    @after(module.HTTP1Connection, "__init__")
    def noted(
        _result: None, conn: Any, stream: Any, is_client: bool, *_others: Any, **_options: Any
    ) -> None:
        if not is_client:
            tried(note, conn, stream)

    @after(TCPServer, "add_sockets")
    def told(_result: None, _server: Any, sockets: Iterable[Any]) -> None:
        visit.listens(sockets)
