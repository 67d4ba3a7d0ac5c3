"""The command that generates: its flags, and bad ones refused in one line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from reaper.config.flags import Parser
from reaper.config.running import progress_on_stderr
from reaper.errors import InvalidArgument

_UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def count(text: str) -> int:
    """`1000000`, `500k`, `50M`, `1.5M`, `1G` as a number; for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 1000000, 500k, 50M or 1G")
    return round(float(match[1]) * _UNITS[match[2]])


def faults(text: str) -> dict[str, int]:
    """`early=3,late=2` as counts by name; for argparse."""
    found = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not number.isdigit():
            raise argparse.ArgumentTypeError(f"{part!r} is not a fault and a number such as early=3")
        found[name.strip()] = int(number)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write a journal. Exit status: 0 good, 2 bad arguments."""
    parser = Parser(
        prog="python -m benchmarks.pipeline.generate",
        description="Write a realistic journal of any size, right or with faults planted.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes; made if missing")
    parser.add_argument(
        "--events", type=count, default=1_000_000, metavar="N", help="rows, such as 500k or 50M; default 1M"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="same seed, same bytes; default 1")
    parser.add_argument("--writers", type=int, default=8, metavar="N", help="server processes; default 8")
    parser.add_argument("--mode", choices=("full", "gaps"), default="full", help="as a journal's; default full")
    parser.add_argument("--days", type=float, default=31.0, metavar="N", help="how long they ran; default 31")
    parser.add_argument(
        "--faults", type=faults, default={}, metavar="NAME=N,...",
        help="connections that break the law: early, late, missed, lost, duplicate, activity_after_end, missing_touch, "
        "backward",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    arguments = parser.parse_args(argv)
    from .run import Plan, generate

    try:
        plan = Plan(
            arguments.events,
            seed=arguments.seed,
            writers=arguments.writers,
            mode=arguments.mode,
            days=arguments.days,
            faults=arguments.faults,
        )
        summary = generate(plan, arguments.out, progress_on_stderr(arguments.quiet))
    except InvalidArgument as error:
        parser.error(str(error))
    text = (
        f"{summary['events']:,} rows of {summary['connections']:,} connections in {summary['files']} files, "
        f"{summary['bytes'] / 1e6:,.1f} MB: {arguments.out}"
    )
    print(json.dumps(summary, indent=2) if arguments.json else text)
    return 0
