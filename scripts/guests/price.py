"""`python -m scripts.guests.price [--only COLUMN] [--rounds 5] [--document]`: what a
request over HTTP/2 costs, stock and guarded.

The rule of this module: *processor time is compared, in turns*. The two servers run
side by side, and each round asks one and then the other; so what else the machine does
meets both, and no clock on the wall is read.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from reaper.config.flags import Parser

from .. import marked
from ..provenance import machine
from ..serving import ROOT, DidNotStart, Server, tree
from .columns import COLUMNS, Column
from .trial import pair

PAGE = ROOT / "docs" / "guests.md"
KEPT = ROOT / "out" / "guests" / "price.json"
BEGIN = "<!-- price: written by `python -m scripts.guests.price --document`, do not edit -->"
END = "<!-- end of price -->"
CONNECTIONS, STREAMS = 10, 10
"""Over how many connections a round asks, and on how many streams of each at once."""
LEAST, MOST = 2_000, 20_000
"""Requests of a round."""
ENOUGH = 0.8e6
"""Microseconds of processor time that a round of the stock server is to take: the
kernel counts it in steps of 10 ms.
"""


def main() -> int:
    """Measure. Exit status: 0 all was answered, 2 bad arguments, no h2load, or a server
    that does not start or answer.
    """
    parser = Parser(prog="python -m scripts.guests.price", description=__doc__.splitlines()[0])
    columns = {name: column for name, column in COLUMNS.items() if "http2" in column.speaks}
    parser.add_argument("--only", metavar="COLUMN", choices=tuple(columns), help="this guest alone")
    parser.add_argument("--rounds", type=int, default=5, help="of each server; default 5")
    parser.add_argument("--document", action="store_true", help=f"keep it, and write {PAGE.name}")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be 1 or more")
    if shutil.which("h2load") is None:
        parser.error("needs h2load (apt-get install nghttp2-client)")
    report: dict[str, Any] = {"about": machine(), "rounds": options.rounds, "costs": {}}
    for name in [options.only] if options.only else columns:
        try:
            found = costs(columns[name], options.rounds)
        except (DidNotStart, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        report["costs"][name] = found
        print(f"{name}: {said(found)}", flush=True)
    report["about"]["load_after"] = os.getloadavg()[0]
    if options.document:
        if options.only and KEPT.exists():
            report["costs"] = json.loads(KEPT.read_text())["costs"] | report["costs"]
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
        marked.write(PAGE, BEGIN, END, table(report))
    return 0


def costs(column: Column, rounds: int) -> dict[str, list[float]]:
    """Microseconds of processor time of a request in each round, `stock` and `guarded`,
    after one round that does not count.
    """
    found: dict[str, list[float]] = {"stock": [], "guarded": []}
    count = LEAST
    limits: Mapping[str, str] = {}  # the defaults
    enough = LEAST
    with (
        tempfile.TemporaryDirectory() as folder,
        pair(column, Path(folder), limits) as (stock, guarded),
    ):
        for turn in range(rounds + 1):
            for how, server in (("stock", stock), ("guarded", guarded)):
                cost = _round(server, count)
                if turn:
                    found[how].append(cost)
                elif how == "stock":
                    enough = max(LEAST, min(MOST, round(ENOUGH / max(cost, 1.0))))
            count = enough
    return found


def _round(server: Server, count: int) -> float:
    """Microseconds of processor time that each of *count* requests costs *server*."""
    before = _cpu(server)
    host, port = server.address
    flags = f"-n {count} -c {CONNECTIONS} -m {STREAMS}".split()
    done = subprocess.run(
        ["h2load", *flags, f"http://{host}:{port}/"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    if f"{count} succeeded" not in done.stdout:
        raise subprocess.SubprocessError(f"h2load: {done.stdout[-300:]}")
    return (_cpu(server) - before) / count * 1e6


def _cpu(server: Server) -> float:
    """Seconds of processor time of the process and of all below it."""
    return float(sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in tree(server.pid)))


def ratios(found: Mapping[str, list[float]]) -> list[float]:
    """How many times the stock server's a guarded request's cost was, in each round."""
    return [mine / theirs for theirs, mine in zip(found["stock"], found["guarded"], strict=True)]


def said(found: Mapping[str, list[float]]) -> str:
    """The costs of one guest in words."""
    each = ratios(found)
    middle = {how: statistics.median(costs) for how, costs in found.items()}
    return (
        f"{middle['stock']:.0f} us stock, {middle['guarded']:.0f} us guarded, "
        f"{statistics.median(each):.2f} times ({min(each):.2f} to {max(each):.2f})"
    )


def table(report: Mapping[str, Any]) -> str:
    """What the page shows of *report*."""
    about = report["about"]
    taken = (
        f"Commit {about['commit'][:12]}, {about['date']}, {about['cpus']} cores, {about['python']},"
        f" load {about['load_before']:.0f} to {about['load_after']:.0f}; {report['rounds']} rounds"
        f" of {LEAST:,} to {MOST:,} requests over {CONNECTIONS} connections, {STREAMS} streams at a"
        " time."
    )
    lines = [
        taken,
        "",
        "| guest | stock, us | guarded, us | times | of the rounds |",
        "|---|---|---|---|---|",
    ]
    for name, found in report["costs"].items():
        each = ratios(found)
        lines.append(
            f"| {name} | {statistics.median(found['stock']):.0f}"
            f" | {statistics.median(found['guarded']):.0f} | {statistics.median(each):.2f}"
            f" | {min(each):.2f} to {max(each):.2f} |"
        )
    lines += ["", in_words(report)]
    return "\n".join(lines)


def in_words(report: Mapping[str, Any]) -> str:
    """What the table proves, and how little more: the page's sentence below it."""
    each = {name: ratios(found) for name, found in report["costs"].items()}
    medians = sorted((statistics.median(rounds), name) for name, rounds in each.items())
    every = [ratio for rounds in each.values() for ratio in rounds]
    (least, cheapest), (most, dearest) = medians[0], medians[-1]
    return (
        f"A request costs a guarded server {least:.2f} ({cheapest}) to {most:.2f} ({dearest}) times"
        f" what it costs the stock one, by the median of {report['rounds']} rounds. Single rounds"
        f" gave {min(every):.2f} to {max(every):.2f}: a smaller difference between two guests is"
        " not shown."
    )


if __name__ == "__main__":
    sys.exit(main())
