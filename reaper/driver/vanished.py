"""Peers that have vanished: their kernel answers nothing any more, and they sent
neither FIN nor reset.

The rule of this module: *a client that was not asked is not gone*. A silent client may
be alive and well: it waits for a response, it reads slowly, its process is stopped. Its
kernel answers all the same. So a connection is closed as `vanished` only when its peer
was asked more than once and nothing has come back for `timeouts.vanished` seconds.

    who asks         the kernel: where data is on its way, by sending it again; where
                     the peer's window is full, by probing it; where nothing is on its
                     way, by a keep-alive when we say so. The kernel's own timers would
                     send those of thousands in one instant, more than a queue holds,
                     each time the same
    what is heard    any segment at all: data, or an acknowledgement; tcp_info knows how
                     long ago
    who judges       `Vanished`

WHO IS LOOKED AT

Nothing is done for a connection that will be closed anyway: one whose lease has a limit
that is not longer than `vanished`. Nor for one that speaks. Every eighth of `vanished`
the slots of the core are gone through: a slot says which limit its leases have and when
they were last touched, so whole slots are passed over. The leases that will have been
silent for half of `vanished` before the next time, and have no limit, a longer one, or
are suspended (a request is in flight), are noted in a small ring of lists, one for each
*round* to come, a thirty-second of `vanished` long. So are connections that the final
check pardoned, unless their owner knows that a limit ends them: that of their lease was
over, and did not close them.

    ring: the round at which tcp_info may say that the peer has been silent for half
          of `vanished`
      -> look, unless it was asked before. Heard since: back to a round, so much later
      -> otherwise ask, and look again a round later
           -> heard: back to a round
           -> silent, it begins to look bad: ask again, every round, until it is heard
              or is gone

A client that was asked before, and did not speak since, is asked without a look: the
kernel sends nothing to a peer that it has heard less than half of `vanished` ago.

A healthy peer answers its first question, and no two of those are less than half of
`vanished` apart: it is asked twice at most within it. One that leaves the first
unanswered is asked ten times more, at least, before it is closed; that costs nothing
for the others.

A list is worked off evenly, `LOOKS_PER_STEP` at a time at the most: over its round, or,
where that would be more than one step in `STEP_LENGTH`, over as many as four. So the
peers are not asked all in one instant. A processor that has rested does its first work
slowly, so a wake of the loop costs as much as many questions: the steps of a round are
a power of two, and the instants are counted from the last ones and not from when the
loop woke, so that one wake asks some and looks at those asked a round ago.

Cost: O(chunks) for an eighth of `vanished`, since a chunk whose leases are all known is
passed over until that changes; for each connection that is silent and unlimited 8 bytes
in a round, an entry in a dict, a look and a question in a little more than half of
`vanished`: two system calls by the owner's socket object (`Reapable.own_socket`). Where
there is only a descriptor they are four, because CPython asks each socket that it makes
an object of for its name.

TCP_USER_TIMEOUT would be simpler and is wrong: the kernel counts a window that stays
full against it although the peer answers every probe, and so it ends a client that
reads slowly, or is stopped.

Never earlier than `vanished` after the last segment; a quarter of it and a tick later
at the most, and on a slow link as much later as an answer takes. What was asked last
must have been asked a sixteenth ago, or its answer may be on its way. Before Linux 6.15
the kernel asks again at doubling intervals, up to two minutes, and nothing can make it
hurry: there a link that was down for more than half of `vanished` while data was on its
way may come back too late, and a peer that vanishes with its window full for long is
noticed by the second probe. From 6.15 on it asks every quarter here too
(TCP_RTO_MAX_MS).

Five places where a live client was lost, or a dead one kept:

- *A round trip longer than the kernel is told to wait.* It then sends everything again
  before an answer can come. So `longest_wait` is never below four times what tcp_info
  says of the link.
- *A system whose tcp_keepalive_time is short already.* That says when keep-alives go
  out, not that they do: SO_KEEPALIVE is set unless it is on.
- *A kernel that does not know an option* refuses it. Each is set by itself: the others
  hold.
- *Multipath TCP.* tcp_info is that of the first path. Before a peer looks bad,
  MPTCP_INFO is asked when anything was heard by any path.
- *A link that loses packets.* With 30 % lost in both directions half of the questions
  go unanswered. And Linux answers one keep-alive in half a second, however many come
  (tcp_invalid_ratelimit): not how often a peer is asked counts, but for how long. So
  the first question comes early, at half of `vanished` and at most a sixteenth later,
  and the last one late (`PATIENCE`). With `vanished` at 6 s, 12 to 19 of 180 silent
  clients were closed within a minute when the first came between half and three
  quarters and the last at 17 sixteenths; 0 to 3 are now.

A stall charges nobody: nobody is closed before it has left `LOOKS_TO_END` looks of the
stall clock unanswered, with a question before each. Then what is queued is thrown away.

Every `Reapable` that the driver knows is judged by its `link`. Not one on a UNIX
socket: a process that ends closes it.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..core.lease import IdleSlot, Lease
from ..core.slots import Chunk
from ..core.ticks import seconds_to_tick
from ..policy.reasons import VANISHED
from . import sockets

if TYPE_CHECKING:
    from .driver import Driver
    from .watched import Reapable

LOOKS_PER_STEP = 256
"""Connections looked at, and asked, before the loop is let run again: about two
milliseconds.
"""

CHUNKS_PER_STEP = 16
"""Chunks of slots gone through before the loop is let run again: 4,096 leases, 0.5
ms.
"""

ROUNDS = 32
"""Rounds within `vanished`: looks within it at one that looks bad, each of which
asks.
"""

ROUNDS_PER_SCAN = 4
"""Rounds from one time that the slots are gone through to the next."""

STEP_LENGTH = 0.01
"""Seconds between two steps, where a long list leaves the choice."""

PATIENCE = 1 + 5 / 32
"""Times `vanished` for which a peer is asked before it is closed, where nothing is on
its way. What is left of the quarter that is promised is for looks that come late.
"""

JIFFY = 0.01
"""Seconds by which the kernel's clock may be behind ours."""

LOOKS_TO_END = 3
"""Close looks that a peer must have left unanswered: after a stall of ours it needs
some time.
"""

ROUND_TRIPS = 4
"""What the kernel waits before it sends data again, at the least, in times that an
answer takes.
"""

LONGEST_KEEPALIVE = 32_767
"""The most seconds that the kernel takes for a keep-alive's time."""

LONGEST_WAIT_MS = 120_000
"""The most that the kernel takes for TCP_RTO_MAX_MS, and its own default."""


SO_KEEPALIVE, IPPROTO_TCP = int(socket.SO_KEEPALIVE), int(socket.IPPROTO_TCP)

NO_TCP, UNSEEN, TCP, OURS = range(4)
"""What is below a lease: nothing that can vanish; nobody has looked; TCP; TCP, whose
keep-alives we have set up. Instead of the last, the socket object, if its owner has
one.
"""


class Vanished:
    """Looks for peers that have vanished, among all connections of *driver*.

    Attributes:
        after: Seconds without a sign of the peer's kernel, >= 3; 0: never, and nothing
            is looked at.
        looks, asks: At connections, and of their peers, so far.
    """

    def __init__(self, driver: Driver, after: float) -> None:
        self._driver = driver
        self.after: float = after
        self.looks: int = 0
        self.asks: int = 0
        self._half = after / 2
        self._patience = after * PATIENCE
        self._round_length = after / ROUNDS
        self._idle = idle_time(after)
        self._next_round = 0.0  # when its list begins to be worked off
        self._rounds = 0
        self._awake = False
        self._clear()

    def _clear(self) -> None:
        # The leases of the coming rounds, or being asked, each with what is below it.
        self._known: dict[Lease, Any] = {}
        self._coming: deque[list[Lease]] = deque([] for _ in range(ROUNDS))
        self._pardoned: set[Lease] = set()  # since they were last looked at
        # The chunks whose leases are all known, each with its list and how long that
        # was: leases are only appended to it, or overwritten by None; a lease that is
        # to lie in the chunk gets a new list.
        self._whole: dict[Chunk, tuple[list[Any], int]] = {}

    def begin(self) -> None:
        """There is a connection to look at."""
        if self.after and not self._awake:
            self._awake = True
            self._rounds = 0
            self._await_round(self._driver.now())

    def pardoned(self, owner: Reapable, lease: Lease) -> None:
        """The limit of *lease* was over, but its *owner*'s connection was spared."""
        if self.after and owner.outlasts(self.after):
            self._pardoned.add(lease)
            if lease not in self._known:
                self._known[lease] = UNSEEN
                self._coming[0].insert(0, lease)

    # ---- the rounds ------------------------------------------------------------------

    def _next(self, instant: float, seconds: float, call: Callable[[float], object]) -> float:
        """Call *call* with its instant, *seconds* after *instant*, and return that
        instant. If the loop is late by more than a quarter of *seconds*, count from
        now: an answer needs the time that is left.
        """
        now = self._driver.now()
        due = (instant if now - instant <= seconds / 4 else now) + seconds
        self._driver.at(due, partial(call, due))
        return due

    def _await_round(self, instant: float) -> None:
        self._next_round = self._next(instant, self._round_length, self._round)

    def _round(self, instant: float) -> None:
        """Begin with the list of this round; every few rounds, begin to look for silent
        connections.
        """
        self._rounds += 1
        chunks: list[Chunk] = []
        if self._rounds % ROUNDS_PER_SCAN == 0:
            if not self._can_vanish():
                self._awake = False  # until another connection begins
                self._clear()
                return
            chunks = self._chunks()
        self._await_round(instant)
        due = self._coming.popleft()
        self._coming.append([])
        if not due and not chunks:
            return
        steps = max(-(-len(due) // LOOKS_PER_STEP), -(-len(chunks) // CHUNKS_PER_STEP))
        steps = 1 << (steps - 1).bit_length()
        longest = self._round_length * ROUNDS_PER_SCAN / steps
        pause = min(max(self._round_length / steps, STEP_LENGTH), longest)
        share = -(-len(due) // steps)
        self._step(iter(due), share, iter(chunks), steps, pause, instant)

    def _can_vanish(self) -> bool:
        """Whether there is any connection but those over sockets that cannot vanish."""
        core = self._driver.core
        if core._armed or len(core._leases) > len(self._known):
            return True
        return bool(
            len(core._leases)
            != sum(
                kind == NO_TCP and lease._chunk is not None for lease, kind in self._known.items()
            )
        )

    def _chunks(self) -> list[Chunk]:
        """The chunks of leases to go through: some may soon have been silent for half
        of `vanished`, no limit ends them earlier, and not all are known yet. O(chunks).
        """
        core = self._driver.core
        until = self._soon()
        before, self._whole = self._whole, {}
        found: list[Chunk] = []
        for slot in [*core._agenda.slots, *core._never.row]:
            if slot.epoch is core._never or (
                slot.epoch.closed <= until and not self._is_limited(slot)
            ):
                for chunk in slot.chunks:
                    marked = before.get(chunk)
                    if (
                        marked is not None
                        and marked[0] is chunk.items
                        and marked[1] == len(chunk.items)
                    ):
                        self._whole[chunk] = marked
                    else:
                        found.append(chunk)
        return found

    def _is_limited(self, slot: IdleSlot) -> bool:
        """Whether the leases of *slot* end without our doing before their peers have
        vanished.
        """
        timeout = slot.key[0]
        return (
            timeout is not None and timeout <= self.after
        ) and slot.epoch is not self._driver.core._never

    def _soon(self) -> float:
        """The instant: connections silent since then are checked before the next full
        scan.
        """
        ahead = (ROUNDS_PER_SCAN + 1) * self._round_length
        return self._driver.now() - self._half + ahead

    def _step(
        self,
        due: Iterator[Lease],
        share: int,
        chunks: Iterator[Chunk],
        left: int,
        pause: float,
        instant: float,
    ) -> None:
        """Do one step of a round: look at *share* leases, and find some that have gone
        silent. *left* such steps remain, this one included.
        """
        if left > 1:
            self._next(instant, pause, partial(self._step, due, share, chunks, left - 1, pause))
        known, pardoned, asked = self._known, self._pardoned, list[Lease]()
        idle, keep_idle = self._idle, sockets.TCP_KEEPIDLE
        silent_since = self._driver.now() - self._half
        slot, limited = None, False
        for lease in islice(due, share):
            # What is done for each of thousands, who have answered before and say
            # nothing, is written out: any other is looked at.
            connected, chunk = known.get(lease, UNSEEN), lease._chunk
            if (
                chunk is not None
                and type(connected) is not int
                and lease._epoch.closed <= silent_since
                and lease not in pardoned
            ):
                if chunk.slot is not slot:  # it is that of the one before, mostly
                    slot = chunk.slot
                    limited = self._is_limited(slot)
                if not limited:
                    try:
                        # The kernel asks only if it has heard nothing either.
                        connected.setsockopt(IPPROTO_TCP, keep_idle, idle)
                    except OSError:  # it is closed, or another object has it now
                        known[lease] = UNSEEN
                    else:
                        self.asks += 1
                        asked.append(lease)
                        continue
            if self._look(lease):
                asked.append(lease)
        if asked:
            self._next(instant, self._round_length, partial(self._look_again, asked, 1))
        until = self._soon()
        for chunk in islice(chunks, CHUNKS_PER_STEP):
            whole = True
            for lease in chunk.items:
                if lease is None or lease in known:
                    continue
                if lease._epoch.closed <= until:
                    known[lease] = UNSEEN
                    self._note(lease, lease._epoch.closed + self._half)
                else:
                    whole = False
            if whole:
                self._whole[chunk] = chunk.items, len(chunk.items)

    def _note(self, lease: Lease, due: float) -> None:
        """Put *lease* into the first list that is not begun before *due*, an
        instant.
        """
        rounds = seconds_to_tick(due, self._next_round, self._round_length) + 1
        self._coming[min(max(rounds, 0), ROUNDS - 1)].append(lease)

    def _look(self, lease: Lease) -> bool:
        """Look at *lease*, and ask its peer if that is silent. Returns whether it was
        asked.
        """
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
        elif self._is_ours(lease):
            # Asked before, and silent since: the kernel asks only if it has heard
            # nothing either.
            owner = self._driver.owner_of(lease.uid)
            if owner is not None and (link := owner.link) >= 0:
                self._ask(lease, owner, link)
                return True
        owner = self._driver.owner_of(lease.uid)
        seen = None if owner is None else self._seen(owner.link)
        if owner is None or seen is None:
            self._known[lease] = NO_TCP
            self._coming[ROUNDS - 1].append(lease)
            return False
        if not self._is_ours(lease):
            self._known[lease] = TCP
        self._hurry(owner.link, seen)
        if seen.silence < self._half:
            self._rest(lease, seen.silence)
            return False
        self._ask(lease, owner, owner.link)
        return True

    def _look_again(self, asked: list[Lease], looks: int, instant: float) -> None:
        """Look, for the time number *looks*, at what was *asked*; ask the silent
        again.
        """
        silent: list[Lease] = []
        known, ring = self._known, self._coming
        silence_by = sockets.silence_by
        owner_of, half, now = self._driver.owner_of, self._half, self._driver.now()
        length, rested = self._round_length, now + half + JIFFY - self._next_round
        for lease in asked:
            connected = known.get(lease, UNSEEN)
            if type(connected) is not int and lease._chunk is not None:
                silence = silence_by(connected)
                if silence is not None and silence < half:
                    self.looks += 1
                    rounds = int((rested - silence) // length) + 1
                    if not 0 <= rounds < ROUNDS:
                        rounds = min(max(rounds, 0), ROUNDS - 1)
                    ring[rounds].append(lease)  # as `_note`
                    continue
            owner = owner_of(lease.uid) if lease._chunk is not None else None
            if owner is None:
                self._drop(lease)
                continue
            link = owner.link
            self.looks += 1
            silence = sockets.silence_of(link)
            if silence is not None and silence < half:
                self._note(lease, now + half - silence + JIFFY)
                continue
            self.looks -= 1
            seen = self._seen(link)
            if seen is None:
                self._drop(lease)
            elif seen.silence < half:
                self._rest(lease, seen.silence)
            elif looks >= LOOKS_TO_END and self._is_gone(link, seen):
                # By a call of its own: what an adapter raises must harm no other.
                self._drop(lease)
                self._driver.after(0.0, partial(self._end, owner, link, seen.silence))
            else:
                self._ask(lease, owner, link)
                self._hurry(link, seen)
                silent.append(lease)
        if silent:
            self._next(instant, self._round_length, partial(self._look_again, silent, looks + 1))

    def _rest(self, lease: Lease, silence: float) -> None:
        """Look at *lease* again when its peer may have been silent for half of
        `vanished`.
        """
        self._note(lease, self._driver.now() + max(self._half - silence, 0.0) + JIFFY)

    def _forget(self, lease: Lease) -> None:
        """Stop looking at *lease*: its connection is not silent, or will end anyway."""
        ours = self._is_ours(lease)
        self._drop(lease)
        if ours and lease._chunk is not None:
            owner = self._driver.owner_of(lease.uid)
            if owner is not None and owner.link >= 0:
                _calm(owner.link, self.after)
        self._pardoned.discard(lease)

    def _drop(self, lease: Lease) -> None:
        """Forget *lease*. If its connection lives, the next scan may find it."""
        self._known.pop(lease, None)
        if lease._chunk is not None:
            self._whole.pop(lease._chunk, None)

    # ---- one connection --------------------------------------------------------------

    def _is_gone(self, link: int, seen: sockets.TcpInfo) -> bool:
        if not seen.on_its_way and seen.silence < self._patience:
            return False
        # The kernel speaks of the first path of a Multipath TCP connection, which may
        # be gone.
        return seen.gone(self.after) and sockets.silence_of_paths(link) >= self.after

    def _hurry(self, link: int, seen: sockets.TcpInfo) -> None:
        """Have the kernel ask often enough where data is on its way, and not too
        often.
        """
        if not seen.on_its_way and not seen.unsent:
            return
        wait = longest_wait(self.after, seen)
        if wait is not None and (seen.silence >= self.after / 8 or wait > self.after / 4):
            _ask_again_after(link, wait)

    def _seen(self, link: int) -> sockets.TcpInfo | None:
        self.looks += 1
        return sockets.tcp_info_of(link) if link >= 0 else None

    def _ask(self, lease: Lease, owner: Reapable, link: int) -> None:
        self.asks += 1
        ours = _ask(link, self.after, ours=self._is_ours(lease))
        self._known[lease] = (owner.own_socket or OURS) if ours else TCP

    def _is_ours(self, lease: Lease) -> bool:
        """Whether we have set up the keep-alives of what is below *lease*."""
        known = self._known.get(lease, UNSEEN)
        return type(known) is not int or known == OURS

    def _end(self, owner: Reapable, link: int, silence: float) -> None:
        """Close the connection of a peer that was last heard *silence* seconds ago.

        The close is a reset, also where the adapter would send what is queued first:
        nobody will take it.
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
    """Seconds after which the kernel is to ask again at the latest, where data is on
    its way.

    A quarter of *after*, but never less than `ROUND_TRIPS` times what an answer may
    take: a kernel that sends everything again before its acknowledgement can come fills
    a slow link with copies, and gives the connection up in the end. None: the kernel
    has not measured yet how long an answer takes.
    """
    if not seen.round_trip:
        return None
    return max(after / 4, ROUND_TRIPS * (seen.round_trip + 4 * seen.variation), 1.0)


def idle_time(after: float) -> int:
    """Seconds of silence after which the kernel is told to ask, where *after* is
    `vanished`.
    """
    return min(max(int(after / 2), 1), LONGEST_KEEPALIVE)


def _ask(link: int, after: float, *, ours: bool) -> bool:
    """Have the kernel ask the peer of *link*, if it has been silent for half of *after*
    seconds; otherwise as soon as it has been.

    Args:
        ours: Whether the keep-alives of this socket are ours since it was asked before.
    Returns:
        Whether they are now: not where the program has switched them on itself, for a
        shorter time.
    """
    half = idle_time(after)
    try:
        connected = sockets.lent(link)
    except OSError:
        return False
    try:
        idle = half
        if not ours:
            idle = connected.getsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE)
            # A short idle time alone says nothing: it may be the system's, and
            # keep-alives be off.
            ours = idle > half or not connected.getsockopt(socket.SOL_SOCKET, SO_KEEPALIVE)
            if ours:
                # By itself it asks no more before we do: those of thousands in one
                # instant.
                interval = min(int(after), LONGEST_KEEPALIVE)
                connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPINTVL, interval)
                # So many that the kernel never ends the connection before we do.
                connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPCNT, 127)
                connected.setsockopt(socket.SOL_SOCKET, SO_KEEPALIVE, 1)
        # A client that has been silent for as long is asked as this is set, the same
        # value or not.
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE, min(idle, half))
    except OSError:
        return False
    finally:
        connected.detach()
    return ours


def _calm(link: int, after: float) -> None:
    """The peer of *link* is silent no more: keep the kernel from asking it by timers of
    its own.
    """
    with contextlib.suppress(OSError):
        connected = sockets.lent(link)
        try:
            connected.setsockopt(
                socket.IPPROTO_TCP, sockets.TCP_KEEPIDLE, min(int(after), LONGEST_KEEPALIVE)
            )
        finally:
            connected.detach()


def _ask_again_after(link: int, seconds: float) -> None:
    """Have the kernel ask again after *seconds* at the latest, where data is on its
    way.
    """
    with contextlib.suppress(OSError), sockets.borrowed(link, sockets.TCP) as connected:
        # Only Linux 6.15 and later can; others go on at their own pace.
        most = min(round(seconds * 1000), LONGEST_WAIT_MS)
        connected.setsockopt(socket.IPPROTO_TCP, sockets.TCP_RTO_MAX_MS, most)
