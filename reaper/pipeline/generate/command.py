"""The command `generate`."""

from __future__ import annotations

import argparse
import re

from ...errors import InvalidArgument
from ..arguments import AddCommand, Fault, Progress, show

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


def add(command: AddCommand) -> None:
    """Declare `generate`."""
    sub = command("generate", _generate, "Write a realistic journal of any size, right or with faults planted.")
    sub.add_argument(
        "--events", type=count, default=1_000_000, metavar="N", help="rows, such as 500k or 50M; default 1M"
    )
    sub.add_argument("--seed", type=int, default=1, metavar="N", help="same seed, same bytes; default 1")
    sub.add_argument("--writers", type=int, default=8, metavar="N", help="server processes; default 8")
    sub.add_argument("--mode", choices=("full", "gaps"), default="full", help="as a journal's; default full")
    sub.add_argument("--days", type=float, default=31.0, metavar="N", help="how long they ran; default 31")
    sub.add_argument(
        "--faults", type=faults, default={}, metavar="NAME=N,...",
        help="connections that break the law: early, late, missed, lost, duplicate, activity_after_end, missing_touch, "
        "backward",
    )  # fmt: skip


def _generate(arguments: argparse.Namespace, progress: Progress) -> int:
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
        summary = generate(plan, arguments.out, progress)
    except InvalidArgument as error:
        raise Fault(str(error)) from None
    text = (
        f"{summary['events']:,} rows of {summary['connections']:,} connections in {summary['files']} files, "
        f"{summary['bytes'] / 1e6:,.1f} MB: {arguments.out}"
    )
    show(arguments, summary, text)
    return 0
