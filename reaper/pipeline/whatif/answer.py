"""The answer as text and as one HTML page that opens offline: a table, then what the table is worth.

The rule of this module: *what is not known is drawn as an area, never as a line*.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ...config.durations import spoken
from ..html.charts import Axis, Chart, count, seconds
from ..html.parts import STYLES, card, document, footer, grid, header, made_by, table, tiles, warning

LEGEND = (
    "12 is exact, ~12 an estimate, 10..14 bounds; never and back: the two worlds, in which a client that was cut never "
    "comes back, or does as the log shows; ?: the log cannot know"
)

MEASURES = (
    ("reaps", "Connections cut", "By their timeout, whether the client was gone or not.", 0),
    ("false_cuts", "False cuts", "Connections cut whose clients were not gone.", 0),
    ("peak_open", "Peak of open connections", "The most descriptors held at once.", 0),
    ("descriptor_hours", "Descriptor-hours", "Descriptors held, times how long.", 2),
)
"""Keys of a row that are shown as bounds and in each of the two worlds; title, explanation, digits."""

HEAD = (
    "setting",
    *(head for name in ("reaps", "false cuts", "peak open", "descriptor-h") for head in (name, "never", "back")),
    "back/s",
    "late max",
)


def say(figure: dict[str, Any], digits: int = 0) -> str:
    """A figure as a reader sees it: `12`, `~12` for an estimate, `10..14` for bounds."""
    low, high = (f"{figure[end]:,.{digits}f}" for end in ("low", "high"))
    if figure["kind"] == "bounded":
        return low if low == high else f"{low}..{high}"
    return f"{'~' if figure['kind'] == 'estimated' else ''}{low}"


def cells(row: dict[str, Any]) -> list[str]:
    """The row's figures in the order of `HEAD`."""
    late, found = row["lateness_s"], [row["name"]]
    for key, _, _, digits in MEASURES:
        worlds = [f"{row[world][key]:,.{digits}f}" for world in ("never_come_back", "come_back")]
        found += [say(row[key], digits), *(["?", "?"] if row["cannot_know"] else worlds)]
    return [*found, say(row["reconnects_per_s"]["mean"], 3), "-" if late is None else spoken(late["max"])]


def as_text(summary: dict[str, Any]) -> str:
    """The answer as a table to read."""
    answered = [row for row in summary["rows"] if "reaps" in row]
    shown = [list(HEAD), *(cells(row) for row in answered)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [f"what if: {summary['connections']:,} connections, {spoken(summary['observed_s'])} observed", ""]
    for name, *figures in shown:
        lines.append("  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]))
    lines += [f"{row['name']}: {row['cannot_know']}" for row in answered if row["cannot_know"]]
    lines += [f"{row['name']}: REFUSED: {row['refused']}" for row in summary["rows"] if row["refused"]]
    lines += ["", LEGEND, ""]
    if calibration := summary["calibration"]:
        lines.append("how far the first row is from what the log says happened:")
        for name, entry in calibration.items():
            texts = [f"{which} {entry[which]:,.6g}" for which in ("logged", "replayed")]
            lines.append(f"  {name.replace('_', ' ')}: {', '.join(texts)}")
        lines.append("")
    lines += [f"note: {note}" for note in summary["notes"]]
    lines += [f"assumed: {text}" for text in summary["assumptions"]]
    return "\n".join(lines)


def render(summary: dict[str, Any], curves: dict[int, list[list[float]]]) -> str:
    """The page. *curves*: number of a row -> [second, open at the low end, open at the high end]."""
    answered = [(i, row) for i, row in enumerate(summary["rows"]) if "reaps" in row]
    refused = [row for row in summary["rows"] if row["refused"]]
    rows = [row for _, row in answered]
    others = len(summary["rows"]) - 1
    title = f"{others} other setting{'s' * (others != 1)}, the same traffic"
    subtitle = f"{summary['connections']:,} connections over {seconds(summary['observed_s'])} replayed"
    subtitle += "." if summary["complete"] else "; the log is incomplete: every figure is an estimate."
    over_time = card(
        "Open connections over time", "Each setting; an area where the log cannot tell.", _over_time(answered, curves)
    )
    body = [
        header(summary["complete"], "reaper what-if", title, subtitle),
        tiles(
            (f"{name.replace('_', ' ')} as it was", f"{entry['replayed']:,.4g}", f"log: {entry['logged']:,.4g}", "")
            for name, entry in (summary["calibration"] or {}).items()
        ),
        grid([*(card(title, text, _bars(rows, key, title)) for key, title, text, _ in MEASURES[1:]), over_time]),
        card("Every figure", LEGEND, table(HEAD, map(cells, rows), set(range(1, len(HEAD))))),
    ]
    if refused:
        why = table(["setting", "why"], [[row["name"], row["refused"]] for row in refused], set())
        body.append(warning("Refused", ["The log cannot tell."], why))
    lines = [*summary["notes"], *(f"Assumed: {text}" for text in summary["assumptions"]), made_by("what-if")]
    return document("reaper: what if", [*body, footer(lines)])


def _bars(rows: list[dict[str, Any]], key: str, title: str) -> str:
    """A bar a row up to what is surely so, and above it an area up to what is possible."""
    if not rows:
        return '<p class="none">Nothing was replayed.</p>'
    digits = next(digits for name, _, _, digits in MEASURES if name == key)
    top = max(row[key]["high"] for row in rows) * 1.15 or 1.0
    chart = Chart(title, Axis(0, len(rows), "setting", lambda _: ""), Axis(0, top, title.lower(), count))
    for i, (row, style) in enumerate(zip(rows, STYLES * len(rows), strict=False)):
        low, high = row[key]["low"], row[key]["high"]
        chart.bars([(i + 0.2, low)], 0.6, style, f"{i}: {row['name']}: {say(row[key], digits)}")
        chart.band([(i + 0.2, low), (i + 0.8, low)], [(i + 0.2, high), (i + 0.8, high)], style)
        chart.below(i + 0.5, str(i))
    return chart.svg()


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
