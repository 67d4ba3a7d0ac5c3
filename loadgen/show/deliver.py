"""What becomes of a finished report: files, the terminal, the exit status. The same for `run` and `simulate`."""

from __future__ import annotations

import argparse
import json

from ..judge.report import Report, write_report
from ..judge.words import verdict_lines

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def deliver(report: Report, options: argparse.Namespace) -> int:
    """Write the files that *options* asks for, print the verdict (or the report), and return the exit status."""
    if options.report:
        write_report(report, options.report)
    if options.png:
        from .picture import draw_lateness

        draw_lateness(report, options.png)
    if options.html:
        from .page import write_page

        write_page(report, options.html)
    print(json.dumps(report, indent=1) if options.json else "\n".join(verdict_lines(report)))
    if report["interrupted"]:
        return INTERRUPTED
    return 0 if report["verdict"] == "pass" else 1
