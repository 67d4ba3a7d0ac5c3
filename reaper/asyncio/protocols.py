"""Protocols whose connection is closed when it goes silent: a mixin for your own, and a guard around any factory.

The rule of this module: *the guard is not in the way of the bytes*. It leaves the data path when the connection is
made, and when a connection comes due it asks the kernel when bytes last moved. So it costs nothing per packet, and the
server may change the protocol of its transport as it likes.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any, Unpack

from ..config.settings import ReaperConfig
from ..core.lease import Expiry, Lease
from ..core.ticks import seconds_to_tick
from ..driver import sockets
from ..driver.driver import Driver
from ..driver.options import Options, spelled_out
from ..driver.watched import Probe, Reapable, Watched, check_handler, check_idle
from ..errors import NotInstalled
from . import transports
from .reaper import AsyncioReaper, reaper_of, serving_reaper

Busy = Callable[[Any], bool]
"""Whether the server works on something for the connection of this transport, which is then not idle."""


class TransportConnection(Watched):
    """A watched connection that has no task: its transport is closed."""

    __slots__ = ("transport",)

    def __init__(self, driver: Driver, uid: int, transport: Any) -> None:
        super().__init__(driver, uid)
        self.transport: Any = transport
        self.receiving: bool | None = True  # until it says `in_use`

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it is closed."""
        return transports.descriptor_of(self.transport)

    def _cut(self, reason: str) -> None:
        transports.close(self.transport)


class Protocol(asyncio.Protocol):
    """A protocol whose connection is closed when nothing has been received for `idle` seconds.

    Derive from it, and call `super()` in `connection_made`, `data_received` and `connection_lost`. While a request is
    being worked on: `with self.connection.in_use(): ...`, or `suspend()` and `resume()` of it.

    Attributes:
        idle: Seconds of silence allowed; 0 switches the timeout off; None takes the reaper's own `idle`.
        reaper: Watches; None: the loop's own.
        connection: What it watches, from `connection_made` on.
    """

    idle: float | None = None
    reaper: AsyncioReaper | None = None
    connection: TransportConnection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch."""
        reaper = reaper_of() if self.reaper is None else self.reaper
        driver = reaper.driver
        self.connection = driver.watch(
            lambda uid: TransportConnection(driver, uid, transport), transports.socket_of(transport), self.idle
        )

    def data_received(self, data: bytes) -> None:
        """Touch."""
        self.connection.touch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no longer."""
        self.connection.hung_up = True
        self.connection.leave()


class Guard(Reapable):
    """A connection whose protocol knows nothing of it. The kernel is asked when it comes due.

    Attributes:
        lease: The lease in force.
    """

    __slots__ = ("_busy", "_driver", "_for_writing", "_idle", "_progress", "_reaper", "_transport", "_why", "lease")

    probe: Probe | None = None

    def __init__(self, reaper: AsyncioReaper, transport: Any, idle: float | None, busy: Busy | None) -> None:
        _kernel_must_tell()
        self._reaper = reaper
        self._driver = driver = reaper.driver
        self._busy = busy
        self._progress: transports.Progress | None = None
        self._why = ""
        # A transport is freed soon after it is closed. To hold it would keep all that hangs on it until it is due.
        self._transport: Callable[[], Any]
        try:
            self._transport = weakref.ref(transport, self._gone)
        except TypeError:  # uvloop's with TLS: it is let go when it is due
            self._transport = lambda: transport
        self._idle = driver.later(driver.idle if idle is None else idle)  # until it is next asked
        self._for_writing = (self._idle, "idle")
        self.lease: Lease = driver.register(self, self._idle)
        driver.books.opened(self.lease, transports.socket_of(transport))

    def _open(self) -> Any:
        """Its transport; None: it is closed and nothing is left to be sent."""
        transport = self._transport()
        if transport is None or (transport.is_closing() and not transports.buffered(transport)):
            return None
        return transport

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it is closed, or the peer has to take something first."""
        transport = self._open()
        return -1 if transport is None or self._progress is not None else transports.descriptor_of(transport)

    @property
    def busy(self) -> bool:
        """Whether the server works on something for it."""
        transport = self._open()
        return transport is not None and self._busy is not None and self._busy(transport)

    def pardon(self, lease: Lease) -> bool:
        """At the final check: whether bytes have moved after all, by the kernel's word."""
        transport = self._open()
        if transport is None:
            return False
        if self._busy is not None and self._busy(transport):
            self._soon(self._idle)
            return True
        if self._progress is not None:
            return False
        if transports.queued(transport):
            # How long it has taken nothing is not known: it is told from now on.
            self._progress = transports.Progress(transport)
            self._reaper.sweep.add(self)
            self._soon(*self._for_writing)
            return True
        info = transports.tcp_info(transport)
        return info is not None and self._moved(transport, info)

    def _moved(self, transport: Any, info: transports.TcpInfo) -> bool:
        """Whether it is not due, as *info* says; nothing is left for the peer to take."""
        return self._pardoned(self._idle, min(info.sent_ago, info.received_ago))

    def _pardoned(self, timeout: float | None, ago: float, reason: str = "idle") -> bool:
        """Whether *timeout* seconds are not over, counted from *ago* seconds ago; it is then due when they are.

        None: they never are; it is then asked again as often as before.
        """
        if timeout is None:
            self._soon(self._idle, reason)
            return True
        left = timeout - ago + transports.STAMP
        if left <= 0:
            self._why = reason  # the one that its lease carries is of the limit before
            return False
        # Pardoned counts as active now, so it is given what is left; in half ticks, for each distinct timeout costs.
        half = self._driver.core.tick / 2
        left = (seconds_to_tick(left, 0.0, half) + 1) * half
        self._soon(left if self._idle is None else min(left, self._idle), reason)
        return True

    def _soon(self, seconds: float | None, reason: str = "idle") -> None:
        """Have it come due in *seconds*, None for never: once this check is over."""
        self._reaper.loop.call_soon(self._retime, seconds, reason)

    def _retime(self, seconds: float | None, reason: str) -> None:
        self.lease.retime(seconds, self._driver.now(), reason)
        self._driver.poke()

    def charge(self, now: float) -> None:
        """As a member of the sweep: whether the peer has taken something."""
        transport, progress = self._open(), self._progress
        if transport is None or progress is None:
            self._reaper.sweep.discard(self)
            return
        if progress.taken():
            self.lease.touch()
        if not transports.queued(transport):
            self._progress = None
            self._reaper.sweep.discard(self)

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*; nothing if it has ended."""
        transport = self._open()
        if transport is None:
            self._gone()
            return
        if self._progress is None and self._why:
            reason = self._why
        self._driver.books.reaped(self.lease, f"guard of {transport.get_extra_info('peername')}", reason, expiry)
        waiting = self._progress is not None
        self._let_go()
        if waiting:
            transports.reset(transport)
        else:
            transports.close(transport)

    def _gone(self, reference: object = None) -> None:
        """Its transport is no more."""
        if self.lease.alive:
            self._driver.books.left(self.lease, by_peer=True)
        self._let_go()

    def _let_go(self) -> None:
        self.lease.release()
        self._reaper.sweep.discard(self)


class Gate(asyncio.Protocol):
    """Stands at the door: when the connection is made it is watched, and the gate leaves.

    Args:
        inner: The protocol proper.
    """

    def __init__(self, inner: Any, watch: Callable[[Any], object]) -> None:
        self._inner = inner
        self._watch = watch

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Watch, and get out of the way."""
        transport.set_protocol(self._inner)
        self._watch(transport)
        self._inner.connection_made(transport)


@spelled_out
def guard(
    protocol_factory: Callable[[], Any],
    idle: float | None = None,
    *,
    busy: Busy | None = None,
    reaper: AsyncioReaper | None = None,
    config: ReaperConfig | None = None,
    **options: Unpack[Options],
) -> Callable[[], asyncio.BaseProtocol]:
    """Wrap any protocol factory, so that its connections are closed when nothing has moved on them for *idle* seconds.

    For `loop.create_server(guard(factory, idle=30), host, port)`, and for servers that let a factory in. TCP only.

    Args:
        protocol_factory: The server's own; its protocols know nothing of it.
        idle: Seconds in which no byte came, and the peer took none; 0 switches the timeout off; None takes the
            reaper's own `idle`.
        busy: Called with the transport when it is due: whether the server works on something for it. Without it a
            response that takes longer than *idle* to begin is cut: the kernel does not know who is slow.
        reaper: Watches; None: the loop's own, or one that is made with *config* and *options* if any is given.
        config, options: As in `AsyncioReaper`.
    Raises:
        InvalidArgument: by name and value.
        NotInstalled: the kernel is not Linux's, and does not say when bytes last moved.
    Cost: nothing per packet; a question to the kernel (0.7 us) per connection and *idle* seconds.
    Timing: as everywhere, and at most two hundredths of a second later.
    """
    check_handler("protocol_factory", protocol_factory, "callable that makes a protocol")
    check_idle(idle)
    if busy is not None:
        check_handler("busy", busy, "function of a transport, or None")
    watcher = serving_reaper(reaper, config, options)
    _kernel_must_tell()

    def watch(transport: Any) -> None:
        Guard(watcher(), transport, idle, busy)

    return lambda: Gate(protocol_factory(), watch)


def _kernel_must_tell() -> None:
    if sockets.TCP_INFO < 0:
        raise NotInstalled(
            "a guard needs Linux: this kernel does not say when bytes last moved; watch, start_server and Protocol work"
        )
