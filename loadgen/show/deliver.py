"""What becomes of a finished report: files, the terminal, the exit status. The same for `run` and `simulate`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ..judge.report import Report, write_report
from ..judge.words import verdict_lines
from ..units import BadArgument

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def check_files(options: argparse.Namespace) -> None:
    """Complain before a run about files that could not be written after it.

    Raises:
        BadArgument: a path that cannot be written.
    """
    for name in ("report", "html", "csv", "hgrm"):
        path: Path | None = getattr(options, name, None)
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            why = "is a directory" if path.is_dir() else None if os.access(path.parent, os.W_OK) else "no permission"
        except OSError as error:
            why = error.strerror
        if why:
            raise BadArgument(f"--{name} {path}: {why}: give a file that can be written")


def deliver(report: Report, options: argparse.Namespace) -> int:
    """Write the files that *options* asks for, print the verdict (or the report), and return the exit status."""
    if options.report:
        write_report(report, options.report)
    if options.html:
        from .page import write_page

        write_page(report, options.html)
    print(json.dumps(report, indent=1) if options.json else "\n".join(verdict_lines(report)))
    if report["interrupted"]:
        return INTERRUPTED
    return 0 if report["verdict"] == "pass" else 1
