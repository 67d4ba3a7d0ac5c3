"""The answer as text: a table, then what the table is worth."""

from __future__ import annotations

from typing import Any

from ...config.durations import spoken

LEGEND = (
    "12 is exact, ~12 an estimate, 10..14 bounds; never and back: the two worlds, in which a client that was cut never "
    "comes back, or does as the log shows; ?: the log cannot know"
)

MEASURES = {"reaps": 0, "false_cuts": 0, "peak_open": 0, "descriptor_hours": 2}
"""Keys of a row that are shown as bounds and in each of the two worlds, and their digits."""

HEAD = (
    "setting",
    *(head for name in ("reaps", "false cuts", "peak open", "descriptor-h") for head in (name, "never", "back")),
    "back/s",
)


def say(figure: dict[str, Any], digits: int = 0) -> str:
    """A figure as a reader sees it: `12`, `~12` for an estimate, `10..14` for bounds."""
    low, high = (f"{figure[end]:,.{digits}f}" for end in ("low", "high"))
    if figure["kind"] == "bounded":
        return low if low == high else f"{low}..{high}"
    return f"{'~' if figure['kind'] == 'estimated' else ''}{low}"


def cells(row: dict[str, Any]) -> list[str]:
    """The row's figures in the order of `HEAD`."""
    found = [row["name"]]
    for key, digits in MEASURES.items():
        worlds = [f"{row[world][key]:,.{digits}f}" for world in ("never_come_back", "come_back")]
        found += [say(row[key], digits), *(["?", "?"] if row["cannot_know"] else worlds)]
    return [*found, say(row["reconnects_per_s"]["mean"], 3)]


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
    return "\n".join(lines)
