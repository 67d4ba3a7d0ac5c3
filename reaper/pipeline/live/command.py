"""The command `live`: its flags, and the run that they ask for."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pkgutil import resolve_name
from typing import Any

from ...config.running import stoppable
from ..arguments import AddCommand, Fault, Progress, duration_ns, place, require, show
from ..engine import expect, open_session
from ..engine.choice import choose
from ..places import Remote
from ..read.expected import add_expected


def add(command: AddCommand) -> None:
    """Declare `live`."""
    sub = command(
        "live",
        _live,
        "Follow growing journals: windowed figures and idle connections across servers.",
    )
    sub.add_argument(
        "--events",
        type=place,
        nargs="+",
        required=True,
        metavar="DIR",
        help="journals, still written to: one a server",
    )
    sub.add_argument(
        "--for", type=_how_long, default=0, dest="for_ns", metavar="DURATION",
        help="stop after it, or `forever`: at Ctrl-C; default: once through what is there",
    )  # fmt: skip
    sub.add_argument(
        "--every", type=duration_ns, default=5 * 10**9, metavar="DURATION",
        help="look for new files so often; default 5s",
    )  # fmt: skip
    sub.add_argument(
        "--window",
        type=_milliseconds,
        default=10 * 10**9,
        metavar="DURATION",
        help="of the figures; default 10s",
    )
    sub.add_argument(
        "--delay", type=_milliseconds, default=600 * 10**9, metavar="DURATION",
        help="how far behind the newest row a row may come: more than the writers' rotation; "
             "default 10m",
    )  # fmt: skip
    sub.add_argument(
        "--drain",
        action="store_true",
        help="no server writes any more: let the last connections come out",
    )
    sub.add_argument(
        "--each", type=_function, metavar="MODULE:FUNCTION",
        help="called with windows or idle, the rows of each batch, and its number",
    )  # fmt: skip
    add_expected(sub)


def _how_long(text: str) -> int | None:
    return None if text == "forever" else duration_ns(text)


def _function(text: str) -> Any:
    """The function that *text* names, of a module on the path or in this directory."""
    sys.path.append(os.getcwd())
    try:
        found = resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} names no function: {error}") from None
    finally:
        sys.path.pop()
    if not callable(found):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be called")
    return found


def _milliseconds(text: str) -> int:
    value = duration_ns(text)
    if value < 10**6 or value % 10**6:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number of milliseconds, at least one"
        )
    return value


def _live(arguments: argparse.Namespace, progress: Progress) -> int:
    out, directories = arguments.out, arguments.events
    for where in (out, *directories):
        if isinstance(where, Remote):
            raise Fault(
                f"{where} is not a path of this machine: live works on nothing else; mount it"
            )
    require(directories, out)
    for directory in directories:
        if not directory.is_dir():
            raise Fault(f"--events {directory} is a file; live follows directories")
    choose(arguments.engine, arguments.master, directories, out, only_spark="live is a stream")
    progress("starting Spark")
    said = partial(progress, "stopping after this step")
    with open_session("live", arguments.master, connect=False) as spark, stoppable(said) as stop:
        from .run import Settings, StreamFailed, follow
        from .status import as_text

        settings = Settings(
            arguments.window,
            arguments.delay,
            arguments.every,
            arguments.for_ns,
            arguments.drain,
            arguments.expect,
            arguments.expect_within,
        )
        expect(spark, 0)  # a step is small, and each partition keeps a state of its own
        progress(f"the page is {out / 'live.html'}")
        try:
            summary = follow(spark, directories, out, settings, stop, progress, arguments.each)
        except StreamFailed as failed:
            progress(str(failed))
            return 1
    show(arguments.json, summary, as_text(summary))
    return 0 if summary["complete"] and not summary["dropped_by_watermark"] else 1
