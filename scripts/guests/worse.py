"""Where a guest does worse than uvicorn, the one that is guarded from within.

One rule: *what a client of uvicorn has, and another's lacks, has a reason*: the stock
server denies it, too, it is in time all the same, or a row of `named` says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from loadgen.conform.judge import HELD

from .columns import COLUMNS
from .named import NAMED

Cells = Mapping[str, Mapping[str, str]]
"""Guest -> kind -> its cell, as the page's table has it."""

BASES = {
    "http": "uvicorn, httptools",
    "http2": "uvicorn, HTTP/2",
    "tls": "uvicorn, httptools, TLS",
}
"""What a guest speaks -> the one that it is compared with."""
TITLE = "### Where a guest does worse than uvicorn"
LATER = 0.5
"""Seconds by which an end is later that is called so."""
ENDED = re.compile(r"([\d.]+) s(?:, (\d+))?")
STOCK = "the stock server's clients, too"
IN_TIME = "within its limit and a tick"
BY_ITSELF = "its server ends it by itself, stock or guarded"


def what(theirs: str, mine: str) -> str:
    """How *mine*, a cell, is worse than *theirs*; "": it is not."""
    theirs, mine = theirs.strip("*"), mine.strip("*")
    if theirs.startswith("kept"):
        return "lost" if mine.startswith("lost") else ""
    first, then = ENDED.match(theirs), ENDED.match(mine)
    if first is None:
        return ""
    if then is None:
        return HELD if mine.startswith(HELD) else ""
    if first[2] and not then[2]:
        return f"not told {first[2]}"
    return "later" if float(then[1]) > float(first[1]) + LATER else ""


def why(guest: str, kind: str, how: str, cell: str) -> str:
    """The reason for *cell*, which is worse, and *how*."""
    if not cell.startswith("**"):
        return IN_TIME if how == "later" else BY_ITSELF if how.startswith("not told") else STOCK
    rows = [row.why for row in NAMED if guest in row.columns and kind in row.kinds]
    return "; ".join(rows) or "**no reason is known**"


def worse(cells: Cells) -> Iterator[tuple[str, str, str, str]]:
    """Kind, guests, how it is worse, and why."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for guest, column in COLUMNS.items():
        for kind, cell in cells.get(guest, {}).items():
            bases = [BASES[speaks] for speaks in column.speaks if speaks in BASES]
            for base in bases:
                how = what(cells.get(base, {}).get(kind, ""), cell)
                if how:
                    found.setdefault((kind, how, why(guest, kind, how, cell)), []).append(guest)
    for (kind, how, reason), guests in sorted(found.items()):
        yield kind, "; ".join(guests), how, reason


def section(cells: Cells) -> list[str]:
    """The lines of the page below `TITLE`."""
    lines = ["| clients | guests | worse | why |", "|---|---|---|---|"]
    return lines + [f"| {' | '.join(row)} |" for row in worse(cells)]
