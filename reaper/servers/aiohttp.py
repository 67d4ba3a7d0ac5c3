"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)` in place of `aiohttp.web.run_app(app)`.

The rule of this module: *aiohttp is asked whose turn it is*: whether it has a request, and the whole of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ..asyncio.loops import default_loop, loop_factory
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..config.settings import ReaperConfig
from ..policy import Phase
from . import polled

NAMES = ("_current_request",)
"""The private names of aiohttp's that are used here, of `aiohttp.web_protocol.RequestHandler`."""


def phase_of(transport: Any) -> Phase:
    """What the connection of aiohttp's *transport* waits for."""
    request = getattr(transport.get_protocol(), "_current_request", None)
    if request is None:
        return Phase.KEEP_ALIVE
    if request.headers.get("upgrade", "").lower() == "websocket":
        return Phase.TUNNEL
    return Phase.IN_FLIGHT if request.content.is_eof() or not transport.is_reading() else Phase.BODY


def guard(server: Callable[[], Any], *, reaper: AsyncioReaper | None = None) -> Callable[[], Any]:
    """Guard `AppRunner.server`: `loop.create_server(reaper.aiohttp.guard(runner.server), host, port)`.

    Args:
        server: After `await runner.setup()`.
        reaper: Watches, by its config's `timeouts`; None: the loop's own.
    """
    return polled.guard(server, phase_of, reaper=reaper)


def run_app(app: Any, *, config: ReaperConfig | None = None, **options: Any) -> None:
    """`aiohttp.web.run_app` with guarded connections.

    Args:
        app: As there.
        config: None: the file that REAPER_CONFIG names, and the variables REAPER_*.
        options: As there, but for `loop`. `timeouts.keep_alive` takes the place of `keepalive_timeout`, unless that
            is given.
    Raises:
        ConfigError: there is no *config*, and the one found cannot be used.
    """
    settings = ReaperConfig.load(os.environ.get("REAPER_CONFIG")) if config is None else config
    if "keepalive_timeout" not in options and settings.timeouts.keep_alive:
        options["keepalive_timeout"] = 2 * settings.timeouts.keep_alive
    wrap = functools.partial(_guarded_by, settings)
    make = loop_factory(handshake=settings.timeouts.handshake, base=default_loop(), wrap=wrap)
    web.run_app(app, loop=make(), **options)


def _guarded_by(settings: ReaperConfig, server: Callable[[], Any]) -> Callable[[], Any]:
    return guard(server, reaper=reaper_of(config=settings))
