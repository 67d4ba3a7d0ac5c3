"""Connections whose server broke the law, by number: what a test of an audit must find, no more and no less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reaper.journal.schema import ACTIVITY, CLOSE_PEER, OPEN, REAP

from .files import EOF, IDLE, Rows
from .habits import CHATTY, MS, TIMEOUT_NS, S
from .loop import Loop

FAULTS = {
    "early": 1,
    "late": 1,
    "missed": 0,
    "lost": 0,
    "duplicate": 2,
    "activity_after_end": 1,
    "missing_touch": 1,
    "backward": 1,
}
"""What can be planted -> the reap rows it brings. Named like the verdict; a `backward` clock makes it `unknown`."""

NEEDS_NS = 120 * S
"""From the opening of such a connection to its last row at most."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One to be planted: opened at `at`, ns."""

    at: int
    name: str


def rows_of_fault(fault: Fault, conn: int, loop: Loop) -> Rows:
    """Every row of that connection: opened, active 2 s and 4 s later, and a wrong end."""
    opened, last = fault.at, fault.at + 4 * S
    timeout = int(TIMEOUT_NS[CHATTY])
    due = int(loop.closed(np.array([last]))[0]) + timeout
    right, total = due + MS, 4 * S
    rows: list[tuple[int, ...]] = [(opened, OPEN, 0, 0, 0, 0, 0)]
    rows += [(opened + i * 2 * S, ACTIVITY, 2 * S, i, i * 2 * S, 0, 0) for i in (1, 2)]

    def reap(t: int, from_: int = due, n: int = 2, idle_sum: int = total) -> tuple[int, ...]:
        return (t, REAP, t - last, n, idle_sum, from_, IDLE)

    match fault.name:
        case "early":
            rows.append(reap(last + timeout - 300 * MS, last + timeout - 300 * MS))
        case "late":
            rows.append(reap(due + 10 * S))
        case "missed":
            rows.append((due + 30 * S, CLOSE_PEER, due + 30 * S - last, 2, total, 0, EOF))
        case "duplicate":
            rows += [reap(right), reap(right + MS)]
        case "activity_after_end":
            rows += [reap(right), (right + S, ACTIVITY, right + S - last, 3, total + right + S - last, 0, 0)]
        case "missing_touch":
            rows.append(reap(right, n=3, idle_sum=total + 1))
        case "backward":
            rows += [(last - S, ACTIVITY, -S, 3, total, 0, 0), reap(right, n=3)]
        case "lost":
            pass
    t, kind, idle, n, idle_sum, due_ns, reason = (list(column) for column in zip(*rows, strict=True))
    return Rows.of(
        len(rows), t=t, conn=conn, habit=CHATTY, kind=kind, idle=idle, n=n, idle_sum=idle_sum, due=due_ns, reason=reason
    )
