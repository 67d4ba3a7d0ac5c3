"""What `reaper run` changes in tornado: each stream learns which request it serves."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ..guest import Visit, after


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
