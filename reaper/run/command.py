"""`reaper run -- COMMAND`: flags in, an environment out; then the command takes this
process's place.

One rule: *what cannot work is refused before the command is started*, in one line, with
exit status 2. From then on the process is the command's: signals reach it alone, and
its exit status is nobody else's.

What a guest may change here, and nothing else: the environment gets PYTHONPATH,
REAPER_RUN and REAPER_* of the settings; SIGPIPE and SIGXFSZ, which Python ignores, get
their default back (what ignored them before cannot be found out). A descriptor, the
working folder, the terminal, the limits and the mask of signals are what they were.
"""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..config.durations import parse_duration
from ..config.flags import Parser, add_settings, settings
from ..config.lint import lint
from ..config.settings import OPTIONS, ReaperConfig, vain_variables
from ..errors import ConfigError
from . import report
from .channel import ADDRESS
from .explain import explain, interpreter_of
from .watcher import watch_over

UNUSABLE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127
"""Exit statuses: bad arguments; and what a shell says of a command that cannot be run,
or is not there.
"""

HOOK = Path(__file__).parent / "hook"
SECTIONS = ("timeouts", "limits", "reaper", "attach")
SHELL = "/bin/sh"
STARTERS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env")
"""Programs that may start a Python in their place: `--inside --strict` lets them."""


def add_commands(commands: Any) -> None:
    """Add `run` to *commands*, argparse's subparsers."""
    run = commands.add_parser(
        "run",
        help="run any server with its idle connections closed: reaper run -- COMMAND",
        description="Run COMMAND with the servers that it starts guarded, children and reloads "
        "included: Python servers from inside, all others from outside, as `attach --close` does. "
        "Its signals, output and exit status are its own. Exit status of reaper itself: 2 bad "
        "arguments, 126 COMMAND cannot be run, 127 there is none.",
        usage="reaper run [--config FILE] [--LIMIT VALUE ...] [--inside] [--strict] [--explain [--names]] "
        "[--exit-when-idle DURATION] -- COMMAND...",
    )
    run.add_argument(
        "--config",
        metavar="FILE",
        help="a reaper.toml; without it, the one that REAPER_CONFIG names",
    )
    run.add_argument(
        "--inside", action="store_true", help="guard from inside only; attach to nothing"
    )
    run.add_argument(
        "--strict",
        action="store_true",
        help="refuse a server that cannot be guarded, or was not tested",
    )
    run.add_argument("--explain", action="store_true", help="say what would be guarded, and exit")
    run.add_argument(
        "--names",
        action="store_true",
        help="with --explain: list each name of other packages that would be read or replaced",
    )
    run.add_argument(
        "--hook", action="store_true", help="print the folder to put on PYTHONPATH, and exit"
    )
    run.add_argument(
        "--exit-when-idle",
        type=_idle,
        metavar="DURATION",
        help="send COMMAND SIGTERM once nobody has been connected for so long, and exit with 0",
    )
    run.add_argument("command", nargs="*", metavar="COMMAND", help="what to run, after --")
    add_settings(run, SECTIONS)
    run.set_defaults(run=_run)
    if isinstance(run, Parser):
        run.runs_a_command = True


def _idle(text: str) -> float:
    """The seconds of `--exit-when-idle`."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"must be a duration > 0, such as 30m, got {text!r}")
    return seconds


def _run(parsed: argparse.Namespace) -> int:
    if parsed.hook:
        print(HOOK)
        return 0
    if parsed.names and not parsed.explain:
        return _refuse("--names: only --explain lists them: expected --explain --names")
    if not parsed.command:
        return _refuse("no command: expected `reaper run -- COMMAND...`")
    path = parsed.config or os.environ.get("REAPER_CONFIG")
    try:
        config = ReaperConfig.load(path, overrides=settings(parsed))
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"reaper run: {line}", file=sys.stderr)
        return UNUSABLE
    for finding in lint(config):
        if finding.severity == "error":  # the command is started all the same: it is the user's
            print(f"reaper run: {finding.path}: {finding.text}", file=sys.stderr)
    for variable, text in vain_variables(os.environ).items():
        print(f"reaper run: {variable}: {text}", file=sys.stderr)
    name = parsed.command[0]
    # The second look finds what is there, but cannot be run.
    program = shutil.which(name) or shutil.which(name, os.F_OK)
    if program is None:
        return _refuse(f"{name}: no such command", NOT_FOUND)
    if config.reaper.pressure and importlib.util.find_spec("psutil") is None:
        return _refuse("--pressure needs psutil: pip install 'idle-reaper[pressure]'")
    if parsed.explain:
        print(
            explain(
                program,
                parsed.command,
                config,
                inside=parsed.inside,
                strict=parsed.strict,
                touched=parsed.names,
            )
        )
        return 0
    if parsed.inside and parsed.strict and not may_be_python(program, parsed.command):
        return _refuse(
            f"--inside --strict: {name} is no Python program, so nothing of it can be guarded from "
            "inside: leave --inside out; if it starts a Python, put `reaper run` before that"
        )
    given = {OPTIONS[path].environment: value for path, value in settings(parsed).items()}
    how = report.how(strict=parsed.strict, inside=parsed.inside)
    environment = environment_of(os.environ, path, given, how=how)

    def start(environment: MutableMapping[str, str]) -> int:
        """Become COMMAND; return the status if that cannot be."""
        if parsed.strict or not parsed.inside:
            watch_over(os.getpid(), config, environment, attaches=not parsed.inside)
        try:
            become(program, parsed.command, environment)
        except OSError as error:
            return _refuse(f"{program}: {error.strerror}", NOT_EXECUTABLE)

    sys.stdout.flush()
    if parsed.exit_when_idle is None:
        return start(environment)
    if not sys.platform.startswith("linux") or importlib.util.find_spec("psutil") is None:
        return _refuse("--exit-when-idle needs Linux and pip install 'idle-reaper[attach]'")
    from .until_idle import run_until_idle

    return run_until_idle(parsed.exit_when_idle, config.reaper.tick, start, environment)


def become(program: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Let *command* take this process's place, as a shell would start it.

    A script without `#!` is run by the shell, as execvp(3) does.

    Raises:
        OSError: *program* cannot be run.
    """
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and execve would keep that
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, [*command], environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    os.execve(SHELL, [SHELL, program, *command[1:]], environment)


def may_be_python(program: str, command: Sequence[str]) -> bool:
    """Whether *program* is a Python, or something that may start one in its place."""
    if interpreter_of(program, command) is not None or Path(program).name in STARTERS:
        return True
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return False
    if not first.startswith(b"#!"):
        return not first.startswith(b"\x7fELF")  # a script that the shell runs
    words = first[2:].decode(errors="replace").split()
    return bool(words) and Path(words[0]).name in STARTERS


def _refuse(why: str, status: int = UNUSABLE) -> int:
    print(f"reaper run: {why}", file=sys.stderr)
    return status


def environment_of(
    before: Mapping[str, str],
    config: str | None,
    given: Mapping[str, object],
    *,
    how: str = report.LENIENT,
) -> dict[str, str]:
    """The environment in which Python guards the servers that it imports.

    Args:
        before: The environment of this process.
        config: A reaper.toml.
        given: Settings of the command line, by their variables.
        how: What becomes of a server that does not fit: see `report.how`.
    """
    theirs = [
        place
        for place in before.get("PYTHONPATH", "").split(os.pathsep)
        if place and place != str(HOOK)
    ]
    environment = {
        **before,
        report.RUN: how,
        "PYTHONPATH": os.pathsep.join([str(HOOK), *theirs]),
    }
    environment.pop(ADDRESS, None)  # of a `reaper run` that runs this one
    if config is not None:
        # COMMAND may change its directory.
        environment["REAPER_CONFIG"] = os.path.abspath(config)
    return environment | {name: str(value) for name, value in given.items()}
