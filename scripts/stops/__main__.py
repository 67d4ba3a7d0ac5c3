"""`python -m scripts.stops [--document]`: what becomes of an event stream, a 5 s answer
and a 5 s download when a server is told to stop, stock and guarded by `reaper run`.

One rule: *what the pages say was measured by this command*; no figure of theirs is
typed by hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from reaper.config.flags import Parser

from .. import marked
from ..provenance import machine
from ..serving import ROOT, DidNotStart
from .trial import COMMANDS, RELOADS, tried

HOWTO = ROOT / "docs" / "howto"
PAGES = {
    HOWTO / "waiting-for-connections.md": ("SIGTERM", "Ctrl-C"),
    HOWTO / "hangs-on-reload.md": ("reload",),
}
"""The pages, and the ways of stopping that the table of each shows."""
BEGIN = "<!-- stops: written by `python -m scripts.stops --document`, do not edit -->"
END = "<!-- end of stops -->"
PATIENCE = 12.0
"""Seconds after which a stop is given up."""


def main() -> int:
    """Measure. Exit status: 0 measured, 2 bad arguments."""
    parser = Parser(prog="python -m scripts.stops", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", metavar="SERVER", choices=tuple(COMMANDS), help="this server alone"
    )
    parser.add_argument("--document", action="store_true", help="write the tables into the pages")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "stops.json")
    options = parser.parse_args()
    report: dict[str, Any] = {"about": machine(), "stops": []}
    if options.document and options.only:
        parser.error(f"--only {options.only}: the tables of --document have all servers")
    if options.document and report["about"]["dirty"]:
        parser.error(
            "--document: the tree has changes that no commit has, so the tables could not name what "
            "was measured: commit them first, or leave --document out"
        )
    for how in ("SIGTERM", "Ctrl-C", "reload"):
        for server in [options.only] if options.only else COMMANDS:
            for guarded in (False, True) if how != "reload" or server in RELOADS else ():
                report["stops"].append(found := measured(server, how, guarded=guarded))
                print(json.dumps(found), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    if options.document:
        document(report)
    return 0


def measured(server: str, how: str, *, guarded: bool) -> dict[str, Any]:
    """One stop, in figures."""
    about = {"server": server, "how": how, "guarded": guarded}
    with tempfile.TemporaryDirectory() as folder:
        try:
            seen = tried(server, Path(folder), how, guarded=guarded, patience=PATIENCE)
        except (DidNotStart, RuntimeError) as error:
            return {**about, "failed": str(error)[:300]}
    (stream,) = seen.streams
    return {
        **about,
        "told": seen.since(stream.told),
        "stream": seen.last_stream,
        "proper": stream.whole,
        "whole": sum(each.whole for each in seen.answers),
        "answers": len(seen.answers),
        "gone": seen.since(seen.gone),
        "back": seen.since(seen.back),
        "lifespan": seen.lifespan,
    }


def rows(report: dict[str, Any], how: str) -> list[str]:
    """The rows of one way of stopping: a server each, stock and guarded side by
    side.
    """
    found = {
        (each["server"], each["guarded"]): each for each in report["stops"] if each["how"] == how
    }
    return [
        f"| {server} | {said(found[server, False])} | {said(found[server, True])} |"
        for server in COMMANDS
        if (server, True) in found
    ]


def said(one: dict[str, Any]) -> str:
    """One stop, for people."""
    if "failed" in one:
        return "not measured"
    if one["stream"] is None:
        stream = f"stream still open after {PATIENCE:g} s"
    else:
        stream = f"stream ended after {one['stream']:.1f} s" + ("" if one["proper"] else ", cut")
    answers = f"{one['whole']} of {one['answers']} answers whole"
    gone = (
        f"still up after {PATIENCE:g} s"
        if one["gone"] is None
        else f"over after {one['gone']:.1f} s"
    )
    if one["how"] == "reload" and one["gone"] is not None:
        new = (
            "no new one" if one["back"] is None else f"a new one answers after {one['back']:.1f} s"
        )
        gone = f"old process gone after {one['gone']:.1f} s, {new}"
    return f"{stream}; {answers}; {gone}" + ("" if one["lifespan"] else "; no lifespan shutdown")


def document(report: dict[str, Any]) -> None:
    """Write the tables between the marks of the pages. Raises SystemExit: a page has
    none.
    """
    known = report["about"]
    for path, ways in PAGES.items():
        taken = f"{known['date']}, {known['cpus']} cores, {known['python']}, load {known['load_before']:.1f} before it"
        lines = [f"`python -m scripts.stops`, commit {known['commit'][:12]}, {taken}."]
        for how in ways:
            lines += ["", f"| {how} | stock | `reaper run` |", "|---|---|---|", *rows(report, how)]
        marked.write(path, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
