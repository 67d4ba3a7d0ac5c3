"""Leases that log their own long silences: `gaps` mode at the price of one comparison
per touch.

A touch knows no time, only the open epoch. So the times that come from here are
epochs': activity counts as noted at the instant its epoch was opened, less than one
epoch before it really was. Silences are therefore exact to one epoch, their sum is
exact, and those up to the threshold are counted by the epochs that end them: by that an
audit knows how much time without a row there can be. A server that wants every activity
to the nanosecond calls `ConnectionLog.touch` with a clock reading instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..core.lease import Expiry, Lease
from ..core.reaper import IdleReaper
from ..errors import InvalidArgument
from .log import ConnectionLog, Journal, OpenStates
from .schema import peer_key

NOTABLE_SHARE = 0.05
"""Stalls beyond this share of a tick are logged."""


def nanoseconds(seconds: float) -> int:
    """Convert seconds of the core's clock to the journal's ns."""
    return round(seconds * 1e9)


def _same(instant: float) -> float:
    """*instant*: both clocks are one."""
    return instant


class LeaseLog:
    """Keeps the journal of one core's connections: what an adapter calls at each event.

    Times that are passed in are seconds of the journal's clock. Those that leases and
    expiries carry are the core's. The timeout that a row carries is read from the lease
    when the row is written; a suspended lease has none in force.

    Args:
        core: Leases registered from now on log their silences beyond the journal's
            threshold once they are `opened`; the others work as ever.
        journal: Made with `clock_ns`.
        real: Turns an instant of *core*'s clock into one of the journal's, where that
            clock leaves out stalls.
    """

    def __init__(
        self, core: IdleReaper, journal: Journal, real: Callable[[float], float] = _same
    ) -> None:
        self.journal = journal
        self._real = real
        self._notable = core.tick * NOTABLE_SHARE
        self._full = journal.mode == "full"
        self._long = journal.gap_threshold_ns / 1e9
        self._core = core
        journal.witness(self._look)
        self._kept: dict[Lease, int] = {}  # when those were last spared, ns, that stayed due
        self._asked: dict[Lease, int] = {}  # since when those are asked, ns
        if self._full:  # every epoch with activity leaves a row, and every change of a timeout
            core.report_silences(1e-9, self._silence_ended, self._changed)
        else:
            core.report_silences(journal.gap_threshold_ns / 1e9, self._silence_ended, self._changed)

    def _silence_ended(self, lease: Lease, since: float, until: float) -> None:
        if (log := self._settled(lease)) is not None:
            log.gap(log.last_ns, self._ns(until))

    def _changed(self, lease: Lease) -> None:
        """Note another timeout of *lease*: with its instant, if the connection is
        silent.
        """
        log: ConnectionLog | None = getattr(lease, "log", None)
        if log is None or log.ended:
            return
        watched: Any = lease
        if lease.suspended:
            watched.worked_from = lease.active_from
        if lease.active_until is not None:
            self._up_to_date(lease, log)
            log.retime(self._ns(self._core._latest), timeout_ms(lease))
        elif self._full:
            self._settled(lease)
        else:
            if watched.worked_from is not None and not lease.suspended:
                self._worked(watched, log)
            log.timeout_ms = timeout_ms(lease)

    def _worked(self, lease: Any, log: ConnectionLog) -> None:
        """The server has done its work on *lease*: if that took long, it was a long
        silence under no timeout, and no touch reports that.
        """
        since, lease.worked_from = lease.worked_from, None
        lease.active_epochs += 1
        if lease.active_from - since > self._long:
            last = max(log.last_ns, self._ns(since))
            if (active := self._ns(lease.active_from)) - last > self.journal.gap_threshold_ns:
                log.gap(last, active)

    def _look(self, known: OpenStates) -> None:
        """Tell of every lease that has a log. In the writer's thread: nothing is
        changed.
        """
        for lease in list(self._core._leases.values()):
            log: ConnectionLog | None = getattr(lease, "log", None)
            if log is not None and not log.ended:
                with suppress(AttributeError, OverflowError):  # it ends, or is spared, just now
                    last = max(log.last_ns, self._ns(lease.active_from))
                    known[log] = last, timeout_ms(lease), self._count(lease, log)

    def _ns(self, instant: float) -> int:
        return nanoseconds(self._real(instant))

    def _settled(self, lease: Lease) -> ConnectionLog | None:
        """The log of *lease*, brought up to the latest activity, which only the lease
        knows. None if it has no log, or has ended.
        """
        log: ConnectionLog | None = getattr(lease, "log", None)
        if log is None or log.ended:
            return None
        self._up_to_date(lease, log)
        # One that has ended no longer knows its timeout. The log does: as long as
        # nobody ends the connection, that is what it outlasts.
        if lease.alive:
            log.timeout_ms = timeout_ms(lease)
        return log

    def _up_to_date(self, lease: Lease, log: ConnectionLog) -> None:
        active = self._ns(lease.active_from)
        if (
            self._full and active > log.last_ns
        ):  # it was resumed, or spared: no touch has reported that
            log.gap(log.last_ns, active)
        log.last_ns = max(log.last_ns, active)
        log.n = self._count(lease, log)

    def _count(self, lease: Any, log: ConnectionLog) -> int:
        """How often the connection was active, so far: in `gaps` mode once an epoch, a
        row or none; in `full` mode each has one.
        """
        return log.n if self._full else max(log.n, lease.active_epochs)

    def opened(
        self, lease: Lease, now: float, listener: str | None = None, peer: int | None = None
    ) -> None:
        """A connection was accepted at *now*, exactly (two sides are joined by it), and
        *lease* watches it.
        """
        logged: Any = lease
        logged.log = self.journal.open(nanoseconds(now), timeout_ms(lease), listener, peer)

    def moved(self, old: Lease, new: Lease) -> None:
        """From now on *new* watches the connection of *old*, ended or not: its life
        goes on. If it was `asked`, it is spared by that.
        """
        self._kept.pop(old, None)
        asked = self._asked.pop(old, None)
        if (log := self._settled(old)) is not None:
            began = self._ns(new.active_from)
            if asked is not None:  # maybe in this very epoch
                began = max(began, asked)
                log.averted(began)
                log.gap(log.last_ns, began)
            elif not self._full and began - log.last_ns > self.journal.gap_threshold_ns:
                log.gap(log.last_ns, began)  # what *new* was registered for ended a silence
            leases: tuple[Any, Any] = old, new
            leases[1].active_epochs += leases[0].active_epochs + 1
            leases[0].log, leases[1].log = None, log
            self._settled(new)

    def averted(self, lease: Lease, now: float, *, active: bool = True) -> None:
        """The final check spared *lease*, which was due. *active*: that counts as
        activity; otherwise the lease stays due.
        """
        if (log := self._settled(lease)) is not None:
            log.averted(nanoseconds(now))
            if active:
                watched: Any = lease
                watched.active_epochs += 1
            else:
                self._kept[lease] = nanoseconds(now)

    def asked(self, lease: Lease, now: float) -> None:
        """*lease*, which was due, is ended or lives on by what its owner answers: from
        *now*, an instant of the core's clock, no timeout is in force.
        """
        if (log := self._settled(lease)) is not None:
            self._asked[lease] = self._ns(now)
            log.retime(self._asked[lease], 0)

    def answered(self, lease: Lease, expiry: Expiry) -> None:
        """The owner of *lease* lets it be ended: at the instant of *expiry* its timeout
        is in force again. `reaped` is next.
        """
        self._asked.pop(lease, None)
        if (log := self._settled(lease)) is not None:
            log.retime(self._ns(expiry.now), _written(expiry.timeout))

    def reaped(self, lease: Lease, expiry: Expiry) -> None:
        """The connection of *lease* is reaped. Call it before the lease is released.

        An *expiry* of another lease of that connection is a deadline: activity did not
        move it.
        """
        if (log := self._settled(lease)) is not None:
            if expiry.lease is lease:
                log.timeout_ms = _written(expiry.timeout)
            now, due = self._ns(expiry.now), self._ns(expiry.due)
            deadline = expiry.lease is not lease
            kept = self._kept.pop(lease, due)
            if not deadline and kept > due:
                # Its timeout was over when it was spared, and that was the first
                # instant at which it might be closed. By its timeout a reader would
                # call it early, or late.
                due, deadline = min(kept, now), True
            log.reap(now, due, expiry.reason, deadline=deadline)

    def ended(self, lease: Lease, now: float, reason: str | None = None, *, by_peer: bool) -> None:
        """The connection of *lease* ended without the reaper. Call it before the lease
        is released; after a reap it does nothing.
        """
        self._kept.pop(lease, None)
        self._asked.pop(lease, None)
        if (log := self._settled(lease)) is not None:
            (log.close_peer if by_peer else log.close_app)(nanoseconds(now), reason)

    def stalled(self, now: float, lag: float) -> None:
        """The loop woke *lag* seconds late. Written where that is a notable part of a
        tick.
        """
        self.journal.awake(nanoseconds(now))
        if lag > self._notable:
            self.journal.stall(nanoseconds(now), nanoseconds(lag))


def peer_of(socket: Any) -> int | None:
    """`peer_key` of an accepted socket (trio's or the standard library's). None if it
    is no TCP socket, or closed already.
    """
    try:
        return None if socket is None else peer_key(socket.getpeername(), socket.getsockname())
    except (OSError, InvalidArgument, IndexError):
        return None


def _written(timeout: float) -> int:
    """*timeout* of a lease that was due, in ms. One too short to be written is none of
    0, which would be none at all.
    """
    return max(round(timeout * 1e3), 1)


def timeout_ms(lease: Lease) -> int:
    """The timeout in force on *lease*, ms. 0: there is none, or the lease is
    suspended.
    """
    timeout = lease.timeout
    return 0 if timeout is None or lease.suspended else round(timeout * 1e3)
