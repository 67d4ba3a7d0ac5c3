"""What the guarded connections of one uvicorn server share: the settings, the reaper,
the loop without uvicorn's timer, and what is done once per server when it begins and
when it stops.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from uvicorn.config import Config
from uvicorn.server import Server, ServerState

from ...asyncio.at_rest import Allocator, trimmer
from ...asyncio.reaper import AsyncioReaper
from ...asyncio.serve import loop_factory
from ...config.settings import ReaperConfig
from ...core.slices import walk
from ...driver.driver import Driver
from ...driver.watched import check_idle
from ...journal import Journal
from ...policy.min_rate import Sweep
from ...policy.phases import ages
from .. import metrics as metrics_of
from ..abandoned import Requests
from ..configured import advertised, kept_alive, warn
from ..goodbye import begin_stopping
from ..metrics import Application, Reports
from ..streams import Streams, are_wanted
from .answers import Answers, Promises, is_blocked, promising

CLOSE = (b"connection", b"close")
"""The header of a response that is the last of its connection."""

REST_AFTER = 1.0
"""Seconds of silence between two requests after which uvicorn's protocol is dropped; it
may take twice as long.
"""

BURST = 512
"""Connections that have come to rest and then make it worth while to tell the C library
to give back what is free: what parsers and answers of a burst have taken is a quarter
of what its connections hold.
"""

log: logging.Logger = logging.getLogger("uvicorn.error")


class Timerless:
    """The event loop as uvicorn's HTTP protocols use it, except that their keep-alive
    timer is not set.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # `__getattr__` would do, but makes each attribute of this object slow to find;
        # and to list those of the loop itself, not of its class, makes the loop slow.
        for name in dir(type(loop)):
            if name[0] != "_" and name != "call_later" and hasattr(loop, name):
                setattr(self, name, getattr(loop, name))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """Tell the connection that it is idle from now on. uvicorn's HTTP protocols set
        one timer only, so *callback* is always the `timeout_keep_alive_handler` of the
        connection, which is ours.
        """
        callback()


class Origin(NamedTuple):
    """What uvicorn gives to each of its protocols; one tuple for all connections of a
    server.
    """

    kind: type[Any]
    config: Any
    server_state: Any
    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop | None


class MayRest(Protocol):
    """A connection that has gone idle: `http.GuardedHttp`."""

    def rests(self) -> bool:
        """Drop uvicorn's protocol if the connection was silent long enough. False: ask
        again.
        """


class Shared:
    """What the guarded connections of one uvicorn server share.

    Args:
        uvicorn: The server's own settings; its keep-alive holds where *settings* leave
            the default `keep_alive`.
        settings: The settings in force; None: those of the file that REAPER_CONFIG
            names and of the variables REAPER_*.
        journal: Where the life of every connection is written; None: nowhere.
        tasks: uvicorn's tasks that run the application.
    Attributes:
        config: The settings, with the keep-alive that is in force.
        reaper: Watches the connections; it is running.
        first_byte, keep_alive, tunnel: Timeouts in seconds; None: there is none.
        streams: The responses that never end by themselves.
        promises: What responses say of the time for which their connections are kept.
        requests: Those under way, by transport; None: `timeouts.abandoned` is off.
        app: The application that uvicorn's protocols are given.
        sweep: Judges the least rates of the connections that are waited for.
        loop: What uvicorn's protocols are given as their loop.
        leave_by: Set once the server stops: the instant at which connections in use are
            cut.
        rest_after: `REST_AFTER`.
        lifespan: Draws the maximum age of a new connection, in seconds; 0: there is
            none.
    """

    def __init__(
        self,
        uvicorn: Config,
        settings: ReaperConfig | None,
        journal: Journal | None,
        tasks: Collection[asyncio.Task[Any]] = (),
    ) -> None:
        if settings is None:
            settings = ReaperConfig.load(os.environ.get("REAPER_CONFIG"))
        config = kept_alive(settings, uvicorn.timeout_keep_alive)
        self.config: ReaperConfig = config
        warn(config, "uvicorn", log)
        self.reaper: AsyncioReaper = AsyncioReaper(config, journal=journal, listener="http")
        self.reaper.start()
        self.driver: Driver = self.reaper.driver
        self.driver.books.log = log  # uvicorn configures this logger, and no other
        self.first_byte: float | None = check_idle(config.timeouts.first_byte)
        self.keep_alive: float | None = check_idle(config.timeouts.keep_alive)
        self.tunnel: float | None = check_idle(config.timeouts.tunnel)
        self.sweep: Sweep = self.reaper.sweep
        self.promises: Promises = Promises()
        self.streams: Streams
        self.app: Any
        self.requests: Requests | None = None
        if config.timeouts.abandoned:
            self.streams = self.requests = Requests(
                uvicorn.loaded_app,
                config,
                self.driver,
                _known_by,
                _has_lost,
                blocked=is_blocked,
            )
            self.app = promising(self.requests.__call__, self.promises)
        else:
            self.streams = Answers(uvicorn.loaded_app, config, self.driver, self.promises, tasks)
            self.app = (
                self.streams.__call__  # a method is called for less than an object
                if are_wanted(config)
                else promising(uvicorn.loaded_app, self.promises)
            )
        self.loop: Timerless = Timerless(self.reaper.loop)
        self.leave_by: float | None = None
        self.rest_after: float = REST_AFTER
        self.lifespan: Callable[[], float] = ages(config)
        self._uvicorn = uvicorn
        self._origin: Origin | None = None
        self._idlers: list[MayRest] = []
        self._to_tell: list[Callable[[], None]] = []
        self._tells = False  # whether the allocator is about to be told
        self.allocator: Allocator = Allocator(
            trimmer() if config.reaper.release_buffers else None, BURST
        )

    def left_to_drain(self) -> float:
        """Seconds left until connections in use are cut. The first call starts the
        drain.
        """
        now, tick = self.driver.now(), self.driver.core.tick
        if self.leave_by is None:
            self.leave_by = now + self.config.timeouts.drain
            begin_stopping()
            self.streams.stop(self.config.timeouts.drain_streams)
        return max(self.leave_by - now, tick)

    def goes_in(self) -> float:
        """Seconds until an idle connection, or a WebSocket, is told that the server
        stops: they are spread over `timeouts.drain_window`, so that their clients do
        not come back all at once.
        """
        window = self.config.timeouts.drain_window
        return random.random() * window if window else 0.0

    def begin(self, server_state: ServerState) -> None:
        """The first connection is made. From now on all responses name the keep-alive,
        and SIGTERM waits for `timeouts.drain_delay`.
        """
        seconds = advertised(self.config)
        if seconds and not self._says(b"keep-alive"):
            self.promises.promise = (b"keep-alive", b"timeout=%d" % seconds)
        stop: Any = signal.getsignal(signal.SIGTERM)
        delay = self.config.timeouts.drain_delay
        if not delay or not isinstance(getattr(stop, "__self__", None), Server):
            return  # a program runs the server, and decides itself when it is to stop
        loop = self.reaper.loop

        def delayed(number: int, frame: Any) -> None:
            signal.signal(number, stop)  # a second SIGTERM stops the server at once
            loop.call_soon_threadsafe(
                self._stop_in, delay, server_state, functools.partial(stop, number, None)
            )

        signal.signal(signal.SIGTERM, delayed)

    def _stop_in(self, delay: float, server_state: ServerState, stop: Callable[[], object]) -> None:
        log.info("Shutting down in %g s; until then newcomers are served", delay)
        metrics_of.note_stopping()
        begin_stopping()
        self.promises.withdraw()
        # uvicorn makes its list of headers anew every second, from `encoded_headers`.
        more = [] if self._says(b"connection") else [CLOSE]
        self._uvicorn.encoded_headers = [*self._uvicorn.encoded_headers, *more]
        server_state.default_headers = [*server_state.default_headers, *more]
        self.reaper.loop.call_later(delay, stop)

    def _says(self, wanted: bytes) -> bool:
        """Whether every response has a header of that name already, which the operator
        set.
        """
        return wanted in {name.lower() for name, _ in self._uvicorn.encoded_headers}

    def origin(self, *given: Any) -> Origin:
        """The `Origin` of these arguments; the same object as last time if they are the
        same.
        """
        known = self._origin
        if known is None or any(new is not old for new, old in zip(given, known, strict=True)):
            known = self._origin = Origin(*given)
        return known

    def tell(self, told: Callable[[], None]) -> None:
        """Call *told*, which tells an idle connection that the server stops, soon:
        uvicorn asks for that of all in one pass of the loop.
        """
        if not self._to_tell:
            self.reaper.loop.call_soon(self._tell_all)
        self._to_tell.append(told)

    def _tell_all(self) -> None:
        told, self._to_tell = self._to_tell, []
        walk(self.reaper.loop.call_soon, told, lambda each: each())

    def note_idle(self, connection: MayRest) -> None:
        """Ask *connection* in `rest_after` seconds whether it rests."""
        if not self._idlers:
            self.reaper.loop.call_later(self.rest_after, self._rest_idlers)
        self._idlers.append(connection)

    def _rest_idlers(self) -> None:
        idlers, self._idlers = self._idlers, []
        walk(self.reaper.loop.call_soon, idlers, self._rest, self._have_rested)

    def _rest(self, connection: MayRest) -> None:
        if not connection.rests():
            self.note_idle(connection)

    def _have_rested(self) -> None:
        wait = None if self._idlers else self.allocator.wait(self.driver.now())
        if wait is not None and not self._tells:
            self._tells = True  # when those of the same burst have come to rest, too
            self.reaper.loop.call_later(wait + 2 * self.rest_after, self._tell_allocator)

    def _tell_allocator(self) -> None:
        self._tells = False
        if not self._idlers:  # or the next pass asks for it
            self.allocator.give_back(self.driver.now())


def _known_by(receive: Any, _: Any) -> Any:
    """The key of the request that *receive*, a method of uvicorn's cycle, reads: its
    transport, or over HTTP/2 the cycle, because many share a transport.
    """
    cycle = receive.__self__
    return cycle if cycle.scope["http_version"] == "2" else cycle.transport


def _has_lost(key: Any) -> bool:
    """Whether the request that has *key*, see `_known_by`, has lost its client."""
    return bool(getattr(key, "disconnected", False) or getattr(key, "transport", key).is_closing())


_SHARED: weakref.WeakKeyDictionary[Config, Shared] = weakref.WeakKeyDictionary()


def shared_by(
    config: Config,
    settings: ReaperConfig | None = None,
    journal: Journal | None = None,
    server_state: ServerState | None = None,
) -> Shared:
    """What the connections of the server of *config* share. The first connection makes
    it.
    """
    found = _SHARED.get(config)
    if found is None or found.reaper.loop is not asyncio.get_running_loop():
        tasks = () if server_state is None else server_state.tasks
        found = _SHARED[config] = Shared(config, settings, journal, tasks)
        if server_state is not None:
            found.reaper.count = server_state.connections.__len__
        REPORTS.join()
        if server_state is not None and threading.current_thread() is threading.main_thread():
            found.begin(server_state)  # signals can be handled in the main thread only
    return found


def loop() -> asyncio.AbstractEventLoop:
    """For `--loop reaper.uvicorn:loop`: TLS handshakes are bounded by
    `timeouts.handshake`, not by asyncio's 60 s.
    """
    return loop_factory(config=ReaperConfig.load(os.environ.get("REAPER_CONFIG")))()


def _running() -> list[AsyncioReaper]:
    """The reapers of the servers that have not ended."""
    return [each.reaper for each in _SHARED.values() if not each.reaper.loop.is_closed()]


REPORTS = Reports(_running)
metrics: Application = REPORTS.metrics
"""An ASGI application to mount, `app.mount("/metrics", reaper.uvicorn.metrics)`: the
metrics of all workers of the server.
"""
status: Application = REPORTS.status
"""An ASGI application to mount: what all workers know of their connections, in JSON."""
ready: Application = metrics_of.ready
"""An ASGI application for a readiness probe: 200, and 503 once this process is to
stop.
"""
