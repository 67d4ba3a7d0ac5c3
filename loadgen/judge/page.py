"""The report as one HTML page that opens offline: no script, no link, nothing to load. Charts are SVG made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..units import seconds
from .words import headline, known, verdict_lines

WIDTH, HEIGHT = 920, 240
SHOWN_TICKS = 4
"""Ticks of lateness that the histogram shows; what lies beyond is counted in words."""
LEFT, RIGHT, TOP, FLOOR = 64, 16, 14, HEIGHT - 34
BLUE, ORANGE, RED, GREY = "#2563c9", "#d9822b", "#c2322d", "#8b95a3"
"""The colours of all pages and pictures, see `reaper/pipeline/html/parts.py`; no code is shared."""

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2430;max-width:960px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .4rem}
.pass{color:#0f7b54}.inconclusive{color:#d9822b}.fail{color:#c2322d}.muted{color:#64707f}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e3e7ec}
td.n,th.n{text-align:right}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif}
"""


def write_page(report: dict[str, Any], path: Path) -> None:
    """Write the page for *report* to *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report), encoding="utf-8")


def page(report: dict[str, Any]) -> str:
    """The whole page."""
    config, connections = report["config"], report["connections"]
    verdict = report["verdict"]
    title = headline(report)
    about = (
        f"{connections['established']:,} connections to {config['target']}, timeout {seconds(config['timeout_s'])}, "
        f"tick {seconds(config['tick_s'])}, {seconds(report['elapsed_s'])}, seed {report['plan']['seed']}"
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1 class={verdict}>{escape(title)}</h1>",
        f"<p class=muted>{escape(about)}{' - partial run' if report['partial'] else ''}</p>",
        f"<pre>{escape(chr(10).join(verdict_lines(report)))}</pre>",
        "<h2>Open connections, and reaps, over time</h2>",
        timeline_chart(report),
        "<h2>Lateness of every reap, against the tick</h2>",
        lateness_chart(report),
        "<h2>Latency and own lag</h2>",
        _percentiles(report),
        "<h2>By behaviour</h2>",
        _behaviours(report),
        "<h2>Violations, each with its story</h2>",
        _violations(report),
    ]
    return "\n".join(parts) + "\n"


def timeline_chart(report: dict[str, Any]) -> str:
    """Open connections as an area, reaps per interval as bars."""
    points = report["timeline"]
    span = points[-1]["t"] if points else 1.0
    most_open, most_reaped = (max((point[name] for point in points), default=0) or 1 for name in ("open", "reaped"))
    x, y = _scale(0, span, LEFT, WIDTH - RIGHT), _scale(0, most_open * 1.05, FLOOR, TOP)
    bars = _scale(0, most_reaped * 1.05, FLOOR, FLOOR - (FLOOR - TOP) * 0.6)
    step = (WIDTH - RIGHT - LEFT) / max(len(points), 1)
    area = " ".join(f"{x(point['t']):.1f},{y(point['open']):.1f}" for point in points)
    shapes = [
        f"<polygon points='{LEFT},{FLOOR} {area} {WIDTH - RIGHT},{FLOOR}' fill='{BLUE}' opacity='.25'/>",
        f"<polyline points='{area}' fill='none' stroke='{BLUE}' stroke-width='1.5'/>",
        *(_bar(x(each["t"]) - step, step, bars(each["reaped"]), ORANGE) for each in points if each["reaped"]),
        _text(WIDTH - RIGHT, TOP - 3,
              f"open (line, at most {most_open:,}); reaped per interval (bars, at most {most_reaped:,})", "end"),
    ]  # fmt: skip
    return _chart(shapes, _ticks(0, span, clock=True), x, _ticks(0, most_open), y)


def lateness_chart(report: dict[str, Any]) -> str:
    """Bars of the lateness histogram; the law is the shaded band from 0 to one tick."""
    tick = report["config"]["tick_s"]
    width, bars = report["lateness_histogram"]["width_s"], report["lateness_histogram"]["bars"]
    left = min([edge for edge, _ in bars] + [-0.1 * tick])
    right = min(max([edge + width for edge, _ in bars] + [1.15 * tick]), SHOWN_TICKS * tick)
    outside = sum(count for edge, count in bars if edge >= right)
    most = max((count for edge, count in bars if edge < right), default=0) or 1
    x, y = _scale(left, right, LEFT, WIDTH - RIGHT), _scale(0, most * 1.05, FLOOR, TOP)
    shapes = [
        _bar(x(0), x(tick) - x(0), TOP, "#e9f0fa"),
        *(
            _bar(x(edge), x(width) - x(0), y(count), BLUE if 0 <= edge < tick else RED if edge < 0 else GREY,
                 f"{seconds(edge)}: {count:,}")
            for edge, count in bars
            if edge < right
        ),
        _line(x(0), TOP, x(0), FLOOR),
        _line(x(tick), TOP, x(tick), FLOOR, "#1c2430' stroke-dasharray='5 3"),
        _text(x(tick) + 4, TOP + 10, "one tick"),
        _text(x(0) - 4, TOP + 10, "early", "end", RED),
        _text(WIDTH - RIGHT, TOP + 10, f"{outside:,} later than this picture shows" if outside else "", "end"),
    ]  # fmt: skip
    return _chart(shapes, _ticks(left, right), x, _ticks(0, most), y)


def _bar(x: float, width: float, top: float, colour: str, title: str = "") -> str:
    inside = f"<title>{title}</title>" if title else ""
    size = f"width='{max(width * 0.92, 0.6):.2f}' height='{FLOOR - top:.1f}'"
    return f"<rect x='{x:.1f}' y='{top:.1f}' {size} fill='{colour}'>{inside}</rect>"


def _line(x: float, y: float, x2: float, y2: float, stroke: str = "#1c2430") -> str:
    return f"<line x1='{x:.1f}' x2='{x2:.1f}' y1='{y:.1f}' y2='{y2:.1f}' stroke='{stroke}'/>"


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#64707f") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' style='fill:{colour}'>{words}</text>"


def _chart(
    shapes: list[str], across: list[float], x: Callable[[float], float], up: list[float], y: Callable[[float], float]
) -> str:
    axis = [_line(LEFT, y(value), WIDTH - RIGHT, y(value), "#e3e7ec") for value in up]
    axis += [_text(LEFT - 6, y(value) + 4, f"{value:,.0f}", "end") for value in up]
    axis += [_text(x(value), FLOOR + 18, seconds(value), "middle") for value in across]
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{''.join(axis)}{''.join(shapes)}</svg>"


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    factor = (end - start) / ((high - low) or 1.0)
    return lambda value: start + (value - low) * factor


def _ticks(low: float, high: float, clock: bool = False) -> list[float]:
    """About six round values between *low* and *high*; with *clock*, round in minutes or hours when they are many."""
    rough = (high - low) / 6 or 1.0
    power = 10.0 ** len(str(int(rough))) / 10 if rough >= 1 else 10.0 ** -len(f"{1 / rough:.0f}")
    steps = [power * factor for factor in (1, 2, 5, 10, 20, 50, 100)]
    if clock and rough > 20:
        steps = [60.0 * minutes for minutes in (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)] + [rough]
    step = next(step for step in steps if step >= rough)
    first = -(-low // step)
    return [number * step for number in range(int(first), int(high // step) + 1)]


def _percentiles(report: dict[str, Any]) -> str:
    figures = {
        "answer, from the instant the request was planned for": report["latency_s"],
        "the load generator's own lag": report["loadgen"]["lag_s"],
        "lateness of reaps": report["lateness_s"],
    }
    rows = [(label, *(known(each[name]) for name in ("p50", "p99", "p99_9", "max"))) for label, each in figures.items()]
    return _table(("", "p50", "p99", "p99.9", "max"), rows)


def _behaviours(report: dict[str, Any]) -> str:
    rows = []
    for name, planned in report["plan"]["by_behaviour"].items():
        both = dict(planned), report["by_behaviour"].get(name, {})
        count = both[0].pop("connections", 0)
        rows.append((name, f"{count:,}", *(", ".join(f"{n:,} {key}" for key, n in each.items()) for each in both)))
    return _table(("behaviour", "connections", "planned", "seen"), rows)


def _violations(report: dict[str, Any]) -> str:
    if not report["violations"]:
        return "<p class=pass>None.</p>"
    rows = [(v["category"], f"{v['connection']}", known(v["lateness_s"]), v["story"]) for v in report["violations"]]
    return _table(("", "connection", "lateness", "story"), rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
