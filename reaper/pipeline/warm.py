"""What a session that stays is asked about before anybody asks: two journals of ours. Run by its keeper, not by hand.

One rule: *nothing is learnt from them*. The small one, of both sides, holds every kind of end: a first question meets
every part of Spark. The large one holds rows enough that Java compiles well what reads, groups, joins and writes rows.

A user comes first: nothing is asked while a command works, or shortly after one. It ends with its keeper.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
import time
from pathlib import Path

from ..journal import Journal
from . import cli
from .session.standing import locked, place

S = 1_000_000_000
MS = 1_000_000
CONNECTIONS = 40
"""Of the small journal."""

CROWD, TOUCHES, WAVES = 1000, 14, 10
"""Of the large one: connections at a time, what each says, and how often there are so many."""

LOOK_S = 0.2
LEISURE_S = 2.0
"""How long nobody has asked when it asks."""

AUDITS, OTHERS = 4, 2
"""How often it asks for audits, and for anything else. Later answers are hardly faster."""


def write_journals(server: Path, client: Path) -> None:
    """Write one run's journals below *server* and *client*, both sides of the same connections."""
    now = 10_000 * S

    def clock() -> int:
        return now

    with Journal(server, writer=1, mode="full", tick=1.0, background=False, clock_ns=clock, sequence=1) as ours:
        theirs = Journal(client, writer=900, mode="full", tick=1.0, background=False, clock_ns=clock, sequence=1)
        for number in range(CONNECTIONS):
            opened = S + number * 10 * MS
            log, seen = (side.open(opened, 5000, "warm", peer=number + 1) for side in (ours, theirs))
            for t in (opened + S, opened + 2 * S):
                seen.touch(t, 10)
                log.touch(t + MS, 10)
            if number % 4:
                due = opened + 8 * S
                log.reap(due, due)
                seen.close_peer(due + MS)
            else:
                log.close_peer(opened + 3 * S)
                seen.close_app(opened + 3 * S - MS)
        theirs.close()


def write_crowd(server: Path) -> None:
    """Write a journal of 160,000 rows below *server*: wave after wave of connections, a stall in each."""
    now = 10_000 * S

    def clock() -> int:
        return now

    with Journal(
        server, writer=2, mode="full", tick=1.0, background=False, clock_ns=clock, sequence=1, queue_rows=1 << 20
    ) as journal:
        spread = 1
        for wave in range(WAVES):
            t = S + wave * 60 * S
            logs = [journal.open(t, 5000, "warm", peer=i + 1) for i in range(CROWD)]
            last = [t] * CROWD
            for _ in range(TOUCHES):
                t += S
                for i, log in enumerate(logs):
                    spread = spread * 48_271 % 0x7FFFFFFF
                    last[i] = t = t + spread % MS
                    log.touch(t, spread % 1000)
            journal.stall(t + 9 * S, 3 * S)
            for i, log in enumerate(logs):
                due = last[i] + 5 * S
                if i % 100 == 0:
                    log.reap(due + 3 * S, due)  # the stall excuses it
                elif i % 3:
                    log.reap(due, due)
                else:
                    log.close_peer(last[i] + S)
            journal.flush()


def _leisure(where: Path) -> None:
    """Return once no command has used the session in *where* for a while."""
    while True:
        try:
            with locked(where, fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
                idle_s = time.time() - os.fstat(lock.fileno()).st_mtime
        except BlockingIOError:
            idle_s = 0.0
        if idle_s > LEISURE_S:
            return
        time.sleep(LOOK_S)


def _end_with_keeper(scratch: str) -> None:
    """End this process when its standard input does: with its keeper, however that ends."""
    while os.read(0, 4096):  # not by `sys.stdin`, which an interpreter that ends would wait for
        pass
    while Path(scratch).exists():  # the other thread may still be writing there
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def main(scratch: str) -> int:
    """Ask everything, in turns, about journals that are written below *scratch*.

    Exit status: 0 it was answered, 1 the keeper has ended, 2 it was not answered.
    """
    where = place()
    threading.Thread(target=_end_with_keeper, args=(scratch,), daemon=True).start()
    server, client, crowd, out = (str(Path(scratch, name)) for name in ("server", "client", "crowd", "out"))
    write_journals(Path(server), Path(client))
    write_crowd(Path(crowd))
    audits = [["audit", "--events", server], ["audit", "--events", crowd]]
    others = [["report", "--events", server, "--client", client], ["advise", "--events", crowd]]
    for turn in range(AUDITS):
        for question in [*(others if turn < OTHERS else []), *audits]:
            _leisure(where)
            if (status := cli.main([*question, "--out", out, "--quiet"])) == 2:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
