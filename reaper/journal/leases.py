"""Leases that log their own long silences: `gaps` mode at the price of one comparison a touch.

A touch knows no time, only the open epoch. So the times that come from here are epochs': activity counts as noted at
the instant its epoch was opened, less than one epoch before it really was. Silences are therefore exact to one epoch,
their sum is exact, and those up to the threshold are not counted one by one. A server that wants
every activity to the nanosecond calls `ConnectionLog.touch` with a clock reading instead.
"""

from __future__ import annotations

from types import FunctionType
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
    # The core's own namespace, because it keeps `open_epoch` there for the leases' touch; the prefix keeps ours apart.
    core._namespace["_log_threshold"] = journal.gap_threshold_ns / 1e9  # type: ignore[assignment]
    core._namespace["_log_silence"] = _log_silence  # type: ignore[assignment]
    touch = FunctionType(_touch.__code__.replace(co_name="touch"), core._namespace, "touch")
    touch.__doc__ = Lease.touch.__doc__
    core._lease_type = type("Lease", (core._lease_type,), {"__slots__": ("log",), "touch": touch})


open_epoch: Epoch  # these two are never set here: they are globals of each core's own copy of _touch
_log_threshold: float


def _touch(self: Any) -> None:
    if open_epoch.opened - self._epoch.opened > _log_threshold:  # noqa: F821
        _log_silence(self, open_epoch)  # noqa: F821
    self._epoch = open_epoch  # noqa: F821


def _log_silence(lease: Any, now: Epoch) -> None:
    log: ConnectionLog | None = getattr(lease, "log", None)
    if log is not None:
        log.gap(nanoseconds(lease._epoch.opened), nanoseconds(now.opened))


def attach(lease: Lease, log: ConnectionLog) -> None:
    """Let *lease*, registered after `log_gaps`, write to *log*."""
    logged: Any = lease
    logged.log = log
    log.last_ns = nanoseconds(lease._epoch.opened)


def settle(lease: Lease, log: ConnectionLog) -> None:
    """Tell *log* the latest activity, which only *lease* knows. Before every end and every `averted`."""
    log.last_ns = max(log.last_ns, nanoseconds(lease._epoch.opened))
