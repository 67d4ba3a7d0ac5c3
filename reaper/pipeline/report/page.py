"""The report: one HTML file that opens offline. Spark counts, this module only lays out.

A reader should know the verdict in ten seconds, and find the evidence by scrolling.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ..audit.run import Audit
from ..audit.verdicts import VERDICTS, VIOLATIONS
from ..html.charts import Axis, Chart, count, percent, seconds
from ..html.style import CSS
from ..read.frames import names, read_events
from ..read.inputs import Inputs

BINS = 240
LATENESS_BINS = 40
SUSPECTS = 12
STYLES = ("a", "b", "c", "d", "e")


@dataclass(slots=True)
class Charted:
    """The small frames behind the charts. Times in seconds from the first opening."""

    tick: float
    lateness: list[tuple[float, int]]
    """Reaps per slice of lateness: as the client saw it where it did, else as the server logged it."""
    seen: bool
    width: float
    """Of a bin of time."""
    opened: dict[int, int]
    reaped: dict[int, int]
    closed: dict[int, int]
    mass: list[tuple[float, int, int]]
    """(when, reaps in one tick, openings in the five ticks after it), most reaps first."""
    suspects: list[dict[str, Any]]


def gather(spark: SparkSession, audited: Audit, server: Inputs) -> Charted:
    """Count what the charts show, from one row per connection."""
    frame = audited.connections
    ticks = audited.summary["settings_s"]["tick"]
    tick = max(ticks) if ticks else 1.0
    begun, over = F.col("opened") + F.col("offset_ns"), F.col("ended") + F.col("offset_ns")
    span = frame.agg(F.min(F.coalesce(begun, over)), F.max(F.greatest(begun, F.coalesce(over, begun)))).first()
    start, end = (span[0] or 0, span[1] or 1) if span is not None else (0, 1)
    width = max((end - start) // BINS, 1)
    seen = "joined" in audited.summary and frame.where(F.col("seen_lateness_ns").isNotNull()).limit(1).count() > 0
    lateness = F.col("seen_lateness_ns" if seen else "lateness_ns")
    slice_ns = round(tick * 2 / LATENESS_BINS * 1e9)
    buckets = F.greatest(F.least(F.floor(lateness / slice_ns), F.lit(LATENESS_BINS - 1)), F.lit(-2))

    def per(at: Any, size: int, condition: Any = None) -> dict[int, int]:
        chosen = frame.where(at.isNotNull() & (F.lit(True) if condition is None else condition))
        return {row[0]: row[1] for row in chosen.groupBy(F.floor((at - start) / size)).count().collect()}

    reaps = F.col("reaps") > 0
    tick_ns = round(tick * 1e9)
    late = frame.where(lateness.isNotNull()).groupBy(buckets.alias("bucket")).count().collect()
    return Charted(
        tick=tick,
        lateness=sorted((row.bucket * slice_ns / 1e9, row["count"]) for row in late),
        seen=seen,
        width=width / 1e9,
        opened=per(begun, width),
        reaped=per(over, width, reaps),
        closed=per(over, width, ~reaps),
        mass=_mass(per(over, tick_ns, reaps), per(begun, tick_ns), tick),
        suspects=_suspects(frame, names(read_events(spark, server), "listener")),
    )


def _mass(reaps: dict[int, int], openings: dict[int, int], tick: float) -> list[tuple[float, int, int]]:
    """Ticks in which far more was reaped than usual, and what came back right after."""
    if not reaps:
        return []
    usual = sum(reaps.values()) / (max(reaps) - min(0, *reaps) + 1)
    heavy = sorted((-n, at) for at, n in reaps.items() if n >= max(20, 5 * usual))
    return [(at * tick, -n, sum(openings.get(at + k, 0) for k in range(1, 6))) for n, at in heavy[:10]]


def _suspects(frame: DataFrame, listeners: dict[int, str]) -> list[dict[str, Any]]:
    """Connections that stay open by a few bytes just before each timeout: slow drips."""
    timeout = F.coalesce("end_timeout_ms", "open_timeout_ms").cast("long") * 1_000_000
    mean_idle = F.col("activity_idle_ns") / F.col("activities")
    mean_bytes = F.col("nbytes") / F.col("activities")
    rows = (
        frame.where((F.col("activities") >= 3) & (mean_idle > 0.5 * timeout) & (F.coalesce(mean_bytes, F.lit(0)) <= 16))
        .select(
            "conn",
            "listener_hash",
            "activities",
            mean_bytes.alias("mean_bytes"),
            mean_idle.alias("mean_idle"),
            timeout.alias("timeout"),
            F.col("activity_idle_ns").alias("held"),
        )
        .orderBy(F.desc("held"), "conn")
        .limit(SUSPECTS)
        .collect()
    )
    return [
        {
            "conn": row.conn,
            "listener": listeners.get(row.listener_hash, "(none)"),
            "activities": row.activities,
            "bytes": row.mean_bytes,
            "idle_share": row.mean_idle / row.timeout,
            "held_s": row.held / 1e9,
        }
        for row in rows
    ]


def render(summary: dict[str, Any], advice: dict[str, Any], charted: Charted) -> str:
    """The page."""
    passed = summary["result"] == "pass"
    title = "The law of time held" if passed else "The law of time was broken"
    if not passed and not any(summary["verdicts"][name] for name in VIOLATIONS):
        title = "Not proven"
    banner = f'<p class="eyebrow">reaper audit</p><h1>{title}</h1><p>{_subtitle(summary)}</p>'
    body = [
        f'<header class="{"pass" if passed else "fail"}">{banner}</header>',
        _tiles(summary, advice),
        _violations(summary),
        '<div class="grid2">',
        _card("Lateness against the tick", _lateness_text(charted), _lateness_chart(charted)),
        _card("Open connections over time", "Everything that was open, and what ended it.", _time_chart(charted)),
        "</div>",
        _advice(advice),
        _drips(charted),
        _mass_table(charted),
        _verdict_table(summary),
        _fine_print(summary, advice),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>reaper: {title}</title>'
        # an empty icon, so that a browser has no reason to ask anybody for one
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head><body><main>{"".join(body)}</main></body></html>\n'
    )


def _subtitle(summary: dict[str, Any]) -> str:
    text = f"{summary['connections']:,} connections judged, {summary['verdicts']['ok_reaped']:,} reaped in time"
    if joined := summary.get("joined"):
        text += f"; {joined['pairs']:,} of them confirmed by the client's own log"
    return escape(text + ".")


def _tiles(summary: dict[str, Any], advice: dict[str, Any]) -> str:
    violations = sum(summary["verdicts"][name] for name in VIOLATIONS)
    tick = max(summary["settings_s"]["tick"], default=0.0)
    worst = [
        (entry.get("seen_lateness_s") or entry["lateness_s"])["p99"]
        for entry in summary["listeners"].values()
        if entry.get("seen_lateness_s") or entry["lateness_s"]
    ]
    tiles = [
        ("violations", f"{violations:,}", "early, missed, late, lost, duplicate", violations and "bad"),
        ("lateness, p99", seconds(max(worst)) if worst else "none", f"one tick is {seconds(tick)}", None),
        ("averted", f"{summary['averted']:,}", "spared at the last look", None),
    ]
    for name, timeout in list(advice["config"].get("timeouts", {}).items())[:2]:
        tiles.append((f"advised {name}", seconds(timeout["timeout_s"]), f"for {timeout['listener']}", None))
    cells = "".join(
        f'<div class="tile {style or ""}"><span>{escape(label)}</span><b>{escape(value)}</b>'
        f"<small>{escape(note)}</small></div>"
        for label, value, note, style in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _card(title: str, text: str, content: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2><p>{escape(text)}</p>{content}</section>'


def _table(head: list[str], rows: list[list[str]], numbers: set[int]) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in numbers else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells(head, "th")}</tr></thead><tbody>{lines}</tbody></table></div>'


def _violations(summary: dict[str, Any]) -> str:
    if not summary["reasons"]:
        return ""
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in summary["reasons"])
    rows = [[entry["verdict"], str(entry["conn"]), entry["story"]] for entry in summary["offenders"]]
    table = _table(["verdict", "connection", "story"], rows, set()) if rows else ""
    return f'<section class="card bad"><h2>Why</h2><ul>{reasons}</ul>{table}</section>'


def _lateness_text(charted: Charted) -> str:
    whose = "the client saw its last byte outlive the timeout" if charted.seen else "the reaper says it was due"
    return f"How long after {whose} each connection was closed. Left of zero would be early; one tick is allowed."


def _lateness_chart(charted: Charted) -> str:
    if not charted.lateness:
        return '<p class="none">Nothing was reaped.</p>'
    size = charted.tick * 2 / LATENESS_BINS
    most = max(n for _, n in charted.lateness)
    low, high = min(-2 * size, charted.lateness[0][0]), charted.tick * 2
    chart = Chart("Lateness of reaps", Axis(low, high, "lateness", seconds), Axis(0, most * 1.15, "reaps", count))
    chart.bars([(x, n) for x, n in charted.lateness if x < 0], size, "bad")
    chart.bars([(x, n) for x, n in charted.lateness if 0 <= x < charted.tick], size, "a", "within one tick")
    beyond = [(x, n) for x, n in charted.lateness if x >= charted.tick]
    chart.bars(beyond, size, "d", "beyond one tick" if beyond else "")
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
    chart = Chart("Open connections over time", Axis(0, last, "time", seconds), Axis(0, top, "connections", count))
    chart.area(open_now, "a", "open")
    chart.line(reaps, "d", f"reaped per {seconds(charted.width)}")
    chart.line(closes, "c", f"closed per {seconds(charted.width)}")
    return chart.svg()


def _advice(advice: dict[str, Any]) -> str:
    shown = [(name, entry) for name, entry in advice["listeners"].items() if entry["survival"]][: len(STYLES)]
    if not shown:
        return _card("Advice", "The log holds no silence that ended: nothing can be advised.", "")
    curves = [time for _, entry in shown for time, *_ in entry["survival"]]
    low, high = min(curves), max(max(curves), min(curves) * 10)
    survival = Chart(
        "Survival of silences", Axis(low, high, "silence", seconds, log=True), Axis(0, 1, "still silent", percent)
    )
    for (name, entry), style in zip(shown, STYLES, strict=False):
        rows = entry["survival"]
        survival.band([(t, lo) for t, _, lo, _ in rows], [(t, hi) for t, _, _, hi in rows], style, steps=True)
        survival.line([(t, level) for t, level, *_ in rows], style, name, steps=True)
        if (timeout := entry["recommendation"]["timeout_s"]) is not None and low <= timeout <= high:
            survival.mark(timeout, f"{name}: {seconds(timeout)}", f"mark {style}")
    trade = _trade_chart(shown, advice["policy"]["max_cut"])
    sentences = []
    for name, entry in shown:
        recommended = entry["recommendation"]
        timeout = recommended["timeout_s"]
        verdict = f"{seconds(timeout)}, tick {seconds(recommended['tick_s'])}" if timeout else "no recommendation"
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in recommended["because"])
        sentences.append(f"<h3>{escape(name)}: {escape(verdict)}</h3><ul>{reasons}</ul>")
    return (
        '<div class="grid2">'
        + _card(
            "How long silences last",
            "Share still silent after a time, with its 95 % interval (Kaplan-Meier).",
            survival.svg(),
        )
        + _card(
            "What each timeout would cost", "Share of returning silences cut, against connections held idle.", trade
        )
        + f'</div><section class="card"><h2>Advice</h2>{"".join(sentences)}</section>'
    )


def _trade_chart(shown: list[tuple[str, dict[str, Any]]], allowed: float) -> str:
    rows = [row for _, entry in shown for row in entry["trade_off"] if not row["beyond_what_was_seen"]]
    if not rows:
        return '<p class="none">No candidate timeout lies above the threshold of the log.</p>'
    lows, highs = min(row["mean_open"] for row in rows), max(row["mean_open"] for row in rows)
    floor = 1e-5
    chart = Chart(
        "Trade-off",
        Axis(min(lows, highs * 0.9) * 0.9, highs * 1.1 or 1.0, "connections open on average", count),
        Axis(floor, 1, "returning silences cut", percent, log=True),
    )
    for (name, entry), style in zip(shown, STYLES, strict=False):
        known = [row for row in entry["trade_off"] if not row["beyond_what_was_seen"]]
        chart.line([(row["mean_open"], max(row["silences_cut"], floor)) for row in known], style, name)
        for row in known:
            x, y = chart._xy(row["mean_open"], max(row["silences_cut"], floor))
            chart.layers.append(
                f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
                f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{seconds(row["timeout_s"])}</text>'
            )
    left, level = chart._xy(chart.x.low, allowed)
    right, _ = chart._xy(chart.x.high, allowed)
    chart.layers.append(f'<line class="allowed" x1="{left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"/>')
    chart.legend.append(("allowed", f"allowed: {percent(allowed)}"))
    return chart.svg()


def _drips(charted: Charted) -> str:
    if not charted.suspects:
        return ""
    rows = [
        [
            str(s["conn"]),
            s["listener"],
            str(s["activities"]),
            "not logged" if s["bytes"] is None else f"{s['bytes']:.1f}",
            percent(s["idle_share"]),
            seconds(s["held_s"]),
        ]
        for s in charted.suspects
    ]
    head = ["connection", "listener", "logged silences", "bytes each", "of its timeout", "held so"]
    text = "Kept open by some bytes shortly before each timeout. No idle timeout ends these; a deadline or a rate does."
    return _card("Slow drips", text, _table(head, rows, {2, 3, 4, 5}))


def _mass_table(charted: Charted) -> str:
    if not charted.mass:
        return ""
    rows = [[seconds(when) or "0 s", f"{reaps:,}", f"{back:,}"] for when, reaps, back in charted.mass]
    text = "Ticks that reaped far more than usual, and the openings that followed: a reconnect storm looks like both."
    return _card("Mass reaps", text, _table(["at", "reaped in one tick", "opened within five ticks"], rows, {0, 1, 2}))


def _verdict_table(summary: dict[str, Any]) -> str:
    rows = [[name, f"{n:,}", VERDICTS[name]] for name, n in summary["verdicts"].items() if n or name in VIOLATIONS]
    return _card(
        "Every verdict", "Each connection has exactly one.", _table(["verdict", "connections", "meaning"], rows, {1})
    )


def _fine_print(summary: dict[str, Any], advice: dict[str, Any]) -> str:
    settings, clock = summary["settings_s"], summary["clock"]
    stalls = f"{summary['stalls']['count']} stall(s) that were logged, {seconds(summary['stalls']['total_s'])} in all"
    ticks = ", ".join(seconds(tick) for tick in settings["tick"])
    aside, dropped = len(summary["files"]["quarantined"]), summary["dropped_rows"]
    notes = [
        f"Tick {ticks}; excused beyond it: {seconds(settings['grace'])} and the {stalls}.",
        f"Timeline: {clock['timeline']}; the wall clock was stepped {clock['wall_steps']} time(s).",
        f"{summary['files']['read']} file(s) read, {aside} put aside, {dropped} row(s) dropped by the writers.",
        *advice["notes"],
        f"Made {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by python -m reaper.pipeline report.",
    ]
    return "<footer>" + "".join(f"<p>{escape(note)}</p>" for note in notes) + "</footer>"
