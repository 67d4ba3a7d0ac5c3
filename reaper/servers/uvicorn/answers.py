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
import weakref
from collections.abc import Callable, Collection
from typing import Any

from ...asyncio import transports
from ...config.settings import ReaperConfig
from ...driver.driver import Driver
from ...stops import Turn
from ..goodbye import take_turn
from ..pings import Quiet
from ..streams import EXTENSION, STREAM, TOLD, App, Exchange, Streams, route_of
from .kinds import cycles

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


def _closes(value: bytes) -> bool:
    return b"close" in [token.strip() for token in value.lower().split(b",")]


class Promises:
    """Has each response but the last name the time for which its connection is kept.

    Attributes:
        promise: The headers that say so; empty if there are none.
    """

    def __init__(self) -> None:
        self.promise: list[Header] = []

    def look(self, cycle: Any, message: Any) -> Any:
        """Look at *message*, with which the response of *cycle* begins; return what is
        to be sent.

        uvicorn puts `cycle.default_headers` before those of the application.
        """
        headers = message.get("headers", ())
        if type(headers) is not list and not isinstance(headers, (list, tuple)):
            # It can be read once only.
            headers = list(headers)
            message = {**message, "headers": headers}
        cycle._reaper_headers = headers
        if self.promise and cycle.keep_alive:
            for name, value in headers:
                if len(name) == CONNECTION and name.lower() == b"connection" and _closes(value):
                    return message
            cycle.default_headers = cycle.default_headers + self.promise
        return message


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
        self._look: Callable[[Any, Any], Any] = promises.look
        self._tasks = tasks
        # By cycle, once the server stops: the tasks, and the streams.
        self._running: weakref.WeakKeyDictionary[Any, asyncio.Task[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._told: weakref.WeakKeyDictionary[Any, Told] = weakref.WeakKeyDictionary()
        self._tells = False  # whether any was told: to ask the dictionary costs 800 instructions
        # Whether a request needs more than a look at the headers of its response, as
        # each does once the server stops. One flag: an ordinary request asks often.
        self._special: bool = self.watches or self.turns

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        """Call the application for one request of uvicorn's: *send* is a method of its
        cycle.
        """
        cycle = send.__self__
        given = scope.get("extensions")
        said: dict[str, Any] = {}
        scope["extensions"] = {EXTENSION: said, **given} if given else {EXTENSION: said}
        if self._special:
            self._begin(cycle)
        quiet: Quiet | None = None

        look = self._look

        def sent(message: Any) -> Any:
            nonlocal quiet
            if cycle.response_started:
                if quiet is not None and self.pings is not None:
                    return self.pings.goes_on(quiet, cycle.send, message)
                return cycle.send(message)  # a stream that was found has one of its own
            message = look(cycle, message)
            if not self._special and not said:
                return cycle.send(message)
            pinged = False
            if self.watches or said or self.turns:
                quiet, pinged = self._follow(cycle, said, message)
            told = self._if_stream(cycle) if self._age or self.seconds is not None else None
            send = cycle.send if told is None else told.speak
            if quiet is not None and self.pings is not None:
                return self.pings.start(quiet, send, message, pinged=pinged)
            return send(message)

        try:
            return await self.app(scope, receive, sent)
        except asyncio.CancelledError:
            told = self._told.get(cycle)
            if told is None or not told.has_cancelled():
                raise
            return None
        finally:
            if quiet is not None and self.pings is not None:
                self.pings.over(quiet)
            if self._tells and (told := self._told.get(cycle)) is not None:
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
        return quiet, pinged

    # ---- how something is written into the stream of a cycle

    def is_over(self, owner: Any) -> bool:
        return bool(owner.response_complete)

    def is_blocked(self, owner: Any) -> bool:
        return is_blocked(owner.receive, None)

    def speak(self, owner: Any, message: Any) -> Any:
        told = self._told.get(owner) if self._tells else None
        return owner.send(message) if told is None else told.speak(message)

    def stop(self, seconds: float) -> None:
        """As `Streams.stop`. Cost: a look at each request that is under way."""
        if seconds and self.seconds is None:
            kinds = cycles()
            for task in list(self._tasks):
                # What a loop of another kind makes of a coroutine may not show it.
                coroutine: Any = getattr(task, "get_coro", _unknown)()
                cycle: Any = inspect.getcoroutinelocals(coroutine).get("self")
                if isinstance(cycle, kinds) and not cycle.response_complete:
                    if cycle in self._told:
                        continue
                    self._running[cycle] = task
                    if hasattr(cycle, KEPT):
                        self._if_stream(cycle)
        super().stop(seconds)
        self._special = self._special or self.seconds is not None

    def _if_stream(self, cycle: Any) -> Told | None:
        """Return a `Told` for *cycle* if its response is a stream; otherwise None."""
        said = (cycle.scope.get("extensions") or {}).get(EXTENSION) or {}
        if not self.is_stream(said.get("stream"), getattr(cycle, KEPT)):
            return None
        self._tells = True
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
