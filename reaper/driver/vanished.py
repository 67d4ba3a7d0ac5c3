"""Peers that have vanished: their kernel answers nothing any more, and they sent neither FIN nor
reset.

The rule of this module: *whoever was not asked is not gone*. A silent client may be alive and well:
it waits for a response, it reads slowly, its process is stopped. Its kernel answers all the same.
So a connection is closed as `vanished` only when its peer was asked more than once and nothing has
come back for `timeouts.vanished` seconds.

    who asks         the kernel: where data is on its way, by sending it again; where the peer's
                     window is full, by probing it; where nothing is on its way, by a keep-alive at
                     each look at a silent connection. The kernel's own timers would send those of
                     thousands in one instant, more than a queue holds, each time the same
    what is heard    any segment at all: data, or an acknowledgement; tcp_info knows how long ago
    who judges       `Vanished`: it looks at every connection that the driver knows five times
                     within `vanished`. From half of it on it looks, and asks, at every
                     thirty-second part

TCP_USER_TIMEOUT would be simpler and is wrong: the kernel counts a window that stays full against
it although the peer answers every probe, and so it ends a client that reads slowly, or is stopped.

Never earlier than `vanished` after the last segment; a quarter of it and a tick later at the most,
and on a slow link as much later as an answer takes. What was asked last must have been asked a
sixteenth ago, or its answer may be on its way. Before Linux 6.15 the kernel asks again at doubling
intervals, up to two minutes, and nothing can make it hurry: there a link that was down for more
than half of `vanished` while data was on its way may come back too late, and a peer that vanishes
with its window full for long is noticed by the second probe. From 6.15 on it asks every quarter
here too (TCP_RTO_MAX_MS).

Five places where a live client was lost, or a dead one kept:

- *A round trip longer than the kernel is told to wait.* It then sends everything again before an
  answer can come. So `longest_wait` is never below four times what tcp_info says of the link.
- *A system whose tcp_keepalive_time is short already.* That says when keep-alives go out, not that
  they do: SO_KEEPALIVE is set unless it is on.
- *A kernel that does not know an option* refuses it. Each is set by itself: the others hold.
- *Multipath TCP.* tcp_info is that of the first path. Before a peer looks bad, MPTCP_INFO is asked
  when anything was heard by any path.

- *A link that loses packets.* With 30 % lost in both directions half of the questions go
  unanswered. With `vanished` at 6 s, 43 of 180 silent clients were closed within a minute when they
  were asked every sixteenth from three quarters on; 4 are, asked every thirty-second from half on.

A stall charges nobody: the kernel goes on asking meanwhile, and whoever looks bad is looked at
again, a sixteenth of `vanished` of the stall clock later, before it is closed. Then what is queued
is thrown away.

Every `Reapable` that the driver knows is judged, in flight or not, by its `link`. Not one on a UNIX
socket: a process that ends closes it. Cost: no memory, but for those that look bad; about 4 us per
look, 15 with a keep-alive.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ..core.lease import Lease
from ..policy.reasons import VANISHED
from . import sockets

if TYPE_CHECKING:
    from .driver import Driver
    from .watched import Reapable

LOOKS_PER_STEP = 256
"""Connections looked at before the loop is let run again: half a millisecond."""

ROUNDS = 5
"""Looks at each connection within `vanished`."""

CLOSE_LOOKS = 32
"""Looks within `vanished` at one that looks bad, each of which asks."""

LOOKS_TO_END = 3
"""Close looks that a peer must have left unanswered: after a stall of ours it needs some time."""

ROUND_TRIPS = 4
"""What the kernel waits before it sends data again, at the least, in times that an answer takes."""

LONGEST_WAIT_MS = 120_000
"""The most that the kernel takes for TCP_RTO_MAX_MS, and its own default."""


class Vanished:
    """Looks for peers that have vanished, among all connections of *driver*.

    Attributes:
        after: Seconds without a sign of the peer's kernel, >= 3; 0: never, and nothing is looked
            at.
        looks: At connections, so far.
    """

    def __init__(self, driver: Driver, after: float) -> None:
        self._driver = driver
        self.after: float = after
        self.looks: int = 0
        self._pause = after / CLOSE_LOOKS
        self._awake = False
        # whether there was a TCP connection in this round, or one of any kind has come since
        self._wanted = False
        self._bad: set[Reapable] = set()  # each of them is looked at again, by a call of its own

    def begin(self) -> None:
        """There is a connection to look at."""
        self._wanted = True
        if self.after and not self._awake:
            self._awake = True
            self._driver.after(self._pause, self._round)

    def _round(self) -> None:
        """Look at each connection that there is now, some at a time."""
        self._wanted = False
        leases = list(self._driver.core._leases.values())
        share = min(1.0, LOOKS_PER_STEP / max(len(leases), 1))
        self._go_on(iter(leases), self.after / ROUNDS * share)

    def _go_on(self, leases: Iterator[Lease], pause: float) -> None:
        few = list(islice(leases, LOOKS_PER_STEP))
        if few:  # first of all: whatever an adapter raises below
            self._driver.after(pause, partial(self._go_on, leases, pause))
        elif self._wanted:
            self._round()
        else:
            self._awake = False  # until another begins
        for lease in few:
            owner = self._driver.owner_of(lease.uid)
            seen = None if owner is None else self._seen(owner)
            if owner is None or seen is None:
                continue
            self._wanted = True
            if seen.silence >= self.after / 8:
                _ask(owner.link, self.after)
            self._hurry(owner.link, seen)
            if owner not in self._bad and self._looks_bad(seen):
                self._bad.add(owner)
                self._driver.after(self._pause, partial(self._look_again, owner, 1))

    def _look_again(self, owner: Reapable, looks: int) -> None:
        """Look for the time number *looks*, and ask, until the peer is heard or is gone."""
        seen = self._seen(owner)
        if seen is None or not self._looks_bad(seen):
            self._bad.discard(owner)
        elif looks >= LOOKS_TO_END and seen.gone(self.after):
            self._bad.discard(owner)
            self._end(owner, owner.link, seen.silence)
        else:
            _ask(owner.link, self.after)
            self._hurry(owner.link, seen)
            self._driver.after(self._pause, partial(self._look_again, owner, looks + 1))

    def _end(self, owner: Reapable, link: int, silence: float) -> None:
        """Close the connection of a peer that was last heard *silence* seconds ago.

        The close is a reset, also where the adapter would send what is queued first: nobody will
        take it.
        """
        with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
            sockets.reset_on_close(connected)
        lease, seen = owner.lease, self._driver.books.seen
        seen[lease] = self.after, silence
        try:
            owner.reap(VANISHED)
        finally:
            del seen[lease]
        if owner.link == link:
            with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
                connected.shutdown(socket.SHUT_RDWR)

    def _looks_bad(self, seen: sockets.TcpInfo) -> bool:
        return seen.silence >= self.after / 2

    def _hurry(self, link: int, seen: sockets.TcpInfo) -> None:
        """Have the kernel ask often enough where data is on its way, and not too often."""
        wait = longest_wait(self.after, seen)
        if wait is not None and (seen.silence >= self.after / 8 or wait > self.after / 4):
            _ask_again_after(link, wait)

    def _seen(self, owner: Reapable) -> sockets.TcpInfo | None:
        self.looks += 1
        link = owner.link
        seen = sockets.tcp_info_of(link) if link >= 0 else None
        if seen is not None and seen.silence >= self.after / 2:
            # The kernel speaks of the first path of a Multipath TCP connection, which may be gone.
            seen = seen._replace(acked_ago=min(seen.acked_ago, sockets.silence_of_paths(link)))
        return seen


def longest_wait(after: float, seen: sockets.TcpInfo) -> float | None:
    """Seconds after which the kernel is to ask again at the latest, where data is on its way.

    A quarter of *after*, but never less than `ROUND_TRIPS` times what an answer may take: a kernel
    that sends everything again before its acknowledgement can come fills a slow link with copies,
    and gives the connection up in the end. None: nobody has measured how long an answer takes.
    """
    if not seen.round_trip:
        return None
    return max(after / 4, ROUND_TRIPS * (seen.round_trip + 4 * seen.variation), 1.0)


def _ask(link: int, after: float) -> None:
    """Have the kernel ask the peer of *link*, which has been silent for an eighth of *after*
    seconds, and go on with it while the loop stalls.
    """
    eighth, half = max(int(after / 8), 1), max(int(after / 2), 1)
    with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
        idle = connected.getsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE)
        # A short idle time alone says nothing: it may be the system's, and keep-alives be off.
        if idle > eighth or not connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPINTVL, half)
            # So many that the kernel never ends the connection before we do.
            connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPCNT, 127)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Whoever has been silent for as long is asked as this is set, the same value or not.
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE, min(idle, eighth))


def _ask_again_after(link: int, seconds: float) -> None:
    """Have the kernel ask again after *seconds* at the latest, where data is on its way."""
    with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
        # Only Linux 6.15 and later can; others go on at their own pace.
        most = min(round(seconds * 1000), LONGEST_WAIT_MS)
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_RTO_MAX_MS, most)
