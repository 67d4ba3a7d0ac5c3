"""What `reaper run` changes for Sanic: the factory that it gives asyncio."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..factories import on_loops
from ..guest import Visit, around


def change(module: ModuleType, visit: Visit) -> None:
    """Guard each `HttpProtocol`, and tell those of a server that stops."""

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

    @around(module.HttpProtocol, "close_if_idle")
    def gently(close: Any) -> Any:
        from ..configured import settings
        from .phases import stops

        return lambda protocol: stops(protocol, close, settings())
