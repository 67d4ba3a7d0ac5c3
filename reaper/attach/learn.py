"""`attach --learn`: writes how long the clients of a running server stay silent, as a
journal.

`reaper pipeline advise` recommends a timeout from that journal.

One rule: *a silence is written once it has ended*, with the instants that the kernel's
stamps give. All connections are sampled twice per `gap`, so no silence beyond it is
missed: one that ended between two samples ended with the byte that the stamp shows, or,
if several segments came since, half-way between the earliest and the latest instant
that it can have been. Connections that begin and end between two samples are not seen.

The kernel is asked for all connections at once; the pace is lowered so that this takes
`SHARE` of a core at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ..config.running import stoppable
from ..journal.log import ConnectionLog, Journal
from ..journal.schema import peer_key
from .kernel import Found, Refusal, grain
from .netlink import addresses_of
from .targets import Target
from .tcpinfo import Snapshot

SHARE = 0.1
"""The most that the samples may take of a core, 0..1."""


def to_ns(instant: float) -> int:
    """Seconds as whole nanoseconds."""
    return int(instant * 1e9)


class Learner:
    """Samples the connections of *target*, and writes their silences to *journal*.

    Args:
        target: The server whose connections are sampled.
        journal: Made in `gaps` mode, on the monotonic clock.
        gap: The journal's `gap_threshold`, seconds, > 0.
        grain: Seconds by which the kernel's stamps may be off.
        clock: Seconds, monotonic.
        cpu: Seconds of CPU time that the calling thread has had. A sample that waits
            for its turn on a busy machine takes nothing of a core, and must not thin
            out those that follow.
    Attributes:
        samples: How often all connections were looked at so far.
        spent: How many seconds of CPU time that took altogether.
    Cost: about 500 bytes per connection.
    """

    def __init__(
        self,
        target: Target,
        journal: Journal,
        gap: float,
        grain: float,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self.samples: int = 0
        self.spent: float = 0.0
        self._target = target
        self._journal = journal
        self._pace = gap / 2
        self._grain = grain
        self._clock = clock
        self._cpu = cpu
        # By ident: the log, and how many segments the client had sent by the last
        # sample.
        self._seen: dict[bytes, tuple[ConnectionLog, int]] = {}
        self._sampled_at = clock()

    def sample(self) -> float:
        """Look at all connections once; returns the seconds until the next sample is
        due, negative if it is overdue.
        """
        began, worked = self._clock(), self._cpu()
        self.samples += 1
        before, self._seen = self._seen, {}
        for found in self._target.dump(True):
            if found.snapshot is not None:
                self._note(found, found.snapshot, before.pop(found.ident, None))
        middle = to_ns((self._sampled_at + began) / 2)
        for log, _ in before.values():
            log.close_peer(max(middle, log.last_ns), "gone")
        self._sampled_at = began
        took = self._cpu() - worked
        self.spent += took
        return max(self._pace, took / SHARE) - (self._clock() - began)

    def _note(
        self, found: Found, snapshot: Snapshot, seen: tuple[ConnectionLog, int] | None
    ) -> None:
        heard = to_ns(snapshot.since(snapshot.received_ago, self._grain))
        if seen is None:
            # One that is too busy to tell who opened it is taken up by a later sample.
            if snapshot.outgoing is not False or not self._target.wanted(found):
                return
            local, remote = addresses_of(found.ident)
            log = self._journal.open(heard, 0, str(local), peer_key(remote, local))
            log.timeout_ms = None  # No timeout is known; 0 would say that the server was at work.
        else:
            log, segments = seen
            if came := snapshot.segments_in - segments:
                heard = max(heard, log.last_ns)
                if came > 1:
                    log.touch((max(to_ns(self._sampled_at), log.last_ns) + heard) // 2)
                    log.n += came - 2  # short silences are counted, as everywhere
                log.touch(heard)
        self._seen[found.ident] = log, snapshot.segments_in


def learn(
    target: Target, directory: Path, gap: float, tick: float, say: Callable[[str], object]
) -> None:
    """Write the silences of *target* to *directory* until SIGINT, SIGTERM or its end.

    Args:
        target: The server whose clients are watched.
        directory: Where the journal goes.
        gap: The shortest silence that is written, seconds. It is lengthened where
            sampling twice per *gap* would take more than `SHARE` of a core.
        tick: The tick that the journal states, seconds.
        say: Prints a line.
    Raises:
        Refusal: the folder cannot be written, or pyarrow is missing.
    """
    began, worked = time.monotonic(), time.thread_time()
    count = sum(1 for _ in target.dump(True))
    least = 2 * (time.thread_time() - worked) / SHARE
    if least > gap:
        say(
            f"--gap {gap:g}s is too short for {count:,} connections: "
            f"{least:.1f} s take {SHARE:.0%} of a core"
        )
        gap = least
    with journal_in("--learn", directory, tick, gap) as journal, stoppable() as stop:
        learner = Learner(target, journal, gap, grain())
        say(f"learning the silences beyond {gap:g} s of {count:,} connections; stop with Ctrl-C")
        try:
            while not stop.wait(max(learner.sample(), 0.0)):
                pass
        except Refusal as gone:
            say(str(gone))
        share = 100 * learner.spent / (time.monotonic() - began)
        say(
            f"{learner.samples} samples, {share:.1f} % of a core; "
            f"next: reaper pipeline advise --events {directory}"
        )


def journal_in(flag: str, directory: Path, tick: float, gap: float) -> Journal:
    """A journal in *directory*, which *flag* named.

    Raises:
        Refusal: the directory cannot be written, or pyarrow is missing.
    """
    try:
        return Journal(directory, tick=tick, gap_threshold=gap)
    except OSError as error:
        raise Refusal(
            f"{flag} {directory}: {error.strerror}: give a directory that can be written"
        ) from None
    except ImportError as error:
        raise Refusal(f"{flag} {directory}: {error}, or leave it out") from None
