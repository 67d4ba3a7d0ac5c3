"""What the watched connections of every adapter have in common: leases, deadlines, being in use,
and one end.

The rule of this module: *a connection ends once, and everything that knew of it then lets go*.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isbuiltin, iscoroutinefunction, isfunction, ismethod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.lease import Epoch, Expiry, Lease
from ..core.ticks import check_timeout
from ..errors import InvalidArgument, shown
from ..policy.reasons import UNANSWERED
from .sockets import unread

if TYPE_CHECKING:
    from .driver import Call, Driver

Probe = Callable[[Any], Awaitable[object]]
"""Called with the connection: sends something that the peer must answer, a WebSocket ping for
instance.
"""


PROBE_GRACE = 5.0
"""Seconds that a probed peer has for its answer. Precedent: gRPC's keep-alive timeout is 20 s,
Engine.IO's 20 s.
"""


class DeadlineKey(NamedTuple):
    """The core's key of a second lease on a connection."""

    uid: Any  # of the connection; or the `Reapable` itself
    number: int


class Reapable:
    """Whatever the driver can judge and reap: a `Watched`, or a parked connection. Its `lease` is
    the one in force.
    """

    __slots__ = ()

    lease: Lease
    probe: Probe | None

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it is closed."""
        raise NotImplementedError

    @property
    def link(self) -> int:
        """Its `descriptor`, also where that is hidden so that unread bytes do not count."""
        return self.descriptor

    @property
    def busy(self) -> bool:
        """Whether it is in use, or not known to be idle."""
        raise NotImplementedError

    def shut(self) -> None:
        """It is about to be reaped: tell its peer at once that nothing more is read, unless it is
        sent something yet.

        To reap takes its time, and what comes between the final check and then is lost.
        """

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*; nothing if it has ended."""
        raise NotImplementedError

    def end_lease(self) -> None:
        """Release its lease, whose uid it is: the two would be a circle, which only the collector
        frees.
        """
        self.lease.release()
        self.lease.uid = None

    def pardon(self, lease: Lease) -> bool:
        """Asked at the final check, when *lease* of it is due: whether it is in use after all. That
        counts as activity.

        For a connection that is cheaper to ask once per timeout than to note every request of.
        """
        return False

    def has_unread(self) -> bool:
        """Whether the kernel holds bytes of it that were not read yet."""
        descriptor = self.descriptor
        return descriptor >= 0 and bool(unread([descriptor]))


class Watched(Reapable):
    """One watched connection. An adapter's own class adds how its handler is ended (`_cut`) and
    where its socket is.
    """

    __slots__ = {  # noqa: RUF023  # as one reads them; help() shows these texts
        "touch": "Call it for every packet. One store; see `Lease.touch`.",
        "lease": "The lease in force.",
        "uid": "Its key in the core, a number that is never used again.",
        "reaped": "Whether the reaper ended it: for silence, for a limit, or in a drain.",
        "reason": "Why the reaper ended it (`idle`, `unanswered`, `vanished`, `drain`, ...); None: it did not.",
        "expiry": "The core's record of the reap: when it was due, and how late it was; None where it was not due.",
        "probe": "What is sent when it has been silent for its timeout; None: it is closed then.",
        "grace": "Seconds that the peer has for its answer to the probe.",
        "receiving": "Whether nothing but more bytes can wake the handler; None: not known. Then it counts as in use "
        "from the first sign of life on.",
        "hung_up": "Whether the peer has said that it will send no more, or is gone.",
        "awaited": "Whether an operation waits for it to go idle; see `went_idle`.",
        "unanswered": "What ends it unless the probe is answered, and the epoch of the probe; None: it was not probed.",
        "_born": "",
        "_deadlines": "",
        "_driver": "",
        "_touched": "",
    }

    touch: Callable[[], None]

    def __init__(self, driver: Driver, uid: int) -> None:
        self._driver = driver
        self.uid: int = uid
        self._touched = False
        self._born = 0
        self._deadlines: list[Lease] | None = None
        self.awaited: bool = False
        self.probe: Probe | None = None
        self.grace: float = 0.0
        self.unanswered: tuple[Call, Epoch] | None = None
        self.reaped: bool = False
        self.reason: str | None = None
        self.expiry: Expiry | None = None
        self.receiving: bool | None = None
        self.hung_up: bool = False

    def begin(self, lease: Lease) -> None:
        """It is watched by *lease* from now on."""
        self.lease: Lease = lease
        self._born = lease._epoch.serial
        self.touch = self._first_touch

    def handled(self) -> None:
        """A stream keeps `receiving` exact from now on; the handler has begun, and does not wait
        for bytes yet.
        """
        self.receiving = False
        self.touch = self.lease.touch

    def _first_touch(self) -> None:
        # Those of one epoch look alike to the lease; but what has never spoken is idle, and may
        # leave at once.
        self._touched = True
        self.touch = self.lease.touch
        self.touch()

    def __repr__(self) -> str:
        lease = self.lease
        state = (
            f"reaped: {self.reason}" if self.reaped else "in use" if lease.suspended else "armed"
        )
        if not self.reaped and not lease.alive:
            state = "ended"
        limit = (
            ""
            if not lease.alive
            else ", no timeout"
            if lease.timeout is None
            else f", idle={lease.timeout} s"
        )
        return f"<{type(self).__name__} {self.uid} {state}{limit}, reason {lease.reason!r}>"

    def _cut(self, reason: str) -> None:
        """End the handler: cancel it, or close the transport."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether it is in use: suspended, or its handler does something else than waiting for
        bytes, or may do.
        """
        lease = self.lease
        if lease.suspended:
            return True
        if self.receiving is None:
            return self._touched or lease._epoch.serial != self._born
        return not self.receiving

    def went_idle(self) -> None:
        """It waits for bytes now. Call it when `receiving` becomes True while `awaited`: a drain
        waits for that.
        """
        self._driver.went_idle(self)

    def suspend(self) -> bool:
        """Exempt it until `resume`, because a request is in flight. True if it was armed."""
        if self.receiving is None:
            self.receiving = True  # it says when it is in use; otherwise it is idle
        return self.lease.suspend()

    def resume(self) -> bool:
        """End the exemption; counts as activity. True if it was suspended."""
        resumed = self._driver.resume(self.lease)
        if self.awaited:
            self.went_idle()
        return resumed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """`suspend` for the length of the block, then `resume`. Nested, only the outermost counts."""
        outermost = self.suspend()
        try:
            yield
        finally:
            if outermost:
                self.resume()

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout in force, counted from the last activity; 0 switches it off. False if
        it was reaped.
        """
        return self._driver.retime(self.lease, idle, reason)

    def probed(self) -> bool:
        """It is about to be probed, and its epoch has been closed: activity from now on, by
        whatever way it is noted, is an answer. False if the probe before this one still waits for
        one: its time goes on."""
        waits = self.unanswered
        call = self._driver.after(self.grace, self._not_answered) if waits is None else waits[0]
        self.unanswered = call, self.lease._epoch
        return waits is None

    @property
    def answered(self) -> bool:
        """Whether there was activity since it was probed, or it is in use."""
        lease = self.lease
        return self.unanswered is None or lease._epoch is not self.unanswered[1] or lease.suspended

    def forget_probe(self) -> None:
        """Wait no longer for its answer."""
        if self.unanswered is not None:
            self.unanswered[0].cancel()
            self.unanswered = None

    def _not_answered(self) -> None:
        """The time for an answer is over: reap, unless there was one, or bytes of it wait."""
        answered = self.answered
        self.forget_probe()
        if not answered and not self.has_unread():
            self.reap(UNANSWERED)

    def deadline(self, seconds: float, reason: str) -> Lease:
        """A second lease, which ends this connection *seconds* from now whatever bytes come: a
        limit that dripped ones must not extend. `release()` it when the limit is met; the end of
        the connection releases it too.

        Raises:
            InvalidArgument: seconds is NaN, infinite, or <= 0, or reason is no text.
        """
        check_timeout("seconds", seconds)
        check_reason(reason)
        lease = self._driver.deadline(self, seconds, reason, self.uid)
        self._deadlines = [*(other for other in self._deadlines or () if other.alive), lease]
        return lease

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*, entered in the books; nothing if it was reaped already."""
        if self.reaped:
            return
        self._driver.books.reaped(self.lease, self, reason, expiry)
        self._let_go()
        self.reaped = True
        self.reason = reason
        self.expiry = expiry
        self._cut(reason)

    def leave(self) -> None:
        """It has ended by itself; nothing if it was reaped."""
        if not self.reaped:
            self._driver.books.left(self.lease, by_peer=self.hung_up)
            self._let_go()

    def _let_go(self) -> None:
        self.lease.release()
        for deadline in self._deadlines or ():
            deadline.release()
        # Not the dead lease's, and no answer any more: a connection that has ended leaves no circle
        # for the collector.
        self.touch = _nothing
        self.forget_probe()
        self._driver.ended(self)


def check_watch(idle: float | None, reason: str, probe: Probe | None, grace: float) -> None:
    """Refuse what no `watch` takes. Raises InvalidArgument, by name and value."""
    check_idle(idle)
    check_timeout("grace", grace)
    check_probe(probe)
    check_reason(reason)


def check_idle(idle: float | None, name: str = "idle") -> float | None:
    """*idle*, seconds of silence allowed, as the core takes it: None, off, for 0. Raises
    InvalidArgument, by *name*.
    """
    return None if idle is None or is_off(idle) else check_timeout(name, idle, ", or 0 for none")


def check_reason(reason: object) -> None:
    """Raises InvalidArgument: *reason* is no text."""
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason must be a str, got {shown(reason)}")


def check_handler(name: str, handler: object, kind: str = "async function") -> None:
    """Raises InvalidArgument, by *name*, *kind* and value: *handler* cannot be called."""
    if not callable(handler):
        raise InvalidArgument(
            f"{name} must be {'an' if kind[0] in 'aeiou' else 'a'} {kind}, got {shown(handler)}"
        )


def is_off(value: object) -> bool:
    """Whether *value*, where None or a number of seconds is expected, says "off": None or 0."""
    return value is None or (type(value) in (int, float) and value == 0)


def check_probe(probe: object) -> None:
    """Make sure that *probe* is None or an async function. A lambda, or an object with `__call__`,
    may return one's.
    """
    function = probe
    while isinstance(function, partial):
        function = function.func
    if probe is None or iscoroutinefunction(function):
        return
    sync = isfunction(function) or ismethod(function) or isbuiltin(function)
    if not callable(function) or (sync and getattr(function, "__name__", "") != "<lambda>"):
        raise InvalidArgument(f"probe must be an async function, got {probe!r}")


def _nothing() -> None:
    """The touch of a connection that has ended."""
