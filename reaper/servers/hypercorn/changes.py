"""What `reaper run` changes in hypercorn: the method that serves each connection."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from ..factories import on_loops
from ..guest import Visit, after, around

OWN_HANDSHAKE = 60
"""Seconds; hypercorn's default of `ssl_handshake_timeout`."""

ASYNCIO, TRIO = "hypercorn", "hypercorn-trio"
"""The kinds of the card."""


def on_asyncio(module: ModuleType, visit: Visit) -> None:
    """Guard every connection of hypercorn on asyncio."""
    from .phases import bounded, bounded_at_a_stop, guarded_run

    around(module.TCPServer, "run")(guarded_run)
    around(module.TCPServer, "_close")(bounded)
    _in_both(module, visit, ASYNCIO)
    around(module.TCPServer, "_initiate_server_close")(bounded_at_a_stop)
    if visit.host.load().timeouts.handshake:
        on_loops(is_ours, lambda factory: factory, visit, says=False, handshake=OWN_HANDSHAKE)


def is_ours(factory: Any) -> bool:
    """Whether *factory* is what `asyncio.start_server` makes for hypercorn."""
    if getattr(factory, "__module__", "") != "asyncio.streams":
        return False
    called = inspect.getclosurevars(factory).nonlocals.get("client_connected_cb")
    return getattr(called, "__module__", "") == "hypercorn.asyncio.run"


def on_trio(module: ModuleType, visit: Visit) -> None:
    """Guard every connection of hypercorn on trio."""
    from .trio import guarded_run

    around(module.TCPServer, "run")(guarded_run)
    _in_both(module, visit, TRIO)


def _in_both(module: ModuleType, visit: Visit, kind: str) -> None:
    """Make the changes that asyncio and trio need alike."""
    from hypercorn.config import Config

    from .application import hear, hint
    from .ends import closed, read, rest
    from .http2 import close, guard

    around(module.TCPServer, "_initiate_server_close")(close)
    around(module.TCPServer, "_close")(closed)
    around(module.TCPServer, "_read_data")(read)
    around(module.TCPServer, "_idle_timeout")(rest)
    guard(around)
    hint(around, visit.host.load())
    if visit.host.load().timeouts.abandoned:
        hear(around)

    if hasattr(Config.create_sockets, "__wrapped__"):
        return  # the other flavour has wrapped it

    @after(Config, "create_sockets")
    def told(sockets: Any, config: Any, *_: Any) -> None:
        found = [*sockets.secure_sockets, *sockets.insecure_sockets]
        visit.listens(found, kind, config.keep_alive_timeout)
