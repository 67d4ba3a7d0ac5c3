"""An HTTP server in the process of its test, and what its clients hear.

The rule of this module: *at the end no handler has failed, and the core's books agree*, whatever a test asks besides.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.journal import Journal
from server_example.http import HttpServer
from server_example.http.routes import ROUTES


def configured(overrides: Mapping[str, object]) -> ReaperConfig:
    """Defaults, but for `section__key`; a bare key is one of `timeouts`."""
    settings = {
        name.replace("__", ".") if "__" in name else f"timeouts.{name}": value for name, value in overrides.items()
    }
    return ReaperConfig.load(environ={}, overrides=settings)


@asynccontextmanager
async def serving(
    config: ReaperConfig,
    routes: Mapping[str, Any] = ROUTES,
    *,
    journal: Journal | None = None,
    kind: type[HttpServer] = HttpServer,
) -> AsyncIterator[tuple[Any, trio.SocketListener]]:
    """A server of *kind* that runs, and where it listens."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with (
        listener,
        reaper.trio.open_reaper(config, journal=journal, listener="http") as watcher,
        trio.open_nursery() as nursery,
    ):
        server = kind(config, watcher, routes)
        async with server.running() as admit:
            listening = socket.socket(fileno=os.dup(listener.socket.fileno()))
            accept = partial(reaper.trio.accepting.accept, failed=server.not_accepted)
            nursery.start_soon(partial(accept, welcome=watcher.welcome), listening, admit)
            yield server, listener
            assert server.counters.failures == 0
            watcher.core.check()
            nursery.cancel_scope.cancel()
            listening.close()


async def rest(stream: trio.abc.Stream) -> bytes:
    """Everything until the end of file, or until the connection is reset."""
    data = b""
    try:
        while piece := await stream.receive_some(65536):
            data += bytes(piece)
    except trio.BrokenResourceError:
        pass
    return data


async def head_of(stream: trio.abc.Stream) -> bytes:
    """What comes until a head is whole, or the end of file."""
    data = b""
    while b"\r\n\r\n" not in data and (piece := await stream.receive_some(65536)):
        data += bytes(piece)
    return data
