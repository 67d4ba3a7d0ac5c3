"""Writes the report as one HTML page that opens offline.

Charts and style are those of the library's pages. Nothing is judged here.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from reaper.html.charts import Axis, Chart
from reaper.html.parts import card, document, grid, header, table, tiles, warning
from reaper.html.units import count
from reaper.html.units import seconds as on_axis

from ..units import seconds
from .verdict import BAD
from .words import figures, headline, known

MEANING = {
    "early": "closed before its timeout",
    "late": "closed more than a tick after it",
    "missed": "silent for too long, and still open",
    "false": "closed while it was in use",
}
"""What each of `BAD` says, in as few words as a tile has room for."""

MOST_BARS = 250
"""Bars of the picture of lateness. Where closes are later than fits, several make
one.
"""


def write_page(report: dict[str, Any], path: Path) -> None:
    """Write the page for *report* to *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report), encoding="utf-8")


def page(report: dict[str, Any]) -> str:
    """The whole page."""
    config, connections = report["config"], report["connections"]
    about = (
        f"{connections['established']:,} connections to {config['target']}, "
        f"timeout {seconds(config['timeout_s'])}, tick {seconds(config['tick_s'])}, "
        f"{seconds(report['elapsed_s'])}, seed {report['plan']['seed']}"
    )
    body = [
        header(
            report["verdict"],
            "partial load test" if report["partial"] else "load test",
            headline(report),
            about,
        ),
        tiles(
            (name, f"{report['reaps'][name]:,}", MEANING[name], "bad" * bool(report["reaps"][name]))
            for name in BAD
        ),
        warning("Why", report["reasons"]) if report["reasons"] else "",
        card("What happened", "", table(("", ""), figures(report), set())),
        grid(
            [
                card("Open connections", "Over time.", timeline_chart(report, "open")),
                card(
                    "Closed by the server",
                    "How many, in each stretch of time.",
                    timeline_chart(report, "reaped"),
                ),
            ]
        ),
        grid(
            [
                card(
                    "How late each one was closed",
                    "From its timeout on the server has one tick: the band.",
                    lateness_chart(report),
                ),
                card(
                    "How long answers took",
                    "And by how much the load generator was late itself.",
                    _percentiles(report),
                ),
            ]
        ),
        card(
            "By behaviour",
            "What each kind of client was to see, and what it saw.",
            _behaviours(report),
        ),
        card(
            "Violations, each with its story",
            "" if report["violations"] else "None.",
            _violations(report),
        ),
    ]
    return document(headline(report), body)


def timeline_chart(report: dict[str, Any], what: str) -> str:
    """Open connections as an area, or reaps per interval as bars."""
    values = [(point["t"], point[what]) for point in report["timeline"]] or [(1.0, 0)]
    span, most = values[-1][0], max(value for _, value in values)
    chart = Chart(
        what,
        Axis(0, span, "time since the start", on_axis),
        Axis(0, 1.05 * most or 1.0, "connections"),
    )
    if what == "open":
        chart.line(values, "a")
        chart.band([(at, 0.0) for at, _ in values], values, "a")
    else:
        step = span / len(values)
        chart.bars([(at - step, value) for at, value in values if value], step, "d")
    return chart.svg()


def lateness_chart(report: dict[str, Any]) -> str:
    """Bars of the lateness histogram, early ones in red."""
    tick = report["config"]["tick_s"]
    histogram = report["lateness_histogram"]
    width, bars = _joined(histogram["width_s"], histogram["bars"])
    left = min([edge for edge, _ in bars] + [-0.1 * tick])
    right = max([edge + width for edge, _ in bars] + [1.15 * tick])
    most = 1.2 * max((number for _, number in bars), default=1)
    chart = Chart(
        "lateness", Axis(left, right, "lateness", on_axis), Axis(0, most, "connections", count)
    )
    chart.band([(0, 0), (tick, 0)], [(0, most), (tick, most)], "c")
    for low, high, style in ((left, 0.0, "bad"), (0.0, tick, "a"), (tick, right, "c")):
        chart.bars([(edge, number) for edge, number in bars if low <= edge < high], width, style)
    chart.mark(0, "due")
    chart.mark(tick, "one tick")
    return chart.svg()


def _joined(width: float, bars: list[list[float]]) -> tuple[float, list[tuple[float, float]]]:
    """*bars* of *width* seconds, so many joined that at most `MOST_BARS` lie side by
    side.
    """
    if not bars:
        return width, []
    wanted = (bars[-1][0] - bars[0][0]) / width / MOST_BARS
    times = max(math.ceil(wanted), 1)
    wide = width * times
    found: Counter[int] = Counter()
    for edge, number in bars:
        found[math.floor(round(edge / width) / times)] += int(number)
    return wide, [(place * wide, found[place]) for place in sorted(found)]


def _percentiles(report: dict[str, Any]) -> str:
    figures = {
        "answer, from the instant the request was planned for": report["latency_s"],
        "the load generator's own lag": report["loadgen"]["lag_s"],
        "lateness of the server's closes": report["lateness_s"],
    }
    rows = [
        (label, *(known(each[name]) for name in ("p50", "p99", "p99_9", "max")))
        for label, each in figures.items()
    ]
    return table(("", "p50", "p99", "p99.9", "max"), rows, {1, 2, 3, 4})


def _behaviours(report: dict[str, Any]) -> str:
    rows = []
    for name, planned in report["plan"]["by_behaviour"].items():
        both = dict(planned), report["by_behaviour"].get(name, {})
        total = both[0].pop("connections", 0)
        rows.append(
            (
                name,
                f"{total:,}",
                *(", ".join(f"{n:,} {key}" for key, n in each.items()) for each in both),
            )
        )
    return table(("behaviour", "connections", "planned", "seen"), rows, {1})


def _violations(report: dict[str, Any]) -> str:
    rows = [
        (v["category"], f"{v['connection']}", known(v["lateness_s"]), v["story"])
        for v in report["violations"]
    ]
    return table(("", "connection", "lateness", "story"), rows, {1, 2}) if rows else ""
