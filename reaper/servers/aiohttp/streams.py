"""aiohttp's streams and WebSockets: they are pinged, and told to end, as
`servers.streams` does it at the boundary of ASGI.

The rule of this module: *a response is noticed when it is prepared, and followed by its
own methods*. aiohttp cannot tell a handler anything: `reaper.stopping()` does.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, web

from ...asyncio import transports
from ...asyncio.reaper import AsyncioReaper, reaper_of
from ...config.settings import ReaperConfig
from ...core.lease import Expiry, Lease
from ...core.slices import walk
from ...driver.driver import Driver
from ...policy import lifespan
from ...policy.boundaries import NEW, kind_of
from ...policy.reasons import STREAM_AGE
from ...stops import Turn
from ..goodbye import begin_stopping, take_turn
from ..pings import Pings, Quiet
from ..streams import EXTENSION, are_wanted
from ..turns import ENDS, PER_SECOND, in_turns, note_age

STOP = "end_streams_of"
"""The name of our function among those that aiohttp calls when it stops."""


class Stream:
    """A response that is a stream, from its beginning on. It does not keep the response
    alive.

    Args:
        response: aiohttp's.
        request: What it answers.
        turn: Tells its handler to end; None: the loop does.
    Attributes:
        response: Returns the response; None once it is freed.
        quiet: Follows its bytes; None: no ping can be written into it.
        lease: Is due when the stream is too old; None: `stream_age` is off.
    """

    __slots__ = ("__weakref__", "lease", "quiet", "response", "route", "task", "turn")

    def __init__(
        self, response: web.StreamResponse, request: web.Request, turn: Turn | None
    ) -> None:
        self.response: Callable[[], web.StreamResponse | None] = weakref.ref(response)
        self.task: asyncio.Task[Any] | None = request.task
        self.route: str = f"{request.method} {request.path}"
        self.turn: Turn | None = turn
        self.quiet: Quiet | None = None
        self.lease: Lease | None = None

    def is_open(self) -> bool:
        """Whether it has not ended."""
        response: Any = self.response()
        return response is not None and not response._eof_sent

    def over(self) -> None:
        """It has ended."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None


class AppStreams:
    """The streams and the WebSockets of one application.

    When its server is told to stop, a stream is told when its turn has come in
    `timeouts.drain_window`, completed `timeouts.drain_streams` later, and its handler
    cancelled; a WebSocket is closed with 1012 in its turn. A stream that is too old
    ends likewise, and a quiet one is pinged.

    Args:
        config: The settings in force.
        reaper: Returns the reaper of the loop that runs.
    """

    def __init__(self, config: ReaperConfig, reaper: Callable[[], AsyncioReaper]) -> None:
        timeouts = config.timeouts
        self._config = config
        self._reaper = reaper
        self._seconds = timeouts.drain_streams
        self._window = timeouts.drain_window
        self._age = timeouts.stream_age
        self._turns = bool(timeouts.drain_streams and (timeouts.drain_window or self._age))
        self._lines = config.server.stream_ping_lines
        self._types = frozenset(config.server.streams.lower().split())
        self._streams: weakref.WeakKeyDictionary[Any, Stream] = weakref.WeakKeyDictionary()
        self._sockets: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pings: Pings | None = None

    def note(self, request: web.Request, response: web.StreamResponse) -> None:
        """*response*, which is no `web.Response`, begins."""
        if isinstance(response, web.WebSocketResponse):
            self._sockets.add(response)
            return
        said: Any = request.get(EXTENSION)
        said = said if isinstance(said, dict) else {}
        wanted = said.get("stream")
        is_stream = response.content_type in self._types if wanted is None else bool(wanted)
        if not is_stream:
            return
        turn = Turn() if self._turns else None
        if turn is not None:
            turn.own = True
            take_turn(turn)
        stream = self._streams[response] = Stream(response, request, turn)
        self._follow(stream, response, request, said)
        if self._age and said.get("stream_age") is not False:
            self._grow_old(stream)
        set_method(response, "write_eof", partial(self._ends, stream))

    async def _ends(self, stream: Stream, write_eof: Any, *data: Any) -> None:
        """The handler, or aiohttp after it, completes the response."""
        stream.over()
        take_turn(None)  # the next handler of this connection runs in the same task
        if (quiet := stream.quiet) is not None and self._pings is not None:
            while quiet.sends < 0:
                await self._pings.pended(quiet)
            self._pings.over(quiet)
        await write_eof(*data)

    # ---- what is written into them

    def _follow(
        self, stream: Stream, response: web.StreamResponse, request: Any, said: dict[str, Any]
    ) -> None:
        wanted = said.get("stream_ping")
        pinged = bool(self._config.timeouts.stream_ping) if wanted is None else bool(wanted)
        if not pinged and not self._config.server.stream_retry:
            return
        headers = [
            (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in response.headers.items()
        ]
        kind = kind_of(
            request.method, response.status, headers, lines=self._lines, declared=wanted is True
        )
        if kind is None:
            return
        if self._pings is None:
            self._pings = Pings(self, self._config, self._driver)
        quiet = stream.quiet = Quiet(stream, kind, NEW)
        set_method(response, "write", partial(self._writes, quiet))
        self._pings.begin(quiet, pinged=pinged)

    async def _writes(self, quiet: Quiet, write: Any, data: Any) -> None:
        """The handler writes *data*."""

        async def send(message: Any) -> None:
            await write(message["body"])

        message = {"type": "http.response.body", "body": data, "more_body": True}
        if self._pings is None:
            await write(data)
        else:
            await self._pings.goes_on(quiet, send, message)

    @property
    def _driver(self) -> Driver:
        return self._reaper().driver

    def is_over(self, owner: Stream) -> bool:
        """As `Speaker` says."""
        return not owner.is_open()

    def is_blocked(self, owner: Stream) -> bool:
        """As `Speaker` says. If it cannot be seen, it counts as blocked."""
        response: Any = owner.response()
        try:
            request, writer = response._req, response._payload_writer
            transport = request.transport
            written = writer.output_size and writer._compress is None and writer.length is None
            return not written or transport.is_closing() or transports.queued(transport) > 0
        except Exception:
            return True

    async def speak(self, owner: Stream, message: Any) -> None:
        """As `Speaker` says."""
        response = owner.response()
        if response is not None:
            await web.StreamResponse.write(response, message["body"])

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """As `Speaker` says."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def event(self) -> Any:
        """As `Speaker` says."""
        return asyncio.Event()

    # ---- their ends

    async def end_streams_of(self, app: web.Application) -> None:
        """The server is told to stop. This does not wait: next, aiohttp itself waits
        for what is open.
        """
        begin_stopping()
        if not self._seconds:
            return
        later = asyncio.get_running_loop().call_later
        for turn, streams in in_turns(list(self._streams.values()), self._window).items():
            later(turn / PER_SECOND, self._let_end, streams, self._seconds)
        soon = asyncio.get_running_loop().call_soon
        walk(soon, self._sockets, lambda websocket: self.run(self._close(websocket)))

    def _let_end(self, streams: list[Stream], seconds: float) -> None:
        def let(stream: Stream) -> None:
            if stream.is_open() and not (stream.turn is not None and stream.turn.has_come):
                if self._pings is not None:
                    self._pings.retry(stream.quiet)
                if stream.turn is not None:
                    stream.turn.come()
                self.run(self._end(stream, seconds))

        walk(asyncio.get_running_loop().call_soon, streams, let)

    async def _end(self, stream: Stream, seconds: float) -> None:
        await asyncio.sleep(seconds)
        response = stream.response()
        if response is not None and stream.is_open():
            with suppress(Exception):  # the client is gone
                await response.write_eof()
            if stream.task is not None:
                stream.task.cancel()

    def _grow_old(self, stream: Stream) -> None:
        config, driver = self._config, self._driver
        seconds = lifespan(
            self._age, config.limits.max_age_jitter, config.reaper.tick, random.random()
        )
        key = ("stream", driver.next_number())
        reached = partial(self._grew_old, weakref.ref(stream))
        stream.lease = driver.register(key, seconds, reached, reason=STREAM_AGE)
        weakref.finalize(stream, stream.lease.release).atexit = False

    def _grew_old(self, known: weakref.ref[Stream], expiry: Expiry) -> None:
        stream = known()
        if stream is not None and stream.is_open():
            note_age(self._driver.books, stream.route, expiry)
            self._let_end([stream], self._seconds or ENDS)

    async def _close(self, websocket: web.WebSocketResponse) -> None:
        await asyncio.sleep(random.random() * self._window)
        if not websocket.closed:
            await websocket.close(code=WSCloseCode.SERVICE_RESTART)


def set_method(response: Any, name: str, instead: Callable[..., Awaitable[None]]) -> None:
    """Replace the method *name* of *response* by *instead*, which is called with that
    method and the arguments. The response refers to itself by no circle afterwards.
    """
    method = weakref.WeakMethod(getattr(response, name))

    def called(*arguments: Any) -> Awaitable[None]:
        return instead(method(), *arguments)

    setattr(response, name, called)


Note = Callable[[web.Request, web.StreamResponse], None]


def end_streams(app: web.Application, config: ReaperConfig) -> Note | None:
    """Ping and end the streams and WebSockets of *app*, if any setting asks for it;
    what is returned then has to be called with each response that begins, unless it is
    whole: a `web.Response`. None, and nothing is done, the second time. Its
    sub-applications are covered.

    Raises:
        RuntimeError: *app* is frozen; its server runs.
    """
    # The one that is there may be of the copy of this library that the program imports.
    done = any(getattr(each, "__name__", "") == STOP for each in app.on_shutdown)
    if done or not are_wanted(config):
        return None
    streams = AppStreams(config, partial(reaper_of, config=config))
    app.on_shutdown.append(streams.end_streams_of)
    return streams.note
