"""TLS for servers whose handshakes are judged like everything else: on the stall clock,
and after the loop has read.

The rule of this module: *the raw connection has a lease from accept on, and the
server's protocol hears what it would hear from the loop itself*. asyncio bounds a
handshake by a timer of its own. After a pause of the process that timer fires before
the loop has read the ClientHello, which waits in the kernel; and nobody but asyncio
knows who is in a handshake.

So the loop is given the raw connection, and here it is handed to the loop's own
protocol for TLS, as the loop would do. That one connects the server's protocol the
moment the handshake is over, before it reads on. `start_tls` would tell us a pass
later. By then a client that writes, says goodbye and leaves has been read to its end,
and of 60 such clients 41 to 52 were not heard.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from asyncio import sslproto
from collections.abc import Callable
from typing import Any

from ..config.durations import NEVER
from ..core.lease import Expiry
from ..driver.sockets import peer_name
from ..driver.watched import check_idle
from ..policy import Phase
from .reaper import AsyncioReaper
from .transports import descriptor_of

Options = dict[str, Any]

Wrap = Callable[[Any, Any], Any]
"""Makes the loop's protocol for TLS, given the server's protocol and a future, which is
done when the handshake is over.
"""


def door(
    factory: Callable[[], Any],
    options: Options,
    seconds: float,
    reaper: Callable[[], AsyncioReaper],
) -> Callable[[], Any]:
    """The factory to give `create_server` in the place of *factory*. It takes TLS out
    of *options*. Call it in the loop.

    On a loop whose protocol for TLS cannot be made here, TLS stays the loop's, and so
    does the bound of the handshake: its timer gets the same seconds.

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
    given = options.get("ssl_handshake_timeout")
    bound = seconds if given is None else given
    wrap = _wrapping(asyncio.get_running_loop(), context, options.get("ssl_shutdown_timeout"))
    if wrap is None:
        options["ssl_handshake_timeout"] = bound or NEVER
        return factory
    for name in ("ssl", "ssl_handshake_timeout", "ssl_shutdown_timeout"):
        options.pop(name, None)
    return lambda: Door(factory(), wrap, bound, reaper())


def _wrapping(loop: Any, context: ssl.SSLContext, shutdown: float | None) -> Wrap | None:
    """Makes the protocols for TLS of *loop*; None: they cannot be made here.

    Nobody has promised the class. So one is made at once, to see whether it can be.
    """
    kind: Any = sslproto.SSLProtocol
    if not isinstance(loop, asyncio.BaseEventLoop):
        theirs: Any = sys.modules.get("uvloop.loop")
        if theirs is None or not isinstance(loop, theirs.Loop):
            return None
        kind = getattr(theirs, "SSLProtocol", None)
    bounds = {"ssl_handshake_timeout": NEVER, "ssl_shutdown_timeout": shutdown}

    def wrap(inner: Any, shaken: Any) -> Any:
        return kind(loop, inner, context, shaken, server_side=True, **bounds)

    try:
        wrap(asyncio.Protocol(), None).connection_lost(None)
    except Exception:
        return None
    return wrap


class Door(asyncio.Protocol):
    """The protocol of a raw connection, until the handshake begins.

    Args:
        inner: The server's.
        wrap: Makes the protocol that shakes hands for it.
        seconds: For the handshake; 0: no bound.
    """

    def __init__(self, inner: Any, wrap: Wrap, seconds: float, reaper: AsyncioReaper) -> None:
        self._inner = inner
        self._wrap = wrap
        self._seconds = seconds
        self._reaper = reaper

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake, and give it a lease."""
        driver, shaken = self._reaper.driver, self._reaper.loop.create_future()
        key = (Phase.HANDSHAKE.value, driver.next_number())

        def over(expiry: Expiry) -> None:
            peer = peer_name(descriptor_of(transport))
            driver.books.reaped(expiry.lease, peer, expiry.reason, expiry)
            transport.abort()

        lease = driver.register(key, check_idle(self._seconds), over, reason=Phase.HANDSHAKE.value)

        def ended(shaken: asyncio.Future[None]) -> None:
            lease.release()
            # An error that nobody asks for is logged. The loop's own are of no use to
            # an operator either: it shows them in debug mode only.
            if shaken.cancelled() or shaken.exception() is not None:
                transport.abort()

        shaken.add_done_callback(ended)
        try:
            encrypting = self._wrap(self._inner, shaken)
            transport.set_protocol(encrypting)
            encrypting.connection_made(transport)
        except BaseException:
            shaken.cancel()
            raise
