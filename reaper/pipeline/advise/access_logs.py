"""Access logs that users already have, as silences. What a format cannot show is said in its `blind`.

Each parser gives one row per request: key (of the connection, or of the client where the format knows no connection),
start_ns, end_ns, serial (number of the request on its connection, null where unknown), listener. A silence runs from
the end of one request to the start of the next; the last one of a key is censored. Lines that do not parse are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

Parser = Callable[[Column], dict[str, Column]]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of access log."""

    parse: Parser
    wanted: str
    """What the server must be told to write."""
    blind: str
    """What it cannot show."""
    connections: bool
    """Whether it tells connections apart; otherwise silences are clients'."""


def _seconds_ns(text: Column) -> Column:
    # By way of decimal: a double would cost a microsecond at today's Unix time.
    return (text.cast("decimal(20,6)") * F.lit(1_000_000_000)).cast("long")


def _date_ns(text: Column, pattern: str) -> Column:
    return F.unix_micros(F.try_to_timestamp(text, F.lit(pattern))) * F.lit(1000)


def _nginx(line: Column) -> dict[str, Column]:
    pattern = r"^(\d+\.\d+) (\d+) (\d+) (\d+\.\d+)\s*$"

    def part(group: int) -> Column:
        return F.nullif(F.regexp_extract(line, pattern, group), F.lit(""))

    end = _seconds_ns(part(1))
    return {
        "key": F.xxhash64(part(2)),
        "start_ns": end - _seconds_ns(part(4)),
        "end_ns": end,
        "serial": part(3).cast("long"),
        "listener": F.lit("http"),
    }


def _haproxy(line: Column) -> dict[str, Column]:
    pattern = r"(\S+:\d+) \[([^\]]+)\] (\S+?)~? \S+ -?\d+/-?\d+/-?\d+/-?\d+/\+?(\d+) "

    def part(group: int) -> Column:
        return F.nullif(F.regexp_extract(line, pattern, group), F.lit(""))

    start = _date_ns(part(2), "dd/MMM/yyyy:HH:mm:ss.SSS")
    return {
        "key": F.xxhash64(part(1), part(3)),
        "start_ns": start,
        "end_ns": start + part(4).cast("long") * F.lit(1_000_000),
        "serial": F.lit(None).cast("long"),
        "listener": part(3),
    }


def _envoy(line: Column) -> dict[str, Column]:
    def member(name: str) -> Column:
        return F.get_json_object(line, f"$.{name}")

    start = F.unix_micros(F.try_to_timestamp(member("start_time"))) * F.lit(1000)
    return {
        "key": F.xxhash64(member("connection_id")) + F.lit(0) * member("connection_id").try_cast("long"),
        "start_ns": start,
        "end_ns": start + (member("duration").try_cast("double") * F.lit(1e6)).cast("long"),
        "serial": F.lit(None).cast("long"),
        "listener": F.coalesce(member("listener"), F.lit("http")),
    }


def _combined(line: Column) -> dict[str, Column]:
    pattern = r'^(\S+) \S+ \S+ \[([^\]]+)\] "[^"]*" \d{3} \S+(?: "[^"]*" "([^"]*)")?'

    def part(group: int) -> Column:
        return F.nullif(F.regexp_extract(line, pattern, group), F.lit(""))

    when = _date_ns(part(2), "dd/MMM/yyyy:HH:mm:ss Z")
    return {
        "key": F.xxhash64(part(1), F.coalesce(part(3), F.lit(""))),
        "start_ns": when,
        "end_ns": when,
        "serial": F.lit(None).cast("long"),
        "listener": F.lit("http"),
    }


FORMATS = {
    "nginx": Format(
        _nginx,
        "log_format reaper '$msec $connection $connection_requests $request_time';",
        "connections that never sent a request, when a connection was closed and by whom; the last silence of each "
        "is taken as censored by the timeout in force",
        True,
    ),
    "haproxy": Format(
        _haproxy,
        "option httplog",
        "when a connection was closed and by whom; a client port that was used again after the timeout in force "
        "counts as a new connection",
        True,
    ),
    "envoy": Format(
        _envoy,
        'json_format: {start_time: "%START_TIME%", duration: "%DURATION%", connection_id: "%CONNECTION_ID%"}',
        "when a connection was closed and by whom",
        True,
    ),
    "combined": Format(
        _combined,
        "the combined format of Apache and nginx",
        "connections: silences are those of a client address and agent, to one second; a client with several "
        "connections looks busier than each of them is, so what is advised is too short rather than too long",
        False,
    ),
}


def read_requests(spark: SparkSession, name: str, paths: list[Path]) -> tuple[DataFrame, int]:
    """The requests of access logs in format *name*, and how many lines could not be read.

    Grain: one row per request; key long, start_ns and end_ns in Unix ns, serial long or null, listener.
    """
    lines = spark.read.text([str(path.resolve()) for path in paths]).where(F.trim("value") != "")
    parsed = lines.select(*(column.alias(label) for label, column in FORMATS[name].parse(F.col("value")).items()))
    good = F.col("key").isNotNull() & F.col("start_ns").isNotNull() & F.col("end_ns").isNotNull()
    bad = parsed.where(~good).count()
    return parsed.where(good), bad


def silences(requests: DataFrame, timeout_ns: int, *, connections: bool) -> DataFrame:
    """The silences between *requests*: key, listener, at_ns (when it began), idle_ns, returned.

    Grain: one row per silence. The one window of the pipeline: these logs do not carry the silence in the row.

    Args:
        requests: As from `read_requests`.
        timeout_ns: In force when they were written; a silence beyond it cannot have been on one connection.
        connections: Whether the key is a connection's. A client's silences end only with the log.
    """
    order = Window.partitionBy("key").orderBy("end_ns", "start_ns")
    log_end = requests.agg(F.max("end_ns").alias("log_end_ns"))
    following = requests.select(
        "key",
        "listener",
        "end_ns",
        F.lead("start_ns").over(order).alias("next_ns"),
        (F.lead("serial").over(order) == F.col("serial") + 1).alias("adjacent"),
    ).crossJoin(F.broadcast(log_end))
    gap = F.greatest(F.col("next_ns") - F.col("end_ns"), F.lit(0))
    most = F.lit(timeout_ns) if connections else F.lit(1 << 62)
    returned = F.col("next_ns").isNotNull() & F.coalesce("adjacent", F.lit(True)) & (gap <= most)
    cut = F.least(most, F.col("log_end_ns") - F.col("end_ns"))
    return following.select(
        "key",
        "listener",
        F.col("end_ns").alias("at_ns"),
        F.when(returned, gap).otherwise(cut).alias("idle_ns"),
        returned.alias("returned"),
    )
