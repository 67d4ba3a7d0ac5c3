"""The books of the ends of connections.

The rule of this module: *an end is entered once, here*: in the journal, in the
counters, in the log.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.durations import format_duration
from ..core.lease import Epoch, Expiry, Lease
from ..core.reaper import IdleReaper
from ..journal import Journal
from ..journal.leases import LeaseLog, peer_of
from ..metrics import Histogram
from .sockets import peer_name
from .stall_clock import StallClock
from .watched import Reapable

log: logging.Logger = logging.getLogger("reaper")


class Books:
    """What is written down about the connections of one reaper, by the instants of
    *clock*.

    Attributes:
        journal: Where the life of every connection is written, as *listener*'s; None:
            nowhere.
        reasons, lateness, lateness_lower, lateness_upper, late, abandoned: As in
            `LoopStatistics`.
        log: Where a line per close goes, at INFO.
        names: The peers' addresses of leases that are being closed, for that line.
        seen: By lease, the limit that was exceeded and the silence that the kernel saw,
            both in seconds. Only for leases that the kernel's word closes, not their
            own timeout.
    """

    def __init__(
        self, core: IdleReaper, clock: StallClock, journal: Journal | None, listener: str | None
    ) -> None:
        self._core = core
        self._clock = clock
        self.journal: Journal | None = journal
        self._keeper = None if journal is None else LeaseLog(core, journal, clock.real)
        self._listener = listener
        self.reasons: Counter[str] = Counter()
        self.lateness: Histogram = Histogram()
        self.lateness_lower: Histogram = Histogram()
        self.lateness_upper: Histogram = Histogram()
        self.late: int = 0
        self.abandoned: int = 0
        self.log: logging.Logger = log
        self.names: dict[Lease, str] = {}
        self.seen: dict[Lease, tuple[float, float]] = {}
        self._judged = float("-inf")

    def moved(self, old: Lease, new: Lease) -> None:
        """The connection of *old* is watched by *new* from now on.

        Call it before or after *old* is released.
        """
        if self._keeper is not None:
            self._keeper.moved(old, new)

    def opened(self, lease: Lease, socket: Any) -> None:
        """A connection begins, on *socket* (or None), watched by *lease*."""
        if self._keeper is not None:
            self._keeper.opened(lease, self._clock.read(), self._listener, peer_of(socket))

    def left(self, lease: Lease, *, by_peer: bool) -> None:
        """The connection of *lease* ended without the reaper. Call it before it is
        released.
        """
        if self._keeper is not None:
            self._keeper.ended(lease, self._clock.read(), None, by_peer=by_peer)

    def about_to_reap(self, owners: Iterable[Reapable]) -> None:
        """Ask for the addresses of the peers of *owners*, for the log.

        Once a connection is shut, the kernel may have forgotten its peer's address.
        """
        if self.log.isEnabledFor(logging.INFO):
            self.names = {owner.lease: peer_name(owner.link) for owner in owners}

    def reaped(self, lease: Lease, what: object, reason: str, expiry: Expiry | None) -> None:
        """The reaper ends the connection of *lease*. Call it before the lease is
        released.

        Args:
            what: The connection, which has a `link`; or the name that the log is to
                give its peer.
            expiry: The core's record if the lease was due; None for any other end.
        """
        if self._keeper is not None:
            if expiry is None:
                self._keeper.ended(lease, self._clock.read(), reason, by_peer=False)
            else:
                self._keeper.reaped(lease, expiry)
        self.reasons[reason] += 1
        if self.log.isEnabledFor(logging.INFO):
            self._say(lease, what, reason, expiry)

    def _say(self, lease: Lease, what: Any, reason: str, expiry: Expiry | None) -> None:
        """Log one line: which connection was closed, and why."""
        name = what if isinstance(what, str) else self.names.get(lease) or peer_name(what.link)
        peer = name or "a client"
        silence = max(self._clock.now() - lease.active_from, 0.0)
        # What a least rate decides is due at once: it has no limit in seconds.
        limit = expiry and (round(expiry.timeout, 3) or None)
        if lease in self.seen:
            limit, silence = self.seen[lease]
        self.log.info(
            "%s - closed: %s,%s silent for %.1f s",
            peer,
            reason,
            "" if limit is None else f" limit {format_duration(limit)},",
            silence,
            extra={
                "peer": peer,
                "uid": getattr(what, "uid", None),
                "reason": reason,
                "limit": limit,
                "silence": silence,
                "lateness": 0.0 if expiry is None else expiry.lateness,
                "due": expiry and expiry.due,
            },
        )

    def asked(self, lease: Lease, now: float) -> None:
        """*lease* is ended or lives on by what its owner answers, who is asked *now*.

        Call it before the lease is released.
        """
        if self._keeper is not None:
            self._keeper.asked(lease, now)

    def answered(self, lease: Lease, expiry: Expiry) -> None:
        """*lease*, which was asked, is to be ended at the instant of *expiry*."""
        if self._keeper is not None:
            self._keeper.answered(lease, expiry)

    def averted(self, leases: Mapping[Lease, bool]) -> None:
        """*leases* were due and are spared; the values say whether that counts as
        activity.
        """
        if self._keeper is not None:
            now = self._clock.read()
            for lease, active in leases.items():
                self._keeper.averted(lease, now, active=active)

    def expired(self, expired: list[Expiry], now: float) -> None:
        """These connections came due and are closed *now*: count how late that is.

        None of them was due when all was last judged. If the due instant of one lies
        before that, its timeout was shortened afterwards, by a reload or by parking:
        that is no lateness.
        """
        for (epoch, due), alike in itertools.groupby(
            expired, key=_slot_of
        ):  # a slot's leases are all equally late
            count = sum(1 for _ in alike)
            least, unknown = now - max(due, self._judged), epoch.closed - epoch.opened
            self.lateness.add(least + unknown / 2, count)
            self.lateness_lower.add(least, count)
            self.lateness_upper.add(least + unknown, count)
            if least > self._core.tick:
                self.late += count

    def judged(self, now: float) -> None:
        """All that was due at *now* has been judged."""
        self._judged = now

    def woke(self, stalled: float) -> None:
        """The loop came back, late by the clock's `lag`; *stalled*: seconds of a stall,
        or 0.
        """
        lag = self._clock.lag
        if self._keeper is not None:
            self._keeper.stalled(self._clock.read(), lag)
        if stalled:
            log.warning(
                "the event loop stalled: it came back %.3f s late (tick %.3f s); "
                "no connection is charged for that",
                lag,
                self._core.tick,
                extra={"lag": lag, "tick": self._core.tick},
            )


def log_hook_error(error: Exception, expiry: Expiry) -> None:
    """Log *error*, which the hook of a lease raised. It harms no other lease."""
    log.error("the hook of %r raised", expiry.uid, exc_info=error)


def _slot_of(expiry: Expiry) -> tuple[Epoch, float]:
    return expiry.lease._epoch, expiry.due
