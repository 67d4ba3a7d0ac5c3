"""`reaper`, or `python -m reaper`, has one command per subject. Its exit status is 0 if
all is good, 1 if a check failed, and 2 for bad arguments.

The rule of this door: *a command costs what it imports, and says what it lacks*. The
pipeline is imported only where it is asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import _deprecated
from .config.command import Table, add_commands
from .config.flags import Parser, add_completion, add_version
from .deploy import add_commands as add_deploy
from .doctor.command import add_commands as add_doctor
from .errors import NotInstalled
from .journal.command import ABOUT as ABOUT_JOURNAL
from .journal.command import add_commands as add_journal
from .policy import reasons
from .run.command import add_commands as add_run
from .servers import cards
from .top.command import add_commands as add_top


def tables() -> tuple[Table, ...]:
    """The tables of pages beside that of all settings, and of the hook."""
    from .servers import pages

    return (
        Table("reasons", reasons.markdown),  # docs/howto/why-closed.md
        Table("effects", pages.summary),  # docs/run.md
        Table("servers", pages.servers),  # docs/run.md
        Table("deprecations", _deprecated.markdown),  # docs/stability.md
        Table("modules", cards.modules, ("# ", "")),  # reaper/run/hook/sitecustomize.py
        *(Table(f"settings in {name}", partial(pages.page, name)) for name in cards.pages()),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line *arguments* (those of the process by default) and return the
    exit status.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    name = "reaper" if Path(sys.argv[0]).stem == "reaper" else "python -m reaper"
    try:
        parsed = make_parser(name, pipeline=given[:1] == ["pipeline"]).parse_args(given)
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except NotInstalled as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has gone. The interpreter flushes stdout at its end, and must not
        # meet the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def make_parser(name: str, *, pipeline: bool) -> Parser:
    """Make the parser of the program *name*. With the commands of the *pipeline* that
    takes half a second. Raises NotInstalled if a package is missing that those need.
    """
    parser = Parser(
        prog=name,
        description="Explain a configuration of reaper; guard any running server; read journals.",
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands(commands, tables, cards.Names(), lambda name: cards.columns()[name])
    try:
        from .attach.command import add_commands as add_attach

        add_attach(commands)
    except NotInstalled as error:  # another system than Linux
        _refuse(commands, "attach", error)
    add_run(commands)
    add_top(commands)
    add_deploy(commands)
    add_doctor(commands)
    journal = commands.add_parser(
        "journal", help=ABOUT_JOURNAL[0].lower() + ABOUT_JOURNAL[1:-1], description=ABOUT_JOURNAL
    )
    add_journal(journal.add_subparsers(required=True, metavar="COMMAND"))
    summary = "questions to journals and access logs"
    inner = commands.add_parser("pipeline", help=summary, description=summary)
    if pipeline:
        from .pipeline.cli import add_commands as add_pipeline

        add_pipeline(inner.add_subparsers(required=True, metavar="COMMAND"))
    add_completion(commands, _everything)
    return parser


def _refuse(commands: Any, name: str, why: NotInstalled) -> None:
    """Add the command *name*, which cannot run here."""

    def run(_: argparse.Namespace) -> int:
        raise why

    command = commands.add_parser(name, help=f"not here: {why}", add_help=False, prefix_chars="\0")
    command.add_argument("any", nargs="*")
    command.set_defaults(run=run)


def _everything() -> argparse.ArgumentParser:
    """The parser of the installed program, with every command that this installation
    can run.
    """
    try:
        return make_parser("reaper", pipeline=True)
    except NotInstalled:
        return make_parser("reaper", pipeline=False)


if __name__ == "__main__":
    sys.exit(main())
