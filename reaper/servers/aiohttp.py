"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)` instead of aiohttp's `web.run_app(app)`.

The rule of this module: *aiohttp is asked, not told*. When a connection is due, the fields of its
`RequestHandler` say what it waits for. A field that is missing reads as None or False, and the
connection then counts as kept alive.
"""

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
"""Seconds; the keep-alive that aiohttp is given where ours is in force."""


def phase_of(transport: Any) -> Phase:
    """What the connection of aiohttp's *transport* waits for."""
    handler = transport.get_protocol()
    if getattr(handler, "_payload_parser", None) is not None:
        return Phase.TUNNEL  # since the answer 101, whatever was asked for before
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
        server: The attribute, which exists after `await runner.setup()`.
        reaper: Watches the connections, by its config's `timeouts`; None: the loop's own.
    """
    return polled.guard(server, phase_of, reaper=reaper)


def run_app(app: Any, *, config: ReaperConfig | None = None, **options: Any) -> None:
    """`aiohttp.web.run_app` with guarded connections.

    Args:
        app: As in `aiohttp.web.run_app`.
        config: The settings in force; None: those of the file that REAPER_CONFIG names and of the
            variables REAPER_*.
        options: As in `aiohttp.web.run_app`, except `loop`. A `keepalive_timeout` holds where
            *config* leaves `keep_alive` at its default.
    Raises:
        ConfigError: there is no *config*, and the file or a variable cannot be used.
    """
    settings = ReaperConfig.load(os.environ.get("REAPER_CONFIG")) if config is None else config
    settings = kept_alive(settings, options.get("keepalive_timeout"))
    # aiohttp's own timer counts the seconds in which the process stood still, and fires before the
    # bytes are read that came meanwhile.
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
