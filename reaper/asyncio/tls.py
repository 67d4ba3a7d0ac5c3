"""TLS for servers whose handshakes are judged like everything else: on the stall clock,
and after the loop has read.

The rule of this module: *the raw connection has a lease from accept on*. asyncio bounds
a handshake by a timer of its own. After a pause of the process that timer fires before
the loop has read the ClientHello, which waits in the kernel; and nobody but asyncio
knows who is in a handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from ..core.lease import Expiry
from ..driver.sockets import peer_name
from ..driver.watched import check_idle
from ..policy import Phase
from .reaper import AsyncioReaper
from .transports import descriptor_of

NEVER = 1e8
"""Seconds; asyncio's own bound, where it is not the one that counts."""

Options = dict[str, Any]


def door(
    factory: Callable[[], Any],
    options: Options,
    seconds: float,
    reaper: Callable[[], AsyncioReaper],
) -> Callable[[], Any]:
    """The factory to give `create_server` in the place of *factory*. It takes TLS out
    of *options*.

    Args:
        factory: Makes the server's protocols. As in asyncio one is made at accept, and
            connected after the handshake.
        options: Of `create_server`. Without an `ssl` in it, *factory* is returned as it
            is.
        seconds: For the handshake, from accept on; 0: no bound. An
            `ssl_handshake_timeout` in *options* wins.
        reaper: Called in the loop; returns the reaper that bounds the handshake.
    """
    context = options.get("ssl")
    if not isinstance(context, ssl.SSLContext):
        return factory
    del options["ssl"]
    given = options.pop("ssl_handshake_timeout", None)
    shutdown = options.pop("ssl_shutdown_timeout", None)
    return lambda: Door(factory(), context, seconds if given is None else given, shutdown, reaper())


class Door(asyncio.Protocol):
    """The protocol of a raw connection, and then of the encrypted one until the
    server's own can be connected.

    Args:
        inner: The server's.
    """

    def __init__(
        self,
        inner: Any,
        context: ssl.SSLContext,
        seconds: float,
        shutdown: float | None,
        reaper: AsyncioReaper,
    ) -> None:
        self._inner = inner
        self._context = context
        self._seconds = seconds
        self._shutdown = shutdown
        self._reaper = reaper
        # What came before the handshake began, and what came with the last of it.
        self._early: list[bytes] = []
        self._ended = False

    def connection_made(self, transport: Any) -> None:
        transport.pause_reading()  # until `start_tls` reads
        self._task = self._reaper.loop.create_task(self._shake_hands(transport))

    async def _shake_hands(self, raw: Any) -> None:
        loop, driver, early = self._reaper.loop, self._reaper.driver, b"".join(self._early)
        key = (Phase.HANDSHAKE.value, driver.next_number())

        def over(expiry: Expiry) -> None:
            driver.books.reaped(expiry.lease, peer_name(descriptor_of(raw)), expiry.reason, expiry)
            raw.abort()

        handshake = driver.register(
            key, check_idle(self._seconds), over, reason=Phase.HANDSHAKE.value
        )
        self._early.clear()
        bounds: Any = {"ssl_handshake_timeout": NEVER, "ssl_shutdown_timeout": self._shutdown}
        starting: Any = loop.start_tls(raw, self, self._context, server_side=True, **bounds)
        try:
            if early:  # uvloop reads once although it was paused
                starting = loop.create_task(starting)
                # It pauses reading, and lets its own protocol take our place, before
                # the loop reads again.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                _feed(raw.get_protocol(), early)
            encrypted: Any = await starting
        except OSError:  # ssl.SSLError too
            raw.abort()
            return
        finally:
            handshake.release()
        if encrypted is None or self._ended or raw.is_closing():
            # uvloop returns a transport although the connection was lost in the
            # handshake
            raw.abort()
            return
        inner = self._inner
        encrypted.set_protocol(inner)
        inner.connection_made(encrypted)
        if self._early:
            _feed(encrypted.get_protocol(), b"".join(self._early))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def eof_received(self) -> None:
        self._ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True


def _feed(protocol: Any, data: bytes) -> None:
    if not hasattr(protocol, "get_buffer"):
        protocol.data_received(data)
        return
    while data:
        room: Any = protocol.get_buffer(len(data))
        count = min(len(room), len(data))
        room[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
