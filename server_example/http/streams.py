"""Event streams: a quiet one is pinged; one that is too old, or open when the server
stops, is told and ended.

One rule: *a route is told first, and then has time to say goodbye*. It hears of its end
by `reaper.stopping()`, which is true in each stream at an instant of its own. A stream
that has not ended `timeouts.drain_streams` later is completed, and its connection is
closed.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

import reaper
from reaper import Expiry, Lease
from reaper.config import ReaperConfig
from reaper.driver.driver import Driver
from reaper.policy import IdlePolicy, lifespan, reasons
from reaper.policy.boundaries import NEW, kind_of
from reaper.servers.goodbye import take_turn
from reaper.servers.pings import Pings, Quiet, TaskPings
from reaper.servers.turns import ENDS, PER_SECOND, in_turns, note_age
from reaper.stops import Turn

from .transport import Transport

PING_SETTINGS = ("reaper.tick", "timeouts.stream_ping", "server.stream_retry")
"""What the ring of the pings is made for."""


class Writer(Protocol):
    """The connection that a stream is sent on."""

    transport: Transport
    policy: IdlePolicy

    def piece(self, data: bytes) -> bytes:
        """A piece of the body as it is sent."""

    def end(self) -> bytes:
        """What ends the body."""


class Stream:
    """A response that is a stream, from its head to its end.

    Attributes:
        writer: The connection that it is sent on.
        route: Method and path, as the log names it.
        complete: Whether its end was sent past the route.
    """

    __slots__ = ("complete", "lease", "pings", "quiet", "route", "turn", "writer")

    def __init__(self, writer: Writer, route: str, turn: Turn) -> None:
        self.writer = writer
        self.route = route
        self.turn = turn
        self.lease: Lease | None = None  # is due when it is too old
        self.quiet: Quiet | None = None  # where in an event it stands
        self.pings: Pings | None = None  # the ring that it lies in
        self.complete = False

    async def begin(self, head: bytes, pinged: bool) -> None:
        """Send the *head* of the response; *pinged*: the stream will be."""
        send = self.writer.transport.send_all
        if self.quiet is None or self.pings is None:
            await send(head)
        else:
            await self.pings.start(self.quiet, send, head, pinged=pinged)

    async def send(self, data: bytes) -> None:
        """Send a piece that the route gives. A ping that is being sent goes first."""
        if self.quiet is None or self.pings is None:
            await self.put(data)
        else:
            await self.pings.goes_on(self.quiet, self._put_body, message_of(data))

    async def put(self, data: bytes) -> None:
        """Send *data* as a piece of the body, unless it is complete."""
        if not self.complete:
            await self.writer.transport.send_all(self.writer.piece(data))

    async def _put_body(self, message: Any) -> None:
        if message["body"]:
            await self.put(message["body"])

    async def ends(self) -> None:
        """Its route is about to end it: wait for a ping that is being sent."""
        if self.quiet is not None and self.pings is not None:
            while self.quiet.sends < 0:
                await self.pings.pended(self.quiet)
            self.pings.over(self.quiet)


def message_of(data: bytes) -> dict[str, Any]:
    """A piece of a body, as `Pings` knows it."""
    return {"type": "http.response.body", "body": data, "more_body": True}


class RoutePings(TaskPings):
    """As `TaskPings`, in trio."""

    async def rests(self) -> None:
        await trio.lowlevel.checkpoint()


class Streams:
    """The open streams of one process.

    Args:
        config: `timeouts`, `limits` and `server.streams` of it are used.
        driver: Of the reaper that runs.
    """

    def __init__(self, config: ReaperConfig, driver: Driver) -> None:
        self._config = config
        self._driver = driver
        self._open: dict[Stream, None] = {}
        self._pings: Pings | None = None
        self._stopped = False
        self.reload(config)

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._open)

    def reload(self, config: ReaperConfig) -> None:
        """Put *config* in force, for streams that begin from now on."""
        if any(self._config.get(path) != config.get(path) for path in PING_SETTINGS):
            self._pings = None
        self._config = config
        self._types = frozenset(config.server.streams.lower().split())
        self._lines = config.server.stream_ping_lines

    def begins(
        self,
        writer: Writer,
        method: str,
        path: str,
        status: int,
        headers: Sequence[tuple[str, str]],
    ) -> tuple[Stream | None, bool]:
        """The stream that the response with *headers* is, or None; and whether it is
        pinged. Call `over` when it has ended.
        """
        kinds = [value for name, value in headers if name == "content-type"]
        if not kinds or kinds[0].partition(";")[0].strip().lower() not in self._types:
            return None, False
        timeouts = self._config.timeouts
        stream = Stream(writer, f"{method} {path}", Turn())
        stream.turn.own = True
        take_turn(stream.turn)
        self._open[stream] = None
        pinged = bool(timeouts.stream_ping)
        if pinged or self._config.server.stream_retry:
            self._follow(stream, method, status, headers)
        if self._stopped:
            self._let_end([stream], timeouts.drain_streams)
        elif timeouts.stream_age:
            self._grow_old(stream)
        return stream, pinged

    def over(self, stream: Stream) -> None:
        """The route of *stream* has returned, or was cancelled."""
        take_turn(None)
        self._open.pop(stream, None)
        if stream.lease is not None:
            stream.lease.release()
        if stream.quiet is not None and stream.pings is not None:
            stream.pings.over(stream.quiet)

    # ---- the end

    def stop(self) -> None:
        """Tell all streams that the server stops, evenly over `timeouts.drain_window`,
        the first at once. Each is ended `timeouts.drain_streams` later; where that is
        off, its route alone ends it.
        """
        self._stopped = True
        timeouts = self._config.timeouts
        for turn, streams in in_turns(list(self._open), timeouts.drain_window).items():
            self._later(turn / PER_SECOND, self._let_end, streams, timeouts.drain_streams)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        if seconds:
            self._driver.after(seconds, lambda: call(*arguments))
        else:
            call(*arguments)

    def _let_end(self, streams: list[Stream], seconds: float) -> None:
        streams = [each for each in streams if each in self._open and not each.turn.has_come]
        for each in streams:
            if each.pings is not None:
                each.pings.retry(each.quiet)
            each.turn.come()
            if self._stopped:  # its connection ends with it
                each.writer.policy.retire(reasons.DRAIN, trio.current_time())
        if seconds:
            self._later(seconds, self._end, streams)

    def _end(self, streams: list[Stream]) -> None:
        for each in streams:
            if each in self._open:
                self.run(self._complete(each))

    async def _complete(self, stream: Stream) -> None:
        """Send the end of *stream*, whose route goes on, and cancel that."""
        transport, stream.complete = stream.writer.transport, True
        with suppress(Exception):  # its client is gone, or takes nothing
            await transport.send_all(stream.writer.end())
            transport.shut_down()
        if stream in self._open:
            transport.scope.cancel(reason="the stream was told to end, and went on")

    def _grow_old(self, stream: Stream) -> None:
        config, driver = self._config, self._driver
        seconds = lifespan(
            config.timeouts.stream_age,
            config.limits.max_age_jitter,
            config.reaper.tick,
            random.random(),
        )

        def reached(expiry: Expiry) -> None:
            if stream in self._open and not stream.turn.has_come:
                note_age(driver.books, stream.route, expiry)
                self._let_end([stream], config.timeouts.drain_streams or ENDS)

        key = ("stream", driver.next_number())
        stream.lease = driver.register(key, seconds, reached, reason=reasons.STREAM_AGE)

    # ---- what is written besides

    def _follow(
        self, stream: Stream, method: str, status: int, headers: Sequence[tuple[str, str]]
    ) -> None:
        """Follow the bytes of *stream*, if something may be written into it."""
        kind = kind_of(
            method,
            status,
            [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers],
            lines=self._lines,
        )
        if kind is not None:
            if self._pings is None:
                self._pings = RoutePings(self, self._config, self._driver)
            stream.pings, stream.quiet = self._pings, Quiet(stream, kind, NEW)

    def is_over(self, owner: Stream) -> bool:
        """Whether nothing can be sent any more."""
        return owner.complete or owner.writer.transport.fileno() < 0

    def is_blocked(self, owner: Stream) -> bool:
        """Whether the client has yet to take something."""
        return owner.writer.transport.queued() > 0

    def speak(self, owner: Stream, message: Any) -> Awaitable[Any]:
        """Send *message* past the route."""
        return owner.put(message["body"])

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* as a task."""
        trio.lowlevel.spawn_system_task(_run, work)

    def event(self) -> Any:
        """An event of trio's."""
        return trio.Event()


def tell_the_loop() -> None:
    """The server stops: `reaper.stopping()` is true from now on, but in streams."""
    reaper.stopping().begin(in_loop=True)


async def _run(work: Coroutine[Any, Any, None]) -> None:
    await work
