"""What `reaper run` changes for aiohttp: the factory that it gives asyncio's loop is
guarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from ...config.durations import NEVER
from ..factories import on_loops
from ..guest import Visit, after

OWN = "_reaper_own_keep_alive"
"""The attribute of a `Server` that keeps what `own_keep_alive` has found."""

DEFAULTS = (75.0, 3630.0)
"""Seconds: the keep-alive of `run_app` and that of `AppRunner`, where the program sets
none.
"""


def own_keep_alive(server: Any) -> float | None:
    """The keep-alive that the program has set for *server*, a `Server`, in seconds;
    None if it has set none.

    aiohttp's own timer is switched off, because it also counts the time in which the
    process stood still. Ours is in force.
    """
    if not hasattr(server, OWN):
        setattr(server, OWN, _set(server._kwargs))
        server._kwargs["keepalive_timeout"] = NEVER
    found: float | None = getattr(server, OWN)
    return found


def _set(options: Mapping[str, Any]) -> float | None:
    """The keep-alive that the program has set in *options*; None: none, or no number,
    of which aiohttp makes what it can.
    """
    named = options.get("keepalive_timeout")
    return named if isinstance(named, int | float) and named not in DEFAULTS else None


def change(module: ModuleType, visit: Visit) -> None:
    """Guard the connections of every `Server`, and have the streams of every
    application told when its server stops, and its answers name the keep-alive.
    """

    def guard(factory: Any) -> Any:
        from ...asyncio.reaper import reaper_of
        from ..configured import kept_alive, settings
        from .server import guard as guarded

        config = kept_alive(settings(), own_keep_alive(factory))
        return guarded(factory, reaper=reaper_of(config=config))

    on_loops(lambda factory: isinstance(factory, module.Server), guard, visit, own_keep_alive)

    @after(module.AppRunner, "__init__")
    def told(_result: None, runner: Any, app: Any, *_others: Any, **options: Any) -> None:
        from . import server

        config = visit.host.load()
        if runner._shutdown_timeout == server.OWN_GRACE:
            runner._shutdown_timeout = config.timeouts.drain
        with suppress(RuntimeError):  # another runner has started the application
            server.prepare_answers(app, config, _set(options))
