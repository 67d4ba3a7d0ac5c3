"""hypercorn: its streams and WebSockets are told when it stops, and requests are
cancelled whose clients are gone.

hypercorn does not say that it stops: it waits for `graceful_timeout`, 3 s by default,
and cuts what is left. When a client has gone, it tells each of its `HTTPStream`s by
`StreamClosed`. There is one per request, over HTTP/1 and HTTP/2. After a FIN it still
sends the answer, except with TLS and over HTTP/2. Tried with hypercorn 0.18.0.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import weakref
from dataclasses import replace
from typing import Any

from ...asyncio import transports
from ...asyncio.reaper import AsyncioReaper
from ...config.settings import DEFAULT, ReaperConfig
from ...driver.driver import Driver
from ...driver.served import Served, each_served
from ...driver.sockets import queued, shut_by_peer
from ..abandoned import Link, Requests
from ..configured import advertised_of
from ..goodbye import begin_stopping
from ..guest import Around
from ..streams import Streams, are_wanted
from .http2 import CARRIER, STOPPED

LINK = "_reaper_link"
"""The attribute of a hypercorn `TCPServer` that makes its `Link`. It is missing with
TLS, and where nothing is guarded.
"""

OWN_GRACE = 3.0
"""Seconds; hypercorn's default of `graceful_timeout`."""

OWN_KEEP_ALIVE = 5.0
"""Seconds; hypercorn's default of `keep_alive_timeout`."""

SAYS = b"keep-alive"
"""The header that names the keep-alive."""

WAITS = sys.version_info >= (3, 12)
"""Whether a server of asyncio's waits for its connections."""

KNOWN: weakref.WeakKeyDictionary[Any, asyncio.Task[None]] = weakref.WeakKeyDictionary()
"""The `WorkerContext`s whose applications are wrapped on asyncio, each with the task
that waits for its end.
"""


def stand_around(server: Any, reaper: AsyncioReaper) -> None:
    """Wrap the application of *server*. Call it for the first connection of a
    `WorkerContext`; the others share it. Streams are told when the server stops, and
    requests whose clients are gone are cancelled.

    Args:
        server: hypercorn's `TCPServer`, which is about to serve a connection.
        reaper: Watches its connections. `timeouts.drain` of its config replaces a
            `graceful_timeout` that was not set.
    """
    config = reaper.config
    streams = streams_of(server, config, reaper.driver, Streams, Requests, never=None)
    stopped = _stop(server.context, server.config.graceful_timeout, streams, reaper)
    KNOWN[server.context] = asyncio.get_running_loop().create_task(stopped)


async def _stop(
    context: Any, grace: float | None, streams: Streams | None, reaper: AsyncioReaper
) -> None:
    """As `stop`. From CPython 3.12 on a server of asyncio's that is closed waits for
    its connections, and hypercorn, which counts its grace after that, for ever: what is
    left when that is over is closed here.
    """
    await stop(context, streams, reaper.driver)
    if grace is None or not WAITS:
        return
    await asyncio.sleep(grace)

    def close(one: Served) -> None:
        if is_of(context, one):
            one.wire.close(b"")

    each_served(reaper, close)


def is_of(context: Any, connection: Any) -> bool:
    """Whether *connection* is one of the server of *context*, hypercorn's
    `WorkerContext`.
    """
    return getattr(getattr(connection, "server", None), "context", None) is context


def streams_of(
    server: Any,
    config: ReaperConfig,
    driver: Driver,
    plain: type[Streams],
    cancelling: type[Requests],
    *,
    never: float | None,
) -> Streams | None:
    """Put streams around the application of *server*, hypercorn's `TCPServer` on
    asyncio or on trio, and let its stop wait for `timeouts.drain`. Returns None if its
    streams are not told.

    Args:
        plain, cancelling: Which kind, without and with `timeouts.abandoned`.
        never: The keep-alive that hypercorn is given where ours is set: it makes no
            timer.
    """
    is_set = config.origin("timeouts.keep_alive") != DEFAULT
    if is_set and server.config.keep_alive_timeout == OWN_KEEP_ALIVE:
        server.config.keep_alive_timeout = never
    if server.config.graceful_timeout == OWN_GRACE:
        server.config.graceful_timeout = config.timeouts.drain
    wrapper = server.app
    timeouts = config.timeouts
    if type(wrapper).__name__ != "ASGIWrapper":
        return None  # WSGI: its threads are not told
    if not are_wanted(config):
        return None
    if not isinstance(wrapper.app, Streams):
        if timeouts.abandoned:
            log = server.config.log.error_logger
            wrapper.app = cancelling(
                wrapper.app,
                config,
                driver,
                stream_of,
                lambda stream: stream.closed,
                talks=bool(timeouts.drain_streams),
                log=log,
                blocked=is_blocked,
            )
        else:
            talks = bool(timeouts.drain_streams)
            wrapper.app = plain(wrapper.app, config, driver, talks=talks, blocked=is_blocked)
    found: Streams = wrapper.app
    return found


async def stop(context: Any, streams: Streams | None, driver: Driver) -> None:
    """Wait until the server of *context*, hypercorn's `WorkerContext`, stops; then tell
    *streams*.
    """
    await context.terminated.wait()
    setattr(context, STOPPED, driver.now())
    begin_stopping()
    if streams is not None:
        streams.stop(driver.config.timeouts.drain_streams)


def stream_of(_: Any, send: Any) -> Any:
    """The `HTTPStream` that has the method *send*."""
    return getattr(send, "__self__", None)


def is_blocked(receive: Any, send: Any) -> bool:
    """Whether the client that *send* answers still has to take something. If that
    cannot be seen, it has.
    """
    stream = stream_of(receive, send)
    try:
        if stream.closed:
            return True
        protocol = stream.send.__self__
        server = protocol.send.__self__
        if server.send_lock.locked():
            return True
        buffers = getattr(protocol, "stream_buffers", None)
        if buffers is not None:  # HTTP/2, whose connection may have other streams under way
            number = stream.stream_id
            return bool(
                buffers[number].buffer or protocol.connection.local_flow_control_window(number) <= 0
            )
        if (writer := getattr(server, "writer", None)) is not None:
            return writer.transport.is_closing() or transports.queued(writer.transport) > 0
        trio_stream = getattr(server.stream, "transport_stream", server.stream)
        return queued(trio_stream.socket.fileno()) > 0
    except Exception:
        return True


def hint(around: Around, config: ReaperConfig) -> None:
    """Have each answer of HTTP/1 say for how long its connection is kept, less
    `timeouts.keep_alive_margin` of *config*, unless the application says it.
    """
    from hypercorn.protocol.events import Response
    from hypercorn.protocol.h11 import H11Protocol

    if hasattr(H11Protocol.stream_send, "__wrapped__"):
        return  # the other flavour of hypercorn has wrapped it
    said = functools.cache(functools.partial(advertised_of, config))

    @around(H11Protocol, "stream_send")
    def stream_send(method: Any) -> Any:
        async def instead(self: Any, event: Any) -> None:
            if type(event) is Response and event.status_code >= 200:
                if self.context.terminated.is_set():
                    event = _last(self, event)
                seconds = said(self.config.keep_alive_timeout)
                if (
                    seconds
                    and _is_kept(self)
                    and not any(name.lower() == SAYS for name, _ in event.headers)
                ):
                    more = (SAYS, b"timeout=%d" % seconds)
                    event = replace(event, headers=[*event.headers, more])
            await method(self, event)

        return instead


def _last(protocol: Any, event: Any) -> Any:
    """*event*, hypercorn's `Response` during a stop, with `Connection: close`, if
    *protocol* is guarded and the answer does not have it.
    """
    full = protocol.keep_alive_requests >= protocol.config.keep_alive_max_requests
    if full or not hasattr(getattr(protocol.send, "__self__", None), CARRIER):
        return event
    if any(name.lower() == b"connection" for name, _ in event.headers):
        return event
    return replace(event, headers=[*event.headers, (b"connection", b"close")])


def _is_kept(protocol: Any) -> bool:
    """Whether the connection of *protocol*, an `H11Protocol`, is guarded, and is kept
    after the answer that begins, as far as hypercorn decides it.
    """
    last = protocol.keep_alive_requests >= protocol.config.keep_alive_max_requests
    if last or protocol.context.terminated.is_set():
        return False
    if getattr(protocol.connection.their_state, "__name__", "") == "MUST_CLOSE":
        return False  # its client has said so
    return hasattr(getattr(protocol.send, "__self__", None), CARRIER)


def hear(around: Around) -> None:
    """Have the `Requests` around the application told when the client of a request has
    gone.
    """
    from hypercorn.protocol.events import StreamClosed
    from hypercorn.protocol.http_stream import HTTPStream

    if hasattr(HTTPStream.handle, "__wrapped__"):
        return  # the other flavour of hypercorn has wrapped it

    @around(HTTPStream, "handle")
    def handle(method: Any) -> Any:
        async def instead(self: Any, event: Any) -> None:
            if isinstance(event, StreamClosed) and not self.closed:
                requests = getattr(self.app, "app", None)
                if isinstance(requests, Requests):
                    _gone(self, requests)
            await method(self, event)

        return instead


def _gone(stream: Any, requests: Requests) -> None:
    protocol = getattr(stream.send, "__self__", None)
    server = getattr(getattr(protocol, "send", None), "__self__", None)
    made = None if hasattr(protocol, "streams") else getattr(server, LINK, None)
    link: Link | None = None if made is None else made()
    waits = link is not None and shut_by_peer(link.descriptor()) and requests.hung_up(stream, link)
    if not waits:
        requests.lost(stream)
