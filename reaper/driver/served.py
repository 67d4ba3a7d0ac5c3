"""A connection that a server of others serves, and that knows nothing of its guard.

The rule of this module: *the server says whose turn it is, the kernel says since when*.
A room of `reaper.servers` derives one class from `Served`. Its `phase` says whose turn
it is; where the server allows it, `owes`, `invited`, `be_last`, `farewell` and `begun`
say and do the rest. How bytes move is a `Wire`'s: a transport of asyncio's, a stream of
trio's or of a server's own, a thread's socket. Nothing here knows a framework.

What a connection waits for, `waits_for`, is found at each look. The limit of that phase
is in force, counted from where this table says:

    phase         what is known                            counted from
    WRITE         bytes are queued for the peer to take    the last that it took, as far
                                                           back as the kernel is sure;
                                                           longer by what its buffer may
                                                           hide: `policy.min_rate`
    IN_FLIGHT     the server works on a request            never due
    BODY          the server waits for more of a request   the last byte that came, or
                                                           `100 Continue` if that was
                                                           waited for
    TUNNEL, IDLE  either side may speak                    the last byte of either
    HANDSHAKE     TLS is not agreed on yet                 the opening
    FIRST_BYTE    nothing has come yet                     the opening
    HEADERS       bytes came after what was last sent,     its first byte, where that
                  or the server has a part of a head       woke the guard; otherwise the
                                                           last byte before the look
                                                           that found it
    KEEP_ALIVE    none of these                            the last byte sent

A look costs some microseconds, so *who rests is not looked at*. A connection that rests
is asleep: its next byte wakes it (`Wire.wakes`), otherwise its own limit does. Where
nothing can wake it, and while it is in use, no look is further away than the shortest
limit of all. While a peer is charged by a least rate, or has to take something, the
sweep looks.

The kernel keeps the times of TCP alone. Of a UNIX socket (`Wire.is_timed`) the guard
hears the first byte after each look, and counts from the look if none came. So that it
is not late, it looks twice a tick from that byte until the connection rests. What the
server sends it does not hear: what is not `HEARD` is in use there. Nor are bytes
counted, and a queue that is as long as before may have been taken and filled again: no
least rate holds, and no WRITE.
"""

from __future__ import annotations

import logging
import socket
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, cast

from ..config.settings import Timeouts
from ..core.lease import Expiry, Explanation, Lease
from ..core.slices import walk
from ..core.ticks import seconds_to_tick
from ..policy import ANSWERS, INSTANT, NOT_TAKEN, Phase
from ..policy.min_rate import HIDDEN, Allowance, patience
from ..policy.phases import (
    ABSOLUTE,
    IDLE_PHASES,
    RESTING,
    STALL_TICKS,
    TOO_SLOW,
    Direction,
    ages,
    tunnel_lifespan,
)
from ..policy.reasons import MAX_AGE, TUNNEL_AGE
from . import sockets
from .ends import log
from .reaper import Reaper
from .sockets import STAMP, TcpInfo
from .watched import Watched, check_idle

REQUEST_TIMEOUT = b"408 Request Timeout\n"
TIMED_OUT = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(REQUEST_TIMEOUT), REQUEST_TIMEOUT)
)
"""The answer to a client whose request did not come in time."""

HTTP_LIMITS = (
    Phase.FIRST_BYTE,
    Phase.HEADERS,
    Phase.KEEP_ALIVE,
    Phase.BODY,
    Phase.TUNNEL,
    Phase.WRITE,
)
"""The phases whose timeout is in force where a server speaks HTTP."""

SELF_COUNTED = frozenset({Phase.WRITE, Phase.HEADERS, Phase.HANDSHAKE})
"""Phases whose beginning the kernel does not keep."""

LEADS_TO_REST = frozenset({Phase.IN_FLIGHT, Phase.WRITE, Phase.HEADERS})

HANDSHAKE_GRACE = 3.0
"""Seconds that a client amid its handshake has when its server stops: hypercorn's own
`graceful_timeout`. No request is lost by its end.
"""

RATES: Mapping[Phase, Direction] = {Phase.BODY: "in", Phase.WRITE: "out"}
"""The phases with a least rate, and the direction of the bytes that count."""


class Wire:
    """The socket of a served connection, as its framework has it. Nothing here waits,
    and a connection that is gone answers like one that is closed.

    Args:
        whose: The framework's own object. It is held by none of us: to hold it would
            keep all that hangs on it until it is due.
    """

    __slots__ = ("_whose",)

    def __init__(self, whose: Any) -> None:
        self._whose: Callable[[], Any] = _weak(whose)

    @property
    def whose(self) -> Any:
        """The framework's object; None once it is freed."""
        return self._whose()

    def tells(self, lost: Callable[[Any], object]) -> None:
        """Have *lost* called when that object is freed."""
        self._whose = _weak(self._whose(), lost)

    def socket(self) -> Any:
        """Its socket, or a view of one; None: it is gone."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """False once it is closed, and nothing is left to be sent."""
        raise NotImplementedError

    def buffered(self) -> int:
        """Bytes that were written, and that the kernel has not taken."""
        return 0

    def write(self, data: bytes) -> None:
        """Send *data* before the close."""
        raise NotImplementedError

    def shut(self) -> None:
        """Tell the peer at once that nothing more comes, unless something has yet to be
        sent.
        """
        if not self.buffered():
            sockets.shut(self.descriptor)

    def close(self, says: bytes) -> None:
        """Send *says*, and close the connection, within `timeouts.linger`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Close it at once, so that the kernel forgets what is queued."""
        raise NotImplementedError

    def wakes(self, served: Served) -> bool:
        """Have `served.woke` called, once, when the next byte has come. False: nobody
        here hears of it.
        """
        return False

    def still_wakes(self) -> bool:
        """Whether `wakes`, which was True, still is: the next byte has not come, and
        does not go another way.
        """
        return True

    def forget(self, served: Served) -> None:
        """*served* has ended: nobody is to be woken."""

    # ---- what follows from these
    @property
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 if it is closed."""
        found = self.socket()
        return -1 if found is None else int(found.fileno())

    @property
    def own_socket(self) -> Any:
        """The socket object where it is the interpreter's own; otherwise None."""
        found = self.socket()
        return found if isinstance(found, socket.socket) else None

    @property
    def is_timed(self) -> bool:
        """Whether the kernel keeps when its bytes moved: it does so for TCP alone."""
        found = self.socket()
        return found is None or found.family in (socket.AF_INET, socket.AF_INET6)

    def info(self) -> TcpInfo | None:
        """What TCP knows of it; None if the kernel does not say."""
        found = self.socket()
        return None if found is None else sockets.tcp_info(found)

    def queued(self) -> int:
        """Bytes that were written, and that the peer has not acknowledged."""
        descriptor = self.descriptor
        return self.buffered() + (sockets.queued(descriptor) if descriptor >= 0 else 0)


class Terms:
    """What holds for all connections that one reaper watches and one class serves.

    Args:
        reaper: Watches them.
        limits: Seconds, by phase; None, or missing: no limit.
        reason: What a reap gives; None: the name of the phase.
        told: Whether the server says when it is busy; otherwise the kernel's stamps say
            who spoke last.
        http: Whether clients speak HTTP, in which one that is too many can be told so.
    Attributes:
        every: Seconds between two looks at a connection in use, at the most: the
            shortest limit; None: there is none.
        age: Draws the maximum age of a new connection; 0: none.
        tunnels_age: Whether tunnels have one.
        out_rate: Least bytes per second that a peer takes of what waits for it; 0: it
            has none.
    """

    def __init__(
        self,
        reaper: Reaper,
        limits: Mapping[Phase, float | None],
        *,
        reason: str | None = None,
        told: bool = True,
        http: bool = True,
    ) -> None:
        self.reaper: Reaper = reaper
        self.limits: Mapping[Phase, float | None] = limits
        self.reason: str | None = reason
        self.told: bool = told
        self.http: bool = http
        self.every: float | None = min(filter(None, limits.values()), default=None)
        self.age: Callable[[], float] = ages(reaper.config) if http else lambda: 0.0
        least, timeouts = reaper.config.limits, reaper.config.timeouts
        self.tunnels_age: bool = Phase.TUNNEL in limits and timeouts.tunnel_age > 0
        self.out_rate: float = least.min_out_rate
        self._rates: dict[Phase, tuple[float, float, float]] = {}
        if http:
            unseen = HIDDEN / self.out_rate if self.out_rate else 0.0
            rates = {
                Phase.BODY: (least.min_in_rate, least.min_in_grace, timeouts.body),
                Phase.WRITE: (
                    least.min_out_rate,
                    least.min_out_grace,
                    max(timeouts.write, unseen),
                ),
            }
            self._rates = {phase: of for phase, of in rates.items() if of[0]}

    def allowance(self, phase: Phase) -> Allowance | None:
        """What a client may be behind the least rate of *phase*; None: it has none."""
        found = self._rates.get(phase)
        return None if found is None else Allowance(*found, STALL_TICKS * self.reaper.core.tick)


_TERMS: weakref.WeakKeyDictionary[Reaper, dict[type[Served], Terms]] = weakref.WeakKeyDictionary()


class Rates:
    """How far a client may be behind in the request in hand.

    Attributes:
        allowances: By phase.
        ending: What ends the connection, unless its client catches up.
    """

    __slots__ = ("allowances", "ending")

    def __init__(self) -> None:
        self.allowances: dict[Phase, Allowance] = {}
        self.ending: Lease | None = None

    def spare(self) -> None:
        """The client is not too slow after all."""
        if self.ending is not None:
            self.ending.release()
            self.ending = None


class Served(Watched):
    """A connection that a server of others serves.

    Args:
        terms: What holds for it.
        uid: Its key in the core.
        wire: How its bytes move.
    Attributes:
        wire: As given.
        waits_for: What it was waiting for at the last look.
        leaves: Whether its next answer is to be the last.
    """

    __slots__ = (
        "_counted",
        "_held_up",
        "_leave_at",
        "_over",
        "_rates",
        "_received",
        "_since",
        "_sleeps",
        "_stalled",
        "_terms",
        "_woken",
        "leaves",
        "waits_for",
        "wire",
    )

    LIMITED: ClassVar[tuple[Phase, ...]] = HTTP_LIMITS
    """The phases whose timeout is in force: `timeouts` of the config by their names."""

    HEARD: ClassVar[tuple[Phase, ...]] = (Phase.BODY, *IDLE_PHASES)
    """The phases in which its server sends nothing, so that who hears what comes knows
    for how long nothing has moved.
    """

    def __init__(self, terms: Terms, uid: int, wire: Wire) -> None:
        driver = terms.reaper.driver
        super().__init__(driver, uid)
        self._terms = terms
        self.wire: Wire = wire
        self.waits_for: Phase = Phase.FIRST_BYTE
        self._since = driver.now()  # when what the kernel does not keep has begun
        self._counted = 0  # what the peer had acknowledged at the last look, or charge
        self._received = 0  # bytes that had come when none of a body was waited for
        self._held_up = 0.0  # what `TcpInfo.held_up` was when nothing waited for the peer
        self._rates: Rates | None = None
        # When its last rest ended, and what the peer had acknowledged then.
        self._woken: tuple[float, int] | None = None
        self._sleeps = False  # whether its next byte wakes the guard
        self._leave_at: float | None = None  # once it is too old
        self.leaves: bool = False
        self._over = False  # whether the last look found the limit of its phase over
        self._stalled = driver.clock.stalled

    @classmethod
    def terms(cls, reaper: Reaper) -> Terms:
        """The terms of this class, by the config of *reaper*; the same ones each
        time.
        """
        known = _TERMS.setdefault(reaper, {})
        found = known.get(cls)
        if found is None:
            found = known[cls] = cls.made_terms(reaper)
        return found

    @classmethod
    def made_terms(cls, reaper: Reaper) -> Terms:
        """Override where clients speak no HTTP: make the terms."""
        timeouts = reaper.config.timeouts
        return Terms(
            reaper, {phase: check_idle(getattr(timeouts, phase.value)) for phase in cls.LIMITED}
        )

    # ---- what a room says ------------------------------------------------------------
    def phase(self) -> Phase:
        """Override: whose turn it is. IN_FLIGHT, BODY, TUNNEL or IDLE; KEEP_ALIVE where
        a request is waited for, or HEADERS if the server knows that a part of one has
        come; HANDSHAKE. What cannot be read, an AttributeError, is in use.
        """
        raise NotImplementedError

    def owes(self) -> bool:
        """Override: whether no part of the answer was sent yet while the body of a
        request is awaited. It does not matter for a head: all requests before it were
        answered.
        """
        return False

    def invited(self) -> bool:
        """Override: whether its client sends the body of a request once it is told to:
        `100 Continue`. It owes nothing before.
        """
        return False

    def begun(self) -> bool:
        """Override: whether a part of a head has come after all on a connection that is
        closed for `keep_alive`. Asked once, for nothing is read any more.
        """
        return False

    def farewell(self) -> bytes:
        """Override: what its client is sent before any close; asked twice, it is
        empty.
        """
        return b""

    def be_last(self) -> None:
        """Override: have its next answer say that it is the last. Called once."""

    # ---- where it is -----------------------------------------------------------------
    @property
    def descriptor(self) -> int:
        """The descriptor of its socket; -1 if it is closed, or the peer has to take
        something first: then unread bytes do not count.
        """
        deaf = self.waits_for is Phase.WRITE or not self.wire.is_open
        return -1 if deaf else self.wire.descriptor

    @property
    def link(self) -> int:
        """The descriptor of its socket, whatever it waits for; -1 if it is closed."""
        return self.wire.descriptor if self.wire.is_open else -1

    @property
    def own_socket(self) -> Any:
        """The interpreter's socket; None if there is none, or it is closed."""
        return self.wire.own_socket if self.wire.is_open else None

    @property
    def stays_due(self) -> bool:
        """See the base class: a byte does not extend what is waited for as a whole."""
        return self._over and self.waits_for.value in ABSOLUTE

    # ---- what it waits for -----------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Whether it is in use."""
        if not self.wire.is_open:
            return False
        info = self.wire.info()
        phase = self.found(info)
        if phase is Phase.IDLE and not self._terms.told:
            return info is None or _spoke_last(info)
        return phase not in RESTING

    def found(self, info: TcpInfo | None) -> Phase:
        """What it waits for now. *info*: what TCP says now."""
        try:
            asked = self.phase()
        except AttributeError:  # what cannot be read is in use
            asked = Phase.IN_FLIGHT
        if self.wire.buffered():
            return Phase.WRITE  # the server may work: its peer holds it up
        if asked is Phase.BODY or asked is Phase.HANDSHAKE:
            return asked
        if self.wire.queued() if info is None else info.on_its_way or info.unsent:
            return Phase.WRITE
        if asked is not Phase.KEEP_ALIVE:
            return asked
        unheard = self._sleeps and self._woken is None
        if info is None:
            return Phase.FIRST_BYTE if unheard else asked
        if not info.received or unheard:
            return Phase.FIRST_BYTE  # over TLS its client was heard before, in the handshake
        if self.waits_for is Phase.HEADERS and self._counted == info.acknowledged:
            return Phase.HEADERS
        return Phase.HEADERS if _spoke_last(info) else Phase.KEEP_ALIVE

    def silence(self, explained: Explanation, now: float) -> tuple[float, float | None]:
        """As `Watched.silence`, by what the kernel knows: looks touch the lease, so it
        does not tell.
        """
        info = self.wire.info() if self.wire.is_open else None
        if info is None:
            return super().silence(explained, now)
        return min(info.sent_ago, info.received_ago), self._terms.limits.get(self.found(info))

    def look(self) -> float | None:
        """Find out what it waits for, and return for how many seconds it may wait yet.

        None means that no limit is in force.
        """
        info = self.wire.info()
        phase = self.found(info)
        # The kernel's seconds include those in which this process stood still, which
        # are charged to nobody.
        clock = self._driver.clock
        stalled, self._stalled = clock.stalled - self._stalled, clock.stalled
        now = self._driver.now()
        if phase is not self.waits_for:
            self._enter(phase, info, now, stalled)
        if info is not None:
            if phase is not Phase.WRITE:
                self._held_up = info.held_up
            if phase is not Phase.BODY:
                self._received = info.received
        limit = self._terms.limits.get(phase)
        if limit is None or phase is Phase.IN_FLIGHT:
            return None
        if phase is Phase.WRITE and info is not None:
            limit = patience(limit, self._terms.out_rate, info.hidden)
        if phase in SELF_COUNTED and not (phase is Phase.WRITE and info is None):
            return limit - (now - self._since)
        if info is None:
            return self._untimed(phase, limit, now)
        if phase is Phase.BODY:
            ago = info.received_ago
            if self.invited():
                ago = min(ago, info.sent_ago)
        elif phase is Phase.KEEP_ALIVE or phase is Phase.FIRST_BYTE:
            ago = info.sent_ago
        else:
            ago = min(info.sent_ago, info.received_ago)
        return limit - max(ago - stalled, 0.0) + STAMP

    def _untimed(self, phase: Phase, limit: float, now: float) -> float | None:
        """As `look`, where the kernel does not say when bytes moved."""
        if phase not in self.HEARD:
            return None
        if not (self._sleeps and self.wire.still_wakes()):
            self._sleeps, self._since = False, now
            if not self.sleep():
                return None
        return limit - (now - self._since)

    def _enter(self, phase: Phase, info: TcpInfo | None, now: float, stalled: float) -> None:
        """It waits for *phase* from now on: note since when."""
        before, self.waits_for = self.waits_for, phase
        if phase is not Phase.HANDSHAKE:  # which began with the connection
            self._since = now
        if phase is Phase.HEADERS and info is not None:
            if self._woken is not None and self._woken[1] == info.acknowledged:
                self._since = self._woken[0]  # nothing was answered since
            else:  # the first byte of a head came no later than its last
                ago = min(info.received_ago, info.sent_ago)  # nobody waited before its turn
                self._since -= max(ago - stalled - STAMP, 0.0)
        elif phase is Phase.WRITE and info is not None:
            nothing = info.took_nothing_for(self._held_up)
            self._since -= max(nothing - stalled - STAMP, 0.0)
        self._counted = self._acknowledged(info)
        self._charge_for(before, phase, now, info)
        if phase is Phase.TUNNEL and self._terms.tunnels_age:
            limited = any(each.reason == TUNNEL_AGE for each in self._deadlines or ())
            if not limited:
                self.deadline(tunnel_lifespan(self._driver.config), TUNNEL_AGE)
        if self._is_swept:
            self._terms.reaper.sweep.add(self)

    # ---- who rests is not looked at --------------------------------------------------
    def opened(self, *, heard: bool = False) -> None:
        """The server has the connection: have its first byte noted.

        Args:
            heard: Whether it has come already, a moment ago.
        """
        if heard:
            self.woke(self.wire.info())
        elif not self.sleep() and not self.wire.is_timed:
            self.woke(None)  # it may rest before the next look

    def sleep(self) -> bool:
        """It rests: have its next byte wake the guard. False: nobody hears of that."""
        if not self._sleeps and self.wire.is_open:
            self._sleeps = self.wire.wakes(self)
        return self._sleeps

    def waker(self) -> Callable[[], None]:
        """What a wire calls for `woke`: it does not refer to this object."""
        connections, uid = self._driver.connections, self.uid

        def wake() -> None:
            asleep = connections.get(uid)
            if asleep is not None:
                served = cast(Served, asleep)
                served.woke(served.wire.info())

        return wake

    def woke(self, info: TcpInfo | None) -> None:
        """The first byte after a rest has come: look again in time.

        Args:
            info: What TCP said when the server had yet to be given that byte. What was
                acknowledged since then is an answer.
        """
        self._sleeps = False
        settled = info is not None and not (info.on_its_way or info.unsent)
        known = info.acknowledged if info is not None and settled else -1
        self._woken = self._driver.now(), known
        timeout, every = self.lease.timeout, self._terms.every
        if info is None and every is not None:
            every = 0.0
        if every is not None and (timeout is None or timeout > every + self._driver.core.tick):
            self.lease.touch()
            self._look_again_in(every)

    def pardon(self, lease: Lease) -> bool:
        """At the final check: whether it is not due after all. Its next look is then
        arranged.
        """
        if not self.wire.is_open:
            return False
        if lease is not self.lease:
            if lease.reason == MAX_AGE:
                return self._may_finish()
            too_slow = lease.reason in TOO_SLOW.values()
            return too_slow and self.found(self.wire.info()) is not self.waits_for
        left = self.look()
        self._over = left is not None and left <= 0
        if self._over:
            return False
        # After this check: being spared counts as activity, which would undo it.
        self._driver.once_judged(lambda: self._look_again_in(self._next_look(left)))
        return True

    def _next_look(self, left: float | None) -> float | None:
        """Seconds until it is looked at again; None: when it has woken. *left*: until
        its limit is over.
        """
        phase, limits = self.waits_for, self._terms.limits
        latest = self._terms.every
        if (phase is Phase.KEEP_ALIVE or phase is Phase.FIRST_BYTE) and self.sleep():
            latest = None
        elif phase is Phase.TUNNEL or phase is Phase.IDLE:
            latest = limits.get(Phase.WRITE)  # the peer may stop taking what is sent
        elif phase in LEADS_TO_REST and latest is not None and not self.wire.is_timed:
            latest = 0.0  # nobody hears when the rest begins
        if left is None or (latest is not None and latest < left):
            return latest
        return left

    def _look_again_in(self, left: float | None) -> None:
        if left is not None:
            # Rounded up to half ticks, because each distinct timeout costs a slot.
            half = self._driver.core.tick / 2
            left = (seconds_to_tick(max(left, 0.0), 0.0, half) + 1) * half
        self.lease.retime(left, self._driver.now(), self._reason())
        self._driver.poke()

    def _reason(self) -> str:
        return self._terms.reason or self.waits_for.value

    def outlasts(self, seconds: float) -> bool:
        """As `Watched.outlasts`; the limit is that of the phase which `pardon` has
        found.
        """
        limit = self._terms.limits.get(self.waits_for)
        return limit is None or limit > seconds or self.waits_for is Phase.IN_FLIGHT

    # ---- least rates -----------------------------------------------------------------
    @property
    def _is_swept(self) -> bool:
        """Whether the sweep has to look at it."""
        rates = self._rates
        charged = rates is not None and self.waits_for in rates.allowances
        return charged or self.awaited or self.waits_for is Phase.WRITE

    def _acknowledged(self, info: TcpInfo | None) -> int:
        """A number that grows by the bytes that the peer takes."""
        return -self.wire.queued() if info is None else info.acknowledged

    def _charge_for(self, before: Phase, phase: Phase, now: float, info: TcpInfo | None) -> None:
        """From *now* on, charge the peer for *phase*, and for *before* no longer."""
        rates = self._rates
        if rates is not None:
            rates.spare()
            if before in rates.allowances:
                rates.allowances[before].pause(now)
            if phase in RESTING:
                self._rates = None  # the request is answered
                return
        if phase in RATES:
            if rates is None:
                rates = self._rates = Rates()
            allowance = rates.allowances.get(phase)
            if (
                allowance is None
                and info is not None
                and (allowance := self._terms.allowance(phase)) is not None
            ):
                rates.allowances[phase] = allowance
                if phase is Phase.WRITE:
                    allowance.earn(info.hidden, now)
            if allowance is not None:
                allowance.start(now)

    def _moved(self, info: TcpInfo | None, now: float) -> int:
        """How many bytes have moved since this was last asked, in the direction that is
        waited for. The peer is charged for the time.
        """
        phase, rates = self.waits_for, self._rates
        if phase is Phase.BODY:
            came = self._received if info is None else info.received
            count, self._received = came - self._received, came
        else:
            taken = self._acknowledged(info)
            count, self._counted = max(taken - self._counted, 0), taken
        allowance = None if rates is None else rates.allowances.get(phase)
        if rates is not None and allowance is not None:
            if count:
                allowance.earn(count, now)
            if allowance.left(now) > 0:
                rates.spare()
            elif rates.ending is None:
                rates.ending = self.deadline(INSTANT, TOO_SLOW[RATES[phase]])
        return count

    def charge(self, now: float) -> None:
        """The sweep asks: has something moved, is its client too slow, and may a drain
        end it?
        """
        is_open = self.wire.is_open
        if is_open and self.waits_for in RATES:
            info = self.wire.info()
            if self.found(info) is not self.waits_for:
                left = self._next_look(self.look())
                self.lease.touch()
                self._look_again_in(left)
            elif self._moved(info, now):
                self._since = now
                self.lease.touch()
        if self.awaited and is_open and not self.busy:
            self._driver.went_idle(self)
        if not is_open or self.reaped or not self._is_swept:
            self._terms.reaper.sweep.discard(self)

    # ---- the end ---------------------------------------------------------------------
    def tell_last(self) -> None:
        """Have its next answer say that it is the last. Does nothing if that was done
        before.
        """
        if not self.leaves:
            self.leaves = True
            with suppress(AttributeError):  # what cannot be read is not changed
                self.be_last()

    def _may_finish(self) -> bool:
        """Whether a connection that is too old may stay for a moment.

        It may if it has yet to answer a request, or if one may be on its way: its next
        answer says that it is the last. A client that does not heed that, or that
        nobody can tell, is waited for until it has rested for `drain_idle`; for no
        longer than a drain waits.
        """
        now, timeouts = self._driver.now(), self._driver.config.timeouts
        if self._leave_at is None:
            self._leave_at = now + timeouts.drain_idle
            self.tell_last()
        if now < self._leave_at or self.busy:
            return True
        if now >= self._leave_at + timeouts.drain:
            return False
        info = self.wire.info()
        return info is not None and min(info.sent_ago, info.received_ago) < timeouts.drain_idle

    def answer(self, reason: str) -> bytes:
        """What its client is told that is closed for *reason*: 408 for a request that
        does not come in time; empty if part of an answer was sent already.
        """
        with suppress(Exception):  # what cannot be read may have begun
            if reason == Phase.KEEP_ALIVE.value:
                return TIMED_OUT if self.begun() else b""
            if ANSWERS.get(reason) == HTTPStatus.REQUEST_TIMEOUT and (
                reason == Phase.HEADERS.value or self.owes()
            ):
                return TIMED_OUT
        return b""

    def shut(self) -> None:
        """Tell the peer at once, if it may send its next request at any moment."""
        if self.wire.is_open and self.waits_for in RESTING:
            # nothing can be said afterwards
            if says := self.farewell() or self.answer(self.waits_for.value):
                self.wire.write(says)
            self.wire.shut()

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """Close it, for what it waits for if that is due. Does nothing if it has
        ended.
        """
        if not self.wire.is_open:
            self.lost()
        elif expiry is None or expiry.lease is not self.lease:
            super().reap(reason, expiry)
        else:
            books = self._driver.books
            # The lease's own timeout is what was left of the limit at the last look.
            limit = self._terms.limits.get(self.waits_for)
            if limit is not None and books.log.isEnabledFor(logging.INFO):
                info = self.wire.info()
                if info is not None:
                    ago = min(info.sent_ago, info.received_ago)
                    books.seen[self.lease] = limit, ago
            try:
                super().reap(self._reason(), expiry)
            finally:
                books.seen.pop(self.lease, None)

    def _cut(self, reason: str) -> None:
        if self.waits_for is Phase.WRITE or reason in NOT_TAKEN:
            self.wire.reset()
            return
        says = self.farewell()
        if not says and self.waits_for not in RESTING:  # or it was told in `shut`
            says = self.answer(reason)
        self.wire.close(says)

    def lost(self, by_peer: object = True) -> None:
        """The connection has ended by itself."""
        if self.uid in self._driver.connections:  # its lease may have run out before it is found so
            self.hung_up: bool = bool(by_peer)
            self.leave()

    def gone(self) -> None:
        """The socket is closed, and no one has said so."""
        self.lost()

    def parts(self, protocol: Any) -> None:
        """Override: the connection of *protocol*, the server's, is lost. Called before
        the server itself is told.
        """

    def _let_go(self) -> None:
        super()._let_go()
        self.wire.forget(self)
        if self._is_swept:  # otherwise the sweep lets go of it by itself
            self._terms.reaper.sweep.discard(self)
        self._rates = None


def watch(terms: Terms, kind: Callable[[Terms, int, Wire], Served], wire: Wire) -> Served:
    """Watch the connection of *wire*, of which *kind* makes a `Served`, by *terms*."""
    first = terms.limits.get(Phase.FIRST_BYTE, terms.every)
    made: Served = terms.reaper.driver.watch(
        lambda uid: kind(terms, uid, wire),
        wire.socket(),
        min(filter(None, (first, terms.every)), default=0),
        reason=terms.reason or Phase.FIRST_BYTE.value,
    )
    wire.tells(made.lost)
    if age := terms.age():
        made.deadline(age, MAX_AGE)
    return made


def each_served(reaper: Reaper, act: Callable[[Served], object]) -> None:
    """Call *act* with each connection of a server of others that *reaper* watches, a
    slice of them in each pass of the loop.
    """

    def look(one: Watched) -> None:
        if isinstance(one, Served):
            act(one)

    walk(reaper.driver.soon, reaper.driver.connections.values(), look)


def handshake_grace(timeouts: Timeouts) -> float:
    """Seconds that a handshake has from a stop on: a few, and no longer than the
    drain.
    """
    return min(HANDSHAKE_GRACE, timeouts.drain)


def end_handshakes(reaper: Reaper, mine: Callable[[Any], bool] = lambda one: True) -> None:
    """End those that are amid a handshake, of the connections that are `mine`: each has
    asked for nothing.
    """

    def look(one: Served) -> None:
        if mine(one) and one.phase() is Phase.HANDSHAKE:
            one.wire.close(b"")

    each_served(reaper, look)


def tried(guard: Callable[..., Any], *arguments: Any) -> Any:
    """Return what *guard* returns, which guards a connection that a server is making.
    If it raises, that is logged, None is returned, and the server has the connection as
    it would without a guard.
    """
    try:
        return guard(*arguments)
    except Exception:
        log.exception("a connection is not guarded")
        return None


def _weak(thing: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    try:
        return weakref.ref(thing, gone)
    except TypeError:
        # uvloop's transport with TLS, and what has slots: held until it is known to
        # have ended.
        return lambda: thing


def _spoke_last(info: TcpInfo) -> bool:
    """Whether bytes of the peer came after what was last sent to it."""
    return bool(info.received) and (
        not info.acknowledged or info.received_ago < info.sent_ago - STAMP
    )
