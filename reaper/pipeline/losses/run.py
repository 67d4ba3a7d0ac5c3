"""The requests of a proxy's log, the silence before each on its connection to the
server, and those that were lost to an idle close.

A proxy that keeps connections takes the one that was used last. So its pool is a stack:
the answer that put a connection back, and the request that took it, are a pair of
brackets. Counting brackets tells the pairs, and a pair tells the silence; no log names
the connection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...config.balancers import BALANCERS
from ...errors import printable
from ...html.units import spoken
from ..advise.access_logs import OBJECT, SHOWN, SHOWN_CHARACTERS, field_of, instant, scaled
from ..engine import F, Window, here
from ..places import Place
from .formats import KNOWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = "reaper-losses/1"

ANSWERED, LOST, FAILED = "answered", "lost", "failed"
"""Outcomes: `lost` is one whose server closed at once, instead of answering."""

AT_ONCE_S = 0.5
"""A close and a request that crossed meet within a round trip. A server that closes
later had begun to work on it.
"""

BAND = 0.1
BAND_S = 0.5
"""An idle close comes after the same silence each time, give or take this."""

MARGIN_S = 5.0
"""By how much the server's keep-alive must outlast the proxy's."""

MOST = 100_000
"""Lost requests whose silences are looked at."""

REQUESTS: pa.Schema = pa.schema(
    [
        ("upstream", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("silence_ns", pa.int64()),
        ("outcome", pa.string()),
    ]
)
"""The columns of `losses`. Grain: one row per request that went to a server. Unix ns;
silence_ns: before it on its connection, null on a new one.
"""


def parsed(lines: DataFrame, name: str) -> DataFrame:
    """*lines* (`value`) of format *name*: upstream, start_ns, end_ns, outcome, saved,
    and `kind`: 0, a request that went to a server; 1, one that went to none or is
    logged twice, or the server's own line; 2, a line in no known form.
    """
    known, line = KNOWN[name], F.col("value")

    def field(label: str) -> Column:
        return field_of(known.request, line, label)

    def all_match(patterns: Sequence[tuple[str, str]]) -> Column:
        found = F.lit(True)
        for label, pattern in patterns:
            found = found & F.coalesce(field(label).rlike(pattern), F.lit(False))
        return found

    length = scaled(field(known.length), known.unit_ns) if known.length else F.lit(0).cast("long")
    if known.start and known.end:
        start, end = (
            instant(field(known.start), known.clock),
            instant(field(known.end), known.clock),
        )
    elif known.start:
        start = instant(field(known.start), known.clock)
        end = start + length
    else:
        end = instant(field(known.end), known.clock)
        start = end - length
    asked = scaled(field(known.took), 10**9) if known.took else end - start
    form = line.rlike(known.request or OBJECT)
    timed = form & F.coalesce(start.between(0, end), F.lit(False))
    own = line.rlike(known.own) if known.own else F.lit(False)
    twice = line.rlike(known.twice) if known.twice else F.lit(False)
    upstream = F.concat_ws("/", *map(field, known.upstream))
    named = field(known.upstream[0])
    # "-" (nginx) and "<NOSRV>" (HAProxy): the proxy answered by itself.
    no_server = named.isNull() | named.isin("-", "<NOSRV>")
    at_once = F.coalesce(asked <= round(AT_ONCE_S * 1e9), F.lit(False))
    outcome = (
        F.when(all_match(known.lost) & at_once, LOST)
        .when(all_match(known.failed), FAILED)
        .otherwise(ANSWERED)
    )
    kind = F.when(timed & (no_server | twice), 1).when(timed, 0).when(own, 1).otherwise(2)
    return lines.select(
        "value",
        upstream.alias("upstream"),
        start.alias("start_ns"),
        end.alias("end_ns"),
        outcome.alias("outcome"),
        (line.rlike(known.saved) if known.saved else F.lit(False)).alias("saved"),
        kind.alias("kind"),
    )


def with_silence(requests: DataFrame) -> DataFrame:
    """*requests* (upstream, start_ns, end_ns, outcome) as `REQUESTS`.

    A request takes the connection that was put back last; one that was lost puts none
    back.
    """
    taken = requests.select(
        "upstream",
        "start_ns",
        "end_ns",
        "outcome",
        F.col("start_ns").alias("t"),
        F.lit(-1).alias("up"),
    )
    back = requests.where(F.col("outcome") != LOST).select(
        "upstream",
        "start_ns",
        "end_ns",
        "outcome",
        F.col("end_ns").alias("t"),
        F.lit(1).alias("up"),
    )
    # At one instant a connection is put back before one is taken.
    order = Window.partitionBy("upstream").orderBy("t", F.desc("up"), "start_ns", "end_ns")
    sofar = order.rowsBetween(Window.unboundedPreceding, 0)
    placed = taken.unionByName(back).withColumn("depth", F.sum("up").over(sofar))
    # Brackets: an answer opens one at its depth after itself, and the request that
    # closes it finds the depth one lower.
    level = F.when(F.col("up") == 1, F.col("depth")).otherwise(F.col("depth") + 1)
    pair = Window.partitionBy("upstream", "level").orderBy("t", F.desc("up"), "start_ns", "end_ns")
    paired = placed.withColumn("level", level).withColumns(
        {"before": F.lag("t").over(pair), "before_up": F.lag("up").over(pair)}
    )
    # Where no answer put a connection back at this level, the request opened a new one.
    silence = F.when(F.col("before_up") == 1, F.col("t") - F.col("before"))
    return paired.where("up = -1").select(
        "upstream", "start_ns", "end_ns", silence.alias("silence_ns"), "outcome"
    )


def losses(
    spark: SparkSession,
    name: str,
    paths: Sequence[Place],
    idle_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Ask the logs *paths* of format *name*; returns what goes to JSON.

    Args:
        idle_s: How long the proxy keeps an idle connection to a server; None: its
            default.
    """
    known = KNOWN[name]
    lines = here().read_lines(spark, paths).where(F.trim("value") != "")
    rows = parsed(lines, name).persist()
    told = F.col("value").rlike(known.closes) if known.closes else F.lit(False)
    (counts,) = rows.agg(
        F.count(F.lit(1)).alias("lines"),
        F.count(F.when(F.col("kind") == 2, 1)).alias("bad"),
        F.count(F.when(F.col("kind") == 1, 1)).alias("own"),
        F.count(F.when((F.col("kind") == 1) & told, 1)).alias("closes"),
    ).collect()
    notes, apart = [f"{name} logs do not show {known.blind}"], []
    if bad := counts.bad:
        shown = rows.where("kind = 2").select("value").limit(SHOWN).collect()
        examples = "; ".join(repr(row.value[:SHOWN_CHARACTERS]) for row in shown)
        reason = (
            f"{bad} of {counts.lines} line(s) are not in {name} format: {examples}; a line of it is "
            f"{known.example!r}; to have it: {known.how}"
        )
        apart.append({"path": ", ".join(map(str, paths)), "reason": reason})
    if counts.closes:
        notes.append(
            f"{counts.closes:,} line(s) of the error log tell of a server that closed without an "
            "answer, tries that were repeated among them"
        )
    progress("pairing requests with the connections that they took")
    requests = rows.where("kind = 0")
    silent = with_silence(requests.drop("value", "saved", "kind"))
    of_each = (
        requests.groupBy("upstream")
        .agg(
            F.count(F.lit(1)).alias("requests"),
            F.count(F.when(F.col("outcome") == FAILED, 1)).alias("failed"),
            F.count(F.when(F.col("saved"), 1)).alias("saved"),
        )
        .collect()
    )
    suspects: dict[str, list[float | None]] = {}
    for row in silent.where(F.col("outcome") == LOST).limit(MOST).collect():
        silence = None if row.silence_ns is None else row.silence_ns / 1e9
        suspects.setdefault(row.upstream, []).append(silence)
    upstreams = {}
    for row in sorted(of_each, key=lambda each: (-each.requests, each.upstream)):
        band = idle_band(suspects.get(row.upstream, []))
        upstreams[row.upstream] = {
            "requests": row.requests,
            "lost": len(band),
            "silence_s": [min(band), max(band)] if band else None,
            "untold": len(suspects.get(row.upstream, [])) - len(band),
            "failed_otherwise": row.failed,
            "saved_by_another_try": row.saved,
        }
    lost = sum(entry["lost"] for entry in upstreams.values())
    untold = sum(entry["untold"] for entry in upstreams.values())
    idle = BALANCERS[known.balancer].idle if idle_s is None else idle_s
    return {
        "schema": SCHEMA,
        "source": name,
        "lines": counts.lines,
        "lines_of_the_server": counts.own,
        "requests": sum(entry["requests"] for entry in upstreams.values()),
        "lost": lost,
        "untold": untold,
        "upstreams": upstreams,
        "proxy_idle_s": idle,
        "keep_alive_s": idle + MARGIN_S if lost else None,
        "quarantined": apart,
        "notes": notes,
        "result": "fail"
        if lost
        else "inconclusive"
        if apart or untold or not upstreams
        else "pass",
    }


def idle_band(silences: Sequence[float | None]) -> list[float]:
    """Those of *silences* that lie in the band with the most of them: a server closes
    after the same silence each time. A new connection (None) cannot have been idle.
    """
    known = sorted(each for each in silences if each is not None)
    best = (0, 0)
    # Each value in turn as the least of a band; the band with the most values wins.
    for at, low in enumerate(known):
        to = bisect_right(known, low + max(BAND_S, BAND * low))
        if to - at > best[1] - best[0]:
            best = (at, to)
    return known[best[0] : best[1]]


def as_text(summary: dict[str, Any]) -> str:
    """The answer as a table to read."""
    counted = f"{summary['lost']:,} of {summary['requests']:,} requests lost to an idle close"
    lines = [f"{summary['source']}: {counted}"]
    lines += [f"  note: {note}" for note in summary["notes"]]
    lines += [f"  {entry['path']}: {entry['reason']}" for entry in summary["quarantined"]]
    if not summary["upstreams"]:
        lines.append("no request that went to a server was found")
    for name, entry in summary["upstreams"].items():
        text = f"{name}: {entry['requests']:,} requests"
        if entry["lost"]:
            low, high = map(spoken, entry["silence_s"])
            text += f", {entry['lost']:,} lost after silences of {low} to {high}"
        if entry["saved_by_another_try"]:
            text += f", {entry['saved_by_another_try']:,} answered at another try"
        if entry["failed_otherwise"]:
            text += f", {entry['failed_otherwise']:,} failed in another way"
        if entry["untold"]:
            text += (
                f", {entry['untold']:,} untold: the server closed at once, but not after the same "
                "silence"
            )
        lines.append(text)
    if summary["keep_alive_s"] is not None:
        idle, wanted = spoken(summary["proxy_idle_s"]), f"{summary['keep_alive_s']:g}s"
        lines += [
            "",
            f"The proxy keeps an idle connection for {idle}; the server closes it before.",
        ]
        lines.append(f'keep_alive = "{wanted}" at the server ends it.')
    return "\n".join(map(printable, lines))
