"""hypercorn on trio: its streams and WebSockets are told when it stops, as
`servers.streams` tells those on asyncio, and requests are cancelled whose clients are
gone, as `servers.abandoned` does.

One rule: *no failure in here may end the run*. trio ends the whole run when a task
fails that no nursery of the program has started.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import trio

from ...config.settings import ReaperConfig
from ...driver.driver import Driver
from ...driver.served import end_handshakes, handshake_grace
from ...trio.reaper import TrioReaper
from ..abandoned import Link, Request, Requests
from ..pings import Pings, TaskPings
from ..streams import STREAM, TOLD, Exchange, Streams, Talk
from .application import LINK, is_of, stop, streams_of

_WAITING: weakref.WeakSet[Any] = weakref.WeakSet()
"""hypercorn's contexts that have a task waiting for their end."""

ENDS = 1.0
"""Seconds that hypercorn has to end a response once it has said that the client is
gone. It does not wait for the client then, and needs a few passes of the loop.
"""


class TrioStreams(Streams):
    """As `Streams`, in a run of trio."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if scope["type"] == "http":
            return TrioExchange(self, scope, receive, send).run()
        if scope["type"] == "websocket" and self._talks:
            return TrioTalk(self, scope, receive, send).run()
        return self.app(scope, receive, send)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        trio.lowlevel.spawn_system_task(_after, seconds, call, *arguments)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        trio.lowlevel.spawn_system_task(_run, work)

    def event(self) -> Any:
        return trio.Event()

    def _pings(self, config: ReaperConfig, driver: Driver) -> Pings:
        return TrioPings(self, config, driver)


class TrioPings(TaskPings):
    """As `TaskPings`, in a run of trio."""

    async def rests(self) -> None:
        await trio.lowlevel.checkpoint()


async def _run(work: Coroutine[Any, Any, None]) -> None:
    await work


async def _after(seconds: float, call: Callable[..., None], *arguments: Any) -> None:
    await trio.sleep(seconds)
    call(*arguments)


class TrioExchange(Exchange):
    """As `Exchange`, with cancel scopes around the application and its waiting."""

    __slots__ = ()

    async def run(self) -> Any:
        """Call the application. When it returns, a stream that was told is
        completed.
        """
        running: Any = trio.CancelScope()
        self._task = running
        self._ending = None
        if self._streams.turns:
            self.take_turn()
        try:
            with running:
                return await self._streams.app(self._scope, self.receive, self.send)
        finally:
            self._task = None
            if self._state >= STREAM:
                await self.returned()

    async def receive(self) -> Any:
        """Receive from the server; `http.disconnect` once a stream was told to end.

        hypercorn also sends that by itself while the application is sending the end of
        its response. Starlette then cancels the task that sends. The connection would
        stay open, with nobody left to close it. So from then on the end may take `ENDS`
        without being cut.
        """
        message: Any = self.GONE
        if self._state < TOLD:
            with trio.CancelScope() as waiting:
                self._waits = waiting
                try:
                    message = await self._receive()
                finally:
                    self._waits = None
        ending: Any = self._ending
        if ending is not None and message["type"] == self.GONE["type"]:
            ending.shield = True
            ending.deadline = trio.current_time() + ENDS
        return message

    def send(self, message: Any) -> Any:
        """As `Exchange.send`."""
        sending = super().send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            return self._to_the_end(sending)
        return sending

    async def _to_the_end(self, sending: Awaitable[Any]) -> Any:
        with trio.CancelScope() as ending:
            self._ending = ending
            try:
                return await sending
            finally:
                self._ending = None

    def tell(self) -> None:
        self._state = TOLD
        if self._waits is not None:
            self._waits.cancel()

    async def end(self) -> None:
        with suppress(Exception):
            await self._finish()
        running: Any = self._task
        if running is not None:
            running.cancel()


class TrioTalk(TrioExchange, Talk):
    """As `Talk`, in a run of trio. `end` does not cancel the application."""

    __slots__ = ()

    async def end(self) -> None:
        with suppress(Exception):
            await self._finish()


class TrioRequest(Request, TrioExchange):
    """One request that can be cancelled."""

    __slots__ = ()

    def _was_caught(self) -> None:
        """Does nothing: a scope that has ended cancels nothing more."""


class TrioRequests(Requests, TrioStreams):
    """As `Requests`, in a run of trio."""

    KIND: ClassVar[type[Request]] = TrioRequest


def stand_around(
    server: Any,
    reaper: TrioReaper,
    link: Callable[[], Link] | None,
) -> None:
    """Wrap the application of *server*, as `application.stand_around` does, in a run of
    trio. Call it for every connection: the task that waits for the stop begins with the
    first one of a `WorkerContext`.

    Args:
        link: Makes the link of a request; None with TLS.
    """
    config = reaper.config
    streams = streams_of(server, config, reaper.driver, TrioStreams, TrioRequests, never=math.inf)
    if link is not None:
        setattr(server, LINK, link)
    if server.context not in _WAITING:
        _WAITING.add(server.context)
        trio.lowlevel.spawn_system_task(_stop, server.context, streams, reaper)


async def _stop(context: Any, streams: Streams | None, reaper: TrioReaper) -> None:
    """As `stop`; afterwards end the handshakes."""
    await stop(context, streams, reaper.driver)
    await trio.sleep(handshake_grace(reaper.config.timeouts))
    end_handshakes(reaper, partial(is_of, context))
