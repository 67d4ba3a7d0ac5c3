"""`python -m scripts.programs [--only NAME;...] [--install] [--minutes 45]`: programs
that others wrote, stock and below `reaper run`; the results go into the table of
docs/run.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from typing import Any

from reaper.config.flags import Parser

from .. import marked
from ..provenance import commit
from ..serving import ROOT, DidNotStart, hear_interrupts
from ..tools import Missing
from . import table
from .declared import PROGRAMS, Program
from .installing import install, version
from .trial import Limits, tried

RESULTS = ROOT / "out" / "programs.json"
PAGE = ROOT / "docs" / "run.md"
BEGIN = "<!-- programs: written by `python -m scripts.programs`, do not edit -->"
END = "<!-- end of programs -->"
LIMITS = Limits()


def main() -> int:
    """Try the programs. Exit status: 0 all as it should be, 1 something is worse
    guarded, 2 bad arguments.
    """
    parser = Parser(prog="python -m scripts.programs", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME;...", help="these programs alone; the rest is kept")
    parser.add_argument(
        "--install", action="store_true", help="install Debian packages, too (root)"
    )
    parser.add_argument("--minutes", type=float, default=45.0, help="begin none later; default 45")
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="programs; default 4")
    parser.add_argument("--table", action="store_true", help="try none; write the table anew")
    options = parser.parse_args()
    known = {program.name: program for program in PROGRAMS}
    chosen = [*known]
    if options.only:
        chosen = options.only.split(";")
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"--only {unknown[0]}: must be one of: {'; '.join(known)}")
    if options.install and os.geteuid():
        parser.error("--install: only root can install Debian packages: run it as root")
    if options.at_once < 1:
        parser.error(f"--at-once {options.at_once}: must be at least 1")
    if (options.only or options.table) and not RESULTS.exists():
        parser.error(f"{RESULTS.relative_to(ROOT)} has none of the others: try all of them")
    RESULTS.parent.mkdir(exist_ok=True)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    until = time.monotonic() + 60 * options.minutes
    began = time.monotonic()
    hear_interrupts()
    of = commit()  # asked once: another may be checked out while the programs are tried
    if options.table:
        chosen = []
        for found in results.values():  # judged by the rules of today
            if "stock" in found:
                found["worse"] = [*table.worse(found["stock"], found["guarded"], LIMITS)]
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    with ThreadPoolExecutor(options.at_once) as pool:
        running = {
            pool.submit(row, known[name], until, of, with_apt=options.install): name
            for name in chosen
        }
        for number, future in enumerate(as_completed(running), 1):
            name = running[future]
            results[name] = found = future.result()
            said = (
                found.get("why") or "; ".join(found["worse"]) or f"good, {found['guarded']['how']}"
            )
            minutes = (time.monotonic() - began) / 60
            print(f"{number}/{len(chosen)}, {minutes:.1f} min: {name}: {said}", flush=True)
            results = {name: results[name] for name in known if name in results}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    document(results)
    skipped = [name for name in chosen if "why" in results[name]]
    wrong = [name for name in chosen if results[name].get("worse")]
    print(
        f"{len(chosen) - len(skipped)} tried, {len(skipped)} not, {len(wrong)} with something worse"
    )
    return 1 if wrong else 0


def row(program: Program, until: float, of: str, *, with_apt: bool) -> dict[str, Any]:
    """Try *program* stock and guarded, at the same time; what was seen of the commit
    *of*, or `why` it was not tried.
    """
    about = {
        "commit": of,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": round(os.getloadavg()[0], 1),
        "cpus": os.cpu_count(),
    }
    if time.monotonic() > until:
        return about | {"why": "no time was left"}
    try:
        folder = install(program, with_apt=with_apt)
        with ThreadPoolExecutor(2) as pool:
            ways = [
                pool.submit(tried, program, folder, guarded=guarded, limits=LIMITS)
                for guarded in (False, True)
            ]
            stock, guarded = (way.result() for way in ways)
    except (Missing, DidNotStart, OSError) as error:
        return about | {"why": shortened(str(error))}
    about |= {"version": version(program), "pip": program.pip, "command": program.command}
    wrong = [*table.worse(stock, guarded, LIMITS)]
    return about | {"worse": wrong, "stock": stock, "guarded": guarded}


def shortened(text: str) -> str:
    """*text* on one line; of a long one the begin, and the end, where tracebacks have
    the reason.
    """
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:100]} ... {line[-200:]}"


def document(results: dict[str, Any]) -> None:
    """Write the table of *results* between the marks in docs/run.md."""
    marked.write(PAGE, BEGIN, END, table.markdown(results))


if __name__ == "__main__":
    sys.exit(main())
