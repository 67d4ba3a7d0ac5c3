"""gunicorn's worker with threads, guarded: a thread of ours judges each connection when
it is due.

The rule of this module: *the worker's threads are told nothing, and wait for nothing of
ours*. They leave two flags on the connection that say what they do; the kernel says
when bytes moved. A connection that is due is shut down: gunicorn's thread that reads or
polls it sees the end, and closes it. A stream of HTTP/2 is reset by the thread that
serves it: see `http2_threads`. gunicorn's own timers of idle connections do nothing
here: after a stall they would fire before the bytes are read that came meanwhile. Tried
with gunicorn 27.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import math
import operator
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from gunicorn import sock as gunicorn_sock
from gunicorn.http.unreader import SocketUnreader
from gunicorn.http.wsgi import Response
from gunicorn.workers import gthread

from ...asyncio.overload import REFUSALS, Refusal
from ...asyncio.reaper import AsyncioReaper, reaper_of
from ...config.settings import ReaperConfig
from ...driver.served import Served, Wire, end_handshakes, handshake_grace, tried, watch
from ...driver.sockets import TcpInfo, is_over, peer_has_shut, reset_on_close, unread
from ...policy import Phase
from ..configured import advertised, kept_alive, warn
from ..http2.frames import PREFACE
from ..http2.waiting import Carrier
from .http2_threads import guard, guard_stream, over, until_it_has_gone

KEPT = "Connection: keep-alive\r\n"
"""What gunicorn's answer says whose connection is kept."""

FULL_PAUSE = 0.05
"""Seconds for which gunicorn's main thread pauses when no descriptor is left for a
newcomer.
"""


class ThreadWire(Wire):
    """A connection of gunicorn's, as the thread that judges has it. The connection and
    its wire refer to each other until `part`.

    Args:
        conn: gunicorn's `TConn`.
        reaper: Of the worker.
        over: Called with this, in a thread of gunicorn's, once the connection is
            closed.
    Attributes:
        conn: As given; None once it is over.
        answering: Whether a thread answers a request of the connection.
        receiving: Whether that thread waits for bytes of the request.
        parsing: Whether a thread has read bytes of a head, and has not come to the
            request, or the next read, yet.
        ends: Whether the next answer has to say that it is the last.
        come: Bytes of HTTP/2 that gunicorn reads before the guard begins: in clear
            text, the preface.
        silent: Whether nothing has come of HTTP/1 yet. What is waited for is the first
            byte then: over TLS its client was heard before, in the handshake.
        waited: Whether the client waits for `100 Continue`. gunicorn sends that before
            it calls the application.
        answer: gunicorn's `Response` to the request in hand; None until there is one.
        says: What the thread that waits over TLS has to send before it closes.
        hung_up: Whether the client had ended the connection before gunicorn closed it.
        asleep: Whether the next byte wakes the guard.
        served: The connection as it is guarded; None before that, and at its end.
    """

    __slots__ = (
        "_closes",
        "_lock",
        "_over",
        "_over_tls",
        "_reaper",
        "_unreader",
        "answer",
        "answering",
        "asleep",
        "come",
        "conn",
        "ends",
        "hung_up",
        "parsing",
        "receiving",
        "says",
        "served",
        "silent",
        "waited",
    )

    def __init__(
        self, conn: Any, reaper: AsyncioReaper, over: Callable[[ThreadWire], object]
    ) -> None:
        super().__init__(conn)
        self.conn: Any = conn
        self._reaper = reaper
        self._over = over
        # While we shut a descriptor down no thread of gunicorn's may close it: its
        # number could be that of another connection a moment later.
        self._lock = threading.Lock()
        self._closes = False
        self.answering: bool = False
        self.receiving: bool = False
        self.parsing: bool = False
        self.ends: bool = False
        self.waited: bool = False
        self.says: bytes = b""
        self.hung_up: bool = False
        self.asleep: bool = False
        self.answer: Any = None
        self.served: Served | None = None
        self.silent: bool = False
        self._unreader: Any = None
        self._over_tls: bool = conn.cfg.is_ssl
        self.come: bytes = b"" if self._over_tls else PREFACE
        # Names of the objects, and no classes of ours in the place of gunicorn's: an
        # object whose class is changed has its attributes in a dict of its own, where
        # each costs more to read.
        conn.close = self.close_for_gunicorn
        conn.init = self.init_for_gunicorn

    def close_for_gunicorn(self, *arguments: Any, **options: Any) -> None:
        """Stands in the place of the connection's own `close`: waits until no other
        thread shuts it down, closes it, and says that it is over.

        Every connection of gunicorn's ends here, and here only.
        """
        conn = self.conn
        with self._lock:
            self._closes = True  # from here on the descriptor is gunicorn's alone
        vars(conn).pop("close", None)
        self.hung_up = peer_has_shut(conn.sock) or is_over(conn.sock.fileno())
        try:
            conn.close(*arguments, **options)
        finally:
            self._over(self)

    def init_for_gunicorn(self) -> None:
        """Stands in the place of the connection's own `init` until that is called:
        gunicorn's thread shakes hands, if it speaks TLS, and makes a parser. Its reader
        leaves notes here, from the first head on.
        """
        conn = self.conn
        del conn.init
        conn.init()
        unreader: Any = getattr(conn.parser, "unreader", None)
        if type(unreader) is SocketUnreader:  # of HTTP/1
            self._unreader, self.silent = unreader, True
            unreader.chunk = self.chunk_for_gunicorn
            unreader.take_buffered = self.take_buffered_for_gunicorn

    def chunk_for_gunicorn(self, size_hint: int | None = None) -> Any:
        """Stands in the place of the reader's own `chunk`: notes while gunicorn's
        thread waits for bytes of the client.
        """
        unreader = self._unreader
        self.parsing, self.receiving = False, not self.silent
        try:
            if unreader is None or (self._over_tls and self._was_told(unreader.sock)):
                return b""
            data = SocketUnreader.chunk(unreader, size_hint)
            self.silent = False
            if self.asleep:
                self.wake()
            self.parsing = bool(data) and not self.answering
            return data
        finally:
            self.receiving = False

    def take_buffered_for_gunicorn(self) -> bytes:
        """Stands in the place of the reader's own: notes what it gives to HTTP/2."""
        self.come = come = bytes(SocketUnreader.take_buffered(self._unreader))
        return come

    def _was_told(self, sock: Any) -> bool:
        """Wait for bytes. Whether the client was told that none is waited for any
        longer.
        """
        if sock.pending() or sock.gettimeout() is not None:
            return False
        waits = select.poll()
        waits.register(sock, select.POLLIN)
        waits.poll()
        if self.says:
            self.said()
            return True
        return False

    def part(self) -> Any:
        """Let go of the connection, which is over, and return it. Call it in our
        thread: no other reads this object.
        """
        conn, self.conn, self._unreader = self.conn, None, None
        return conn

    def socket(self) -> Any:
        """The socket as it is now: TLS puts another in the place of the first."""
        return None if self.conn is None else self.conn.sock

    @property
    def is_open(self) -> bool:
        """Whether gunicorn has not begun to close it."""
        conn = self.conn
        return conn is not None and not self._closes and conn.sock.fileno() >= 0

    def buffered(self) -> int:
        """Above 0 while its thread has yet to send GOAWAY, or what `says` has: until
        then nobody else may end the connection.
        """
        return int(self.is_open and (self._has_to_part() or bool(self.says)))

    def write(self, data: bytes) -> None:
        """Over HTTP/2 have its thread say GOAWAY; otherwise send *data*, if the kernel
        takes it. With TLS only its thread may write: it sends *data* when it is woken,
        if it waits for bytes.
        """
        if self.conn.is_http2:
            self.conn.parser.told_to_end = True
            return
        if self.conn.cfg.is_ssl:
            self.says = data if self.receiving else b""
            return
        with self._lock, contextlib.suppress(OSError):
            if not self._closes:
                self.conn.sock.send(data, socket.MSG_DONTWAIT)

    def close(self, says: bytes) -> None:
        """Shut the socket down, so that gunicorn sees the end and closes it. While
        gunicorn's thread still has to send something, it closes the connection
        afterwards: nothing is done for a GOAWAY, and what `says` has only wakes it.
        """
        if says and self.is_open:
            self.write(says)
        if not self._has_to_part():
            self._end(socket.SHUT_RD if self.says else socket.SHUT_RDWR)
        if self.buffered():
            seconds = self._reaper.config.timeouts.linger or self._reaper.core.tick
            self._reaper.driver.after(seconds, self.reset)

    def reset(self) -> None:
        if self.conn is not None:
            with contextlib.suppress(OSError):
                reset_on_close(self.conn.sock)
            self._end(socket.SHUT_RDWR)

    def _end(self, how: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._closes:
                # The shutdown of a TLS socket belongs to the thread that reads it.
                socket.socket.shutdown(self.conn.sock, how)

    def wakes(self, served: Served) -> bool:
        self.asleep = True
        if not self.is_open or _unread(self):
            return False
        # A thread may have begun to read meanwhile. Its bytes are heard, too, but of
        # TCP the kernel tells, and an answer needs no wake.
        return not (self.answering or self.receiving) or (self.receiving and not self.is_timed)

    def wake(self) -> None:
        """In the thread that has bytes of the client: wake the guard."""
        self.asleep = False
        _soon(self._reaper.loop, _woke, self, self.info())

    def _has_to_part(self) -> bool:
        return getattr(self.conn.parser, "told_to_end", False)

    def said(self) -> None:
        """Over TLS, in the thread that reads: send what `says` has, if part of an
        answer was not sent, and end the connection. The thread has waited for bytes,
        and not begun to read: afterwards TLS could send nothing.
        """
        data, self.says = self.says, b""
        with contextlib.suppress(OSError):
            if self.answer is None or not self.answer.headers_sent:
                self.conn.sock.send(data)
        self._end(socket.SHUT_RDWR)


class Unguarded:
    """Stands for the wire of a connection whose guard could not be made: what threads
    note of it is read by nobody, and gunicorn's own keep-alive holds.
    """

    answering = receiving = parsing = ends = waited = asleep = False
    says = come = b""
    answer = None


class Threaded(Served):
    """A connection that one of gunicorn's threads serves."""

    __slots__ = ()

    LIMITED: ClassVar[tuple[Phase, ...]] = (*Served.LIMITED, Phase.HANDSHAKE)

    wire: ThreadWire

    def phase(self) -> Phase:
        """What it waits for. KEEP_ALIVE also stands for its first byte and for the rest
        of its first headers: the kernel tells them apart. If a thread waits for bytes
        outside of a request, some of the next request have come.
        """
        wire = self.wire
        conn = wire.conn
        if conn.is_http2:
            return self._phase_of_http2(conn.parser)
        if conn.cfg.is_ssl:
            if conn.parser is None:  # it says that it is initialized as it begins
                return Phase.HANDSHAKE
            if wire.silent:
                return Phase.FIRST_BYTE
        if not wire.answering:
            if wire.parsing:  # a head that waited for a thread is its server's by now
                return Phase.IN_FLIGHT
            return Phase.HEADERS if wire.receiving else Phase.KEEP_ALIVE
        return Phase.BODY if wire.receiving else Phase.IN_FLIGHT

    def _phase_of_http2(self, parser: Any) -> Phase:
        """As `phase`: one thread serves a whole connection of HTTP/2, and its parser
        knows which streams are open. Where the parser does not say, the connection is
        in use.
        """
        streams = getattr(parser, "streams", None)
        if streams is None or streams or getattr(parser, "pending_requests", None):
            return Phase.IN_FLIGHT
        return Phase.IDLE  # its judge knows the limits

    def owes(self) -> bool:
        answer = self.wire.answer
        return answer is not None and not answer.headers_sent

    def invited(self) -> bool:
        return self.wire.waited

    def be_last(self) -> None:
        self.wire.ends = True

    def farewell(self) -> bytes:
        """The GOAWAY for an HTTP/2 connection without a stream, sent before the close;
        see `ThreadWire.write`.
        """
        conn = self.wire.conn
        rests = conn.is_http2 and self._phase_of_http2(conn.parser) is Phase.IDLE
        return b"GOAWAY" if rests else b""


class ThreadWorker(gthread.ThreadWorker):  # type: ignore[misc]
    """gunicorn's worker with guarded connections.

    Its `--keep-alive` holds where reaper.toml and REAPER_* leave `timeouts.keep_alive`
    at its default.
    """

    nr_conns: int  # gunicorn's own number of connections
    _serves = True
    _stopped = math.inf
    _has_unguarded = False
    _settings = ReaperConfig()  # until it starts

    def _stop(self, serves: bool) -> None:
        if self._serves and not serves:
            self._stopped = time.monotonic()
        self._serves = serves

    alive: Any = property(
        operator.attrgetter("_serves"),  # no call of Python's: gunicorn asks it at every turn
        _stop,
        doc="gunicorn's own flag: whether the worker serves. Setting it to False stops it.",
    )

    def init_process(self) -> None:
        """Start the thread that judges, then do what gunicorn does."""
        self._settings = kept_alive(
            ReaperConfig.load(os.environ.get("REAPER_CONFIG")), self.cfg.keepalive or None
        )
        warn(self._settings, "gunicorn-gthread", self.log)
        self._loop = asyncio.new_event_loop()
        self._judging = threading.Thread(target=self._loop.run_forever, name="reaper", daemon=True)
        self._judging.start()
        self._tls = gunicorn_sock.ssl_context(self.cfg) if self.cfg.is_ssl else None
        self._reaper = asyncio.run_coroutine_threadsafe(self._begun(), self._loop).result()
        super().init_process()

    async def _begun(self) -> AsyncioReaper:
        return reaper_of(config=self._settings)

    def accept(self, listener: Any) -> None:
        """Accept a connection. gunicorn's worker dies where no descriptor is left;
        under `reaper.pressure` it waits instead until the longest idle have gone.
        """
        try:
            super().accept(listener)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self._reaper.pressure is None:
                raise
            time.sleep(FULL_PAUSE)

    def enqueue_req(self, conn: Any) -> None:
        """A connection is new, or more bytes have come on it. Guard it the first time,
        or refuse it if it is one too many.
        """
        if not hasattr(conn, "wire"):
            # gunicorn's own number is exact in this thread, and counts this one. Our
            # books are another thread's.
            if tried(self._welcomed) is False:
                self.nr_conns -= 1
                asyncio.run_coroutine_threadsafe(self._refuse(conn.sock), self._loop)
                return
            if tried(self._guarded, conn):
                return
            if not hasattr(conn, "wire"):
                conn.wire, self._has_unguarded = Unguarded(), True
        if conn.wire.asleep:
            # Now: a moment later it may be answered.
            tried(conn.wire.wake)
        super().enqueue_req(conn)

    def _guarded(self, conn: Any) -> bool:
        """Guard *conn*, which is new, and have it wait for its first byte. If this
        raises, the connection has no wire, or waits for nothing.
        """
        wire = ThreadWire(conn, self._reaper, self._over)
        try:
            self._loop.call_soon_threadsafe(self._watch, wire)
        except BaseException:
            del conn.close, conn.init
            raise
        conn.wire = wire
        self._until_it_speaks(conn)
        return True

    def _until_it_speaks(self, conn: Any) -> None:
        """Let *conn*, which is new, wait among the connections that gunicorn's main
        thread polls.

        gunicorn itself has a thread wait for its first byte, for up to 5 s: a few
        silent clients then hold up all others, and each such wait needs a descriptor of
        its own.
        """
        conn.timeout = time.monotonic() + self.cfg.keepalive
        speaks = functools.partial(self.on_pending_socket_readable, conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, speaks)
        self.pending_conns.append(conn)

    def _welcomed(self) -> bool:
        """Whether there is room for the connection that was just accepted."""
        reaper = self._reaper
        if reaper.reading is not None and reaper.accepting and self.nr_conns > reaper.room:
            asyncio.run_coroutine_threadsafe(self._read_pressure(), self._loop).result()
        return reaper.accepting and self.nr_conns <= reaper.most

    async def _read_pressure(self) -> None:
        if self._reaper.reading is not None:
            self._reaper.reading()

    async def _refuse(self, connection: socket.socket) -> None:
        """Answer *connection* in our thread, so that none of gunicorn's waits for its
        client.
        """
        reaper = self._reaper
        reaper.refused += 1
        if reaper.refusing >= REFUSALS:
            with contextlib.suppress(OSError):
                reset_on_close(connection)
            connection.close()
            return
        connection.setblocking(False)
        seconds = self._settings.timeouts.linger or reaper.core.tick
        with contextlib.suppress(OSError):  # it has gone, or its handshake failed
            await self._loop.connect_accepted_socket(
                lambda: Refusal(reaper),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds if self._tls else None,
            )

    def _watch(self, wire: ThreadWire) -> None:
        with contextlib.suppress(OSError):  # it is closed already
            wire.served = served = watch(Threaded.terms(self._reaper), Threaded, wire)
            served.opened()
            # gunicorn may have read its first bytes before it was asleep: then nothing
            # else says that they have come. If it has answered them, too, what comes
            # next begins later than now.
            info = wire.info()
            if (wire.conn.parser is not None) if info is None else info.received:
                wire.asleep = False
                served.woke(None if info is None or info.acknowledged else info)

    def _over(self, wire: ThreadWire) -> None:
        """The connection of *wire* is closed. Our thread heard of it before, when it
        was guarded.
        """
        self._soon(functools.partial(_forget, wire))

    def load_wsgi(self) -> None:
        """Load the application, wrapped so that each of its answers is noted."""
        super().load_wsgi()
        seconds = advertised(self._settings)
        hint = f"Keep-Alive: timeout={seconds}\r\n" if seconds else ""
        self.wsgi: Any = functools.partial(_called, self.wsgi, self, hint)

    def handle(self, conn: Any) -> Any:
        """Serve the connection in a thread, which has its head no longer at the end."""
        try:
            return super().handle(conn)
        finally:
            conn.wire.parsing = False

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer the request, and note whether some of it is still to come."""
        wire: ThreadWire = conn.wire
        wire.answering = True
        wire.waited = getattr(req, "_expected_100_continue", False) is True
        req.wire = wire
        if wire.ends or not self.alive:
            req.force_close()
        try:
            return super().handle_request(req, conn)
        finally:
            wire.answering = False
            if type(wire.answer) is Response:
                del wire.answer.default_headers
            wire.says, wire.answer, req.wire = b"", None, None

    def _serve_http2_stream(self, request: Any, conn: Any, http2: Any) -> None:
        self._guard_http2(conn)
        guard_stream(request.stream)
        super()._serve_http2_stream(request, conn, http2)
        if not self.alive:
            http2.leaving = True

    def handle_http2(self, conn: Any) -> Any:
        """Serve the connection. gunicorn's main thread, which closes it, waits 2 s for
        its client; a thread may wait as long as that one waits for threads.
        """
        self._guard_http2(conn)
        kept = super().handle_http2(conn)
        if getattr(conn.parser, "leaving", False):
            now = time.monotonic()
            end = min(self._stopped, now) + self.cfg.graceful_timeout
            self._soon(functools.partial(conn.parser.judge.see_off_within, end - now))
            until_it_has_gone(conn.parser, end)
        return kept

    def _guard_http2(self, conn: Any) -> None:
        if isinstance(conn.wire, Unguarded):
            return
        carrier = functools.partial(self._carrier_of, conn)
        guard(conn.parser, carrier, self._soon, self._reaper.core.tick, conn.wire.come)

    def _soon(self, call: Callable[[], object]) -> None:
        """Have *call* called in our thread."""
        _soon(self._loop, call)

    def _carrier_of(self, conn: Any) -> Carrier:
        """The `Carrier` for the streams of *conn*."""
        reaper = self._reaper
        close = functools.partial(conn.wire.write, b"")
        return Carrier(
            reaper.driver, reaper.config, reaper.sweep, lambda: conn.sock.fileno(), close
        )

    def handle_h2c_upgrade(self, conn: Any, *arguments: Any) -> Any:
        """Read the body of the request that asks for HTTP/2, then serve the connection.
        Until its parser speaks HTTP/2 the request is being answered.
        """
        conn.wire.answering = True
        try:
            return super().handle_h2c_upgrade(conn, *arguments)
        finally:
            conn.wire.answering = False

    def murder_keepalived(self, force: bool = False) -> None:
        """Close nothing while the worker runs: our limits do. While it stops,
        gunicorn's holds.
        """
        if force or not self.alive:
            super().murder_keepalived(force)
        elif self._has_unguarded:
            self._end_unguarded()

    def _end_unguarded(self) -> None:
        """Close, as gunicorn does, the connections without a guard whose keep-alive is
        over.
        """
        now = time.monotonic()
        for conn in list(self.keepalived_conns):
            if isinstance(conn.wire, Unguarded) and conn.timeout <= now:
                self.keepalived_conns.remove(conn)
                with contextlib.suppress(OSError, KeyError, ValueError):
                    self.poller.unregister(conn.sock)
                self.nr_conns -= 1
                conn.close()

    def murder_pending(self) -> None:
        """As `murder_keepalived`, for connections that have said nothing yet."""
        if not self.alive:
            super().murder_pending()

    def _cap_keepalive(self, deadline: float) -> None:
        """The worker stops. Wait for `timeouts.drain_idle` for idle connections, and
        for those that have said nothing yet; gunicorn's own *deadline*, 2 s, is for
        idle ones alone. Who is amid a handshake has no longer than that, and is let go:
        a thread waits for it, and the worker for the thread.
        """
        now, timeouts = time.monotonic(), self._settings.timeouts
        seconds = timeouts.drain_idle
        let_go = functools.partial(end_handshakes, self._reaper)
        shorter = max(min(handshake_grace(timeouts), deadline - now), 0.0)
        self._soon(functools.partial(self._reaper.driver.after, shorter, let_go))
        deadline = now + seconds
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Keep the connection, or close it. One whose answer came as the worker stopped
        has `timeouts.drain_idle`, too; gunicorn gives it 2 s.
        """
        super().finish_request(conn, fs)
        kept = self.keepalived_conns
        if not self.alive and kept and kept[-1] is conn:
            conn.timeout = time.monotonic() + self._settings.timeouts.drain_idle

    def handle_exit(self, sig: int, frame: Any) -> None:
        """On SIGTERM serve for `timeouts.drain_delay`, one answer per connection; then
        stop.
        """
        delay = self._settings.timeouts.drain_delay
        if not delay or not self.alive:
            super().handle_exit(sig, frame)
            return
        self.max_keepalived = 0
        ending = threading.Timer(delay, super().handle_exit, (sig, frame))
        ending.daemon = True
        ending.start()


def _called(
    application: Any, worker: ThreadWorker, hint: str, environ: Any, start_response: Any
) -> Any:
    """Call the *application*; the wire of the connection is told of its answer. *hint*:
    the line that an answer has whose connection is kept.
    """
    # of HTTP/2 it is none of HTTP/1
    answer: Any = getattr(start_response, "__self__", None)
    wire = getattr(getattr(answer, "req", None), "wire", None)
    if wire is not None:
        wire.answer = answer
        if type(answer) is Response:  # until it is over: it refers to itself
            answer.default_headers = functools.partial(_default_headers, answer, worker, hint)
    return application(environ, start_response)


def _default_headers(answer: Any, worker: ThreadWorker, hint: str) -> Any:
    """Those of gunicorn's *answer*, which says for how long its connection is kept, or
    that it is the last, because the worker stops. gunicorn takes neither header from an
    application.
    """
    if not worker.alive:
        answer.force_close()
    headers = Response.default_headers(answer)
    if hint and KEPT in headers:
        headers.append(hint)
    return headers


def _unread(wire: ThreadWire) -> list[int]:
    descriptor = wire.descriptor
    return unread([descriptor]) if descriptor >= 0 else []


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *given: Any) -> None:
    """Have *call* called in the thread of *loop*."""
    with contextlib.suppress(RuntimeError):  # the worker has ended
        loop.call_soon_threadsafe(call, *given)


def _woke(wire: ThreadWire, info: TcpInfo | None) -> None:
    """Bytes have come on the connection of *wire*, which rested; *info*: what TCP said
    then.
    """
    if wire.served is not None:
        wire.served.woke(info)


def _forget(wire: ThreadWire) -> None:
    """The connection of *wire* is over: our thread lets go of all that knew it.

    Otherwise a circle of references would wait for the garbage collector.
    """
    if wire.served is not None:
        wire.served.lost(by_peer=wire.hung_up)
        wire.served = None
    over(wire.part().parser)
