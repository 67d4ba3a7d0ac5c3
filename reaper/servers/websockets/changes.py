"""What `reaper run` changes in websockets. Each server gets the guarded class by
`create_connection=`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..guest import Visit, after, around


def change(module: ModuleType, visit: Visit) -> None:
    """Have `serve` make guarded connections, and each server say on which sockets it
    listens.
    """
    # Until version 16 `serve` is a class, whose objects are awaited; then it is a
    # function.
    kind, name = (module.serve, "__init__") if isinstance(module.serve, type) else (module, "serve")

    @around(kind, name)
    def serve(method: Any) -> Any:
        def instead(*arguments: Any, **options: Any) -> Any:
            if options.get("create_connection") is None:
                options["create_connection"] = _configured()
            return method(*arguments, **options)

        return instead

    # The server is met where it gets its sockets: 17 awaits them, 14 to 16 wrap
    # asyncio's server.
    if hasattr(module.Server, "wrap"):

        @after(module.Server, "wrap")
        def wrapped(_result: None, _server: Any, inner: Any) -> None:
            visit.listens(inner.sockets)

    else:

        @around(module.Server, "_await")
        def awaited(method: Any) -> Any:
            async def instead(self: Any) -> Any:
                result = await method(self)
                visit.listens(self.sockets)
                return result

            return instead


def _configured() -> type[Any]:
    """The guarded class, by the settings of `reaper run` and not by the defaults."""
    from ...asyncio.reaper import reaper_of
    from ..configured import settings
    from .connection import connection

    class Configured(connection()):  # type: ignore[misc]  # made anew for each server
        def connection_made(self, transport: Any) -> None:
            # Of the loop that runs now; there may be none yet in `serve`.
            self.reaper = reaper_of(config=settings)
            super().connection_made(transport)

    return Configured
