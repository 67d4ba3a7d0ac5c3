"""Peers that have vanished: whose kernel answers nothing any more, and that sent neither FIN nor
reset.

The rule of this module: *whoever was not asked is not gone*. A silent client may be alive and well:
it waits for a response, it reads slowly, its process is stopped. Its kernel answers all the same.
So a connection is closed as `vanished` only when its peer was asked more than once and nothing has
come back for `timeouts.vanished` seconds.

    who asks         the kernel. Where data is on its way, by sending it again; where the peer's window is full, by
                     probing it; where nothing is on its way, by a keep-alive at each look at a
                     silent connection: its own timers send those of thousands in one instant, more
                     than a queue holds, each time the same
    what is heard    any segment at all: data, or an acknowledgement; tcp_info knows how long ago
    who judges       `Vanished`: it looks at every connection the driver knows five times within `vanished`, and more
                     closely at those that look bad

TCP_USER_TIMEOUT would be simpler and is wrong: the kernel counts a window that stays full against
it although the peer answers every probe, and so it ends a client that reads slowly, or is stopped.

Never earlier than `vanished` after the last segment; a quarter of it and a tick later at the most.
What was asked last must have been asked a sixteenth ago, or its answer may be on its way. Before
Linux 6.15 the kernel asks again at doubling intervals, up to two minutes, and nothing can make it
hurry: there a link that was down for more than half of `vanished` while data was on its way may
come back too late, and a peer that vanishes with its window full for long is noticed by the second
probe. From 6.15 on it asks every quarter here too (TCP_RTO_MAX_MS).

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

CLOSE_LOOKS = 16
"""Looks at one that looks bad."""


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
            if owner not in self._bad and self._looks_bad(seen):
                self._bad.add(owner)
                self._driver.after(self._pause, partial(self._look_again, owner))

    def _look_again(self, owner: Reapable) -> None:
        seen = self._seen(owner)
        if seen is None or not self._looks_bad(seen):
            self._bad.discard(owner)
        elif seen.gone(self.after):
            self._bad.discard(owner)
            _end(owner, owner.link)
        else:
            _ask(owner.link, self.after)
            self._driver.after(self._pause, partial(self._look_again, owner))

    def _looks_bad(self, seen: sockets.TcpInfo) -> bool:
        return seen.asked and seen.silence >= self.after * 0.75

    def _seen(self, owner: Reapable) -> sockets.TcpInfo | None:
        self.looks += 1
        link = owner.link
        return sockets.tcp_info_of(link) if link >= 0 else None


def _ask(link: int, after: float) -> None:
    """Have the kernel ask the peer of *link*, which has been silent for an eighth of *after*
    seconds, and go on with it while the loop stalls.
    """
    eighth, half = max(int(after / 8), 1), max(int(after / 2), 1)
    with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
        idle = connected.getsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE)
        if idle > eighth:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPINTVL, half)
            connected.setsockopt(
                socket.IPPROTO_TCP, sockets.TCP_KEEPCNT, 127
            )  # so that it never ends it before us
            connected.setsockopt(
                socket.IPPROTO_TCP, sockets.TCP_RTO_MAX_MS, min(max(int(after / 4), 1), 120) * 1000
            )
        # Whoever has been silent for as long is asked as this is set, the same value or not.
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE, min(idle, eighth))


def _end(owner: Reapable, link: int) -> None:
    """Nothing that is queued will be taken: let the close be a reset, also where the adapter would
    flush first.
    """
    with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
        sockets.reset_on_close(connected)
    owner.reap(VANISHED)
    if owner.link == link:
        with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
            connected.shutdown(socket.SHUT_RDWR)
