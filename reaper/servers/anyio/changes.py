"""What `reaper run` changes for anyio: the TCP listeners that a program makes.

anyio is a library: most programs that import it never listen by it. So one public
function of anyio is wrapped, and the private names are looked up when the program calls
it.
"""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

from ..guest import Visit, around


def change(module: ModuleType, visit: Visit) -> None:
    """Guard what the listeners of `create_tcp_listener` accept, on asyncio."""

    @around(module, "create_tcp_listener")
    def meeting(create: Any) -> Any:
        async def instead(*arguments: Any, **options: Any) -> Any:
            visit.serves()
            made = await create(*arguments, **options)
            if not _on_asyncio():
                visit.left_alone("its streams are trio's", " on trio")
            elif visit.fits():
                _guard(made.listeners, visit)
            return made

        return instead


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _guard(listeners: Any, visit: Visit) -> None:
    from anyio.abc import SocketAttribute

    from .phases import note

    for each in listeners:
        note(each)
    visit.listens([each.extra(SocketAttribute.raw_socket) for each in listeners])
