"""A guard around any protocol factory: it closes connections on which nothing moves,
although their protocol knows nothing of it.

The rule of this module: *the guard is not in the way of the bytes*. It leaves the data
path when the connection is made, and asks when the connection comes due. So it costs
nothing per packet, and the server may change the protocol of its transport.

One field, the phase, says what a connection waits for. `Guard._found` finds it at each
look, from whose turn it is (the server says that) and when bytes last moved (the kernel
says that). The limit of that phase is in force, counted from where this table says:

    phase         what the guard knows                     counted from
    WRITE         bytes are queued for the peer to take    the last that it took, as far
                                                           back as the kernel is sure
    IN_FLIGHT     the server works on a request            never due
    BODY          the server waits for more of a request   the last byte that came, or
                                                           `100 Continue` if that was
                                                           waited for
    TUNNEL, IDLE  either side may speak                    the last byte of either
    FIRST_BYTE    nothing has come yet                     the opening
    HEADERS       bytes came after what was last sent,     the last byte before the look
                  or the server has a part of a head       that found it; more bytes do
                                                           not extend it
    KEEP_ALIVE    none of these                            the last byte sent

No event says that a phase begins. So no look is further away than the shortest limit of
all, and a request that is dripped is closed within `keep_alive` + `headers`. A guarded
connection is one of its driver's like any other: it is drained, counted and journaled.
The guard hears of its end from its protocol's `connection_lost`; if the server has
replaced the protocol, from the transport, when that is freed.

With TLS the guard begins when the handshake is over, because asyncio connects a
protocol only then. Until then the connection is known to asyncio alone, whose
`ssl_handshake_timeout` bounds it (60 s unless it is given); `loop_factory` and
`start_server` bound the handshake themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack, cast

from ..config.settings import ReaperConfig
from ..core.lease import Expiry, Explanation, Lease
from ..core.ticks import seconds_to_tick
from ..driver import sockets
from ..driver.ends import log
from ..driver.options import Options, spelled_out
from ..driver.sockets import TcpInfo
from ..driver.watched import Watched, check_handler, check_idle
from ..errors import NotInstalled, one_line
from ..policy import Phase
from ..policy.phases import ABSOLUTE
from ..policy.reasons import IDLE, MAX_AGE
from . import closing, transports
from .overload import refuse
from .reaper import AsyncioReaper, serving_reaper
from .transports import STAMP

Busy = Callable[[Any], bool]
"""Whether the server works on something for the connection of this transport, which is
then not idle.
"""

Ask = Callable[[Any], Phase]
"""Whose turn it is on this transport: IN_FLIGHT, BODY, TUNNEL or IDLE; KEEP_ALIVE where
a request is waited for, or HEADERS if the server knows that a part of one has come.
"""

LEAVING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Transports that are too old: what they answer should say that it is the last."""

GUARD = "_reaper_guard"
"""The attribute of a guarded protocol that is its guard, until its connection has
ended.
"""

RESTING = frozenset({Phase.IDLE, Phase.FIRST_BYTE, Phase.KEEP_ALIVE})
"""Phases in which nothing has been asked for."""


def no_farewell(transport: Any) -> bytes:
    """Nothing is said before a close."""
    return b""


def no_answer(transport: Any, reason: str) -> bytes:
    """No client is told why it is closed."""
    return b""


def say_nothing(transport: Any) -> None:
    """No answer says that it is the last."""


def not_invited(transport: Any) -> bool:
    """No client waits for leave to send a body."""
    return False


def never_too_old() -> float:
    """No limit of age."""
    return 0.0


class Rules(NamedTuple):
    """What holds for all connections of one guarded factory."""

    ask: Ask
    """Says whose turn it is."""
    limits: Mapping[Phase, float | None]
    """Seconds; None, or missing: no limit."""
    reason: str | None
    """What a reap gives; None: the phase's name."""
    told: bool
    """Whether the server says when it is busy; otherwise the kernel's stamps say who
    spoke last.
    """
    age: Callable[[], float] = never_too_old
    """Seconds after which a connection made now is too old; 0: never."""
    http: bool = False
    """Whether clients speak HTTP, in which one that is too many can be told so."""
    gone: Callable[[Any], object] | None = None
    """Called with the protocol of a connection that is lost, before that is told; None:
    nobody is.
    """
    farewell: Callable[[Any], bytes] = no_farewell
    """What the client of a transport is sent before it is closed; asked twice, it is
    empty.
    """
    last: Callable[[Any], object] = say_nothing
    """Has the next answer on a transport, which is too old, say that it is the last;
    called once.
    """
    invited: Callable[[Any], bool] = not_invited
    """Whether the client sends the body of its request once it is told to: `100
    Continue`. It owes nothing before.
    """
    answer: Callable[[Any, str], bytes] = no_answer
    """What the client of a transport is told that is closed for this reason; empty if
    part of an answer was sent already.
    """

    @property
    def every(self) -> float | None:
        """Seconds between two looks, at most: the shortest limit; None: there is
        none.
        """
        return min(filter(None, self.limits.values()), default=None)


class Guard(Watched):
    """A connection whose protocol knows nothing of it.

    Attributes:
        transport: Returns it; None once it is freed.
    """

    __slots__ = (
        "_counted",
        "_every",
        "_held_up",
        "_leave_at",
        "_over",
        "_phase",
        "_progress",
        "_reaper",
        "_rules",
        "_since",
        "_stalled",
        "transport",
    )

    def __init__(self, reaper: AsyncioReaper, uid: int, transport: Any, rules: Rules) -> None:
        super().__init__(reaper.driver, uid)
        self._reaper = reaper
        self._rules = rules
        self._every = rules.every
        # A transport is freed soon after it is closed. To hold it would keep all that
        # hangs on it until it is due.
        self.transport: Callable[[], Any] = _weak(transport, self.lost)
        self._phase = Phase.FIRST_BYTE
        self._since = 0.0  # when HEADERS or WRITE began, or the peer last took something
        self._counted = 0  # what the peer had acknowledged when its request was seen to have begun
        self._held_up = 0.0  # what `TcpInfo.held_up` was when nothing waited for the peer
        self._progress: transports.Progress | None = None
        self._leave_at: float | None = None  # once it is too old
        self._over = False  # whether the last look found the limit of its phase over
        self._stalled = reaper.driver.clock.stalled

    def _open(self) -> Any:
        """The transport; None if it is closed and nothing is left to be sent."""
        transport = self.transport()
        if transport is None or (transport.is_closing() and not transports.buffered(transport)):
            return None
        return transport

    @property
    def descriptor(self) -> int:
        """The descriptor of its socket; -1 if it is closed, or the peer has to take
        something first.

        In that case unread bytes do not count.
        """
        transport = self._open()
        return (
            -1
            if transport is None or self._phase is Phase.WRITE
            else transports.descriptor_of(transport)
        )

    @property
    def link(self) -> int:
        """The descriptor of its socket, whatever it waits for; -1 if it is closed."""
        transport = self._open()
        return -1 if transport is None else transports.descriptor_of(transport)

    @property
    def stays_due(self) -> bool:
        """See the base class: a byte does not extend what is waited for as a whole."""
        return self._over and self._phase.value in ABSOLUTE

    @property
    def own_socket(self) -> Any:
        """The socket below its transport; None if there is none, or it is closed."""
        transport = self._open()
        return None if transport is None else transports.own_socket(transport)

    # ---- what it waits for -----------------------------------------------------------
    def phase(self) -> Phase:
        """What it waits for now."""
        transport = self._open()
        return (
            self._phase
            if transport is None
            else self._found(transport, transports.tcp_info(transport))
        )

    @property
    def busy(self) -> bool:
        """Whether it is in use."""
        transport = self._open()
        if transport is None:
            return False
        info = transports.tcp_info(transport)
        phase = self._found(transport, info)
        if phase is Phase.IDLE and not self._rules.told:
            return info is not None and _spoke_last(info)
        return phase not in RESTING

    def _found(self, transport: Any, info: TcpInfo | None) -> Phase:
        asked = self._rules.ask(transport)
        if transports.buffered(transport):
            return Phase.WRITE  # the server may work: its peer holds it up
        if asked is Phase.BODY:
            return asked
        if transports.queued(transport):
            return Phase.WRITE
        if asked is not Phase.KEEP_ALIVE or info is None:
            return asked
        if not info.received:
            return Phase.FIRST_BYTE
        if self._phase is Phase.HEADERS and self._counted == info.acknowledged:
            return Phase.HEADERS
        return Phase.HEADERS if _spoke_last(info) else Phase.KEEP_ALIVE

    def silence(self, explained: Explanation, now: float) -> tuple[float, float | None]:
        """As `Watched.silence`, by what the kernel knows: looks touch the lease, so it
        does not tell.
        """
        transport = self._open()
        info = None if transport is None else transports.tcp_info(transport)
        if info is None:
            return super().silence(explained, now)
        phase = self._found(transport, info)
        return min(info.sent_ago, info.received_ago), self._rules.limits.get(phase)

    def _look(self, transport: Any) -> float | None:
        """Find out what the connection waits for, and return for how many seconds it
        may wait yet.

        None means that no limit is in force.
        """
        info = transports.tcp_info(transport)
        phase = self._found(transport, info)
        # The kernel's seconds include those in which this process stood still, which
        # are charged to nobody.
        clock = self._reaper.driver.clock
        stalled, self._stalled = clock.stalled - self._stalled, clock.stalled
        if phase is not self._phase:
            self._phase = phase
            self._since = self._driver.now()
            if phase is Phase.HEADERS and info is not None:
                # The first byte of a head came no later than its last.
                self._since -= max(info.received_ago - stalled - STAMP, 0.0)
            elif phase is Phase.WRITE and info is not None:
                nothing = info.took_nothing_for(self._held_up)
                self._since -= max(nothing - stalled - STAMP, 0.0)
            self._counted = 0 if info is None else info.acknowledged
            self._progress = transports.Progress(transport) if phase is Phase.WRITE else None
            if phase is Phase.WRITE:
                self._reaper.sweep.add(self)
        if phase is not Phase.WRITE and info is not None:
            self._held_up = info.held_up
        limit = self._rules.limits.get(phase)
        if limit is None or phase is Phase.IN_FLIGHT:
            return None
        if phase is Phase.WRITE or phase is Phase.HEADERS:
            return limit - (self._driver.now() - self._since)
        if info is None:
            return 0.0
        if phase is Phase.BODY:
            ago = info.received_ago
            if self._rules.invited(transport):
                ago = min(ago, info.sent_ago)
        elif phase is Phase.KEEP_ALIVE or phase is Phase.FIRST_BYTE:
            ago = info.sent_ago
        else:
            ago = min(info.sent_ago, info.received_ago)
        return limit - max(ago - stalled, 0.0) + STAMP

    def pardon(self, lease: Lease) -> bool:
        """At the final check: whether the connection is not due after all. Its next
        look is then arranged.
        """
        transport = self._open()
        if transport is None:
            return False
        if lease is not self.lease:
            return self._may_finish(transport)
        left = self._look(transport)
        self._over = left is not None and left <= 0
        if self._over:
            return False
        # After this check: being spared counts as activity, which would undo it.
        self._reaper.loop.call_soon(self._look_again_in, left)
        return True

    def outlasts(self, seconds: float) -> bool:
        """As `Watched.outlasts`; the limit is that of the phase which `pardon` has
        found.
        """
        limit = self._rules.limits.get(self._phase)
        return limit is None or limit > seconds or self._phase is Phase.IN_FLIGHT

    def _may_finish(self, transport: Any) -> bool:
        """Whether a connection that is too old may stay for a moment.

        It may if it has yet to answer a request, or if one may be on its way: its next
        answer says that it is the last. A client that does not heed that, or that
        nobody can tell, is waited for until it has rested for `drain_idle`; for no
        longer than a drain waits.
        """
        now, timeouts = self._driver.now(), self._reaper.config.timeouts
        if self._leave_at is None:
            self._leave_at = now + timeouts.drain_idle
            with contextlib.suppress(TypeError):
                LEAVING.add(transport)
            self._rules.last(transport)
        if now < self._leave_at or self.busy:
            return True
        if now >= self._leave_at + timeouts.drain:
            return False
        info = transports.tcp_info(transport)
        return info is not None and min(info.sent_ago, info.received_ago) < timeouts.drain_idle

    def _look_again_in(self, left: float | None) -> None:
        if left is None or (self._every is not None and self._every < left):
            left = self._every
        if left is not None:
            # Rounded up to half ticks, because each distinct timeout costs a slot.
            half = self._reaper.core.tick / 2
            left = (seconds_to_tick(max(left, 0.0), 0.0, half) + 1) * half
        self.lease.retime(left, self._driver.now(), self._reason())
        self._driver.poke()

    def _reason(self) -> str:
        return self._rules.reason or self._phase.value

    def charge(self, now: float) -> None:
        """The sweep asks: has the peer taken something, and may a drain end the
        connection?
        """
        transport = self._open()
        if transport is not None and self._progress is not None:
            if self._progress.taken():
                self._since = now
                self.lease.touch()
            if not transports.queued(transport):
                left = self._look(transport)
                self.lease.touch()
                self._look_again_in(left)
        if self.awaited and transport is not None and not self.busy:
            self._reaper.driver.went_idle(self)
        if transport is None or self.reaped or (self._progress is None and not self.awaited):
            self._reaper.sweep.discard(self)

    # ---- the end ---------------------------------------------------------------------
    def shut(self) -> None:
        """Tell the peer at once, if it may send its next request at any moment."""
        transport = self._open()
        if transport is not None and self._phase in RESTING:
            rules = self._rules
            # nothing can be said afterwards
            if says := rules.farewell(transport) or rules.answer(transport, self._phase.value):
                transport.write(says)
            closing.shut(transport)

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """Close it, for what it waits for if that is due. Does nothing if it has
        ended.
        """
        transport = self._open()
        if transport is None:
            self.lost()
        elif expiry is None or expiry.lease is not self.lease:
            super().reap(reason, expiry)
        else:
            books = self._driver.books
            # The lease's own timeout is what was left of the limit at the last look.
            limit = self._rules.limits.get(self._phase)
            if limit is not None and books.log.isEnabledFor(logging.INFO):
                info = transports.tcp_info(transport)
                if info is not None:
                    ago = min(info.sent_ago, info.received_ago)
                    books.seen[self.lease] = limit, ago
            try:
                super().reap(self._reason(), expiry)
            finally:
                books.seen.pop(self.lease, None)

    def _cut(self, reason: str) -> None:
        transport = self.transport()
        if transport is None:
            return
        if self._phase is Phase.WRITE:
            closing.reset(transport)
        else:
            rules = self._rules
            says = rules.farewell(transport)
            if not says and self._phase not in RESTING:  # or it was told in `shut`
                says = rules.answer(transport, reason)
            closing.close(self._reaper, transport, says)

    def lost(self, by_peer: object = True) -> None:
        """The connection has ended by itself."""
        if self.uid in self._driver.connections:  # its lease may have run out before it is found so
            self.hung_up: bool = bool(by_peer)
            self.leave()

    def tell_gone(self, protocol: Any) -> None:
        """The connection of *protocol* is lost: call what the rules name."""
        if self._rules.gone is not None:
            self._rules.gone(protocol)

    def gone(self) -> None:
        """The transport is closed, and not freed yet."""
        self.lost()

    def _let_go(self) -> None:
        super()._let_go()
        if (
            self._progress is not None or self.awaited
        ):  # otherwise the sweep lets go of it by itself
            self._reaper.sweep.discard(self)


def watch(reaper: AsyncioReaper, transport: Any, rules: Rules, protocol: Any = None) -> Guard:
    """Guard the connection of *transport* by *rules*.

    Its *protocol*, if there is one, says when the connection has ended.
    """
    first = rules.limits.get(Phase.FIRST_BYTE, rules.every)
    made: Guard = reaper.driver.watch(
        lambda uid: Guard(reaper, uid, transport, rules),
        transports.socket_of(transport),
        min(filter(None, (first, rules.every)), default=0),
        reason=rules.reason or Phase.FIRST_BYTE.value,
    )
    reaper.relieve(transport)
    if age := rules.age():
        made.deadline(age, MAX_AGE)
    if hasattr(protocol, "__dict__"):
        kind: Any = type(protocol)
        with contextlib.suppress(TypeError):  # its class is fixed
            protocol.__class__ = _hearing(kind)
            protocol.__dict__[GUARD] = made
    return made


class Gate(asyncio.Protocol):
    """The first protocol of a connection: it has the connection watched, and makes way
    for *inner*.

    Args:
        inner: The protocol proper.
    """

    def __init__(self, inner: Any, reaper: AsyncioReaper, rules: Rules) -> None:
        self._inner = inner
        self._reaper = reaper
        self._rules = rules

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Watch the connection, and make way for its own protocol; or refuse it."""
        if not self._reaper.welcomes():
            refuse(self._reaper, transport, http=self._rules.http)
            return
        transport.set_protocol(self._inner)
        watch(self._reaper, transport, self._rules, self._inner)
        self._inner.connection_made(transport)


def guarded(
    factory: Callable[[], Any],
    rules: Callable[[AsyncioReaper], Rules],
    reaper: Callable[[], AsyncioReaper],
) -> Callable[[], asyncio.BaseProtocol]:
    """Return a factory like *factory* whose connections are guarded by *rules*, which
    are made once for each reaper.
    """
    known: weakref.WeakKeyDictionary[AsyncioReaper, Rules] = weakref.WeakKeyDictionary()

    def make() -> asyncio.BaseProtocol:
        try:
            watcher = reaper()
        except Exception as error:
            # asyncio closes the connection, and says why in debug mode only.
            log.error("no connection can be guarded: %s", one_line(error))
            raise
        found = known.get(watcher)
        if found is None:
            found = known[watcher] = rules(watcher)
        return Gate(factory(), watcher, found)

    return make


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
    that take a factory. TCP only. With `ssl=` the handshake is not guarded: it ends by
    `ssl_handshake_timeout=`, 60 s unless you give it.

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
    watching = serving_reaper(reaper, config, options)
    kernel_must_tell()

    def ask(transport: Any) -> Phase:
        return Phase.IN_FLIGHT if busy is not None and busy(transport) else Phase.IDLE

    def rules(watcher: AsyncioReaper) -> Rules:
        limit = check_idle(watcher.driver.idle if idle is None else idle)
        limits = dict.fromkeys((Phase.IDLE, Phase.WRITE, Phase.FIRST_BYTE), limit)
        return Rules(ask, limits, IDLE, told=busy is not None)

    return guarded(protocol_factory, rules, watching)


def kernel_must_tell() -> None:
    """Raise NotInstalled where the kernel does not say when bytes last moved."""
    if sockets.TCP_INFO < 0:
        raise NotInstalled(
            "a guard needs Linux: this kernel does not say when bytes last moved; "
            "watch, start_server and Protocol work"
        )


def _spoke_last(info: TcpInfo) -> bool:
    """Whether bytes of the peer came after what was last sent to it."""
    return bool(info.received) and (
        not info.acknowledged or info.received_ago < info.sent_ago - STAMP
    )


def _weak(thing: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    try:
        return weakref.ref(thing, gone)
    except TypeError:
        # uvloop's transport with TLS, and what has slots: held until it is known to
        # have ended.
        return lambda: thing


@functools.lru_cache(maxsize=64)
def _hearing(kind: Any) -> Any:
    """A subclass of *kind* whose objects tell their guard of their end.

    The class is changed, and no attribute of the object set, because over TLS asyncio
    holds nothing but the bound method when it calls that.
    """

    def connection_lost(self: Any, exc: BaseException | None) -> None:
        guard: Guard | None = self.__dict__.pop(GUARD, None)
        if guard is not None:
            guard.lost(exc is not None or transports.peer_has_shut(guard.transport()))
            guard.tell_gone(self)
        kind.connection_lost(self, exc)

    members = {"__slots__": (), "__module__": kind.__module__, "connection_lost": connection_lost}
    meta = type(
        "Unannounced", (type(kind),), {"mro": lambda made: [made, _Unannounced, *kind.__mro__]}
    )
    made = meta(kind.__name__, (kind,), members)

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
