"""Journals for tests: by hand through the real `Journal`, or simulated by the load
generator, with planted faults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from loadgen.journals import MS, Planted, S, write_journals
from loadgen.journals import NAMES as FAULTS
from loadgen.plan.plan import Law, make_plan
from loadgen.plan.scenario import from_mix
from reaper.journal import ConnectionLog, Journal

__all__ = [
    "FAULTS",
    "MS",
    "WALL",
    "Clock",
    "S",
    "journal",
    "on_spark",
    "only",
    "play",
    "write",
]

WALL = 1_790_000_000 * S
SPAN_S = 90.0


def on_spark(test: Any) -> Any:
    """Mark *test*: it starts a Spark, or asks the one of all tests."""
    return pytest.mark.spark(pytest.mark.slow(test))


@dataclass
class Clock:
    """A clock to pass to a journal: `mono` ns, and the wall `WALL` ns later plus
    `step`.
    """

    now: int = 0
    step: int = 0

    def mono(self) -> int:
        return self.now

    def wall(self) -> int:
        return WALL + self.now + self.step


def journal(directory: Path, writer: int, clock: Clock | None = None, **options: Any) -> Journal:
    clock = clock or Clock()
    options = {"mode": "full", "tick": 1.0, "sequence": 1, **options}
    return Journal(
        directory,
        writer=writer,
        background=False,
        clock_ns=clock.mono,
        wall_ns=clock.wall,
        **options,
    )


def only(directory: Path) -> Path:
    """Its one Parquet file."""
    (path,) = directory.glob("*.parquet")
    return path


def write(
    server: Path,
    client: Path | None = None,
    *,
    connections: int = 200,
    seed: int = 1,
    faults: dict[str, int] | None = None,
    mode: str = "full",
    server_clock_ahead: int = 0,
    listeners: tuple[str, ...] = ("echo",),
) -> dict[str, int]:
    """Simulate a run with a timeout of 5 s. Returns how many *connections* an audit
    must come to, by verdict.
    """
    right = connections - sum((faults or {}).values())
    plan = make_plan(
        from_mix("bursty=3,leave=1"), right, Law(5.0, 1.0), SPAN_S, seed, connections / 20
    )
    behaviours = tuple(
        replace(each, listener=name) for name in listeners for each in plan.behaviours
    )
    of = len(plan.behaviours)
    kinds = bytes(kind + index % len(listeners) * of for index, kind in enumerate(plan.kinds))
    plan = replace(plan, behaviours=behaviours, kinds=kinds)
    planted = Planted(faults or {}, server_clock_ahead / S)
    verdicts: dict[str, int] = write_journals(
        plan, server, client, span=SPAN_S, mode=mode, planted=planted
    )["verdicts"]
    return verdicts


def play(
    script: str,
    base: int,
    ours: Journal,
    theirs: Journal | None = None,
    peer: int | None = None,
    listener: str | None = "echo",
) -> int:
    """Write the steps of *script*, and return the server's connection.

    A step is a verb, its instant in seconds after *base*, and what it takes: `open 0 5`
    (with a timeout of 5 s), `touch 3`, `averted 5.5`, `gap 1 2` (a silence),
    `close_peer 4`, `reap 6 5` (due at 5), `deadline 6 5` (a reap by one). `retime 30`
    sets the timeout, `retimed 9 30` does so during a silence, `claim 30` without a row.
    `c.`: by the client; `both`: both open it.
    """
    logs: dict[str, ConnectionLog] = {}
    for step in script.split("; "):
        words = step.removeprefix("c.").split()
        side, verb, given = "c" if step.startswith("c.") else "s", words[0], words[1:]
        at = [None if number == "-" else base + round(float(number) * S) for number in given]
        if verb in ("open", "both"):
            opening = (at[0], round(float(given[1]) * 1000), listener)
            for each in "sc" if verb == "both" else side:
                journal_of = ours if each == "s" else theirs
                assert journal_of is not None
                logs[each] = journal_of.open(*opening, peer=peer)  # type: ignore[arg-type]
        elif verb in ("retime", "claim"):
            timeout = None if given[0] == "-" else round(float(given[0]) * 1000)
            setattr(logs[side], "timeout_ms" if verb == "retime" else "_timeout_ms", timeout)
        elif verb == "retimed":
            logs[side].retime(at[0], round(float(given[1]) * 1000))  # type: ignore[arg-type]
        elif verb == "deadline":
            logs[side].reap(at[0], at[1], "max_age", deadline=True)  # type: ignore[arg-type]
        else:
            getattr(logs[side], verb)(*at)
    return logs["s"].conn
