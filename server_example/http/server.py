"""All HTTP connections of one process: they are admitted, reloaded, retired and drained
here.

The parking lot opens and closes a connection, and gives it a task for each request that
wakes it: `_serve`. The reaper ends every wait. The timeouts of trio bound only the last
answer, to a client whose connection has been ended or refused.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.driver.sockets import peer_name
from reaper.metrics import Family
from reaper.policy import ANSWERS, INSTANT, NOT_TAKEN, IdlePolicy, Phase, lifespan, reasons
from reaper.policy.min_rate import Sweep
from reaper.trio.accepting import after
from reaper.trio.linger import Silent

from ..listening import Admit, tls_context
from ..status import Desk
from .connection import Exchange, HttpConnection, HttpError, Route
from .routes import ROUTES
from .shared import Shared
from .streams import tell_the_loop
from .transport import Transport
from .waiting import Kept, Waiting

RELOADS_PER_SLICE = 256
"""Connections that get new timeouts, or begin to drain, before the loop runs again:
about 2 ms.
"""

REFUSALS = 64
"""How many connections beyond the limit may be answered 503 at the same time. Further
ones are closed without an answer.
"""

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"connection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"
)

LINGER = 1.0
"""Seconds for which a connection keeps its task after a response, while few connections
do so. It is parked after at most twice that. A client that asks again sooner never pays
for a new task; one that does not pays for a task once per silence.
"""

SWEEPS_PER_TICK = 4
"""How often per tick the least rates are checked. The core may add up to half a tick to
each interval, so less than one tick lies between two checks.
"""

COUNTED = (
    ("connections_opened", "opened", "Connections accepted."),
    ("connections_closed", "closed", "Connections closed."),
    ("connections_refused", "refused", "Connections refused: max_connections were open."),
    ("connections_lost", "lost", "Connections broken off by the client."),
    ("accept_errors", "accept_errors", "Errors of accept(2)."),
    ("requests", "requests", "Requests begun."),
    ("failures", "failures", "Routes that raised."),
    ("reloads", "reloads", "Configurations put in force by SIGHUP."),
)
"""Metrics: name, field of `Counters`, help."""

log = logging.getLogger("server_example.http")


class HttpServer(Shared):
    """The connections of one process.

    Args:
        config: Timeouts, limits, TLS.
        watcher: A running reaper.
        routes: Path -> route, in place of those of the example.
    Attributes:
        lot: All connections.
        connections: The connections that have a task, and what the lot keeps of each.
    Raises:
        ConfigError: certificate and key cannot be used.
    """

    kind = "http"

    def __init__(
        self,
        config: ReaperConfig,
        watcher: reaper.trio.TrioReaper,
        routes: Mapping[str, Route] = ROUTES,
    ) -> None:
        super().__init__(config, watcher)
        self.connections: dict[HttpConnection, Kept] = {}
        self.desk = Desk(self)
        self._routes = routes
        self._tls = tls_context(config)
        self.lot = Waiting(self, self._serve, LINGER, self._tls)
        self._numbers = itertools.count()
        self._sweep = Sweep(self._schedule, config.reaper.tick / SWEEPS_PER_TICK)
        self._random = random.Random()

    def route(self, method: str, path: str) -> Route:
        """The route for a request."""
        found = self._routes.get(path)
        if found is None:
            return _not_found
        allowed = getattr(found, "methods", ("GET", "HEAD"))
        return found if method in allowed else partial(_not_allowed, allowed)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Admit]:
        """A function that serves an accepted connection, for the length of the
        block.
        """
        async with self.watcher.keeping(self.lot), trio.open_nursery() as refusing:

            def admit(connected: socket.socket) -> None:
                if len(self.lot) < self.config.limits.max_connections:
                    self.counters.opened += 1
                    self._limit_age(self.lot.admit(connected))
                    return
                self.counters.refused += 1
                if self._tls is None and len(refusing.child_tasks) < REFUSALS:
                    refusing.start_soon(self._refuse, connected)
                else:
                    connected.close()

            yield admit
            refusing.cancel_scope.cancel()

    def not_accepted(self, error: OSError) -> None:
        """Count an error of accept(2), and log it if accepting pauses for it."""
        self.counters.accept_errors += 1
        if after(error) == "pause":
            log.error("cannot accept: %s", error.strerror)

    async def _serve(self, transport: Transport) -> None:
        """Serve the requests of a connection until it ends, or is silent."""
        kept: Kept = transport.parked  # type: ignore[assignment]
        now = trio.current_time()
        policy = IdlePolicy(
            self.config,
            transport,
            now,
            self._sweep,
            transport.progress,
            Phase.HEADERS,
            kept.reap,
            transport.hidden,
        )
        policy.requests = kept.requests
        transport.policy = policy
        connection = kept.connection = HttpConnection(
            self, self.route, transport, policy, kept.head, kept.blank
        )
        kept.head = b""
        self.connections[connection] = kept
        self.lot.listen_for_its_end(kept)
        if self.draining or kept.too_old:
            policy.retire(reasons.DRAIN if self.draining else reasons.MAX_AGE, now)
        try:
            with trio.CancelScope() as transport.scope:
                await connection.run()
            if transport.reason is not None:
                await self._farewell(connection, transport.reason)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.counters.lost += 1
        except Silent:
            kept.requests, kept.blank = policy.requests, connection.blank
            kept.head = bytes(connection.h11.trailing_data[0])
            raise
        except Exception:
            self.counters.failures += 1
            log.exception("a connection of %s failed", peer_name(kept.fd))
        finally:
            policy.close()
            transport.end()
            del self.connections[connection]
            kept.connection = None

    async def _farewell(self, connection: HttpConnection, reason: str) -> None:
        """Answer a client whose request had begun when *reason* ended its connection.

        The answer is not waited for beyond `timeouts.linger`: the client has had its
        time.
        """
        transport = connection.transport
        if reason in NOT_TAKEN:
            transport.abort()
        status = ANSWERS.get(reason)
        if status is None:
            return
        # For the journal this connection has ended. A timeout of trio's limits what is
        # left of it.
        transport.policy = None
        with trio.move_on_after(self.config.timeouts.linger or self.config.reaper.tick):
            # The client may have hung up meanwhile.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await connection.answer_error(HttpError(status, f"{reason} timed out"))
            transport.shut_down()

    async def _refuse(self, connected: socket.socket) -> None:
        """Answer 503 to one connection too many.

        What it sends meanwhile is read, because otherwise a reset would overtake the
        answer.
        """
        with (
            connected,
            suppress(OSError),
            trio.move_on_after(self.config.timeouts.linger or self.config.reaper.tick),
        ):
            connected.send(BUSY)  # this does not block: the queue is empty
            connected.shutdown(socket.SHUT_WR)
            await trio.lowlevel.wait_readable(connected)
            while connected.recv(65536):
                await trio.lowlevel.wait_readable(connected)

    def _limit_age(self, kept: Kept) -> None:
        """Put the age limit in force, counted from when *kept* was opened."""
        config = self.config
        if kept.age is not None:
            kept.age.release()
            kept.age = None
        seconds = lifespan(
            config.timeouts.max_age,
            config.limits.max_age_jitter,
            config.reaper.tick,
            self._random.random(),
        )
        if not seconds:
            return
        # The age has a lease of its own, which is never touched. When it is over, a
        # request in flight goes on, and its answer is the last.
        left = kept.opened + seconds - trio.current_time()
        kept.age = self.watcher.register(
            ("age", next(self._numbers)),
            max(left, INSTANT),
            lambda expiry: self._too_old(kept),
            reason=reasons.MAX_AGE,
        )

    def _too_old(self, kept: Kept) -> None:
        if kept.connection is not None:
            kept.connection.policy.retire(reasons.MAX_AGE, trio.current_time())
        elif not kept.begun and not kept.has_unread():
            kept.reap(reasons.MAX_AGE)

    def _schedule(self, seconds: float, call: Callable[[float], None]) -> None:
        self.watcher.driver.after(seconds, lambda: call(trio.current_time()))

    async def reload(self, config: ReaperConfig) -> None:
        """Put *config* in force, also on open connections, `RELOADS_PER_SLICE` at a
        time.
        """
        before, self.config = self.config, config
        self.counters.reloads += 1
        self.streams.reload(config)
        aged = any(
            before.get(path) != config.get(path)
            for path in ("timeouts.max_age", "limits.max_age_jitter")
        )
        for index, kept in enumerate(self.lot, start=1):
            if kept.fd < 0:
                continue  # the connection has ended meanwhile
            if kept.connection is None:
                self.lot.reload(kept)
            else:
                kept.connection.policy.reload(self.config, trio.current_time())
            if aged:
                self._limit_age(kept)
            if index % RELOADS_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()

    def figures(self) -> dict[str, float]:
        """The counters `open`, `accepted` and `reaped`."""
        return {
            "open": len(self.lot),
            "accepted": self.counters.opened,
            "reaped": self.lot.reaped.total(),
        }

    def families(self) -> tuple[Family, ...]:
        """Metrics besides those of the reaper: everything that is counted here."""
        counters = self.counters
        phases = dict(Counter(connection.policy.phase.value for connection in self.connections))
        phases["parked"] = self.lot.parked
        responses = {str(status): count for status, count in counters.responses.items()}
        return (
            Family(
                "http_connections",
                "gauge",
                "Open connections, parked ones included.",
                len(self.lot),
            ),
            Family(
                "http_connections_in_phase", "gauge", "Open connections by phase.", phases, "phase"
            ),
            Family("http_responses", "counter", "Responses by status.", responses, "status"),
            *(
                Family(f"http_{name}", "counter", about, getattr(counters, field))
                for name, field, about in COUNTED
            ),
        )

    async def drain(self) -> None:
        """Let every connection finish its request in flight; idle ones wait briefly for
        one. Streams are told, each at its instant.

        Returns when all connections have ended. Those that have not after
        `timeouts.drain` seconds are cut. Stop accepting first.
        """
        self.draining = True
        timeouts = self.config.timeouts
        tell_the_loop()
        self.streams.stop()
        # Parked connections get `drain_idle`, too: a request may be on its way to them.
        brief = min(timeouts.drain_idle, timeouts.drain / 2) if len(self.lot) else 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._retire_all, timeouts.drain_window)
            await trio.sleep(brief)
            await self.lot.drain(timeouts.drain - brief, timeouts.drain_window)

    async def _retire_all(self, window: float) -> None:
        connections = list(self.connections)
        for index, connection in enumerate(connections, start=1):
            if connection in self.connections:
                connection.policy.retire(reasons.DRAIN, trio.current_time())
                if connection.policy.hung_up:
                    connection.nudge()
            if window:
                await trio.sleep(window / len(connections))
            elif index % RELOADS_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()


def _not_found(exchange: Exchange) -> Awaitable[None]:
    return exchange.respond(404, b"404 Not Found\n", "text/plain; charset=utf-8")


def _not_allowed(allowed: Iterable[str], exchange: Exchange) -> Awaitable[None]:
    allow = [("allow", ", ".join(allowed))]
    return exchange.respond(405, b"405 Method Not Allowed\n", "text/plain; charset=utf-8", allow)
