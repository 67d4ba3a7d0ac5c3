"""hypercorn: its streams and WebSockets are told when it stops.

hypercorn tells nobody; it waits for `graceful_timeout`, 3 s unless it is set, and cuts what is left.
Tried with hypercorn 0.18.0.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from ..config.settings import ReaperConfig
from .goodbye import begin_stopping
from .streams import Streams

OWN_GRACE = 3.0
"""Seconds; hypercorn's default of `graceful_timeout`."""

_WAITING: weakref.WeakKeyDictionary[Any, asyncio.Task[None]] = weakref.WeakKeyDictionary()


def end_streams(server: Any, config: ReaperConfig) -> None:
    """Have the streams of *server* told when it stops; to be called for each of its connections.

    Args:
        server: hypercorn's `TCPServer`, which is about to serve a connection.
        config: The settings in force. Its `drain` replaces a `graceful_timeout` that was not set.
    """
    streams = streams_of(server, config, Streams)
    if server.context not in _WAITING:
        stopped = stop(server.context, streams, config)
        _WAITING[server.context] = asyncio.get_running_loop().create_task(stopped)


def streams_of(server: Any, config: ReaperConfig, kind: type[Streams]) -> Streams | None:
    """Put the streams of *kind* around the application of *server*, hypercorn's `TCPServer` on
    asyncio or on trio, and let its stop wait for `timeouts.drain`. None: its streams are not told.
    """
    if server.config.graceful_timeout == OWN_GRACE:
        server.config.graceful_timeout = config.timeouts.drain
    wrapper = server.app
    if type(wrapper).__name__ != "ASGIWrapper" or not config.timeouts.drain_streams:
        return None  # WSGI: its threads are not told
    if not isinstance(wrapper.app, Streams):
        wrapper.app = kind(wrapper.app, config, talks=True)
    found: Streams = wrapper.app
    return found


async def stop(context: Any, streams: Streams | None, config: ReaperConfig) -> None:
    """Wait until the server of *context*, hypercorn's `WorkerContext`, stops; then tell *streams*."""
    await context.terminated.wait()
    begin_stopping()
    if streams is not None:
        streams.stop(config.timeouts.drain_streams)
