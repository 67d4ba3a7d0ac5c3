"""What the commands' arguments have in common: how they are read, checked and refused.

The rule of this module: *bad arguments are one line and exit status 2*. Each room declares its own flags in its
`command.py`, in a function `add(command)`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..config.durations import parse_duration
from ..config.flags import Parser
from ..errors import InvalidArgument

DAY_NS = 86_400 * 10**9

Progress = Callable[[str], None]
"""Reports how far a command is, one line of text."""


class Fault(Exception):
    """The arguments cannot be worked with. The message is the one line that is shown."""


def duration_ns(text: str) -> int:
    """`250ms`, `30s`, `5m`, `1h`, `7d` as ns; for argparse."""
    try:
        return round(parse_duration(text) * 1e9)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_ns(text: str) -> int:
    """A duration longer than zero, as ns; for argparse."""
    if (value := duration_ns(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not longer than 0s")
    return value


def place(text: str) -> Path:
    """A path, or `file://` and a path; for argparse. Object stores are refused: files are looked at from here."""
    if re.match(r"[a-z][a-z0-9+.-]*://", path := text.removeprefix("file://"), re.IGNORECASE):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a path that this machine can read: mount it at the same path here and on every executor"
        )
    return Path(path)


Run = Callable[[argparse.Namespace, Progress], int]
"""A command: its arguments, where to report progress; returns the exit status."""

AddCommand = Callable[[str, Run, str], Parser]
"""Declares a command (name, what runs it, summary); returns its parser, which has --out, --master, --json, --quiet."""


def write_json(path: Path, value: object) -> None:
    """*value* as indented JSON at *path*."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def show(arguments: argparse.Namespace, summary: object, text: str) -> None:
    """Print *text*, or *summary* as JSON where `--json` was given."""
    print(json.dumps(summary, indent=2) if arguments.json else text)


def require(paths: Sequence[Path]) -> None:
    """Make sure that each of *paths* exists.

    Raises:
        Fault: one does not.
    """
    for path in paths:
        if not path.exists():
            raise Fault(f"no such file or directory: {path}")
