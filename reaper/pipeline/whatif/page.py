"""The answer as one HTML page that opens offline: what each setting costs, as charts, then every figure.

The rule of this module: *what is not known is drawn as an area, never as a line*.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import Any

from ..html.charts import Axis, Chart, count, seconds
from ..html.parts import STYLES, Tile, card, document, footer, grid, header, table, tiles, warning
from .text import HEAD, LEGEND, cells, say

MEASURES = (
    ("false_cuts", "False cuts", "Connections cut whose clients were not gone."),
    ("peak_open", "Peak of open connections", "The most descriptors held at once."),
    ("descriptor_hours", "Descriptor-hours", "Descriptors held, times how long."),
)


def render(summary: dict[str, Any], curves: dict[int, list[list[float]]]) -> str:
    """The page. *curves*: number of a row -> [second, open at the low end, open at the high end]."""
    answered = [(i, row) for i, row in enumerate(summary["rows"]) if "reaps" in row and not row["refused"]]
    refused = [row for row in summary["rows"] if row["refused"]]
    rows = [row for _, row in answered]
    measures = [card(title, text, _measure(rows, key, title)) for key, title, text in MEASURES]
    over_time = card(
        "Open connections over time", "Each setting; an area where the log cannot tell.", _over_time(answered, curves)
    )
    body = [
        header(summary["complete"], "reaper what-if", _headline(rows), _subtitle(summary)),
        _tiles(summary),
        grid([*measures, over_time]),
        card("Every figure", LEGEND[0].upper() + LEGEND[1:] + ".", _every(rows)),
    ]
    if refused:
        why = table(["setting", "why"], [[row["name"], row["refused"]] for row in refused], set())
        body.append(warning("Refused", ["The log cannot tell."], why))
    lines = [*summary["notes"], *(f"Assumed: {text}" for text in summary["assumptions"])]
    lines.append(f"Made {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by python -m reaper.pipeline what-if.")
    return document("reaper: what if", [*body, footer(lines)])


def _headline(rows: list[dict[str, Any]]) -> str:
    others = len(rows) - 1
    return f"{others} other setting{'' if others == 1 else 's'}, the same traffic" if others > 0 else "What if"


def _subtitle(summary: dict[str, Any]) -> str:
    text = f"{summary['connections']:,} connections over {seconds(summary['observed_s'])} replayed"
    return text + ("." if summary["complete"] else "; the log is incomplete: every figure is an estimate.")


def _tiles(summary: dict[str, Any]) -> str:
    shown: list[Tile] = []
    if calibration := summary["calibration"]:
        for key, label in (("reaps", "reaps"), ("peak_open", "peak open")):
            entry = calibration[key]
            logged, replayed = f"{entry['logged']:,.0f}", f"{entry['replayed']:,.0f}"
            shown.append((f"{label}, as it was", replayed, f"replayed; the log says {logged}", ""))
        if (later := calibration["replayed_later_s"]) is not None:
            p50 = f"{later['p50'] * 1e3:+,.0f} ms"
            spread = f"80 % between {later['p10'] * 1e3:+,.0f} and {later['p90'] * 1e3:+,.0f} ms"
            shown.append(("the same reaps, replayed", p50, f"after the log's; {spread}", ""))
    return tiles(shown)


def _measure(rows: list[dict[str, Any]], key: str, title: str) -> str:
    """One figure against the timeout where each row has one of its own, else a bar a row."""
    if not rows:
        return '<p class="none">Nothing was replayed.</p>'
    top = max(_end(row[key], "high") for row in rows) * 1.15 or 1.0
    y = Axis(0, top, title.lower(), count)
    alone = [row for row in rows if len(row["settings"]["timeouts_s"]) == 1]
    timeouts = sorted({row["settings"]["timeouts_s"][0] for row in alone})
    if len(timeouts) < 2:
        return _bars(rows, key, title, y)
    chart = Chart(title, Axis(timeouts[0] / 1.15, timeouts[-1] * 1.15, "timeout", seconds, log=True), y)
    # Rows that differ in something else than the timeout are lines of their own.
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in alone:
        if row is rows[0] and len(rows) > 1:
            continue  # drawn as a mark: it may differ from every other line in its tick
        settings = row["settings"]
        groups.setdefault((*settings["tick_s"], settings["jitter"]), []).append(row)
    for (group, members), style in zip(groups.items(), STYLES, strict=False):
        members.sort(key=lambda row: float(row["settings"]["timeouts_s"][0]))
        low = [(row["settings"]["timeouts_s"][0], _end(row[key], "low")) for row in members]
        high = [(row["settings"]["timeouts_s"][0], _end(row[key], "high")) for row in members]
        chart.band(low, high, style)
        known = [
            (row["settings"]["timeouts_s"][0], row[key]["value"]) for row in members if row[key]["value"] is not None
        ]
        chart.line(known, style, _group_name(group) if len(groups) > 1 else "")
        for x, value in known:
            chart.dot(x, value, style)
    if len(rows[0]["settings"]["timeouts_s"]) == 1:
        chart.mark(rows[0]["settings"]["timeouts_s"][0], f"as it was: {say(rows[0][key], _digits(key))}")
    return chart.svg()


def _digits(key: str) -> int:
    return 2 if key == "descriptor_hours" else 0


def _group_name(group: tuple[Any, ...]) -> str:
    *ticks, jitter = group
    parts = [f"tick {', '.join(map(seconds, ticks))}"]
    parts += [f"jitter {jitter:g}"] if jitter else []
    return ", ".join(parts)


def _bars(rows: list[dict[str, Any]], key: str, title: str, y: Axis) -> str:
    chart = Chart(title, Axis(0, len(rows), "setting", lambda _: ""), y)
    for i, (row, style) in enumerate(zip(rows, STYLES * len(rows), strict=False)):
        low, high = _end(row[key], "low"), _end(row[key], "high")
        name = f"{i}: {row['name']}: {say(row[key], _digits(key))}"
        value = low if row[key]["value"] is None else row[key]["value"]
        chart.bars([(i + 0.2, value)], 0.6, style, name)
        if row[key]["value"] is None:
            chart.band([(i + 0.2, low), (i + 0.8, low)], [(i + 0.2, high), (i + 0.8, high)], style)
        chart.below(i + 0.5, str(i))
    return chart.svg()


def _end(figure: dict[str, Any], which: str) -> float:
    """An end of its range; where nothing is known of it, the other."""
    value = figure[which] if figure[which] is not None else figure["low"]
    return float(value)


def _over_time(answered: list[tuple[int, dict[str, Any]]], curves: dict[int, list[list[float]]]) -> str:
    shown = [(row["name"], curves[i]) for i, row in answered if curves.get(i)][: len(STYLES)]
    if not shown:
        return '<p class="none">Nothing was replayed.</p>'
    top = max(high for _, curve in shown for _, _, high in curve) * 1.1 or 1.0
    last = max(curve[-1][0] for _, curve in shown) or 1.0
    chart = Chart("Open connections over time", Axis(0, last, "time", seconds), Axis(0, top, "open", count))
    for (name, curve), style in zip(shown, STYLES, strict=False):
        chart.band([(t, low) for t, low, _ in curve], [(t, high) for t, _, high in curve], style)
        chart.line([], style, name)
        for known, part in groupby(curve, key=lambda point: point[1] == point[2]):
            if known:
                chart.line([(t, high) for t, _, high in part], style)
    return chart.svg()


def _every(rows: list[dict[str, Any]]) -> str:
    return table(list(HEAD), [cells(row) for row in rows], set(range(1, len(HEAD))))
