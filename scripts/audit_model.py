"""Journals of a model server with arbitrary faults, and what the audit makes of them.

    python -m scripts.audit_model --journals 10000 [--seed 1] [--both 100]

The rule of this module: *the model knows, the audit judges*. The audit must never say
PASS where the model has planted a fault, nor FAIL where it has planted none. `--both`:
so many journals are also given to both engines at once, which must judge every
connection alike. Exit status 1 where one of that does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.journal import ConnectionLog, Journal
from reaper.journal.schema import SEQUENCE_BITS
from reaper.pipeline.audit.account import PIECES
from reaper.pipeline.audit.run import Audit, Settings, audit
from reaper.pipeline.audit.verdicts import VIOLATIONS
from reaper.pipeline.engine import embedded, open_session, use
from reaper.pipeline.read.inputs import check

S = 1_000_000_000
WALL = 1_790_000_000 * S
END = 10_000 * S
TIMEOUTS = (2, 5, 30)
LEAST_LATE = 1.5
"""Seconds: a tick, the grace, and some."""

FAULTS = (
    *("early", "late", "lying_due", "missed", "missed_close", "forgotten", "while_suspended"),
    *("lost", "doubled", "after_end", "claims_none", "backward"),
)
IN_FULL_ALONE = ("claims_none", "backward")
"""What a journal in `gaps` mode cannot show: it has no row of a change between short
silences.
"""


@dataclass
class Connection:
    """One connection of the model: what it does is written to its log at once."""

    chance: random.Random
    journal: Journal
    listener: str
    base: int
    timeout: int
    fault: str | None
    last: float = 0.0
    changed: float = -1.0
    conn: int = 0
    log: ConnectionLog = field(init=False)

    def at(self, seconds: float) -> int:
        return self.base + round(seconds * S)

    @property
    def due(self) -> float:
        due = self.last + self.timeout
        return max(due, self.changed) if self.changed > self.last else due

    @property
    def now(self) -> float:
        """The instant up to which its log is written."""
        return max(self.last, self.changed)

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.chance.randint(0, 1000) / 1000

    def touch(self, t: float) -> None:
        self.log.touch(self.at(t), 10)
        self.last = t

    def live(self) -> None:
        """Open, and be active for a while, by the law."""
        self.log = self.journal.open(self.at(0), self.timeout * 1000, self.listener)
        self.conn = self.log.conn
        for _ in range(self.chance.randint(0, 5)):
            getattr(self, self.chance.choice(("speak", "speak", "work", "park", "set", "spare")))()

    def speak(self) -> None:
        self.touch(self.between(self.now + 0.01, self.due + 0.9))

    def set(self) -> None:
        self.speak()
        self.timeout = self.chance.choice(TIMEOUTS)
        self.log.timeout_ms = self.timeout * 1000

    def work(self) -> None:
        """The server is at work: no timeout is in force."""
        self.speak()
        self.log.timeout_ms = 0
        self.touch(self.now + self.between(0.1, 300))
        self.log.timeout_ms = self.timeout * 1000

    def park(self) -> None:
        """A silent connection gets another timeout, and may be due at once."""
        t = self.between(self.now, max(self.now, self.due))
        self.timeout = self.chance.choice((1, *TIMEOUTS, 300))
        self.log.retime(self.at(t), self.timeout * 1000)
        self.changed = t

    def spare(self) -> None:
        t = self.due + self.between(0, 0.9)
        self.log.averted(self.at(t))
        self.touch(t + self.between(0.001, 0.2))

    def end(self) -> None:
        """End by the law, or by the fault."""
        due, late = self.due, self.due + self.between(LEAST_LATE, 100)
        reap, ends = self.log.reap, (self.log.close_peer, self.log.close_app)
        if self.fault == "early":
            self.speak()
            self.changed = -1.0
            t = self.last + self.between(0, 0.9) * self.timeout
            reap(self.at(t), self.at(t))
        elif self.fault == "late":
            reap(self.at(late), self.at(due))
        elif self.fault == "lying_due":
            reap(self.at(late), self.at(late - 0.5))
        elif self.fault == "missed":
            self.touch(late)
            ends[0](self.at(late + 0.1))
        elif self.fault == "missed_close":
            self.chance.choice(ends)(self.at(late))
        elif self.fault == "while_suspended":
            self.speak()
            self.log.timeout_ms = 0
            reap(self.at(self.last + 50), self.at(self.last + 50))
        elif self.fault == "claims_none":
            self.log._timeout_ms = 0
            self.chance.choice(ends)(self.at(late))
        elif self.fault == "backward":
            self.speak()
            self.log.touch(self.at(self.last - 0.5))
            ends[0](self.at(self.last + 0.1))
        elif self.fault == "after_end":
            ends[0](self.at(self.last + 0.1))
            self.log.touch(self.at(self.last + 1.5))
        elif self.fault != "forgotten":
            if self.chance.random() < 0.5:
                reap(self.at(due + self.between(0, 1.2)), self.at(due))
            else:
                self.chance.choice(ends)(self.at(self.between(self.now, due)))


def write_journal(
    directory: Path, chance: random.Random, writer: int = 1, *, fault: bool | None = None
) -> list[str]:
    """Write the journal of some connections. Returns the faults that were planted.

    *fault*: whether there is one at least; None: by chance.
    """
    mode = chance.choice(("full", "gaps"))
    of = chance.randint(1, 6)
    wrong = chance.random() < 0.5 if fault is None else fault
    possible = [each for each in FAULTS if mode == "full" or each not in IN_FULL_ALONE]
    planted = {chance.randrange(of): chance.choice(possible)} if wrong else {}
    clock = 0
    with Journal(
        directory,
        writer=writer,
        sequence=1,
        mode=mode,
        tick=1.0,
        background=False,
        rotate_bytes=chance.choice((1, 1 << 20)),
        clock_ns=lambda: clock,
        wall_ns=lambda: WALL,
        server="model",
    ) as journal:
        edits = []
        for number in range(of):
            found = planted.get(number)
            timeout = chance.choice(TIMEOUTS)
            each = Connection(chance, journal, f"{writer}", (1 + number) * S, timeout, found)
            each.live()
            each.end()
            if found in ("lost", "doubled"):
                edits.append((each.conn, found))
            if chance.random() < 0.3:
                journal.flush()
        if chance.random() < 0.3:  # it is open, and rightly, when the log ends
            each = Connection(chance, journal, f"{writer}", END - S, 30, None)
            each.log = journal.open(each.at(0), 30_000, each.listener)
            each.touch(0.5)
        journal.config(END, "still here")
    for conn, how in edits:
        edit(directory, conn, how, chance)
    return list(planted.values())


def edit(directory: Path, conn: int, how: str, chance: random.Random) -> None:
    """A row of *conn* is lost, or there twice."""
    files = sorted(directory.glob("*.parquet"))
    tables = [pq.read_table(path) for path in files]
    rows = [
        (file, row)
        for file, table in enumerate(tables)
        for row, (of, kind) in enumerate(
            zip(table["conn"].to_pylist(), table["kind"].to_pylist(), strict=True)
        )
        if of == conn and kind not in ("config", "averted")
    ]
    file, row = chance.choice(rows)
    table = tables[file]
    kept = (
        [*range(table.num_rows), row]
        if how == "doubled"
        else [i for i in range(table.num_rows) if i != row]
    )
    if kept:
        pq.write_table(table.take(pa.array(kept)), files[file])
    else:
        files[file].unlink()


def judged(session: Any, directories: Iterable[Path], out: Path) -> Audit:
    return audit(session, check(directories, now_ns=WALL), None, out, Settings())


def wrong_answer(faults: list[str], result: str, why: object) -> str | None:
    """What is wrong about *result* of a journal with *faults*; None: nothing."""
    if faults and result == "pass":
        return f"PASS, though {faults[0]} was planted"
    if not faults and result != "pass":
        return f"{result.upper()}, though nothing was planted: {why}"
    return None


def result_of(writer: int, rows: list[Any], summary: dict[str, Any]) -> tuple[str, list[str]]:
    """What the audit said of the journal of *writer*, among others, and why. *rows*:
    its connections.
    """
    violations = sorted({row.verdict for row in rows if row.verdict in VIOLATIONS})
    seen = {row.conn for row in rows}
    if rows and max(seen) - min(seen) + 1 != len(seen):
        violations.append("no row")
    doubts = sorted({row.unjudged for row in rows if row.unjudged is not None})
    if any(sum(row[name] for name in PIECES) != row.lifetime_ns for row in rows):
        doubts.append("unaccounted")
    doubts += ["hole" for each in summary["holes"] if each["writer"] == writer]
    aside = (each["path"] for each in summary["files"]["quarantined"])
    doubts += [f"{path} put aside" for path in aside if f"/{writer}/" in path]
    return ("fail" if violations else "inconclusive" if doubts else "pass"), violations + doubts


def trial(seeds: range) -> list[tuple[int, list[str], str, str | None]]:
    """Judge a journal per seed, all at once: (seed, faults, result, what is wrong)."""
    use("embedded")
    found = []
    with embedded.open_session() as session, tempfile.TemporaryDirectory() as place:
        writers = {writer: Path(place) / f"{writer}" for writer in range(1, len(seeds) + 1)}
        planted = {
            writer: write_journal(path, random.Random(seeds[writer - 1]), writer)
            for writer, path in writers.items()
        }
        answer = judged(session, writers.values(), Path(place) / "out")
        of: dict[int, list[Any]] = {writer: [] for writer in writers}
        columns = ("conn", "verdict", "unjudged", "lifetime_ns", *PIECES)
        for row in answer.connections.select(*columns).collect():
            of[row.conn >> SEQUENCE_BITS].append(row)
        for writer, seed in enumerate(seeds, 1):
            result, why = result_of(writer, of[writer], answer.summary)
            faults = planted[writer]
            found.append((seed, faults, result, wrong_answer(faults, result, why)))
    return found


def compared(seeds: range) -> str | None:
    """Give the journals of *seeds* to both engines at once. What differs; None:
    nothing.
    """
    columns = ("conn", "listener", "verdict", "unjudged", "lifetime_ns", *PIECES)

    def rows(found: Audit) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, found.connections.select(*columns).collect()))

    with tempfile.TemporaryDirectory() as place:
        directories = [Path(place) / f"{seed}" for seed in seeds]
        for writer, (seed, directory) in enumerate(zip(seeds, directories, strict=True), 1):
            write_journal(directory, random.Random(seed), writer)
        use("embedded")
        with embedded.open_session() as session:
            ours = rows(judged(session, directories, Path(place) / "embedded"))
        use("spark")
        with open_session("audit model", "local[2]") as spark:
            theirs = rows(judged(spark, directories, Path(place) / "spark"))
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    return (
        f"{len(different)} connection(s) differ, the first: {different[0]}" if different else None
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.audit_model", description=__doc__)
    parser.add_argument("--journals", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--both", type=int, default=0, metavar="JOURNALS")
    given = parser.parse_args(argv)
    began, step = time.monotonic(), 100
    seeds = range(given.seed, given.seed + given.journals)
    parts = [seeds[i : i + step] for i in range(0, len(seeds), step)]
    answers: Counter[tuple[str, str]] = Counter()
    wrong = 0
    with ProcessPoolExecutor(given.processes) as pool:
        for part in pool.map(trial, parts):
            for seed, faults, result, why in part:
                answers[faults[0] if faults else "none", result] += 1
                if why is not None:
                    wrong += 1
                    print(f"seed {seed}: {why}", flush=True)
    for (fault, result), count in sorted(answers.items()):
        print(f"{fault:<18}{result:<14}{count:>7,}")
    print(f"{wrong} of {given.journals:,} wrong, {time.monotonic() - began:.0f} s")
    differs = compared(range(given.seed, given.seed + given.both)) if given.both else None
    if given.both:
        print(f"{given.both} journals on both engines: {differs or 'every connection alike'}")
    return 1 if wrong or differs else 0


if __name__ == "__main__":
    sys.exit(main())
