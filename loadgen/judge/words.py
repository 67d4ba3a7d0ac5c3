"""Writes a report in a few lines, none of which is wider than the terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from ..units import seconds, share, size
from .verdict import BAD

NARROWEST, WIDEST = 60, 120
"""The least and the most columns of text; the terminal's are between, and 80 without
one.
"""
BARS = 10
"""Lines of the histogram, at most."""
PARTS = {
    "kernel": "kernel",
    "server": "server",
    "generator": "generator",
    "most_used": "the whole machine at most, beyond what it had in use before",
}
KINDS_OF_PROCESS = {"server": "of the server", "generator": "of the generator"}
REASONS = 5
"""How many reasons are printed; all are in the report."""
INDENT = 13
"""Columns of the names at the left; a longer one gets a line of its own."""
OWN_LAG = "own lag"

Figure = tuple[str, str]
"""What it is of, and what is said of it; without a name it goes on with the one
before.
"""


def verdict_lines(report: dict[str, Any]) -> list[str]:
    """Write what happened, then the verdict, then the reasons."""
    lines: list[str] = []
    for name, text in figures(report):
        if name == OWN_LAG:  # after the lines about lateness
            lines += drawn(report["lateness_histogram"])
        lines += row(name, text)
    lines += row("verdict", headline(report))
    for reason in report["reasons"][:REASONS]:
        lines += row("", reason)
    if len(report["reasons"]) > REASONS:
        lines += row("", f"and {len(report['reasons']) - REASONS} more reasons, in the report")
    return lines


def figures(report: dict[str, Any]) -> list[Figure]:
    """Say what happened, in numbers."""
    reaps, lateness, connections = report["reaps"], report["lateness_s"], report["connections"]
    generator, server = report["loadgen"], report["server"]
    counts = f"{reaps['expected']:,} expected, {reaps['observed']:,} observed"
    bad = ", ".join(f"{reaps[name]:,} {name}" for name in BAD)
    if len(counts) + len(bad) + 2 <= width() - INDENT:
        counts, bad = f"{counts}, {bad}", ""
    said = ", ".join(f"{name} {known(lateness[name])}" for name in ("min", "p50", "p99", "max"))
    tick = seconds(report["config"]["tick_s"])
    held = f"{connections['peak_open']:,} open at most, {connections['failed']:,} failed"
    found: list[Figure] = [
        (
            "connections",
            f"{connections['established']:,} of {connections['requested']:,} established, {held}",
        ),
        *accounted(report["actions"]),
        ("reaps", counts),
        *([("", bad)] if bad else []),
        ("lateness", f"{said} (allowed: 0 .. {tick})"),
        ("", beyond(reaps)),
        (
            OWN_LAG,
            f"p99 {known(generator['lag_s']['p99'])}, max {known(generator['lag_s']['max'])}",
        ),
    ]
    if excused := reaps["late_but_server_stuck"]:
        stuck = f"the server's answers took up to {known(report['stuck_s']['server'])}"
        of_all = share(excused, reaps["expected"])
        found.append(("", f"{excused:,} reaps ({of_all}) excused by stalls: {stuck}"))
    for name, side, count, what in (
        ("server", server, "workers", ("worker", "s")),
        ("generator", generator, "processes", ("process", "es")),
    ):
        if side["rss_bytes_per_connection"] is not None:
            each = f"{side['rss_bytes_per_connection']:,.0f} bytes per connection"
            busy = f"{side['cpu_fraction']:.0%} CPU, {plural(side[count], *what)}"
            found.append((name, f"{each}, {busy}"))
    return found + of_machine(report.get("machine"))


def accounted(actions: dict[str, Any]) -> list[Figure]:
    """Say what became of everything that was asked."""
    if not actions["asked"]:
        return []
    others = [
        f"{actions[name]:,} {name}"
        for name in ("refused", "cut", "unanswered", "underway")
        if actions[name]
    ]
    answered = f"{actions['answered']:,} of {actions['asked']:,}"
    return [("answers", ", ".join([answered, *others]))]


def width() -> int:
    """How many columns a line may have."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST) - 1


def drawn(histogram: dict[str, Any]) -> list[str]:
    """Draw the lateness as bars, a line each; nothing where nothing was closed."""
    bars = histogram["bars"]
    if not bars:
        return []
    first, last = (
        round(bars[0][0] / histogram["width_s"]),
        round(bars[-1][0] / histogram["width_s"]),
    )
    each = -(-(last - first + 1) // BARS)
    counts = [0] * (-(-(last - first + 1) // each))
    for lower, count in bars:
        counts[(round(lower / histogram["width_s"]) - first) // each] += count
    most, room = max(counts), width() - INDENT - 24
    lines = []
    for number, count in enumerate(counts):
        upper = (first + (number + 1) * each) * histogram["width_s"]
        bar = "█" * max(round(room * count / most), count > 0)
        lines.append(f"{'':{INDENT}}to {seconds(upper):>7} {count:>10,} {bar}".rstrip())
    return lines


def plural(number: int, name: str, ending: str = "s") -> str:
    """Write a count with its noun: `1 process`, `2 processes`."""
    return f"{number:,} {name}{ending if number != 1 else ''}"


def beyond(reaps: dict[str, Any]) -> str:
    """Say how many closes were beyond a tick, and how many of those were only read too
    late.
    """
    raw, own = reaps["late_raw"], reaps["late_raw_own"]
    of_all = f" ({share(raw, reaps['observed'])})" if raw else ""
    read = f", {own:,} of them read late by this program" if own else ""
    return f"{raw:,} beyond one tick before any allowance{of_all}{read}"


def of_machine(machine: dict[str, Any] | None) -> list[Figure]:
    """Say memory and CPU by part: kernel, server, generator."""
    found: list[Figure] = []
    for name, key, shown, ending in (
        ("memory", "memory_bytes", size, ""),
        ("cpu", "cpu_s", seconds, ""),
        ("per process", "process_bytes", size, ", before its first connection"),
    ):
        names = KINDS_OF_PROCESS if key == "process_bytes" else PARTS
        taken = (machine or {}).get(key, {})
        parts = [
            f"{names[part]} {shown(taken[part])}" for part in names if taken.get(part) is not None
        ]
        if parts:
            found.append((name, ", ".join(parts) + ending))
    return found


def headline(report: dict[str, Any]) -> str:
    """Write the verdict, and what it rests on: `FAIL: 3 early, 1 missed`."""
    verdict, reaps, generator = report["verdict"], report["reaps"], report["loadgen"]
    if verdict == "pass":
        closed = f"{reaps['observed']:,} of {reaps['expected']:,} connections were closed"
        return f"PASS: {closed}, each in time"
    unanswered, failed = report["connections"]["unanswered"], report["connections"]["failed"]
    bad = [f"{reaps[name]:,} {name}" for name in BAD if reaps[name]]
    bad += [f"{failed:,} not established"] if failed else []
    ended_early = (
        report["partial"] and not report["interrupted"] and not generator["processes_lost"]
    )
    words = report["reasons"][0].partition(": ")[0]
    if verdict == "fail" and not ended_early and unanswered and not report["actions"]["answered"]:
        words = f"{unanswered:,} connections unanswered, and none was answered"
    elif verdict == "fail" and not ended_early and bad:
        words = ", ".join(bad)
    elif generator["processes_lost"] > 1:
        words = f"{generator['processes_lost']} of {generator['processes']} processes were lost"
    return f"{verdict.upper()}: {words}"


def row(name: str, text: str) -> list[str]:
    """Write *text* beside its *name*, in as many lines as it takes."""
    indent = " " * INDENT
    if len(name) >= INDENT:
        return [name, *row("", text)]
    return textwrap.wrap(
        text,
        width(),
        initial_indent=name.ljust(INDENT),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def known(value: float | None) -> str:
    """Write a duration, or a dash where there is none."""
    return "-" if value is None else seconds(value)
