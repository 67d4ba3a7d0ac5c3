"""The options that several commands share, how one is declared, and how a report is
delivered.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from .drive.protocols import Paths
from .drive.wire import Tls
from .judge.report import Report, write_report
from .judge.thresholds import parse_threshold
from .judge.words import verdict_lines
from .plan.plan import DEFAULT_MIX
from .plan.scenario import PROTOCOL_NAMES, Scenario, from_mix, load_scenario
from .units import (
    BadArgument,
    Target,
    parse_address,
    parse_count,
    parse_duration,
    parse_positive_duration,
)

T = TypeVar("T")
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def reading(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make an argparse type of *parse*, whose own complaint is then shown."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except BadArgument as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


DURATION, COUNT = reading(parse_positive_duration), reading(parse_count)
DURATION_OR_0, ADDRESS = reading(parse_duration), reading(parse_address)
METAVARS: dict[Any, str] = {
    DURATION: "DURATION",
    DURATION_OR_0: "DURATION",
    COUNT: "N",
    Path: "FILE",
    ADDRESS: "URL",
}


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], words: str, about: str = ""
) -> Any:
    """Add the command *name*, which *run* carries out, and return its parser.

    *words* describe it in the list of commands; *about* does so on its own page, where
    the same words are not enough.
    """
    made = commands.add_parser(name, help=words, description=about or words)
    made.set_defaults(run=run)
    return made


def option(
    command: Any, name: str, kind: Any, words: str, default: Any = None, **more: Any
) -> None:
    """Add an option to *command*: a flag if *kind* is bool, repeatable if *default* is
    a list.
    """
    if kind is bool:
        command.add_argument(name, action="store_true", help=words)
        return
    if isinstance(default, list):
        more["action"] = "append"
    if "choices" not in more:
        more.setdefault("metavar", METAVARS.get(kind, name.strip("-").replace("-", "_").upper()))
    command.add_argument(name, type=kind, default=default, help=words, **more)


def add_target(command: Any, default: str) -> None:
    """Add the options that say which server a command talks to, and how."""
    examples = (
        "such as 127.0.0.1:8080, [::1]:8080, https://127.0.0.1:8443/path or ws://127.0.0.1:8080/ws"
    )
    option(command, "--target", ADDRESS, examples, metavar="HOST:PORT|URL")
    command.add_argument("url", nargs="?", type=ADDRESS, metavar="URL", help="instead of --target")
    option(command, "--protocol", str, f"default {default}", choices=PROTOCOL_NAMES)
    option(
        command, "--path", str, "what an HTTP or WebSocket client asks for; default /, or the URL's"
    )
    option(command, "--tls", bool, "speak TLS; https:// and wss:// mean it")
    option(
        command,
        "--ca",
        str,
        "PEM file of trusted authorities; default the system's",
        metavar="FILE",
    )
    option(command, "--insecure", bool, "take any certificate")
    option(
        command,
        "--server-name",
        str,
        "to ask for and to check; default the target's host",
        metavar="NAME",
    )
    option(
        command,
        "--allow-remote",
        bool,
        "permit a target that is not on the loopback: ask its owner first",
    )


def add_plan(command: Any) -> None:
    """Add the options that say what clients do."""
    option(command, "--mix", str, f"behaviours and weights; default {DEFAULT_MIX}", DEFAULT_MIX)
    option(
        command,
        "--scenario",
        str,
        "TOML file, or the name of a shipped scenario; instead of --mix",
        metavar="FILE",
    )


def add_reports(command: Any) -> None:
    """Add the options that say where a report goes."""
    words = "another condition of success, such as 'lateness.p99<1.1s'; repeatable"
    option(command, "--threshold", reading(parse_threshold), words, [], metavar="'NAME<VALUE'")
    option(command, "--report", Path, "write the JSON report here")
    option(command, "--html", Path, "write a self-contained page here")
    option(command, "--json", bool, "print the report to standard output")
    option(command, "--quiet", bool, "no progress")


def asked_scenario(options: argparse.Namespace) -> Scenario:
    """The scenario that *options* ask for. Raises BadArgument: it is not understood."""
    return load_scenario(options.scenario) if options.scenario else from_mix(options.mix)


def take_target(options: argparse.Namespace) -> tuple[Target, str | None, Paths, Tls | None]:
    """Read the target, the protocol (None where nothing says it), what to ask for, and
    TLS.

    Raises BadArgument: there is no target, options contradict its URL, or it is not on
    the loopback and nothing says that its owner agrees.
    """
    if (options.target is None) == (options.url is None):
        raise BadArgument("give one target: --target HOST:PORT, or a URL")
    target, protocol, path, host, tls = options.target or options.url
    if protocol and options.protocol not in (None, protocol):
        raise BadArgument(
            f"--protocol {options.protocol}: the target is a URL of {protocol}: "
            "leave one of them out"
        )
    if path and options.path not in (None, path):
        raise BadArgument(
            f"--path {options.path}: the target's URL says {path}: leave one of them out"
        )
    if not target.loopback and not options.allow_remote:
        raise BadArgument(
            f"--target {target} is not on the loopback: give --allow-remote if its owner agrees"
        )
    spoken = None
    if tls or options.tls:
        spoken = Tls(options.server_name or host, options.ca, options.insecure)
        spoken.context()  # complains here rather than in a child process
    else:
        for name in ("ca", "insecure", "server-name"):
            if getattr(options, name.replace("-", "_")):
                raise BadArgument(
                    f"--{name}: the target speaks no TLS: "
                    "give --tls as well, or a URL of https or wss"
                )
    authority = "" if host == target.host else f"{host}:{target.port}"
    return (
        target,
        protocol or options.protocol,
        Paths(path or options.path or "/", host=authority),
        spoken,
    )


def check_files(options: argparse.Namespace) -> None:
    """Raise BadArgument before a run for a file or a folder that could not be written
    after it.

    What may be written is found out by writing: a folder such as /proc says that it
    may, and may not. Nothing is left of that: what is refused later has made nothing.
    """
    for name in ("report", "html", "csv", "hgrm", "junit", "page"):
        if path := getattr(options, name, None):
            why = _unwritable(path.parent) or ("is a directory" if path.is_dir() else "")
            if why:
                raise BadArgument(f"--{name} {path}: {why}: give a file that can be written")
    path = getattr(options, "journal", None)
    if path and (why := _unwritable(path)):
        raise BadArgument(f"--journal {path}: {why}: give a directory that can be written")


def _unwritable(folder: Path) -> str:
    """Why no file can be written into *folder*, which may not be there yet; empty: one
    can.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return str(error.strerror)
    finally:
        for each in made:
            with suppress(OSError):  # it was not made
                each.rmdir()
    return ""


def ready(path: Path) -> Path:
    """Return *path*, whose folder is there now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def deliver(report: Report, options: argparse.Namespace) -> int:
    """Write the files that *options* ask for, print the verdict, and return the exit
    status.

    The report is printed in place of the verdict where *options* ask for JSON.
    """
    if options.report:
        write_report(report, options.report)
    if options.html:
        from .judge.page import write_page

        write_page(report, options.html)
    print(json.dumps(report, indent=1) if options.json else "\n".join(verdict_lines(report)))
    if report["interrupted"]:
        return INTERRUPTED
    return 0 if report["verdict"] == "pass" else 1
