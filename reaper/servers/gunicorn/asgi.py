"""gunicorn's worker for ASGI, guarded: `gunicorn -k reaper.gunicorn.ASGIWorker`.

The rule of this module: *gunicorn's loop is replaced by one that guards, and nothing
else of it*. When a connection is due, the fields of its protocol say whose turn it is.
Tried with gunicorn 27.0.1.
"""

from __future__ import annotations

import asyncio
import functools
import os
from contextlib import suppress
from typing import Any

from gunicorn.workers import gasgi

from ...asyncio.closing import bound
from ...asyncio.guards import OnTransport, guard_server
from ...asyncio.reaper import AsyncioReaper, reaper_of
from ...asyncio.serve import loop_factory
from ...asyncio.transports import buffered, descriptor_of, is_tls, queued
from ...config.durations import NEVER
from ...config.settings import ReaperConfig
from ...driver.served import each_served
from ...driver.sockets import readable
from ...policy import Phase
from ..abandoned import Requests, link_of, streams_of
from ..configured import advertised, kept_alive, warn
from ..goodbye import begin_stopping
from ..http2.waiting import Carrier
from ..metrics import stopping
from ..streams import Streams, are_wanted
from .http2_asgi import guard, guard_stream

AGAIN = 0.05
"""Seconds between two looks whether gunicorn has read the bytes that have come."""


SAYS_KEEP_ALIVE = (b"keep-alive", "keep-alive")
"""The header in which an application may say how long its connection is kept."""
KEEP_ALIVE_LENGTH = len(SAYS_KEEP_ALIVE[0])


LIFESPAN = 2.0
"""Seconds of `--graceful-timeout` that are kept for the end of the application's
lifespan, after the drain.
"""


QUICK = 1.0
"""Seconds that the application has to end in a quick stop, at SIGINT or SIGQUIT;
gunicorn's master kills the worker 2 s after it.
"""


class Asgi(OnTransport):
    """A connection of gunicorn's ASGI worker. One that speaks uwsgi counts as in
    use.
    """

    __slots__ = ()

    def phase(self) -> Phase:
        transport = self.transport
        protocol = transport.get_protocol()
        http2 = getattr(protocol, "_h2_conn", None)  # over HTTP/1 it has none
        if http2 is not None:
            used = http2.streams or protocol._h2_tasks or getattr(http2, "leaving", False)
            return Phase.IN_FLIGHT if used else Phase.IDLE  # its session knows the limits
        if protocol._websocket is not None:
            return Phase.TUNNEL
        if protocol._awaiting_request:
            if protocol._finishing_calls:
                return Phase.IN_FLIGHT
            # gunicorn's fast parser, in C, does not show what it has.
            begun = getattr(protocol._callback_parser, "_buffer", b"")
            return Phase.HEADERS if begun else Phase.KEEP_ALIVE
        receiver = protocol._body_receiver
        waits = receiver is not None and not receiver._complete and transport.is_reading()
        # Until the application asks for the body, nobody has told the client to send
        # it.
        return Phase.BODY if waits and not receiver.expect_continue else Phase.IN_FLIGHT

    def invited(self) -> bool:
        receiver = getattr(self.protocol, "_body_receiver", None)
        return getattr(getattr(receiver, "request", None), "_expect_100_continue", False) is True

    def owes(self) -> bool:
        protocol = self.protocol
        return bool(protocol.begun != id(protocol._body_receiver.request))

    def farewell(self) -> bytes:
        """GOAWAY for a client that speaks HTTP/2, once, as gunicorn sends it when its
        own timer fires.
        """
        http2 = getattr(self.protocol, "_h2_conn", None)
        if http2 is None or http2.h2_conn.state_machine.state.name == "CLOSED":
            return b""
        http2.h2_conn.close_connection()
        return bytes(http2.h2_conn.data_to_send())

    def be_last(self) -> None:
        """Have the next answer say `Connection: close`. Over HTTP/2 `farewell` says so
        instead.
        """
        protocol = self.protocol
        if getattr(protocol, "_h2_conn", None) is None:
            protocol.is_last = True

    def parts(self, protocol: Any) -> None:
        """gunicorn would cancel the handler of *protocol* by
        `asgi_disconnect_grace_period`. Where `abandoned` does that, gunicorn does not.
        """
        streams = protocol.worker.streams
        if isinstance(streams, Requests) and streams.lost(protocol._body_receiver):
            protocol._cancel_task_if_pending = _not_now


def _receiver(receive: Any, _: Any) -> Any:
    """gunicorn's `BodyReceiver` that has the method *receive*; None over HTTP/2, which
    has no such object.
    """
    return getattr(receive, "__self__", None)


def _closed_over(function: Any, name: str) -> Any:
    """The value of *name* in the closure of *function*. Over HTTP/2 nothing else says
    what it answers.
    """
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def is_blocked(receive: Any, send: Any) -> bool:
    """Whether the client that *send* answers still has to take something. If that
    cannot be seen, it has.
    """
    try:
        receiver = _receiver(receive, send)
        if receiver is not None:
            protocol = receiver.protocol
            transport = protocol.transport
            paused = protocol._flow_control.write_paused or receiver._closed
            return paused or transport.is_closing() or queued(transport) > 0
        connection, number = _closed_over(send, "h2_conn"), _closed_over(send, "stream_id")
        shut = connection.h2_conn.local_flow_control_window(number) <= 0
        return shut or number not in connection.streams or buffered(connection.writer.transport) > 0
    except Exception:
        return True


def _not_now() -> None:
    """Cancels nothing."""


class _Protocol(gasgi.ASGIProtocol):  # type: ignore[misc]
    """gunicorn's protocol, whose connection and streams of HTTP/2 are guarded.
    gunicorn's own keep-alive is switched off there: the engine's is in force.
    """

    worker: ASGIWorker
    _keepalive: float
    begun = 0
    """The `id` of the request whose answer has begun."""
    is_last = False
    """Whether the next answer that begins is the last. An answer that has begun has
    already told its client that the connection stays: a request may be on its way.
    """

    def _send_response_start(
        self, status: Any, headers: Any, request: Any, close: bool = False
    ) -> None:
        self.begun = id(request)
        if self.is_last:
            self._keepalive = 0
        hint = self.worker.hint
        if hint and status >= 200 and self._keepalive and not close:
            headers = list(headers)
            for name, _ in headers:  # by their lengths first: few have that of it
                if len(name) == KEEP_ALIVE_LENGTH and name.lower() in SAYS_KEEP_ALIVE:
                    break
            else:
                headers.append((b"Keep-Alive", hint))
        super()._send_response_start(status, headers, request, close or self.is_last)

    @property
    def _h2_conn(self) -> Any:
        """gunicorn's connection of HTTP/2, which it sets before the first byte is
        read.
        """
        try:
            return self.__dict__["_h2_conn"]
        except KeyError:
            raise AttributeError("_h2_conn") from None

    @_h2_conn.setter
    def _h2_conn(self, http2: Any) -> None:
        guard(http2, self.worker.carrier_of(self.transport))
        self.__dict__["_h2_conn"] = http2

    def _h2c_undecided_timeout(self) -> None:
        """As gunicorn's, which after a second closes a connection that has not said
        that it speaks HTTP/2. If the loop stood still, unread bytes may say so: then
        wait.
        """
        descriptor = descriptor_of(self.transport)
        if descriptor >= 0 and readable(descriptor):
            self._h2c_timer: Any = self.worker.loop.call_later(AGAIN, self._h2c_undecided_timeout)
        else:
            super()._h2c_undecided_timeout()

    def _handle_http2_connection(self, *given: Any, **named: Any) -> Any:
        self._keepalive = 0
        return super()._handle_http2_connection(*given, **named)

    def _start_http2_stream(self, request: Any, http2: Any, *names: Any) -> None:
        guard_stream(request.stream)  # the one that HTTP/1 has asked for
        super()._start_http2_stream(request, http2, *names)

    async def _serve_http2_request(self, request: Any, http2: Any, *names: Any) -> None:
        await super()._serve_http2_request(request, http2, *names)
        if not self.worker.alive:
            http2.leaving = True

    def _close_transport(self) -> None:
        """As gunicorn's. asyncio forgets a TLS transport that is closed twice: nothing
        would bound its goodbye.
        """
        if getattr(self, "_h2_conn", None) is None or not self.transport.is_closing():
            super()._close_transport()
        self._closed: bool = True

    @classmethod
    def _check_h1c_protocol_available(cls) -> bool:
        """gunicorn stores its fast parser on the class of *self*, but looks for it on
        its own class.
        """
        return bool(gasgi.ASGIProtocol._check_h1c_protocol_available())


class ASGIWorker(gasgi.ASGIWorker):  # type: ignore[misc]
    """gunicorn's worker with guarded connections and TLS handshakes.

    Its `--keep-alive` holds where reaper.toml and REAPER_* leave `timeouts.keep_alive`
    at its default. A stop takes no longer than `--graceful-timeout`, whatever
    `timeouts.drain_delay` and `timeouts.drain` say.
    """

    loop: Any
    own_keep_alive: float
    """What gunicorn's own `--keep-alive` says, seconds."""
    hint: bytes = b""
    """What `Keep-Alive` says in each answer; empty: no answer has it."""

    def _setup_event_loop(self) -> None:
        super()._setup_event_loop()
        kind = type(self.loop)
        self.loop.close()
        settings = ReaperConfig.load(os.environ.get("REAPER_CONFIG"))
        self._settings = settings
        warn(settings, "gunicorn-asgi", self.log)
        self.streams: Streams | None = None  # until it listens
        self.own_keep_alive = self.cfg.keepalive
        if self.cfg.keepalive:
            settings = kept_alive(settings, self.cfg.keepalive)
            self.cfg.set("keepalive", NEVER)
            if seconds := advertised(settings):
                self.hint = b"timeout=%d" % seconds
        self._reaper: functools.partial[AsyncioReaper] = functools.partial(
            reaper_of, config=settings
        )

        def wrap(factory: Any) -> Any:
            self._stand_around()
            return guard_server(functools.partial(self._made, factory), Asgi, self._reaper)

        self.loop = loop_factory(base=kind, wrap=wrap, config=settings)()
        asyncio.set_event_loop(self.loop)

    def carrier_of(self, transport: Any) -> Carrier:
        """The `Carrier` for the streams of the connection of *transport*."""
        reaper = self._reaper()
        return Carrier(
            reaper.driver,
            reaper.config,
            reaper.sweep,
            functools.partial(descriptor_of, transport),
            functools.partial(self._close, transport),
        )

    def _close(self, transport: Any) -> None:
        """Close *transport*. Its goodbye of TLS has `timeouts.linger`, not asyncio's 30
        s.
        """
        transport.close()
        bound(self._reaper(), transport)

    def _stand_around(self) -> None:
        """Wrap the application: streams are told when the worker stops, and requests
        whose clients are gone are cancelled. Call it within the running loop.
        """
        if self.streams is None:
            config = self._settings
            driver = self._reaper().driver
            log = self.log.error_log
            self.streams = streams_of(
                self.asgi,
                config,
                driver,
                _receiver,
                lambda receiver: receiver._closed,
                talks=bool(config.timeouts.drain_streams),
                log=log,
                blocked=is_blocked,
                eager=False,  # gunicorn writes the headers with the first bytes
            )
            if are_wanted(config):
                self.asgi: Any = self.streams

    def _made(self, factory: Any) -> Any:
        """Make a protocol of gunicorn's. With `timeouts.abandoned` it keeps the
        connection open at a FIN while an answer is owed.
        """
        protocol = factory()
        protocol.__class__ = _Protocol
        if self._settings.timeouts.abandoned:
            protocol.eof_received = functools.partial(self._hung_up, protocol)
        return protocol

    def _hung_up(self, protocol: Any) -> bool:
        """The client of *protocol* sends no more. Returns whether its connection stays
        open.
        """
        receiver = protocol._body_receiver
        transport = protocol.transport
        if (
            not isinstance(self.streams, Requests)
            or receiver is None
            or not receiver._complete
            or is_tls(transport)
            or not self.streams.hung_up(receiver, link_of(transport))
        ):
            return False
        protocol._keepalive = 0
        protocol._cancel_task_if_pending = _not_now
        return True

    def handle_exit_signal(self) -> None:
        """SIGTERM. gunicorn itself looks once a second; streams and `reaper.stopping()`
        are told at once.
        """
        super().handle_exit_signal()
        self._tell()

    def _tell(self) -> None:
        """The worker stops: each connection ends with its next answer, and streams are
        told, unless `drain_delay` still serves newcomers. May be called again.
        """
        reaper = self._reaper()
        timeouts = reaper.config.timeouts
        self.cfg.set("keepalive", 0)  # what is answered from now on says that it is the last
        each_served(reaper, lambda served: served.tell_last())
        begin_stopping()
        if self.streams is not None and not timeouts.drain_delay:
            self.streams.stop(timeouts.drain_streams)

    async def _shutdown(self) -> None:
        reaper = self._reaper()
        timeouts = reaper.config.timeouts
        stops_at = self.loop.time() + self.cfg.graceful_timeout
        if not self._quick_shutdown:
            self._tell()
            await stopping(timeouts.drain_delay)
            if self.streams is not None:
                self.streams.stop(timeouts.drain_streams)
            for server in self.servers:
                server.close()
            if reaper.driver.connections:
                # What was on its way when the client learnt of the stop is answered.
                # Who has half a handshake has asked for nothing.
                await asyncio.sleep(timeouts.drain_idle)
            # gunicorn kills the worker when its time is over: before, the lifespan has
            # to end.
            left = max(stops_at - self.loop.time() - LIFESPAN, reaper.core.tick)
            await reaper.drain(min(timeouts.drain, left), min(timeouts.drain_window, left))
        await super()._shutdown()
        if self._quick_shutdown and self.lifespan:
            # gunicorn leaves it out of a quick stop, and what the application holds
            # stays open.
            with suppress(Exception):
                await asyncio.wait_for(self.lifespan.shutdown(), QUICK)
