"""A made-up server in real time: `python live_writer.py DIR WRITER SECONDS MODE`. Its journal
rotates often; SIGINT ends it."""

from __future__ import annotations

import random
import signal
import sys
import time
from threading import Event

from reaper.journal import ConnectionLog, Journal

S = 1_000_000_000
TIMEOUT_MS = 600


def main(directory: str, writer: int, seconds: float, mode: str) -> None:
    stop = Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    chance = random.Random(writer)
    options = {"writer": writer, "mode": mode, "gap_threshold": 0.2, "tick": 0.1}
    with Journal(directory, flush=0.1, rotate_seconds=1.0, **options) as journal:  # type: ignore[arg-type]
        end = time.monotonic_ns() + round(seconds * S)
        living: list[ConnectionLog] = []
        while time.monotonic_ns() < end and not stop.wait(0.1):
            living += [journal.open(time.monotonic_ns(), TIMEOUT_MS, chance.choice(["echo", "http"])) for _ in range(4)]
            living = [log for log in living if lives_on(log, chance)]


def lives_on(log: ConnectionLog, chance: random.Random) -> bool:
    """One round of one connection: silent for its timeout it is reaped, else it may speak, leave, or say nothing."""
    now = time.monotonic_ns()
    due = log.last_ns + TIMEOUT_MS * 1_000_000
    if now >= due:
        log.reap(now, due, "idle")
    elif (what := chance.random()) < 0.02:
        log.close_peer(now)
    elif what < 0.3:
        log.touch(now, 10)
    return not log.ended


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
