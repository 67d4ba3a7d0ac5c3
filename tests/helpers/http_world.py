"""An HTTP server in the process of its test, and what its clients hear.

The rule of this module: *at the end no handler has failed, and the core's books agree*,
whatever a test asks besides.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.driver.sockets import reset_on_close
from reaper.journal import Journal
from server_example.http import HttpServer
from server_example.http.routes import ROUTES

PATIENCE = 60.0
"""Seconds that a test in real time waits for what must happen; only a broken server
makes it wait that long.
"""


class Running(HttpServer):
    """A server that runs.

    Attributes:
        address: Where it listens.
        clients: Those that have connected; closed at its end.
    """

    address: tuple[str, int]
    clients: list[trio.SocketStream]

    async def connect(self, request: bytes = b"") -> trio.SocketStream:
        """A client that has said *request*."""
        stream = await trio.open_tcp_stream(*self.address)
        self.clients.append(stream)
        if request:
            await stream.send_all(request)
        return stream

    async def dial(self) -> trio.abc.Stream:
        """A client that speaks TLS if the server does."""
        plain, authority = await self.connect(), self.config.server.tls_cert
        if not authority:
            return plain
        trust = ssl.create_default_context(cafile=authority)
        stream = trio.SSLStream(plain, trust, server_hostname="127.0.0.1", https_compatible=True)
        await stream.do_handshake()
        return stream

    async def ask(self, request: bytes) -> bytes:
        """Everything that the server answers to *request* until it closes the
        connection.
        """
        async with await self.connect(request) as stream:
            return await rest(stream)

    async def settled(self) -> None:
        """Wait until every connection is closed and every lease given back."""
        with trio.fail_after(PATIENCE):
            await until(lambda: not (len(self.lot) or len(self.watcher.core)), 0.01)
        assert self.counters.opened == self.counters.closed

    async def reaped(self) -> dict[str, int]:
        """How many were closed, by reason, once connections have come and all have
        gone.
        """
        with trio.fail_after(PATIENCE):
            await until(lambda: self.counters.opened, 0.01)
        await self.settled()
        return dict(self.lot.reaped)


@asynccontextmanager
async def running(
    routes: Mapping[str, Any] = ROUTES, journal: Journal | None = None, /, **overrides: Any
) -> AsyncIterator[Running]:
    """A server at its defaults, except `section__key=value`; a bare key is one of
    `timeouts`.
    """
    named = {
        name.replace("__", ".") if "__" in name else f"timeouts.{name}": overrides[name]
        for name in overrides
    }
    config = ReaperConfig.load(environ={}, overrides=named)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with (
        listener,
        reaper.trio.open_reaper(config, journal=journal, listener="http") as watcher,
        trio.open_nursery() as nursery,
    ):
        server = Running(config, watcher, routes)
        server.address, server.clients = listener.socket.getsockname()[:2], []
        async with server.running() as admit:
            with socket.socket(fileno=os.dup(listener.socket.fileno())) as listening:
                accept = partial(
                    reaper.trio.accepting.accept,
                    welcome=watcher.welcome,
                    failed=server.not_accepted,
                )
                nursery.start_soon(accept, listening, admit)
                await trio.testing.wait_all_tasks_blocked()
                try:
                    yield server
                finally:
                    for client in server.clients:
                        client.socket.close()
                assert server.counters.failures == 0
                watcher.core.check()
                nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object], every: float = 0.2) -> None:
    """Wait until *condition* holds."""
    while not condition():
        await trio.sleep(every)


def will_reset(stream: trio.abc.Stream) -> None:
    """Have its close be a reset."""
    plain: Any = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    reset_on_close(plain.socket)


async def rest(stream: trio.abc.Stream) -> bytes:
    """Everything until the end of file, or until the connection is reset."""
    data = b""
    try:
        while piece := await stream.receive_some(65536):
            data += bytes(piece)
    except trio.BrokenResourceError:
        pass
    return data


async def ask(stream: trio.abc.Stream, request: bytes) -> bytes:
    """The head of its answer."""
    await stream.send_all(request)
    return await head_of(stream)


async def head_of(stream: trio.abc.Stream) -> bytes:
    """What comes until a head is whole, or the end of file."""
    data = b""
    while b"\r\n\r\n" not in data and (piece := await stream.receive_some(65536)):
        data += bytes(piece)
    return data
