"""Streams that end when the server stops: an ASGI application around the application of a server.

The rule of this module: *who is told can still speak*. A response that is a stream never ends by
itself, so a stop would wait for it until the drain is over, and then cut it. Here its application
receives `http.disconnect` when the server is told to stop, and can go on sending. What has not
ended `timeouts.drain_streams` later is ended for it: the last chunk is sent, and its task cancelled.
So the client sees a whole response, and no reset.

Some frameworks cancel a stream when it receives that, and it cannot speak any more. So a program that
asks `reaper.stopping()` is left alone first: its streams are told when `ALONE` of `drain_streams` is
over, and have the rest of it. The rule is for all streams of a loop, for nobody knows by which
of them the program has asked.

A WebSocket is told likewise where the server does not do it: it is closed with 1012, its turn lying in
`timeouts.drain_window`.

A response is a stream if its content type is in `server.streams`, or if the application says so in
`scope["extensions"]["reaper"]["stream"]`, True or False, before the response begins. Nothing else
is one: a download takes as long as it takes.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, ClassVar

from ..config.settings import ReaperConfig
from .goodbye import program_asks

App = Callable[..., Any]

EXTENSION = "reaper"
"""The key of the dict in `scope["extensions"]` in which an application says what its response is."""

ALONE = 0.75
"""The share of `timeouts.drain_streams` in which the streams of a program that asks
`reaper.stopping()` can end by themselves before they are told.
"""

PER_SECOND = 100
"""Turns in a second of `timeouts.drain_window`; the WebSockets of one turn are told together."""

MOST_TYPES = 100
"""Content types that are known; then all are forgotten."""


class Streams:
    """The application of one server, whose streams can be told to end.

    Args:
        app: The application.
        config: `server.streams` says which content types are streams, `timeouts.drain_window` in
            how many seconds WebSockets have their turns.
        talks: Whether WebSockets are told here; otherwise the server does that.
    Attributes:
        app: The application.
        seconds: Once the streams were told: how long each of them has; None: not yet.
    """

    def __init__(self, app: App, config: ReaperConfig, *, talks: bool = False) -> None:
        self.app: App = app
        self._talks = talks
        self._window = config.timeouts.drain_window
        self.seconds: float | None = None
        self._types = frozenset(config.server.streams.lower().encode().split())
        self._known: dict[bytes, bool] = {}  # content types that were looked up
        self._open: dict[Exchange, None] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if scope["type"] == "http":
            return Exchange(self, scope, receive, send).run()
        if scope["type"] == "websocket" and self._talks:
            return Talk(self, scope, receive, send).run()
        return self.app(scope, receive, send)

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._open)

    def stop(self, seconds: float) -> None:
        """Tell all streams and WebSockets that the server stops. A stream is ended *seconds* from
        now, one that begins later *seconds* after that. Does nothing if that was done before, or if
        *seconds* is 0.

        To be called within the running loop.
        """
        if not seconds or self.seconds is not None:
            return
        self.seconds = seconds
        streams: list[Exchange] = []
        turns: defaultdict[int, list[Exchange]] = defaultdict(list)
        for exchange in self._open:
            if isinstance(exchange, Talk):
                turns[int(random.random() * self._window * PER_SECOND)].append(exchange)
            else:
                streams.append(exchange)
        self._let_end(streams, seconds)
        for turn, talks in turns.items():
            self._later(turn / PER_SECOND, self._tell, talks, 0.0)

    def _let_end(self, streams: list[Exchange], seconds: float) -> None:
        """Tell *streams*, so that they have ended in *seconds*."""
        alone = ALONE * seconds if program_asks() else 0.0
        if alone:
            self._later(alone, self._tell, streams, seconds - alone)
        else:
            self._tell(streams, seconds)

    def _tell(self, exchanges: list[Exchange], seconds: float) -> None:
        for exchange in exchanges:
            if exchange in self._open:
                exchange.tell()
        # Never in this pass of the loop: who is told and returns at once closes by itself, and two
        # who close would get in each other's way.
        self._later(seconds, self._end, exchanges)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def _end(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            if exchange in self._open:
                self._start(exchange.end())

    def _start(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def is_stream(self, said: object, headers: Any) -> bool:
        """Whether the response with *headers* is a stream; *said*: what its application says, None:
        nothing.
        """
        if said is not None:
            return bool(said)
        for name, value in headers:
            if len(name) == CONTENT_TYPE and name.lower() == b"content-type":
                known = self._known.get(value)
                return self._look_up(bytes(value)) if known is None else known
        return False

    def _look_up(self, value: bytes) -> bool:
        """Whether a response of this content type is a stream."""
        if len(self._known) >= MOST_TYPES:  # a boundary or a charset may differ every time
            self._known.clear()
        found = value.partition(b";")[0].strip().lower() in self._types
        self._known[value] = found
        return found

    def begun(self, exchange: Exchange) -> None:
        """The response of *exchange* is a stream, and begins."""
        self._open[exchange] = None
        if self.seconds is not None:
            self._let_end([exchange], self.seconds)

    def over(self, exchange: Exchange) -> None:
        """The response of *exchange* is complete, or its application has returned."""
        self._open.pop(exchange, None)


CONTENT_TYPE = len(b"content-type")

BEFORE, ORDINARY, STREAM, TOLD, COMPLETE = range(5)
"""What an exchange is: its response has not begun; is none that ends never; is a stream; is a stream
that was told to end; is a stream that is complete.
"""


class Exchange:
    """One request, and its response.

    There is one for each request of a server, so the requests whose response is no stream pay for
    it. Count the instructions of an exchange before and after a change.

    Args:
        streams: Of the server.
        scope, receive, send: As an ASGI application is called with them.
    """

    GONE: ClassVar[dict[str, Any]] = {"type": "http.disconnect"}
    """What the application receives when it is told."""
    LAST: ClassVar[dict[str, Any]] = {
        "type": "http.response.body",
        "body": b"",
        "more_body": False,
    }
    """What ends the response."""

    __slots__ = (
        *("_cancelled", "_ending", "_receive", "_said", "_scope", "_send", "_state"),
        *("_streams", "_task", "_waits", "_woken"),
    )

    def __init__(self, streams: Streams, scope: Any, receive: Any, send: Any) -> None:
        self._streams = streams
        self._scope = scope
        self._receive = receive
        self._send = send
        self._state = BEFORE
        self._waits: Any = None  # the future that `receive` waits for
        self._woken: bool  # that future was cancelled by us; `receive` sets it first
        self._ending: Any  # on trio: the scope in which the end of the response is sent
        self._cancelled = False
        self._task: asyncio.Task[Any] | None = None
        self._said: dict[str, Any] = {}
        given = scope.get("extensions")
        scope["extensions"] = {EXTENSION: self._said, **given} if given else {EXTENSION: self._said}

    async def run(self) -> Any:
        """Call the application. When it returns, a stream that was told is completed."""
        self._task = asyncio.current_task()
        try:
            return await self._streams.app(self._scope, self.receive, self.send)
        except asyncio.CancelledError:
            if not self.has_cancelled():
                raise
            return None
        finally:
            self._task = None
            if self._state >= STREAM:
                await self.returned()

    def has_cancelled(self) -> bool:
        """Whether it was this exchange, and nobody else, that cancelled the application."""
        return self._cancelled and self._task is not None and not self._task.uncancel()

    async def returned(self) -> None:
        """The application, whose response is a stream, has returned."""
        self._task = None
        if self._state == TOLD:
            await self._finish()
        self._streams.over(self)

    async def receive(self) -> Any:
        """What the server gives; `http.disconnect` once a stream was told to end."""
        if self._state >= TOLD:
            return self.GONE
        self._woken = False
        return await self._unless_told(self._receive())

    @types.coroutine
    def _unless_told(self, receiving: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The result of *receiving*, which is driven by hand: so `tell` can end the waiting, and no
        task has to be made for that.
        """
        resume: Callable[[Any], Any] = receiving.send
        given: Any = None
        while True:
            try:
                self._waits = resume(given)
            except StopIteration as result:
                self._waits = None
                return result.value
            try:
                given = yield self._waits
                resume = receiving.send
            except BaseException as error:
                if not self._woken or self._is_cancelled():
                    given, resume = error, receiving.throw
                    continue
            if self._state >= TOLD:
                self._waits = None
                receiving.close()
                return self.GONE

    def _is_cancelled(self) -> bool:
        """Whether the task that receives was cancelled itself, and not only what it waits for."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def send(self, message: Any) -> Any:
        """Send *message*; return what to await. Before the response begins, and while it is a
        stream, the message is looked at.
        """
        state = self._state
        if state != ORDINARY:
            if state == COMPLETE:
                return _nothing()
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                if not isinstance(headers, (list, tuple)):  # it can be read once only
                    headers = list(headers)
                    message = {**message, "headers": headers}
                if self._streams.is_stream(self._said.get("stream"), headers):
                    self._state = STREAM
                    self._streams.begun(self)
                else:
                    self._state = ORDINARY
            elif state != BEFORE and not message.get("more_body", False):
                self._state = COMPLETE
                self._streams.over(self)
        return self._send(message)

    def tell(self) -> None:
        """Have the application receive `http.disconnect`."""
        self._state = TOLD
        if self._waits is not None:
            self._woken = self._waits.cancel()

    async def end(self) -> None:
        """Complete the response, then cancel the application."""
        await self._finish()
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def _finish(self) -> None:
        if self._state != COMPLETE:
            self._state = COMPLETE
            self._streams.over(self)
            with suppress(Exception):  # the client is gone, or a length was promised
                await self._send(self.LAST)


class Talk(Exchange):
    """One WebSocket."""

    RESTARTS = 1012  # RFC 6455's registry: the server restarts, and the client may come back
    GONE: ClassVar[dict[str, Any]] = {"type": "websocket.disconnect", "code": RESTARTS}
    LAST: ClassVar[dict[str, Any]] = {"type": "websocket.close", "code": RESTARTS}

    __slots__ = ()

    def send(self, message: Any) -> Any:
        """As `Exchange.send`: a WebSocket is open from `websocket.accept` on."""
        if self._state == COMPLETE:
            return _nothing()
        if message["type"] == "websocket.accept":
            self._state = STREAM
            self._streams.begun(self)
        elif message["type"] == "websocket.close":
            self._state = COMPLETE
            self._streams.over(self)
        return self._send(message)

    async def end(self) -> None:
        """Send the closing frame. The application has been told, and is not cancelled."""
        await self._finish()


async def _nothing() -> None:
    """The response is complete: what comes after it is dropped."""
