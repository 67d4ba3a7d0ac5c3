"""Servers in one call: `trio.serve_tcp` with an idle timeout, with or without a task
per silent connection.

The rule of this module: *the handler need know nothing of the reaper*.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, Unpack

import trio

from ..config.settings import ReaperConfig
from ..driver.options import Options, check_options, spelled_out
from ..driver.sockets import shut
from ..driver.watched import PROBE_GRACE, Probe, check_handler, check_idle, check_watch
from .accepting import accept
from .reaper import open_reaper
from .streams import WatchedSocket


@spelled_out
async def serve_tcp(
    handler: Callable[[Any], Awaitable[object]],
    port: int,
    *,
    idle: float | None = None,
    host: str | bytes | None = None,
    backlog: int | None = None,
    handler_nursery: trio.Nursery | None = None,
    config: ReaperConfig | None = None,
    probe: Probe | None = None,
    grace: float = PROBE_GRACE,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[Options],
) -> NoReturn:
    """`trio.serve_tcp`, and every connection that stays silent for *idle* seconds is
    closed.

    The handler need know nothing of it: it is given a `WatchedSocket`, on which
    receiving touches by itself.

    Args:
        handler, port, host, backlog, handler_nursery, task_status: As in
            `trio.serve_tcp`.
        idle: Seconds of silence allowed; 0 switches the timeout off; None takes the
            config's `timeouts.idle`.
        config, options: As in `TrioReaper`.
        probe, grace: As in `TrioReaper.watch`.
    Raises:
        InvalidArgument: by name and value.
        OSError: the port cannot be had; and whatever the handler raises, as in
            `trio.serve_tcp`.
    """
    check_handler("handler", handler)
    check_watch(idle, "idle", probe, grace)
    check_options(config, idle, options)
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    with _listening(listeners) as sockets:
        async with open_reaper(config, idle=idle, **options) as reaper:

            async def handle(connected: socket.socket) -> None:
                # This server may have been cancelled in the moment of the accept, and
                # the caller's nursery not.
                if not reaper.running:
                    connected.close()
                    return
                with suppress(OSError):
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    with reaper.watch(connected, idle, probe=probe, grace=grace) as connection:
                        stream = WatchedSocket(connected, connection)
                        try:
                            await handler(stream)
                        finally:
                            connection.hung_up = stream.hung_up
                            if connection.reaped:
                                shut(connected.fileno())
                            stream.close()
                finally:
                    connected.close()

            async with trio.open_nursery() as nursery:
                handlers = nursery if handler_nursery is None else handler_nursery
                for listening in sockets:
                    nursery.start_soon(
                        accept, listening, lambda connected: handlers.start_soon(handle, connected)
                    )
                task_status.started(listeners)
    raise AssertionError("unreachable")


@spelled_out
async def serve_parked(
    handler: Callable[[Any], Awaitable[object]],
    port: int,
    *,
    idle: float | None = None,
    host: str | bytes | None = None,
    backlog: int | None = None,
    tls: ssl.SSLContext | None = None,
    linger: float = 0.0,
    config: ReaperConfig | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[Options],
) -> NoReturn:
    """Serve as `serve_tcp` does, but without a task per silent connection: *handler*
    begins anew with the next bytes.

    Args:
        handler, idle, tls, linger: As in `TrioReaper.parking_lot`.
        port, host, backlog, task_status: As in `trio.serve_tcp`.
        config, options: As in `TrioReaper`.
    Raises:
        InvalidArgument: by name and value.
        OSError: the port cannot be had; and whatever the handler raises.
    """
    check_handler("handler", handler)
    check_options(config, idle, options)
    check_idle(linger, "linger")
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    with _listening(listeners) as sockets:
        async with (
            open_reaper(config, idle=idle, **options) as reaper,
            reaper.parking_lot(handler, idle, linger=linger, tls=tls) as lot,
            trio.open_nursery() as nursery,
        ):
            for listening in sockets:
                nursery.start_soon(lot.accept, listening)
            task_status.started(listeners)
    raise AssertionError("unreachable")


@contextmanager
def _listening(listeners: Iterable[trio.SocketListener]) -> Iterator[list[socket.socket]]:
    """Sockets of the standard library for the ports of *listeners*: trio's cannot
    accept without waiting.
    """
    with ExitStack() as both:
        for listener in listeners:
            both.callback(listener.socket.close)
        yield [
            both.enter_context(socket.socket(fileno=os.dup(listener.socket.fileno())))
            for listener in listeners
        ]
