"""A small HTTP/1.1 server on trio and h11 in which every kind of idleness has its own limit.

One rule: *everything that is opened here is closed here*. A connection has one descriptor, one watch and one entry in
`connections`, taken and given back in `_handle`, whatever happens in between.

Nothing in it uses a timeout of trio's: what ends a wait is the reaper.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.config.reload import applied, changes
from reaper.core.lease import Lease
from reaper.driver import after
from reaper.errors import ConfigError
from reaper.journal import Journal
from reaper.policy import ANSWERS, NOT_TAKEN, TOO_OLD, IdlePolicy, Phase, lifespan
from reaper.policy.pressure import Pressure, limits_here
from reaper.policy.rates import Sweep
from reaper.trio import Parked, Silent, WakingLot

from ..tls import tls_context
from .connection import Exchange, HttpConnection, HttpError, Route
from .routes import ROUTES
from .transport import Transport

if TYPE_CHECKING:
    from ..workers import Worker

RELOADS_PER_SLICE = 256
"""Connections that get new timeouts, or are told to drain, before the loop is let run again: about 2 ms."""

REFUSALS = 64
"""How many connections beyond the limit may be answered 503 at the same time; further ones are closed unanswered."""

LINGER = 1.0
"""Seconds that a connection keeps its task after a response, at least; after at most twice that it is parked. Whoever
asks again sooner never pays for the new task, and whoever does not pays for it once a silence."""

SWEEPS_PER_TICK = 4
"""Looks at the least rates. The core may add up to half a tick to each interval: less than one tick between two."""

log = logging.getLogger("server_example.http")


@dataclass(slots=True)
class Counters:
    """What has happened so far. Plain numbers, exposed by `/metrics`."""

    opened: int = 0
    closed: int = 0
    refused: int = 0
    requests: int = 0
    failures: int = 0
    """Routes that raised."""
    lost: int = 0
    """Connections that the peer broke off or let break."""
    reloads: int = 0
    accept_errors: int = 0
    responses: Counter[int] = field(default_factory=Counter)
    reaped: Counter[str] = field(default_factory=Counter)
    """By reason."""


class Kept:
    """What is remembered of a connection while it is parked between two requests."""

    __slots__ = ("age", "number", "opened", "parked", "policy", "received", "requests", "sent")

    def __init__(self, opened: float) -> None:
        self.opened = opened
        self.age: Lease | None = None  # its age limit
        self.requests = self.received = self.sent = 0
        self.policy: IdlePolicy | None = None  # while it is not parked
        self.parked: Parked | None = None  # while it is


class HttpServer:
    """The connections of one process.

    Args:
        config: Timeouts, limits, TLS.
        watcher: A running reaper.
        routes: Path -> route, in place of those of the example.
    Attributes:
        config: In force now.
        draining: Whether every response is the last of its connection.
        connections: Those open and not parked, in order of opening.
        lot: Where connections are parked between two requests; None: nowhere.
        counters: What has happened so far.
    Raises:
        ConfigError: certificate and key cannot be used.
    """

    def __init__(
        self, config: ReaperConfig, watcher: reaper.trio.TrioReaper, routes: Mapping[str, Route] = ROUTES
    ) -> None:
        self.config = config
        self.watcher = watcher
        self.counters = Counters()
        self.connections: dict[HttpConnection, None] = {}
        self.lot: WakingLot | None = None
        self.draining = False
        self._routes = routes
        self._tls = tls_context(config)
        self._numbers = itertools.count()
        self._sweep = Sweep(self._schedule, config.reaper.tick / SWEEPS_PER_TICK)
        self._random = random.Random()
        self._empty = trio.Event()
        self._refusing = 0
        self._date = (0, "")

    def route(self, method: str, path: str) -> Route:
        """The route for a request."""
        found = self._routes.get(path)
        if found is None:
            return _not_found
        return found if method in getattr(found, "methods", ("GET", "HEAD")) else _not_allowed

    def date(self) -> str:
        """The Date header, made once a second."""
        now = int(trio.current_time())
        if now != self._date[0]:
            self._date = (now, formatdate(usegmt=True))
        return self._date[1]

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections until cancelled, each handled in a task of *nursery*."""
        listening = socket.socket(fileno=listener.socket.fileno())
        try:
            serve, welcome = self.admitting(nursery), self.watcher.welcome
            await reaper.trio.accept(listening, serve, welcome=welcome, failed=self.not_accepted)
        finally:
            listening.detach()  # it is the caller's

    def admitting(self, nursery: trio.Nursery) -> Callable[[socket.socket], None]:
        """A function that serves one connection in a task of *nursery*, or refuses it there."""

        def admit(connected: socket.socket) -> None:
            try:
                transport = Transport(connected, _name(connected))
            except OSError:
                connected.close()  # the peer is gone already
                return
            if self.open >= self.config.limits.max_connections:
                nursery.start_soon(self._refuse, transport)
            else:
                self.counters.opened += 1  # here: a drain that begins before its task does has to wait for it
                nursery.start_soon(self._handle, transport)

        return admit

    def not_accepted(self, error: OSError) -> None:
        """Count what accept(2) said."""
        self.counters.accept_errors += 1
        if after(error) == "pause":
            log.error("cannot accept: %s", error.strerror)

    @property
    def open(self) -> int:
        """How many connections are open, parked or not."""
        return len(self.connections) + (0 if self.lot is None else len(self.lot))

    @asynccontextmanager
    async def parking(self) -> AsyncIterator[None]:
        """Within the block, connections that are silent between two requests are parked. Not those with TLS.

        Nobody parks what is journaled: its log could not follow it.
        """
        if self._tls is not None:
            yield
            return
        # Whoever is parked has been silent for `drain_idle` at least: a drain need not wait for a request on its way.
        linger = max(LINGER, self.config.timeouts.drain_idle)
        async with self.watcher.waking_lot(self._woken, self._left, linger=linger) as lot:
            self.lot = lot if lot.parks else None
            try:
                yield
            finally:
                self.lot = None

    async def _woken(self, connected: socket.socket, kept: Kept) -> None:
        kept.parked = None
        try:
            transport = Transport(connected, _name(connected))
        except OSError:
            connected.close()
            self._left(kept, None)
            return
        transport.received, transport.sent = kept.received, kept.sent
        await self._handle(transport, kept)

    def _left(self, kept: Kept, reason: str | None) -> None:
        """A parked connection was reaped, or its peer has gone."""
        if kept.age is not None:
            kept.age.release()
        if reason is not None:
            self.counters.reaped[reason] += 1
        self.counters.closed += 1
        self._empty.set()

    def _park(self, transport: Transport, policy: IdlePolicy, kept: Kept, activity: Lease) -> None:
        assert self.lot is not None
        kept.requests, kept.received, kept.sent = policy.requests, transport.received, transport.sent
        kept.policy = None
        keep_alive = Phase.KEEP_ALIVE.value
        kept.parked = self.lot.park(transport.socket, self.config.timeouts.keep_alive, kept, activity, keep_alive)

    async def _handle(self, transport: Transport, kept: Kept | None = None) -> None:
        phase = Phase.KEEP_ALIVE
        if kept is None:
            phase = Phase.FIRST_BYTE
            kept = Kept(trio.current_time())
        parked = False
        connection: HttpConnection | None = None
        stream: trio.abc.Stream = transport
        if self._tls is not None:
            stream = trio.SSLStream(transport, self._tls, server_side=True, https_compatible=True)
            phase = Phase.HANDSHAKE
        try:
            with self.watcher.watch(transport) as watch:
                policy = IdlePolicy(self.config, watch, trio.current_time(), self._sweep, transport.progress, phase)
                watch.receiving = True  # the policy suspends it while a request is in flight
                policy.requests = kept.requests
                kept.policy = transport.policy = policy
                transport.linger = None if self.lot is None else self.lot.linger
                connection = HttpConnection(self, transport, stream, policy, watch.uid)
                connection.opened = kept.opened
                self.connections[connection] = None
                if phase is not Phase.KEEP_ALIVE:
                    kept.age = self._limit_age(kept)
                if self.draining:
                    policy.retire("drain", trio.current_time())
                try:
                    if isinstance(stream, trio.SSLStream):
                        await stream.do_handshake()
                    await connection.run()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self.counters.lost += 1
                except Silent:
                    self._park(transport, policy, kept, watch.lease)
                    parked = True
                watch.hung_up = transport.hung_up
            if watch.reaped:
                await self._farewell(connection, watch.reason or "")
        except Exception:
            self.counters.failures += 1
            log.exception("a connection of %s failed", transport.peer)
        finally:
            if connection is not None:
                connection.policy.close()
                self.connections.pop(connection, None)
                transport.policy = None
            if not parked:
                if kept.age is not None:
                    kept.age.release()
                transport.close()
                self.counters.closed += 1
            if not self.connections:
                self._empty.set()

    async def _farewell(self, connection: HttpConnection, reason: str) -> None:
        """Answer 408 where a request had begun. Not for long: the peer has had its time."""
        self.counters.reaped[reason] += 1
        if reason in NOT_TAKEN:
            connection.transport.abort()
        status = ANSWERS.get(reason)
        if status is None:
            return
        connection.transport.policy = None
        with trio.CancelScope() as scope:
            # Not a watch: for the journal this connection has ended.
            limit = self.watcher.register(
                ("farewell", connection.uid),
                self.config.timeouts.linger or self.config.reaper.tick,
                lambda expiry: scope.cancel(),
            )
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # it hung up by itself
                await connection.answer_error(HttpError(status, f"{reason} timed out"))
            connection.transport.shut()
        limit.release()

    async def _refuse(self, transport: Transport) -> None:
        """One connection too many: 503 for as many as that is cheap for."""
        self.counters.refused += 1
        self._refusing += 1
        try:
            if self._refusing <= REFUSALS and self._tls is None:
                with self.watcher.watch(transport, self.config.timeouts.linger, reason="linger"):
                    await transport.send_all(
                        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n"
                        b"retry-after: 1\r\n\r\n"
                    )
                    transport.shut()
                    while await transport.receive_some():
                        pass
        except trio.BrokenResourceError:
            pass
        finally:
            self._refusing -= 1
            transport.close()

    def _limit_age(self, kept: Kept) -> Lease | None:
        config = self.config
        seconds = lifespan(
            config.timeouts.max_age, config.limits.max_age_jitter, config.reaper.tick, self._random.random()
        )
        if not seconds:
            return None
        # A lease of its own that is never touched. It does not cut a request short: it only says "no more after this".
        return self.watcher.register(
            ("age", next(self._numbers)),
            seconds,
            lambda expiry: self._too_old(kept),
            reason=TOO_OLD,
        )

    def _too_old(self, kept: Kept) -> None:
        if kept.policy is not None:
            kept.policy.retire(TOO_OLD, trio.current_time())
        elif kept.parked is not None and self.lot is not None:
            self.lot.end(kept.parked, TOO_OLD)

    def _schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        self.watcher.register(("sweep", next(self._numbers)), seconds, lambda expiry: call(trio.current_time()))

    async def reload(self, config: ReaperConfig) -> None:
        """Put what is live of *config* in force, also on open connections, a slice of them at a time."""
        for change in changes(self.config, config):
            log.warning("reload: %s", change)
        self.config = applied(self.config, config)
        self.counters.reloads += 1
        if self.lot is not None:
            self.lot.retime(self.config.timeouts.keep_alive)
        await self._each(lambda policy: policy.reload(self.config, trio.current_time()))

    async def drain(self) -> None:
        """Let every connection finish the request in flight, and the idle ones wait a moment for one; then return.

        Whoever has not finished after `timeouts.drain` is left: cancel it. Stop accepting first.
        """
        self.draining = True
        late = self.watcher.register("drain", self.config.timeouts.drain, lambda expiry: self._empty.set())
        window = self.config.timeouts.drain_window
        async with trio.open_nursery() as nursery:
            if self.lot is not None:
                nursery.start_soon(self.lot.drain, self.config.timeouts.drain, window)
            await self._each(lambda policy: policy.retire("drain", trio.current_time()), window)
        # One that has just been woken is nowhere yet; but it has been opened and not closed.
        while self.counters.opened != self.counters.closed and late.alive:
            self._empty = trio.Event()
            await self._empty.wait()
        late.release()

    async def _each(self, act: Callable[[IdlePolicy], object], window: float = 0.0) -> None:
        """Call *act* with the policy of every connection, spread over *window* seconds, or in slices if that is 0."""
        connections = list(self.connections)
        for index, connection in enumerate(connections, start=1):
            if connection in self.connections:
                act(connection.policy)
            if window:
                await trio.sleep(window / len(connections))
            elif index % RELOADS_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()


async def serve(
    worker: Worker,
    config: ReaperConfig,
    load: Callable[[], ReaperConfig],
    journal: Journal | None = None,
    *,
    parked: bool = False,
    pressed: bool = False,
) -> None:
    """One worker process: serve until told to stop, then drain.

    Args:
        worker: Listening sockets, counters, and the word to stop.
        config: What to begin with.
        load: Reads the configuration anew when SIGHUP comes.
        journal: Where the life of every connection is written; None: nowhere.
        parked: Whether a connection gives up its task while it is silent between two requests. Not with a journal.
        pressed: Whether the longest silent go, and newcomers wait in the backlog, as descriptors or memory run short.
    Raises:
        ConfigError: certificate and key cannot be used.
    """
    async with (
        reaper.trio.open_reaper(config, journal=journal, listener="http") as watcher,
        trio.open_nursery() as handlers,
        trio.open_nursery() as helpers,
        AsyncExitStack() as stack,
    ):
        server = HttpServer(config, watcher)
        if parked and journal is None:
            await stack.enter_async_context(server.parking())
        helpers.start_soon(_publish_often, worker, server)
        helpers.start_soon(_reloads, worker, server, load)
        if pressed:
            helpers.start_soon(reaper.trio.relieve, watcher, Pressure(limits_here()))
        await worker.accept(server.admitting(handlers), watcher.welcome, server.not_accepted)
        await server.drain()
        if journal is not None:
            journal.drain(reaper.trio.journal_clock()())
        _publish(worker, server)
        helpers.cancel_scope.cancel()
        handlers.cancel_scope.cancel()


async def _reloads(worker: Worker, server: HttpServer, load: Callable[[], ReaperConfig]) -> None:
    async for _ in worker.reloads():
        await reload_from(server, load)


async def reload_from(server: HttpServer, load: Callable[[], ReaperConfig]) -> bool:
    """Reload what *load* returns; a configuration that cannot be used changes nothing and is said. True: reloaded."""
    try:
        config = load()
    except ConfigError as error:
        for line in str(error).splitlines():
            log.error("reload: %s", line)
        log.error("reload: nothing was changed")
        return False
    await server.reload(config)
    return True


async def _publish_often(worker: Worker, server: HttpServer) -> None:
    while True:
        _publish(worker, server)
        await trio.sleep(0.5)


def _publish(worker: Worker, server: HttpServer) -> None:
    worker.counters["open"] = server.open
    worker.counters["accepted"] = server.counters.opened
    worker.counters["reaped"] = sum(server.counters.reaped.values())
    worker.counters.note(server.watcher.statistics())


def _not_found(exchange: Exchange) -> Awaitable[None]:
    return exchange.respond(404, b"404 Not Found\n", "text/plain; charset=utf-8")


def _not_allowed(exchange: Exchange) -> Awaitable[None]:
    return exchange.respond(405, b"405 Method Not Allowed\n", "text/plain; charset=utf-8")


def _name(connected: socket.socket) -> str:
    host, port = connected.getpeername()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
