"""What a demo of so many connections takes of the machine, reckoned before it starts.

Each limit that is too low is named, with what it is, what is needed and how to raise
it.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadgen.plan.capacity import SPARE_DESCRIPTORS, raise_descriptor_limit
from loadgen.units import size
from reaper.policy import cgroup
from server_example.planning import RESERVED_DESCRIPTORS, SPREAD

RATE = 4000
"""Connections per second that such a run opens, at least: what two cores keep up for
minutes.
"""
RATE_APART = 2200
"""The same where each client acts at its own instant. While a million were opened at
4000, with a timeout of 570 s, processes waited for a processor four fifths of the time
(/proc/pressure/cpu), and a loop that waited for more than a second was nobody's
silence.
"""
LEISURE = 1.9
"""The timeout, in times that opening all takes. With 1.0 the first would be closed as
the last is opened; the rest is room for a busy machine to open them more slowly.
"""
GRAIN = 30
"""Timeouts are whole half minutes as soon as they are not a few seconds."""
MANY = 20_000
MIX = "silent=40,chatty=30,bursty=10,drip=10,leave=10"
MIX_OF_MANY = "silent=50,chatty=30,bursty=10,drip=10"
SILENT, SPEAKING = 0.5, 0.3 / 0.35 + 0.1 / 0.2 + 0.1 / 0.9
"""Of that mix, per connection: closes while it falls silent, and exchanges per timeout
of those that speak on.
"""
BEAT = 0.0005
"""Share of the timeout at whose multiples the clients of a large demo act, all
together: a process that is woken for one packet finds its memory in no cache, which
costs more than the packet. With full workers that is some 13 packets per wake, and a
burst that two cores answer in less than 50 ms, from which on it would count as a stall.
"""

BUDGET = 0.3
"""Share of the processors that a plan may use once all are open. The rest is for what
comes in bursts: a close has half a tick to wait for its worker's turn, and for the
client's that sees it.
"""
EXCHANGE, CLOSE = 100e-6, 60e-6
"""Seconds of CPU of both sides, kernel included, of clients that act together. Measured
88 and 60 us, by `benchmarks/exchange.py` of commit aa5331a.
"""
EXCHANGE_APART, NEWCOMER_APART = 400e-6, 350e-6
"""Seconds of CPU of both sides, of a client that acts alone, and of one that is opened
beside such.
"""
RESTING = 0.002
"""Share of a processor that a process takes to itself: epochs, signs of life, looks.
Measured 0.0026 of a worker and 0.0015 of a client process with 6 of each; 0.0009 and
0.0004 with 50, which give signs of life less often.
"""

PROCESSES = 400
"""More than these on one machine measure its scheduler."""
KERNEL_BYTES = 12_000
"""Of a connected pair on the loopback: sockets, epoll entries, their files. Measured 10
to 11 KB.
"""
PARKED_BYTES = 400
"""Of a connection in the server."""
CLIENT_BYTES = 900
"""Of a connection in the generator, and of its records when the run is judged."""
WORKER_BYTES, CLIENTS_BYTES = 6 << 20, 4 << 20
"""Of one more process of the server, or of the generator, before its first connection:
what it does not share with the one it was forked from. Measured 5.2 and 3.1 MiB; every
run measures it anew.
"""
COMMON_BYTES = 100 << 20
"""What all of them share, and the two that they were forked from."""
TRACKED = 64
"""Connections opened to see whether the kernel tracks those on the loopback."""


@dataclass(frozen=True)
class Plan:
    """What a demo of *connections* is made of. Seconds."""

    connections: int
    timeout: int
    duration: int
    rate: int
    mix: str
    workers: int
    generators: int
    beat: float = 0.0

    @property
    def expected(self) -> int:
        """Seconds the whole run takes, roughly: connecting, holding, judging."""
        return round(self.connections / self.rate + self.duration + 5 + self.connections / 25_000)

    def memory(self) -> int:
        """Bytes, kernel included."""
        each = KERNEL_BYTES + CLIENT_BYTES + PARKED_BYTES
        return (
            self.connections * each
            + self.workers * WORKER_BYTES
            + self.generators * CLIENTS_BYTES
            + COMMON_BYTES
        )


@dataclass(frozen=True)
class Machine:
    """The limits that count. None: there is no such limit, or it cannot be read."""

    descriptors: int  # per process, hard
    files: int | None = None  # of the whole machine, still free
    conntrack: int | None = None  # entries still free
    memory: int | None = None  # bytes available, of the machine and of our control group

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        memory, group = psutil.virtual_memory().available, cgroup.memory()
        if group is not None:
            memory = min(memory, group.left)
        return cls(
            raise_descriptor_limit(), _free("fs/file-max", "fs/file-nr"), _conntrack(), memory
        )


def make_plan(
    connections: int, descriptors: int, processors: int | None = None, *, apart: bool = False
) -> Plan:
    """The demo of *connections* on a machine with so many *descriptors* per process,
    and *processors*; None: as here. *apart*: each client acts at its own instant.

    A live connection has to speak within its timeout, and all are to be open at once
    before the first is closed. So the timeout grows with the time that it takes to open
    them, and until what they do per second fits the budget.
    """
    processors = processors or len(os.sched_getaffinity(0))
    each = max(int((descriptors - RESERVED_DESCRIPTORS) * SPREAD), 1)
    workers = max(-(-connections // each), processors)
    generators = max(-(-connections // max(descriptors - SPARE_DESCRIPTORS, 1)), 1)
    if connections <= MANY:
        return Plan(connections, 5, 20, RATE, MIX, workers, generators)
    lasting = RATE_APART if apart else RATE
    rate = 3 * lasting if connections <= 5 * MANY else lasting
    # What falls silent is closed at the pace at which it came, whatever the timeout.
    used = (workers + generators) * RESTING + SILENT * rate * CLOSE
    room = max(BUDGET * processors - used, BUDGET * processors / 4)
    timeout = max(LEISURE * connections / lasting, connections * SPEAKING * EXCHANGE / room)
    timeout = GRAIN * -(-int(timeout) // GRAIN) or GRAIN
    duration = max(timeout * 9 // 8, timeout + 30)
    beat = 0.0 if apart else timeout * BEAT
    return Plan(connections, timeout, duration, rate, MIX_OF_MANY, workers, generators, beat)


def shortages(plan: Plan, machine: Machine) -> list[str]:
    """What this machine lacks for *plan*, one line each; empty when it fits."""
    found = []
    together = plan.workers + plan.generators
    if together > PROCESSES:
        needed = -(-2 * plan.connections // (PROCESSES - 20)) + RESERVED_DESCRIPTORS
        found.append(
            f"descriptors: {machine.descriptors:,} per process make {together:,} processes; "
            f"at least {needed:,} are needed: raise `ulimit -Hn`"
        )
    sockets = 2 * plan.connections + 100 * together
    track = "sysctl -w net.netfilter.nf_conntrack_max=..., or exempt the loopback from tracking"
    for what, has, needed, remedy in (
        ("open files", machine.files, sockets, "sysctl -w fs.file-max=..."),
        ("connection tracking: entries", machine.conntrack, plan.connections, track),
    ):
        if has is not None and has < needed:
            found.append(f"{what}: {has:,} are free, {needed:,} are needed: {remedy}")
    memory = plan.memory()
    if machine.memory is not None and machine.memory < memory:
        found.append(f"memory: {size(machine.memory)} is available, about {size(memory)} is needed")
    return found


def _free(limit: str, used: str) -> int | None:
    """What is left of a sysctl; None where the kernel has no such."""
    try:
        most, now = (int(Path("/proc/sys", name).read_text().split()[0]) for name in (limit, used))
    except OSError:
        return None
    return most - now


def _conntrack() -> int | None:
    """Entries still free; None where the kernel does not track connections on the
    loopback.
    """
    names = "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_count"
    before = _free(*names)
    if before is None:
        return None
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0), backlog=TRACKED) as listener:
        for _ in range(TRACKED):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        free = _free(*names)
    return free if free is not None and before - free >= TRACKED // 2 else None
