"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)` instead of aiohttp's `web.run_app(app)`.

The rule of this module: *aiohttp is asked, not told*. When a connection is due, the fields of its
`RequestHandler` say what it waits for. A field that is missing reads as None or False, and the
connection then counts as kept alive.
"""

from __future__ import annotations

import asyncio
import os
import random
import weakref
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from aiohttp import WSCloseCode, web

from ..asyncio.guards import LEAVING
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..asyncio.serve import loop_factory
from ..config.settings import ReaperConfig
from ..policy import Phase
from . import polled
from .configured import advertised, kept_alive
from .goodbye import begin_stopping

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


STOP = "end_streams_of"
"""The name of our function among those that aiohttp calls when it stops."""

OWN_GRACE = 60.0
"""Seconds; aiohttp's default of `shutdown_timeout`."""


class Goodbyes:
    """Ends the streams and the WebSockets of one application when its server is told to stop.

    aiohttp has no message that tells a handler: `reaper.stopping()` does. A stream is completed
    `timeouts.drain_streams` later, and its handler cancelled; a WebSocket is closed with 1012 when
    its turn has come in `timeouts.drain_window`.

    Args:
        config: The settings in force.
    """

    def __init__(self, config: ReaperConfig) -> None:
        self._seconds = config.timeouts.drain_streams
        self._window = config.timeouts.drain_window
        self._types = frozenset(config.server.streams.lower().split())
        self._streams: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._sockets: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, request: web.Request, response: web.StreamResponse) -> None:
        """*response* begins."""
        if isinstance(response, web.WebSocketResponse):
            self._sockets.add(response)
        elif response.content_type in self._types:
            self._streams[response] = request.task

    async def end_streams_of(self, app: web.Application) -> None:
        """The server is told to stop. This does not wait: aiohttp waits for what is open next."""
        begin_stopping()
        for response, handler in list(self._streams.items()):
            self._start(self._end(response, handler))
        for websocket in list(self._sockets):
            self._start(self._close(websocket))

    def _start(self, ending: Any) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, response: web.StreamResponse, handler: asyncio.Task[Any]) -> None:
        await asyncio.sleep(self._seconds)
        if not response._eof_sent:
            with suppress(Exception):  # the client is gone
                await response.write_eof()
            handler.cancel()

    async def _close(self, websocket: web.WebSocketResponse) -> None:
        await asyncio.sleep(random.random() * self._window)
        if not websocket.closed:
            await websocket.close(code=WSCloseCode.SERVICE_RESTART)


def end_streams(app: web.Application, config: ReaperConfig) -> None:
    """Have the streams and WebSockets of *app* told when its server stops, unless
    `timeouts.drain_streams` is off, or that was done before. Its sub-applications are covered.

    Raises:
        RuntimeError: *app* is frozen; its server runs.
    """
    # The one that is there may be of the copy of this library that the program imports.
    done = any(getattr(each, "__name__", "") == STOP for each in app.on_shutdown)
    if config.timeouts.drain_streams and not done:
        goodbyes = Goodbyes(config)

        async def prepare(request: web.Request, response: web.StreamResponse) -> None:
            goodbyes.note(request, response)

        app.on_response_prepare.append(prepare)
        app.on_shutdown.append(goodbyes.end_streams_of)


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
            *config* leaves `keep_alive` at its default; `shutdown_timeout` is `drain` unless given.
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
    options.setdefault("shutdown_timeout", settings.timeouts.drain)

    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        if LEAVING and request.transport in LEAVING:
            response.force_close()
            response.headers["Connection"] = "close"
        elif seconds and response.keep_alive and response.status != HTTPStatus.SWITCHING_PROTOCOLS:
            response.headers.setdefault("Keep-Alive", f"timeout={seconds}")

    app.on_response_prepare.append(prepare)
    end_streams(app, settings)
    make = loop_factory(wrap=guarded, config=settings)
    web.run_app(app, loop=make(), **options)
