"""The answer as text: a table, then what the table is worth."""

from __future__ import annotations

from typing import Any

from ...config.durations import spoken


def say(figure: dict[str, Any] | None, digits: int = 0) -> str:
    """A figure as a reader sees it: `12`, `10..14` for bounds, `~12` for an estimate, `>=10` where nothing is above."""
    if figure is None:
        return "?"
    value, low, high = figure["value"], figure["low"], figure["high"]
    if figure["kind"] == "bounded":
        if high is None:
            return f">={low:,.{digits}f}" if low else "?"
        return (
            f"{low:,.{digits}f}"
            if round(low, digits) == round(high, digits)
            else f"{low:,.{digits}f}..{high:,.{digits}f}"
        )
    return f"{'~' if figure['kind'] == 'estimated' else ''}{value:,.{digits}f}"


LEGEND = (
    "12 is exact, ~12 an estimate, 10..14 bounds; never and back: the two worlds, in which a client that was cut never "
    "comes back, or does as the log shows; ?: the log cannot know"
)

MEASURES = (("reaps", 0), ("false_cuts", 0), ("peak_open", 0), ("descriptor_hours", 2))
"""Keys of a row that are shown as bounds, and in each of the two worlds; with their digits."""

HEAD = (
    "setting",
    *(head for name in ("reaps", "false cuts", "peak open", "descriptor-h") for head in (name, "never", "back")),
    "back/s",
    "late max",
)


def cells(row: dict[str, Any]) -> list[str]:
    """The row's figures in the order of `HEAD`."""
    late, found = row["lateness_s"], [row["name"]]
    for key, digits in MEASURES:
        worlds = [f"{row[world][key]:,.{digits}f}" for world in ("never_come_back", "come_back")]
        found += [say(row[key], digits), *(["?", "?"] if row["cannot_know"] else worlds)]
    return [*found, say(row["reconnects_per_s"]["mean"], 3), "-" if late is None else spoken(late["max"])]


def as_text(summary: dict[str, Any]) -> str:
    """The answer as a table to read."""
    lines = [f"what if: {summary['connections']:,} connections, {spoken(summary['observed_s'])} observed"]
    answered = [row for row in summary["rows"] if "reaps" in row and not row["refused"]]
    table = [list(HEAD), *(cells(row) for row in answered)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEAD))]
    lines.append("")
    lines += [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in table
    ]
    lines += [f"{row['name']}: {row['cannot_know']}" for row in answered if row["cannot_know"]]
    lines += [f"{row['name']}: REFUSED: {row['refused']}" for row in summary["rows"] if row["refused"]]
    lines.append("")
    lines.append(LEGEND)
    lines.append("")
    for row in answered:
        wheel = row["wheel"]
        lines.append(
            f"  {row['name']}: {wheel['wakeups_per_s']:g} wake-ups/s, {wheel['moves_per_s']:,.1f} moves/s, "
            f"{wheel['slots_at_most']:,} slots, "
            + (
                f"{wheel['levels']} level(s) above the ring, at most {wheel['cascades_per_s_at_most']:g} cascades/s"
                if wheel["levels"]
                else "nothing cascades"
            )
        )
    if calibration := summary["calibration"]:
        lines.append("")
        lines.append("how far the first row is from what the log says happened:")
        for name, entry in calibration.items():
            if entry and "logged" in entry:
                lines.append(
                    f"  {name.replace('_', ' ')}: logged {entry['logged']:,.6g}, replayed {entry['replayed']:,.6g}"
                )
        if (later := calibration["replayed_later_s"]) is not None:
            lines.append(
                f"  the same reaps, replayed later by {later['p50']:+.3f} s (10..90 %: {later['p10']:+.3f} to "
                f"{later['p90']:+.3f}; all: {later['min']:+.3f} to {later['max']:+.3f})"
            )
    lines.append("")
    lines += [f"note: {note}" for note in summary["notes"]]
    lines += [f"assumed: {text}" for text in summary["assumptions"]]
    return "\n".join(lines)
