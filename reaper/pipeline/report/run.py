"""The report: one HTML file that opens offline. What its charts show is counted by the
engine, from one row per connection into small frames; the rest only lays out.

The verdict is read in ten seconds, the evidence by scrolling.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...html.charts import Axis, Chart, round_s
from ...html.parts import (
    STYLES,
    Tile,
    card,
    document,
    escape,
    footer,
    grid,
    header,
    table,
    tiles,
    warning,
)
from ...html.units import count, percent, seconds
from ...journal.schema import UNNAMED
from ..audit.run import Audit
from ..audit.sums import OFFENDERS_PER_VERDICT
from ..audit.verdicts import VERDICTS, VIOLATIONS
from ..engine import F, together
from ..read.inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BINS = 240
LATENESS_TICKS = 2
"""Lateness of so many ticks and more is counted together."""
SUSPECTS = 12

TITLES = {
    "pass": "Every connection was closed when its timeout says",
    "fail": "Some connections were not closed when their timeouts say",
    "inconclusive": "Inconclusive: not everything could be judged",
}


@dataclass(slots=True)
class Charted:
    """The small frames behind the charts. Times in seconds from the first opening."""

    tick: float
    lateness: list[tuple[float, int]]
    """Reaps per slice of lateness: as the client saw it where it did, else as the
    server logged it. The first is of all that were early by two slices or more, the
    last of all that were late by `LATENESS_TICKS` or more.
    """
    slice: float
    """A round tenth of a tick, or so."""
    seen: bool
    width: float
    """How long a bin of time is, seconds."""
    opened: dict[int, int]
    reaped: dict[int, int]
    closed: dict[int, int]
    mass: list[tuple[float, int, int]]
    """(when, reaps in one tick, openings in the five ticks after it), most reaps
    first.
    """
    suspects: list[dict[str, Any]]
    bytes_known: bool
    """Whether any row says how many bytes came."""


def gather(audited: Audit, server: Inputs) -> Charted:
    """Count what the charts show, from one row per connection."""
    frame = audited.connections
    ticks = audited.summary["settings_s"]["tick"]
    tick = max(ticks) if ticks else 1.0
    begun, over = F.col("opened") + F.col("offset_ns"), F.col("ended") + F.col("offset_ns")
    joined = "joined" in audited.summary
    first, last = F.min(F.coalesce(begun, over)), F.max(F.greatest(begun, F.coalesce(over, begun)))
    seen = [F.count("seen_lateness_ns")] if joined else []
    span = frame.agg(first, last, F.count("nbytes"), *seen).collect()[0]
    start, end, observed = span[0] or 0, span[1] or 1, span[3] if joined else 0
    width = round(round_s((end - start) / BINS / 1e9) * 1e9)
    lateness = F.col("seen_lateness_ns" if observed else "lateness_ns")
    slice_ns, tick_ns = round(round_s(tick / 10) * 1e9), round(tick * 1e9)
    last_slice = LATENESS_TICKS * tick_ns // slice_ns
    reaps = F.col("reaps") > 0

    def bins(at: Column, size: int) -> Column:
        return F.floor((at - start) / size)

    series = [
        bins(begun, width),
        F.when(reaps, bins(over, width)),
        F.when(~reaps, bins(over, width)),
        bins(begun, tick_ns),
        F.when(reaps, bins(over, tick_ns)),
        F.greatest(F.least(F.floor(lateness / slice_ns), F.lit(last_slice)), F.lit(-2)),
    ]
    # A null of `lateness` would be no null among the greatest and the least.
    series[-1] = F.when(lateness.isNotNull(), series[-1])
    counted, suspects = together(lambda: _counts(frame, series), lambda: _suspects(frame))
    opened, reaped, closed, opened_by_tick, reaped_by_tick, late = counted
    return Charted(
        tick=tick,
        lateness=sorted((bucket * slice_ns / 1e9, count) for bucket, count in late.items()),
        slice=slice_ns / 1e9,
        seen=observed > 0,
        width=width / 1e9,
        opened=opened,
        reaped=reaped,
        closed=closed,
        mass=mass_reaps(reaped_by_tick, opened_by_tick, tick),
        suspects=suspects,
        bytes_known=span[2] > 0,
    )


def _counts(frame: DataFrame, series: list[Column]) -> list[dict[int, int]]:
    """For each column of *series*: value -> rows that have it. Nulls are left out.
    *frame* is read once.
    """
    many = len(series)
    keys = F.array(*(column * F.lit(many) + F.lit(i) for i, column in enumerate(series)))
    rows = (
        frame.select(F.explode(keys).alias("key"))
        .where(F.col("key").isNotNull())
        .groupBy("key")
        .count()
        .collect()
    )
    found: list[dict[int, int]] = [{} for _ in series]
    for row in rows:
        value, i = divmod(row.key, many)
        found[i][value] = row["count"]
    return found


def mass_reaps(
    reaps: dict[int, int], openings: dict[int, int], tick: float
) -> list[tuple[float, int, int]]:
    """Ticks in which far more was reaped than usual, and what came back right after."""
    if not reaps:
        return []
    usual = sum(reaps.values()) / (max(reaps) - min(0, *reaps) + 1)
    heavy = sorted((-n, at) for at, n in reaps.items() if n >= max(20, 5 * usual))
    return [
        (at * tick, -n, sum(openings.get(at + k, 0) for k in range(1, 6))) for n, at in heavy[:10]
    ]


def _suspects(frame: Any) -> list[dict[str, Any]]:
    """Connections that stay open by a few bytes just before each timeout: slow
    drips.
    """
    timeout = F.coalesce("end_timeout_ms", "open_timeout_ms").cast("long") * 1_000_000
    mean_idle = F.col("activity_idle_ns") / F.col("activities")
    mean_bytes = F.col("nbytes") / F.col("activities")
    # Bytes that no row states are not few: they are not known.
    few = mean_bytes <= 16
    found = frame.where((F.col("activities") >= 3) & (mean_idle > 0.5 * timeout) & few).select(
        "conn",
        F.coalesce("listener", F.lit(UNNAMED)).alias("listener"),
        "activities",
        mean_bytes.alias("bytes"),
        (mean_idle / timeout).alias("idle_share"),
        F.col("activity_idle_ns").alias("held_ns"),
    )
    return [
        row.asDict() for row in found.orderBy(F.desc("held_ns"), "conn").limit(SUSPECTS).collect()
    ]


# ---- the page


def folded(rows: list[list[str]], name: int) -> list[list[str]]:
    """*rows*, with those that differ only in their figures folded into the first of
    them, which says how many more there are.

    What is in the column *name* is not compared.
    """
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        key = tuple(re.sub(r"[\d.,]+", "0", cell) for cell in (*row[:name], *row[name + 1 :]))
        groups.setdefault(key, []).append(row)
    return [
        [
            cell + (f" and {len(alike) - 1:,} like it" if i == name and alike[1:] else "")
            for i, cell in enumerate(alike[0])
        ]
        for alike in groups.values()
    ]


def render(summary: dict[str, Any], advice: dict[str, Any], charted: Charted) -> str:
    """The page as HTML."""
    title = TITLES[summary["result"]]
    whose = "its client" if charted.seen else "the server"
    late = (
        f"How long after its timeout each connection was closed, as {whose} saw it. One tick is "
        "allowed."
    )
    body = [
        header(summary["result"], "report on closed connections", title, _subtitle(summary)),
        _tiles(summary, advice),
        _violations(summary),
        grid(
            [
                card("How late each one was closed", late, _lateness_chart(charted)),
                card(
                    "Open connections over time",
                    "All open connections, and what ended them.",
                    _time_chart(charted),
                ),
            ]
        ),
        advice_cards(advice),
        _drips(charted),
        _mass_table(charted),
        _verdict_table(summary),
        _fine_print(summary, advice),
    ]
    return document(f"reaper: {title}", body)


def _subtitle(summary: dict[str, Any]) -> str:
    text = (
        f"{summary['connections']:,} connections judged, {summary['verdicts']['ok_reaped']:,} "
        "closed for silence, in time"
    )
    if joined := summary.get("joined"):
        text += f"; {joined['pairs']:,} of them confirmed by the client's own log"
    return text + "."


def _tiles(summary: dict[str, Any], advice: dict[str, Any]) -> str:
    violations = sum(summary["verdicts"][name] for name in VIOLATIONS)
    tick = max(summary["settings_s"]["tick"], default=0.0)
    worst = [
        (entry.get("seen_lateness_s") or entry["lateness_s"])["p99"]
        for entry in summary["listeners"].values()
        if entry.get("seen_lateness_s") or entry["lateness_s"]
    ]
    shown: list[Tile] = [
        (
            "closed wrongly",
            f"{violations:,}",
            "early, late, never or twice; each below",
            "bad" if violations else "",
        ),
        (
            "99 of 100 were closed within",
            seconds(max(worst)) if worst else "none",
            f"after their timeout; one tick is {seconds(tick)}",
            "",
        ),
        (
            "spared at the last look",
            f"{summary['averted']:,}",
            "due, but bytes of theirs had just arrived",
            "",
        ),
    ]
    for name, timeout in list(advice["config"].get("timeouts", {}).items())[:2]:
        shown.append(
            (f"advised {name}", seconds(timeout["timeout_s"]), f"for {timeout['listener']}", "")
        )
    return tiles(shown)


def _violations(summary: dict[str, Any]) -> str:
    if not summary["reasons"]:
        return ""
    rows = [
        [entry["verdict"], str(entry["conn"]), entry["where"], entry["story"]]
        for entry in summary["offenders"]
    ]
    stories = (
        table(
            ["verdict", f"of the first {OFFENDERS_PER_VERDICT} connections", "where", "story"],
            folded(rows, 1),
            set(),
        )
        if rows
        else ""
    )
    return warning("Why", summary["reasons"], stories)


def _lateness_chart(charted: Charted) -> str:
    if not charted.lateness:
        return '<p class="none">Nothing was closed for silence.</p>'
    size, last = charted.slice, LATENESS_TICKS * charted.tick
    most = max(n for _, n in charted.lateness)
    low, high = (
        min(-size, charted.lateness[0][0]),
        max(charted.tick * 1.15, charted.lateness[-1][0] + size),
    )
    chart = Chart(
        "Lateness",
        Axis(low, high, "lateness", seconds),
        Axis(0, most * 1.15, "connections", count),
    )
    early = [(x, n) for x, n in charted.lateness if x < 0]
    chart.bars(early, size, "bad", "early" if early else "")
    chart.bars(
        [(x, n) for x, n in charted.lateness if 0 <= x < charted.tick], size, "a", "within one tick"
    )
    beyond = [(x, n) for x, n in charted.lateness if x >= charted.tick]
    more = (
        f"; the last bar: {seconds(last)} and more"
        if beyond and beyond[-1][0] >= last * 0.999
        else ""
    )
    chart.bars(beyond, size, "d", f"beyond one tick{more}" if beyond else "")
    chart.mark(0, "due")
    chart.mark(charted.tick, "one tick")
    return chart.svg()


def _time_chart(charted: Charted) -> str:
    bins = sorted({*charted.opened, *charted.reaped, *charted.closed})
    if not bins:
        return '<p class="none">Nothing happened.</p>'
    level, open_now, reaps, closes = 0, [], [], []
    for at in range(bins[0], bins[-1] + 1):
        level += charted.opened.get(at, 0)
        x = at * charted.width
        open_now.append((x, float(level)))
        level -= charted.reaped.get(at, 0) + charted.closed.get(at, 0)
        reaps.append((x, float(charted.reaped.get(at, 0))))
        closes.append((x, float(charted.closed.get(at, 0))))
    top = max(y for _, y in [*open_now, *reaps, *closes]) * 1.1 or 1
    last = (bins[-1] + 1) * charted.width
    chart = Chart(
        "Open connections over time",
        Axis(0, last, "time", seconds),
        Axis(0, top, "connections", count),
    )
    chart.band([(x, 0.0) for x, _ in open_now], open_now, "a")
    chart.line(open_now, "a", "open")
    chart.line(reaps, "d", f"closed for silence per {seconds(charted.width)}")
    chart.line(closes, "c", f"closed otherwise per {seconds(charted.width)}")
    return chart.svg()


def advice_cards(advice: dict[str, Any]) -> str:
    """Curves and sentences of *advice*, as cards."""
    shown = [(name, entry) for name, entry in advice["listeners"].items() if entry["survival"]][
        : len(STYLES)
    ]
    if not shown:
        return card("Advice", "The log holds no silence that ended: nothing can be advised.", "")
    times = [time for _, entry in shown for time, *_ in entry["survival"]]
    high = max(max(times), min(times) * 10)
    low = max(min(times), high / 10_000)
    survival = Chart(
        "Survival of silences",
        Axis(low, high, "silence", seconds, log=True),
        Axis(0, 1, "still silent", percent),
    )
    marked = False
    for (name, entry), style in zip(shown, STYLES, strict=False):
        rows = entry["survival"]
        survival.band(
            [(t, lo) for t, _, lo, _ in rows], [(t, hi) for t, _, _, hi in rows], style, steps=True
        )
        survival.line([(t, level) for t, level, *_ in rows], style, name, steps=True)
        if (timeout := entry["recommendation"]["timeout_s"]) is not None and low <= timeout <= high:
            marked = True
            survival.mark(timeout, f"{name}: {seconds(timeout)}", f"mark {style}")
    trade = _trade_chart(shown, advice["policy"]["max_cut"])
    sentences = []
    for name, entry in shown:
        recommended = entry["recommendation"]
        timeout = recommended["timeout_s"]
        if timeout is not None:
            verdict = f"{seconds(timeout)}, tick {seconds(recommended['tick_s'])}"
        elif (least := recommended["at_least_s"]) is not None:
            verdict = f"at least {seconds(least)}"
        else:
            verdict = "no recommendation"
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in recommended["because"])
        sentences.append(f"<h3>{escape(name)}: {escape(verdict)}</h3><ul>{reasons}</ul>")
    return grid(
        [
            card(
                "How long silences last",
                "How many silences are not over after so long. Shaded: the 95 % interval."
                + (" Dashed: what is advised." if marked else ""),
                survival.svg(),
            ),
            card(
                "What each timeout would cost",
                "Each dot is a timeout: the further right, the more it holds; the lower, the "
                "fewer it cuts wrongly.",
                trade,
            ),
        ]
    ) + card("Advice", "", "".join(sentences))


def _trade_chart(shown: list[tuple[str, dict[str, Any]]], allowed: float) -> str:
    rows = [
        row for _, entry in shown for row in entry["trade_off"] if not row["beyond_what_was_seen"]
    ]
    if not rows:
        return '<p class="none">No candidate timeout lies above the threshold of the log.</p>'
    lows, highs = min(row["mean_open"] for row in rows), max(row["mean_open"] for row in rows)
    floor = 1e-5
    chart = Chart(
        "Trade-off",
        Axis(
            min(lows, highs * 0.9) * 0.9, highs * 1.1 or 1.0, "connections open on average", count
        ),
        Axis(floor, 1, "returning silences cut", percent, log=True),
    )
    for (name, entry), style in zip(shown, STYLES, strict=False):
        known = [row for row in entry["trade_off"] if not row["beyond_what_was_seen"]]
        chart.line(
            [(row["mean_open"], max(row["silences_cut"], floor)) for row in known], style, name
        )
        for row in known:
            chart.dot(
                row["mean_open"], max(row["silences_cut"], floor), style, seconds(row["timeout_s"])
            )
    chart.line(
        [(chart.x.low, allowed), (chart.x.high, allowed)], "allowed", f"allowed: {percent(allowed)}"
    )
    return chart.svg()


def _drips(charted: Charted) -> str:
    if not charted.bytes_known:
        unknown = "No row says how many bytes came: slow drips cannot be told from other clients."
        return card("Slow drips", unknown, "")
    if not charted.suspects:
        return ""
    rows = [
        [
            str(s["conn"]),
            s["listener"],
            str(s["activities"]),
            f"{s['bytes']:.1f}",
            f"{s['idle_share']:.0%}",
            seconds(s["held_ns"] / 1e9),
        ]
        for s in charted.suspects
    ]
    head = ["connection", "listener", "logged silences", "bytes each", "of its timeout", "held so"]
    text = (
        "Kept open by some bytes shortly before each timeout. No idle timeout ends these; a "
        "deadline or a rate does."
    )
    return card("Slow drips", text, table(head, folded(rows, 0), {2, 3, 4, 5}))


def _mass_table(charted: Charted) -> str:
    if not charted.mass:
        return ""
    rows = [[seconds(when), f"{reaps:,}", f"{back:,}"] for when, reaps, back in charted.mass]
    text = (
        "Ticks in which far more was closed for silence than usual, and the openings that followed: a "
        "reconnect storm looks like both."
    )
    return card(
        "Many closed at once",
        text,
        table(["at", "closed in one tick", "opened within five ticks"], rows, {0, 1, 2}),
    )


def _verdict_table(summary: dict[str, Any]) -> str:
    rows = [
        [name, f"{n:,}", VERDICTS[name]]
        for name, n in summary["verdicts"].items()
        if n or name in VIOLATIONS
    ]
    return card(
        "Every verdict",
        "What the audit says of each connection; each has exactly one. The grace is "
        f"{seconds(summary['settings_s']['grace'])} (--grace).",
        table(["verdict", "connections", "meaning"], rows, {1}),
    )


def _fine_print(summary: dict[str, Any], advice: dict[str, Any]) -> str:
    settings, clock = summary["settings_s"], summary["clock"]
    stalls = (
        f"{summary['stalls']['count']} stall(s) that were logged, "
        f"{seconds(summary['stalls']['total_s'])} in all"
    )
    ticks = ", ".join(seconds(tick) for tick in settings["tick"])
    aside, dropped = len(summary["files"]["quarantined"]), summary["dropped_rows"]
    notes = [
        f"Tick {ticks}; excused beyond it: {seconds(settings['grace'])} and the {stalls}.",
        f"Timeline: {clock['timeline']}.",
        (
            f"{summary['files']['read']} file(s) read, {aside} put aside, {dropped} row(s) dropped "
            "by the writers."
        ),
        *(f"{note[:1].upper()}{note[1:]}." for note in advice["notes"]),
        (
            f"Made {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by python -m "
            "reaper.pipeline report."
        ),
    ]
    return footer(notes)
