"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)` instead of aiohttp's
`web.run_app(app)`.

The rule of this module: *aiohttp is asked, not told*. When a connection is due, the
fields of its `RequestHandler` say what it waits for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser
from aiohttp.log import server_logger

from ...asyncio import transports
from ...asyncio.guards import OnTransport, guard_server
from ...asyncio.reaper import AsyncioReaper, reaper_of
from ...asyncio.serve import loop_factory
from ...config.durations import NEVER
from ...config.settings import ReaperConfig
from ...driver import at_work
from ...driver.driver import Call
from ...driver.served import Terms, Wire, each_served
from ...errors import printable
from ...policy import Phase
from ..abandoned import Abandoned, link_of
from ..configured import advertised, kept_alive, warn
from ..streams import EXTENSION
from .streams import end_streams


class Aiohttp(OnTransport):
    """A connection of aiohttp's server."""

    __slots__ = ("_part", "_said")

    hears = True

    def __init__(self, terms: Terms, uid: int, wire: Wire) -> None:
        super().__init__(terms, uid, wire)
        self._said = b""  # what woke the guard, if it may end in a part of a head
        self._part = -1  # bytes that had come with it; -1: there was none

    def heard(self, data: bytes) -> None:
        if not data.endswith(END) and len(data) <= MOST_KEPT:
            info = self.wire.info()
            self._said, self._part = data, -1 if info is None else info.received

    def _has_part(self) -> bool:
        """Whether a part of a head came in one piece, with what was answered last or
        without, and nothing since.
        """
        said, self._said = self._said, b""
        if said and not _ends_in_a_part(said):
            self._part = -1
        if self._part < 0:
            return False
        info = self.wire.info()
        return info is not None and info.received == self._part

    def phase(self) -> Phase:
        transport = self.transport
        handler = transport.get_protocol()
        if handler._payload_parser is not None:
            return Phase.TUNNEL  # since the answer 101, whatever was asked for before
        request = handler._current_request
        if request is None:
            answering = handler._request_in_progress or handler._messages
            if answering:
                return Phase.IN_FLIGHT
            return Phase.HEADERS if self._has_part() else Phase.KEEP_ALIVE
        read = request.content.is_eof() or not transport.is_reading()
        return Phase.IN_FLIGHT if read else Phase.BODY

    def owes(self) -> bool:
        return bool(self.protocol._current_request._payload_writer.output_size == 0)

    def begun(self) -> bool:
        """As the base class says. The parser, in C, shows nothing else of a part of a
        head: told that its input is over, it makes a request of what it has.
        """
        try:
            return self.protocol._parser.feed_eof() is not None
        except AttributeError:  # what cannot be read has not begun
            return False
        except Exception:
            return True  # what it has makes no request

    def be_last(self) -> None:
        """As the base class says: aiohttp answers as if its client had asked for
        `Connection: close`.
        """
        handler = self.protocol
        handler._request_factory = partial(_last, handler._request_factory)
        if handler._current_request is not None:
            _wants_close(handler._current_request)


END = b"\r\n\r\n"
"""What the head of a request ends with."""
MOST_KEPT = 65536
"""Bytes; a longer piece is not kept, to be looked at, until the guard looks."""


def _ends_in_a_part(data: bytes) -> bool:
    """Whether *data* ends in a part of a head, behind whole requests if there are any.

    aiohttp's parser does not show a part, so *data* is parsed once more by another.
    """
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, MOST_KEPT)
    try:
        messages, upgraded, _ = parser.feed_data(data)
        if upgraded or (messages and not messages[-1][1].is_eof()):
            return False
    except Exception:  # the server's own has found that, too
        return False
    try:
        return parser.feed_eof() is not None
    except Exception:
        return True  # what it has makes no request


def _last(factory: Callable[..., Any], *given: Any) -> Any:
    """Make a request by *factory*, aiohttp's, whose answer is the last."""
    return _wants_close(factory(*given))


def _wants_close(request: Any) -> Any:
    request._message = _Closing(request._message)
    return request


class _Closing:
    """The head of a request, *message*, as if its client wished to close."""

    should_close = True

    def __init__(self, message: Any) -> None:
        self.inner: Any = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


SWITCHES = HTTPStatus.SWITCHING_PROTOCOLS.value
"""The status after which a connection speaks no HTTP."""
OWN_GRACE = 60.0
"""Seconds; aiohttp's default of `shutdown_timeout`."""


class Handling:
    """A request that aiohttp is answering.

    Args:
        request: The request.
    """

    __slots__ = ("_request", "_task", "began", "call", "left", "settled")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._task = asyncio.current_task()
        self.began: float
        self.settled: bool
        self.left: float | None
        self.call: Call | None

    def route(self) -> str:
        request = self._request
        resource = getattr(getattr(request, "match_info", None), "route", None)
        named = getattr(getattr(resource, "resource", None), "canonical", None)
        return printable(f"{request.method} {named or request.path}")

    def may_be_asked(self) -> bool:
        request: Any = self._request
        begun = getattr(request._payload_writer, "output_size", 1)
        return not begun and request.version == HttpVersion11

    def may_be_cancelled(self) -> bool:
        """Whether `request["reaper"]` does not say `{"abandoned": False}`."""
        said = self._request.get(EXTENSION)
        return not isinstance(said, dict) or said.get("abandoned") is not False

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Handlings:
    """The requests that one aiohttp server is answering.

    Args:
        reaper: Watches the connections of the server.
        handler: aiohttp's handler of all requests.
    """

    def __init__(self, reaper: AsyncioReaper, handler: Callable[[Any], Any]) -> None:
        self._abandoned = Abandoned(reaper.driver)
        self._handler = handler
        self._underway: dict[int, Handling] = {}  # by the id of the request: it has no hash
        self._early: set[Any] = set()  # protocols whose FIN came before their handler began

    async def handle(self, request: Any) -> Any:
        """Answer *request*, as aiohttp does."""
        handling = self._underway[id(request)] = Handling(request)
        self._abandoned.begin(handling)
        if request.protocol in self._early:
            self._early.discard(request.protocol)
            if request.content.is_eof():
                self._abandoned.hung_up(handling, link_of(request.transport))
            else:
                request.transport.close()  # the rest of it will never come
        elif request.transport is None:
            self._abandoned.lost(handling)
        try:
            response = await self._handler(request)
        except BaseException:
            self._abandoned.over(handling)
            raise
        else:
            # aiohttp sends what is left of the response when the handler has returned.
            self._abandoned.is_answered(handling)
            return response
        finally:
            del self._underway[id(request)]

    def lost(self, protocol: Any) -> None:
        """The connection of *protocol*, aiohttp's `RequestHandler`, is lost."""
        self._early.discard(protocol)
        handling = self._of(protocol)
        if handling is not None:
            self._abandoned.lost(handling)

    def hung_up(self, protocol: Any) -> bool:
        """The client of *protocol* sends no more. Returns whether its connection stays
        open.
        """
        handling, waiting = self._of(protocol), protocol._messages
        if transports.is_tls(protocol.transport):
            return False
        if handling is not None and not waiting and protocol._current_request.content.is_eof():
            self._abandoned.hung_up(handling, link_of(protocol.transport))
        elif handling is None and (_begins(protocol) or (len(waiting) == 1)):
            self._early.add(protocol)  # its handler has yet to begin
        else:
            return False
        protocol.close()  # after the answer
        return True

    def _of(self, protocol: Any) -> Handling | None:
        """The request that *protocol* is answering; None if its answer is complete."""
        request = protocol._current_request
        return None if _is_sent(request) else self._underway.get(id(request))

    def factory(self, server: Callable[[], Any]) -> Callable[[], Any]:
        """Return a factory like *server* whose protocols tell this object that their
        clients have gone.
        """
        kind = web.RequestHandler
        handlings = self

        class Telling(kind):  # type: ignore[misc, valid-type]
            __slots__ = ()

            def eof_received(self) -> bool:
                return handlings.hung_up(self)

            def connection_lost(self, exc: BaseException | None) -> None:
                handlings.lost(self)
                super().connection_lost(exc)

        def make() -> Any:
            made = server()
            if type(made) is kind:
                made.__class__ = Telling
            return made

        return make


def _begins(protocol: Any) -> bool:
    """Whether the handler of a request that *protocol* has read is about to begin."""
    info = transports.tcp_info(protocol.transport)
    waits = protocol._waiter is not None or protocol._messages
    return not waits and (info is None or info.received > 0)


def _is_sent(request: Any) -> bool:
    """Whether all of the response to *request* has been written, although its handler
    goes on.
    """
    return bool(getattr(getattr(request, "_payload_writer", None), "_eof", False))


def guard(server: Callable[[], Any], *, reaper: AsyncioReaper | None = None) -> Callable[[], Any]:
    """Guard `AppRunner.server`:
    `loop.create_server(reaper.aiohttp.guard(runner.server), host, port)`.

    Args:
        server: The attribute, which exists after `await runner.setup()`.
        reaper: Watches the connections, by its config's `timeouts`; None: the loop's
            own, without `timeouts.abandoned`.
    """
    handler = getattr(server, "request_handler", None)
    if reaper is None:
        return guard_server(server, Aiohttp, reaper_of)
    if handler is not None:
        _stop_gently(server, reaper)
    if handler is not None and at_work.is_wanted():
        handler = server.request_handler = at_work.marked(handler)  # type: ignore[attr-defined]
    if handler is not None and reaper.config.timeouts.abandoned:
        handlings = Handlings(reaper, handler)
        server.request_handler = handlings.handle  # type: ignore[attr-defined]
        server = handlings.factory(server)
    return guard_server(server, Aiohttp, lambda: reaper)


def _stop_gently(server: Any, reaper: AsyncioReaper) -> None:
    """Have *server*, a `web.Server`, wait for `drain_idle` at its stop before it closes
    what is idle: a request may be on its way. What is answered from then on is the last
    of its connection.
    """
    close_idle, end = server.pre_shutdown, server.shutdown

    def tell() -> None:
        each_served(reaper, lambda served: served.tell_last())

    async def shutdown(timeout: float | None = None) -> None:
        if server.connections:
            await asyncio.sleep(reaper.config.timeouts.drain_idle)
        close_idle()
        await end(timeout)

    server.pre_shutdown, server.shutdown = tell, shutdown


def prepare_answers(app: Any, config: ReaperConfig, named: Any) -> None:
    """Ping and end the streams of *app*, by *config*; and have each of its answers
    after which the connection is kept say for how long, if the application does not.

    Both in one function that aiohttp awaits for each answer: two cost 2,700
    instructions more.

    Args:
        named: The keep-alive that the program has set, in seconds; None: none.
    Raises:
        RuntimeError: the application has been started.
    """
    note, seconds = end_streams(app, config), advertised(kept_alive(config, named))
    if note is None and not seconds:
        return
    says = f"timeout={seconds}" if seconds else ""

    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        if not isinstance(response, web.Response):  # most are: whole, and no stream
            if note is not None:
                note(request, response)
            if response.status == SWITCHES:
                return
        if says and response.keep_alive:
            response.headers.setdefault("Keep-Alive", says)

    app.on_response_prepare.append(prepare)


def run_app(app: Any, *, config: ReaperConfig | None = None, **options: Any) -> None:
    """`aiohttp.web.run_app` with guarded connections.

    Args:
        app: As in `aiohttp.web.run_app`.
        config: The settings in force; None: those of the file that REAPER_CONFIG names
            and of the variables REAPER_*.
        options: As in `aiohttp.web.run_app`, except `loop`. A `keepalive_timeout` holds
            where *config* leaves `keep_alive` at its default; `shutdown_timeout` is
            `drain` unless given.
    Raises:
        ConfigError: there is no *config*, and the file or a variable cannot be used.
    """
    settings = ReaperConfig.load(os.environ.get("REAPER_CONFIG")) if config is None else config
    settings = kept_alive(settings, options.get("keepalive_timeout"))
    warn(settings, "aiohttp", server_logger)
    # aiohttp's own timer counts the seconds in which the process stood still, and fires
    # before the bytes are read that came meanwhile.
    options["keepalive_timeout"] = NEVER

    def guarded(server: Callable[[], Any]) -> Callable[[], Any]:
        return guard(server, reaper=reaper_of(config=settings))

    options.setdefault("shutdown_timeout", settings.timeouts.drain)
    prepare_answers(app, settings, None)  # in which its own keep-alive is by now
    make = loop_factory(wrap=guarded, config=settings)
    web.run_app(app, loop=make(), **options)
