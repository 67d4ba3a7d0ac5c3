"""What one exchange costs a server in machine instructions and system calls: counts,
which no neighbour can disturb.

    python -m benchmarks run exchanges        needs valgrind and strace

An exchange is a request of 64 bytes, or one of HTTP, and its answer. All clients speak
at once, again and again, and between two rounds every connection is silent;
`exchange_program.py` sees to it that each round is the same. Instructions are counted
by callgrind, in user mode, from a warmed-up round to the last; calls by strace, as the
difference of two numbers of rounds. `plain` is `trio.serve_tcp`; `plain, again` is the
same, counted once more: how far it is from 1.00 is the error of the counting. No tick
falls into it: what one costs is in `benchmarks/heart`.

Two commits whose counts are 2 % apart may cost the same. CPython finds methods by a
cache whose places follow from the order in which classes were made and from where names
lie in memory. Two lookups of each exchange that share a place evict each other, again
and again: `watched()` cost 139,800 to 143,100 instructions when nothing differed but
how many classes were made before.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..common import ROOT, Note, Scale, by_scale, callgrind, markdown, under
from .exchange_program import KINDS

CONNECTIONS = 50

Counted = dict[str, Any]
"""`instructions`: of one exchange; `calls`: name of a system call -> how many of it."""


def run(scale: Scale = "full", note: Note = lambda _: None) -> dict[str, Any]:
    """`results[kind]`, see `Counted`; {"absent": why} where a tool is missing."""
    for tool in ("valgrind", "vgdb", "strace"):
        if shutil.which(tool) is None:
            return {"absent": f"{tool} is not installed (Debian: apt-get install valgrind strace)"}
    rounds = by_scale(scale, 4, 10, 20)
    return {
        "results": count(list(KINDS), CONNECTIONS, rounds, note),
        "connections": CONNECTIONS,
        "rounds": rounds,
    }


def count(
    kinds: Sequence[str], connections: int, rounds: int, note: Note = lambda _: None
) -> dict[str, Counted]:
    """What an exchange of each of *kinds* costs. About ten seconds of CPU each, two at
    a time.

    Raises:
        RuntimeError: a run failed; the message is its output.
    """

    def both(kind: str) -> Counted:
        note(f"counting exchanges of {kind}")
        return {
            "instructions": round(instructions(kind, connections, rounds) / (connections * rounds)),
            "calls": calls(kind, connections, rounds),
        }

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(kinds, pool.map(both, kinds), strict=True))


def instructions(kind: str, connections: int, rounds: int) -> int:
    """Machine instructions of *rounds* rounds."""
    flags = "--instr-atstart=no", "--zero-before=getpriority*"
    return callgrind([*program(kind, connections, rounds), "counted"], ROOT, *flags)


def calls(kind: str, connections: int, rounds: int) -> dict[str, float]:
    """System calls of one exchange, the most frequent first. What is not made every
    tenth time is left out.
    """
    few, many = (_calls(kind, connections, each) for each in (rounds, 3 * rounds))
    each = {
        name: (total - few.get(name, 0)) / (2 * rounds * connections)
        for name, total in many.items()
    }
    return {
        name: round(n, 2) for name, n in sorted(each.items(), key=lambda item: -item[1]) if n >= 0.1
    }


def _calls(kind: str, connections: int, rounds: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "calls"
        under(
            ["strace", "-c", "-U", "calls,name", "-o", str(table)],
            program(kind, connections, rounds),
        )
        rows = (line.split() for line in table.read_text().splitlines())
        return {
            row[1]: int(row[0])
            for row in rows
            if len(row) == 2 and row[0].isdigit() and row[1] != "total"
        }


def program(kind: str, connections: int, rounds: int) -> list[str]:
    """The words after `python`. Padded: where the stack begins depends on how long the
    arguments are.
    """
    return [
        "-m",
        "benchmarks.servers.exchange_program",
        kind.ljust(24),
        str(connections),
        f"{rounds:04}",
    ]


def table(found: dict[str, Any]) -> str:
    """A row per kind: instructions and system calls of an exchange, and the former
    compared with the first's.
    """
    results = found["results"]
    first = next(iter(results.values()))["instructions"]
    rows = []
    for kind, each in results.items():
        n = each["instructions"]
        rows.append([kind, f"{n:,}", f"{n / first:.2f}x", f"{sum(each['calls'].values()):.1f}"])
    return markdown(["", "instructions", "x the first", "calls"], rows)
