"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)` in place of `aiohttp.web.run_app(app)`."""

from __future__ import annotations

import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web

from ..asyncio.guards import LEAVING
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..asyncio.serve import loop_factory
from ..config.settings import ReaperConfig
from ..policy import Phase
from . import polled
from .configured import advertised, kept_alive

NEVER = 1e8
"""Seconds; aiohttp's own keep-alive, where ours counts."""


def phase_of(transport: Any) -> Phase:
    """What the connection of aiohttp's *transport* waits for."""
    handler = transport.get_protocol()
    if getattr(handler, "_payload_parser", None) is not None:
        return Phase.TUNNEL  # since its 101, whatever was asked for before
    request = getattr(handler, "_current_request", None)
    if request is None:
        answering = getattr(handler, "_request_in_progress", False) or getattr(
            handler, "_messages", None
        )
        return Phase.IN_FLIGHT if answering else Phase.KEEP_ALIVE
    return Phase.IN_FLIGHT if request.content.is_eof() or not transport.is_reading() else Phase.BODY


def guard(server: Callable[[], Any], *, reaper: AsyncioReaper | None = None) -> Callable[[], Any]:
    """Guard `AppRunner.server`:
    `loop.create_server(reaper.aiohttp.guard(runner.server), host, port)`.

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
        options: As there, but for `loop`. A `keepalive_timeout` holds where *config* leaves the
            default `keep_alive`.
    Raises:
        ConfigError: there is no *config*, and the one found cannot be used.
    """
    settings = ReaperConfig.load(os.environ.get("REAPER_CONFIG")) if config is None else config
    settings = kept_alive(settings, options.get("keepalive_timeout"))
    # aiohttp's own timer counts what the process stood still for, and fires before what came
    # meanwhile is read.
    options["keepalive_timeout"] = NEVER

    def guarded(server: Callable[[], Any]) -> Callable[[], Any]:
        return guard(server, reaper=reaper_of(config=settings))

    seconds = advertised(settings)

    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        if LEAVING and request.transport in LEAVING:
            response.force_close()
            response.headers["Connection"] = "close"
        elif seconds and response.keep_alive and response.status != HTTPStatus.SWITCHING_PROTOCOLS:
            response.headers.setdefault("Keep-Alive", f"timeout={seconds}")

    app.on_response_prepare.append(prepare)
    make = loop_factory(wrap=guarded, config=settings)
    web.run_app(app, loop=make(), **options)
