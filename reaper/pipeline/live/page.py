"""The page of `live`: one HTML file that asks for itself again every few seconds, and
loads nothing else.

It is drawn from the tables as they lie there, so it is the same after a restart. A
reader should see at a glance what is open, what has gone silent, and whether what he
sees is whole and fresh.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...html.charts import Axis, Chart
from ...html.parts import STYLES, card, document, footer, grid, header, table, tiles, warning
from ...html.units import count, seconds
from .status import SHOWN, gone_silent, reasons, windows

REFRESH_LEAST = 2


def render(summary: dict[str, Any], out: Path, every_ns: int) -> str:
    """The page as HTML. *every_ns*: how often a step is made; the browser asks no more
    often than that.
    """
    refresh = max(REFRESH_LEAST, round(every_ns / 1e9))
    width_us = round(summary["window_s"] * 1e6)
    rows = windows(out, width_us)
    title = _title(summary)
    verdict = "pass" if summary["complete"] else "fail"
    body = [
        header(verdict, "reaper live", title, _subtitle(summary)),
        _tiles(summary, rows),
        _kept_apart(summary),
    ]
    if rows:
        body += [grid(_charts(summary, rows, gone_silent(out, width_us))), _listeners(summary)]
    begun = (
        "Open connections count from where the log begins: what was open before it is not in them."
    )
    body += [_servers(summary), footer([f"This page asks for itself every {refresh} s.", begun])]
    return document(f"reaper live: {title}", body, refresh=refresh)


def _total(summary: dict[str, Any], key: str) -> int:
    return sum(entry[key] for entry in summary["listeners"].values())


def _title(summary: dict[str, Any]) -> str:
    if not summary["rows"]:
        return "Waiting for the first rows"
    return (
        f"{max(_total(summary, 'open'), 0):,} open, {summary['idle_connections']:,} gone silent so "
        "far"
    )


def _subtitle(summary: dict[str, Any]) -> str:
    if not summary["rows"]:
        growing = summary["growing"]
        streams = (
            f"{growing} stream(s) are being written" if growing else "No stream is being written"
        )
        return f"{streams}; rows arrive when a writer makes a Parquet file of its stream."
    servers = len(summary["servers"])
    of = f"{servers} server{'' if servers == 1 else 's'}"
    text = f"{summary['rows']:,} rows of {of}, as of {_clock(summary['as_of'])} UTC"
    if summary["drained"]:
        return f"{text}. Drained: everything is out."
    return (
        f"{text}; the newest row is {seconds(max(summary['as_of'] - summary['newest'], 0.0))} old."
    )


def _tiles(summary: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    worst = max(
        (row["max_lateness_ns"] for row in rows if row["max_lateness_ns"] is not None), default=None
    )
    tick = summary["tick_s"]
    overdue, left_out = _total(summary, "overdue"), summary["late_rows"]
    shown = [
        (
            "reaped",
            f"{_total(summary, 'reaped'):,}",
            f"{_total(summary, 'averted'):,} averted by the final check",
            "",
        ),
        (
            "greatest lateness",
            "none" if worst is None else seconds(worst / 1e9),
            f"in what is shown; one tick is {seconds(tick)}" if tick else "in what is shown",
            "bad" if worst is not None and tick and worst / 1e9 > tick else "",
        ),
        (
            "overdue",
            f"{overdue:,}",
            "silent beyond timeout and tick, and not reaped",
            "bad" if overdue else "",
        ),
        ("late rows", f"{left_out:,}", "in no figure here", "bad" if left_out else ""),
        (
            "files that wait",
            f"{summary['waiting_files']:,}",
            f"{summary['growing']} stream(s) not rotated",
            "",
        ),
    ]
    return tiles(shown)


def _kept_apart(summary: dict[str, Any]) -> str:
    if summary["complete"]:
        return ""
    rows = [[entry["path"], entry["reason"]] for entry in summary["quarantined"]]
    return warning(
        "Not in these figures",
        reasons(summary),
        table(["file", "why it is put aside"], rows, set()) if rows else "",
    )


def _charts(
    summary: dict[str, Any], rows: list[dict[str, Any]], idle: list[dict[str, Any]]
) -> list[str]:
    width = round(summary["window_s"] * 1e6)
    end = max(row["start"] for row in rows) + width
    first = max(min(row["start"] for row in rows), end - SHOWN * width)
    steps = range(first, end, width)
    x = Axis(
        (first - end) / 1e6,
        0.0,
        f"before {_clock(end / 1e6)} UTC, in windows of {seconds(width / 1e6)}",
        seconds,
    )

    def per_window(found: Iterable[dict[str, Any]], key: str) -> list[float]:
        values: dict[int, float] = defaultdict(float)
        for row in found:
            values[row["start"]] += row[key]
        return [values[step] for step in steps]

    def chart(
        title: str, text: str, series: dict[str, list[float]], label: str = "connections"
    ) -> str:
        say = seconds if label == "lateness" else count
        top = max((value for values in series.values() for value in values), default=0.0) * 1.1
        drawn = Chart(title, x, Axis(0, top or 1.0, label, say))
        for (name, values), style in zip(series.items(), STYLES, strict=False):
            points = [
                ((step - end) / 1e6, value) for step, value in zip(steps, values, strict=True)
            ]
            drawn.line([*points, (0.0, values[-1])], style, name, steps=True)
        if (until := summary["final_until"]) is not None and first < until * 1e6 < end - width:
            drawn.mark(until - end / 1e6, "final up to here")
        return card(title, text, drawn.svg())

    counted = {key: per_window(rows, key) for key in ("opened", "reaped", "closed", "averted")}
    levels, silent = {}, {}
    for name in sorted({row["listener"] for row in rows})[: len(STYLES) - 1]:
        mine = [row for row in rows if row["listener"] == name]
        levels[name] = _level(
            summary["listeners"][name]["open"],
            *(per_window(mine, key) for key in list(counted)[:3]),
        )
        silent[f"gone silent: {name}"] = per_window(
            (row for row in idle if row["listener"] == name), "idle"
        )
    worst: dict[int, float] = defaultdict(float)
    for row in rows:
        worst[row["start"]] = max(worst[row["start"]], (row["max_lateness_ns"] or 0) / 1e9)
    lateness = {"greatest": [worst[step] for step in steps]}
    if tick := summary["tick_s"]:
        lateness[f"one tick: {seconds(tick)}"] = [tick] * len(steps)
    return [
        chart("Open connections", "At the end of each window, by listener.", levels),
        chart("What happened", "Per window, all servers together.", counted),
        chart(
            "Gone silent",
            "Connections without a row for their whole timeout, by listener, beside what was "
            "reaped. Known once the delay is over.",
            {"reaped, all listeners": counted["reaped"], **silent},
        ),
        chart(
            "Lateness",
            "Since the last byte plus the timeout, at most: the greatest of each window.",
            lateness,
            "lateness",
        ),
    ]


def _level(now: int, opened: list[float], reaped: list[float], closed: list[float]) -> list[float]:
    """How many connections were open at the end of each window, counted back from
    *now*; never below zero.
    """
    level = float(now)
    result = []
    for up, *down in zip(reversed(opened), reversed(reaped), reversed(closed), strict=True):
        result.append(level)
        level += sum(down) - up
    floor = min(0.0, *result, level)
    return [value - floor for value in reversed(result)]


def _listeners(summary: dict[str, Any]) -> str:
    keys = (
        "open",
        "opened",
        "reaped",
        "closed",
        "averted",
        "overdue",
        "idle",
        "idle_uncertain",
        "late",
    )
    rows = [
        [name, *(f"{entry[key]:,}" for key in keys)] for name, entry in summary["listeners"].items()
    ]
    head = ["listener", *keys[:6], "gone silent", "of these uncertain", "late rows"]
    text = "Uncertain: written in gaps mode, where brief pauses leave no row."
    return card(
        "By listener, since the log begins", text, table(head, rows, set(range(1, len(head))))
    )


def _servers(summary: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{server['files']:,}",
            f"{server['rows']:,}",
            f"{server['late']:,}",
            "none" if server["newest"] is None else f"{_clock(server['newest'])} UTC",
            ""
            if server["newest"] is None
            else seconds(max(summary["as_of"] - server["newest"], 0.0)),
        ]
        for name, server in summary["servers"].items()
    ]
    if not rows:
        return ""
    head = ["journal", "files", "rows", "late rows", "newest row", "age"]
    return card("Servers", "How far each is read.", table(head, rows, {1, 2, 3, 4, 5}))


def _clock(instant: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(instant))
