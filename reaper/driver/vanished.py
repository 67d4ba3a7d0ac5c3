"""Peers that have vanished: their kernel answers nothing any more, and they sent neither FIN nor
reset.

The rule of this module: *whoever was not asked is not gone*. A silent client may be alive and well:
it waits for a response, it reads slowly, its process is stopped. Its kernel answers all the same.
So a connection is closed as `vanished` only when its peer was asked more than once and nothing has
come back for `timeouts.vanished` seconds.

    who asks         the kernel: where data is on its way, by sending it again; where the peer's
                     window is full, by probing it; where nothing is on its way, by a keep-alive
                     when we say so. The kernel's own timers would send those of thousands in one
                     instant, more than a queue holds, each time the same
    what is heard    any segment at all: data, or an acknowledgement; tcp_info knows how long ago
    who judges       `Vanished`

WHO IS LOOKED AT

Nothing is done for a connection that will be closed anyway: one whose lease has a limit that is not
longer than `vanished`. Nor for one that speaks. Every eighth of `vanished` (a *round*) the slots of
the core are gone through: a slot says which limit its leases have and when they were last touched,
so whole slots are passed over. The leases that have been silent for half of `vanished`, and have no
limit, a longer one, or are suspended (a request is in flight), are noted in a small ring of lists,
one for each round to come. So are connections that the final check pardoned: their limit was over,
and did not close them.

    ring: the round at which tcp_info may say that the peer has been silent for half of `vanished`
      -> look. Heard since: back to the ring, that much later
      -> otherwise ask, and look again a thirty-second of `vanished` later
           -> heard: back to the ring
           -> silent: ask again, every thirty-second part, until it is heard or is gone

A list is worked off evenly over its round, `LOOKS_PER_STEP` at a time. So the peers are not asked
all in one instant, and a live one is asked less than twice within `vanished`. Cost: O(slots) a
round; for each connection that is silent and unlimited 8 bytes in the ring, an entry in a dict, two
looks and a question in every five eighths of `vanished`.

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
  unanswered. With `vanished` at 6 s, 43 to 49 of 180 silent clients were closed within a minute
  when they were asked every sixteenth from three quarters on; 13 to 19 are, asked every
  thirty-second from the first look on, which comes between half and three quarters. 4 were when the
  silent were asked from an eighth on as well, which costs a question for every silent client.

A stall charges nobody: the kernel goes on asking meanwhile, and nobody is closed before it has left
`LOOKS_TO_END` looks of the stall clock unanswered. Then what is queued is thrown away.

Every `Reapable` that the driver knows is judged by its `link`. Not one on a UNIX socket: a process
that ends closes it.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ..core.lease import IdleSlot, Lease
from ..core.slots import Chunk
from ..core.ticks import seconds_to_tick
from ..policy.reasons import VANISHED
from . import sockets

if TYPE_CHECKING:
    from .driver import Driver
    from .watched import Reapable

LOOKS_PER_STEP = 128
"""Connections looked at, and asked, before the loop is let run again: about a millisecond."""

CHUNKS_PER_STEP = 16
"""Chunks of slots gone through before the loop is let run again: 4,096 leases, 0.5 ms."""

ROUNDS = 8
"""Rounds within `vanished`."""

CLOSE_LOOKS = 32
"""Looks within `vanished` at one that looks bad, each of which asks."""

LOOKS_TO_END = 3
"""Close looks that a peer must have left unanswered: after a stall of ours it needs some time."""

ROUND_TRIPS = 4
"""What the kernel waits before it sends data again, at the least, in times that an answer takes."""

LONGEST_WAIT_MS = 120_000
"""The most that the kernel takes for TCP_RTO_MAX_MS, and its own default."""


SO_KEEPALIVE = int(socket.SO_KEEPALIVE)

NO_TCP, UNSEEN, TCP, OURS = range(4)
"""What is below a lease: nothing that can vanish; nobody has looked; TCP; TCP, whose keep-alives we
have set up.
"""


class Vanished:
    """Looks for peers that have vanished, among all connections of *driver*.

    Attributes:
        after: Seconds without a sign of the peer's kernel, >= 3; 0: never, and nothing is looked
            at.
        looks, asks: At connections, and of their peers, so far.
    """

    def __init__(self, driver: Driver, after: float) -> None:
        self._driver = driver
        self.after: float = after
        self.looks: int = 0
        self.asks: int = 0
        self._half = after / 2
        self._round_length = after / ROUNDS
        self._pause = after / CLOSE_LOOKS
        self._awake = False
        self._clear()

    def _clear(self) -> None:
        # The leases in the ring, or being asked, each with what is below it.
        self._known: dict[Lease, int] = {}
        self._ring: deque[list[Lease]] = deque([] for _ in range(ROUNDS))
        self._pardoned: set[Lease] = set()  # since they were last looked at

    def begin(self) -> None:
        """There is a connection to look at."""
        if self.after and not self._awake:
            self._awake = True
            self._driver.after(self._round_length, self._round)

    def pardoned(self, lease: Lease) -> None:
        """The limit of *lease* was over, and its connection is in use after all."""
        if self.after:
            self._pardoned.add(lease)
            if lease not in self._known:
                self._known[lease] = UNSEEN
                self._ring[0].insert(0, lease)

    # ---- the rounds ------------------------------------------------------------------------------

    def _round(self) -> None:
        """Begin to work off the list of this round, and to find leases that have gone silent."""
        core = self._driver.core
        others = sum(
            kind == NO_TCP and lease._chunk is not None for lease, kind in self._known.items()
        )
        if not core._armed and len(core._leases) == others:
            self._awake = False  # nothing but sockets that cannot vanish, until another begins
            self._clear()
            return
        self._driver.after(self._round_length, self._round)
        due = self._ring.popleft()
        self._ring.append([])
        chunks = list(self._chunks())
        steps = max(-(-len(due) // LOOKS_PER_STEP), -(-len(chunks) // CHUNKS_PER_STEP), 1)
        self._step(iter(due), iter(chunks), self._round_length / steps)

    def _chunks(self) -> Iterator[Chunk]:
        """The chunks of leases that may have been silent for half of `vanished`, and that no limit
        ends before it is over. O(slots).
        """
        core = self._driver.core
        until = self._driver.now() - self._half
        for slot in [*core._slots, *core._never.slots.values()]:
            if slot.epoch is core._never or (
                slot.epoch.closed <= until and not self._is_limited(slot)
            ):
                yield from slot.chunks

    def _is_limited(self, slot: IdleSlot) -> bool:
        """Whether the leases of *slot* end without our doing before their peers have vanished."""
        timeout = slot.key[0]
        return (
            timeout is not None and timeout <= self.after
        ) and slot.epoch is not self._driver.core._never

    def _step(self, due: Iterator[Lease], chunks: Iterator[Chunk], pause: float) -> None:
        """A part of a round: look at some leases, and find some that have gone silent."""
        few, some = list(islice(due, LOOKS_PER_STEP)), list(islice(chunks, CHUNKS_PER_STEP))
        if not few and not some:
            return
        self._driver.after(pause, partial(self._step, due, chunks, pause))
        asked = [lease for lease in few if self._look(lease)]
        if asked:
            self._driver.after(self._pause, partial(self._look_again, asked, 1))
        until, known, next_round = self._driver.now() - self._half, self._known, self._ring[0]
        for chunk in some:
            for lease in chunk.items:
                if lease is not None and lease._epoch.closed <= until and lease not in known:
                    known[lease] = UNSEEN
                    next_round.append(lease)

    def _look(self, lease: Lease) -> bool:
        """Look at *lease*, and ask its peer if that is silent. Returns whether it was asked."""
        chunk = lease._chunk
        if chunk is None:
            self._forget(lease)
            return False
        if lease in self._pardoned:
            self._pardoned.discard(lease)  # it was in use; its limit and its touches say nothing
        elif self._is_limited(chunk.slot) or (
            lease._epoch.closed > self._driver.now() - self._half
        ):
            self._forget(lease)  # until it has been silent for long again
            return False
        owner = self._driver.owner_of(lease.uid)
        seen = None if owner is None else self._seen(owner)
        if owner is None or seen is None:
            self._known[lease] = NO_TCP
            self._ring[ROUNDS - 1].append(lease)
            return False
        if self._known.get(lease) != OURS:
            self._known[lease] = TCP
        self._hurry(owner.link, seen)
        if seen.silence < self._half:
            self._rest(lease, seen)
            return False
        self._ask(lease, owner.link)
        return True

    def _look_again(self, asked: list[Lease], looks: int) -> None:
        """Look, for the time number *looks*, at what was *asked*; ask the silent again."""
        silent: list[Lease] = []
        for lease in asked:
            owner = self._driver.owner_of(lease.uid) if lease._chunk is not None else None
            seen = None if owner is None else self._seen(owner)
            if owner is None or seen is None:
                self._forget(lease)
            elif seen.silence < self._half:
                if self._known.get(lease) == OURS:
                    _calm(owner.link, self.after)
                self._rest(lease, seen)
            elif looks >= LOOKS_TO_END and self._is_gone(owner, seen):
                # By a call of its own: what an adapter raises must harm no other.
                self._forget(lease)
                self._driver.after(0.0, partial(self._end, owner, owner.link, seen.silence))
            else:
                self._ask(lease, owner.link)
                self._hurry(owner.link, seen)
                silent.append(lease)
        if silent:
            self._driver.after(self._pause, partial(self._look_again, silent, looks + 1))

    def _rest(self, lease: Lease, seen: sockets.TcpInfo) -> None:
        """Look at *lease* again when its peer may have been silent for half of `vanished`.

        Half a round later than that, because lists are worked off over a round: or the look would
        come too early every other time.
        """
        left = max(self._half - seen.silence, 0.0) + self._round_length / 2
        rounds = seconds_to_tick(left, 0.0, self._round_length)
        self._ring[min(rounds, ROUNDS - 1)].append(lease)

    def _forget(self, lease: Lease) -> None:
        self._known.pop(lease, None)
        self._pardoned.discard(lease)

    # ---- one connection --------------------------------------------------------------------------

    def _is_gone(self, owner: Reapable, seen: sockets.TcpInfo) -> bool:
        # The kernel speaks of the first path of a Multipath TCP connection, which may be gone.
        return seen.gone(self.after) and sockets.silence_of_paths(owner.link) >= self.after

    def _hurry(self, link: int, seen: sockets.TcpInfo) -> None:
        """Have the kernel ask often enough where data is on its way, and not too often."""
        if not seen.on_its_way and not seen.unsent:
            return
        wait = longest_wait(self.after, seen)
        if wait is not None and (seen.silence >= self.after / 8 or wait > self.after / 4):
            _ask_again_after(link, wait)

    def _seen(self, owner: Reapable) -> sockets.TcpInfo | None:
        self.looks += 1
        link = owner.link
        return sockets.tcp_info_of(link) if link >= 0 else None

    def _ask(self, lease: Lease, link: int) -> None:
        self.asks += 1
        ours = _ask(link, self.after, ours=self._known.get(lease) == OURS)
        self._known[lease] = OURS if ours else TCP

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


def longest_wait(after: float, seen: sockets.TcpInfo) -> float | None:
    """Seconds after which the kernel is to ask again at the latest, where data is on its way.

    A quarter of *after*, but never less than `ROUND_TRIPS` times what an answer may take: a kernel
    that sends everything again before its acknowledgement can come fills a slow link with copies,
    and gives the connection up in the end. None: nobody has measured how long an answer takes.
    """
    if not seen.round_trip:
        return None
    return max(after / 4, ROUND_TRIPS * (seen.round_trip + 4 * seen.variation), 1.0)


def _ask(link: int, after: float, *, ours: bool) -> bool:
    """Have the kernel ask the peer of *link*, which has been silent for half of *after* seconds,
    and go on with it while the loop stalls.

    Args:
        ours: Whether the keep-alives of this socket are ours since it was asked before.
    Returns:
        Whether they are now: not where the program has switched them on itself, for a shorter time.
    """
    eighth = max(int(after / 8), 1)
    try:
        connected = sockets.lent(link)
    except OSError:
        return False
    try:
        idle = eighth
        if not ours:
            idle = connected.getsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE)
            # A short idle time alone says nothing: it may be the system's, and keep-alives be off.
            ours = idle > eighth or not connected.getsockopt(socket.SOL_SOCKET, SO_KEEPALIVE)
            if ours:
                interval = max(int(after / 2), 1)
                connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPINTVL, interval)
                # So many that the kernel never ends the connection before we do.
                connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPCNT, 127)
                connected.setsockopt(socket.SOL_SOCKET, SO_KEEPALIVE, 1)
        # Whoever has been silent for as long is asked as this is set, the same value or not.
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE, min(idle, eighth))
    except OSError:
        return False
    finally:
        connected.detach()
    return ours


def _calm(link: int, after: float) -> None:
    """The peer of *link* has answered: keep the kernel from asking it by timers of its own."""
    with contextlib.suppress(OSError):
        connected = sockets.lent(link)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE, max(int(after), 1))
        finally:
            connected.detach()


def _ask_again_after(link: int, seconds: float) -> None:
    """Have the kernel ask again after *seconds* at the latest, where data is on its way."""
    with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
        # Only Linux 6.15 and later can; others go on at their own pace.
        most = min(round(seconds * 1000), LONGEST_WAIT_MS)
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_RTO_MAX_MS, most)
