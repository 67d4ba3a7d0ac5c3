"""What the commands of this room share: their flags, what refuses to begin, and the way from a report to the terminal.

One rule: *what cannot be measured whole is not begun*, and said in one line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from loadgen.plan.capacity import SPARE_DESCRIPTORS, raise_descriptor_limit

from ..common import Note


def descriptors() -> int:
    """Connections that this process may have: as many as it can be given descriptors, less what it needs itself."""
    return raise_descriptor_limit() - SPARE_DESCRIPTORS


def room_for(count: int, what: str) -> None:
    """Make room for *count* connections of this process. Raises RuntimeError."""
    most = descriptors()
    if count > most:
        raise RuntimeError(f"{count} {what} are more than the {most} that the descriptors of a process allow")


def flags(parser: argparse.ArgumentParser, known: Iterable[str], default: Iterable[str] | None = None) -> None:
    """Add `--only` and `--json`."""
    only = None if default is None else ",".join(default)
    parser.add_argument("--only", metavar="NAMES", default=only, help=f"a list with commas, of {', '.join(known)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")


def chosen(parser: argparse.ArgumentParser, only: str, known: Collection[str]) -> list[str]:
    """The names in *only*. Ends the command with status 2 if one is unknown."""
    names = only.split(",")
    for name in names:
        if name not in known:
            parser.error(f"--only {name}: must be of {', '.join(known)}")
    return names


def at_least(parser: argparse.ArgumentParser, least: int, values: Mapping[str, int]) -> None:
    """End the command with status 2 if the value of one of these flags is too small."""
    for flag, value in values.items():
        if value < least:
            parser.error(f"{flag} {value}: must be an integer >= {least}")


def show(measure: Callable[[Note], dict[str, Any]], table: Callable[[dict[str, Any]], str], path: Path | None) -> int:
    """Measure, print the table, and write everything if asked.

    Returns:
        The exit status: 0; 1 if it cannot be measured; 130 for Ctrl-C.
    """
    over, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")

    def note(text: str) -> None:
        print(f"{over}{text}", end=end, file=sys.stderr, flush=True)

    try:
        report = measure(note)
    except RuntimeError as error:
        print(f"{over}{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(over, end="", file=sys.stderr, flush=True)
        return 130
    print(over, end="", file=sys.stderr, flush=True)
    print(table(report))
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")
    return 0
