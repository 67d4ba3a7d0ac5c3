"""`python -m scripts.guests [--only COLUMN] [--kinds WORDS] [--quick] [--document]`:
every kind of client at every guest, stock and guarded.

One rule: *what the page says was measured by this command*. The page has a paragraph
for each guest, docs/timeouts.md a table of what holds a stream of HTTP/2; every cell is
in `out/guests/`, which is no part of the tree.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.conform.kinds import TICK
from loadgen.conform.kinds_ends import SERVER_ENDS
from loadgen.conform.verdicts import NOT_JUDGED
from loadgen.plan.acts import Kind
from reaper.config.flags import Parser

from .. import marked
from ..provenance import machine
from ..serving import ROOT, DidNotStart
from .columns import AT_A_STOP, COLUMNS, ENDS, Column
from .held import held
from .lengths import LENGTHS
from .named import HOLDS, NAMED, faults, known
from .trial import KINDS, TRIES, Cell, kinds_of, pair, stopped, tried, unsettled
from .worse import TITLE as WORSE
from .worse import section

PAGE = ROOT / "docs" / "guests.md"
KEPT = ROOT / "out" / "guests" / "results.json"
CELLS = KEPT.with_name("cells.md")
BEGIN = "<!-- guests: written by `python -m scripts.guests --document`, do not edit -->"
END = "<!-- end of guests -->"
STREAMS = ROOT / "docs" / "timeouts.md"
BEGIN_STREAMS = "<!-- streams: written by `python -m scripts.guests --document`, do not edit -->"
END_STREAMS = "<!-- end of streams -->"
COUNT, FEW = 1000, 250
"""Connections after which objects are counted: in the whole, and in the quick half."""
STOPS_QUICKLY = ("uvicorn, httptools", "uvicorn, httptools, TLS")
"""The guests that are told to stop in the quick half, too: stops take seconds, and have
a test of their own in `tests/servers`.
"""
PARAGRAPH = re.compile(r"^- \*\*(.+?)\*\*:.*?(?=^- \*\*|^#|\Z)", re.MULTILINE | re.DOTALL)
GROUPS = {
    "http": "HTTP/1.1",
    "websocket": "WebSockets over HTTP/1.1",
    "http2": "HTTP/2",
    "websocket2": "WebSockets over HTTP/2",
    "lines": "Servers of lines",
    "tls": "HTTP/1.1 over TLS",
}


def main() -> int:
    """Measure. Exit status: 0 no cell is red but those that are named, 1 one is, or a
    row is not true any more, 2 bad arguments or a server that does not start.
    """
    parser = Parser(prog="python -m scripts.guests", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="COLUMN", choices=tuple(COLUMNS), help="this guest alone")
    parser.add_argument("--kinds", metavar="WORDS", default="", help="those whose names have these")
    parser.add_argument("--quick", action="store_true", help="the half that the tests have")
    parser.add_argument("--document", action="store_true", help=f"keep it, and write {PAGE.name}")
    options = parser.parse_args()
    if options.document and (options.quick or options.kinds):
        parser.error("--document: needs every kind; leave out --quick and --kinds")
    report: dict[str, Any] = {"about": {}, "cells": {}, "holds": {}}
    wrong: list[str] = []
    for column in [COLUMNS[options.only]] if options.only else COLUMNS.values():
        about = machine()
        try:
            cells, holds = measured(column, quick=options.quick, words=options.kinds)
        except DidNotStart as error:
            print(f"{column.name}: {error}", file=sys.stderr)
            return 2
        found = faults(column.name, cells, holds, coarse=options.quick)
        wrong += found
        report["cells"][column.name] = {name: said(cell) for name, cell in cells.items()}
        report["holds"][column.name] = list(holds)
        report["about"][column.name] = about | {"load_after": os.getloadavg()[0]}
        red = sum(bool(cell.wrong or cell.lacks) for cell in cells.values())
        doubts = sum(bool(cell.doubt) for cell in cells.values())
        print(
            f"{column.name}: {len(cells)} kinds, {red} red, {doubts} not judged;"
            f" holds {holds or 'nothing'}"
        )
        print(*(f"  {each}" for each in found), sep="\n", flush=True)
    if options.document:
        if options.only and KEPT.exists():  # the other guests stay as they were measured
            kept = json.loads(KEPT.read_text())
            report = {name: kept[name] | report[name] for name in report}
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        CELLS.write_text(table(report) + "\n")
        document(report)
    print(f"FAIL: {len(wrong)}" if wrong else "PASS")
    return 1 if wrong else 0


def measured(
    column: Column, *, quick: bool = False, words: str = ""
) -> tuple[dict[str, Cell], list[str]]:
    """The cells of *column*, and of which types the guarded server holds objects it
    should not; with *words* only of kinds whose names have them, and nothing is
    counted.
    """
    named = partial(known, column.name, coarse=quick)

    def mine(world: str) -> list[Kind]:
        return [kind for kind in kinds_of(column, quick=quick, world=world) if words in kind.name]

    stops = [] if quick and column.name not in STOPS_QUICKLY else mine("stop")
    ends = [] if quick else mine("ends")
    counted = [] if quick else mine("own")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with pair(column, folder) as (stock, guarded):
            where = stock.address, guarded.address
            cells = asyncio.run(tried(mine("limits"), *where, named, coarse=quick))
            more: Counter[str] = Counter()
            if not words:
                more = asyncio.run(held(column, *where, FEW if quick else COUNT))
            if stops and "tls" not in column.speaks:  # the pair ends now, one way or the other
                cells |= asyncio.run(stopped(stops, stock, guarded, coarse=quick))
        for _ in range(TRIES):
            of_stops = [cells.get(each.name) for each in (*stops, SERVER_ENDS)] if stops else []
            if all(cell and (named(cell) or not unsettled(cell)) for cell in of_stops):
                break
            with pair(column, folder, AT_A_STOP) as (stock, guarded):
                again = asyncio.run(stopped(stops, stock, guarded, coarse=quick))
            done = {cell.kind.name for cell in of_stops if cell and not unsettled(cell)}
            cells |= {name: cell for name, cell in again.items() if name not in done}
        if ends:
            with pair(column, folder, ENDS) as (stock, guarded):
                cells |= asyncio.run(tried(ends, stock.address, guarded.address, named))
        if counted:
            with pair(column.counting(), folder) as (stock, guarded):
                cells |= asyncio.run(tried(counted, stock.address, guarded.address, named))
    return cells, [f"{kind} {count:+,}" for kind, count in more.most_common(12)]


def said(cell: Cell) -> str:
    """A cell, for the table: what became of the client, and of stock's if that
    differs.
    """
    mine, stock = cell.guarded.words, cell.stock.words
    if cell.doubt:
        return NOT_JUDGED
    if cell.kind.lives:
        text = mine if mine == stock else f"{mine} (stock {stock})"
        return f"**{text}**" if cell.wrong else text
    text = mine if stock == "held" else f"{mine} ({stock})"
    return f"**{text}**" if cell.wrong else text


def table(report: dict[str, Any]) -> str:
    """What the page shows of *report*."""
    cells, abouts = report["cells"], report["about"].values()
    commits = sorted({each["commit"][:12] for each in abouts})
    loads = [each[key] for each in abouts for key in ("load_before", "load_after")]
    about = next(iter(abouts))
    taken = (
        f"Commit {', '.join(commits)}; {about['date']}, {about['cpus']} cores,"
        f" {about['python']}, load {min(loads):.0f} to {max(loads):.0f}."
        f" {len(KINDS)} kinds, {len(COLUMNS)} guests, {sum(map(len, cells.values())):,} cells;"
        f" {', '.join(f'`{name}` {each:g} s' for name, each in LENGTHS.items())};"
        f" the tick {TICK * 1000:g} ms."
    )
    lines = [taken]
    for speaks, title in GROUPS.items():
        columns = [column.name for column in COLUMNS.values() if speaks in column.speaks]
        kinds = [kind for kind in KINDS.values() if kind.speaks == speaks]
        lines += ["", f"## {title}", "", f"| the client | {' | '.join(columns)} |"]
        lines.append("|---|" + "---|" * len(columns))
        for kind in kinds:
            found = [cells.get(column, {}).get(kind.name, "") for column in columns]
            limit = f"; `{kind.limit}`" if kind.limit else ""
            lines.append(f"| {kind.name}{limit} | {' | '.join(found)} |")
    lines += ["", "## The servers at a stop", "", f"| guest | {SERVER_ENDS.name} |", "|---|---|"]
    for column, found in cells.items():
        if SERVER_ENDS.name in found:
            lines.append(f"| {column} | {found[SERVER_ENDS.name]} |")
    lines += ["", "## Objects", "", "| guest | " + HOLDS + " |", "|---|---|"]
    for column, types in report["holds"].items():
        lines.append(f"| {column} | {_types(types)} |")
    return "\n".join(lines)


def _types(types: Iterable[str]) -> str:
    return "**" + ", ".join(types) + "**" if types else "yes"


def paragraph(column: str, report: dict[str, Any]) -> str:
    """What the page says of a guest: how many clients fared how, and which cells are
    red.
    """
    cells, about = report["cells"][column], report["about"][column]
    red = [name for name, text in cells.items() if text.startswith("**")]
    texts = [text.strip("*") for text in cells.values()]
    kept = sum(text.startswith("kept") for text in texts)
    gained = sum(text.startswith("kept (") for text in texts)
    lost = sum(text.startswith("lost") for text in texts)
    doubts = texts.count(NOT_JUDGED)
    after = [float(text.split(" ", 1)[0]) for text in texts if re.match(r"[\d.]+ s", text)]
    words = [
        f"{len(cells)} kinds: {kept} live ones are kept"
        + (f", {gained} of which the stock server loses" if gained else ""),
        *(
            [f"{lost} {'is' if lost == 1 else 'are'} lost, with the stock server, too"]
            if lost
            else []
        ),
        *(
            [f"{len(after)} dead ones end after {min(after):g} to {max(after):g} s"]
            if after
            else []
        ),
        *([f"{doubts} {'is' if doubts == 1 else 'are'} not judged"] if doubts else []),
        f"red {'are' if len(red) > 1 else 'is'} {'; '.join(f'*{name}*' for name in red) or 'none'}",
        f"measured at {about['commit'][:12]}",
    ]
    said = f"- **{column}**: {'; '.join(words)}."
    return textwrap.fill(said, 88, subsequent_indent="  ", break_on_hyphens=False)


def paragraphs(report: dict[str, Any]) -> str:
    """What the page shows of *report*; what it does not measure stays as it was."""
    written = marked.read(PAGE, BEGIN, END)
    before = {found[1]: found[0].rstrip() for found in PARAGRAPH.finditer(written)}
    lines = [
        paragraph(column, report) if column in report["cells"] else before.get(column, "")
        for column in COLUMNS
    ]
    lines = [line for line in lines if line]
    lines += ["", "### Cells that are named", "", "| guests | clients | why |", "|---|---|---|"]
    for row in NAMED:
        lines.append(f"| {'; '.join(row.columns)} | {'; '.join(row.kinds)} | {row.why} |")
    _, title, kept = written.partition(WORSE)
    whole = all(column in report["cells"] for column in COLUMNS)
    worse = section(report["cells"]) if whole else [kept.strip()]
    lines += ["", title or WORSE, "", *worse]
    return "\n".join(lines)


OF_STREAMS = [column.name for column in COLUMNS.values() if "http2" in column.speaks]
HOLD_STREAMS = [
    kind
    for kind in KINDS.values()
    if kind.speaks == "http2" and kind.world == "limits" and kind.limit
]


def streams(report: dict[str, Any]) -> str:
    """What is shown of those that hold a connection or a stream of HTTP/2: each dead
    kind, and how every guest that speaks it ends it.
    """
    cells = [report["cells"][column] for column in OF_STREAMS]
    commits = sorted({report["about"][column]["commit"][:12] for column in OF_STREAMS})
    names = [name.removesuffix(", HTTP/2") for name in OF_STREAMS]
    lines = [f"| the client | limit | {' | '.join(names)} |", "|---|---|" + "---|" * len(cells)]
    for kind in HOLD_STREAMS:
        name = kind.name.removeprefix("HTTP/2: ")
        found = " | ".join(each[kind.name] for each in cells)
        lines.append(f"| {name} | `{kind.limit}` | {found} |")
    return "\n".join([f"Measured at {', '.join(commits)}.", "", *lines])


def document(report: dict[str, Any]) -> None:
    """Write the paragraphs between the marks of the page, and the table of streams once
    every guest that has them was measured. Raises SystemExit: a page lacks a mark.
    """
    marked.write(PAGE, BEGIN, END, paragraphs(report))
    if set(OF_STREAMS) <= report["cells"].keys():
        marked.write(STREAMS, BEGIN_STREAMS, END_STREAMS, streams(report))


if __name__ == "__main__":
    sys.exit(main())
