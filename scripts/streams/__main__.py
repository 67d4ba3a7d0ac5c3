"""`python -m scripts.streams [--document]`: a reader leaves a quiet stream behind nginx
and HAProxy; when does the server hear of it? And after how long does each cut a stream
that is silent?

One rule: *the table of docs/howto/streams.md was written by this command*; no figure in
it is typed by hand. It needs root, or network namespaces: a reader vanishes with its
link.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadgen.vanish import namespace
from reaper.config.flags import Parser

from .. import marked
from ..provenance import machine
from ..serving import ROOT
from .leaving import SETTINGS, WAYS, Left, Readers, Way, cut_after
from .proxies import PROXIES

PAGE = ROOT / "docs" / "howto" / "streams.md"
BEGIN = "<!-- streams: written by `python -m scripts.streams --document`, do not edit -->"
END = "<!-- end of streams -->"
PATIENCE = 30.0
"""Seconds for which what is left behind is watched."""
LONGEST = 120.0
"""Seconds for which a silent stream is watched."""

Table = dict[str, dict[Way, Left]]


def main() -> int:
    """Measure. Exit status: 0 measured, 2 bad arguments."""
    parser = Parser(prog="python -m scripts.streams", description=__doc__.splitlines()[0])
    parser.add_argument("--document", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    about = machine()
    if options.document and about["dirty"]:
        parser.error("--document: commit the changes first, so that the table can name a commit")
    table, cuts = measure(PATIENCE), defaults(LONGEST)
    print("\n".join(rows(table)), defaults_said(cuts), sep="\n")
    if options.document:
        document(about, table, cuts)
    return 0


def measure(patience: float) -> Table:
    """All columns, side by side, for each proxy and each way of leaving."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        name, ours, go = stack.enter_context(namespace())
        columns = {
            column: Readers(stack, folder / str(number), given, (name, ours))
            for number, (column, given) in enumerate(SETTINGS.items())
        }
        go()
        for each in columns.values():
            each.leave()
        with ThreadPoolExecutor(len(columns)) as threads:
            watched = threads.map(lambda each: each.watched(patience), columns.values())
            return dict(zip(columns, watched, strict=True))


Cuts = dict[str, float | None]


def defaults(patience: float) -> Cuts:
    """After how long each proxy cuts a silent stream, with its own read timeout."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        found = [threads.submit(cut_after, Path(folder) / each, each, patience) for each in PROXIES]
        return dict(zip(PROXIES, (each.result() for each in found), strict=True))


def defaults_said(cuts: Cuts) -> str:
    """*cuts* in a sentence."""
    said = (
        f"{proxy} {'not within ' if cut is None else ''}{LONGEST if cut is None else cut:.1f} s"
        for proxy, cut in cuts.items()
    )
    return (
        "A silent stream is cut, with the read timeouts that each comes with (HAProxy's are in "
        f"the configuration of Debian's package), after: {', '.join(said)}."
    )


def rows(table: Table) -> list[str]:
    """The table of the page."""
    found = [f"| | the reader | {' | '.join(table)} |", f"|---|---|{'---|' * len(table)}"]
    for proxy in PROXIES:
        for way in WAYS:
            cells = [said(column[proxy, way]) for column in table.values()]
            found.append(f"| {proxy} | {way} | {' | '.join(cells)} |")
    return found


def said(left: Left) -> str:
    """One cell: after how long the connection was gone, and the handler where that
    differs.
    """
    if left == (None, None):
        return "open"
    connection = "open" if left.connection is None else f"{left.connection:.1f} s"
    if left.handler is None:
        return f"{connection}, handler goes on"
    if left.connection is not None and abs(left.handler - left.connection) < 0.5:
        return connection
    return f"{connection}, handler {left.handler:.1f} s"


def document(known: dict[str, Any], table: Table, cuts: Cuts) -> None:
    """Write *table* and *cuts* between the marks of the page. Raises SystemExit: it
    lacks one.
    """
    taken = f"{known['date']}, {known['cpus']} cores, {known['python']}"
    lines = [f"`python -m scripts.streams`, commit {known['commit'][:12]}, {taken}.", ""]
    marked.write(PAGE, BEGIN, END, "\n".join([*lines, *rows(table), "", defaults_said(cuts)]))


if __name__ == "__main__":
    sys.exit(main())
