"""Streams live as long as somebody reads them: an ASGI application around that of a
server.

The rule of this module: *who is told can still speak*. A response that is a stream
never ends by itself, so a stop would wait for it until the drain is over, and then cut
it. Here its application receives `http.disconnect` when the server is told to stop, and
can go on sending. What has not ended `timeouts.drain_streams` later is ended for it:
the last chunk is sent, and its task cancelled. So the client sees a whole response, and
no reset.

With `timeouts.drain_window` streams are told one after the other, evenly over it: the
first at once. Then `reaper.stopping()` is true in each of them at its own instant. A
stream that is `timeouts.stream_age` old is told and ended likewise, with the reason
`stream_age`; and with `server.stream_retry` a client is told first when it may come
back. What keeps a quiet one alive behind a proxy is in `pings`.

Some frameworks cancel a stream when it receives that, and it cannot speak any more. So
a program that asks `reaper.stopping()` is left alone first: its streams are told when
`ALONE` of `drain_streams` is over, and have the rest of it. The rule holds for all
streams of a loop, because the guard cannot tell which of them has asked.

A WebSocket is told likewise where the server does not do it: it is closed with 1012,
its turn lying in `timeouts.drain_window`.

A response is a stream if its content type is in `server.streams`, or if the application
says so in `scope["extensions"]["reaper"]["stream"]`, True or False, before the response
begins. Nothing else is one: a download takes as long as it takes. Beside that
`stream_ping` and `stream_age`, True or False, say for one response whether it is
pinged, and whether it ends at its age.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from ..config.settings import ReaperConfig
from ..core.lease import Expiry, Lease
from ..core.slices import walk
from ..driver import at_work
from ..driver.driver import Driver
from ..errors import printable
from ..policy import lifespan
from ..policy.boundaries import INSIDE, NEW, kind_of
from ..policy.reasons import STREAM_AGE
from ..stops import Turn
from .goodbye import program_asks, take_turn
from .pings import Pings, Quiet
from .turns import ENDS, PER_SECOND, in_turns, note_age

App = Callable[..., Any]

EXTENSION = "reaper"
"""The key of the dict in `scope["extensions"]` in which an application says what its
response is.
"""

ALONE = 0.75
"""The share of `timeouts.drain_streams` in which the streams of a program that asks
`reaper.stopping()` can end by themselves before they are told.
"""

MOST_TYPES = 100
"""Content types that are known; then all are forgotten."""


Blocked = Callable[[Any, Any], bool]
"""Returns whether the client of a request still has to take something, from its
`receive` and `send`.
"""


def is_never_blocked(receive: Any, send: Any) -> bool:
    """Say that the client is not known to be behind."""
    return False


def route_of(scope: Any) -> str:
    """Method and path of the request of *scope*: the path of its route where the
    framework names that in the scope, as FastAPI does.
    """
    path = getattr(scope.get("route"), "path", None)
    return printable(f"{scope['method']} {path or scope['path']}")


def are_wanted(config: ReaperConfig) -> bool:
    """Whether *config* asks for anything that is done for streams, or for requests."""
    timeouts = config.timeouts
    return bool(
        timeouts.drain_streams
        or timeouts.abandoned
        or timeouts.stream_ping
        or timeouts.stream_age
        or at_work.is_wanted()
    )


class Streams:
    """The application of one server, whose streams can be pinged, and told to end.

    Args:
        app: The application.
        config: `server.streams` says which content types are streams,
            `timeouts.drain_window` in how many seconds streams and WebSockets have
            their turns.
        driver: Of the reaper that watches the server's connections; None: streams are
            told to end, and nothing else.
        talks: Whether WebSockets are told here; otherwise the server does that.
        blocked: Whether a client has yet to take something.
        eager: Whether the server writes the headers of a response before its first
            bytes.
    Attributes:
        app: The application.
        seconds: Once the streams were told: how long each of them has; None: not yet.
        watches: Whether streams are looked at when they begin.
        turns: Whether each stream hears of its end at an instant of its own.
        pings: Follows the event streams.
    """

    def __init__(
        self,
        app: App,
        config: ReaperConfig,
        driver: Driver | None = None,
        *,
        talks: bool = False,
        blocked: Blocked = is_never_blocked,
        eager: bool = True,
    ) -> None:
        self.app: App = at_work.marked(app)
        self._talks = talks
        timeouts = config.timeouts
        self._window = timeouts.drain_window
        self.seconds: float | None = None
        self._types = frozenset(config.server.streams.lower().encode().split())
        self._known: dict[bytes, bool] = {}  # content types that were looked up
        self._open: dict[Exchange, None] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._driver = driver
        self._blocked = blocked
        self._begins = NEW if eager else INSIDE
        self._age = timeouts.stream_age if driver is not None else 0.0
        self._ages = partial(
            lifespan, timeouts.stream_age, config.limits.max_age_jitter, config.reaper.tick
        )
        self._has = timeouts.drain_streams or ENDS
        self._leases: dict[Exchange, Lease] = {}
        self._pinged = bool(timeouts.stream_ping)
        self._lines = config.server.stream_ping_lines
        self._retries = bool(config.server.stream_retry)
        self.watches: bool = bool(self._age or self._pinged or self._retries)
        self.turns: bool = bool(timeouts.drain_streams and (timeouts.drain_window or self._age))
        self.pings: Pings | None = None if driver is None else self._pings(config, driver)

    def _pings(self, config: ReaperConfig, driver: Driver) -> Pings:
        return Pings(self, config, driver)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if scope["type"] == "http":
            return Exchange(self, scope, receive, send).run()
        if scope["type"] == "websocket" and self._talks:
            return Talk(self, scope, receive, send).run()
        return self.app(scope, receive, send)

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._open)

    # ---- the end

    def stop(self, seconds: float) -> None:
        """Tell all streams and WebSockets that the server stops: the first at once, all
        within `timeouts.drain_window`. A stream is ended *seconds* after it was told.
        One that begins later is told at once. Does nothing if that was done before, or
        if *seconds* is 0.

        To be called within the running loop.
        """
        if not seconds or self.seconds is not None:
            return
        self.seconds = seconds
        waits = in_turns([each for each in self._open if not isinstance(each, Talk)], self._window)
        self._let_end(waits.pop(0, []), seconds)
        for turn, told in waits.items():
            self._later(turn / PER_SECOND, self._let_end, told, seconds)
        turns: defaultdict[int, list[Exchange]] = defaultdict(list)
        for exchange in self._open:
            if isinstance(exchange, Talk):
                turns[int(random.random() * self._window * PER_SECOND)].append(exchange)
        for turn, talks in turns.items():
            self._later(turn / PER_SECOND, self._tell, talks, 0.0)

    def _let_end(self, streams: list[Exchange], seconds: float) -> None:
        """Tell *streams* to end within *seconds*."""
        streams = [each for each in streams if each in self._open and not each.is_told()]

        def comes(each: Exchange) -> None:
            if each in self._open:
                each.comes()

        self._walk(streams, comes, partial(self._have_come, streams, seconds))

    def _walk(
        self,
        exchanges: list[Exchange],
        act: Callable[[Exchange], object],
        then: Callable[[], object] = lambda: None,
    ) -> None:
        walk(partial(self._later, 0.0), exchanges, act, then)

    def _have_come(self, streams: list[Exchange], seconds: float) -> None:
        alone = ALONE * seconds if program_asks() else 0.0
        if alone:
            self._later(alone, self._tell, streams, seconds - alone)
        else:
            self._tell(streams, seconds)

    def _tell(self, exchanges: list[Exchange], seconds: float) -> None:
        def tell(exchange: Exchange) -> None:
            if exchange in self._open:
                exchange.tell()

        # Never in this pass of the loop: who is told and returns at once closes by
        # itself, and two who close would get in each other's way.
        self._walk(exchanges, tell, lambda: self._later(seconds, self._end, exchanges))

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def _end(self, exchanges: list[Exchange]) -> None:
        def end(exchange: Exchange) -> None:
            if exchange in self._open:
                self.run(exchange.end())

        self._walk(exchanges, end)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _grew_old(self, exchange: Exchange, expiry: Expiry) -> None:
        """The stream of *exchange* has reached its age."""
        self._leases.pop(exchange, None)
        if exchange.is_told() or self._driver is None:
            return
        note_age(self._driver.books, exchange.route(), expiry)
        self._let_end([exchange], self._has)

    # ---- what is a stream

    def is_stream(self, said: object, headers: Any) -> bool:
        """Whether the response with *headers* is a stream. *said* is what its
        application says, or None.
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
        elif self._age and not isinstance(exchange, Talk) and exchange.may_age():
            self._grow_old(exchange)

    def _grow_old(self, exchange: Exchange) -> None:
        driver = self._driver
        if driver is not None:
            key = ("stream", driver.next_number())
            reached = partial(self._grew_old, exchange)
            seconds = self._ages(random.random())
            self._leases[exchange] = driver.register(key, seconds, reached, reason=STREAM_AGE)

    def over(self, exchange: Exchange) -> None:
        """The response of *exchange* is complete, or its application has returned."""
        self._open.pop(exchange, None)
        if self._leases and (lease := self._leases.pop(exchange, None)) is not None:
            lease.release()

    # ---- what is written into it

    def follow(
        self, owner: Any, said: dict[str, Any], method: str, message: Any
    ) -> tuple[Quiet | None, bool]:
        """Follow the bytes of the stream of *owner*, which begins with *message*, if
        pings may be written into it. Returns whether it is pinged.
        """
        wanted = said.get("stream_ping")
        pinged = self._pinged if wanted is None else bool(wanted)
        if self.pings is None or not (pinged or self._retries):
            return None, False
        kind = kind_of(
            method,
            message["status"],
            message.get("headers", ()),
            lines=self._lines,
            declared=wanted is True,
        )
        return None if kind is None else Quiet(owner, kind, self._begins), pinged

    def is_over(self, owner: Any) -> bool:
        """Whether nothing of *owner* can be sent any more."""
        complete: bool = owner.is_complete()
        return complete

    def is_blocked(self, owner: Any) -> bool:
        """Whether the client of *owner* has yet to take something."""
        return self._blocked(owner._receive, owner._send)

    def speak(self, owner: Any, message: Any) -> Awaitable[Any]:
        """Send *message* for *owner*, past its application."""
        sent: Awaitable[Any] = owner._send(message)
        return sent

    def event(self) -> Any:
        """An event of asyncio's."""
        return asyncio.Event()


CONTENT_TYPE = len(b"content-type")

TRAILERS: dict[str, Any] = {"type": "http.response.trailers", "headers": [], "more_trailers": False}
"""What ends a response whose beginning has announced trailers."""

BEFORE, ORDINARY, STREAM, TOLD, COMPLETE = range(5)
"""States of an exchange. Its response has not begun; is an ordinary one; is a stream;
is a stream that was told to end; is a stream that is complete.
"""


class Exchange:
    """One request, and its response.

    There is one for each request of a server, so the requests whose response is no
    stream pay for it. Count the instructions of an exchange before and after a change.

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
        *("_streams", "_task", "_trails", "_turn", "_waits", "_woken", "quiet"),
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
        self._turn: Turn | None = None
        self._trails = False  # trailers come after the body
        self.quiet: Quiet | None = None
        self._said: dict[str, Any] = {}
        given = scope.get("extensions")
        scope["extensions"] = {EXTENSION: self._said, **given} if given else {EXTENSION: self._said}

    async def run(self) -> Any:
        """Call the application. When it returns, a stream that was told is
        completed.
        """
        self._task = asyncio.current_task()
        if self._streams.turns:
            self.take_turn()
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
        """Whether this exchange, and nothing else, cancelled the application."""
        return self._cancelled and self._task is not None and not self._task.uncancel()

    def take_turn(self) -> None:
        """Have `reaper.stopping()` in this task become true at the instant of this
        stream.
        """
        self._turn = Turn()
        take_turn(self._turn)

    async def returned(self) -> None:
        """The application, whose response is a stream, has returned."""
        self._task = None
        if self._turn is not None:
            take_turn(None)  # the task may be that of the connection
        if self._state == TOLD:
            await self._finish()
        self._over()

    def _over(self) -> None:
        self._streams.over(self)
        if (quiet := self.quiet) is not None and self._streams.pings is not None:
            self._streams.pings.over(quiet)

    def route(self) -> str:
        """Method and path, as the log is to name it."""
        return route_of(self._scope)

    def is_told(self) -> bool:
        """Whether it was told, or its instant has come."""
        return self._state >= TOLD or (self._turn is not None and self._turn.has_come)

    def is_complete(self) -> bool:
        """Whether its response is complete."""
        return self._state == COMPLETE

    def may_age(self) -> bool:
        """Whether `stream_age` acts on it."""
        return self._said.get("stream_age") is not False

    def comes(self) -> None:
        """Its turn to end has come: tell the client when to come back, and the
        application that the server stops.
        """
        if (pings := self._streams.pings) is not None:
            pings.retry(self.quiet)
        if self._turn is not None:
            self._turn.come()

    async def receive(self) -> Any:
        """Receive from the server; `http.disconnect` once the stream is told to end."""
        if self._state >= TOLD:
            return self.GONE
        self._woken = False
        return await self._unless_told(self._receive())

    @types.coroutine
    def _unless_told(self, receiving: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Return the result of *receiving*, driven by hand: so `tell` can end the
        waiting without a task.
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
        """Whether the task that receives was cancelled itself, and not only what it
        waits for.
        """
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def send(self, message: Any) -> Any:
        """Send *message*; return what to await. Before the response begins, and while
        it is a stream, the message is looked at.
        """
        state = self._state
        if state != ORDINARY:
            if state == COMPLETE:
                return self._send(message) if self._trails else _nothing()
            if message["type"] == "http.response.start":
                return self._starts(message)
            if state != BEFORE:
                return self._goes_on(message)
        return self._send(message)

    def _starts(self, message: Any) -> Any:
        headers = message.get("headers", ())
        if not isinstance(headers, (list, tuple)):  # it can be read once only
            headers = list(headers)
            message = {**message, "headers": headers}
        streams = self._streams
        if not streams.is_stream(self._said.get("stream"), headers):
            self._state = ORDINARY
            return self._send(message)
        self._state = STREAM
        if self._turn is not None:
            self._turn.own = True
        self._trails = bool(message.get("trailers"))
        if streams.watches or self._said:
            method = self._scope["method"]
            self.quiet, pinged = streams.follow(self, self._said, method, message)
        streams.begun(self)
        if self.quiet is None or streams.pings is None:
            return self._send(message)
        return streams.pings.start(self.quiet, self._send, message, pinged=pinged)

    def _goes_on(self, message: Any) -> Any:
        """Send *message* of a stream that has begun."""
        quiet, pings = self.quiet, self._streams.pings
        self._notice(message)
        if quiet is None or pings is None:
            return self._send(message)
        return pings.goes_on(quiet, self._send, message)

    def _notice(self, message: Any) -> None:
        """*message* of a stream is about to be sent. It may be the last."""
        if not message.get("more_body", False) and message["type"] == "http.response.body":
            self._state = COMPLETE
            self._streams.over(self)

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
            trails, self._trails = self._trails, False
            self._over()
            with suppress(Exception):  # the client is gone, or a length was promised
                await self._send(self.LAST)
                if trails:
                    await self._send(TRAILERS)


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
        """Send the closing frame. The application has been told, and is not
        cancelled.
        """
        await self._finish()


async def _nothing() -> None:
    """The response is complete: what comes after it is dropped."""
