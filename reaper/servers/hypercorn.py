"""hypercorn on asyncio: its streams and WebSockets are told when it stops.

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
    if server.config.graceful_timeout == OWN_GRACE:
        server.config.graceful_timeout = config.timeouts.drain
    wrapper, context = server.app, server.context
    if type(wrapper).__name__ != "ASGIWrapper" or not config.timeouts.drain_streams:
        return  # WSGI: its threads are not told
    if not isinstance(wrapper.app, Streams):
        wrapper.app = Streams(wrapper.app, config, talks=True)
    if context not in _WAITING:
        stopped = _stop(context.terminated, wrapper.app, config.timeouts.drain_streams)
        _WAITING[context] = asyncio.get_running_loop().create_task(stopped)


async def _stop(terminated: Any, streams: Streams, seconds: float) -> None:
    await terminated.wait()
    begin_stopping()
    streams.stop(seconds)
