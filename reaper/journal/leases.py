"""Leases that log their own long silences: `gaps` mode at the price of one comparison a touch.

A touch knows no time, only the open epoch. So the times that come from here are epochs': activity counts as noted at
the instant its epoch was opened, less than one epoch before it really was. Silences are therefore exact to one epoch,
their sum is exact, and those up to the threshold (or an epoch more) are not counted one by one. A server that wants
every activity to the nanosecond calls `ConnectionLog.touch` with a clock reading instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lease import Epoch, Lease
from .log import ConnectionLog, Journal

if TYPE_CHECKING:
    from ..core import IdleReaper


def nanoseconds(seconds: float) -> int:
    """Seconds of the core's clock as the journal's ns."""
    return round(seconds * 1e9)


def log_gaps(core: IdleReaper, journal: Journal) -> None:
    """Make every lease that *core* registers from now on compare, and log a silence beyond the journal's threshold.

    Give each such lease its log with `attach`, and call `settle` before an end is logged. Leases without a log work as
    ever.
    """
    base, publish_base = core._lease_type, core._publish_open
    threshold = journal.gap_threshold_ns / 1e9
    open_epoch: Epoch = core._open
    edge = open_epoch.opened - threshold

    class LoggedLease(base):  # type: ignore[misc, valid-type]
        __slots__ = ("log",)

        def touch(self: Any) -> None:
            # An epoch closed before `edge` lies further back than the threshold; for an open one `closed` is infinite.
            if self._epoch.closed < edge:
                _note_silence(self, open_epoch)
            self._epoch = open_epoch

    LoggedLease.__name__ = LoggedLease.__qualname__ = "Lease"
    LoggedLease.touch.__code__ = LoggedLease.touch.__code__.replace()  # not shared between cores: see core._bind

    def publish(epoch: Epoch) -> None:
        nonlocal open_epoch, edge
        publish_base(epoch)
        open_epoch = epoch
        edge = epoch.opened - threshold

    core._lease_type, core._publish_open = LoggedLease, publish


def attach(lease: Lease, log: ConnectionLog) -> None:
    """Let *lease*, registered after `log_gaps`, write to *log*."""
    logged: Any = lease
    logged.log = log
    log.last_ns = nanoseconds(lease._epoch.opened)


def settle(lease: Lease, log: ConnectionLog) -> None:
    """Tell *log* the latest activity, which only *lease* knows. Before every end and every `averted`."""
    log.last_ns = max(log.last_ns, nanoseconds(lease._epoch.opened))


def _note_silence(lease: Any, now: Epoch) -> None:
    log: ConnectionLog | None = getattr(lease, "log", None)
    if log is not None:
        log.gap(nanoseconds(lease._epoch.opened), nanoseconds(now.opened))
