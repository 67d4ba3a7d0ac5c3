"""The table of docs/scale.md, from committed results.

    python -m benchmarks.scale [--add REPORT ...] [--picture REPORT]

`--add out/demo/report.json` takes the report of a `make demo` into
benchmarks/results/scale/demos.json, in place of the one of that size; one of `--beat 0`
has a column of its own. Then, as without it, the table is written. `--picture` draws
README's of a report. *No figure is typed by hand*.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.judge.page import lateness_chart
from loadgen.units import seconds, share, size
from reaper.html.parts import CSS
from scripts.provenance import machine

from .common import RESULTS, ROOT, markdown

PAGE, PICTURE = ROOT / "docs" / "scale.md", ROOT / "docs" / "img" / "demo.svg"
SCHEMA = "reaper-demos/1"
TABLE = re.compile(r"(<!-- demos -->\n).*?(<!-- end of demos -->)", re.DOTALL)


def kept(report: dict[str, Any]) -> dict[str, Any]:
    """Of a demo's report, what the page shows.

    Raises:
        ValueError: it did not pass, or was cut short.
    """
    if report["verdict"] != "pass" or report["partial"]:
        raise ValueError(f"the verdict is {report['verdict']}: only a demo that passed is shown")
    return {
        "machine": machine(),
        "config": {key: report["config"][key] for key in ("timeout_s", "tick_s", "beat_s", "mix")},
        "connect_s": report["connections"]["connect_s"],
        "peak_open": report["connections"]["peak_open"],
        "elapsed_s": report["elapsed_s"],
        "reaps": {
            key: report["reaps"].get(key)
            for key in (
                "expected",
                "observed",
                "early",
                "late",
                "missed",
                "false",
                "late_raw",
                "late_raw_own",
            )
        },
        "lateness_s": report["lateness_s"],
        "server": report["server"],
        "processes": report["loadgen"]["processes"],
        "parts": report["machine"],
    }


def column(report: dict[str, Any]) -> str:
    """Under which name a demo's report is kept: its size, and whether its clients have
    no beat.
    """
    size = str(report["connections"]["requested"])
    return size if report["config"]["beat_s"] else f"{size} --beat 0"


def _place(column: str) -> tuple[int, str]:
    size, _, beat = column.partition(" ")
    return int(size), beat


def table(demos: dict[str, Any]) -> str:
    """A column per demo, in Markdown."""
    columns = sorted(demos, key=_place)
    rows = [[name, *(shown(demos[each]) for each in columns)] for name, shown in ROWS.items()]
    heads = [
        f"**{size:,}**" + (f" `{beat}`" if beat else "") for size, beat in map(_place, columns)
    ]
    return markdown(["`make demo CONNECTIONS=`", *heads], rows) + "\n"


def _late(demo: dict[str, Any]) -> str:
    reaps = demo["reaps"]
    own = f", {reaps['late_raw_own']:,} of them read late" if reaps["late_raw_own"] else ""
    return f"{reaps['late_raw']:,} ({share(reaps['late_raw'], reaps['observed'])}){own}"


def _process(demo: dict[str, Any]) -> str:
    each = demo["parts"].get("process_bytes")
    return f"{size(each['server'])}, {size(each['generator'])}" if each else "-"


ROWS: dict[str, Any] = {
    "timeout, beat, whole run": lambda demo: ", ".join(
        (
            seconds(demo["config"]["timeout_s"]),
            seconds(beat) if (beat := demo["config"].get("beat_s")) else "none",
            seconds(demo["elapsed_s"]),
        )
    ),
    "server workers, client processes": lambda demo: (
        f"{demo['server']['workers']}, {demo['processes']}"
    ),
    "all open after": lambda demo: f"{demo['connect_s']:.0f} s",
    "closes expected, seen": lambda demo: (
        f"{demo['reaps']['expected']:,}, {demo['reaps']['observed']:,}"
    ),
    "early, late, missed, false": lambda demo: ", ".join(
        str(demo["reaps"][name]) for name in ("early", "late", "missed", "false")
    ),
    "lateness p50, p99, max": lambda demo: ", ".join(
        seconds(demo["lateness_s"][name]) for name in ("p50", "p99", "max")
    ),
    "beyond one tick, before allowances": _late,
    "server, per connection": lambda demo: f"{demo['server']['rss_bytes_per_connection']:,.0f} B",
    "memory: kernel": lambda demo: size(demo["parts"]["memory_bytes"]["kernel"]),
    "memory: server": lambda demo: size(demo["parts"]["memory_bytes"]["server"]),
    "memory: clients": lambda demo: size(demo["parts"]["memory_bytes"]["generator"]),
    "CPU: kernel": lambda demo: seconds(demo["parts"]["cpu_s"]["kernel"]),
    "CPU: server": lambda demo: seconds(demo["parts"]["cpu_s"]["server"]),
    "CPU: clients": lambda demo: seconds(demo["parts"]["cpu_s"]["generator"]),
    "one more worker, one more client process": _process,
}


def picture(report: dict[str, Any]) -> str:
    """The histogram of a demo's own page, with what it says above it. Raises ValueError
    as `kept` does.
    """
    late, reaps = report["lateness_s"], kept(report)["reaps"]
    closed = (
        f"{reaps['observed']:,} silent clients of {report['connections']['requested']:,} closed"
    )
    wrong = f"{reaps['early'] or 'none'} early, {reaps['late'] or 'none'} more than a tick late"
    half, most = seconds(late["p50"]), seconds(late["max"])
    text = "<text x='20' y='{}' style='font:{}px system-ui,sans-serif'>{}</text>"
    drawn = lateness_chart(report)
    return (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 640 378'>"
        f"<style>{CSS}</style><rect width='640' height='378' fill='var(--card)'/>"
        + text.format(24, "600 14", f"{closed}: {wrong}")
        + text.format(
            44, 13, f"Lateness of each close, as its client saw it; median {half}, at most {most}"
        )
        + f"<svg y='58' width='640' height='320'{drawn.removeprefix('<svg')}</svg>\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Take reports in, write table and picture. Exit status 2 for a report that cannot
    be shown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--add", type=Path, action="append", default=[], metavar="REPORT", help="of a `make demo`"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="REPORT", help="draw README's picture of this one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(arguments)
    store = options.results / "scale" / "demos.json"
    demos: dict[str, Any] = json.loads(store.read_text())["results"] if store.exists() else {}
    path = options.picture
    try:
        if path:
            PICTURE.write_text(picture(json.loads(path.read_text())))
        for path in options.add:
            report = json.loads(path.read_text())
            demos[column(report)] = kept(report)
    except (OSError, ValueError, KeyError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    if options.add:
        ordered = {each: demos[each] for each in sorted(demos, key=_place)}
        store.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(
            json.dumps({"schema": SCHEMA, "part": "demos", "results": ordered}, indent=1) + "\n"
        )
    text = options.page.read_text()
    options.page.write_text(TABLE.sub(lambda match: match[1] + table(demos) + match[2], text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
