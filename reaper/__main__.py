"""`reaper`, or `python -m reaper`, has one command per subject. Its exit status is 0 if
all is good, 1 if a check failed, and 2 for bad arguments.

The rule of this door: *a command costs what it imports, and says what it lacks*. What
is imported is the command that was asked for; of the others `COMMANDS` says a line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .config.flags import Parser, add_completion, add_version
from .errors import NotInstalled

if TYPE_CHECKING:
    from .config.command import Table


def tables() -> tuple[Table, ...]:
    """The tables of pages beside that of all settings, and of the hook."""
    from . import _deprecated
    from .config.command import Table
    from .policy import reasons
    from .servers import cards, pages

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
    if given and given[0] in QUESTIONS:
        words = f"{given[0]}: a command of the pipeline: write {name} pipeline {given[0]}"
        print(f"{name}: {words}", file=sys.stderr)
        return 2
    try:
        parsed = make_parser(name, "".join(given[:1])).parse_args(given)
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


class Command(NamedTuple):
    """A command of this program."""

    summary: str
    """A line for `reaper --help`; the command's own parser has it, too."""
    add: Callable[[Any], object]
    """Import it, and add it to the commands of a parser. May raise NotInstalled."""


def _add_config(commands: Any) -> None:
    from .config.command import add_commands
    from .servers import cards

    add_commands(commands, tables, cards.Names(), lambda name: cards.columns()[name])


def _add_attach(commands: Any) -> None:
    from .attach.command import add_commands

    add_commands(commands)


def _add_run(commands: Any) -> None:
    from .run.command import add_commands

    add_commands(commands)


def _add_top(commands: Any) -> None:
    from .top.command import add_commands

    add_commands(commands)


def _add_deploy(commands: Any) -> None:
    from .deploy import add_commands

    add_commands(commands)


def _add_doctor(commands: Any) -> None:
    from .doctor.command import add_commands

    add_commands(commands)


def _add_journal(commands: Any) -> None:
    from .journal.command import ABOUT, add_commands

    journal = commands.add_parser("journal", help=COMMANDS["journal"].summary, description=ABOUT)
    add_commands(journal.add_subparsers(required=True, metavar="COMMAND"))


def _add_pipeline(commands: Any) -> None:
    from .pipeline.cli import add_commands

    summary = COMMANDS["pipeline"].summary
    inner = commands.add_parser("pipeline", help=summary, description=summary)
    add_commands(inner.add_subparsers(required=True, metavar="COMMAND"))


COMMANDS = {
    "check": Command("lint and explain a configuration, every value with its origin", _add_config),
    "table": Command(
        "write the tables that are generated into Markdown files, between markers", _add_config
    ),
    "attach": Command("show, and close, the idle connections of any running server", _add_attach),
    "run": Command(
        "run any server with its idle connections closed: reaper run -- COMMAND",
        _add_run,
    ),
    "top": Command(
        "watch a server's connections live: phases, silence, what is due next",
        _add_top,
    ),
    "deploy": Command(
        "print a service, a Dockerfile, alert rules or a dashboard, ready for use",
        _add_deploy,
    ),
    "doctor": Command(
        "look at a running server and say what is wrong with its connections",
        _add_doctor,
    ),
    "journal": Command("what becomes of a journal's files", _add_journal),
    "pipeline": Command("questions to journals and access logs", _add_pipeline),
}
"""In the order of `reaper --help`. Two may be added by one: they come together."""

QUESTIONS = ("audit", "advise", "report", "live", "what-if", "losses")
"""The commands of `reaper pipeline`, which some ask for without that."""


def make_parser(name: str, wanted: str | None) -> Parser:
    """Make the parser of the program *name*, with the command *wanted*; the others are
    a line each. None: with every command that this installation can run.

    Cost: what the commands import that are there; all of them take half a second.
    """
    parser = Parser(
        prog=name,
        description="Explain a configuration of reaper; guard any running server; read journals.",
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = {add for each, (_, add) in COMMANDS.items() if wanted in (None, each)}
    for each, (summary, add) in COMMANDS.items():
        if each in commands.choices:
            continue  # it came with another one
        if add not in asked:
            commands.add_parser(each, help=summary, add_help=False)
            continue
        try:
            add(commands)
        except NotInstalled as error:  # attach: another system than Linux
            if wanted == "pipeline":
                raise
            _refuse(commands, each, error)
    add_completion(commands, lambda: make_parser("reaper", None))
    return parser


def _refuse(commands: Any, name: str, why: NotInstalled) -> None:
    """Add the command *name*, which cannot run here."""

    def run(_: argparse.Namespace) -> int:
        raise why

    command = commands.add_parser(name, help=f"not here: {why}", add_help=False, prefix_chars="\0")
    command.add_argument("any", nargs="*")
    command.set_defaults(run=run)


if __name__ == "__main__":
    sys.exit(main())
