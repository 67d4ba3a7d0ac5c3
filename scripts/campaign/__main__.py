"""`python -m scripts.campaign [--minutes 60] [--only NAME,...] [--interop]
[--document]`: trials of real servers.

One rule: *what is written in docs/reliability.md was measured by this command*; no
figure there is typed by hand.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from loadgen.plan.capacity import raise_descriptor_limit
from reaper.config.flags import Parser

from .. import marked
from ..provenance import machine
from ..serving import ROOT, DidNotStart, hear_interrupts
from ..tools import Missing
from .rounds import Trial, played
from .trouble import Outcome

PAGE = ROOT / "docs" / "reliability.md"
BEGIN = "<!-- campaign: written by `python -m scripts.campaign --document`, do not edit -->"
END = "<!-- end of campaign -->"


def main() -> int:
    """Run the campaign. Exit status: 0 every trial passed, 1 one failed, 2 bad
    arguments, 130 interrupted.
    """
    known = Trial.all()
    parser = Parser(prog="python -m scripts.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, about; default 60")
    parser.add_argument("--only", metavar="NAME,...", help="these trials alone")
    parser.add_argument("--interop", action="store_true", help="those with tools that others wrote")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "campaign")
    parser.add_argument(
        "--document",
        action="store_true",
        help="write the figures into docs/reliability.md as well; with --only those of these trials, "
        "beside what the others have there",
    )
    options = parser.parse_args()
    chosen = [
        trial for trial in known.values() if (trial.interop if options.interop else trial.share)
    ]
    if options.only:
        if unknown := [name for name in options.only.split(",") if name not in known]:
            parser.error(f"--only {unknown[0]}: must be one of: {'; '.join(known)}")
        chosen = [known[name] for name in options.only.split(",")]
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes}: must be more than 0")
    raise_descriptor_limit()  # servers inherit it; 1,024 are too few for some trials
    hear_interrupts()
    total = sum(trial.share for trial in chosen) or 1.0
    report: dict[str, Any] = {"about": machine(), "minutes": options.minutes, "trials": []}
    report["only"] = options.only or ""
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for trial in chosen:
            report["trials"].append(
                tried(trial, options.minutes * 60 * trial.share / total, options.out)
            )
            (options.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    except KeyboardInterrupt:
        print("\ninterrupted: no verdict", file=sys.stderr)
        return 130
    if options.document:
        document(report)
    failed = [found["name"] for found in report["trials"] if not found["passed"]]
    print(f"report: {os.path.relpath(options.out / 'report.json')}")
    missed = [found["name"] for found in report["trials"] if "NOT RUN" in found["figures"]]
    print(f"FAIL: {', '.join(failed)}" if failed else f"PASS: {len(chosen) - len(missed)} trials")
    if missed:
        print(f"NOT RUN: {len(missed)} of {len(chosen)}: {', '.join(missed)}")
    return 1 if failed else 0


def tried(trial: Trial, seconds: float, out: Path) -> dict[str, Any]:
    """Run one trial; what it saw."""
    folder = (out / trial.name.replace(" ", "-")).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{trial.name}: {trial.claim}", flush=True)
    began = time.monotonic()
    try:
        found = played(trial, folder, seconds)
    except Missing as missing:
        found = Outcome(figures={"NOT RUN": str(missing)})
    except (DidNotStart, RuntimeError) as error:
        found = Outcome(failures=[str(error)])
    figures = ", ".join(f"{name}: {value}" for name, value in found.seen.items())
    print(
        f"  {'FAIL' if found.wrong else 'pass'}: {figures}",
        *found.wrong[:5],
        sep="\n    ",
        flush=True,
    )
    return {
        "name": trial.name,
        "claim": trial.claim,
        "unseen": trial.unseen,
        "seconds": round(time.monotonic() - began),
        "passed": not found.wrong,
        "figures": found.seen,
        "failures": found.wrong,
    }


def document(report: dict[str, Any]) -> None:
    """Put the figures of *report* between the marks in docs/reliability.md. A report of
    a few trials replaces their rows, and leaves the others.
    """
    known, only = report["about"], report.get("only", "")
    words = f"--only '{only}' " if only else ""
    command = f"`python -m scripts.campaign {words}--minutes {report['minutes']:g}`"
    taken = f"{known['date']}, {known['cpus']} cores, {known['python']}"
    heads = [f"{command}, commit {known['commit'][:12]}, {taken}."]
    found = {trial["name"]: row_of(trial) for trial in report["trials"]}
    if only:
        before = marked.read(PAGE, BEGIN, END).splitlines()
        same = heads[0].partition("--minutes")[0]
        said = [each.rstrip() for each in before if each.startswith("`")]
        heads = [each for each in said if not each.startswith(same)]
        heads += [f"{command}, commit {known['commit'][:12]}, {taken}: these trials."]
        rows = [each for each in before if each.startswith("| ")][1:]
        found = {each.split(" | ")[0].removeprefix("| "): each for each in rows} | found
    lines = ["  \n".join(heads), "", *TABLE, *found.values()]
    marked.write(PAGE, BEGIN, END, "\n".join(lines))


TABLE = ("| trial | verdict | what was seen | what it cannot see |", "|---|---|---|---|")


def row_of(trial: dict[str, Any]) -> str:
    """The row of *trial* in the page."""
    pairs = [
        (name, f"{value:,}" if type(value) is int else value)
        for name, value in trial["figures"].items()
    ]
    seen = "; ".join(f"{name}: {value}" for name, value in pairs)
    verdict = "pass" if trial["passed"] else f"**FAIL**: {'; '.join(trial['failures'][:3])}"
    return f"| {trial['name']} | {verdict} | {seen} | {trial['unseen']} |"


if __name__ == "__main__":
    sys.exit(main())
