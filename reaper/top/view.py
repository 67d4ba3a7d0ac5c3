"""Draws a picture as lines for a terminal of any size; it needs rich.

The rule of this module: *a line is never wrapped, and what matters most stands first*.
A narrow terminal gets fewer columns, a low one fewer rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ..config.durations import format_duration
from .picture import PHASE, Picture, quantile

BARS, ASCII_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
PHASE_WIDTH, NUMBER_WIDTH, IDLE_WIDTH, WIDEST_IDLE = 13, 9, 6, 11
PHASE_ROWS = 8
DUE_ROWS = 15
"""The most rows of what is due next where no height is given."""
WIDEST_RING = 64
COMING = {
    "phase": PHASE_WIDTH,
    "silent": NUMBER_WIDTH,
    "timeout": NUMBER_WIDTH,
    "due in": NUMBER_WIDTH,
}
"""The columns of what is due next, after its name, and their widths."""
SHORTEST_NAME = len("255.255.255.255:65535")
"""The least room for a name. Where there is less, the timeout is left out, then the
phase.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """What the terminal has room for, and what it can show.

    Attributes:
        width: Characters per line.
        height: The most lines; None: as many as there are.
        ascii: Whether the terminal shows ASCII only.
    """

    width: int = 80
    height: int | None = 24
    ascii: bool = False


def draw(
    picture: Picture, rate: Mapping[str, float], frame: Frame, clock: str = "", trouble: str = ""
) -> list[Text]:
    """The lines of *picture*, none wider or more than *frame* allows.

    Args:
        picture: What is drawn.
        rate: The closes per second by reason, see `picture.rates`.
        frame: The terminal.
        clock: The time of day that is shown.
        trouble: Why there is no newer picture, shown first; empty: there is one.
    """
    lines = [_title(picture, frame, clock), _ends(picture, rate)]
    if trouble:
        lines.insert(0, Text(trouble, style="bold red"))
    if picture.loop is not None:
        lines += [_lateness(picture), _loop(picture, rate)]
    if picture.pressures:
        fullest = max(picture.pressures, key=lambda one: (not one["accepting"], one["load"]))
        lines.append(_pressure(fullest, len(picture.workers) > 1))
    if picture.missing:
        lines.append(
            Text(f"no answer from worker {', '.join(map(str, picture.missing))}", style="bold red")
        )
    lines += [Text(), *_phases(picture, frame)]
    if picture.ring is not None and picture.tick:
        lines += [Text(), *_ring(picture, frame)]
    lines += [Text(), *_coming(picture, frame)]
    for line in lines:
        line.truncate(frame.width, overflow="crop" if frame.ascii else "ellipsis")
    return lines if frame.height is None else lines[: frame.height]


def number(value: float) -> str:
    """A count in seven characters at most."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"


def brief(value: int) -> str:
    """A count in five characters at most, if it is below a billion."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if value >= 10 * size:
            return f"{value // size}{unit}"
    return str(value)


def seconds(value: float | None) -> str:
    """A length of time in seven characters at most."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "ever"
    if value < 0:
        return "now"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if value >= 10 * size or (value >= size and value % size == 0):
            return f"{value / size:.0f}{unit}"
    return f"{value:.1f}s"


def _title(picture: Picture, frame: Frame, clock: str) -> Text:
    workers = len(picture.workers) + len(picture.missing)
    said = f"reaper top  {picture.server}" + (f", {workers} workers" if workers > 1 else "")
    left = Text(said, style="bold")
    left.append(f"   open {picture.connections:,}", style="bold cyan")
    if picture.parked is not None:
        left.append(f"  parked {picture.parked:,}", style="cyan")
    room = frame.width - left.cell_len - len(clock)
    return left.append(" " * room + clock, style="dim") if room > 1 else left


def _ends(picture: Picture, rate: Mapping[str, float]) -> Text:
    line = Text("closed  ")
    if picture.loop is None:
        return Text("closed  not known from outside: the server counts that", style="dim")
    line.append(number(picture.closes), style="bold")
    if rate:
        line.append(
            f"  {sum(value for name, value in rate.items() if name != 'cpu'):,.1f}/s", style="bold"
        )
    for reason, count in sorted(picture.closed.items(), key=lambda item: -item[1]):
        per = f" {rate[reason]:,.1f}/s" if rate.get(reason) else ""
        line.append(f"  {reason} {number(count)}{per}")
    line.append(f"  averted {number(picture.counts.get('averted', 0))}", style="dim")
    return line


def _lateness(picture: Picture) -> Text:
    line = Text("late    ")
    if picture.lateness is None or not sum(picture.lateness[2]):
        return line.append("nothing has come due yet", style="dim")
    bounds, _, most = picture.lateness
    late = picture.counts.get("late", 0)
    line.append(
        f"beyond one tick ({_short(picture.tick or 0)}): {number(late)}",
        style="bold red" if late else "green",
    )
    for name, share in (("half", 0.5), ("99 %", 0.99), ("all", 1.0)):
        bound = quantile(bounds, most, share)
        assert bound is not None
        said = f"> {_short(bounds[-1])}" if math.isinf(bound) else f"<= {_short(bound)}"
        line.append(f"  {name} {said}")
    if picture.dropped:
        line.append(f"  journal rows lost {number(picture.dropped)}", style="bold red")
    return line


def _short(value: float) -> str:
    """Seconds as a setting is written, but 1.5s instead of 1500ms."""
    return f"{value:g}s" if value > 1 and value % 1 else format_duration(round(value, 4))


def _loop(picture: Picture, rate: Mapping[str, float]) -> Text:
    loop = picture.loop
    assert loop is not None
    line = Text(
        f"loop    lag {1e3 * loop['lag_s']:.0f} ms, worst {1e3 * loop['max_lag_s']:.0f} ms, "
    )
    stalls = loop["stalls"]
    line.append(
        f"stalls {number(stalls)} ({loop['stalled_s']:.1f} s)",
        style="bold yellow" if stalls else "",
    )
    if "cpu" in rate:
        line.append(f", reaper's CPU {100 * rate['cpu']:.1f} %")
    return line


def _pressure(pressure: Mapping[str, Any], several: bool) -> Text:
    load, scale = pressure["load"], pressure["scale"]
    line = Text("press   ")
    accepting = bool(pressure["accepting"])
    line.append(
        "accepting" if accepting else "NOT accepting", style="" if accepting else "bold red"
    )
    line.append(f", worker {pressure['worker']} is fullest: " if several else ", ")
    line.append(
        f"{100 * load:.0f} % of {pressure['of'] or 'nothing limited'}",
        style="bold red" if scale < 1 else "",
    )
    return line.append(f", timeouts at {100 * scale:.0f} %, {number(pressure['evicted'])} closed")


def _phases(picture: Picture, frame: Frame) -> list[Text]:
    bounds = picture.idle_bounds
    ends = [*(f"<{_short(bound)}" for bound in bounds), f">{_short(bounds[-1])}"]
    first = PHASE_WIDTH
    if picture.by != PHASE:  # an address is of use only as a whole
        first = max(first, *(len(row.phase) + 1 for row in picture.phases[:PHASE_ROWS]), 0)
    column = min((frame.width - first - 2 * NUMBER_WIDTH) // len(ends), WIDEST_IDLE)
    wide = column >= IDLE_WIDTH
    head = f"{picture.by:{first}}{'timeout':>{NUMBER_WIDTH}}{'open':>{NUMBER_WIDTH}}"
    head += "".join(f"{end:>{column}}" for end in ends if wide)
    lines = [Text(f"{head:{frame.width}}", style="reverse")]
    if not picture.phases:
        lines.append(Text("no connection is open", style="dim"))
    for row in picture.phases[:PHASE_ROWS]:
        line = Text(f"{row.phase[: first - 1]:{first}}{seconds(row.timeout):>{NUMBER_WIDTH}}")
        line.append(f"{number(row.connections):>{NUMBER_WIDTH}}", style="bold")
        for count in row.idle if wide else ():
            line.append(f"{brief(count):>{column}}", style="" if count else "dim")
        lines.append(line)
    if len(picture.phases) > PHASE_ROWS:
        rest = picture.phases[PHASE_ROWS:]
        lines.append(
            Text(
                f"and {sum(row.connections for row in rest):,} in {len(rest)} more rows",
                style="dim",
            )
        )
    return lines


def _ring(picture: Picture, frame: Frame) -> list[Text]:
    ring, tick = picture.ring or {}, picture.tick or 1.0
    slots = max(picture.wheel_size, max(ring, default=0) + 1, 1)
    columns = max(1, min(slots, WIDEST_RING, frame.width - 8))
    per = -(-slots // columns)
    columns = -(-slots // per)
    heights = [0] * columns
    for ahead, count in ring.items():
        heights[ahead // per] += count
    bars = ASCII_BARS if frame.ascii else BARS
    most = max(heights, default=0)
    drawn = "".join(
        bars[0 if not height else max(1, round(height / most * (len(bars) - 1)))]
        for height in heights
    )
    line = Text("ring    ").append(drawn, style="cyan")
    total = number(sum(ring.values()))
    span, step = _short(slots * tick), _short(per * tick)
    said = f"        due in 0 .. {span}, {step} per column; {total} leases"
    for level, count in sorted(picture.wheel.items()):
        said += f"; wheel level {level}: {number(count)}"
    return [line, Text(said, style="dim")]


def _coming(picture: Picture, frame: Frame) -> list[Text]:
    timed = picture.ring is not None
    rows = picture.due_next
    columns = list(COMING) if timed else ["phase", "silent"]
    for spared in ("timeout", "phase"):
        if frame.width < SHORTEST_NAME + 1 + sum(COMING[each] for each in columns):
            columns = [each for each in columns if each != spared]
    room = frame.width - 1 - sum(COMING[each] for each in columns)
    # No wider than the table above: numbers far from the names they belong to are hard
    # to read.
    room = min(
        room,
        PHASE_WIDTH
        + 2 * NUMBER_WIDTH
        + (len(picture.idle_bounds) + 1) * WIDEST_IDLE
        - frame.width
        + room,
    )
    wide = max(SHORTEST_NAME, room)

    def laid(name: str, phase: str, *times: str) -> str:
        said = dict(zip(COMING, (f"{phase[: PHASE_WIDTH - 1]:{PHASE_WIDTH}}", *times), strict=True))
        return f"{name[:wide]:{wide}} " + "".join(
            said[each].rjust(COMING[each]) for each in columns
        )

    head = laid("due next" if timed else "silent longest", *COMING)
    lines = [Text(f"{head:{frame.width}}", style="reverse")]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = row["phase"], *(seconds(row[each]) for each in ("idle_s", "timeout_s", "due_in_s"))
        alike.setdefault(key, []).append(row["name"])
    for said, names in list(alike.items())[: DUE_ROWS if frame.height is None else None]:
        others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        lines.append(Text(laid(names[0] + others, *said)))
    return lines
