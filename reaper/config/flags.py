"""Command lines have the settings as flags, and say errors in one line.

One rule: *a flag is a setting*. Flags are made from `reaper.config.OPTIONS`, so
`--help` says what the documentation says, and their values go through the same checks
as those of a file.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from ..errors import InvalidArgument, NotInstalled, needs
from .durations import WANTED, format_duration, parse_duration
from .options import Switch
from .settings import OPTIONS

_NEGATIVE = re.compile(r"-\.?[0-9]")
_PREFIX = "setting "  # no other option has such an attribute, for it has a space


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says what is wrong in one line on stderr and exits with
    status 2.

    Attributes:
        runs_a_command: Whether it reads a command after `--`; a flag before that is not
            known may be one of the command's.
    """

    runs_a_command: bool = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in the base class, but what is not known is an error here: this parser
        knows why.
        """
        given = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(_joined(given), namespace)
        if unknown:
            hints = []
            flag = unknown[0].partition("=")[0]
            if near := difflib.get_close_matches(flag, self._option_string_actions, 1, 0.7):
                hints.append(f"did you mean {near[0]}?")
            if self.runs_a_command and "--" not in (args or ()):
                hints.append(f"a command comes after --: {self.prog} -- COMMAND...")
            said = "; ".join([f"unrecognized arguments: {' '.join(unknown)}", *hints])
            self.error(said)
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print *message* after the program's name and exit; the usage is one `--help`
        away.
        """
        self.exit(2, f"{self.prog}: {message}\n")


def _joined(args: list[str]) -> list[str]:
    """*args*, with a value that begins with a minus and a digit behind the `=` of its
    flag.

    argparse takes such a value for another flag, and says that one argument is missing.
    """
    end = args.index("--") if "--" in args else len(args)
    joined: list[str] = []
    for place, word in enumerate(args):
        before = args[place - 1] if 0 < place < end else ""
        if _NEGATIVE.match(word) and before.startswith("--") and "=" not in before:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def duration(least: float) -> Callable[[str], float]:
    """Return the `type` of a flag that is no setting: it reads a duration of *least*
    seconds or more.
    """

    def read(text: str) -> float:
        with suppress(InvalidArgument):
            if (found := parse_duration(text)) >= least:
                return found
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected {WANTED}, at least {format_duration(least)}"
        )

    return read


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give *parser* the flag `--version`."""
    door: Any = sys.modules[__name__.partition(".")[0]]  # imported before any module within
    parser.add_argument("--version", action="version", version=f"reaper {door.__version__}")


def add_completion(commands: Any, whole: Callable[[], argparse.ArgumentParser]) -> None:
    """Add `completion` to *commands*, argparse's subparsers; *whole* makes the parser
    of everything that it completes.
    """
    text = "Print the script by which a shell completes this command, to be sourced. Needs shtab."
    command = commands.add_parser("completion", help=text, description=text)
    command.add_argument("shell", choices=("bash", "zsh", "tcsh", "fish"), help="whose script")

    def run(parsed: argparse.Namespace) -> int:
        with needs("completion", "idle-reaper[completion]"):
            import shtab
        if parsed.shell not in shtab.SUPPORTED_SHELLS:
            raise NotInstalled(
                f"completion {parsed.shell} needs a newer shtab: pip install --upgrade shtab"
            )
        print(shtab.complete(whole(), parsed.shell))
        return 0

    command.set_defaults(run=run)


def add_settings(
    parser: argparse.ArgumentParser, sections: Iterable[str], prefix: str = ""
) -> None:
    """Give *parser* one flag for every setting of *sections*, in the order of the
    documentation.

    Args:
        parser: Gets one argument group per section.
        sections: Names among `reaper.config.SECTIONS`; or `section.key`, for a single
            setting.
        prefix: Of the settings' flags, to be left out here.
    """
    for section in sections:
        group = parser.add_argument_group(f"[{section.partition('.')[0]}]")
        for found in OPTIONS.values():
            if section in (found.section, found.path):
                switch: dict[str, Any] = (
                    {"action": "store_const", "const": "true"}
                    if isinstance(found.kind, Switch)
                    else {"metavar": type(found.kind).__name__.upper()}
                )
                group.add_argument(
                    "--" + found.flag.removeprefix("--").removeprefix(prefix),
                    dest=_PREFIX + found.path,
                    help=f"{found.doc} Default: {found.kind.show(found.default) or 'none'}.".replace(
                        "%", "%%"
                    ),
                    **switch,
                )


def settings(arguments: argparse.Namespace) -> dict[str, object]:
    """The flags of `add_settings` that were given: `section.key` -> text, for
    `ReaperConfig.load`.
    """
    return {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX) and value is not None
    }
