"""What a watch tells: the journal's rows and the metrics' families, made from its events.

One rule: *the journal says what was known, and when*. A connection that was open before us is opened at the latest
instant that its stamps allow; its last activity is the kernel's stamp; how often it spoke in between is not invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..config.settings import Attach
from ..journal.log import ConnectionLog, Journal
from ..journal.schema import peer_key
from ..metrics import Family
from .judge import NONE, SLIDING
from .netlink import addresses_of
from .watch import Event, Watch

NOTABLE_SHARE = 0.05
"""Stalls of ours beyond this share of a tick are written."""


def to_ns(instant: float) -> int:
    """Seconds as whole nanoseconds."""
    return int(instant * 1e9)


class JournalBook:
    """Writes a watch's events to a journal. About 350 bytes per open connection.

    Args:
        journal: Made with `clock_ns` on the monotonic clock.
        config: Its limits and tick.
        closes: Whether the watch ends connections. If not, no timeout is in force, and an audit judges none.
        clock: Seconds, monotonic: for what is only known to have happened.
    """

    def __init__(self, journal: Journal, config: Attach, closes: bool, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._logs: dict[bytes, ConnectionLog] = {}
        self._timeout_ms = round(config.idle * (1 + config.jitter) * 1e3) if closes else 0
        self._notable = config.tick * NOTABLE_SHARE
        self._clock = clock

    def note(self, event: Event) -> None:
        """Write *event*."""
        if event.kind == "found":
            local, remote = addresses_of(event.ident)
            opened = to_ns(event.opened)
            log = self._journal.open(opened, self._timeout_ms, str(local), peer_key(remote, local))
            log.last_ns = max(opened, to_ns(event.since))
            self._logs[event.ident] = log
            return
        log = self._logs[event.ident]
        if event.since != NONE:
            log.last_ns = max(log.last_ns, to_ns(event.since))
        if event.kind == "averted":
            log.averted(to_ns(event.at))
        elif event.kind == "closed":
            log.timeout_ms = round(event.limit * 1e3)
            log.reap(to_ns(event.at), to_ns(event.due), event.reason, deadline=event.reason not in SLIDING)
            del self._logs[event.ident]
        elif event.kind == "gone":
            if event.since == NONE:  # the server's turn: no timeout was in force
                log.timeout_ms = 0
            log.close_peer(max(to_ns(self._clock()), log.last_ns), "gone")
            del self._logs[event.ident]

    def began(self, now: float) -> None:
        """The first discovery is complete: what was late by then was not ours to end."""
        earliest = min((log.last_ns for log in self._logs.values()), default=to_ns(now))
        self._journal.stall(to_ns(now), max(to_ns(now) - earliest, 0))

    def stalled(self, now: float, lag: float) -> None:
        """We woke *lag* seconds late."""
        if lag > self._notable:
            self._journal.stall(to_ns(now), to_ns(lag))


def families(watch: Watch, lines_dropped: int = 0) -> Iterator[Family]:
    """For `reaper.metrics`, under stable names."""
    counts = watch.counts
    yield Family("reaper_attach_connections", "gauge", "Connections watched.", len(watch))
    for kind, doc in (
        ("found", "Connections found."),
        ("gone", "Connections that ended without us."),
        ("averted", "Connections spared by the final check."),
        ("unsure", "Silent connections that may be waiting for an answer: nothing tells."),
        ("unreachable", "Due connections that no process we may touch holds."),
    ):
        yield Family(f"reaper_attach_{kind}", "counter", doc, counts.events[kind])
    for kind, doc in (("closed", "Connections closed."), ("due", "Connections that would have been closed.")):
        reasons = dict(counts.reasons) if counts.events[kind] else {}
        yield Family(f"reaper_attach_{kind}", "counter", doc, reasons, "reason")
    yield Family("reaper_attach_looks", "counter", "Looks at single connections.", counts.looks)
    yield Family("reaper_attach_dumps", "counter", "Dumps of the kernel's table.", counts.dumps)
    yield Family("reaper_attach_lines_dropped", "counter", "Lines that no reader took in time.", lines_dropped)
    yield Family("reaper_attach_lateness_max_seconds", "gauge", "The latest a connection was.", counts.max_lateness)
