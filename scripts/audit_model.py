"""Journals of a model server and its clients with arbitrary faults, and what the audit
makes of them.

    python -m scripts.audit_model --journals 10000 [--seed 1] [--both 100] [--alone 300]

The rule of this module: *the model knows, the audit judges*. The audit must never say
PASS where the model has planted a fault or lost rows, nor FAIL where it has planted no
fault. `--both`: so many journals are also given to both engines at once, which must
judge every connection alike. `--alone`: so many worlds with clients are judged one by
one, each with an `--unmatched` of its own; of some retention has taken an opening. Exit
status 1 where one of that does not hold.

A world is a server, which may stand still for a while, be restarted under the name of
its run, or lose rows, and in every second batch the clients' own journal.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.journal import ConnectionLog, Journal
from reaper.journal.schema import SEQUENCE_BITS
from reaper.pipeline.audit import words
from reaper.pipeline.audit.account import PIECES
from reaper.pipeline.audit.run import Audit, Settings, audit
from reaper.pipeline.audit.verdicts import UNMATCHED, VIOLATIONS
from reaper.pipeline.engine import embedded, open_session, use
from reaper.pipeline.read.inputs import Inputs, check

S = 1_000_000_000
WALL = 1_790_000_000 * S
LAST = 10_000
END = LAST * S
RESTARTED = 100_000
"""By how much the connections of a restarted server are numbered further on."""
TIMEOUTS = (2, 5, 30)
LEAST_LATE = 1.5
"""Seconds: a tick, the grace, and some."""

FAULTS = (
    *("early", "late", "lying_due", "missed", "missed_close", "forgotten", "while_suspended"),
    *("lost", "doubled", "after_end", "claims_none", "backward", "busy_stall"),
    *("opening_gone", "uncounted", "claims_before", "unsaid_deadline", "lying_told"),
)
"""The last five are exemptions that no row grants."""
IN_FULL_ALONE = ("claims_none", "backward", "claims_before")
"""What a journal in `gaps` mode cannot show: it has no row of a change between short
silences.
"""
IN_GAPS_ALONE = ("uncounted",)
"""In `full` mode each activity has a row."""
BY_CLIENT = ("unheard", "seen_late", "unseen")
"""What a server's journal cannot show: bytes that it did not note, a close that came
later than it says, and one that never came.
"""
WAYS = (0.0005, 0.0005, 0.02, 0.2)
"""Seconds that bytes take to the other side."""
CLIENTS = 1 << 19
"""The writer of a world's clients is so much greater than that of its server."""


@dataclass(frozen=True)
class Planted:
    """What the model knows of a world. *doubts*: rows that were lost, whatever they
    said.
    """

    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    connections: int = 0
    retained: bool = False
    """Whether retention has taken the opening of one that ended by the law."""


@dataclass
class Loop:
    """The server's loop. While it stands still nothing happens; all of it comes after,
    in its order.
    """

    begin: float = 0.0
    length: float = 0.0

    def awake(self, t: float) -> float:
        """The instant at which it does what is to be done at *t*, seconds."""
        late = t - self.begin
        return self.begin + self.length + late / 1000 if 0 < late < self.length else t


@dataclass
class Connection:
    """One connection of the model: what it does is written to its logs at once. Times
    are in seconds on the server's clock, since the first connection.
    """

    chance: random.Random
    journal: Journal
    listener: str
    base: float
    timeout: int
    fault: str | None
    loop: Loop = field(default_factory=Loop)
    clients: Journal | None = None
    way: float = 0.0
    peer: int | None = None
    last: float = 0.0
    changed: float = -1.0
    conn: int = 0
    log: ConnectionLog = field(init=False)
    seen: ConnectionLog | None = None

    def __post_init__(self) -> None:
        self.last = self.base
        self.log = self.journal.open(
            at(self.base), self.timeout * 1000, self.listener, peer=self.peer
        )
        self.conn = self.log.conn
        if self.clients is not None:
            begun = at(self.base - self.way)
            self.seen = self.clients.open(begun, self.timeout * 1000, self.listener, self.peer)

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

    def touch(self, t: float, sent: float | None = None) -> None:
        """Bytes come at *t*. They were *sent* so that they come then, or earlier."""
        if self.seen is not None:
            self.seen.touch(at((t if sent is None else sent) - self.way), 10)
        self.last = self.loop.awake(t)
        self.log.touch(at(self.last), 10)

    def live(self) -> None:
        """Be active for a while, by the law."""
        for _ in range(self.chance.randint(0, 5)):
            getattr(
                self, self.chance.choice(("speak", "speak", "chat", "work", "park", "set", "spare"))
            )()

    def speak(self) -> None:
        self.touch(self.between(self.now + 0.01, self.due + 0.9))

    def chat(self) -> None:
        """Be silent for so short times that no row says so, in `gaps` mode."""
        for _ in range(self.chance.randint(5, 40)):
            self.touch(self.now + 0.9)

    def set(self) -> None:
        self.speak()
        self.timeout = self.chance.choice(TIMEOUTS)
        self.log.timeout_ms = self.timeout * 1000

    def work(self) -> None:
        """The server is at work: no timeout is in force."""
        self.speak()
        self.log.timeout_ms = 0
        self.last = self.loop.awake(self.now + self.between(0.1, 300))
        self.log.touch(at(self.last))  # it has answered: of that its client sends nothing
        self.log.timeout_ms = self.timeout * 1000

    def park(self) -> None:
        """A silent connection gets another timeout, and may be due at once."""
        t = self.loop.awake(self.between(self.now, max(self.now, self.due)))
        self.timeout = self.chance.choice((1, *TIMEOUTS, 300))
        self.log.retime(at(t), self.timeout * 1000)
        self.changed = t

    def spare(self) -> None:
        """Bytes have come by the final check, and are read a little later."""
        t = self.loop.awake(self.due + self.between(0, 0.9))
        self.log.averted(at(t))
        self.touch(t + self.between(0.001, 0.2 if self.seen is None else 0.04), sent=t)

    def reap(self, t: float, due: float) -> None:
        self.log.reap(at(t), at(due))
        if self.seen is not None:
            self.seen.close_peer(at(t + self.way))

    def close(self, t: float, *, by_peer: bool) -> None:
        """It ends at *t* by its client or the program: the server does so when it is
        awake.
        """
        done = at(self.loop.awake(t))
        if by_peer:
            self.log.close_peer(done)
            if self.seen is not None:
                self.seen.close_app(at(t - self.way))
        else:
            self.log.close_app(done)
            if self.seen is not None:
                self.seen.close_peer(done + round(self.way * S))

    def end(self) -> None:
        """End by the law, or by the fault."""
        due = self.due
        late = due + self.loop.length + self.between(LEAST_LATE, 100)
        by_peer = self.chance.random() < 0.5
        if self.fault == "early":
            self.speak()
            self.changed = -1.0
            t = self.last + self.between(0, 0.9) * self.timeout
            self.reap(t, t)
        elif self.fault == "late":
            self.reap(late, due)
        elif self.fault == "lying_due":
            self.reap(late, late - 0.5)
        elif self.fault == "missed":
            self.touch(late)
            self.close(self.last + 0.1, by_peer=True)
        elif self.fault == "missed_close":
            self.close(late, by_peer=by_peer)
        elif self.fault == "while_suspended":
            self.speak()
            self.log.timeout_ms = 0
            self.reap(self.last + 50, self.last + 50)
        elif self.fault == "claims_none":
            self.log._timeout_ms = 0
            self.close(late, by_peer=by_peer)
        elif self.fault == "backward":
            self.speak()
            self.log.touch(at(self.last - 0.5))
            self.close(self.last + 0.1, by_peer=True)
        elif self.fault == "after_end":
            self.close(self.last + 0.1, by_peer=True)
            self.log.touch(at(self.last + 1.5))
        elif self.fault == "busy_stall":  # late, by a stall in which others were served
            self.reap(late + 5, due)
            self.journal.stall(at(late + 4.9), round((late - due + 4.8) * S))
            other = Connection(self.chance, self.journal, self.listener, due + 0.5, 300, None)
            other.touch(due + 2)
            other.close(due + 3, by_peer=True)
        elif self.fault == "unheard" and self.seen is not None:
            reaped = self.loop.awake(due + self.between(0, 1.2))
            self.seen.touch(at(reaped - self.between(2 * self.way + 0.1, 0.85 * self.timeout)))
            self.reap(reaped, due)
        elif self.fault == "seen_late" and self.seen is not None:
            self.log.reap(at(self.loop.awake(due + 0.5)), at(due))
            self.seen.close_peer(at(late + 1.5 + 2 * self.way))
        elif self.fault == "unseen" and self.seen is not None:
            self.log.reap(at(self.loop.awake(due + 0.5)), at(due))
        elif self.fault == "uncounted":
            before, self.timeout = self.log.n, 30
            self.log.timeout_ms = 30_000
            self.touch(self.now + 0.5)
            for _ in range(3000):  # more than final checks may have ended
                self.touch(self.now + 0.9)
            self.log.n = before
            self.close(self.now + 0.1, by_peer=by_peer)
        elif self.fault == "claims_before":
            self.speak()
            self.log.timeout_ms = 60_000
            self.touch(self.now + 0.5)
            self.log.timeout_ms = 2000
            self.log._timeout_ms = 60_000
            self.touch(self.last + self.loop.length + 40)
            self.close(self.last + 0.1, by_peer=by_peer)
        elif self.fault == "unsaid_deadline":
            self.log._timeout_ms = None
            t = self.now + self.loop.length + 1000
            self.log.reap(at(t), at(t), deadline=True)
            if self.seen is not None:
                self.seen.close_peer(at(t + self.way))
        elif self.fault not in ("forgotten", "opening_gone", "lying_told"):
            if self.chance.random() < 0.5:
                self.reap(self.loop.awake(due + self.between(0, 1.2)), due)
            else:
                self.close(self.between(self.now, due), by_peer=by_peer)


def at(seconds: float) -> int:
    return round(seconds * S)


def write_world(
    place: Path,
    chance: random.Random,
    writer: int = 1,
    *,
    way: float | None = None,
    drops: bool = False,
    retains: bool = False,
) -> Planted:
    """Write the journal of a server, *place*/server, and with *way*, the seconds to its
    clients, that of these, *place*/client. *drops*: the clients' writer loses rows.
    *retains*: retention takes the first opening where nothing is planted. Returns what
    was planted.
    """
    mode = chance.choice(("full", "gaps"))
    of = chance.randint(1, 6) if way is None else chance.randint(4, 8)
    possible = [
        each for each in FAULTS if each not in (IN_GAPS_ALONE if mode == "full" else IN_FULL_ALONE)
    ]
    possible += BY_CLIENT * 3 if way is not None else ()
    wrong = chance.random() < 0.5
    planted = {chance.randrange(of): chance.choice(possible)} if wrong else {}
    if "opening_gone" in planted.values():
        planted = {0: "opening_gone"}
    loop = Loop()
    if chance.random() < 0.4 and "busy_stall" not in planted.values():
        loop = Loop(chance.randint(100, 3000) / 10, chance.randint(2, 300) / 10)
    starts = 2 if chance.random() < 0.25 and of > 1 else 1
    loses = chance.random() < 0.15
    rotate_bytes, doubts = chance.choice((1, 1 << 20)), []
    # Retention takes the file with the opening of the first.
    # Without a fault, only where no client is asked: the address goes with the
    # opening, and one of a few without a counterpart is rightly more than may be.
    alone = not planted and way is None
    gone = retains and not planted
    # And only where there is another: of one alone nothing is judged, and that is said.
    alone = alone and of > 1
    retained = gone or planted.get(0) == "opening_gone" or (alone and chance.random() < 0.2)
    if retained:
        loses, rotate_bytes, starts = False, 1, 1
    with ExitStack() as stack:

        def opened(side: str, of: int, **options: Any) -> Journal:
            return stack.enter_context(
                Journal(
                    place / side,
                    writer=of,
                    tick=1.0,
                    background=False,
                    clock_ns=lambda: 0,
                    wall_ns=lambda: WALL,
                    server="model",
                    **options,
                )
            )

        clients = None
        if way is not None:
            lost: dict[str, Any] = {"queue_rows": chance.randint(3, 8)} if drops else {}
            clients = opened("client", writer + CLIENTS, sequence=1, mode="full", **lost)
        lost = {"queue_rows": chance.randint(3, 12)} if loses else {}
        options = {"mode": mode, "rotate_bytes": rotate_bytes, **lost}
        journals = [
            opened("server", writer, sequence=1 + RESTARTED * start, **options)
            for start in range(starts)
        ]
        edits = []
        for number in range(of):
            found = planted.get(number)
            journal = journals[number * starts // of]
            each = Connection(
                *(chance, journal, f"{writer}", 1.0 + number, chance.choice(TIMEOUTS), found, loop),
                *(clients, way or 0.0, writer * 1000 + number),
            )
            if number == 0 and retained:
                journal.flush()
            each.live()
            each.end()
            if found in ("lost", "doubled", "lying_told"):
                edits.append((each.conn, found))
            if chance.random() < 0.3:
                journal.flush()
        if chance.random() < 0.3:  # it is open, and rightly, when the log ends
            peer = writer * 1000 + 999
            last = Connection(
                *(chance, journals[-1], f"{writer}", LAST - 1, 30, None, Loop()),
                *(clients, way or 0.0, peer),
            )
            last.touch(LAST - 0.5)
        for journal in journals:
            if loop.length:
                journal.stall(at(loop.begin + loop.length), at(loop.length))
            journal.config(END, "still here")
        if clients is not None:
            clients.config(END, "still here")
        for side, each_of in (("server", journals), ("client", [clients] if clients else [])):
            # What is written last is lost as well where the queue is full.
            if any(journal.statistics().dropped for journal in each_of):
                doubts.append(f"rows of the {side} were dropped")
    if retained:
        min((place / "server").glob("*.parquet"), key=lambda path: path.name).unlink()
    for conn, how in edits:
        edit(place / "server", conn, how, chance)
    if starts > 1:
        under_one_name(place / "server")
    return Planted(list(planted.values()), doubts, of, gone)


def under_one_name(directory: Path) -> None:
    """The files of *directory* are of one run, as they say: it kept its name over a
    restart.
    """
    for path in directory.glob("*.parquet"):
        table = pq.read_table(path)
        named = {**table.schema.metadata, b"reaper.run": b"abcdef"}
        pq.write_table(table.replace_schema_metadata(named), path)


def edit(directory: Path, conn: int, how: str, chance: random.Random) -> None:
    """A row of *conn* is lost, or there twice; or those by which it is open say that it
    is due much later.
    """
    files = sorted(directory.glob("*.parquet"))
    tables = [pq.read_table(path) for path in files]
    if how == "lying_told":
        for path, table in zip(files, tables, strict=True):
            told = [
                2 * END if of == conn and reason == "open" else due
                for of, reason, due in zip(
                    *(table[name].to_pylist() for name in ("conn", "reason", "due_ns")),
                    strict=True,
                )
            ]
            field = table.schema.get_field_index("due_ns")
            pq.write_table(table.set_column(field, "due_ns", pa.array(told, pa.int64())), path)
        return
    rows = [
        (file, row)
        for file, table in enumerate(tables)
        for row, (of, kind) in enumerate(
            zip(table["conn"].to_pylist(), table["kind"].to_pylist(), strict=True)
        )
        if of == conn and kind not in ("config", "averted")
    ]
    if not rows:  # its writer has lost all of them
        return
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


def judged(
    session: Any, worlds: Iterable[Path], out: Path, joined: bool, unmatched: float = UNMATCHED
) -> tuple[Audit, Inputs]:
    """The audit of the servers of *worlds*, *joined* with their clients, of which the
    share *unmatched* may be missing, and what the check found.
    """
    places = list(worlds)
    server = check([place / "server" for place in places], now_ns=WALL)
    client = check([place / "client" for place in places], now_ns=WALL) if joined else None
    return audit(session, server, client, out, Settings(unmatched=unmatched)), server


def wrong_answer(planted: Planted, result: str, why: object) -> str | None:
    """What is wrong about *result* of a world; None: nothing."""
    if planted.faults:
        return f"PASS, though {planted.faults[0]} was planted" if result == "pass" else None
    if planted.doubts:
        known = f"{result.upper()}, though {planted.doubts[0]}, and nothing else: {why}"
        return known if result != "inconclusive" else None
    if result != "pass":
        return f"{result.upper()}, though nothing was planted: {why}"
    return None


def result_of(
    writer: int, rows: list[Any], summary: dict[str, Any], server: Inputs, known: Planted
) -> tuple[str, list[str]]:
    """What the audit said of the world of *writer*, among others, and why. *rows*: its
    connections; *known*: what was planted in it.
    """
    violations = sorted({row.verdict for row in rows if row.verdict in VIOLATIONS})
    runs = [run for run in server.runs if run.writer == writer]
    doubts = sorted({row.unjudged for row in rows if row.unjudged is not None})
    doubts += ["ended on one side" for row in rows if getattr(row, "one_end", False)]
    doubts += ["rows dropped" for run in runs if run.dropped]
    for run in runs:
        seen = {row.conn for row in rows if run.first_conn <= row.conn <= run.last_conn}
        if seen and max(seen) - min(seen) + 1 != len(seen) and not run.holed:
            violations.append("no row")
    if any(sum(row[name] for name in PIECES) != row.lifetime_ns for row in rows):
        doubts.append("unaccounted")
    doubts += ["hole" for each in summary["holes"] if each["writer"] == writer]
    aside = (each["path"] for each in summary["files"]["quarantined"])
    doubts += [f"{path} put aside" for path in aside if f"/{writer}/" in path]
    # What is said of all worlds together. That clocks disagree is by those with faults.
    skew = summary["clock"]["skew_s"]
    if (
        known.faults
        and skew is not None
        and (not skew["consistent"] or (skew["spread"] or 0.0) > summary["settings_s"]["flight"])
    ):
        doubts.append("clocks")
    if known.faults and any(getattr(row, "steps", False) for row in rows):
        doubts.append("not compared")  # and counted: of many worlds these are few
    if any(DROPPED_BY_THE_CLIENT in reason for reason in summary["reasons"]):
        doubts.append("rows of the client dropped")
    return ("fail" if violations else "inconclusive" if doubts else "pass"), violations + doubts


DROPPED_BY_THE_CLIENT = words.dropped_by_the_client(0).split("0", 1)[1]


Answer = tuple[int, Planted, str, str | None]
"""A seed, what was planted in its world, the audit's result, and what is wrong."""


def trial(seeds: range) -> list[Answer]:
    """Judge a world per seed, all at once."""
    use("embedded")
    with embedded.open_session() as session:
        return answers(session, seeds)


def answers(session: Any, seeds: range) -> list[Answer]:
    """Judge a world per seed, all at once, in *session*. Every second batch has
    clients, all of them as far away.
    """
    batch = random.Random(seeds[0])
    way = batch.choice(WAYS) if batch.random() < 0.5 else None
    drops = batch.random() < 0.2
    found = []
    with tempfile.TemporaryDirectory() as place:
        worlds = {writer: Path(place) / f"{writer}" for writer in range(1, len(seeds) + 1)}
        planted = {
            writer: write_world(
                path, random.Random(seeds[writer - 1]), writer, way=way, drops=drops
            )
            for writer, path in worlds.items()
        }
        answer, server = judged(session, worlds.values(), Path(place) / "out", way is not None)
        of: dict[int, list[Any]] = {writer: [] for writer in worlds}
        columns = ("conn", "verdict", "unjudged", "lifetime_ns", *PIECES)
        columns += ("one_end", "steps") if way is not None else ()
        for row in answer.connections.select(*columns).collect():
            of[row.conn >> SEQUENCE_BITS].append(row)
        for writer, seed in enumerate(seeds, 1):
            known = planted[writer]
            result, why = result_of(writer, of[writer], answer.summary, server, known)
            if way is not None and drops:  # whichever client's: it is said of all of them
                known = Planted(known.faults, [*known.doubts, "rows of a client were dropped"])
            found.append((seed, known, result, wrong_answer(known, result, why)))
    return found


def alone(seed: int) -> Answer:
    """Judge the world of *seed* and its clients by itself, by all that the audit
    says.
    """
    chance = random.Random(f"alone {seed}")
    way, unmatched = chance.choice(WAYS), chance.choice((0.0, UNMATCHED, 0.5))
    retains = chance.random() < 0.5
    use("embedded")
    with embedded.open_session() as session, tempfile.TemporaryDirectory() as place:
        world = Path(place)
        known = write_world(world, random.Random(seed), way=way, retains=retains)
        answer, _ = judged(session, [world], world / "out", True, unmatched)
    result, why = answer.summary["result"], answer.summary["reasons"]
    # One connection of each side lacks the other's, or the other's end.
    may = unmatched * known.connections >= 1
    if known.faults == ["unseen"] and may:
        return seed, known, result, None  # so many may be missing
    if known.retained:
        one_sided = ["an opening is gone" for _ in range(not may)]
        known = Planted([], [*known.doubts, *one_sided], known.connections, True)
    return seed, known, result, wrong_answer(known, result, why)


def compared(seeds: range) -> str | None:
    """Give the worlds of *seeds* to both engines at once, without their clients and
    with them. What differs; None: nothing.
    """
    columns = ("conn", "listener", "verdict", "unjudged", "lifetime_ns", *PIECES)

    def rows(session: Any, worlds: list[Path], out: Path) -> list[tuple[Any, ...]]:
        found = []
        for joined in (False, True):
            answer, _ = judged(session, worlds, out / f"{joined}", joined)
            more = ("c_conn", "seen_lateness_ns", "crossed") if joined else ()
            asked = answer.connections.select(*columns, *more)
            found += sorted(map(tuple, asked.collect()), key=lambda row: row[0])
        return found

    with tempfile.TemporaryDirectory() as place:
        worlds = [Path(place) / f"{seed}" for seed in seeds]
        for writer, (seed, world) in enumerate(zip(seeds, worlds, strict=True), 1):
            write_world(world, random.Random(seed), writer, way=WAYS[0])
        use("embedded")
        with embedded.open_session() as session:
            ours = rows(session, worlds, Path(place) / "embedded")
        use("spark")
        with open_session("audit model", "local[2]") as spark:
            theirs = rows(spark, worlds, Path(place) / "spark")
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
    parser.add_argument("--alone", type=int, default=0, metavar="JOURNALS")
    given = parser.parse_args(argv)
    logging.disable()  # that rows are lost is asked for
    began, step = time.monotonic(), 100
    seeds = range(given.seed, given.seed + given.journals)
    parts = [seeds[i : i + step] for i in range(0, len(seeds), step)]
    answers: Counter[tuple[str, str]] = Counter()
    wrong = 0
    with ProcessPoolExecutor(given.processes, initializer=logging.disable) as pool:
        by_itself = pool.map(alone, range(given.seed, given.seed + given.alone))
        for part in chain(pool.map(trial, parts), [by_itself]):
            for seed, planted, result, why in part:
                known = planted.faults or planted.doubts or ["nothing"]
                answers[known[0], result] += 1
                if why is not None:
                    wrong += 1
                    print(f"seed {seed}: {why}", flush=True)
    for (fault, result), count in sorted(answers.items()):
        print(f"{fault:<32}{result:<14}{count:>7,}")
    total = given.journals + given.alone
    print(f"{wrong} of {total:,} worlds judged wrongly, {time.monotonic() - began:.0f} s")
    differs = compared(range(given.seed, given.seed + given.both)) if given.both else None
    if given.both:
        print(f"{given.both} worlds on both engines: {differs or 'every connection alike'}")
    return 1 if wrong or differs else 0


if __name__ == "__main__":
    sys.exit(main())
