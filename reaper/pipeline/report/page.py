"""The report: one HTML file that opens offline. Spark has counted; this module only lays out.

The verdict is read in ten seconds, the evidence by scrolling.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from ..audit.run import OFFENDERS_PER_VERDICT
from ..audit.verdicts import VERDICTS, VIOLATIONS
from ..html.charts import Axis, Chart, count, percent, seconds
from ..html.parts import STYLES, Tile, card, document, footer, grid, header, made_by, table, tiles, warning
from .run import LATENESS_TICKS, Charted

TITLES = {
    "pass": "The law of time held",
    "fail": "The law of time was broken",
    "inconclusive": "Inconclusive: not everything could be judged",
}


def folded(rows: list[list[str]], name: int) -> list[list[str]]:
    """*rows*, those that are equal but for their figures as the first of them, with how many more like it there are.

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
    """The page."""
    passed = summary["result"] == "pass"
    title = TITLES[summary["result"]]
    whose = "its client" if charted.seen else "the server"
    late = f"How long after its timeout each connection was closed, as {whose} saw it. One tick is allowed."
    body = [
        header(passed, "reaper audit", title, _subtitle(summary)),
        _tiles(summary, advice),
        _violations(summary),
        grid(
            [
                card("Lateness against the tick", late, _lateness_chart(charted)),
                card("Open connections over time", "All open connections, and what ended them.", _time_chart(charted)),
            ]
        ),
        _advice(advice),
        _drips(charted),
        _mass_table(charted),
        _verdict_table(summary),
        _fine_print(summary, advice),
    ]
    return document(f"reaper: {title}", body)


def _subtitle(summary: dict[str, Any]) -> str:
    text = f"{summary['connections']:,} connections judged, {summary['verdicts']['ok_reaped']:,} reaped in time"
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
        ("violations", f"{violations:,}", "early, missed, late, lost, duplicate", "bad" if violations else ""),
        ("lateness, p99", seconds(max(worst)) if worst else "none", f"one tick is {seconds(tick)}", ""),
        ("averted", f"{summary['averted']:,}", "spared by the final check", ""),
    ]
    for name, timeout in list(advice["config"].get("timeouts", {}).items())[:2]:
        shown.append((f"advised {name}", seconds(timeout["timeout_s"]), f"for {timeout['listener']}", ""))
    return tiles(shown)


def _violations(summary: dict[str, Any]) -> str:
    if not summary["reasons"]:
        return ""
    rows = [[entry["verdict"], str(entry["conn"]), entry["where"], entry["story"]] for entry in summary["offenders"]]
    stories = (
        table(
            ["verdict", f"of the first {OFFENDERS_PER_VERDICT} connections", "where", "story"], folded(rows, 1), set()
        )
        if rows
        else ""
    )
    return warning("Why", summary["reasons"], stories)


def _lateness_chart(charted: Charted) -> str:
    if not charted.lateness:
        return '<p class="none">Nothing was reaped.</p>'
    size, last = charted.slice, LATENESS_TICKS * charted.tick
    most = max(n for _, n in charted.lateness)
    low, high = min(-size, charted.lateness[0][0]), max(charted.tick * 1.15, charted.lateness[-1][0] + size)
    chart = Chart("Lateness of reaps", Axis(low, high, "lateness", seconds), Axis(0, most * 1.15, "reaps", count))
    early = [(x, n) for x, n in charted.lateness if x < 0]
    chart.bars(early, size, "bad", "early" if early else "")
    chart.bars([(x, n) for x, n in charted.lateness if 0 <= x < charted.tick], size, "a", "within one tick")
    beyond = [(x, n) for x, n in charted.lateness if x >= charted.tick]
    more = f"; the last bar: {seconds(last)} and more" if beyond and beyond[-1][0] >= last * 0.999 else ""
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
    chart = Chart("Open connections over time", Axis(0, last, "time", seconds), Axis(0, top, "connections", count))
    chart.area(open_now, "a", "open")
    chart.line(reaps, "d", f"reaped per {seconds(charted.width)}")
    chart.line(closes, "c", f"closed per {seconds(charted.width)}")
    return chart.svg()


def _advice(advice: dict[str, Any]) -> str:
    shown = [(name, entry) for name, entry in advice["listeners"].items() if entry["survival"]][: len(STYLES)]
    if not shown:
        return card("Advice", "The log holds no silence that ended: nothing can be advised.", "")
    times = [time for _, entry in shown for time, *_ in entry["survival"]]
    high = max(max(times), min(times) * 10)
    low = max(min(times), high / 10_000)
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
                "How many silences are not over after so long. Shaded: the 95 % interval. Dashed: what is advised.",
                survival.svg(),
            ),
            card(
                "What each timeout would cost",
                "Each dot is a timeout: the further right, the more it holds; the lower, the fewer it cuts wrongly.",
                trade,
            ),
        ]
    ) + card("Advice", "", "".join(sentences))


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
            chart.dot(row["mean_open"], max(row["silences_cut"], floor), style, seconds(row["timeout_s"]))
    chart.level(allowed, "allowed", f"allowed: {percent(allowed)}")
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
            f"{s['idle_share']:.0%}",
            seconds(s["held_s"]),
        ]
        for s in charted.suspects
    ]
    head = ["connection", "listener", "logged silences", "bytes each", "of its timeout", "held so"]
    text = "Kept open by some bytes shortly before each timeout. No idle timeout ends these; a deadline or a rate does."
    return card("Slow drips", text, table(head, folded(rows, 0), {2, 3, 4, 5}))


def _mass_table(charted: Charted) -> str:
    if not charted.mass:
        return ""
    rows = [[seconds(when), f"{reaps:,}", f"{back:,}"] for when, reaps, back in charted.mass]
    text = "Ticks that reaped far more than usual, and the openings that followed: a reconnect storm looks like both."
    return card("Mass reaps", text, table(["at", "reaped in one tick", "opened within five ticks"], rows, {0, 1, 2}))


def _verdict_table(summary: dict[str, Any]) -> str:
    rows = [[name, f"{n:,}", VERDICTS[name]] for name, n in summary["verdicts"].items() if n or name in VIOLATIONS]
    return card(
        "Every verdict", "Each connection has exactly one.", table(["verdict", "connections", "meaning"], rows, {1})
    )


def _fine_print(summary: dict[str, Any], advice: dict[str, Any]) -> str:
    settings, clock = summary["settings_s"], summary["clock"]
    stalls = f"{summary['stalls']['count']} stall(s) that were logged, {seconds(summary['stalls']['total_s'])} in all"
    ticks = ", ".join(seconds(tick) for tick in settings["tick"])
    aside, dropped = len(summary["files"]["quarantined"]), summary["dropped_rows"]
    notes = [
        f"Tick {ticks}; excused beyond it: {seconds(settings['grace'])} and the {stalls}.",
        f"Timeline: {clock['timeline']}.",
        f"{summary['files']['read']} file(s) read, {aside} put aside, {dropped} row(s) dropped by the writers.",
        *advice["notes"],
        made_by("report"),
    ]
    return footer(notes)
