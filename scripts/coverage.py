"""Writes docs/coverage.md: the share of branches that the quick tests take, by room.

    python -m scripts.coverage out/coverage/report.json docs/coverage.md

The rule of this module: *a share without its number is no figure*. Each row says of how
many.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = """<!-- Written by `make coverage`; do not edit. -->

# Which branches the quick tests take

`make coverage` runs the tests of `make test-quick` in one process. It counts, by room,
how many lines were run and how many branches were taken. Much of `reaper` is only
reached in a server that a test starts as a process of its own, under the clock: those
tests are slow ones, and count nothing here. So a low share says that a room is tested
from outside, not that it is untested.

| room | lines | run | branches | taken |
|---|---:|---:|---:|---:|
{rows}

The least covered modules of more than 40 lines, where no quick test goes:

| module | lines | run |
|---|---:|---:|
{least}
"""

SHORT = 40
"""Lines; a module that is not longer is in no list of the least covered."""


@dataclass(slots=True)
class Share:
    """What was found of some files.

    Attributes:
        lines, run: Statements, and how many of them were executed.
        branches, taken: Branches, and how many of them were taken.
    """

    lines: int = 0
    run: int = 0
    branches: int = 0
    taken: int = 0

    def add(self, summary: Mapping[str, int]) -> None:
        """Add the summary of one file, as coverage's JSON has it."""
        self.lines += summary["num_statements"]
        self.run += summary["covered_lines"]
        self.branches += summary["num_branches"]
        self.taken += summary["covered_branches"]


def room_of(file: str) -> str:
    """The room of *file*: `reaper/core` of `reaper/core/ring.py`, `reaper` of
    `reaper/logs.py`.
    """
    parts = Path(file).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def percent(part: int, whole: int) -> str:
    """*part* of *whole* for a table; `-` where there is nothing to take a share of."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def page(report: Mapping[str, Any]) -> str:
    """Write the page from *report*, what `coverage json` wrote."""
    rooms: dict[str, Share] = defaultdict(Share)
    for file, found in report["files"].items():
        rooms[room_of(file)].add(found["summary"])
        rooms["together"].add(found["summary"])
    rows = [
        f"| {room} | {share.lines:,} | {percent(share.run, share.lines)} "
        f"| {share.branches:,} | {percent(share.taken, share.branches)} |"
        for room, share in sorted(rooms.items(), key=lambda pair: (pair[0] == "together", pair[0]))
    ]
    long = [
        (file, found["summary"])
        for file, found in report["files"].items()
        if found["summary"]["num_statements"] > SHORT
    ]
    long.sort(key=lambda pair: pair[1]["covered_lines"] / pair[1]["num_statements"])
    least = [
        f"| {file} | {each['num_statements']} "
        f"| {percent(each['covered_lines'], each['num_statements'])} |"
        for file, each in long[:10]
    ]
    return PAGE.format(rows="\n".join(rows), least="\n".join(least))


def main(arguments: Sequence[str]) -> int:
    """Write the page named second from the report named first."""
    report, target = map(Path, arguments)
    text = page(json.loads(report.read_text()))
    target.write_text(text)
    print(next(line for line in text.splitlines() if line.startswith("| together")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
