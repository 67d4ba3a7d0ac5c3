"""A small HTTP/1.1 server on trio and h11 in which every kind of idleness has its own limit.

Everything that is opened here is closed here: a connection has one descriptor, one watch and one entry in
`connections`, taken and given back in `_handle`, whatever happens in between. Nothing in it uses a timeout of trio's:
what ends a wait is the reaper.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from email.utils import formatdate
from functools import partial

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.config.reload import applied, changes
from reaper.core.lease import Lease
from reaper.driver.accepting import after
from reaper.metrics import Family
from reaper.policy import ANSWERS, INSTANT, NOT_TAKEN, TOO_OLD, IdlePolicy, Phase, lifespan
from reaper.policy.min_rate import Sweep
from reaper.trio.handoff import HandoffLot
from reaper.trio.linger import Silent
from reaper.trio.tls import TlsSession

from ..listening import tls_context
from ..status import Board, Desk
from ..workers import Admit
from .connection import Counters, Exchange, HttpConnection, HttpError, Route
from .routes import ROUTES
from .transport import Hangups, TlsTransport, Transport
from .views import own_families
from .waiting import Kept, Waiting

RELOADS_PER_SLICE = 256
"""Connections that get new timeouts, or begin to drain, before the loop is let run again: about 2 ms."""

REFUSALS = 64
"""How many connections beyond the limit may be answered 503 at the same time; further ones are closed unanswered."""

LINGER = 1.0
"""Seconds that a connection keeps its task after a response while few do; after at most twice that it is parked. A
client that asks again sooner never pays for a new task; one that does not pays for it once per silence."""

SWEEPS_PER_TICK = 4
"""Looks at the least rates. The core may add up to half a tick to each interval: less than one tick between two."""

log = logging.getLogger("server_example.http")


class HttpServer:
    """The connections of one process.

    Args:
        config: Timeouts, limits, TLS.
        watcher: A running reaper.
        routes: Path -> route, in place of those of the example.
        show: Whether everyone may see `/status` and `/connections`, not only this machine.
    Attributes:
        config: In force now.
        leaving: Whether newcomers are still served, but told to go elsewhere next.
        draining: Whether every response is the last of its connection.
        connections: Those open and not parked, in order of opening, and what is remembered of each.
        lot: Where connections are parked between two requests; None: nowhere.
        counters: What has happened so far.
        desk: Where all workers are answered for; at first there is only this one.
    Raises:
        ConfigError: certificate and key cannot be used.
    """

    def __init__(
        self,
        config: ReaperConfig,
        watcher: reaper.trio.TrioReaper,
        routes: Mapping[str, Route] = ROUTES,
        *,
        show: bool = False,
    ) -> None:
        self.config = config
        self.watcher = watcher
        self.counters = Counters()
        self.connections: dict[HttpConnection, Kept] = {}
        self.lot: HandoffLot | None = None
        self.show = show
        self.leaving = self.draining = False
        self.desk = Desk(Board(1), 0, "http", watcher, self.families, leaving=lambda: self.leaving)
        self._routes = routes
        self._tls = tls_context(config)
        self._waiting = Waiting(self, self._tls, lambda: self._empty.set())
        self._numbers = itertools.count()
        self._sweep = Sweep(self._schedule, config.reaper.tick / SWEEPS_PER_TICK)
        self._random = random.Random()
        self._empty = trio.Event()
        self._hangups = Hangups()
        self._listening_for_hangups = False
        self._refusing = 0
        self._date = (0, "")

    def route(self, method: str, path: str) -> Route:
        """The route for a request."""
        found = self._routes.get(path)
        if found is None:
            return _not_found
        allowed = getattr(found, "methods", ("GET", "HEAD"))
        return found if method in allowed else partial(_not_allowed, allowed)

    def date(self) -> str:
        """The Date header, made once per second."""
        now = int(trio.current_time())
        if now != self._date[0]:
            self._date = (now, formatdate(usegmt=True))
        return self._date[1]

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections until cancelled, each handled in a task of *nursery*."""
        listening = socket.socket(fileno=listener.socket.fileno())
        try:
            serve, welcome = self.admitting(nursery), self.watcher.welcome
            await reaper.trio.accepting.accept(listening, serve, welcome=welcome, failed=self.not_accepted)
        finally:
            listening.detach()  # it is the caller's

    @asynccontextmanager
    async def running(self, nursery: trio.Nursery, desk: Desk, *, parked: bool) -> AsyncIterator[Admit]:
        """As in `serving.Server`."""
        self.desk = desk
        async with self.parking() if parked else nullcontext():
            yield self.admitting(nursery)

    def admitting(self, nursery: trio.Nursery) -> Admit:
        """A function that serves one connection in a task of *nursery*, or refuses it there."""
        if not self._listening_for_hangups:
            self._listening_for_hangups = True
            nursery.start_soon(self._hangups.run)

        def admit(connected: socket.socket) -> None:
            full = self.open >= self.config.limits.max_connections
            if self.lot is not None and not full and not self.draining:
                self.counters.opened += 1
                kept: Kept = self.lot.kind(trio.current_time())
                self._waiting.admit(connected, kept)
                self._limit_age(kept)
                return
            try:
                transport = Transport(connected) if full else self._transport(connected, None)
            except OSError:
                connected.close()  # the peer is gone already
                return
            if full:
                nursery.start_soon(self._refuse, transport)
            else:
                self.counters.opened += 1  # here: a drain that begins before its task does has to wait for it
                kept = Kept(trio.current_time())
                self._limit_age(kept)
                phase = Phase.HANDSHAKE if transport.secure else Phase.FIRST_BYTE
                nursery.start_soon(self._handle, transport, kept, phase)

        return admit

    def _transport(self, connected: socket.socket, session: TlsSession | None, *, fresh: bool = True) -> Transport:
        """Raises OSError if its peer is gone."""
        if self._tls is None:
            return Transport(connected, fresh=fresh)
        if session is None:
            fd = connected.detach()  # a session that cannot be made closes it
            session = TlsSession(fd, self._tls)
            session.detach()
            connected = socket.socket(fileno=fd)
        return TlsTransport(connected, session, fresh=fresh)

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
        """Within the block, connections of which no whole request has come are parked."""
        waiting = self._waiting
        async with self.watcher.waking_lot(
            self._woken, waiting.ended, heard=waiting.heard, begun=lambda kept: kept.begun, kind=Kept, linger=LINGER
        ) as lot:
            waiting.lot = lot
            self.lot = lot if lot.parks else None
            try:
                yield
            finally:
                self.lot = None

    async def _woken(self, connected: socket.socket, kept: Kept) -> None:
        try:
            transport = self._transport(connected, kept.tls, fresh=not kept.requests)
        except OSError:
            connected.close()
            with self.watcher.watch(continues=kept.lease) as gone:  # its journal has to end
                gone.hung_up = True
            self._waiting.ended(kept, None)
            return
        transport.received, transport.sent = kept.received, kept.sent
        await self._handle(transport, kept, self._waiting.phase(kept), kept.lease)

    async def _handle(self, transport: Transport, kept: Kept, phase: Phase, lease: Lease | None = None) -> None:
        parked = over = False
        connection: HttpConnection | None = None
        try:
            with self.watcher.watch(transport, continues=lease) as watch:
                now = trio.current_time()
                policy = IdlePolicy(self.config, watch, now, self._sweep, transport.progress, phase, watch.reap)
                watch.receiving = True  # the policy suspends it while a request is in flight
                policy.requests = kept.requests
                kept.policy = transport.policy = policy
                transport.linger = None if self.lot is None else self.lot.linger
                connection = HttpConnection(self, transport, policy, watch.uid, kept.head, kept.blank)
                connection.opened = kept.opened
                kept.head = b""
                self.connections[connection] = kept
                self._hangups.watch(transport.fileno(), partial(self._hung_up, connection, watch))
                if self.draining or kept.too_old:
                    policy.retire("drain" if self.draining else TOO_OLD, now)
                try:
                    if isinstance(transport, TlsTransport):
                        await transport.shake_hands()
                    await connection.run()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self.counters.lost += 1
                except Silent:
                    self._hangups.forget(transport.fileno())
                    self._waiting.park(connection, kept, watch.lease)
                    parked = True
                watch.hung_up = transport.hung_up
                over = True
            if watch.hung_up and not over:
                self.counters.lost += 1
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
                self._hangups.forget(transport.fileno())
                if kept.age is not None:
                    kept.age.release()
                transport.close()
                self.counters.closed += 1
            if not self.connections:
                self._empty.set()

    def _hung_up(self, connection: HttpConnection, watch: reaper.trio.Connection, gone: bool) -> None:
        """The peer has shut its side, and may still want its answer; or it is gone, and wants nothing."""
        transport, policy = connection.transport, connection.policy
        if not gone:
            policy.hang_up(trio.current_time())
            if self.draining:
                connection.nudge()
        elif not transport.shut:  # otherwise both sides have, and there is nothing more to it
            transport.hung_up = True
            watch.hang_up()

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
            connection.transport.shut_down()
        limit.release()

    async def _refuse(self, transport: Transport) -> None:
        """One connection too many: 503 for as many as that is cheap for."""
        self.counters.refused += 1
        self._refusing += 1
        try:
            if self._refusing <= REFUSALS and self._tls is None:
                brief = self.config.timeouts.linger or self.config.reaper.tick
                with self.watcher.watch(transport, brief, reason="linger"):
                    await transport.send_all(
                        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n"
                        b"retry-after: 1\r\n\r\n"
                    )
                    await transport.read_away()
        except trio.BrokenResourceError:
            pass
        finally:
            self._refusing -= 1
            transport.close()

    def _limit_age(self, kept: Kept) -> None:
        """Put the age limit in force, counted from when *kept* was opened."""
        config = self.config
        if kept.age is not None:
            kept.age.release()
            kept.age = None
        seconds = lifespan(
            config.timeouts.max_age, config.limits.max_age_jitter, config.reaper.tick, self._random.random()
        )
        if not seconds:
            return
        # A lease of its own that is never touched. It does not cut a request short: it only says "no more after this".
        left = kept.opened + seconds - trio.current_time()
        kept.age = self.watcher.register(
            ("age", next(self._numbers)), max(left, INSTANT), lambda expiry: self._too_old(kept), reason=TOO_OLD
        )

    def _too_old(self, kept: Kept) -> None:
        if kept.policy is not None:
            kept.policy.retire(TOO_OLD, trio.current_time())
        elif self.lot is not None and not kept.begun:
            self.lot.end(kept, TOO_OLD)

    def _schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        self.watcher.driver.after(seconds, lambda: call(trio.current_time()))

    async def reload(self, config: ReaperConfig) -> None:
        """Put what is live of *config* in force, also on open connections, a slice of them at a time."""
        changed = changes(self.config, config)
        for change in changed:
            log.warning("reload: %s", change)
        self.config = applied(self.config, config)
        self.counters.reloads += 1
        if self.lot is not None:
            for index, parked in enumerate(self.lot, start=1):
                self._waiting.reload(parked)
                if index % RELOADS_PER_SLICE == 0:
                    await trio.lowlevel.checkpoint()
        await self._each(lambda policy: policy.reload(self.config, trio.current_time()))
        if any(change.path in ("timeouts.max_age", "limits.max_age_jitter") for change in changed):
            open_now = list(self.connections.values())
            if self.lot is not None:
                open_now += self.lot
            for index, kept in enumerate(open_now, start=1):
                if kept.policy is not None or kept.fd >= 0:
                    self._limit_age(kept)
                if index % RELOADS_PER_SLICE == 0:
                    await trio.lowlevel.checkpoint()

    def figures(self) -> dict[str, float]:
        """As in `serving.Server`."""
        counters = self.counters
        return {"open": self.open, "accepted": counters.opened, "reaped": sum(counters.reaped.values())}

    def families(self) -> tuple[Family, ...]:
        """As in `serving.Server`."""
        return tuple(own_families(self))

    async def drain(self) -> None:
        """Let every connection finish the request in flight, and the idle ones wait a moment for one; then return.

        What has not finished after `timeouts.drain` is left: cancel it. Stop accepting first.
        """
        self.draining = True
        late = self.watcher.driver.after(self.config.timeouts.drain, lambda: self._empty.set())
        window = self.config.timeouts.drain_window
        async with trio.open_nursery() as nursery:
            if self.lot is not None:
                nursery.start_soon(self._drain_parked, self.lot, window)
            for connection in list(self.connections):
                if connection.policy.hung_up:
                    connection.nudge()
            await self._each(lambda policy: policy.retire("drain", trio.current_time()), window)
        # One that has just been woken is nowhere yet; but it has been opened and not closed.
        while self.counters.opened != self.counters.closed and not late.expired:
            self._empty = trio.Event()
            await self._empty.wait()
        late.cancel()

    async def _drain_parked(self, lot: HandoffLot, window: float) -> None:
        """The parked have no more been silent for `drain_idle` than the others: a request may be on its way."""
        timeouts = self.config.timeouts
        brief = min(timeouts.drain_idle, timeouts.drain / 2)
        if len(lot):
            await trio.sleep(brief)
        await lot.drain(timeouts.drain - brief, window)

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


def _not_found(exchange: Exchange) -> Awaitable[None]:
    return exchange.respond(404, b"404 Not Found\n", "text/plain; charset=utf-8")


def _not_allowed(allowed: Iterable[str], exchange: Exchange) -> Awaitable[None]:
    allow = [("allow", ", ".join(allowed))]
    return exchange.respond(405, b"405 Method Not Allowed\n", "text/plain; charset=utf-8", allow)
