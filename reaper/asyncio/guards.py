"""A guard around any protocol factory: it closes connections on which nothing moves,
although their protocol knows nothing of it.

The rule of this module: *the guard is not in the way of the bytes*. It leaves the data
path when the connection is made, and asks when the connection comes due. So it costs
nothing per packet, and the server may change the protocol of its transport. One byte is
heard: the first after a rest. For that the protocol has another class while its
connection rests.

What a connection waits for, and since when, is `driver.served`'s. A guarded connection
is one of its driver's like any other: it is drained, counted and journaled. The guard
hears of its end from its protocol's `connection_lost`; if the server has replaced the
protocol, from the transport, when that is freed.

With TLS the guard begins when the handshake is over, because asyncio connects a
protocol only then. Until then the connection is known to asyncio alone, whose
`ssl_handshake_timeout` bounds it (60 s unless it is given); `loop_factory` and
`start_server` bound the handshake themselves.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Unpack, cast

from ..config.settings import ReaperConfig
from ..driver import served, sockets
from ..driver.ends import log
from ..driver.options import Options, spelled_out
from ..driver.served import Served, Terms, Wire, tried
from ..driver.watched import check_handler, check_idle
from ..errors import NotInstalled, one_line
from ..policy import Phase
from ..policy.reasons import IDLE
from . import closing, transports
from .overload import refuse
from .reaper import AsyncioReaper, serving_reaper

Busy = Callable[[Any], bool]
"""Whether the server works on something for the connection of this transport, which is
then not idle.
"""

GUARD = "_reaper_guard"
"""The attribute of a guarded protocol that is its guard, until its connection has
ended.
"""

_ASLEEP: dict[int, Served] = {}
"""The connections whose next byte is waited for, by the `id` of their protocols: those
of aiohttp have no place for an attribute.
"""


class TransportWire(Wire):
    """A transport of asyncio's, or of uvloop's.

    Args:
        reaper: Of its loop.
        transport: The transport. It is freed soon after it is closed.
    """

    __slots__ = ("_asleep", "_reaper")

    def __init__(self, reaper: AsyncioReaper, transport: Any) -> None:
        super().__init__(transport)
        self._reaper = reaper
        self._asleep = 0  # the `id` of the protocol that tells of the next byte

    def socket(self) -> Any:
        transport = self._whose()
        return None if transport is None else transports.socket_of(transport)

    @property
    def is_open(self) -> bool:
        transport = self._whose()
        return transport is not None and (
            not transport.is_closing() or transports.buffered(transport) > 0
        )

    @property
    def own_socket(self) -> Any:
        transport = self._whose()
        return None if transport is None else transports.own_socket(transport)

    def buffered(self) -> int:
        transport = self._whose()
        return 0 if transport is None else transports.buffered(transport)

    def write(self, data: bytes) -> None:
        self._whose().write(data)

    def close(self, says: bytes) -> None:
        if (transport := self._whose()) is not None:
            closing.close(self._reaper, transport, says)

    def reset(self) -> None:
        if (transport := self._whose()) is not None:
            closing.reset(transport)

    def wakes(self, served: Served) -> bool:
        transport = self._whose()
        protocol = transport.get_protocol()
        kind: Any = type(protocol)
        try:
            protocol.__class__ = _waking(kind)
        except TypeError:  # its class is fixed
            return False
        self.forget(served)
        self._asleep = id(protocol)
        _ASLEEP[self._asleep] = served
        self._look_up(transport, protocol)
        return True

    def still_wakes(self) -> bool:
        transport = self._whose()
        return transport is not None and id(transport.get_protocol()) == self._asleep

    def forget(self, served: Served) -> None:
        if self._asleep:
            if _ASLEEP.get(self._asleep) is served:
                del _ASLEEP[self._asleep]
            self._asleep = 0

    def woke(self, protocol: Any) -> None:
        """*protocol* has its own class again."""
        self._asleep = 0
        if (transport := self._whose()) is not None:
            self._look_up(transport, protocol)

    def _look_up(self, transport: Any, protocol: Any) -> None:
        """Have the loop look up the methods of *protocol* anew, if it keeps them."""
        keeps = hasattr(protocol, "get_buffer") or not isinstance(
            self._reaper.loop, asyncio.BaseEventLoop
        )
        if keeps and transport.get_protocol() is protocol:
            transport.set_protocol(protocol)


class OnTransport(Served):
    """A connection of a server on asyncio."""

    __slots__ = ()

    hears: ClassVar[bool] = False
    """Whether `heard` is to be told of the bytes that wake the guard."""

    wire: TransportWire

    def heard(self, data: bytes) -> None:
        """Override: *data*, which wakes the guard, is about to be given to the
        server.
        """

    @property
    def transport(self) -> Any:
        """Its transport; None once it is freed."""
        return self.wire.whose

    @property
    def protocol(self) -> Any:
        """The protocol that its transport has now."""
        return self.wire.whose.get_protocol()


def watch(
    reaper: AsyncioReaper,
    kind: Callable[[Terms, int, Any], Served],
    transport: Any,
    protocol: Any = None,
    terms: Terms | None = None,
) -> Served:
    """Guard the connection of *transport*.

    Args:
        kind: The class of the server's room.
        protocol: Says when the connection has ended; None: nobody does, until
            *transport* is freed.
        terms: None: those of *kind*.
    """
    wire = TransportWire(reaper, transport)
    if terms is None:
        terms = cast(Any, kind).terms(reaper)
    made = served.watch(terms, kind, wire)
    reaper.relieve(transport)
    if hasattr(protocol, "__dict__"):
        with suppress(TypeError):  # its class is fixed
            protocol.__class__ = _hearing(cast(Any, type(protocol)))
            protocol.__dict__[GUARD] = made
    return made


class Gate(asyncio.Protocol):
    """The first protocol of a connection: it has the connection watched, and makes way
    for *inner*.

    Args:
        inner: The protocol proper.
    """

    def __init__(self, inner: Any, reaper: AsyncioReaper, kind: Any, terms: Terms) -> None:
        self._inner = inner
        self._reaper = reaper
        self._kind = kind
        self._terms = terms

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Watch the connection, and make way for its own protocol; or refuse it."""
        inner = self._inner
        if hasattr(transport, "sendto"):
            log.error("guard: a datagram endpoint has no connections, and is left alone")
            cast(Any, transport).set_protocol(inner)
            inner.connection_made(transport)
            return
        if tried(self._reaper.welcomes) is False:
            refuse(self._reaper, transport, http=self._terms.http)
            return
        transport.set_protocol(inner)
        made = tried(watch, self._reaper, self._kind, transport, inner, self._terms)
        inner.connection_made(transport)
        if made is not None:
            tried(made.opened)


def guarded(
    factory: Callable[[], Any],
    kind: Callable[[Terms, int, Any], Served],
    reaper: Callable[[], AsyncioReaper],
    terms: Callable[[AsyncioReaper], Terms] | None = None,
) -> Callable[[], asyncio.BaseProtocol]:
    """Return a factory like *factory* whose connections are guarded.

    Args:
        kind: The class of the server's room.
        reaper: Returns who watches them. Called in the loop.
        terms: Makes their terms, once for each reaper; None: those of *kind*.
    """
    known: weakref.WeakKeyDictionary[AsyncioReaper, Terms] = weakref.WeakKeyDictionary()

    def make() -> asyncio.BaseProtocol:
        inner = factory()
        try:
            watcher = reaper()
            found = known.get(watcher)
            if found is None:
                made: Any = cast(Any, kind).terms if terms is None else terms
                found = known[watcher] = made(watcher)
            return Gate(inner, watcher, kind, found)
        except Exception as error:
            # asyncio would close the connection, and say why in debug mode only; and
            # uvloop would accept none any more.
            log.error("no connection can be guarded: %s", one_line(error))
            return cast(asyncio.BaseProtocol, inner)

    return make


def guard_server(
    factory: Callable[[], Any], kind: type[Served], reaper: Callable[[], AsyncioReaper]
) -> Callable[[], Any]:
    """As `guarded`, where the kernel has to say when bytes moved.

    Raises:
        NotInstalled: it does not.
    """
    kernel_must_tell()
    return guarded(factory, kind, reaper)


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
    """Wrap any protocol factory, so that its connections are closed when nothing has
    moved on them for *idle* seconds.

    Use it in `loop.create_server(guard(factory, idle=30), host, port)`, and in servers
    that take a factory. With `ssl=` the handshake is not guarded: it ends by
    `ssl_handshake_timeout=`, 60 s unless you give it.

    TCP only: of a UNIX socket the kernel does not say when bytes moved. Its connections
    are left alone, as a datagram endpoint is, and the log says so. There derive from
    `Protocol`.

    Args:
        protocol_factory: The server's own; its protocols know nothing of it.
        idle: Seconds in which no byte came, and the peer took none; 0 switches the
            timeout off; None takes the reaper's own `idle`.
        busy: Called with the transport when it is due: does the server work on
            something for it? Without this, a response that takes longer than *idle* to
            begin is cut, because the kernel does not know which side is slow.
        reaper: Watches; None: the loop's own, or one that is made with *config* and
            *options* if any is given.
        config, options: As in `AsyncioReaper`.
    Raises:
        InvalidArgument: by name and value.
        NotInstalled: the kernel is not Linux's, and does not say when bytes last moved.
    Cost: nothing per packet; a question to the kernel (0.7 us) per connection and
    *idle* seconds.
    Timing: as everywhere, and at most two hundredths of a second later.
    """
    check_handler("protocol_factory", protocol_factory, "callable that makes a protocol")
    check_idle(idle)
    if busy is not None:
        check_handler("busy", busy, "function of a transport, or None")
    watching = serving_reaper(reaper, config, options, idle)
    kernel_must_tell()

    class Plain(OnTransport):
        """A connection of a protocol that nobody knows."""

        __slots__ = ()

        def __init__(self, terms: Terms, uid: int, wire: Wire) -> None:
            super().__init__(terms, uid, wire)
            if not wire.is_timed:
                _say_untimed()

        def phase(self) -> Phase:
            works = busy is not None and busy(self.transport)
            return Phase.IN_FLIGHT if works else Phase.IDLE

    def terms(watcher: AsyncioReaper) -> Terms:
        limit = check_idle(watcher.driver.idle if idle is None else idle)
        limits = dict.fromkeys((Phase.IDLE, Phase.WRITE, Phase.FIRST_BYTE), limit)
        return Terms(watcher, limits, reason=IDLE, told=busy is not None, http=False)

    return guarded(protocol_factory, Plain, watching, terms)


def kernel_must_tell() -> None:
    """Raise NotInstalled where the kernel does not say when bytes last moved."""
    if sockets.TCP_INFO < 0:
        raise NotInstalled(
            "a guard needs Linux: this kernel does not say when bytes last moved; "
            "watch, start_server and Protocol work"
        )


@functools.cache
def _say_untimed() -> None:
    log.warning(
        "guard: connections that are not TCP's are left alone: the kernel does not say when "
        "their bytes moved; derive from reaper.asyncio.Protocol"
    )


@functools.lru_cache(maxsize=64)
def _hearing(kind: Any) -> Any:
    """A subclass of *kind* whose objects tell their guard of their end.

    The class is changed, and no attribute of the object set, because over TLS asyncio
    holds nothing but the bound method when it calls that.
    """

    def connection_lost(self: Any, exc: BaseException | None) -> None:
        guard: OnTransport | None = self.__dict__.pop(GUARD, None)
        if guard is not None:
            guard.lost(exc is not None or transports.peer_has_shut(guard.transport))
            guard.parts(self)
        kind.connection_lost(self, exc)

    return _derived(kind, connection_lost=connection_lost)


@functools.lru_cache(maxsize=64)
def _waking(kind: Any) -> Any:
    """A subclass of *kind* whose objects tell their guard of the next bytes, and then
    are of *kind* again.
    """

    def data_received(self: Any, data: bytes) -> None:
        _wake(self, kind, data)
        kind.data_received(self, data)

    def buffer_updated(self: Any, count: int) -> None:
        _wake(self, kind)
        kind.buffer_updated(self, count)

    if hasattr(kind, "buffer_updated"):
        return _derived(kind, buffer_updated=buffer_updated)
    return _derived(kind, data_received=data_received)


def _wake(protocol: Any, kind: Any, data: bytes = b"") -> None:
    """Bytes, *data* if they are known, have come for *protocol*, whose class was *kind*
    before it rested.
    """
    asleep = _ASLEEP.pop(id(protocol), None)
    try:
        protocol.__class__ = kind
        if asleep is not None:
            cast(TransportWire, asleep.wire).woke(protocol)
            asleep.woke(asleep.wire.info())
            # hypercorn's own is none of `OnTransport`: it is the same on trio.
            if data and isinstance(asleep, OnTransport) and asleep.hears:
                asleep.heard(data)
    except Exception:  # the server gets its bytes, whatever becomes of the guard
        log.exception("a guard could not be woken")


def _derived(kind: Any, **members: Any) -> Any:
    """Derive a class from *kind* that has these *members*, too."""
    meta = type(
        "Unannounced", (type(kind),), {"mro": lambda made: [made, _Unannounced, *kind.__mro__]}
    )
    made = meta(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, **members})

    def set_on_kind(made: Any, name: str, value: Any) -> None:
        setattr(kind, name, value)

    # A classmethod that keeps what it has found out, as gunicorn's does, means its own
    # class. Only from here on: type and ABCMeta set attributes of the class while they
    # make it.
    cast(Any, meta).__setattr__ = set_on_kind
    return made


class _Unannounced:
    """Hides the making of a subclass from the classes below it, some of which want
    arguments for that.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Does nothing, and does not tell the classes below."""
