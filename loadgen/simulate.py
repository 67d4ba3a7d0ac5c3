"""The same plan and the same verdict in virtual time, against the library, without any
socket.

One rule: a simulation is a pure function of its arguments: same seed, same result, bit
for bit. (What the machine needed for it, `Observation.cost`, is the exception.)

`Crowd` plays the clients of a plan; `CoreSystem` is what they are connected to: the
library's core, driven as an adapter drives it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from time import process_time
from typing import Any, NamedTuple, TypeAlias, TypeVar

import reaper

from .drive.client import Player, rss_bytes
from .judge.observation import Counters, Observation, Outcome
from .judge.records import How, RecordTable
from .judge.stalls import Answers
from .plan.behaviours import Act, draw, key_of
from .plan.plan import Plan
from .units import seconds

FOREVER = float("inf")
WHEEL_SIZE = 64
LONGEST_STALL = 5.0
LONGEST_JUMP = 120.0
BREATHER = 10.0
SHARD = 300_000
"""Connections beyond which another process of the server is simulated.

This bounds what is held of open connections. Of one that has ended, 66 bytes are kept
until the verdict.
"""
T = TypeVar("T")
Stalled: TypeAlias = Callable[[float, float], None]
"""A function that is given the instant at which a stall was over, and its length in
seconds.
"""
STORM_SHARE = 0.1
"""Share of the connections that a storm throws out; they come back at once."""


class Fault(NamedTuple):
    """The server's loop stands still from *start* on, for *length* seconds.

    In a *storm* it does not; a tenth of the clients reconnect at *start* instead.
    """

    start: float
    length: float
    storm: bool


@dataclass(frozen=True)
class Faults:
    """How many stalls (of up to 5 s), jumps (of up to 2 minutes) and storms a run
    has.
    """

    stalls: int = 0
    jumps: int = 0
    storms: int = 0

    def schedule(self, seed: int, end: float) -> list[Fault]:
        """Draw the faults of a run that lasts until *end*; the latest comes first.

        None begins nearer than BREATHER to the end of the one before, because stalls
        that touch are one stall.
        """
        key = key_of(seed, 1 << 32)
        faults: list[Fault] = []
        for count, longest in (
            (self.stalls, LONGEST_STALL),
            (self.jumps, LONGEST_JUMP),
            (self.storms, 0.0),
        ):
            for _ in range(count):
                number = 2 * len(faults)
                length = longest * draw(key, number + 1)
                faults.append(
                    Fault(draw(key, number) * max(end - length, 0.0), length, not longest)
                )
        free, spaced = 0.0, []
        for start, length, storm in sorted(faults):
            spaced.append(Fault(max(start, free), length, storm))
            free = spaced[-1].start + length + BREATHER
        return spaced[::-1]


@dataclass(slots=True, eq=False)
class SimulatedClient(Player):
    """A client without a socket.

    Its *handle* belongs to the system. Where journals are written, `log` is a pair:
    what the server writes of it, and what the client does.
    """

    established: float = -1.0  # not yet
    open: bool = False
    handle: Any = None


class Crowd:
    """The clients of a plan (those of *indices*), with one heap of next actions for
    all.
    """

    def __init__(self, plan: Plan, system: CoreSystem, indices: range | None = None) -> None:
        self.plan, self.system = plan, system
        self.indices = range(plan.connections) if indices is None else indices
        self.due: list[tuple[float, int, SimulatedClient]] = []
        self.sequence = self.arrived = 0
        self.arrival = self._arrives()
        self.records, self.counters = RecordTable(), Counters()
        self.present: dict[int, SimulatedClient] = {}
        self.stopped = False

    def _arrives(self) -> float:
        """The instant at which the next connection is opened."""
        return (
            self.plan.connect_offset(self.indices[self.arrived])
            if self.arrived < len(self.indices)
            else FOREVER
        )

    def next(self) -> float:
        """The instant at which the next action is due."""
        return min(self.due[0][0], self.arrival) if self.due else self.arrival

    def play(self, until: float) -> None:
        """Do everything that is due up to *until*, each at its own instant."""
        due = self.due
        while True:
            arrival = self.arrival
            if due and due[0][0] <= min(until, arrival):
                when, _, client = heappop(due)
                self._act(client, when)
            elif arrival <= until:
                index = self.indices[self.arrived]
                self.arrived += 1
                self.arrival = self._arrives()
                self._open(self._client(index, 0), arrival)
            else:
                return

    def closed(self, client: SimulatedClient, at: float) -> None:
        """Note that the server has closed the connection of *client* at the instant
        *at*.
        """
        if client.open and not self.stopped:
            self._end(client, How.FIN, at)

    def storm(self, share: float, now: float) -> None:
        """Let a share of the clients leave, and come back in the same instant.

        Which clients these are is drawn from the key of each.
        """
        for client in list(self.present.values()):
            if draw(client.key, 1 << 40) < share:
                self.system.left(client, now)
                self._end(client, How.SELF, now, comes_back=0.0)

    def stop(self, now: float) -> None:
        """End the run: each connection that is still here is recorded as open."""
        self.stopped = True
        for client in list(self.present.values()):
            self._record(client, How.OPEN, now)

    def _client(self, index: int, incarnation: int) -> SimulatedClient:
        return SimulatedClient(
            index, incarnation, self.plan.key(index, incarnation), self.plan.behaviour(index)
        )

    def _push(self, when: float, client: SimulatedClient) -> None:
        self.sequence += 1
        heappush(self.due, (when, self.sequence, client))

    def _open(self, client: SimulatedClient, now: float) -> None:
        client.open = True
        client.began = client.established = client.sent = client.seen = now
        self.present[client.index] = client
        if client.incarnation:
            self.counters.reconnected += 1
        else:
            self.counters.established += 1
        self.system.opened(client, now)
        self._plan_next(client, now)

    def _plan_next(self, client: SimulatedClient, now: float) -> None:
        when = client.next_step()
        if when is not None and when <= now:
            self._do(client, now)
        elif when is not None:
            self._push(when, client)

    def _act(self, client: SimulatedClient, now: float) -> None:
        if client.open:
            self._do(client, now)
        elif client.established < 0:  # a reconnection; others have ended since this was planned
            self._open(client, now)

    def _do(self, client: SimulatedClient, now: float) -> None:
        self.counters.actions += 1
        client.number += 1
        if client.act is Act.CLOSE:
            self.system.left(client, now)
            self._end(client, How.SELF, now)
            return
        behaviour = client.behaviour
        if not client.final:  # a deadline is not moved by what is sent after it was set
            client.sent = now
        self.system.pinged(client, now)
        client.final = client.final or (behaviour.deadline and client.number > behaviour.counted)
        self._plan_next(client, now)

    def _end(
        self, client: SimulatedClient, how: How, now: float, comes_back: float | None = None
    ) -> None:
        self._record(client, how, now)
        client.open = False
        del self.present[client.index]
        delay = client.behaviour.reconnect if comes_back is None else comes_back
        if delay is not None:
            self._push(now + delay, self._client(client.index, client.incarnation + 1))

    def _record(self, client: SimulatedClient, how: How, now: float) -> None:
        self.records.append(client.record(how, now, now))


class CoreSystem:
    """The library's core, driven as an adapter drives it.

    What has come is read first; then the core judges as of the instant at which it
    woke.
    """

    def __init__(
        self, tick: float, closed: Callable[[SimulatedClient, float], None] | None = None
    ) -> None:
        self.core = reaper.IdleReaper(tick=tick, wheel_size=WHEEL_SIZE)
        self.closed = closed
        self.stalled = False
        self.unread: list[tuple[Callable[[SimulatedClient, float], None], SimulatedClient]] = []

    def opened(self, client: SimulatedClient, now: float) -> None:
        self._arrived(self._accept, client, now)

    def pinged(self, client: SimulatedClient, now: float) -> None:
        self._arrived(self._read, client, now)

    def left(self, client: SimulatedClient, now: float) -> None:
        self._arrived(self._hang_up, client, now)

    def _arrived(
        self, read: Callable[[SimulatedClient, float], None], client: SimulatedClient, now: float
    ) -> None:
        if self.stalled:
            self.unread.append((read, client))
        else:
            read(client, now)

    def wake(self, now: float) -> None:
        """Act on the core's timer, which went off on time."""
        self._close(self.core.advance(now), now)

    def wake_late(self, now: float) -> None:
        """Act after a stall: first the epoch is closed, then what has arrived is
        read.
        """
        self.stalled = False
        self.core.close_epoch(now)
        for read, client in self.unread:
            read(client, now)
        self.unread.clear()
        self._close(self.core.expire(now), now)

    def _close(self, expired: list[Any], now: float) -> None:
        for expiry in expired:
            client: SimulatedClient = expiry.uid
            client.handle = None
            if self.closed is not None:
                self.closed(client, now)

    def _accept(self, client: SimulatedClient, now: float) -> None:
        client.handle = self.core.register(client, client.behaviour.timeout, now)
        client.seen = now

    def _read(self, client: SimulatedClient, now: float) -> None:
        if client.handle is not None and not (client.final and client.behaviour.deadline):
            client.handle.touch()
            client.seen = now

    def _hang_up(self, client: SimulatedClient, now: float) -> None:
        if client.handle is not None:
            client.handle.release()
            client.handle = None


def simulate_core(
    plan: Plan, faults: Faults, progress: Callable[[str], None] | None = None
) -> Observation:
    """Play *plan* in virtual seconds against the core alone.

    Returns what the clients saw, in the form that a run with sockets gives it. The
    *faults* are drawn from the plan's seed. *progress* is called now and then with a
    line that says how far the simulation is. Cost: a few microseconds per action, about
    1 kB per connection; see docs.
    """
    shards = -(-plan.connections // SHARD)
    work = partial(_shard, plan, faults, shards, progress if shards == 1 else None)
    ramped = plan.connect_offset(plan.connections - 1)

    def played(count: int) -> None:
        if progress is not None:
            progress(
                f"{min(count * SHARD, plan.connections):,} of {plan.connections:,} "
                "connections played"
            )

    outcomes, cpu, grown = zip(*at_once(work, shards, played), strict=True)
    return Observation(
        0.0, ramped, ramped + plan.duration, list(outcomes), cost=(sum(cpu), sum(grown))
    )


def at_once(
    work: Callable[[int], T], count: int, done: Callable[[int], None] = lambda count: None
) -> list[T]:
    """Call `work(0)` to `work(count - 1)`, each in a process of its own; returns what
    they return.

    As many run at a time as there are processors. *done* is called with the number of
    those that have ended. A single one runs in this process.
    """
    if count == 1:
        return [work(0)]
    results: list[T] = []
    forks, most = multiprocessing.get_context("forkserver"), min(count, os.cpu_count() or 1)
    with ProcessPoolExecutor(
        most, forks, max_tasks_per_child=1
    ) as pool:  # what one has grown by is its own
        for result in pool.map(work, range(count)):
            results.append(result)
            done(len(results))
    return results


def _shard(
    plan: Plan, faults: Faults, shards: int, progress: Callable[[str], None] | None, number: int
) -> tuple[Outcome, float, int]:
    """Simulate one process of the server, and the clients that it serves.

    Those are connections `number`, `number + shards`, ... Returns what they saw, and
    what that took: seconds of CPU, and bytes.
    """
    before, used = rss_bytes(), process_time()
    system = CoreSystem(plan.law.tick)
    crowd = Crowd(plan, system, range(number, plan.connections, shards))
    server = Answers()
    end = plan.connect_offset(plan.connections - 1) + plan.duration
    report_at = 0.0

    def each(now: float) -> None:
        nonlocal report_at
        if progress is not None and now >= report_at:
            report_at = now + 0.005 * end
            progress(f"{seconds(now):>12}  {len(crowd.present):>9,} connected")

    play(crowd, system, faults.schedule(plan.seed + number, end), server.add, end, each)
    crowd.counters.open = len(crowd.present)
    outcome = Outcome(crowd.records, crowd.counters, server_stalls=server)
    return outcome, process_time() - used, rss_bytes() - before


def play(
    crowd: Crowd,
    system: CoreSystem,
    coming: list[Fault],
    stalled: Stalled,
    end: float,
    each: Callable[[float], None],
) -> None:
    """Let *crowd* meet *system* until *end*, with the faults *coming* (the latest is
    first).

    *stalled* is called after each stall, and *each* after every turn, with its instant.
    """
    system.closed = crowd.closed
    wake = FOREVER
    while True:
        fault_at = coming[-1].start if coming else FOREVER
        action = crowd.next()
        now = min(wake, action, fault_at)
        if now > end:
            break
        if now == fault_at:
            fault = coming.pop()
            now = _break(fault, crowd, system, stalled, end)
            wake = _wakeup(system)
        elif now == wake:
            system.wake(now)
            wake = _wakeup(system)
        else:
            # Up to the next wake nothing but clients acts; an empty core has no wake
            # until a client has arrived.
            crowd.play(action if wake == FOREVER else min(wake, fault_at, end))
            if wake == FOREVER:
                wake = _wakeup(system)
        each(now)
    crowd.stop(end)


def _break(fault: Fault, crowd: Crowd, system: CoreSystem, stalled: Stalled, end: float) -> float:
    """Let *fault* happen; returns the instant from which the loop is free again."""
    if fault.storm:
        crowd.storm(STORM_SHARE, fault.start)
        return fault.start
    system.stalled = True
    free = min(fault.start + fault.length, end)
    crowd.play(free)
    stalled(free, free - fault.start)
    system.wake_late(free)
    return free


def _wakeup(system: CoreSystem) -> float:
    wake = system.core.next_wakeup()
    return FOREVER if wake is None else wake
