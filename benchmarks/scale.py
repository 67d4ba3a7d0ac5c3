"""The chart and the table of docs/scale.md, from committed results.

    python -m benchmarks.scale [--add REPORT ...]

`--add out/demo/report.json` takes the report of a `make demo` into benchmarks/results/scale/demos.json, in place of the
one of that size; then, as without it, the chart is drawn and the table is written. The chart's other bars are those of
`python -m benchmarks run idle`. *No figure is typed by hand*: what was not measured has no row.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.units import seconds, share, size

from .common import RESULTS, ROOT, machine

PAGE = ROOT / "docs" / "scale.md"
CHART = ROOT / "docs" / "img" / "scale-idle.svg"
SCHEMA = "reaper-demos/1"
BARS = {
    "ours-echo-parked": "our echo server",
    "ours-parked": "our HTTP server",
    "nginx": "nginx",
    "asyncio": "asyncio Protocol, no timeout",
    "uvicorn": "uvicorn",
    "aiohttp": "aiohttp",
    "hypercorn": "hypercorn on trio",
}
"""What the benchmark calls a server -> what the chart calls it."""
OURS, SOFT, INK, RULE = "#2563c9", "#8b95a3", "#1c2430", "#e3e7ec"
STYLE = {"font.family": "sans-serif", "svg.hashsalt": "reaper", "axes.spines.top": False, "axes.spines.right": False}
PARKED = {"ours-echo-parked", "ours-parked"}
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
            for key in ("expected", "observed", "early", "late", "missed", "false", "late_raw", "late_raw_own")
        },
        "lateness_s": report["lateness_s"],
        "server": report["server"],
        "processes": report["loadgen"]["processes"],
        "parts": report["machine"],
    }


def idle_bytes(results: Path) -> dict[str, float]:
    """Server -> resident bytes per idle connection: after a burst; of the parked echo server, in the largest demo."""

    def figures(path: str) -> dict[str, Any]:
        measured: dict[str, Any] = (
            json.loads((results / path).read_text())["results"] if (results / path).exists() else {}
        )
        return measured

    found = {name: each["burst"] for name, each in figures("idle.json").items() if "burst" in each}
    if demos := figures("scale/demos.json"):
        found["ours-echo-parked"] = demos[max(demos, key=int)]["server"]["rss_bytes_per_connection"]
    return found


def draw(found: dict[str, float], path: Path) -> None:
    """One bar per server, the smallest first."""
    from matplotlib import pyplot

    rows = sorted(((value, name) for name, value in found.items() if name in BARS), reverse=True)
    with pyplot.rc_context(STYLE):  # type: ignore[arg-type]  # the names are those that matplotlib's table has
        figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(rows) + 1.1))
        colours = [OURS if name in PARKED else SOFT for _, name in rows]
        axes.barh([BARS[name] for _, name in rows], [value for value, _ in rows], color=colours, height=0.68, zorder=2)
        for place, (value, name) in enumerate(rows):
            bold = "bold" if name in PARKED else "normal"
            axes.text(value + 120, place, f"{value:,.0f}", va="center", color=INK, fontsize=9, fontweight=bold)
        axes.set_title("Memory of one idle connection, bytes", loc="left", fontsize=12, fontweight="bold")
        axes.set_xlim(0, rows[0][0] * 1.09)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="x", color=RULE, linewidth=0.8, zorder=0)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def table(demos: dict[str, Any]) -> str:
    """A column per demo, in Markdown."""
    sizes = sorted(demos, key=int)
    rows: list[list[str]] = [["`make demo CONNECTIONS=`", *(f"**{int(each):,}**" for each in sizes)], ["---"]]
    rows[1] *= len(sizes) + 1
    for name, shown in ROWS.items():
        rows.append([name, *(shown(demos[each]) for each in sizes)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _late(demo: dict[str, Any]) -> str:
    reaps = demo["reaps"]
    own = f", {reaps['late_raw_own']:,} of them read late" if reaps["late_raw_own"] else ""
    return f"{reaps['late_raw']:,} ({share(reaps['late_raw'], reaps['observed'])}){own}"


def _memory(part: str) -> Any:
    return lambda demo: size(demo["parts"]["memory_bytes"][part])


def _cpu(part: str) -> Any:
    return lambda demo: seconds(demo["parts"]["cpu_s"][part])


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
    "server workers, client processes": lambda demo: f"{demo['server']['workers']}, {demo['processes']}",
    "all open after": lambda demo: f"{demo['connect_s']:.0f} s",
    "closes expected, seen": lambda demo: f"{demo['reaps']['expected']:,}, {demo['reaps']['observed']:,}",
    "early, late, missed, false": lambda demo: ", ".join(
        str(demo["reaps"][name]) for name in ("early", "late", "missed", "false")
    ),
    "lateness p50, p99, max": lambda demo: ", ".join(
        seconds(demo["lateness_s"][name]) for name in ("p50", "p99", "max")
    ),
    "beyond one tick, before allowances": _late,
    "server, per connection": lambda demo: f"{demo['server']['rss_bytes_per_connection']:,.0f} B",
    "memory: kernel": _memory("kernel"),
    "memory: server": _memory("server"),
    "memory: clients": _memory("generator"),
    "CPU: kernel": _cpu("kernel"),
    "CPU: server": _cpu("server"),
    "CPU: clients": _cpu("generator"),
    "one more worker, one more client process": _process,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Take reports in, draw the chart, write the table. Exit status 0; 2 for a report that cannot be shown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="REPORT", help="of a `make demo`")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("--chart", type=Path, default=CHART, metavar="FILE")
    options = parser.parse_args(arguments)
    store = options.results / "scale" / "demos.json"
    demos: dict[str, Any] = json.loads(store.read_text())["results"] if store.exists() else {}
    for path in options.add:
        try:
            report = json.loads(path.read_text())
            demos[str(report["connections"]["requested"])] = kept(report)
        except (OSError, ValueError, KeyError) as error:
            print(f"--add {path}: {error}", file=sys.stderr)
            return 2
    if options.add:
        ordered = {each: demos[each] for each in sorted(demos, key=int)}
        store.parent.mkdir(exist_ok=True)
        store.write_text(json.dumps({"schema": SCHEMA, "part": "demos", "results": ordered}, indent=1) + "\n")
    draw(idle_bytes(options.results), options.chart)
    text = options.page.read_text()
    options.page.write_text(TABLE.sub(lambda match: match[1] + table(demos) + match[2], text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
