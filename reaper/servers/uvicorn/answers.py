"""Wraps the application, and looks at the beginning of each response.

The rule of this module: *an ordinary request pays for one look, and nothing is wrapped
that is not looked at*. The theory of streams is that of `servers.streams`; but there
each request of a server has an `Exchange` around it. Here uvicorn has an object for
each request already, its cycle. The headers of the response are kept on it, and what is
open is found among uvicorn's tasks when the server stops. Only then a cycle whose
response is a stream is given an exchange, `Told`.

The same look finds out whether the response may say for how long its connection is
kept.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import weakref
from collections.abc import Collection
from typing import Any

from ...asyncio import transports
from ...config.settings import ReaperConfig
from ...core.slices import walk
from ...driver.driver import Driver
from ...stops import Turn
from ..goodbye import take_turn
from ..pings import Quiet
from ..streams import EXTENSION, STREAM, TOLD, App, Exchange, Streams, route_of
from .kinds import cycles, is_lower

Header = tuple[bytes, bytes]

QUIET = "_reaper_quiet"
"""The attribute of a cycle whose response can be pinged: a `Quiet`, which follows its
bytes.
"""

TURN = "_reaper_turn"
"""The attribute of a cycle that, as a stream, has its own instant at which it is told
to end.
"""

KEPT = "_reaper_headers"
"""The attribute of a cycle with the headers of its response; missing before the
response begins.
"""

CONNECTION = len(b"connection")
"""Bytes of the names of the two headers that `_says` knows."""

PLAIN = re.compile(
    rb"(?!(connection|content-length|transfer-encoding)$)[\w!#$%&'*+.^`|~-]+", re.IGNORECASE
)
"""The name of a header that means nothing to uvicorn."""

SAID = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""What a header may say."""


def _says(name: bytes, value: bytes) -> bool:
    """Whether this header says that the connection is closed, or for how long it is
    kept: then no other header is to say so.
    """
    if name.lower() == b"keep-alive":
        return True
    said = value.lower() if name.lower() == b"connection" else b""
    return b"close" in [token.strip() for token in said.split(b",")]


class Together(bytes):
    """The name of the last of some headers, which is written with those before it.

    uvicorn checks the headers of each response, for 4,000 instructions a header, and
    then writes each name in lower case. What does not change is checked here once.

    Attributes:
        lines: What is written.
    """

    lines: bytes

    def lower(self) -> bytes:
        return self.lines


def together(headers: list[Header]) -> list[Header]:
    """*headers* as one, which is written as all of them are. *headers* themselves if
    one of them means something to uvicorn, or may not be written.
    """
    if not all(PLAIN.fullmatch(name) and SAID.fullmatch(value) for name, value in headers):
        return headers
    *others, (name, value) = headers
    last = Together(name)
    last.lines = b"".join(b"%s: %s\r\n" % each for each in others) + name
    return [(last, value)]


class Promises:
    """Has each response but the last name the time for which its connection is kept.

    Attributes:
        promise: The header that says so; None: no response has it.
        plain: uvicorn's own headers as they were last seen; it makes this list once a
            second.
        added: The same, and the promise.
    """

    def __init__(self) -> None:
        self.promise: Header | None = None
        self.plain: list[Header] | None = None
        self.added: list[Header] = []

    def withdraw(self) -> None:
        """The server stops: no further response has the header."""
        self.promise = self.plain = None

    def look(self, cycle: Any, message: Any) -> Any:
        """Look at *message*, with which the response of *cycle* begins; return what is
        to be sent.

        uvicorn puts `cycle.default_headers` before those of the application.
        """
        headers, message = headers_of(message)
        if cycle.keep_alive and not any(_says(name, value) for name, value in headers):
            cycle.default_headers = self.add(cycle)
        return message

    def add(self, cycle: Any) -> list[Header]:
        """The default headers of *cycle*, and the promise."""
        plain: list[Header] = cycle.default_headers
        if self.promise is None:
            return plain
        if plain is not self.plain:
            both = [*plain, self.promise]
            self.plain, self.added = plain, together(both) if is_lower(cycle) else both
        return self.added


def headers_of(message: Any) -> tuple[Any, Any]:
    """The headers of *message*, and the message with them: they may be an iterator,
    which can be read once only.
    """
    headers = message.get("headers", ())
    if isinstance(headers, (list, tuple)):
        return headers, message
    headers = list(headers)
    return headers, {**message, "headers": headers}


def promising(app: App, promises: Promises) -> App:
    """*app*, whose responses name the time for which their connections are kept."""
    look = promises.look

    def around(scope: Any, receive: Any, send: Any) -> Any:
        cycle = send.__self__

        def sent(message: Any) -> Any:
            return send(message if cycle.response_started else look(cycle, message))

        return app(scope, receive, sent)

    return around


def is_blocked(receive: Any, send: Any) -> bool:
    """Whether the client of the cycle that has the method *receive* still has to take
    something. If that cannot be seen, it has.
    """
    try:
        cycle = receive.__self__
        transport = cycle.transport
        if cycle.flow.write_paused or transport.is_closing():
            return True
        stream = getattr(cycle, "stream", None)
        if stream is None:
            return transports.queued(transport) > 0
        # HTTP/2: the connection may have other streams under way.
        window = cycle.conn.send_window, stream.send_window
        shut = any(room is not None and room <= 0 for room in window)
        return shut or bool(stream.pending_bytes) or transports.buffered(transport) > 0
    except Exception:
        return True


class Answers(Streams):
    """The application of one uvicorn server, whose streams can be told to end.

    Args:
        app, config, driver: As in `Streams`.
        promises: Is asked at the beginning of each response.
        tasks: Those that uvicorn runs the application in.
    """

    def __init__(
        self,
        app: App,
        config: ReaperConfig,
        driver: Driver,
        promises: Promises,
        tasks: Collection[asyncio.Task[Any]],
    ) -> None:
        super().__init__(app, config, driver, blocked=is_blocked)
        self._promises = promises
        self._tasks = tasks
        # By cycle, once the server stops: the tasks, and the streams.
        self._running: weakref.WeakKeyDictionary[Any, asyncio.Task[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._told: weakref.WeakKeyDictionary[Any, Told] = weakref.WeakKeyDictionary()
        # Whether any stream was pinged or told: to ask whether this one was costs 800
        # instructions.
        self._attends = False
        self._stops = False  # whether the server was told to stop
        # Whether a request needs more than a look at the headers of its response, as
        # each does once the server stops. One flag: an ordinary request asks often.
        self._special: bool = self.watches or self.turns

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        """Call the application for one request of uvicorn's: *send* is a method of its
        cycle.
        """
        cycle = send.__self__
        said: dict[str, Any] = {}
        if "extensions" in scope:
            scope["extensions"][EXTENSION] = said  # uvicorn makes one for each request
        else:
            scope["extensions"] = {EXTENSION: said}
        if self._special:
            self._begin(cycle)

        def sent(message: Any) -> Any:
            if cycle.response_started:
                # A stream that was found has a `send` of its own.
                return self._goes_on(cycle, message) if self._attends else cycle.send(message)
            headers = message.get("headers", ())
            if type(headers) is not list:
                headers, message = headers_of(message)
            cycle._reaper_headers = headers
            if cycle.keep_alive:  # `Promises.look`, written out: each response pays for it
                for name, value in headers:
                    if len(name) == CONNECTION and _says(name, value):
                        break
                else:
                    promises = self._promises
                    cycle.default_headers = (
                        promises.added
                        if cycle.default_headers is promises.plain
                        else promises.add(cycle)
                    )
            if said or self._special:
                return self._starts(cycle, said, message)
            return cycle.send(message)

        try:
            return await self.app(scope, receive, sent)
        except asyncio.CancelledError:
            told = self._told.get(cycle)
            if told is None or not told.has_cancelled():
                raise
            return None
        finally:
            if self._attends:
                await self._returned(cycle)

    def _starts(self, cycle: Any, said: dict[str, Any], message: Any) -> Any:
        """Send *message*, with which the response of *cycle* begins. It may be a
        stream.
        """
        quiet, pinged = self._follow(cycle, said, message)
        told = self._if_stream(cycle) if self._age or self.seconds is not None else None
        send = cycle.send if told is None else told.speak
        if quiet is not None and self.pings is not None:
            return self.pings.start(quiet, send, message, pinged=pinged)
        return send(message)

    def _goes_on(self, cycle: Any, message: Any) -> Any:
        """Send *message*, which is not the first one of the response of *cycle*."""
        quiet = getattr(cycle, QUIET, None)
        if quiet is not None and self.pings is not None:
            return self.pings.goes_on(quiet, cycle.send, message)
        return cycle.send(message)

    async def _returned(self, cycle: Any) -> None:
        """The application has returned that was called for *cycle*."""
        quiet = getattr(cycle, QUIET, None)
        if quiet is not None and self.pings is not None:
            self.pings.over(quiet)
        if (told := self._told.get(cycle)) is not None:
            await told.returned()

    def _begin(self, cycle: Any) -> None:
        """The application is about to be called for *cycle*, perhaps for a stream."""
        tells = self._age or self.seconds is not None
        if tells and (task := asyncio.current_task()) is not None:
            self._running[cycle] = task
        if self.turns:
            turn = Turn()
            setattr(cycle, TURN, turn)
            take_turn(turn)

    def _follow(self, cycle: Any, said: dict[str, Any], message: Any) -> tuple[Quiet | None, bool]:
        """As `follow`; returns None, too, if the response of *cycle* is no stream."""
        headers = getattr(cycle, KEPT)
        begins = message["type"] == "http.response.start"
        if not begins or not self.is_stream(said.get("stream"), headers):
            return None, False
        if (turn := getattr(cycle, TURN, None)) is not None:
            turn.own = True
        quiet, pinged = self.follow(cycle, said, cycle.scope["method"], message)
        if quiet is not None:
            setattr(cycle, QUIET, quiet)
            self._attends = True
        return quiet, pinged

    # ---- how something is written into the stream of a cycle

    def is_over(self, owner: Any) -> bool:
        return bool(owner.response_complete)

    def is_blocked(self, owner: Any) -> bool:
        return is_blocked(owner.receive, None)

    def speak(self, owner: Any, message: Any) -> Any:
        told = self._told.get(owner)
        return owner.send(message) if told is None else told.speak(message)

    def stop(self, seconds: float) -> None:
        """As `Streams.stop`. Cost: a look at each request that is under way."""
        if not seconds or self.seconds is not None or self._stops:
            return
        self._stops = True
        kinds = cycles()

        def look(task: Any) -> None:
            # What a loop of another kind makes of a coroutine may not show it.
            coroutine: Any = getattr(task, "get_coro", _unknown)()
            cycle: Any = inspect.getcoroutinelocals(coroutine).get("self")
            if isinstance(cycle, kinds) and not cycle.response_complete and cycle not in self._told:
                self._running[cycle] = task
                if hasattr(cycle, KEPT):
                    self._if_stream(cycle)

        stop = super().stop

        def then() -> None:
            stop(seconds)
            self._special = self._special or self.seconds is not None

        walk(asyncio.get_running_loop().call_soon, self._tasks, look, then)

    def _if_stream(self, cycle: Any) -> Told | None:
        """Return a `Told` for *cycle* if its response is a stream; otherwise None."""
        said = (cycle.scope.get("extensions") or {}).get(EXTENSION) or {}
        if not self.is_stream(said.get("stream"), getattr(cycle, KEPT)):
            return None
        self._attends = True
        told = self._told[cycle] = Told(self, cycle, self._running.get(cycle))
        told.take(said)
        self.begun(told)
        return told


def _unknown() -> None:
    """Return None: no coroutine is known."""


class Told(Exchange):
    """A stream of uvicorn's, once the server stops.

    It is told by the flag that uvicorn sets when a client has gone; while something is
    sent, the flag is taken back.

    Args:
        streams: Of the server.
        cycle: uvicorn's.
        task: The task of the application; None: it cannot be cancelled.
    """

    __slots__ = ("__weakref__", "_cycle", "_speaks")

    def __init__(self, streams: Streams, cycle: Any, task: asyncio.Task[Any] | None) -> None:
        # What the application says of its response is in its own scope.
        super().__init__(streams, {}, cycle.receive, self.speak)
        self._state = STREAM
        self._turn = getattr(cycle, TURN, None)
        self.quiet: Quiet | None = getattr(cycle, QUIET, None)
        self._task = task
        self._cycle = cycle
        self._speaks = cycle.send
        cycle.send = self.send

    def take(self, said: dict[str, Any]) -> None:
        """The application has *said* whether its response ends by age."""
        self._said = said

    def route(self) -> str:
        return route_of(self._cycle.scope)

    def _goes_on(self, message: Any) -> Any:
        """See the base class. Its bytes are followed before they come here."""
        self._notice(message)
        return self._send(message)

    def tell(self) -> None:
        """As `Exchange.tell`."""
        self._state = TOLD
        self._cycle.disconnected = True
        self._cycle.message_event.set()

    async def speak(self, message: Any) -> None:
        """Send *message*, unless the client is really gone."""
        cycle = self._cycle
        if cycle.flow.write_paused:
            await cycle.flow.drain()
        if cycle.transport.is_closing():
            return
        told, cycle.disconnected = cycle.disconnected, False
        try:
            await self._speaks(message)  # which waits for nothing: there is room
        finally:
            cycle.disconnected = told
