"""The page of `live`: one HTML file that asks for itself again every few seconds, and loads nothing else.

It is drawn from the tables as they lie there, so it is the same after a restart. A reader should see at a glance what
is open, what has gone silent, and whether what he sees is whole and fresh.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from ..html.charts import Axis, Chart, count, seconds
from ..html.parts import STYLES, card, document, footer, grid, header, table, tiles, warning
from ..read.expected import line
from .status import SHOWN, Figures

REFRESH_LEAST = 2

Series = list[tuple[float, float]]


def render(summary: dict[str, Any], figures: Figures, every_ns: int) -> str:
    """The page. *every_ns*: how often a step is made; the browser asks no more often than that."""
    refresh = max(REFRESH_LEAST, round(every_ns / 1e9))
    rows = figures.windows()
    title = _title(summary)
    body = [header(summary["complete"], "reaper live", title, _subtitle(summary)), _tiles(summary, rows)]
    body.append(_kept_apart(summary))
    if rows:
        body += [grid(_charts(summary, rows, figures)), _listeners(summary)]
    body += [_servers(summary), _fine_print(summary, refresh)]
    return document(f"reaper live: {title}", body, refresh=refresh)


def _total(summary: dict[str, Any], key: str) -> int:
    return sum(entry[key] for entry in summary["listeners"].values())


def _title(summary: dict[str, Any]) -> str:
    if not summary["rows"]:
        return "Waiting for the first rows"
    return f"{max(_total(summary, 'open'), 0):,} open, {summary['idle_connections']:,} gone silent so far"


def _subtitle(summary: dict[str, Any]) -> str:
    if not summary["rows"]:
        growing = summary["growing"]
        streams = f"{growing} stream(s) are being written" if growing else "No stream is being written"
        return f"{streams}; rows arrive when a writer makes a Parquet file of its stream."
    servers = len(summary["servers"])
    of = f"{servers} server{'' if servers == 1 else 's'}"
    text = f"{summary['rows']:,} rows of {of}, as of {_clock(summary['as_of'])} UTC"
    if summary["drained"]:
        return f"{text}. Drained: everything is out."
    return f"{text}; the newest row is {seconds(max(summary['as_of'] - summary['newest'], 0.0))} old."


def _tiles(summary: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    worst = max((row["max_lateness_ns"] for row in rows if row["max_lateness_ns"] is not None), default=None)
    tick = summary["tick_s"]
    behind = None if summary["newest"] is None else max(summary["as_of"] - summary["newest"], 0.0)
    left_out = summary["late_rows"]
    shown = [
        ("reaped", f"{_total(summary, 'reaped'):,}", f"{_total(summary, 'averted'):,} averted by the final check", ""),
        (
            "greatest lateness",
            "none" if worst is None else seconds(worst / 1e9),
            f"in what is shown; one tick is {seconds(tick)}" if tick else "in what is shown",
            "bad" if worst is not None and tick and worst / 1e9 > tick else "",
        ),
        (
            "overdue",
            f"{_total(summary, 'overdue'):,}",
            "silent beyond timeout and tick, and not reaped",
            "bad" if _total(summary, "overdue") else "",
        ),
        ("late rows", f"{left_out:,}", "kept apart in late/, in no figure here", "bad" if left_out else ""),
        (
            "behind",
            "no rows" if behind is None else seconds(behind),
            f"{summary['growing']} stream(s) not rotated, {summary['waiting_files']} file(s) wait",
            "",
        ),
    ]
    return tiles(shown)


def _kept_apart(summary: dict[str, Any]) -> str:
    if summary["complete"]:
        return ""
    reasons = []
    if summary["late_rows"]:
        by = ", ".join(f"{name}: {entry['late']:,}" for name, entry in summary["listeners"].items() if entry["late"])
        reasons.append(f"{summary['late_rows']:,} row(s) came later than the delay allows ({by}); they are in late/.")
    if summary["missing_files"]:
        reasons.append(f"{summary['missing_files']:,} file(s) were gone before they were read, or have yet to come.")
    if summary["dropped_rows"]:
        reasons.append(f"{summary['dropped_rows']:,} row(s) were dropped by their writers.")
    reasons += [f"{line(entry)}." for entry in summary["silent_servers"]]
    if summary["quarantined_files"]:
        reasons.append(
            f"{summary['quarantined_files']:,} file(s) are put aside; each is looked at again when it changes."
        )
    rows = [[entry["path"], entry["reason"]] for entry in summary["quarantined"]]
    return warning("Not in these figures", reasons, table(["file", "why it is put aside"], rows, set()) if rows else "")


def _charts(summary: dict[str, Any], rows: list[dict[str, Any]], figures: Figures) -> list[str]:
    width = summary["window_s"]
    end = max(row["start"] for row in rows) / 1e6 + width
    first = min(row["start"] for row in rows) / 1e6
    first = max(first, end - SHOWN * width)
    until = summary["final_until"]
    label = f"before {_clock(end)} UTC, in windows of {seconds(width)}"
    x = Axis(first - end, 0.0, label, seconds)
    steps = [first + i * width for i in range(round((end - first) / width))]
    names = sorted({row["listener"] for row in rows})

    def finish(chart: Chart) -> str:
        if until is not None and first < until < end - width:
            chart.mark(until - end, "final up to here")
        return chart.svg()

    per = {key: _per_window(rows, key, steps) for key in ("opened", "reaped", "closed", "averted")}
    flow = Chart("What happened", x, Axis(0, _top(per.values()), "connections", count))
    colours = {"opened": "a", "closed": "c", "reaped": "d", "averted": "e"}
    _beside(flow, [(per[key], style, key) for key, style in colours.items()], steps, end, width)

    levels = {name: _level(summary, rows, name, steps) for name in names[: len(STYLES)]}
    level = Chart("Open connections", x, Axis(0, _top(levels.values()), "connections", count))
    for (name, values), style in zip(levels.items(), STYLES, strict=False):
        level.line(_drawn(values, steps, end, width), style, name, steps=True)

    idle: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for (name, *_, window), n in figures.sessions().items():
        if window:
            idle[name][window / 1e6] += n
    silent = {name: [idle[name].get(step, 0.0) for step in steps] for name in names[: len(STYLES)]}
    gone = Chart("Gone silent", x, Axis(0, _top([*silent.values(), per["reaped"]]), "connections", count))
    by_listener = zip(silent.items(), STYLES, strict=False)
    beside = [(values, style, f"gone silent: {name}") for (name, values), style in by_listener]
    _beside(gone, [(per["reaped"], "c", "reaped, all listeners"), *beside], steps, end, width)

    return [
        card("Open connections", "At the end of each window, by listener.", finish(level)),
        card("What happened", "Per window, all servers together.", finish(flow)),
        card(
            "Gone silent",
            "Connections of which no row came for their timeout, by listener, beside what was reaped. Known once the "
            "delay is over.",
            finish(gone),
        ),
        card(
            "Lateness",
            "Since the last byte plus the timeout, at most: the greatest of each window.",
            _lateness(summary, rows, x, end, finish),
        ),
    ]


def _beside(
    chart: Chart, series: list[tuple[list[float], str, str]], steps: list[float], end: float, width: float
) -> None:
    """Each of *series* (values, style, name) that is not all zero as bars of its own part of each window."""
    shown = [each for each in series if any(each[0])] or series[:1]
    part = width / len(shown)
    for i, (values, style, name) in enumerate(shown):
        points = [(step - end + i * part, value) for step, value in zip(steps, values, strict=True) if value]
        chart.bars(points, part, style, name)


def _lateness(summary: dict[str, Any], rows: list[dict[str, Any]], x: Axis, end: float, finish: Any) -> str:
    worst: dict[float, float] = {}
    for row in rows:
        if row["max_lateness_ns"] is not None:
            at = row["start"] / 1e6
            worst[at] = max(worst.get(at, 0.0), row["max_lateness_ns"] / 1e9)
    if not worst:
        return '<p class="none">Nothing was reaped.</p>'
    tick, width = summary["tick_s"], summary["window_s"]
    chart = Chart("Lateness", x, Axis(0, max(*worst.values(), tick) * 1.15 or 1.0, "lateness", seconds))
    points = [(at - end, late) for at, late in sorted(worst.items())]
    chart.bars([point for point in points if not tick or point[1] <= tick], width, "a", "within one tick")
    beyond = [point for point in points if tick and point[1] > tick]
    chart.bars(beyond, width, "d", "beyond one tick" if beyond else "")
    if tick:
        chart.line([(x.low, tick), (x.high, tick)], "allowed", f"one tick: {seconds(tick)}")
    return str(finish(chart))


def _per_window(rows: list[dict[str, Any]], key: str, steps: list[float], listener: str | None = None) -> list[float]:
    values: dict[float, float] = defaultdict(float)
    for row in rows:
        if listener is None or row["listener"] == listener:
            values[row["start"] / 1e6] += row[key]
    return [values.get(step, 0.0) for step in steps]


def _level(summary: dict[str, Any], rows: list[dict[str, Any]], listener: str, steps: list[float]) -> list[float]:
    """Open connections at the end of each window, counted back from now; never below zero, however the log begins."""
    opened, reaped, closed = (_per_window(rows, key, steps, listener) for key in ("opened", "reaped", "closed"))
    level = float(summary["listeners"][listener]["open"])
    result = []
    for up, *down in zip(reversed(opened), reversed(reaped), reversed(closed), strict=True):
        result.append(level)
        level += sum(down) - up
    floor = min(0.0, *result, level)
    return [value - floor for value in reversed(result)]


def _drawn(values: list[float], steps: list[float], end: float, width: float) -> Series:
    """Each window's value from its start to its end, as the chart wants it: seconds before *end*."""
    return [
        *((step - end, value) for step, value in zip(steps, values, strict=True)),
        (steps[-1] + width - end, values[-1]),
    ]


def _top(series: Any) -> float:
    return max((value for values in series for value in values), default=0.0) * 1.1 or 1.0


def _listeners(summary: dict[str, Any]) -> str:
    keys = ("open", "opened", "reaped", "closed", "averted", "overdue", "idle", "idle_uncertain", "taken_back", "late")
    rows = [[name, *(f"{entry[key]:,}" for key in keys)] for name, entry in summary["listeners"].items()]
    head = ["listener", *keys[:6], "gone silent", "of these uncertain", "taken back, at most", "late rows"]
    text = (
        "Uncertain: written in gaps mode, where brief pauses leave no row. Taken back: a later row says that the "
        "silence before it was within its timeout, or that none was in force."
    )
    return card("By listener, since the log begins", text, table(head, rows, set(range(1, len(head)))))


def _servers(summary: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{server['files']:,}",
            f"{server['rows']:,}",
            f"{server['late']:,}",
            "none" if server["newest"] is None else f"{_clock(server['newest'])} UTC",
            "" if server["newest"] is None else seconds(max(summary["as_of"] - server["newest"], 0.0)),
        ]
        for name, server in summary["servers"].items()
    ]
    if not rows:
        return ""
    head = ["journal", "files", "rows", "late rows", "newest row", "age"]
    return card("Servers", "How far each is read.", table(head, rows, {1, 2, 3, 4, 5}))


def _fine_print(summary: dict[str, Any], refresh: int) -> str:
    until = summary["final_until"]
    notes = [
        f"Step {summary['steps']:,}; this page asks for itself every {refresh} s.",
        "Open connections count from where the log begins: what was open before it is not in them.",
    ]
    if until is not None:
        notes.append(f"Windows that end by {_clock(until)} UTC are final; later ones may still grow.")
    return footer(notes)


def _clock(instant: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(instant))
