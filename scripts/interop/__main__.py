"""`python -m scripts.interop`: the HTTP server against tools that others wrote.

One rule: *what a tool says is kept*. Reports and the tools' own output go to out/interop/. A tool that is not installed
is said and skipped. Exit status: 0 everything that ran has passed, 1 something has not, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from reaper.config.durations import parse_duration
from reaper.config.flags import Parser

from . import fuzz, proxy, slow, stall
from .tools import OUT, Missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the runs asked for."""
    parser = Parser(prog="python -m scripts.interop", description="Runs the HTTP server against foreign tools.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"any of {', '.join(RUNS)}; all without one")
    parser.add_argument(
        "--fuzz", type=_duration, default=10.0, metavar="DURATION", help="how long to fuzz; default 10s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(arguments)
    for name in parsed.runs:
        if name not in RUNS:
            parser.error(f"RUN {name!r}: expected any of {', '.join(RUNS)}")
    reports: dict[str, dict[str, object]] = {}
    for name in parsed.runs or RUNS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            reports[name] = fuzz.trial(parsed.fuzz) if name == "fuzz" else RUNS[name]()
        except Missing as missing:
            reports[name] = {"skipped": str(missing), "passed": True}
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(reports, indent=2)
    (OUT / "report.json").write_text(text + "\n")
    if parsed.json:
        print(text)
    else:
        _show(reports)
    return 0 if all(report["passed"] for report in reports.values()) else 1


RUNS: dict[str, Callable[[], dict[str, object]]] = {
    "stall": stall.run,
    "slow": slow.run,
    "proxy": proxy.run,
    "fuzz": lambda: fuzz.trial(10.0),
}


def _show(reports: dict[str, dict[str, object]]) -> None:
    for name, report in reports.items():
        print(f"{name}: {'skipped' if 'skipped' in report else 'passed' if report['passed'] else 'FAILED'}")
        for key, value in report.items():
            if key in ("runs", "cases", "servers") and isinstance(value, dict):
                for row, cells in value.items():
                    print(f"  {row}: " + json.dumps({k: v for k, v in cells.items() if k != "summary"}))
            elif key != "passed":
                print(f"  {key}: {value}")


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
