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
from ..advise.access_logs import (
    OBJECT,
    SHOWN,
    SHOWN_CHARACTERS,
    field_of,
    is_own,
    scaled,
    stranger,
    times,
)
from ..engine import F, Window, here
from ..places import Place
from .formats import KNOWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = "reaper-losses/1"

ANSWERED, LOST, FAILED = "answered", "lost", "failed"
"""Outcomes: `lost` is one whose server closed at once, instead of answering."""

ASKED, UNASKED, TWICE, OWN, BAD = range(5)
"""Kinds of lines: a request that went to a server; one that the proxy answered by
itself; one that another line describes better; a report of the proxy about itself; a
line in no known form.
"""

EXCUSED = {
    UNASKED: "answered by the proxy itself",
    TWICE: "told by another line",
    OWN: "no request",
}
"""Why a line is not counted, in words."""

_LAST_TRY = r"([^ ,]*)$"
"""nginx parts tries by commas, and groups of servers by colons between blanks."""

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
    and `kind`, one of the numbers of `ASKED`.
    """
    known, line = KNOWN[name], F.col("value")

    def field(label: str) -> Column:
        found = field_of(known.request, line, label)
        return F.nullif(F.regexp_extract(found, _LAST_TRY, 1), F.lit("-")) if known.tries else found

    def all_match(patterns: Sequence[tuple[str, str]]) -> Column:
        found = F.lit(True)
        for label, pattern in patterns:
            found = found & F.coalesce(field(label).rlike(pattern), F.lit(False))
        return found

    start, end = times(known, field)
    asked = scaled(field(known.took), 10**9) if known.took else end - start
    form = line.rlike(known.request or OBJECT)
    own = is_own(known, line)
    timed = form & ~own & F.coalesce(start.between(0, end), F.lit(False))
    twice = line.rlike(known.twice) if known.twice else F.lit(False)
    upstream = F.concat_ws("/", *map(field, known.upstream))
    named = field(known.upstream[0])
    # "-" (nginx) and "<NOSRV>" (HAProxy): the proxy answered by itself.
    no_server = named.isNull() | named.isin("-", "", "<NOSRV>")
    whole = F.lit(True)
    if not known.request:
        # A member that is left out says nothing: neither that no server was asked, nor
        # that none closed.
        asking = {label for label, _ in (*known.lost, *known.failed)}
        for label in sorted(asking | ({known.upstream[0]} if known.served is None else set())):
            whole = whole & line.rlike(rf'"(?:{_members(label)})"\s*:')
    if known.served is not None:
        whole = whole & ~(named.isNull() & line.rlike(known.served))
    at_once = F.coalesce(asked <= round(AT_ONCE_S * 1e9), F.lit(False))
    outcome = (
        F.when(all_match(known.lost) & at_once, LOST)
        .when(all_match(known.failed), FAILED)
        .otherwise(ANSWERED)
    )
    kind = (
        F.when(own, OWN)
        .when(~(timed & whole), BAD)
        .when(twice, TWICE)
        .when(no_server, UNASKED)
        .otherwise(ASKED)
    )
    return lines.select(
        "value",
        upstream.alias("upstream"),
        start.alias("start_ns"),
        end.alias("end_ns"),
        outcome.alias("outcome"),
        (line.rlike(known.saved) if known.saved else F.lit(False)).alias("saved"),
        kind.alias("kind"),
    )


def _members(label: str) -> str:
    """The names of the JSON members that the field *label* may be, as a pattern."""
    return "|".join(each.rpartition(".")[2] for each in label.split("|"))


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
        *(F.count(F.when(F.col("kind") == kind, 1)).alias(f"of_{kind}") for kind in EXCUSED),
        F.count(F.when(F.col("kind") == BAD, 1)).alias("bad"),
        F.count(F.when((F.col("kind") == OWN) & told, 1)).alias("closes"),
    ).collect()
    excused = {words: counts[f"of_{kind}"] for kind, words in EXCUSED.items()}
    notes, apart = [f"{name} logs do not show {known.blind}"], []
    if bad := counts.bad:
        shown = rows.where(F.col("kind") == BAD).select("value").limit(SHOWN).collect()
        examples = "; ".join(repr(row.value[:SHOWN_CHARACTERS]) for row in shown)
        reason = (
            f"{bad} of {counts.lines} line(s) are not in {name} format: {examples}; a line of it is "
            f"{known.example!r}; to have it: {known.how}{stranger([row.value for row in shown])}"
        )
        apart.append({"path": ", ".join(map(str, paths)), "reason": reason})
    if counts.closes:
        notes.append(
            f"{counts.closes:,} line(s) of the error log tell of a server that closed without an "
            "answer, tries that were repeated among them"
        )
    progress("pairing requests with the connections that they took")
    requests = rows.where(F.col("kind") == ASKED)
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
        "lines_of_the_server": sum(excused.values()),
        "lines_excused": excused,
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
    found = [f"{count:,} {words}" for words, count in summary["lines_excused"].items() if count]
    excused = f"; of {summary['lines']:,} lines {', '.join(found)}" if found else ""
    lines = [f"{summary['source']}: {counted}{excused}"]
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
