"""`check` says what a configuration means, where its values come from and what is
unwise about it; `table` writes the tables of the pages.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .effects import Column, without_effect
from .flags import add_settings, settings
from .lint import Finding, lint, room
from .settings import DEFAULT, OPTIONS, SECTIONS, ReaperConfig, vain_variables

GOOD, FAILED, UNUSABLE = 0, 1, 2


def add_commands(
    commands: Any,
    tables: Callable[[], Sequence[Table]] = tuple,
    servers: Collection[str] = (),
    column: Callable[[str], Column] | None = None,
) -> None:
    """Add `check` and `table` to *commands*, argparse's subparsers; each sets `run` to
    what takes the parsed flags.

    Args:
        tables: What `table` writes beside the table of settings.
        servers: What `check --for` may name; looked at when it is named.
        column: What acts in one of them.
    """
    check = commands.add_parser(
        "check",
        help="lint and explain a configuration, every value with its origin",
        description="Lint and explain a configuration. Defaults < FILE < environment REAPER_* < flags. "
        "Exit status: 0 good, 1 an error was found, 2 the configuration cannot be used.",
    )
    check.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="a TOML file; without it, the one that REAPER_CONFIG names, if any",
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument(
        "--changed", action="store_true", help="only the settings that differ from their defaults"
    )
    check.add_argument(
        "--for",
        dest="server",
        metavar="SERVER",
        choices=servers,
        help="name what is set and does nothing in it: one of %(choices)s",
    )
    add_settings(check, SECTIONS)
    check.set_defaults(run=partial(_check, column))

    table = commands.add_parser(
        "table", help="write the tables that are generated into Markdown files, between markers"
    )
    table.add_argument("files", metavar="FILE", nargs="+", help="a Markdown file with the markers")
    table.set_defaults(run=partial(_table, tables))


def _check(column: Callable[[str], Column] | None, parsed: argparse.Namespace) -> int:
    try:
        config = ReaperConfig.load(
            parsed.file or os.environ.get("REAPER_CONFIG"), overrides=settings(parsed)
        )
    except ConfigError as error:
        if parsed.json:
            print(
                json.dumps(
                    {
                        "schema": "reaper-check/1",
                        "verdict": "unusable",
                        "errors": str(error).splitlines(),
                    }
                )
            )
        for line in str(error).splitlines():
            print(line, file=sys.stderr)
        return UNUSABLE
    findings = [
        *lint(config),
        *room(config, _descriptors()),
        *_variables(),
        *([] if column is None or not parsed.server else _vain(config, column(parsed.server))),
    ]
    failed = any(finding.severity == "error" for finding in findings)
    shown = [
        path for path in OPTIONS if not parsed.changed or config.get(path) != OPTIONS[path].default
    ]
    say = _as_json if parsed.json else _as_text
    print(say(config, shown, findings, failed))
    return FAILED if failed else GOOD


def _descriptors() -> int:
    """How many descriptors a process started from here may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _vain(config: ReaperConfig, server: Column) -> list[Finding]:
    """A warning for each setting that does nothing in *server*."""
    return [
        Finding(
            "warning", path, f"no effect in {server.name}" + (f"; instead: {but}" if but else "")
        )
        for path, but in without_effect(config, server).items()
    ]


def _variables() -> list[Finding]:
    """A note for each `REAPER_` variable that sets nothing."""
    return [Finding("note", name, text) for name, text in vain_variables(os.environ).items()]


def _as_json(config: ReaperConfig, shown: list[str], findings: list[Finding], failed: bool) -> str:
    values = {
        path: {
            "value": config.get(path),
            "text": OPTIONS[path].kind.show(config.get(path)),
            "origin": config.origin(path),
        }
        for path in shown
    }
    report = {
        "schema": "reaper-check/1",
        "verdict": "fail" if failed else "pass",
        "values": values,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(report, indent=2)


def _as_text(config: ReaperConfig, shown: list[str], findings: list[Finding], failed: bool) -> str:
    lines = []
    for section in SECTIONS:
        of_section = [path for path in shown if OPTIONS[path].section == section]
        lines += [f"[{section}]"] if of_section else []
        for path in of_section:
            found = OPTIONS[path]
            origin = config.origin(path)
            if len(shown) < len(OPTIONS) and origin != DEFAULT:
                origin += f"; default {found.kind.show(found.default) or '-'}"
            lines.append(f"  {found.key:18} {found.kind.show(config.get(path)) or '-':12} {origin}")
    lines += [
        *([] if lines else ["every setting is at its default"]),
        "",
        *(f"{finding.severity}: {finding.path}: {finding.text}" for finding in findings),
        "verdict: " + ("fail" if failed else "pass"),
    ]
    return "\n".join(lines)


def _table(others: Callable[[], Sequence[Table]], parsed: argparse.Namespace) -> int:
    tables = (SETTINGS, *others())
    for name in parsed.files:
        path = Path(name)
        try:
            text = rewrite(path.read_text(encoding="utf-8"), tables)
            path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            print(
                f"{name}: {why}: expected a file with the markers of a table",
                file=sys.stderr,
            )
            return UNUSABLE
    return GOOD


def markdown(sections: tuple[str, ...] = SECTIONS) -> str:
    """One table per section: name, default, meaning, precedent. A line before it says
    which settings a reload reaches.
    """
    parts = []
    for section in sections:
        settings = [found for found in OPTIONS.values() if found.section == section]
        late = [f"`{found.key}`" for found in settings if not found.live]
        live = [f"`{found.key}`" for found in settings if found.live]
        reload, others = (
            ("live", late) if len(late) < len(live) else ("changes need a restart", live)
        )
        reload += f", but for {', '.join(others)}" if others else ""
        rows = [
            f"**`[{section}]`**: {reload}",
            "",
            "| setting | default | what it limits | precedent |",
            "|---|---|---|---|",
        ]
        for found in settings:
            default = f"`{found.kind.show(found.default)}`" if found.default != "" else "none"
            rows.append(f"| `{found.key}` | {default} | {found.doc} | {found.precedent} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that pages show between two markers: documentation that is written twice
    drifts.

    Attributes:
        name: What the markers call it.
        write: Returns it as Markdown, or in the language of its file; it ends with a
            line feed.
        marks: What stands around what a marker says, as comments of that language have
            it.
    """

    name: str
    write: Callable[[], str]
    marks: tuple[str, str] = ("<!-- ", " -->")

    @property
    def begin(self) -> str:
        """The line before the table."""
        text = f"{self.name}: written by `python -m reaper table`, do not edit"
        return text.join(self.marks)

    @property
    def end(self) -> str:
        """The line after the table."""
        return f"end of {self.name}".join(self.marks)


SETTINGS = Table("settings", markdown)


def rewrite(text: str, tables: Sequence[Table] = (SETTINGS,)) -> str:
    """*text*, with each of *tables* written anew where its markers are.

    Raises:
        ValueError: there are no markers of any of them, or they are not in order.
    """
    found = [table for table in tables if table.begin in text or table.end in text]
    if not found:
        raise ValueError(f"no line such as {tables[0].begin}")
    for table in found:
        if missing := [marker for marker in (table.begin, table.end) if marker not in text]:
            raise ValueError(f"no line {missing[0]}")
        start, end = text.find(table.begin) + len(table.begin), text.find(table.end)
        if end < start:
            raise ValueError(f"{table.end} comes before {table.begin}")
        text = f"{text[:start]}\n\n{table.write()}\n{text[end:]}"
    return text
