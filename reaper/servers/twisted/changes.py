"""What `reaper run` changes in Twisted: the class of its connections."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..guest import Visit, after


def change(module: ModuleType, visit: Visit) -> None:
    """Guard every connection that Twisted accepts on a loop of asyncio's."""
    from ...driver.served import tried
    from .phases import note

    def on_asyncio(which: Any) -> bool:
        """Whether the reactor of *which* runs on asyncio; Twisted's default reactor has
        no loop to guard by.
        """
        return hasattr(which.reactor, "_asyncioEventloop")

    @after(module.Server, "__init__")
    def met(_result: None, transport: Any, *_others: Any, **_options: Any) -> None:
        if on_asyncio(transport):
            tried(note, transport)

    @after(module.Port, "startListening")
    def told(_: None, port: Any) -> None:
        if on_asyncio(port):
            visit.listens([port.socket])
