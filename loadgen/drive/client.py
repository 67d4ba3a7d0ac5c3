"""What a process is asked to do, when it wakes, and what it keeps of one connection.

One rule: a client is plain slots, and no more of them than needed. There are 17,000
clients in a process, and each fits 2 KiB.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ..judge.records import How, Record
from ..plan.behaviours import Act, Behaviour
from ..plan.capacity import Share
from ..plan.plan import Plan
from ..plan.scenario import DEFAULT_STATUSES
from ..units import Target
from .protocols import ROOT, Paths
from .wire import Opening, Tls, receive, send

FEW = 8
"""Up to so many processes look whenever there is something to see."""
HEARTBEAT = 0.25
"""Seconds between two heartbeats of a process, up to FEW processes.

More processes report less often each, so that the parent hears as much in all.
"""
LOOKS = 1000
"""How often per second all processes together look, where there are more than FEW.

A look that comes later counts against the server in the raw figures: up to 51 ms with
51 processes.
"""
ALONE = Share(0, 0)


@dataclass(frozen=True)
class Order:
    """What one process is asked to do.

    It is complete, so that the process reads no command line and no file, and it can be
    pickled.

    Attributes:
        patience: Seconds beyond timeout and tick for which the process waits for an
            overdue close at the end of the run.
        share: The connections of this process, of all `processes`.
    """

    plan: Plan
    target: Target
    protocol: str
    patience: float
    paths: Paths = ROOT
    journal: Path | None = None
    tls: Tls | None = None
    statuses: tuple[str, ...] = DEFAULT_STATUSES
    share: Share = ALONE
    processes: int = 1


class Pace:
    """When a process wakes, of so many, whose clients act at multiples of *beat*
    seconds.

    With a beat of 0 each client acts at its own instant. What waits, waits for an
    instant that is the same for all processes: one that wakes finds its memory in no
    cache, which costs more than what it woke for.
    """

    def __init__(self, processes: int, beat: float) -> None:
        self.beat = beat
        self.heartbeat = HEARTBEAT * max(processes / FEW, 1.0)
        self.rest = processes / LOOKS if processes > FEW else 0.0

    def step(self, due: float) -> float:
        """The instant at which a step that is *due* is taken: that one, or the next
        beat.
        """
        return ceil(due / self.beat) * self.beat if self.beat else due

    def look(self, looked: float, step: float) -> float:
        """The instant to look at after *looked*, if the next step is taken at *step*.

        Where it is in the past, the process looks at once.
        """
        return min(looked + self.rest, step) if self.rest else looked


@dataclass(slots=True, eq=False)
class Player:
    """A connection on its way through its behaviour, on a socket or in virtual time.

    Instants are seconds on one clock. `records.Record` says what those prove that it
    shares.
    """

    index: int
    incarnation: int
    key: int
    behaviour: Behaviour
    number: int = 0  # steps done
    offset: float = 0.0  # of the step that is due next, from establishment
    act: Act = Act.PING  # what that step does
    began: float = 0.0
    established: float = 0.0
    sent: float = 0.0
    seen: float = 0.0
    final: bool = False
    overslept: bool = False
    log: Any = None  # its rows in the journal, if one is kept

    def next_step(self) -> float | None:
        """The instant of the next step, which `act` is from now on; None: it falls
        silent.
        """
        step = self.behaviour.step(self.key, self.number, self.offset)
        if step is None:
            self.final = True
            return None
        self.offset += step.gap
        self.act = step.act
        return self.established + self.offset

    def record(self, how: How, after: float, by: float) -> Record:
        """What a judge is given of it, if it ended between *after* and *by*."""
        return Record(
            self.index,
            self.incarnation,
            how,
            self.final,
            self.overslept,
            self.number,
            self.began,
            self.established,
            self.sent,
            self.seen,
            after,
            by,
        )


@dataclass(slots=True, eq=False)
class Client(Player):
    """A connection on a socket."""

    fd: int = -1
    sock: socket.socket | None = None  # until it is established
    tls: socket.socket | None = None
    tries: int = 0  # refusals so far
    refusal: str = ""  # why, the latest
    opening: Opening | None = None  # TLS and upgrade, while on it
    intended: float = 0.0
    asked: int = 0  # units of answer that are owed: bytes for echo, responses for HTTP
    answered: int = 0
    owed_since: float = 0.0  # when the oldest was asked, or some came
    waiting: bool = False  # counted as unanswered
    outbox: bytes | None = None  # what the kernel would not take yet
    parser: Any = None

    def read(self, most: int) -> bytes:
        """Read what has come; empty at the end. Raises BlockingIOError: nothing has
        come.
        """
        return os.read(self.fd, most) if self.tls is None else receive(self.tls, most)

    def write(self, data: bytes) -> int:
        """Send *data*; returns how many bytes were taken. Raises BlockingIOError:
        none.
        """
        return os.write(self.fd, data) if self.tls is None else send(self.tls, data)

    def close(self) -> None:
        """Close the connection for good."""
        if self.tls is not None:
            self.tls.close()
            self.tls = None
        else:
            os.close(self.fd)
        self.fd = -1

    def too_late(self, now: float, looked: float) -> bool:
        """Whether the server may rightly have closed before it reads what is sent at
        *now*.

        That is so if the timeout has passed since the step before. It is also so if
        that step was itself too late, and nothing says yet that the server has read it:
        no answer, and no look (the last was at *looked*) that showed no close. After a
        stall several steps are done in one turn.
        """
        if now >= self.sent + self.behaviour.timeout:
            return True
        return self.overslept and (self.seen < self.sent or looked < self.sent)


def rss_bytes() -> int:
    """The resident memory of this process, in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
