"""uvicorn's protocols, guarded against every kind of idleness:
`uvicorn app:app --http reaper.uvicorn:HttpTools`.

The rule of this module: *uvicorn is not patched, and asked as little as possible*. Its names that
are used are `uvicorn_names.NAMES`; a version without one of them is refused in one line. Where
uvicorn would set its own keep-alive timer, its connection is told instead that it is idle, which is
one store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server, ServerState

from ..asyncio import transports
from ..asyncio.reaper import AsyncioReaper
from ..asyncio.serve import loop_factory
from ..config.settings import ReaperConfig
from ..driver.driver import Driver
from ..driver.sockets import TCP_NOTSENT_LOWAT
from ..driver.watched import check_idle
from ..journal import Journal
from ..policy import ANSWERS, Phase
from ..policy.min_rate import Sweep
from ..policy.reasons import DRAIN, MAX_AGE
from . import metrics as metrics_of
from .configured import advertised, ages, kept_alive
from .guarded import QUEUED_BYTES, Age, Guarded
from .metrics import Application, Reports
from .uvicorn_tunnel import tunnel

REQUEST_TIMEOUT = b"408 Request Timeout\n"
ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(REQUEST_TIMEOUT), REQUEST_TIMEOUT)
)
"""What a client is told whose request did not come in time."""

CLOSE = (b"connection", b"close")

UNSENT_BYTES = 131072
"""What the kernel may hold that is not even on its way; the rest waits in the transport, where it
is seen.
"""

log: logging.Logger = logging.getLogger("uvicorn.error")


class Timerless:
    """The loop as uvicorn's HTTP protocols use it, but for the timer that they set when a response
    is complete.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.create_task: Callable[..., asyncio.Task[Any]] = loop.create_task

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """*callback* is the protocol's `timeout_keep_alive_handler`: its connection is idle from
        now on.
        """
        callback.__self__.went_idle()  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Origin(NamedTuple):
    """What uvicorn gives to each of its protocols; one for all connections of a server."""

    kind: type[Any]
    config: Any
    server_state: Any
    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop | None


class Shared:
    """What the guarded connections of one uvicorn server share.

    Args:
        uvicorn: The server's own settings; its keep-alive holds where *settings* leave the default
            `keep_alive`.
        settings: What is in force; None: the file that REAPER_CONFIG names, and the variables
            REAPER_*.
        journal: Where the life of every connection is written; None: nowhere.
    Attributes:
        config: With the keep-alive in force.
        reaper: Runs.
    """

    def __init__(
        self, uvicorn: Config, settings: ReaperConfig | None, journal: Journal | None
    ) -> None:
        settings = (
            ReaperConfig.load(os.environ.get("REAPER_CONFIG")) if settings is None else settings
        )
        config = kept_alive(settings, uvicorn.timeout_keep_alive)
        self.config: ReaperConfig = config
        self.reaper: AsyncioReaper = AsyncioReaper(config, journal=journal, listener="http")
        self.reaper.start()
        self.driver: Driver = self.reaper.driver
        self.driver.books.log = log  # which uvicorn configures, and no other
        self.first_byte: float | None = check_idle(config.timeouts.first_byte)
        self.keep_alive: float | None = check_idle(config.timeouts.keep_alive)
        self.tunnel: float | None = check_idle(config.timeouts.tunnel)
        self.sweep: Sweep = self.reaper.sweep
        self.loop: Timerless = Timerless(self.reaper.loop)
        self.leave_by: float | None = None  # once the server stops: when all have to be gone
        self.greeting: Greeting | None = None
        self._lifespan = ages(config)
        self._uvicorn = uvicorn
        self._origin: Origin | None = None
        self._idlers: list[GuardedHttp] = []

    def left_to_drain(self) -> float:
        """The server stops, now if not before: seconds until what is in use is cut."""
        now, tick = self.driver.now(), self.driver.core.tick
        if self.leave_by is None:
            self.leave_by = now + self.config.timeouts.drain
        return max(self.leave_by - now, tick)

    def age(self, connection: Guarded) -> Age | None:
        """Have *connection*, made now, told when it has reached its `max_age`; None: there is none."""
        seconds = self._lifespan()
        if not seconds:
            return None
        age, driver = Age(connection), self.driver
        age.lease = driver.register(
            ("age", driver.next_number()), seconds, age.reached, reason=MAX_AGE
        )
        return age

    def begin(self, server_state: ServerState) -> None:
        """Its first connection is made: from now on all responses name the keep-alive, and a stop
        waits.
        """
        if seconds := advertised(self.config):
            self._say(server_state, (b"keep-alive", b"timeout=%d" % seconds))
        stop: Any = signal.getsignal(signal.SIGTERM)
        delay = self.config.timeouts.drain_delay
        if not delay or not isinstance(getattr(stop, "__self__", None), Server):
            return  # it is run by a program, which says when it is to stop
        loop = self.reaper.loop

        def delayed(number: int, frame: Any) -> None:
            signal.signal(number, stop)  # a second one stops it at once
            loop.call_soon_threadsafe(
                self._stop_in, delay, server_state, functools.partial(stop, number, None)
            )

        signal.signal(signal.SIGTERM, delayed)

    def _stop_in(self, delay: float, server_state: ServerState, stop: Callable[[], object]) -> None:
        log.info("Shutting down in %g s; until then newcomers are served", delay)
        metrics_of.note_stopping()
        self._say(server_state, CLOSE)
        self.reaper.loop.call_later(delay, stop)

    def _say(self, server_state: ServerState, header: tuple[bytes, bytes]) -> None:
        """Have *header* in every response from now on; uvicorn makes its list anew every second."""
        names = {name.lower() for name, _ in self._uvicorn.encoded_headers}
        if header[0] not in names:
            self._uvicorn.encoded_headers.append(header)
            server_state.default_headers = [*server_state.default_headers, header]

    def origin(self, *given: Any) -> Origin:
        """`Origin` of these; the same as the last if they are."""
        known = self._origin
        if known is None or any(new is not old for new, old in zip(given, known, strict=True)):
            known = self._origin = Origin(*given)
        return known

    def note_idle(self, connection: GuardedHttp) -> None:
        """Have *connection* looked at in `REST_AFTER` seconds: whether it rests."""
        if not self._idlers:
            self.reaper.loop.call_later(REST_AFTER, self._rest_idlers)
        self._idlers.append(connection)

    def _rest_idlers(self) -> None:
        idlers, self._idlers = self._idlers, []
        for connection in idlers:
            if not connection.rests():
                self.note_idle(connection)


class Greeting:
    """In the server's list of connections while any of them shakes hands: a stop is told to those,
    too, and waits.

    Nobody is told when a handshake has failed: what was made for it is freed then.

    Args:
        connections: The server's list.
    """

    def __init__(self, shared: Shared, connections: set[Any]) -> None:
        self._shared = shared
        self._connections = connections
        self._known: set[weakref.ref[Any]] = set()

    def add(self, connection: Any) -> None:
        """It is about to shake hands."""
        self._known.add(weakref.ref(connection, self._over))
        self._connections.add(self)

    def greeted(self, connection: Any) -> None:
        self._over(weakref.ref(connection))

    def _over(self, known: weakref.ref[Any]) -> None:
        self._known.discard(known)
        if not self._known:
            self._connections.discard(self)

    def shutdown(self) -> None:
        """The server stops. It waits for a handshake no longer than for anything else."""
        driver = self._shared.driver
        key = ("greeting", driver.next_number())
        driver.register(
            key, self._shared.left_to_drain(), lambda expiry: self._connections.discard(self)
        )


_SHARED: weakref.WeakKeyDictionary[Config, Shared] = weakref.WeakKeyDictionary()


def shared_by(
    config: Config,
    settings: ReaperConfig | None = None,
    journal: Journal | None = None,
    server_state: ServerState | None = None,
) -> Shared:
    """What the connections of the server of *config* share; made when its first connection is."""
    found = _SHARED.get(config)
    if found is None or found.reaper.loop is not asyncio.get_running_loop():
        found = _SHARED[config] = Shared(config, settings, journal)
        REPORTS.join()
        if server_state is not None and threading.current_thread() is threading.main_thread():
            found.begin(server_state)
    return found


REST_AFTER = 1.0
"""Seconds of silence between two requests after which uvicorn's protocol is dropped; at most twice
that.
"""


class GuardedHttp(Guarded):
    """What both HTTP protocols add to uvicorn's.

    Attributes:
        settings: In force; None: the file that REAPER_CONFIG names, and the variables REAPER_*.
        journal: Where the life of every connection is written; None: nowhere.
    """

    __slots__ = ("_half_closed", "_noted", "_origin")

    RESTS: ClassVar[Phase] = Phase.KEEP_ALIVE

    settings: ClassVar[ReaperConfig | None] = None
    journal: ClassVar[Journal | None] = None

    cycle: Any
    flow: Any
    scope: Any
    loop: Any
    config: Config
    ws_protocol_class: Any

    def __new__(  # type: ignore[misc]
        cls,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> IdleProtocol:
        """What the loop is given for a new connection; one of this class takes its place at the
        first byte.
        """
        shared = shared_by(config, cls.settings, cls.journal, server_state)
        made = IdleProtocol(shared, shared.origin(cls, config, server_state, app_state, _loop))
        if config.ssl is not None:
            if shared.greeting is None:
                shared.greeting = Greeting(shared, server_state.connections)
            shared.greeting.add(made)
        return made

    @classmethod
    def configured(
        cls, settings: ReaperConfig | None = None, journal: Journal | None = None
    ) -> type[GuardedHttp]:
        """This class with settings of its own, for
        `uvicorn.run(app, http=HttpTools.configured(settings))`.
        """
        return type(
            cls.__name__, (cls,), {"__slots__": (), "settings": settings, "journal": journal}
        )

    # ---- what uvicorn and the loop call
    # --------------------------------------------------------------------------

    def take_over(self, before: IdleProtocol) -> None:
        """Go on with the connection of *before*."""
        shared = before.shared
        phase = before.phase()
        self.shared = shared
        self.loop = shared.loop
        self._origin = before.origin
        self._half_closed = before.half_closed
        self._noted = False
        super().connection_made(before.transport)  # type: ignore[misc]
        self._begin(getattr(shared, phase.value), phase.value, before)
        before.hand_over(self)
        before.transport.set_protocol(self)

    def has_spoken(self) -> None:
        """Its first bytes have been received."""
        if self._noted:  # an eager task has answered already
            self._rest()
        else:
            self.look()

    def rests(self) -> bool:
        """Have a `IdleProtocol` in its place if it has been silent for `REST_AFTER`. False: ask
        again later.
        """
        self._noted = False
        if (
            self._over
            or self.waiting is not None
            or self._leaving is not None
            or not self._is_between()
        ):
            return True  # it is looked at again when it has become idle again
        until = self.lease.active_until
        now = self.shared.driver.now()
        if (
            until is None
            or now - until < REST_AFTER / 2
            or self._much_is_queued()
            or self.transport.is_closing()
        ):
            self._noted = True
            return False
        quiet = IdleProtocol(self.shared, self._origin)
        quiet.half_closed = self._half_closed
        quiet.rest(self)
        self._drop()
        return True

    def _is_idle(self) -> None:
        self.cycle = self.scope = (
            None  # what they hold is freed at once; the rest, when it has been idle for a while
        )
        if not self._noted:
            self._noted = True
            self.shared.note_idle(self)

    def _is_between(self) -> bool:
        """Whether nothing of uvicorn's has to be kept: no request, no part of one, no reading that
        is paused.
        """
        raise NotImplementedError

    def _drop(self) -> None:
        """Break the circles that would have it wait for the collector."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # type: ignore[misc]
        self._left(by_peer=exc is not None or self._half_closed)

    def eof_received(self) -> None:
        """The peer sends no more; uvicorn lets the loop close the connection when all has been
        sent.
        """
        self._half_closed = True
        super().eof_received()  # type: ignore[misc]
        if transports.buffered(self.transport):
            self.look()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self.look()

    def on_response_complete(self) -> None:
        """A response is complete, and perhaps the last: then uvicorn has closed, and what is left
        has yet to go out.
        """
        super().on_response_complete()  # type: ignore[misc]
        if self.transport.is_closing():
            self.look()

    def shutdown(self) -> None:
        """The server stops: the idle soon, the others after their response, all before the drain is
        over.
        """
        self.leave(DRAIN)
        self._announce()

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """From here on the connection is a WebSocket's."""
        base = self.ws_protocol_class
        made: Any = tunnel(base)
        self.ws_protocol_class = functools.partial(made, shared=self.shared, before=self)
        super().handle_websocket_upgrade(*event)  # type: ignore[misc]

    def went_idle(self) -> None:
        """A response is complete, and no other request is waiting for its turn."""
        raise NotImplementedError

    # ---- phases
    # --------------------------------------------------------------------------------------------------

    def phase(self) -> Phase:
        """What it waits for, by uvicorn's own account."""
        if self.flow.write_paused:
            return self._writing()
        phase = self._reading()
        if (phase is Phase.KEEP_ALIVE or self.transport.is_closing()) and self._much_is_queued():
            return self._writing()
        return phase

    def _writing(self) -> Phase:
        return Phase.HALF_CLOSED if self._half_closed else Phase.WRITE

    def _much_is_queued(self) -> bool:
        transport = self.transport
        return bool(transports.buffered(transport)) or transports.queued(transport) > QUEUED_BYTES

    def _reading(self) -> Phase:
        """As far as it depends on what the peer sends."""
        raise NotImplementedError

    def _between(self) -> Phase:
        """Nothing has been asked for."""
        return Phase.FIRST_BYTE if self._believed() is Phase.FIRST_BYTE else Phase.KEEP_ALIVE

    def _wants_body(self) -> bool:
        """Whether the peer, which has more of a body to send, could send it now."""
        return not self.flow.read_paused and not self.cycle.waiting_for_100_continue

    def _rests_in(self, phase: Phase) -> bool:
        return phase is Phase.KEEP_ALIVE or (phase is Phase.IN_FLIGHT and self._whole())

    def _whole(self) -> bool:
        """Whether no more of the request in flight is to come."""
        raise NotImplementedError

    def _rest(self) -> None:
        shared = self.shared
        self.lease.touch()
        self.lease.retime(shared.keep_alive, shared.driver.now(), Phase.KEEP_ALIVE.value)
        shared.driver.poke()

    # ---- the end
    # -------------------------------------------------------------------------------------------------

    def grew_old(self) -> None:
        self.leave(MAX_AGE)
        self._announce()

    def _announce(self) -> None:
        """Say `Connection: close` with the response in flight, if it has not begun, and close after
        it.
        """
        cycle = self.cycle
        if self._leaving is None or cycle is None or cycle.response_complete:
            return
        cycle.keep_alive = False
        if not cycle.response_started and CLOSE not in cycle.default_headers:
            cycle.default_headers = [*cycle.default_headers, CLOSE]

    def _owes_an_answer(self) -> bool:
        """Whether the request that is waited for, if only for its headers, has had no part of a
        response.
        """
        cycle = self.cycle
        return (
            cycle is None
            or not cycle.response_started
            or (cycle.response_complete and not cycle.more_body)
        )

    def _farewell(self, reason: str) -> bytes:
        return ANSWER if ANSWERS.get(reason) and self._owes_an_answer() else b""


class IdleProtocol(Guarded, asyncio.Protocol):
    """In the place of uvicorn's protocol while a connection is silent: before its first byte, and
    when it has rested.

    Silence costs a transport, a lease, and nothing of uvicorn's: protocol, parser and flow control
    are made when bytes come, and dropped when none have come for a while.

    Args:
        shared: Of its server.
        origin: What to make the other of.
    Attributes:
        half_closed: Whether the peer sends no more.
    """

    __slots__ = ("__weakref__", "half_closed", "origin", "transport")

    RESTS: ClassVar[Phase] = Phase.KEEP_ALIVE

    def __init__(self, shared: Shared, origin: Origin) -> None:
        self.shared = shared
        self.origin: Origin = origin
        self.half_closed: bool = False
        self._over = True  # until there is a connection

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.origin.server_state.connections.add(self)
        found = transports.socket_of(transport)
        if found is not None and found.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # the peer is gone already
                found.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._begin(self.shared.first_byte, Phase.FIRST_BYTE.value)
        self._age = self.shared.age(self)
        if self.shared.greeting is not None:
            self.shared.greeting.greeted(self)
        if self.shared.leave_by is not None:  # it came, or shook hands, while the server stops
            self.shutdown()

    def rest(self, before: Guarded) -> None:
        """Take the place of *before*, a protocol of uvicorn's between two requests. Its peer's
        silence goes on.
        """
        self.transport: Any = before.transport
        self._begin(self.shared.keep_alive, Phase.KEEP_ALIVE.value, before)
        before.hand_over(self)
        connections = self.origin.server_state.connections
        connections.discard(before)
        connections.add(self)
        self.transport.set_protocol(self)

    def wake(self) -> Any:
        """Have uvicorn's protocol in its place from now on; that one."""
        kind, config, server_state, app_state, loop = self.origin
        made = object.__new__(kind)
        made.__init__(config, server_state, app_state, loop)
        made.take_over(self)
        server_state.connections.discard(self)
        return made

    def data_received(self, data: bytes) -> None:
        fresh = self.phase() is Phase.FIRST_BYTE
        made = self.wake()
        made.data_received(data)
        if fresh:
            made.has_spoken()

    def eof_received(self) -> None:
        """The peer sends no more; the loop closes."""
        self.half_closed = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.origin.server_state.connections.discard(self)
        self._left(by_peer=exc is not None or self.half_closed)

    def shutdown(self) -> None:
        if not self._over:
            self.wake().shutdown()

    def grew_old(self) -> None:
        self.wake().grew_old()

    def phase(self) -> Phase:
        return self._believed()

    def _rests_in(self, phase: Phase) -> bool:
        return True

    @property
    def client(self) -> Any:
        """The peer's address, as uvicorn knows it."""
        found = self.transport.get_extra_info("peername")
        return (
            found if isinstance(found, tuple) else None
        )  # the name of a Unix socket is none of a client


class H11(GuardedHttp, H11Protocol):
    """uvicorn's `H11Protocol`, guarded."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        waiting = self.waiting
        if waiting is None:
            H11Protocol.data_received(self, data)
            if self.conn.their_state is not h11.DONE:
                self.look()
        else:
            waiting.bytes_in(len(data))
            H11Protocol.data_received(self, data)
            self.look()
            self._announce()

    def went_idle(self) -> None:
        """A response is complete. uvicorn may go on with the next request at once."""
        self.lease.touch()
        if (
            self.waiting is None
            and self.conn.their_state is h11.DONE
            and not self.transport.get_write_buffer_size()
        ):
            self._is_idle()
        else:
            self.shared.reaper.loop.call_soon(self.look)  # when it has

    def _reading(self) -> Phase:
        conn = self.conn
        theirs = conn.their_state
        if theirs is h11.IDLE:
            return Phase.HEADERS if conn.trailing_data[0] else self._between()
        if theirs is h11.SEND_BODY:
            return Phase.BODY if self._wants_body() else Phase.IN_FLIGHT
        return (
            Phase.IN_FLIGHT
            if conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
            else self._between()
        )

    def _whole(self) -> bool:
        return self.conn.their_state is not h11.SEND_BODY

    def _is_between(self) -> bool:
        conn = self.conn
        between = (
            conn.their_state is h11.IDLE
            and conn.our_state is h11.IDLE
            and not conn.trailing_data[0]
        )
        return between and self.cycle is None and not self.flow.read_paused


try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:  # httptools is an extra of uvicorn's
    Auto: type[GuardedHttp] = H11
else:

    class HttpTools(GuardedHttp, HttpToolsProtocol):
        """uvicorn's `HttpToolsProtocol`, guarded."""

        __slots__ = ()

        def data_received(self, data: bytes) -> None:
            waiting = self.waiting
            if waiting is None:
                HttpToolsProtocol.data_received(self, data)
                if (scope := self.scope) is not None:
                    cycle = self.cycle
                    if cycle is None or cycle.scope is not scope or cycle.more_body:
                        self.look()
            else:
                waiting.bytes_in(len(data))
                HttpToolsProtocol.data_received(self, data)
                self.look()
                self._announce()

        def on_message_complete(self) -> None:
            """The parser has seen the end of a request; uvicorn notes it only while the response is
            not complete.
            """
            HttpToolsProtocol.on_message_complete(self)
            cycle = self.cycle
            if cycle is not None and cycle.response_complete:
                cycle.more_body = False

        def went_idle(self) -> None:
            self.lease.touch()
            cycle = self.cycle
            if (
                self.waiting is None
                and not cycle.more_body
                and cycle.scope is self.scope
                and not self.transport.get_write_buffer_size()
            ):
                self._is_idle()
            else:
                self.look()

        def _reading(self) -> Phase:
            if self.pipeline:
                return (
                    Phase.IN_FLIGHT
                )  # an earlier request is being answered; `cycle` is the newest's
            scope, cycle = self.scope, self.cycle
            if scope is None:
                return self._between()
            if cycle is not None and not cycle.response_complete:
                wanted = cycle.scope is scope and cycle.more_body and self._wants_body()
                return Phase.BODY if wanted else Phase.IN_FLIGHT
            if cycle is None or cycle.scope is not scope:
                return Phase.HEADERS
            return Phase.BODY if cycle.more_body else self._between()

        def _whole(self) -> bool:
            cycle = self.cycle
            return cycle is not None and cycle.scope is self.scope and not cycle.more_body

        def _is_between(self) -> bool:
            return (
                self.cycle is None
                and self.scope is None
                and not self.pipeline
                and not self.flow.read_paused
            )

        def _drop(self) -> None:
            del self.parser

    Auto = HttpTools


def loop() -> asyncio.AbstractEventLoop:
    """For `--loop reaper.uvicorn:loop`: TLS handshakes are bounded by `timeouts.handshake`, not by
    asyncio's 60 s.
    """
    return loop_factory(config=ReaperConfig.load(os.environ.get("REAPER_CONFIG")))()


REPORTS = Reports(
    lambda: [it.reaper for it in _SHARED.values() if not it.reaper.loop.is_closed()]
)  # not of the ended
metrics: Application = REPORTS.metrics
status: Application = REPORTS.status
"""ASGI applications to mount, `app.mount("/metrics", reaper.uvicorn.metrics)`: what all workers of
the server know.
"""
ready: Application = metrics_of.ready
"""One for a readiness probe: 200, and 503 once this process is to stop."""
