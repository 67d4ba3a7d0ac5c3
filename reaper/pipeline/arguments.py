"""What the commands' arguments have in common: how they are read, checked and refused.

Each command is a module `cli_*.py` (or `cli.py` itself) with a function `add(command)` that declares it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .read.inputs import Inputs, check
from .read.manifest import Unsound

if TYPE_CHECKING:
    from .advise.run import Policy
    from .audit.run import Settings

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}

Progress = Callable[[str], None]


class Fault(Exception):
    """The arguments cannot be worked with. The message is the one line that is shown."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def duration_ns(text: str) -> int:
    """`250ms`, `30s`, `5m`, `1h`, `7d` as ns; for argparse."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 250ms, 30s, 5m, 1h or 7d")
    return round(float(match[1]) * _UNITS_NS[match[2]])


def longest_ns(text: str) -> int:
    """A duration of at least a second, the shortest timeout that is considered, as ns; for argparse."""
    value = duration_ns(text)
    if value < _UNITS_NS["s"]:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1s, the shortest timeout that is considered")
    return value


def share(text: str) -> float:
    """`0.001` or `0.1%` as a share between 0 and 1, both exclusive; for argparse."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.001 or 0.1%")
    return value


def place(text: str) -> Path:
    """A path, or `file://` and a path; for argparse. Object stores are refused: files are looked at from here."""
    if re.match(r"[a-z][a-z0-9+.-]*://", path := text.removeprefix("file://"), re.IGNORECASE):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a path that this machine can read: mount it at the same path here and on every executor"
        )
    return Path(path)


Run = Callable[[argparse.Namespace, Progress], int]
"""A command: its arguments, whom to tell how far it is; returns the exit status."""

AddCommand = Callable[[str, Run, str], Parser]
"""Declares a command (name, what runs it, summary); returns its parser, which has --out, --master, --json, --quiet."""


def add_inputs(parser: Parser, *, required: bool = True, client: bool = True) -> None:
    parser.add_argument(
        "--events",
        type=place,
        nargs="+",
        default=[],
        required=required,
        metavar="DIR",
        help="journals of servers, or compacted tables",
    )
    if client:
        parser.add_argument(
            "--client", type=place, nargs="+", default=[], metavar="DIR", help="journals of the load generator"
        )
    parser.set_defaults(client=[])
    parser.add_argument("--no-checksums", action="store_true", help="do not verify every page before reading")
    parser.add_argument(
        "--max-age", type=duration_ns, default=3650 * _UNITS_NS["d"], metavar="DURATION",
        help="put files aside that ended longer ago; default 3650d",
    )  # fmt: skip


def add_law(parser: Parser) -> None:
    parser.add_argument(
        "--grace", type=duration_ns, metavar="DURATION", help="lateness excused beyond one tick; default 250ms"
    )
    parser.add_argument(
        "--flight",
        type=duration_ns,
        metavar="DURATION",
        help="bytes sent so shortly before a reap crossed it; default 50ms",
    )
    parser.add_argument(
        "--tick", type=duration_ns, metavar="DURATION", help="of files that do not state it; default 1s"
    )


def add_policy(parser: Parser) -> None:
    from .advise.access_logs import FORMATS
    from .advise.survival import BALANCERS

    parser.add_argument(
        "--logs", type=place, nargs="+", default=[], metavar="FILE", help="access logs instead of journals"
    )
    parser.add_argument("--format", choices=sorted(FORMATS), help="their format")
    parser.add_argument(
        "--timeout", type=duration_ns, metavar="DURATION", help="timeout in force when they were written; default 75s"
    )
    parser.add_argument(
        "--recompute", action="store_true", help="take silences from the times of the rows; needs journals in full mode"
    )
    parser.add_argument(
        "--max-cut",
        type=share,
        default=0.001,
        metavar="SHARE",
        help="silences that may be cut though they would have ended; default 0.1%%",
    )
    parser.add_argument(
        "--behind", choices=sorted(BALANCERS), help="the load balancer in front: the timeout must outlast its own"
    )
    parser.add_argument(
        "--longest",
        type=longest_ns,
        default=3600 * 10**9,
        metavar="DURATION",
        help="longest timeout to consider; default 1h",
    )


def read_inputs(arguments: argparse.Namespace, progress: Progress) -> tuple[Inputs, Inputs | None]:
    options: dict[str, Any] = {
        "checksums": not arguments.no_checksums,
        "max_age_ns": arguments.max_age,
        "progress": progress,
    }
    require(arguments.events + arguments.client)
    try:
        server = check(arguments.events, **options)
        client = check(arguments.client, **options) if arguments.client else None
    except Unsound as error:
        raise Fault(str(error)) from None
    for found in (server, client):
        for entry in found.quarantined if found else ():
            progress(f"put aside: {entry['path']}: {entry['reason']}")
        if found and found.growing:
            progress(f"{found.growing} stream(s) are no Parquet yet and are not read")
    return server, client


def settings_of(arguments: argparse.Namespace) -> Settings:
    from .audit.run import Settings

    given = {"grace_ns": arguments.grace, "flight_ns": arguments.flight, "tick_ns": arguments.tick}
    return Settings(**{key: value for key, value in given.items() if value is not None})


def policy_of(arguments: argparse.Namespace) -> Policy:
    from .advise.run import Policy

    return Policy(max_cut=arguments.max_cut, behind=arguments.behind, longest_s=arguments.longest / 1e9)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def show(arguments: argparse.Namespace, summary: object, text: str) -> None:
    print(json.dumps(summary, indent=2) if arguments.json else text)


def rows_of(server: Inputs, client: Inputs | None) -> int:
    return sum(facts.rows for found in (server, client) if found for facts in found.files)


def require(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise Fault(f"no such file or directory: {path}")
