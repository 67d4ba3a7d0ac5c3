"""`python -m reaper check FILE`: what a configuration means, where it comes from, and what is unwise about it.

One rule: *the exit status is the answer*: 0 good, 1 an error among the findings, 2 not a usable configuration.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .config.flags import Parser, add_settings, settings
from .config.lint import Estimate, Finding, estimate, lint
from .config.settings import OPTIONS, SECTIONS, ReaperConfig
from .config.tables import rewrite
from .errors import ConfigError

GOOD, FAILED, UNUSABLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line *arguments* (those of the process by default) and return the exit status."""
    parser = Parser(prog="python -m reaper", description="Check and explain the configuration of the idle reaper.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser(
        "check",
        help="lint and explain a configuration, every value with its origin",
        description="Lint and explain a configuration. Defaults < FILE < environment REAPER_* < flags. "
        "Exit status: 0 good, 1 an error was found, 2 the configuration cannot be used.",
    )
    check.add_argument("file", metavar="FILE", help="a TOML file, reaper.toml")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings(check, SECTIONS)
    check.set_defaults(run=_check)

    table = commands.add_parser("table", help="write the table of settings into Markdown files, between its markers")
    table.add_argument("files", metavar="FILE", nargs="+", help="a Markdown file with the markers")
    table.set_defaults(run=_table)

    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status


def _check(parsed: argparse.Namespace) -> int:
    try:
        config = ReaperConfig.load(parsed.file, overrides=settings(parsed))
    except ConfigError as error:
        if parsed.json:
            print(json.dumps({"schema": "reaper-check/1", "verdict": "unusable", "errors": str(error).splitlines()}))
        for line in str(error).splitlines():
            print(line, file=sys.stderr)
        return UNUSABLE
    findings = lint(config)
    failed = any(finding.severity == "error" for finding in findings)
    cost = estimate(config)
    print(_as_json(config, cost, findings, failed) if parsed.json else _as_text(config, cost, findings, failed))
    return FAILED if failed else GOOD


def _as_json(config: ReaperConfig, cost: Estimate, findings: list[Finding], failed: bool) -> str:
    values = {
        path: {"value": config.get(path), "text": found.kind.show(config.get(path)), "origin": config.origin(path)}
        for path, found in OPTIONS.items()
    }
    return json.dumps(
        {
            "schema": "reaper-check/1",
            "verdict": "fail" if failed else "pass",
            "values": values,
            "estimate": dataclasses.asdict(cost),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        },
        indent=2,
    )


def _as_text(config: ReaperConfig, cost: Estimate, findings: list[Finding], failed: bool) -> str:
    lines = []
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for path, found in OPTIONS.items():
            if found.section == section:
                lines.append(f"  {found.key:18} {found.kind.show(config.get(path)) or '-':12} {config.origin(path)}")
    each = f"{cost.bytes_per_connection:.0f} bytes each, measured here"
    lines += [
        "",
        f"memory    {cost.memory_bytes / 1e6:.1f} MB per worker for leases of {cost.connections} connections ({each})",
        f"wake-ups  at most {cost.wakeups_per_second:g} a second and worker, none while no connection is open",
        f"wheel     {cost.levels} level{'s' if cost.levels > 1 else ''}",
        "",
        *(f"{finding.severity}: {finding.path}: {finding.text}" for finding in findings),
        "verdict: " + ("fail" if failed else "pass"),
    ]
    return "\n".join(lines)


def _table(parsed: argparse.Namespace) -> int:
    for name in parsed.files:
        path = Path(name)
        try:
            path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
        except (OSError, ValueError) as error:
            print(f"{name}: {error}: expected a Markdown file with the markers of the table", file=sys.stderr)
            return UNUSABLE
    return GOOD


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
