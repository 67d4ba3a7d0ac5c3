"""What the commands' arguments have in common: how they are read, checked and refused.

The rule of this module: *bad arguments are one line and exit status 2*. Each room
declares its own flags in its `command.py`, in a function `add(command)`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config.durations import parse_duration
from ..config.flags import Parser
from ..errors import InvalidArgument
from . import places
from .places import Place, Remote, remove, write_text

Progress = Callable[[str], None]
"""Reports how far a command is, one line of text."""


PUT_ASIDE = "put-aside.txt"
"""Below `--out`: every file that was put aside, where they are many."""
SHOWN_ASIDE = 3


class Fault(Exception):
    """The arguments cannot be worked with. The message is the one line that is
    shown.
    """


def add_format(parser: Parser, known: Iterable[str]) -> None:
    """Give *parser* the flag that says in which of the *known* formats logs are.
    `check_format` asks for it: argparse would not say which there are.
    """
    parser.add_argument("--format", choices=sorted(known), help="their format")
    parser.set_defaults(formats=sorted(known))


def format_unsaid(arguments: argparse.Namespace) -> str:
    """That the format of the logs is missing; empty: there are none, or it is not."""
    if not getattr(arguments, "logs", []) or arguments.format:
        return ""
    return f"--logs needs --format, one of {', '.join(arguments.formats)}"


def check_format(arguments: argparse.Namespace) -> None:
    """Raises Fault: the format of the logs is missing."""
    if missing := format_unsaid(arguments):
        raise Fault(missing)


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


def share(text: str) -> float:
    """`0.001` or `0.1%` as a share between 0 and 1, both exclusive; for argparse."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.001 or 0.1%")
    return value


def place(text: str) -> Place:
    """A path of this machine or a URI as a `Place`; for argparse."""
    try:
        return places.place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


Run = Callable[[argparse.Namespace, Progress], int]
"""A command: its arguments, where to report progress; returns the exit status."""

AddCommand = Callable[[str, Run, str], Parser]
"""Declares a command (name, what runs it, summary); returns its parser, which has
--out, --master, --json, --quiet.
"""


def write_answer(out: Place, name: str, summary: object, text: str) -> None:
    """*summary* as indented JSON and *text* in place of *name*.json and *name*.txt in
    *out*.
    """
    write_text(out / f"{name}.json", json.dumps(summary, indent=2) + "\n")
    write_text(out / f"{name}.txt", text + "\n")


def show(as_json: bool, summary: object, text: str) -> None:
    """Print *text*, or *summary* where *as_json*. A reader may leave early, as `head`
    does.
    """
    try:
        print(json.dumps(summary, indent=2) if as_json else text, flush=True)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or the interpreter complains as it ends


def aside_lines(quarantined: Sequence[Mapping[str, str]]) -> list[str]:
    """Files put aside, in words: each of a few, or one of them and a count; `PUT_ASIDE`
    then has them all.
    """
    shown = [f"put aside: {entry['path']}: {entry['reason']}" for entry in quarantined]
    return (
        shown
        if len(shown) <= SHOWN_ASIDE
        else [f"{shown[0]}; and {len(shown) - 1:,} more, see {PUT_ASIDE}"]
    )


@contextmanager
def whole(out: Place) -> Iterator[None]:
    """If the command fails, leave nothing new in *out*, and remove *out* if it was made
    here.
    """
    before = set(map(str, out.iterdir())) if out.exists() else None
    try:
        yield
    except BaseException:
        if out.exists():
            for path in (
                [out]
                if before is None
                else [path for path in out.iterdir() if str(path) not in before]
            ):
                remove(path)
        raise


def require(wanted: Sequence[Place], out: Place) -> None:
    """Make sure, before an engine starts, that each of *wanted* exists, and that *out*
    is a directory or can be made. Paths that are not on this machine are checked later.

    Raises:
        Fault: it is not so.
    """
    for where in wanted:
        if not isinstance(where, Remote) and not where.exists():
            raise Fault(f"no such file or directory: {where}")
    if isinstance(out, Remote):
        return
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise Fault(f"--out {out}: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Fault(f"--out {out}: no permission to write in {there}")


def apart(out: Place, events: Sequence[Place]) -> None:
    """Make sure that *out* lies in none of *events*: the next time its tables would be
    read as journals.

    Raises:
        Fault: it does.
    """
    for where in events:
        if (
            isinstance(out, Path)
            and isinstance(where, Path)
            and out.resolve().is_relative_to(where.resolve())
        ):
            raise Fault(
                f"--out {out} lies in {where}, which is read: name a directory outside of it"
            )
