"""The commands, assembled: each room declares its own in `command.py`.

Exit status 0 = good, 1 = the check it ran failed, 2 = bad arguments. The result goes to
stdout, as JSON with `--json`; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from tempfile import gettempdir
from typing import Any
from urllib.parse import unquote

from ..config.flags import Parser, add_version
from ..config.running import progress_on_stderr
from ..errors import NotInstalled, needs, printable

with needs("reaper.pipeline", "idle-reaper[pipeline]"):
    from .advise import command as advise
    from .arguments import Fault, Run, format_unsaid, place
    from .audit import command as audit
    from .engine import NoSpark, line_of
    from .engine.choice import CHOICES
    from .live import command as live
    from .losses import command as losses
    from .places import DAMAGED, Place
    from .report import command as report
    from .whatif import command as whatif

COMMANDS = (audit, advise, report, live, whatif, losses)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = Parser(
        prog="python -m reaper.pipeline", description="Questions to journals and access logs."
    )
    add_version(parser)
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


def add_commands(commands: Any) -> None:
    """Add every command of the pipeline to *commands*, argparse's subparsers; each sets
    `run` to what runs it.
    """

    def command(name: str, run: Run, summary: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(run=partial(_run, run), prog=sub.prog)
        sub.add_argument(
            "--json", action="store_true", help="print the summary as JSON instead of a table"
        )
        sub.add_argument("--quiet", action="store_true", help="no progress on stderr")
        sub.add_argument(
            "--out",
            type=place,
            metavar="DIR",
            help="where results go; made if missing",
        )
        sub.add_argument(
            "--master",
            metavar="URL",
            help="a Spark master, or sc://... ; default: what the environment says",
        )
        sub.add_argument(
            "--engine", choices=CHOICES, default="auto",
            help="embedded: in this process, without Java; auto: that, for files of this machine "
                 "that memory bears",
        )  # fmt: skip
        return sub

    for module in COMMANDS:
        module.add(command)


def _run(run: Run, arguments: argparse.Namespace) -> int:
    try:
        with needs(arguments.prog, "idle-reaper[pipeline]"):
            if arguments.out is None:
                unsaid = format_unsaid(arguments)
                raise Fault(f"--out DIR is missing: where results go{unsaid and f'; {unsaid}'}")
            progress = progress_on_stderr(arguments.quiet)
            return run(arguments, lambda text: progress(printable(text)))
    except Exception as error:
        clear = isinstance(error, Fault | NoSpark | NotInstalled | OSError)
        if not clear and type(error).__module__.partition(".")[0] not in (
            "pyspark",
            "py4j",
            "duckdb",
            "_duckdb",
        ):
            raise
        full = any(
            text in str(error) for text in ("No space left on device", "Disk quota exceeded")
        )
        why = error if clear else _why(error)
        text = _full(arguments.out) if full else str(why)
        print(f"{arguments.prog}: {printable(text)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{arguments.prog}: stopped", file=sys.stderr)
        return 130


def _full(out: Place) -> str:
    return (
        f"no space is left for {out}, or in {gettempdir()}, where engines spill: nothing was "
        "written"
    )


def _why(error: Exception) -> str:
    """Why an engine gave up, in one line."""
    if unreadable := re.search(r"while reading file (\S+?)\.?\s", str(error)):
        name = unquote(unreadable[1]).removeprefix("file://")
        if name.endswith(".gz"):
            return f"{name} cannot be read: {DAMAGED}"
        return (
            f"{name} cannot be read: a page fails its checksum, or the file changed since it was "
            "checked. Ask again"
        )
    if damaged := re.search(rf"IOError: (.+ cannot be read: {DAMAGED})", str(error)):
        return damaged[1]
    engine = "Spark" if type(error).__module__.startswith("py") else "the embedded engine"
    return f"{engine} gave up: {line_of(error)}"
