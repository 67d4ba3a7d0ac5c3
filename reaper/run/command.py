"""`reaper run -- COMMAND`: flags in, an environment out; then the command takes this process's
place.

One rule: *what cannot work is refused before the command is started*, in one line, with exit status
2. From then on the process is the command's: signals reach it alone, and its exit status is nobody
   else's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.flags import add_settings, settings
from ..config.settings import OPTIONS, ReaperConfig
from ..errors import ConfigError, one_line
from . import report
from .servers import SERVERS
from .watcher import LIMITS, outside_limits, watch_over

UNUSABLE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127
"""Exit statuses: bad arguments; and what a shell says of a command that cannot be run, or is not
there.
"""

HOOK = Path(__file__).parent / "hook"
SECTIONS = ("timeouts", "limits", "reaper", "attach")


def add_commands(commands: Any) -> None:
    """Add `run` to *commands*, argparse's subparsers."""
    run = commands.add_parser(
        "run",
        help="run any server with its idle connections closed: reaper run -- COMMAND",
        description="Run COMMAND with the servers that it starts guarded, children and reloads included: Python "
        "servers from inside, all others from outside, as `attach --close` does. Its signals, output and exit status "
        "are its own. Exit status of reaper itself: 2 bad arguments, 126 COMMAND cannot be run, 127 there is none.",
        usage="reaper run [--config FILE] [--LIMIT VALUE ...] [--inside] [--strict] [--explain] -- COMMAND...",
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
        "--hook", action="store_true", help="print the folder to put on PYTHONPATH, and exit"
    )
    run.add_argument("command", nargs="*", metavar="COMMAND", help="what to run, after --")
    add_settings(run, SECTIONS)
    run.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.hook:
        print(HOOK)
        return 0
    if not parsed.command:
        return _refuse("no command: expected `reaper run -- COMMAND...`")
    path = parsed.config or os.environ.get("REAPER_CONFIG")
    try:
        config = ReaperConfig.load(path, overrides=settings(parsed))
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"reaper run: {line}", file=sys.stderr)
        return UNUSABLE
    program = shutil.which(parsed.command[0]) or shutil.which(
        parsed.command[0], os.F_OK
    )  # there, but cannot be run
    if program is None:
        return _refuse(f"{parsed.command[0]}: no such command", NOT_FOUND)
    given = {OPTIONS[path].environment: value for path, value in settings(parsed).items()}
    environment = environment_of(os.environ, path, given, strict=parsed.strict)
    if parsed.explain:
        print(explain(program, parsed.command, config, inside=parsed.inside))
        return 0
    if not parsed.inside:
        watch_over(os.getpid(), config, environment)
    sys.stdout.flush()
    try:
        os.execve(program, parsed.command, environment)
    except OSError as error:
        return _refuse(f"{program}: {error.strerror}", NOT_EXECUTABLE)


def _refuse(why: str, status: int = UNUSABLE) -> int:
    print(f"reaper run: {why}", file=sys.stderr)
    return status


def environment_of(
    before: Mapping[str, str],
    config: str | None,
    given: Mapping[str, object],
    *,
    strict: bool = False,
) -> dict[str, str]:
    """The environment in which Python guards the servers that it imports.

    Args:
        before: That of this process.
        config: A reaper.toml.
        given: Settings of the command line, by their variables.
        strict: Refuse what does not fit.
    """
    paths = [str(HOOK), *filter(None, [before.get("PYTHONPATH")])]
    environment = {
        **before,
        "REAPER_RUN": "strict" if strict else "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    if config is not None:
        environment["REAPER_CONFIG"] = os.path.abspath(
            config
        )  # the command may change its directory
    return environment | {name: str(value) for name, value in given.items()}


# ---- --explain
# -----------------------------------------------------------------------------------------------------

ASK = (
    "import json, sys\n"
    "from importlib.metadata import version, PackageNotFoundError\n"
    "found = {}\n"
    "for name in sys.argv[1:]:\n"
    "    try: found[name] = version(name)\n"
    "    except PackageNotFoundError: pass\n"
    "print(json.dumps([sys.version.split()[0], found]))\n"
)


def interpreter_of(program: str, command: Sequence[str]) -> list[str] | None:
    """What runs *program* if that is a Python: its words; None if it is another program."""
    if Path(program).resolve().name.startswith(("python", "pypy")):
        return [program]
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    words = words[1:] if words and words[0].endswith("/env") else words
    return words[:1] if words and "python" in Path(words[0]).name else None


def explain(program: str, command: Sequence[str], config: ReaperConfig, *, inside: bool) -> str:
    """What `reaper run` would do with *command*, for people."""
    outside = (
        "not guarded: --inside was given"
        if inside
        else f"guarded from outside: {outside_text(config)}"
    )
    python = interpreter_of(program, command)
    if python is None:
        return f"{command[0]} is no Python program\nwhat it listens on is {outside}"
    names = list(dict.fromkeys(server.name for server in SERVERS))
    try:
        done = subprocess.run(
            [*python, "-c", ASK, *names],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            env=os.environ,
        )
        release, found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{' '.join(python)}: cannot be asked: {one_line(error)}"
    lines = [f"{command[0]} runs on Python {release}"]
    for server in {server.name: server for server in SERVERS}.values():
        if server.name in found:
            limits = report.limits_text(
                {name: getattr(config.timeouts, name) for name in server.limits}
            )
            lines.append(
                f"{server.name} {found[server.name]} (tested: {server.range}) is guarded from inside: {limits}"
            )
    if len(lines) == 1:
        lines.append("none of the servers that can be guarded from inside is installed there")
    return "\n".join([*lines, f"what else it listens on is {outside}"])


def outside_text(config: ReaperConfig) -> str:
    """The limits of what is guarded from outside, for people."""
    limits = outside_limits(config)
    return report.limits_text({name: getattr(limits, name) for name in LIMITS})
