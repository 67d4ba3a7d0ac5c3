"""What `reaper run` changes for aiohttp: its factory meets asyncio's loop."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

from ..factories import on_loops
from ..guest import Guest, Visit, after
from .names import ALL


def change(module: ModuleType, visit: Visit) -> None:
    """Guard the connections of every `Server`, and have the streams of every application told when
    its server stops.
    """

    def guard(factory: Any) -> Any:
        from ...asyncio.reaper import reaper_of
        from ..configured import settings
        from .server import guard as guarded

        return guarded(factory, reaper=reaper_of(config=settings()))

    on_loops(lambda factory: isinstance(factory, module.Server), guard, visit)

    @after(module.AppRunner, "__init__")
    def told(_: None, runner: Any, app: Any, *__: Any, **___: Any) -> None:
        from . import server, streams

        config = visit.host.load()
        if runner._shutdown_timeout == server.OWN_GRACE:
            runner._shutdown_timeout = config.timeouts.drain
        with suppress(RuntimeError):  # another runner has started the application
            streams.end_streams(app, config)
            if config.timeouts.max_age:
                server.announce_ends(app)


GUESTS: tuple[Guest, ...] = (Guest(ALL, "aiohttp.web_runner", change),)  # it imports the others
