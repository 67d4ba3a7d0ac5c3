"""What the watched connections of every adapter have in common: leases, deadlines,
being in use, and one end.

The rule of this module: *a connection ends once, and everything that knew of it then
lets go*.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isbuiltin, iscoroutinefunction, isfunction, ismethod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.lease import OPEN, Epoch, Expiry, Explanation, Lease
from ..core.ticks import check_timeout
from ..errors import ConnectionReaped, InvalidArgument, shown
from ..policy.reasons import UNANSWERED
from ..stops import Stopping, stopping
from .sockets import unread

if TYPE_CHECKING:
    from .driver import Call, Driver

Probe = Callable[[Any], Awaitable[object]]
"""Called with the connection: sends something that the peer must answer, a WebSocket
ping for instance.
"""


PROBE_GRACE = 5.0
"""Seconds that a probed peer has for its answer. Precedent: gRPC's keep-alive timeout
is 20 s, Engine.IO's 20 s.
"""


class DeadlineKey(NamedTuple):
    """The core's key of a second lease on a connection."""

    uid: Any  # of the connection; or the `Reapable` itself
    number: int


class Reapable:
    """What the driver can judge and reap: a `Watched`, or a parked connection. `lease`
    is the lease in force.
    """

    __slots__ = ()

    lease: Lease
    probe: Probe | None

    @property
    def descriptor(self) -> int:
        """The descriptor of its socket; -1 if there is none, or it is closed."""
        raise NotImplementedError

    @property
    def link(self) -> int:
        """Its `descriptor`, also where that is hidden so that unread bytes do not
        count.
        """
        return self.descriptor

    @property
    def stays_due(self) -> bool:
        """Override. True: bytes found at the final check (a PING, say) delay the close,
        but do not restart the timeout.

        They may be a request, so the lease is spared. If they turn out to restart
        nothing once they are read, the lease is checked again when the open epoch ends,
        half a tick later at most. Bytes that came after the first check delay it no
        further. Only leases that may be spared are asked.
        """
        return False

    @property
    def own_socket(self) -> Any:
        """The socket object that its owner closes, if a question to the kernel then
        takes one system call. None: use `link`, which takes two.
        """
        return None

    @property
    def busy(self) -> bool:
        """Whether it is in use, or not known to be idle."""
        raise NotImplementedError

    def silence(self, explained: Explanation, now: float) -> tuple[float, float | None]:
        """Seconds for which it has been silent, and for which it may be; None for the
        second: for ever.

        Override where the lease does not tell, because it is not touched by every
        packet.
        """
        until = explained.active_until
        return (0.0 if until is None else now - until), explained.timeout

    def shut(self) -> None:
        """Tell the peer at once that nothing more is read, because the connection is
        about to be reaped. An adapter leaves it if it has something to send yet.

        Bytes that arrive between the final check and the close are lost, and others are
        closed first.
        """

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End the connection for *reason*. Does nothing if it has ended."""
        raise NotImplementedError

    def end_lease(self) -> None:
        """Release the lease, whose uid is this connection.

        Left as it is, the two would be a circle, which only the garbage collector
        frees.
        """
        self.lease.release()
        self.lease.uid = None

    def pardon(self, lease: Lease) -> bool:
        """Override. True: the connection is in use although its *lease* is due, which
        counts as activity.

        The final check calls it. Use it where asking once per timeout is cheaper than
        noting every request.
        """
        return False

    def outlasts(self, seconds: float) -> bool:
        """Whether no limit that is *seconds* long or shorter ends the silent
        connection, as `pardon` has just found it.

        Override where that is known without a question to the kernel.
        """
        return True

    def has_unread(self) -> bool:
        """Whether the kernel holds unread bytes of the connection."""
        descriptor = self.descriptor
        return descriptor >= 0 and bool(unread([descriptor]))


class Watched(Reapable):
    """One watched connection. An adapter's own class adds how its handler is ended
    (`_cut`) and where its socket is.
    """

    __slots__ = {  # noqa: RUF023  # as one reads them; help() shows these texts
        "touch": "Call it for every packet. One store; see `Lease.touch`.",
        "lease": "The lease in force.",
        "uid": "Its key in the core, a number that is never used again.",
        "reaped": "Whether the reaper ended it: for silence, for a limit, or in a drain.",
        "reason": "Why the reaper ended it (`idle`, `unanswered`, `vanished`, `drain`, ...); "
        "None if it did not.",
        "expiry": "The core's record of the reap: when it was due, and how late it was; "
        "None where it was not due.",
        "probe": "What is sent when it has been silent for its timeout; None: close it then.",
        "grace": "Seconds that the peer has for its answer to the probe.",
        "receiving": "Whether nothing but more bytes can wake the handler; None if unknown. "
        "Then it counts as in use from the first sign of life on.",
        "hung_up": "Whether the peer has said that it will send no more, or is gone.",
        "awaited": "Whether an operation waits for it to go idle; see `went_idle`.",
        "unanswered": "What ends it unless the probe is answered, and the epoch of the probe; "
        "None if it was not probed.",
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
        """Watch the connection by *lease* from now on."""
        self.lease: Lease = lease
        self._born = lease._epoch.serial
        self.touch = self._first_touch

    def gone(self) -> None:
        """Override: hear that the socket is closed. An adapter that hears of it by
        itself does nothing.
        """

    def handled(self) -> None:
        """Note that a stream keeps `receiving` exact from now on. The handler has just
        begun, and does not wait for bytes yet.
        """
        self.receiving = False
        self.touch = self.lease.touch

    def _first_touch(self) -> None:
        # To the lease all activity of one epoch looks alike. But a connection that has
        # never spoken is idle, and a drain may end it at once, so the first touch is
        # noted here.
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
        """Override: end the handler; cancel it, or close the transport."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether the connection is in use: it is suspended, or its handler may be
        doing something else than waiting for bytes.
        """
        lease = self.lease
        if lease.suspended:
            return True
        if self.receiving is None:
            return self._touched or lease._epoch.serial != self._born
        return not self.receiving

    def went_idle(self) -> None:
        """Tell a drain that the handler waits for bytes now.

        Call it when `receiving` becomes True while `awaited` is.
        """
        self._driver.went_idle(self)

    @property
    def leaving(self) -> Stopping:
        """Whether the server has been told to stop: a flag, and awaitable, to say
        goodbye in time.

        It is `reaper.stopping()` of the loop that runs.
        """
        return stopping()

    def suspend(self) -> bool:
        """Exempt the connection until `resume`: a request is in flight. True if it was
        armed.
        """
        if self.receiving is None:
            self.receiving = True  # the handler says when it is in use, so otherwise it is idle
        return self.lease.suspend()

    def resume(self) -> bool:
        """End the exemption; counts as activity. True if it was suspended."""
        resumed = self._driver.resume(self.lease)
        if self.awaited:
            self.went_idle()
        return resumed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """`suspend` for the length of the block, then `resume`. Only the outermost
        block counts.

        Raises:
            ConnectionReaped: it was reaped before. Its block is not entered: what it
                would work on has been closed.
        """
        refuse_reaped(self)
        outermost = self.suspend()
        try:
            yield
        finally:
            if outermost:
                self.resume()

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout of *idle* seconds in force, counted from the last
        activity.

        0 switches it off. Returns False if the connection was reaped.
        """
        return self._driver.retime(self.lease, idle, reason)

    def probed(self) -> bool:
        """Note that a probe is about to be sent; the epoch was closed just before.

        Activity from now on, in whatever way it is noted, is an answer. Returns False
        if the last probe still waits for its answer: then none is sent, and the time of
        the last goes on.
        """
        waits = self.unanswered
        call = self._driver.after(self.grace, self._not_answered) if waits is None else waits[0]
        self.unanswered = call, self.lease._epoch
        return waits is None

    @property
    def answered(self) -> bool:
        """Whether there was activity since the probe was sent, or the connection is in
        use.
        """
        lease = self.lease
        return self.unanswered is None or lease._epoch is not self.unanswered[1] or lease.suspended

    def forget_probe(self) -> None:
        """Stop waiting for the answer to the last probe."""
        if self.unanswered is not None:
            self.unanswered[0].cancel()
            self.unanswered = None

    def _not_answered(self) -> None:
        """The time for an answer is over. Reap the connection, unless an answer has
        come or waits unread.
        """
        answered = self.answered
        self.forget_probe()
        if not answered and not self.has_unread():
            self.reap(UNANSWERED)

    def deadline(self, seconds: float, reason: str) -> Lease:
        """A second lease, which ends this connection *seconds* from now whatever bytes
        come: a limit that dripped ones must not extend. `release()` it when the limit
        is met; the end of the connection releases it too.

        Raises:
            InvalidArgument: seconds is NaN, infinite, or <= 0, or reason is no text.
        """
        check_timeout("seconds", seconds)
        check_reason(reason)
        lease = self._driver.deadline(self, seconds, reason, self.uid)
        self._deadlines = with_one_more(self._deadlines, lease)
        return lease

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End the connection for *reason*, and enter that in the books. Does nothing if
        it was reaped before.
        """
        if self.reaped:
            return
        self._driver.books.reaped(self.lease, self, reason, expiry)
        self._let_go()
        self.reaped = True
        self.reason = reason
        self.expiry = expiry
        self._cut(reason)

    def leave(self) -> None:
        """The connection has ended by itself. Does nothing if it was reaped."""
        if not self.reaped:
            self._driver.books.left(self.lease, by_peer=self.hung_up)
            self._let_go()

    def _let_go(self) -> None:
        self.lease.release()
        release(self._deadlines)
        # A connection that has ended must leave no circle for the garbage collector:
        # its touch would keep the dead lease, and the probe's timer the connection.
        self.touch = _nothing
        self.forget_probe()
        self._driver.ended(self)


def with_one_more(deadlines: Iterable[Lease] | None, made: Lease) -> list[Lease]:
    """Those of *deadlines* that are still alive, and *made*: a list that does not grow
    by what is over.
    """
    return [*(each for each in deadlines or () if each.alive), made]


def release(deadlines: Iterable[Lease] | None) -> None:
    """What had these *deadlines* has ended."""
    for each in deadlines or ():
        each.release()


def refuse_reaped(connection: Any) -> None:
    """Raise ConnectionReaped if *connection* was reaped: nobody may use it any more."""
    if connection.reaped:
        raise ConnectionReaped(f"in_use() must be called before the close, got {connection!r}")


def check_watch(idle: float | None, reason: str, probe: Probe | None, grace: float) -> None:
    """Refuse what no `watch` takes. Raises InvalidArgument, by name and value."""
    check_idle(idle)
    check_timeout("grace", grace)
    check_probe(probe)
    check_reason(reason)


def check_idle(idle: float | None, name: str = "idle") -> float | None:
    """*idle*, seconds of silence allowed, as the core takes it: 0 becomes None, off.

    Raises:
        InvalidArgument: by *name* and value.
    """
    if type(idle) is float and 0.0 < idle < OPEN:
        return idle  # as nearly always; a server calls this several times per request
    return None if idle is None or is_off(idle) else check_timeout(name, idle, ", or 0 for none")


def check_reason(reason: object) -> None:
    """Make sure that *reason* is a text. Raises InvalidArgument."""
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason must be a str, got {shown(reason)}")


def check_handler(name: str, handler: object, kind: str = "async function") -> None:
    """Make sure that *handler* can be called. Raises InvalidArgument by *name* and
    *kind*.
    """
    if not callable(handler):
        raise InvalidArgument(
            f"{name} must be {'an' if kind[0] in 'aeiou' else 'a'} {kind}, got {shown(handler)}"
        )


def is_off(value: object) -> bool:
    """Whether *value*, where None or a number of seconds is expected, says "off": None
    or 0.
    """
    return value is None or (type(value) in (int, float) and value == 0)


def check_probe(probe: object) -> None:
    """Make sure that *probe* is None or an async function. Raises InvalidArgument.

    A lambda, or an object with `__call__`, is taken too: it may return an awaitable.
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
