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

A server that is closed lets no newcomer in, and from CPython 3.12 on its `wait_closed`
waits for those who are amid their handshakes, which no drain knows. They have
`handshake_grace` from then on.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..config.durations import NEVER
from ..core.lease import Expiry
from ..core.slices import walk
from ..driver.served import handshake_grace
from ..driver.sockets import peer_name
from ..driver.watched import check_idle
from ..policy import Phase
from .reaper import AsyncioReaper
from .transports import descriptor_of

Options = dict[str, Any]
Soon = Callable[[Callable[[], None]], object]

Wrap = Callable[[Any, Any], Any]
"""Makes the loop's protocol for TLS, given the server's protocol and a future, which is
done when the handshake is over.
"""


async def create_server(
    create: Callable[..., Awaitable[Any]],
    factory: Callable[[], Any],
    options: Options,
    seconds: float,
    reaper: Callable[[], AsyncioReaper],
    *where: Any,
) -> Any:
    """The server that *create* makes, with its handshakes bounded here. Call it in the
    loop.

    On a loop whose protocol for TLS cannot be made here, TLS stays the loop's, and so
    does the bound of the handshake: its timer gets the same seconds.

    Args:
        create: The `create_server` of a loop.
        factory: Makes the server's protocols. As in asyncio one is made at accept, and
            connected after the handshake.
        options: Of `create_server`; TLS is taken out of them. Without an `ssl` in it,
            this is *create*.
        seconds: For the handshake, from accept on; 0: no bound. An
            `ssl_handshake_timeout` in *options* wins.
        reaper: Called in the loop; returns the reaper that bounds the handshake.
        where: The other arguments of `create_server`.
    """
    context = options.get("ssl")
    if not isinstance(context, ssl.SSLContext):
        return await create(factory, *where, **options)
    given = options.get("ssl_handshake_timeout")
    bound = seconds if given is None else given
    wrap = _wrapping(asyncio.get_running_loop(), context, options.get("ssl_shutdown_timeout"))
    if wrap is None:
        options["ssl_handshake_timeout"] = bound or NEVER
        return await create(factory, *where, **options)
    for name in ("ssl", "ssl_handshake_timeout", "ssl_shutdown_timeout"):
        options.pop(name, None)
    handshakes = Handshakes(wrap, bound, reaper)
    server = await create(lambda: Door(factory(), handshakes), *where, **options)
    if isinstance(server, asyncio.Server):  # no other waits for them
        handshakes.end_with(server)
    return server


def _wrapping(loop: Any, context: ssl.SSLContext, shutdown: float | None) -> Wrap | None:
    """Makes the protocols for TLS of *loop*; None: they cannot be made here.

    Nobody has promised the class. So one is made at once, to see whether it can be.
    """
    kind: Any = getattr(sslproto, "SSLProtocol", None)
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


class Handshakes:
    """The handshakes of one server.

    Args:
        wrap: Makes the protocol that shakes hands, for one of the server's.
        seconds: For one handshake; 0: no bound.
        reaper: Called in the loop; returns the reaper that bounds them.
    """

    def __init__(self, wrap: Wrap, seconds: float, reaper: Callable[[], AsyncioReaper]) -> None:
        self.wrap = wrap
        self.seconds = seconds
        self.reaper = reaper
        self._amid: set[Any] = set()
        self._closed = False

    def end_with(self, server: asyncio.Server) -> None:
        """End them when *server* has been closed for the time that they then have."""
        close = server.close

        def closed() -> None:
            vars(server).pop("close", None)  # or each of both would hold the other
            close()
            self._closed = True
            if self._amid:
                self._let_go()

        vars(server)["close"] = closed

    def begins(self, transport: Any) -> None:
        """The one of *transport* begins."""
        self._amid.add(transport)
        if self._closed:  # it was accepted in the same pass of the loop
            self._let_go()

    def ended(self, transport: Any) -> None:
        """The one of *transport* is over."""
        self._amid.discard(transport)

    def _let_go(self) -> None:
        reaper = self.reaper()
        driver = reaper.driver
        if reaper.running:
            driver.after(handshake_grace(reaper.config.timeouts), partial(self._end, driver.soon))
        else:  # and bounds nothing any more
            self._end(reaper.loop.call_soon)

    def _end(self, soon: Soon) -> None:
        walk(soon, self._amid, lambda transport: transport.abort())


class Door(asyncio.Protocol):
    """The protocol of a raw connection, until the handshake begins.

    Args:
        inner: The server's.
        handshakes: Those of the server.
    """

    def __init__(self, inner: Any, handshakes: Handshakes) -> None:
        self._inner = inner
        self._handshakes = handshakes

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake, and give it a lease."""
        handshakes = self._handshakes
        reaper = handshakes.reaper()
        driver, shaken = reaper.driver, reaper.loop.create_future()
        key = (Phase.HANDSHAKE.value, driver.next_number())

        def over(expiry: Expiry) -> None:
            peer = peer_name(descriptor_of(transport))
            driver.books.reaped(expiry.lease, peer, expiry.reason, expiry)
            transport.abort()

        seconds = check_idle(handshakes.seconds)
        lease = driver.register(key, seconds, over, reason=Phase.HANDSHAKE.value)

        def ended(shaken: asyncio.Future[None]) -> None:
            lease.release()
            handshakes.ended(transport)
            # An error that nobody asks for is logged. The loop's own are of no use to
            # an operator either: it shows them in debug mode only.
            if shaken.cancelled() or shaken.exception() is not None:
                transport.abort()

        shaken.add_done_callback(ended)
        handshakes.begins(transport)
        try:
            encrypting = handshakes.wrap(self._inner, shaken)
            transport.set_protocol(encrypting)
            encrypting.connection_made(transport)
        except BaseException:
            shaken.cancel()
            raise
