"""`python -m reaper`: one command per subject. Exit status: 0 good, 1 what was checked failed, 2 bad arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .attach.command import add_commands as add_attach
from .config.command import add_commands
from .config.flags import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line *arguments* (those of the process by default) and return the exit status."""
    parser = Parser(prog="python -m reaper", description="Explain a configuration of reaper; guard any running server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands(commands)
    add_attach(commands)
    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
