"""Made-up traffic in virtual time, written through the real `Journal`, with faults put in by number.

A model server that keeps the law exactly: epochs of one tick, reaped at closed(epoch) + timeout. The client's journal
is written beside it when asked for, from the same script of sends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reaper.journal import ConnectionLog, Journal

S = 1_000_000_000
MS = 1_000_000
WALL = 1_790_000_000 * S


@dataclass
class Clock:
    """A clock to pass to a journal: `mono` ns, and the wall `WALL` ns later plus `step`."""

    now: int = 0
    step: int = 0

    def mono(self) -> int:
        return self.now

    def wall(self) -> int:
        return WALL + self.now + self.step


def journal(directory: Path, writer: int, clock: Clock | None = None, **options: Any) -> Journal:
    clock = clock or Clock()
    options = {"mode": "full", "tick": 1.0, "sequence": 1, **options}
    return Journal(directory, writer=writer, background=False, clock_ns=clock.mono, wall_ns=clock.wall, **options)


FAULTS = ("early", "late", "missed", "lost", "duplicate", "activity_after_end", "missing_touch", "backward")


def write(
    server: Path,
    client: Path | None = None,
    *,
    connections: int = 200,
    seed: int = 1,
    faults: dict[str, int] | None = None,
    timeout_ms: int = 5000,
    mode: str = "full",
    server_clock_ahead: int = 0,
    listeners: tuple[str, ...] = ("echo",),
) -> dict[str, int]:
    """Write one run. Returns how many connections ended how: reaped, closed."""
    chance = random.Random(seed)
    wanted = [name for name, count in (faults or {}).items() for _ in range(count)]
    counts = {"reaped": 0, "closed": 0}
    ahead = server_clock_ahead
    clock = Clock()
    with journal(server, 7, Clock(step=-ahead), mode=mode) as ours:
        theirs = journal(client, 900, clock, mode="full") if client else None
        for serial in range(connections):
            fault = wanted[serial] if serial < len(wanted) else None
            opened = 1 * S + serial * 10 * MS
            listener = listeners[serial % len(listeners)]
            log = ours.open(opened + MS + ahead, timeout_ms, listener, peer=serial + 5)
            seen = theirs.open(opened, timeout_ms, listener, peer=serial + 5) if theirs else None
            sends = _sends(chance, opened)
            for t in sends:
                log.touch(t + MS + ahead, 10)
                if seen is not None:
                    seen.touch(t, 10)
            last = sends[-1] if sends else opened
            end = _end(log, last + MS + ahead, fault, closes=serial % 4 == 3, timeout_ns=timeout_ms * MS)
            counts["reaped" if serial % 4 != 3 else "closed"] += 1
            if seen is not None:
                if serial % 4 != 3 or fault is not None:
                    seen.close_peer(end - ahead + MS)
                else:
                    seen.close_app(end - ahead - MS)
        ours.drain(10_000 * S)
        if theirs:
            theirs.close()
    return counts


def _sends(chance: random.Random, opened: int) -> list[int]:
    sends, t = [], opened
    for _ in range(chance.randrange(1, 6)):
        t += round(chance.uniform(0.2, 4.0) * S)
        sends.append(t)
    return sends


def _end(log: ConnectionLog, last: int, fault: str | None, *, closes: bool, timeout_ns: int) -> int:
    """Write the end of one connection, right or wrong as *fault* says; when it was."""
    closed_epoch = -(-last // S) * S
    due = closed_epoch + timeout_ns
    right = due + 5 * MS
    if fault is None and closes:
        log.close_peer(last + 2 * S)
        return last + 2 * S
    match fault:
        case "early":
            log.reap(last + timeout_ns - 300 * MS, last + timeout_ns - 300 * MS)
        case "late":
            log.reap(due + 3 * S, due)
        case "missed":
            log.close_peer(due + 30 * S)
        case "lost":
            return right
        case "duplicate":
            log.reap(right, due)
            log.reap(right + MS, due)
        case "activity_after_end":
            log.reap(right, due)
            log.touch(right + S, 10)
        case "missing_touch":
            log.n += 1
            log.idle_sum_ns += 1
            log.reap(right, due)
        case "backward":
            log.touch(last - S)
            log.reap(right, due)
        case _:
            log.reap(right, due)
    return right
