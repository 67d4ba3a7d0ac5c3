"""uvicorn's two HTTP protocols, guarded: `HttpTools` and `H11`.

The rule of this module: *uvicorn says what happened, by its own fields and calls*.
`GuardedHttp` derives the phase of a connection from them; the two classes at the end
know where the parsers keep them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, ClassVar, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ...asyncio import transports
from ...config.settings import ReaperConfig
from ...driver import sockets
from ...driver.served import TIMED_OUT
from ...errors import one_line
from ...journal import Journal
from ...policy import ANSWERS, Phase
from ...policy.reasons import DRAIN, MAX_AGE
from ..abandoned import link_of
from .base import QUEUED_BYTES, Guarded
from .idle import IdleProtocol
from .shared import CLOSE, log, shared_by
from .tunnel import tunnel


class GuardedHttp(Guarded):
    """What both HTTP protocols add to uvicorn's.

    Attributes:
        settings: The settings in force; None: those of the file that REAPER_CONFIG
            names and of the variables REAPER_*.
        journal: Where the life of every connection is written; None: nowhere.
    """

    __slots__ = ("_descriptor", "_half_closed", "_noted", "_origin")

    RESTS: ClassVar[Phase] = Phase.KEEP_ALIVE

    settings: ClassVar[ReaperConfig | None] = None
    journal: ClassVar[Journal | None] = None

    SILENT: ClassVar[type[IdleProtocol]] = IdleProtocol
    """Stands in its place before the first byte."""

    app: Any
    cycle: Any
    flow: Any
    scope: Any
    loop: Any
    config: Config
    ws_protocol_class: Any
    _completes: Callable[[], None]
    """uvicorn's own `on_response_complete`."""

    def __new__(  # type: ignore[misc]
        cls,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> IdleProtocol:
        """Make what the loop is given for a new connection: an `IdleProtocol`. It makes
        one of this class at the first byte.
        """
        if not config.loaded:  # a program that makes protocols itself, as uvicorn's own would do
            config.load()
        try:
            shared = shared_by(config, cls.settings, cls.journal, server_state)
            return cls.SILENT(shared, shared.origin(cls, config, server_state, app_state, _loop))
        except Exception as error:  # uvloop would accept no connection any more
            log.error("a connection is not guarded: %s", one_line(error))
            kind: Any = next(each for each in cls.__mro__ if each.__module__.startswith("uvicorn."))
            return cast(IdleProtocol, kind(config, server_state, app_state, _loop))

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

    def take_over(self, before: IdleProtocol) -> None:
        """Go on with the connection of *before*, which is silent no longer."""
        shared = before.shared
        phase = before.phase()
        self.shared = shared
        self.loop = shared.loop
        self.app = shared.app
        self._origin = before.origin
        self._half_closed = before.half_closed
        self._noted = False
        self._descriptor: int | None = None
        super().connection_made(before.transport)  # type: ignore[misc]
        self._begin(getattr(shared, phase.value), phase.value, before)
        before.hand_over(self)
        before.transport.set_protocol(self)

    def has_spoken(self) -> None:
        """The first bytes of the connection have been received."""
        if self._noted:  # an eager task has answered already, and the connection is idle again
            self._rest()
        else:
            self.look()

    def rests(self) -> bool:
        """Put an `IdleProtocol` in the place of this one if the connection has been
        silent for `REST_AFTER`. False: ask again later.
        """
        self._noted = False
        if (
            self._over
            or self.waiting is not None
            or self._leaving is not None
            or not self._is_between()
        ):
            return True  # it is in use, and is noted again when it has become idle again
        until = self.lease.active_until
        now = self.shared.driver.now()
        if (
            until is None
            or now - until < self.shared.rest_after / 2
            or self._much_is_queued()
            or self.transport.is_closing()
        ):
            self._noted = True
            return False
        quiet = IdleProtocol(self.shared, self._origin)
        quiet.half_closed = self._half_closed
        quiet.rest(self)
        self._drop()
        self.shared.allocator.freed(1)
        return True

    def _is_between(self) -> bool:
        """Whether uvicorn's protocol can be dropped: there is no request, no part of
        one, and reading is not paused.
        """
        raise NotImplementedError

    def _drop(self) -> None:
        """Break the circles that would leave this object to the garbage collector.
        There is none here; a parser may make one.
        """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # type: ignore[misc]
        self._left(by_peer=exc is not None or self._half_closed)
        if (requests := self.shared.requests) is not None:
            requests.lost(self.transport)

    def eof_received(self) -> bool:
        """The client sends no more; uvicorn lets the loop close the connection when all
        has been sent. With `timeouts.abandoned` the connection stays open while an
        answer is owed: only then a client that waits can be told from one that has
        left.
        """
        self._half_closed = True
        super().eof_received()  # type: ignore[misc]
        if transports.buffered(self.transport):
            self.look()
        requests, transport = self.shared.requests, self.transport
        if requests is None or not self._may_wait():
            return False
        if not requests.hung_up(transport, link_of(transport), stays=True):
            return False
        self.cycle.keep_alive = False  # of the newest request: those before it are answered first
        return True

    def _may_wait(self) -> bool:
        """Whether the client, which sends no more, waits for the answer to a whole
        request.
        """
        cycle = self.cycle
        return (
            cycle is not None
            and not cycle.response_complete
            and not transports.is_tls(self.transport)
            and self._whole()
        )

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self.look()

    def on_response_complete(self) -> None:
        """A response is complete. If it was the last, uvicorn has closed the transport;
        bytes may still wait to go out.
        """
        self._completes()  # once per response, where `super()` costs as much as the call
        if self.cycle is None:
            return  # it is idle, and was not closing then
        if self.transport.is_closing():
            self.look()
        else:
            self._goes_on()

    def shutdown(self) -> None:
        """uvicorn says that the server stops."""
        self.stop_in_turn()

    def told(self) -> None:
        """The server stops. An idle connection is closed soon, another after its
        response, and each before the drain is over.
        """
        self.leave(DRAIN)
        self._announce()

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """The client asks for a WebSocket: uvicorn makes the protocol that takes over,
        from a class that is guarded.
        """
        base = self.ws_protocol_class
        made: Any = tunnel(base)
        self.ws_protocol_class = functools.partial(made, shared=self.shared, before=self)
        super().handle_websocket_upgrade(*event)  # type: ignore[misc]

    def timeout_keep_alive_handler(self) -> None:
        """A response is complete, and no other request is waiting for its turn. uvicorn
        would call this later, when its keep-alive is over: see `Timerless`.
        """
        raise NotImplementedError

    def _goes_on(self) -> None:
        """uvicorn has gone on with a request that had waited for its turn."""

    # ---- phases

    def phase(self) -> Phase:
        """What the connection waits for, by uvicorn's own fields and what the kernel
        holds.
        """
        if self.flow.write_paused:
            return self._writing()
        phase = self._reading()
        if (phase is Phase.KEEP_ALIVE or self.transport.is_closing()) and self._much_is_queued():
            return self._writing()
        return phase

    def _writing(self) -> Phase:
        return Phase.HALF_CLOSED if self._half_closed else Phase.WRITE

    def _is_held_below(self) -> bool:
        """Whether much of an answer is still here that the transport has no byte of.
        With TLS the loop holds it below the transport.
        """
        # Each answer asks, and to find the descriptor costs 15,000 instructions. It is
        # this connection's as long as the transport is open, as after an answer it is.
        if self._descriptor is None:
            self._descriptor = transports.descriptor_of(self.transport)
        return sockets.queued(self._descriptor) > QUEUED_BYTES

    def _much_is_queued(self) -> bool:
        transport = self.transport
        return bool(transports.buffered(transport)) or transports.queued(transport) > QUEUED_BYTES

    def _reading(self) -> Phase:
        """The phase as far as it depends on what the client sends."""
        raise NotImplementedError

    def _between(self) -> Phase:
        """The phase of a connection without a request."""
        return Phase.FIRST_BYTE if self._believed() is Phase.FIRST_BYTE else Phase.KEEP_ALIVE

    def _wants_body(self) -> bool:
        """Whether the client still has to send a body, and could send it now."""
        return not self.flow.read_paused and not self.cycle.waiting_for_100_continue

    def _rests_in(self, phase: Phase) -> bool:
        return phase is Phase.KEEP_ALIVE or (phase is Phase.IN_FLIGHT and self._whole())

    def _whole(self) -> bool:
        """Whether all of the request in flight has come."""
        raise NotImplementedError

    def _rest(self) -> None:
        shared = self.shared
        self.lease.touch()
        self.lease.retime(shared.keep_alive, shared.driver.now(), Phase.KEEP_ALIVE.value)
        shared.driver.poke()

    # ---- the end

    def grew_old(self) -> None:
        self.leave(MAX_AGE)
        self._announce()

    def _announce(self) -> None:
        """Have the connection closed after the response in flight, which says
        `Connection: close` unless it has begun already.
        """
        cycle = self.cycle
        if self._leaving is None or cycle is None or cycle.response_complete:
            return
        cycle.keep_alive = False
        if not cycle.response_started and CLOSE not in cycle.default_headers:
            cycle.default_headers = [*cycle.default_headers, CLOSE]

    def _owes_an_answer(self) -> bool:
        """Whether no part of the response was sent yet while the request's head or body
        is awaited.
        """
        cycle = self.cycle
        return (
            cycle is None
            or not cycle.response_started
            or (cycle.response_complete and self._has_come())
        )

    def _has_come(self) -> bool:
        """Whether all has come of the request that the newest response is for."""
        return not self.cycle.more_body

    def _farewell(self, reason: str) -> bytes:
        return TIMED_OUT if ANSWERS.get(reason) and self._owes_an_answer() else b""


class H11(GuardedHttp, H11Protocol):  # type: ignore[misc]  # uvicorn says that it returns None
    """uvicorn's `H11Protocol`, guarded."""

    __slots__ = ()

    cycle: Any  # uvicorn's, both; None while the connection is idle
    scope: Any

    _completes = H11Protocol.on_response_complete

    def data_received(self, data: bytes) -> None:
        waiting = self.waiting
        if waiting is None:
            H11Protocol.data_received(self, data)
            theirs = self.conn.their_state
            if theirs is not h11.DONE:
                if theirs is h11.MUST_CLOSE and self.cycle is not None:
                    self.cycle.keep_alive = False
                self.look()
        else:
            waiting.bytes_in(len(data))
            H11Protocol.data_received(self, data)
            self.look()
            self._announce()

    def _goes_on(self) -> None:
        if self.conn.their_state is h11.MUST_CLOSE:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        """A response is complete. After this call uvicorn may go on with the next
        request.
        """
        self.lease.touch()
        if (
            self.waiting is None
            and self.conn.their_state is h11.DONE
            and not self.conn.trailing_data[0]  # a part of the next request has come with this one
            and not self.transport.get_write_buffer_size()
            and not (self.scheme == "https" and self._is_held_below())
        ):
            # Free what the last request holds at once, and the rest when the
            # connection has been idle for a while.
            self.cycle = self.scope = None
            if not self._noted:
                self._noted = True
                self.shared.note_idle(self)
        else:
            self.shared.reaper.loop.call_soon(self.look)  # when uvicorn has gone on

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

    def _may_wait(self) -> bool:
        return not self.conn.trailing_data[0] and super()._may_wait()

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

    class HttpTools(GuardedHttp, HttpToolsProtocol):  # type: ignore[misc]  # as above
        """uvicorn's `HttpToolsProtocol`, guarded."""

        __slots__ = ("_ended",)

        cycle: Any
        scope: Any
        _ended: Any  # the scope of the newest request that has come whole

        _completes = HttpToolsProtocol.on_response_complete

        def take_over(self, before: IdleProtocol) -> None:
            self._ended = None
            super().take_over(before)

        def data_received(self, data: bytes) -> None:
            waiting = self.waiting
            if waiting is None:
                HttpToolsProtocol.data_received(self, data)
                if self.scope is not self._ended:
                    self.look()
            else:
                waiting.bytes_in(len(data))
                HttpToolsProtocol.data_received(self, data)
                self.look()
                self._announce()

        def on_message_complete(self) -> None:
            """The parser has seen the end of a request."""
            HttpToolsProtocol.on_message_complete(self)
            self._ended = self.scope

        def timeout_keep_alive_handler(self) -> None:
            self.lease.touch()
            if (
                self.waiting is None
                and self.scope is self._ended
                and not self.transport.get_write_buffer_size()
                and not (self.scheme == "https" and self._is_held_below())
            ):
                # Free what the last request holds at once, and the rest when the
                # connection has been idle for a while.
                self.cycle = self.scope = self._ended = None
                if not self._noted:
                    self._noted = True
                    self.shared.note_idle(self)
            else:
                self.look()

        def _reading(self) -> Phase:
            if self.pipeline:
                return Phase.IN_FLIGHT  # an earlier request is answered; `cycle` is the newest's
            scope, cycle = self.scope, self.cycle
            if scope is None:
                return self._between()
            if cycle is not None and not cycle.response_complete:
                wanted = cycle.scope is scope and cycle.more_body and self._wants_body()
                return Phase.BODY if wanted else Phase.IN_FLIGHT
            if cycle is None or cycle.scope is not scope:
                return Phase.HEADERS
            return self._between() if self._has_come() else Phase.BODY

        def _whole(self) -> bool:
            cycle = self.cycle
            return cycle is not None and cycle.scope is self.scope and not cycle.more_body

        def _has_come(self) -> bool:
            # If the response was complete before, uvicorn does not note that.
            return self.scope is self._ended or self.cycle.scope is not self.scope

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
