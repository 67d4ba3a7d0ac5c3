"""What `reaper run` changes for Sanic: the factory that it gives asyncio."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..factories import on_loops
from ..guest import Visit


def change(module: ModuleType, visit: Visit) -> None:
    """Guard the connections of every `HttpProtocol`."""

    def means(factory: Any) -> bool:
        made = getattr(factory, "func", factory)
        return isinstance(made, type) and issubclass(made, module.HttpProtocol)

    def guard(factory: Any) -> Any:
        from ...asyncio.guards import guard_server
        from ...asyncio.reaper import reaper_of
        from ..configured import settings
        from .phases import Sanic

        reaper = reaper_of(config=settings())
        return guard_server(factory, Sanic, lambda: reaper)

    on_loops(means, guard, visit)
