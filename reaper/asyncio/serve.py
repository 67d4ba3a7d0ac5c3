"""Servers that close the connections which go silent: `start_server` as asyncio has it,
and loops that guard.

The rule of this module: *what a server says itself is respected*. Only what it leaves
open is filled in, and a handler need know nothing of the reaper: bytes that come touch
the connection, however the handler reads them, and a call that waits for bytes says so,
which is how a drain tells idle connections from busy ones.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import socket
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Unpack

from ..config.settings import ReaperConfig
from ..core.ticks import check_count
from ..driver.options import Options, check_options, spelled_out
from ..driver.watched import PROBE_GRACE, Probe, check_handler, check_idle, check_watch
from .closing import bound, close
from .connection import Connection
from .guards import guard
from .reaper import AsyncioReaper, reaper_of, serving_reaper
from .tls import create_server

LIMIT = 65536
"""Bytes a reader buffers, as asyncio has it."""


class WatchedReader(asyncio.StreamReader):
    """A reader that tells its connection of the bytes that come, and of the calls that
    wait for them.

    Attributes:
        connection: The `Connection`; None until the handler begins.
    """

    connection: Connection | None = None

    def lost(self, exc: BaseException | None) -> None:
        """The transport is closed: so is the connection, if it has outlived its
        handler.
        """
        if self.connection is not None and self.connection.outlives:
            self.connection.lost(exc)

    def feed_data(self, data: Any) -> None:
        """Bytes have come: touch the connection."""
        if self.connection is not None:
            self.connection.touch()
        super().feed_data(data)

    def feed_eof(self) -> None:
        """The peer will send no more."""
        if self.connection is not None:
            self.connection.hung_up = True
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        """The connection is lost."""
        if self.connection is not None:
            self.connection.hung_up = True
        super().set_exception(exc)

    # The coroutine of who waits is kept for as long as that takes: 230 bytes. So these
    # give that of `_receiving`, and are none themselves.

    def read(self, n: int = -1) -> Coroutine[Any, Any, bytes]:
        """Read as asyncio's reader does."""
        return self._receiving(super().read(n))

    def readexactly(self, n: int) -> Coroutine[Any, Any, bytes]:
        """Read as asyncio's reader does."""
        return self._receiving(super().readexactly(n))

    def readuntil(self, separator: Any = b"\n") -> Coroutine[Any, Any, bytes]:
        """Read as asyncio's reader does; its `readline` calls this, too."""
        return self._receiving(super().readuntil(separator))

    async def _receiving(self, reading: Awaitable[bytes]) -> bytes:
        connection = self.connection
        if connection is None:
            return await reading
        connection.receiving = True
        if connection.awaited:
            connection.went_idle()
        try:
            return await reading
        finally:
            connection.receiving = False


class _Protocol(asyncio.StreamReaderProtocol):
    """A protocol that tells its reader, once, that the transport is closed."""

    def __init__(self, reader: WatchedReader, handle: Any, loop: Any) -> None:
        super().__init__(reader, handle, loop)
        self._told: WatchedReader | None = reader

    def connection_lost(self, exc: Exception | None) -> None:
        reader, self._told = self._told, None
        if reader is not None:
            reader.lost(exc)
        super().connection_lost(exc)


class ServerOptions(Options, total=False):
    """What `start_server` takes besides, as `asyncio.start_server` does.

    You may give it the options of a newer CPython, too.
    """

    family: int
    flags: int
    sock: socket.socket | None
    backlog: int
    ssl: ssl_module.SSLContext | bool | None
    reuse_address: bool | None
    reuse_port: bool | None
    keep_alive: bool | None
    ssl_handshake_timeout: float | None
    ssl_shutdown_timeout: float | None
    start_serving: bool


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object] | None]
Wrap = Callable[[Callable[[], Any]], Callable[[], Any]]


@spelled_out
async def start_server(
    client_connected_cb: Handler,
    host: Any = None,
    port: Any = None,
    *,
    idle: float | None = None,
    probe: Probe | None = None,
    grace: float = PROBE_GRACE,
    reaper: AsyncioReaper | None = None,
    config: ReaperConfig | None = None,
    limit: int = LIMIT,
    **options: Unpack[ServerOptions],
) -> asyncio.Server:
    """`asyncio.start_server`, and every connection that stays silent for *idle* seconds
    is closed.

    Its handler, if it has not returned, is cancelled with the message `reaped: idle`,
    and its writer is closed.

    Args:
        client_connected_cb: As in `asyncio.start_server`. It may give reader and writer
            to others and return: the connection is watched until it is closed.
        host, port, limit: As in `asyncio.start_server`, and so are those of *options*
            that are here not named.
        idle: Seconds of silence allowed: no byte received. 0 switches the timeout off;
            None takes the reaper's own `idle`. Sending does not count: it says nothing
            about the peer.
        probe, grace: As in `AsyncioReaper.watch`.
        reaper: Watches; None: the loop's own, or one that is made with *config* and
            *options* if any is given.
        config, options: As in `AsyncioReaper`: tick, wheel_size, journal, listener,
            jitter, reaps_per_second, seed.
    With TLS the handshake has 10 s (`timeouts.handshake`), unless *options* say
    otherwise.
    Raises:
        InvalidArgument: by name and value; and whatever `asyncio.start_server` raises.
    """
    check_handler("client_connected_cb", client_connected_cb)
    check_watch(idle, "idle", probe, grace)
    check_count("limit", limit, 1)
    of_loop: dict[str, Any] = {**options}
    of_reaper: Any = {
        name: of_loop.pop(name) for name in Options.__annotations__ if name in of_loop
    }
    watcher = serving_reaper(reaper, config, of_reaper, idle)()
    loop = asyncio.get_running_loop()

    def cut(writer: Any) -> None:
        bound(watcher, writer.transport)  # a handler may wait for its writer to close

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        if not watcher.welcomes():
            close(watcher, transport)
            return
        connection = watcher.watch(writer, idle, probe=probe, grace=grace)
        connection.when_cut = cut
        assert isinstance(reader, WatchedReader)
        reader.connection = connection
        connection.handled()
        with connection:
            done = client_connected_cb(reader, writer)
            if done is not None:
                await done
            if not connection.reaped and not writer.transport.is_closing():
                # As `outlive`, which would look at the function for each connection.
                connection.transport = writer.transport  # another one, if it began TLS
                connection.when_cut = functools.partial(close, watcher)
                connection.outlives = True
                return
        if connection.reaped:
            close(watcher, transport)
        elif transport.is_closing():
            bound(watcher, transport, patient=True)

    def factory() -> asyncio.StreamReaderProtocol:
        reader = WatchedReader(limit=limit, loop=loop)
        return _Protocol(reader, handle, loop)

    seconds = watcher.config.timeouts.handshake
    made: asyncio.Server = await create_server(
        loop.create_server, factory, of_loop, seconds, lambda: watcher, host, port
    )
    return made


def loop_factory(
    idle: float | None = None,
    handshake: float | None = None,
    base: type[asyncio.AbstractEventLoop] | None = None,
    wrap: Wrap | None = None,
    config: ReaperConfig | None = None,
) -> Callable[[], asyncio.AbstractEventLoop]:
    """A factory of loops whose `create_server` and `create_unix_server` guard what they
    serve.

    Give it to `asyncio.Runner(loop_factory=...)`, or to a server's own setting.

    Args:
        idle: As in `guard`: seconds in which nothing moves on a connection; None:
            connections are not guarded.
        handshake: Seconds for a TLS handshake, which asyncio gives 60; None:
            `timeouts.handshake`, 10 s by default.
        base: The class of loop; None: uvloop's if it is installed, else asyncio's.
        wrap: Instead of `guard` with *idle*: given a protocol factory, returns the one
            to use.
        config: That of the reaper that bounds the handshakes; None: the loop's own
            reaper's.
    Raises:
        InvalidArgument: by name and value.
    """
    kind: Any = base or asyncio.SelectorEventLoop
    if base is None:
        with suppress(ImportError):
            kind = importlib.import_module("uvloop").Loop
    check_options(config, idle, {})
    check_idle(handshake, "handshake")
    if wrap is not None:
        check_handler("wrap", wrap, "function of a protocol factory, or None")
    seconds = (config or ReaperConfig()).timeouts.handshake if handshake is None else handshake

    class Loop(kind):  # type: ignore[misc]
        """A loop that guards what is served on it."""

        _handed: list[Any]
        """The factories that it is making servers of: uvloop has `create_server` of a
        UNIX socket call `create_unix_server`.
        """

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._handed = []

        async def create_server(
            self, protocol_factory: Any, *arguments: Any, **options: Any
        ) -> Any:
            """Serve as the loop's own method does, guarded."""
            return await self._guarded(super().create_server, protocol_factory, options, *arguments)

        async def create_unix_server(
            self, protocol_factory: Any, *arguments: Any, **options: Any
        ) -> Any:
            """The same at a UNIX socket."""
            return await self._guarded(
                super().create_unix_server, protocol_factory, options, *arguments
            )

        async def _guarded(
            self, create: Any, protocol_factory: Any, options: dict[str, Any], *arguments: Any
        ) -> Any:
            if protocol_factory in self._handed:
                return await create(protocol_factory, *arguments, **options)
            if wrap is not None:
                protocol_factory = wrap(protocol_factory)
            elif idle is not None:
                protocol_factory = guard(protocol_factory, idle)

            async def hand(factory: Any, *arguments: Any, **options: Any) -> Any:
                self._handed.append(factory)
                try:
                    return await create(factory, *arguments, **options)
                finally:
                    self._handed.remove(factory)

            watcher = functools.partial(reaper_of, self, config)
            return await create_server(
                hand, protocol_factory, options, seconds, watcher, *arguments
            )

    return Loop
