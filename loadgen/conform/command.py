"""`loadgen conform`: its options, and what is done with them.

One rule: *a bad argument costs one line, before anything has started*.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import sys
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import resources
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..cli_options import (
    DURATION,
    add_target,
    check_files,
    command,
    option,
    reading,
    ready,
    take_target,
)
from ..drive.fleet import Display
from ..plan.acts import Kind
from ..units import BadArgument, Target, parse_duration, seconds
from .grounds import GROUPS, ground
from .look import NoAnswer, learnt, looked
from .report import as_json, as_text, compared, counted, listed, said, worse, write_junit
from .run import KINDS, RELOADS, TRIES, conform, settled, stopped
from .serve import HOST, Served, serving
from .subject import LIMITS, ROUTES, Limit, Subject
from .verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict

APPS = ("asgi", "wsgi", "http")
LEVELS = ("must", "should", "advice")
ABOUT = (
    "Tries a server in any language with every kind of client that its protocol allows: live"
    " ones, which rest nearly as long as a limit lets them, and dead ones, which hold what they"
    " have. Behind -- stands a command that starts the server; it is told to stop, too."
)


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The arguments of ours, the command behind `--`, and the one behind `--compare
    --`.
    """
    words = list(arguments)
    if "--" not in words:
        return words, [], []
    place = words.index("--")
    ours, rest = words[:place], words[place + 1 :]
    if ours[-1] == "--compare":
        return ours, [], rest
    for place, pair in enumerate(pairwise(rest)):
        if pair == ("--compare", "--"):
            return [*ours, "--compare"], rest[:place], rest[place + 2 :]
    return ours, rest, []


def add(commands: Any) -> None:
    """Declare the command and its options."""
    words = "try a server with every kind of live and dead client, and judge each"
    conform = command(commands, "conform", run, words, ABOUT)
    add_target(conform, "http")
    conform.set_defaults(started=[], other=[])
    words = "a TOML file with the server's timeouts, such as its reaper.toml"
    option(conform, "--limits", Path, words)
    for name, meaning in LIMITS.items():
        flag = f"--{name.replace('_', '-')}"
        option(conform, flag, reading(parse_duration), f"limit: {meaning}", metavar="DURATION")
    option(conform, "--tick", DURATION, "how late a close may be; default 1s")
    words = "how long a client is borne, and a limit looked for; default 30s"
    option(conform, "--wait", DURATION, words, 30.0)
    option(conform, "--drain", DURATION, "how long a stop may take; default 10s", 10.0)
    option(conform, "--no-learn", bool, "do not look for limits that are not given")
    words = "where the server has what a client asks for, such as '/slow?=/sleep?s='; repeatable"
    option(conform, "--route", reading(parse_route), words, [], metavar="ROUTE=PATH")
    words = "a group, a level, or words of a kind's name; repeatable"
    option(conform, "--only", str, words, [], metavar="KIND")
    option(conform, "--skip", str, "the same, of what is left out; repeatable", [], metavar="KIND")
    option(conform, "--list", bool, "explain each kind in a line, and try nothing")
    words = "print an application that has all routes, and try nothing"
    option(conform, "--app", str, words, choices=APPS)
    words = "the signal by which the command stops gracefully; default TERM"
    option(conform, "--stop", reading(parse_signal), words, signal.SIGTERM, metavar="SIGNAL")
    words = "a signal by which the command reloads: its clients must not notice, either"
    option(conform, "--reload", reading(parse_signal), words, metavar="SIGNAL")
    words = "try the server that the command behind it starts, too, and say what differs"
    option(conform, "--compare", bool, words)
    option(conform, "--json", bool, "print the verdicts as JSON")
    option(conform, "--junit", Path, "write the verdicts as JUnit XML, for CI")
    option(conform, "--page", Path, "write a page that opens offline")
    option(conform, "--verbose", bool, "name what is right, too")
    option(conform, "--quiet", bool, "no progress")


def parse_route(text: str) -> tuple[str, str]:
    """Read `/slow?=/sleep?s=`. Raises BadArgument: there is no such route."""
    for name in sorted(ROUTES, key=len, reverse=True):
        if text.startswith(f"{name}="):
            return name, text[len(name) + 1 :]
    raise BadArgument(f"{text!r} is no route: write ROUTE=PATH with one of {', '.join(ROUTES)}")


def parse_signal(text: str) -> signal.Signals:
    """Read `HUP`. Raises BadArgument: there is no such signal."""
    try:
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except KeyError:
        raise BadArgument(f"{text!r} is no signal: write one such as HUP or USR2") from None


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Kind]:
    """The kinds that are asked for. Raises BadArgument: words name none."""

    def named(words: str, flag: str) -> set[str]:
        found = {kind.name for kind in (*KINDS, *RELOADS) if meant(kind, words)}
        if not found:
            groups = ", ".join((*GROUPS, *LEVELS))
            raise BadArgument(
                f"{flag} {words}: no kind has that in its name: --list shows them; the groups and"
                f" levels are {groups}"
            )
        return found

    wanted = [named(words, "--only") for words in only]
    without = [named(words, "--skip") for words in skip]
    return [
        kind
        for kind in (*KINDS, *RELOADS)
        if (not wanted or any(kind.name in names for names in wanted))
        and not any(kind.name in names for names in without)
    ]


def meant(kind: Kind, words: str) -> bool:
    """Whether *words* are the group of *kind*, its level, or in its name."""
    about = ground(kind)
    if words in GROUPS or words.lower() in LEVELS:
        return words in (about.group, about.level, about.level.lower())
    return words in kind.name or words in said(kind)


def given(options: argparse.Namespace) -> tuple[dict[str, Limit], set[str], float]:
    """The limits that are given, the names of those that are known to be off, and the
    tick. Raises BadArgument.
    """
    found: dict[str, float] = {}
    tick = options.tick
    if options.limits:
        try:
            table = tomllib.loads(options.limits.read_text())
        except (OSError, ValueError) as error:
            raise BadArgument(f"--limits {options.limits}: {error}: give a TOML file") from None
        timeouts = table.get("timeouts", {})
        found = {
            name: _duration(name, timeouts[name], options.limits)
            for name in LIMITS
            if name in timeouts
        }
        if tick is None and "tick" in table.get("reaper", {}):
            tick = _duration("tick", table["reaper"]["tick"], options.limits)
    found |= {name: value for name in LIMITS if (value := getattr(options, name, None)) is not None}
    off = {name for name, value in found.items() if not value}
    limits = {name: Limit(value) for name, value in found.items() if value}
    return limits, off, tick or 1.0


def _duration(name: str, text: Any, path: Path) -> float:
    try:
        return parse_duration(str(text))
    except BadArgument as error:
        raise BadArgument(f"--limits {path}: {name}: {error}") from None


NOBODY = "no command is given behind --: nobody can tell the server to stop"


@dataclass(frozen=True)
class Asked:
    """What is asked of a server: with what, and by which limits."""

    kinds: Sequence[Kind]
    limits: dict[str, Limit]
    off: set[str]
    learn: bool
    stop: signal.Signals
    reload: signal.Signals | None
    display: Display

    def show(self, what: str, done: int, of: int) -> None:
        """Show progress."""
        self.display.show(f"{what}: {done} of {of}")

    def everything(
        self, subject: Subject, target: Target, words: Sequence[str]
    ) -> tuple[Subject, list[Verdict]]:
        """All verdicts on the server at *target*, or that *words* start.

        Raises:
            BadArgument: it does not start.
            NoAnswer: it does not answer.
            OSError: nobody listens.
        """
        port = subject.address[1]
        ends = [kind for kind in self.kinds if kind.world == "stop" and kind not in RELOADS]
        if not words:
            subject, found = self.tried(subject, target)
            return subject, [*found, *(Verdict(kind, NOT_JUDGED, NOBODY, tries=0) for kind in ends)]
        with serving(words, port) as server:
            host, at = server.address
            subject = replace(subject, address=(host, at))
            subject, found = self.tried(subject, replace_port(target, at))
        reloads = [kind for kind in self.kinds if kind in RELOADS] if self.reload else []
        for kinds, number in ((ends, self.stop), (reloads, self.reload)):
            if kinds and number is not None:
                found += self.told(subject, words, port, kinds, number)
        return subject, found

    def tried(self, subject: Subject, target: Target) -> tuple[Subject, list[Verdict]]:
        """The verdicts on a server that listens, but those of its stop."""
        subject = asyncio.run(looked(subject))
        kinds = [kind for kind in self.kinds if may_speak(kind, subject)]
        if self.learn:
            self.display.show(f"looking for limits, up to {seconds(subject.wait)}, and again ...")
            known = {**self.limits, **dict.fromkeys(self.off, Limit(0.0))}
            more = learnt(target, subject, subject.wait, subject.tls, known)
            subject = replace(subject, limits={**more, **self.limits})
        return subject, asyncio.run(conform(subject, kinds, self.show))

    def told(
        self,
        subject: Subject,
        words: Sequence[str],
        port: int,
        kinds: Iterable[Kind],
        number: signal.Signals,
    ) -> list[Verdict]:
        """The verdicts on a server that is told *number*; anew for each try."""
        found: dict[str, Verdict] = {}
        todo = list(kinds)
        for tries in range(1, TRIES + 1):
            if not todo:
                break
            with serving(words, port, subject.drain) as server:
                said = asyncio.run(self._stop(subject, server, todo, number))
            found |= {each.kind.name: replace(each, tries=each.tries and tries) for each in said}
            todo = [kind for kind in todo if not settled(found[kind.name])]
        return list(found.values())

    async def _stop(
        self, subject: Subject, server: Served, kinds: Sequence[Kind], number: signal.Signals
    ) -> list[Verdict]:
        here = replace(subject, address=server.address)
        over = kinds[0] not in RELOADS
        return await stopped(here, server, kinds, self.show, number, ends=over)


_NAMES = frozenset(kind.name for kind in KINDS)


def may_speak(kind: Kind, subject: Subject) -> bool:
    """Whether a client of *kind* can come to the port of *subject* at all: one of lines
    comes to no other. Over TLS those of HTTP come, too, but for the ones that TLS has
    of its own.
    """
    if "lines" in subject.speaks or kind.speaks == "lines":
        return "lines" in subject.speaks and kind.speaks == "lines"
    if subject.tls is None:
        return kind.speaks != "tls"
    return f"TLS: {kind.name}" not in _NAMES


def replace_port(target: Target, port: int) -> Target:
    """*target* at another port."""
    return Target(target.host, port, target.family)


def run(options: argparse.Namespace) -> int:
    """`loadgen conform`. Exit status: 0 right, 1 wrong, 2 nothing could be judged."""
    if options.app:
        file = resources.files(__package__) / "apps" / f"{options.app}_app.py"
        print(file.read_text(encoding="utf-8"), end="")
        return 0
    kinds = chosen(options.only, options.skip)
    if options.list:
        print("\n".join(listed(kinds)))
        return 0
    subject, target = _subject(options)
    if options.compare and not options.other:
        raise BadArgument("--compare: name the other server: --compare -- COMMAND")
    check_files(options)
    if not options.no_learn and find_spec("h11") is None:
        raise BadArgument(
            "limits are learnt by h11: pip install 'idle-reaper[http]', or give them and --no-learn"
        )
    limits, off, tick = given(options)
    subject = replace(subject, limits=limits, tick=tick)
    with closing(Display(sys.stderr, options.quiet)) as display:
        asked = Asked(
            kinds, limits, off, not options.no_learn, options.stop, options.reload, display
        )
        try:
            subject, found = asked.everything(subject, target, options.started)
            other: list[Verdict] = []
            if options.compare:
                where = replace(subject, address=(HOST, 0), limits=limits)
                where = replace(where, routes=_routes(options), speaks=frozenset())
                _, other = asked.everything(where, Target(HOST, 0, socket.AF_INET), options.other)
        except (NoAnswer, OSError) as error:
            raise BadArgument(f"{options.started or target}: {error}") from None
    return _deliver(found, other, subject, options, target)


def _subject(options: argparse.Namespace) -> tuple[Subject, Target]:
    """What is tried, as far as *options* say it. Raises BadArgument."""
    if options.started and not (options.url or options.target):
        target, tls, path, protocol = Target(HOST, 0, socket.AF_INET), None, "/", None
    else:
        target, protocol, paths, tls = take_target(options)
        path = paths.get
    if protocol not in (None, "http", "ws", "echo"):
        raise BadArgument(f"--protocol {protocol}: conform tries servers of http, ws or echo")
    routes = _routes(options)
    if path != "/":
        routes["/ws" if protocol == "ws" else "/"] = path
    speaks = frozenset({"lines"} if protocol == "echo" else {"tls" if tls else "http"})
    subject = Subject(
        (target.host, target.port),
        speaks,
        drain=options.drain,
        wait=options.wait,
        routes=routes,
        tls=tls,
    )
    return subject, target


def _routes(options: argparse.Namespace) -> dict[str, str]:
    return {name: name for name in ROUTES} | dict(options.route)


def _deliver(
    found: Sequence[Verdict],
    other: Sequence[Verdict],
    subject: Subject,
    options: argparse.Namespace,
    target: Target,
) -> int:
    name = " ".join(options.started) or str(target)
    if options.junit:
        write_junit(found, name, ready(options.junit))
    if options.page:
        from .page import write_page

        write_page(found, subject, name, ready(options.page))
    report = as_json(found, subject, name)
    if options.compare:
        report["other"] = [each.row() for each in other]
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print("\n".join(as_text(found, subject, every=options.verbose)))
        if options.compare:
            lines = compared(found, other)
            print("\n".join(["the two differ in" if lines else "the two do not differ", *lines]))
    if options.compare:
        return 1 if worse(found, other) or worse(other, found) else 0
    count = counted(found)
    return 1 if count[WRONG] else 0 if count[RIGHT] else 2
