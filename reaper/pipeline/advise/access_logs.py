"""Access logs that users already have, as silences.

The rule of this module: *a silence is one connection's, or is said to be less*. Of each
request there is one row: key (of the connection, or of the client where the format
knows no connection), start_ns, end_ns, serial (number of the request on its connection,
null where unknown), listener. A silence runs from the end of one request to the start
of the next; one beyond the timeout in force cannot have been on one connection, so
there a new one begins. *A line is a request, a report of the server about itself, or
bad*; bad ones are shown. docs/pipeline.md says how to write a log. The patterns repeat
no group, so that no line, however long, is too deep for Java.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments import Fault
from ..engine import F, Window, here
from ..places import Place, Remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN = 3
"""Bad lines that are shown."""

SHOWN_CHARACTERS = 80

GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""

OBJECT = r"^\s*\{.*\}\s*$"
"""A JSON object that is all of its line. Spark itself would read the first object of
`{...},` too.
"""

HTTP = "http"
"""The listener of a request that names none."""

UNIX, ISO, EITHER = "unix", "iso", "either"
"""Clocks of a log beside those that a pattern describes: seconds since 1970, and
ISO 8601.
"""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of access log. A field is the number of a group of `request`, or the
    path of a member of a JSON object; `a|b` is the first of them that has a value.
    """

    blind: str
    """What such a log cannot show."""
    example: str
    """An example of a line."""
    how: str
    """How to have the server write such lines."""
    key: tuple[str, ...]
    """Fields that identify the connection. If the first is missing, the request has
    none.
    """
    clock: str
    """How start and end are written: `UNIX`, `ISO`, or a pattern of Java's."""
    start: str = ""
    """Field of the instant at which the request began. A format has two of start, end
    and length; if it has one, start and end are the same.
    """
    end: str = ""
    length: str = ""
    """Field of how long the request took."""
    unit_ns: int = 1
    """The unit of the length."""
    serial: str = ""
    """Number of the request on its connection."""
    listener: str = ""
    request: str = ""
    """A request, as a regular expression; empty: the line is JSON."""
    own: str | None = None
    """A report of the server about itself, in the same file; None: there are none."""
    local: bool = False
    """Whether it logs local time without an offset: one hour of the year is there
    twice.
    """


_TIME = r"\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2}"

MS = 1_000_000

_CLOSES = "when a connection was closed and by which side"
_PORTS = "a client port that was used again after the timeout in force counts as a new connection"

_HAPROXY_REPORTS = (
    r"\[(?:NOTICE|WARNING|ALERT|DIAG)\s*\]",
    r"(?:Proxy|Server|Backup Server|Frontend|Backend) \S+ (?:started|stopped|is |was )",
    r"(?:Health|Agent) check for ",
    r"(?:backend|proxy|frontend) \S+ (?:has no|started|stopped)",
    r"(?:Starting|Stopping|Pausing|Resuming|Enabling|Disabling) ",
    r"(?:Connect from|Exiting|Reloading|Reexecuting|Loading|New worker|New program|Former worker|Current worker) ?",
    r"(?:All workers exited|Loading success|Running on|Ready|Gracefully)",
    r"\S+:\d+ \[[^\]]+\] [^\s/]+/\S+: ",
)

FORMATS = {
    "nginx": Format(
        "connections that never sent a request, when a connection was closed and by which side; "
        "the last silence of each is taken as cut by the timeout in force",
        "1790000000.123 17 2 0.005",
        "log_format reaper '$msec $connection $connection_requests $request_time'; and "
        "access_log /var/log/nginx/reaper.log reaper;",
        request=r"^(\d{1,12}\.\d{1,6}) (\d{1,18}) (\d{1,18}) (\d{1,9}\.\d{1,6})\s*$",
        key=("2",),
        clock=UNIX,
        end="1",
        length="4",
        unit_ns=10**9,
        serial="3",
    ),
    "columns": Format(
        f"{_CLOSES}; connections that never sent a request",
        "1790000000.123 10.0.0.1:4711 2 0.005",
        "print four columns, for example with awk: when the request ended (seconds since 1970, or "
        "ISO 8601), the connection, the number of the request on it or -, how many seconds it took "
        "or -",
        request=r"^([^\s,]+)[\s,]+([^\s,]+)[\s,]+(\d{1,18}|-)[\s,]+(\d{1,9}|\d{1,9}\.\d{1,9}|-)\s*$",
        key=("2",),
        clock=EITHER,
        end="1",
        length="4",
        unit_ns=10**9,
        serial="3",
    ),
    "haproxy": Format(
        f"{_CLOSES}; {_PORTS}",
        "haproxy[9]: 10.0.0.1:4711 [21/Sep/2026:14:13:20.123] web app/s1 0/0/0/1/5 200 99 - - "
        '---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"',
        "option httplog",
        local=True,
        request=rf"(\S+:\d+) \[({_TIME}\.\d{{3}})\] (\S+?)~? \S+ -?\d+/-?\d+/-?\d+/-?\d+/\+?(\d+) -?\d+ ",
        key=("1", "3"),
        clock="dd/MMM/yyyy:HH:mm:ss.SSS",
        start="2",
        length="4",
        unit_ns=MS,
        listener="3",
        own=rf"(?:haproxy\[\d+\]: |^)(?:{'|'.join(_HAPROXY_REPORTS)})",
    ),
    "envoy": Format(
        _CLOSES,
        '{"start_time": "2026-09-21T14:13:20.123Z", "duration": 5, "connection_id": 17}',
        "a json_format with start_time: %START_TIME%, duration: %DURATION%, connection_id: "
        "%CONNECTION_ID%",
        key=("connection_id|downstream_remote_address",),  # Istio's own JSON has no connection_id
        clock=ISO,
        start="start_time",
        length="duration",
        unit_ns=MS,
        listener="listener",
    ),
    "traefik": Format(
        f"{_CLOSES}; {_PORTS}",
        '{"ClientAddr": "10.0.0.1:4711", "StartUTC": "2026-09-21T14:13:20.123Z", "Duration": '
        "5000000}",
        "accessLog: {format: json}",
        key=("ClientAddr",),
        clock=ISO,
        start="StartUTC",
        length="Duration",
        listener="entryPointName",
        own=r'^\{.*"(?:level|msg|message)":',
    ),
    "caddy": Format(
        f"{_CLOSES}; {_PORTS}",
        '{"ts": 1790000000.123, "request": {"remote_ip": "10.0.0.1", "remote_port": "4711"}, '
        '"duration": 0.005}',
        "log { format json }",
        key=("request.remote_ip", "request.remote_port"),
        clock=UNIX,
        end="ts",
        length="duration",
        unit_ns=10**9,
        own=r'^\{"level":"\w+","ts":[\d.e+]+,(?:"msg"|"logger":"(?:admin|tls|pki|events|http(?:"|\.[a-km-z]|\.log\.error)))',
    ),
    "alb": Format(
        f"{_CLOSES}; of entries without a conn_trace_id {_PORTS}",
        "https 2026-09-21T14:13:20.123456Z app/name/50dc6c495c0c9188 10.0.0.1:4711 10.0.1.1:80 "
        '0.000 0.005 0.000 200 200 34 366 "GET https://example.com:443/ HTTP/1.1" ... TID_12ab',
        "the access logs of the load balancer, as they lie in their bucket",
        # type, time, balancer, client:port, ...: the time is that of the answer
        request=r'^(?:https?|h2|grpcs?|wss?) (\S+Z) \S+ (\S+:\d+) .*" (?:-|-?\d+) (\S+Z) "[^"]*".*?(?: (TID_\w+))?\s*$',
        key=("4|2",),
        clock=ISO,
        start="3",
        end="1",
    ),
    "combined": Format(
        "connections: silences are those of a client address and agent, to one second, and one "
        "beyond the timeout in force counts as a new connection. Several connections of one "
        "client look like one that is busier; requests that came on a new connection look like a "
        "silence that ended. What is advised may be too short or too long",
        '10.0.0.1 - - [21/Sep/2026:14:13:20 +0000] "GET / HTTP/1.1" 200 12 "-" "curl/8"',
        "the combined format of nginx and Apache, their default",
        # Lazy up to the status: a request or an agent may hold escaped quotes, a user
        # spaces.
        request=rf'^(?:\S+:\d{{1,5}} ([^-\s]\S*)|(\S+)) \S+ .*?\[({_TIME} [+-]\d{{4}})\] ".*?" (?:\d{{3}}|-) (?:\d+|-)'
        r'(?: ".*?" "(.*?)")?(?: .*)?$',
        key=("1|2", "4"),
        clock="dd/MMM/yyyy:HH:mm:ss Z",
        start="3",
    ),
}

_ISO = r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\d*(Z|[+-]\d\d:?\d\d)?$"
"""An instant of ISO 8601; digits beyond a microsecond are left out."""


def scaled(text: Column, by: int) -> Column:
    """The decimal number in *text*, times *by*, as a whole number; null if *text* is no
    number.
    """
    # By way of decimal: a double would cost a microsecond at today's Unix time.
    return (text.try_cast("decimal(27,9)") * F.lit(by)).try_cast("long")


def instant(text: Column, clock: str) -> Column:
    """The instant in *text*, Unix ns, by a *clock* of `Format`; null if *text* is no
    instant.
    """
    if clock == UNIX:
        return scaled(text, 10**9)
    if clock == EITHER:
        return F.coalesce(scaled(text, 10**9), instant(text, ISO))
    if clock == ISO:
        zone = F.coalesce(F.nullif(F.regexp_extract(text, _ISO, 2), F.lit("")), F.lit("Z"))
        moment = F.try_to_timestamp(F.concat(F.regexp_extract(text, _ISO, 1), zone))
    else:
        moment = F.try_to_timestamp(text, F.lit(clock))
    return F.try_multiply(F.unix_micros(moment), F.lit(1000))


def field_of(request: str, line: Column, name: str) -> Column:
    """The field *name* (see `Format`) of *line*: a group of the pattern *request*, or a
    member of a JSON object where that is empty. Null where it has no value.
    """
    each = name.split("|")
    found = [
        F.nullif(F.regexp_extract(line, request, int(one)), F.lit(""))
        if request
        else F.nullif(F.get_json_object(line, f"$.{one}"), F.lit("-"))
        for one in each
    ]
    return found[0] if len(found) == 1 else F.coalesce(*found)


def _columns(known: Format, line: Column) -> dict[str, Column]:
    """The columns of the request in *line*. *known* says where they are."""

    def field(name: str) -> Column:
        return field_of(known.request, line, name)

    length = scaled(field(known.length), known.unit_ns) if known.length else F.lit(0).cast("long")
    if known.clock == EITHER:  # nobody else's log leaves it out
        length = F.when(field(known.length) == "-", F.lit(0).cast("long")).otherwise(length)
    first = instant(field(known.start or known.end), known.clock)
    start = first if known.start else first - length
    end = instant(field(known.end), known.clock) if known.start and known.end else start + length
    key = F.xxhash64(F.concat_ws(" ", *map(field, known.key)))
    return {
        "key": F.when(field(known.key[0]).isNotNull(), key),
        "start_ns": start,
        "end_ns": end,
        "serial": field(known.serial).try_cast("long")
        if known.serial
        else F.lit(None).cast("long"),
        "listener": F.coalesce(field(known.listener), F.lit(HTTP))
        if known.listener
        else F.lit(HTTP),
    }


@dataclass(slots=True)
class Requests:
    """The requests in access logs."""

    frame: DataFrame
    """Grain: one row per request; key long, start_ns and end_ns in Unix ns, serial long
    or null, listener.
    """
    lines: int = 0
    """Lines read, empty ones left out."""
    own: int = 0
    """How many of them are reports of the server about itself."""
    bad: int = 0
    """How many of them are neither a request nor a report."""
    examples: list[str] = field(default_factory=list)
    """How some of the bad ones begin."""
    others: list[str] = field(default_factory=list)
    """Formats that the bad lines seem to be in."""


def log_files(paths: Iterable[Place]) -> list[Place]:
    """The files that *paths* name, each once: files, and directories of them.

    Raises:
        Fault: a directory has no file, or a file is named `.gz` and is none. Files that
            are not on this machine are not checked here.
    """
    found: dict[Place, None] = {}
    for where in paths:
        if isinstance(where, Remote):
            found[where] = None
            continue
        below = sorted(where.iterdir()) if where.is_dir() else [where]
        files = [
            file.resolve()
            for file in below
            if file.is_file() and (file == where or not file.name.startswith((".", "_")))
        ]
        if not files:
            raise Fault(f"--logs {where} holds no file")
        for file in files:
            if file.suffix == ".gz" and not _is_gzip(file):
                raise Fault(f"--logs {file} is not gzip, though its name says so: rename it")
            found[file] = None
    return list(found)


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == GZIP


def other_formats(name: str, lines: Sequence[str]) -> list[str]:
    """The formats other than *name* that all of *lines* might be in, the plainest
    first.
    """
    found = []
    for other, known in FORMATS.items():
        if other != name and lines and all(_may_be(known, line) for line in lines):
            found.append(other)
    return found


def _may_be(known: Format, line: str) -> bool:
    if known.request:
        return re.search(known.request, line) is not None
    try:
        members = json.loads(line)
    except ValueError:
        return False
    names = [*known.key[0].split("|"), known.start or known.end]
    return (
        isinstance(members, dict)
        and names[-1] in members
        and any(each.partition(".")[0] in members for each in names[:-1])
    )


def expected_line(name: str) -> str:
    """What a line of format *name* looks like, and how to have it written."""
    known = FORMATS[name]
    return f"a line of it is {known.example!r}; to have it: {known.how}"


_LOCAL_NIGHT = re.compile(
    rb"\[(\d{2}/\w{3}/\d{4}:0[0-4]:\d{2}:\d{2}\.\d{3})\] \S+ \S+ -?\d+/-?\d+/-?\d+/-?\d+/\+?(\d+) "
)
"""The instant and length of a request in the small hours, in which clocks are put
back.
"""

BACK_S = 1800.0
"""If a request ends so many seconds before the one in the line above, the clock was put
back between the two.
"""


def put_back(name: str, paths: Sequence[Place]) -> list[dict[str, str]]:
    """The files of *paths* in which the local clock was put back: path, reason. Files
    that are not on this machine are not looked at.
    """
    found = []
    for path in paths if FORMATS[name].local else ():
        if isinstance(path, Path) and (when := _put_back(path)) is not None:
            reason = (
                f"its clock was put back about {when}: an hour is there twice, and the log does not "
                "say which is which. Log in UTC, or leave that hour out"
            )
            found.append({"path": str(path), "reason": reason})
    return found


def _put_back(path: Path) -> str | None:
    latest = 0.0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        try:
            for line in lines:
                if (match := _LOCAL_NIGHT.search(line)) is None:
                    continue
                text = match[1].decode()
                try:
                    began = datetime.strptime(text, "%d/%b/%Y:%H:%M:%S.%f").replace(tzinfo=UTC)
                except ValueError:
                    continue
                ended = began.timestamp() + int(match[2]) / 1000
                if ended < latest - BACK_S:
                    return text.partition(".")[0]
                latest = ended
        except (OSError, EOFError, zlib.error):
            return None  # the engine that reads it says so
    return None


def read_requests(spark: SparkSession, name: str, paths: Sequence[Place]) -> Requests:
    """The requests of access logs in format *name*.

    Cost: three looks at the files; a fourth where lines are bad.
    """
    known = FORMATS[name]
    line = F.col("value")

    lines = here().read_lines(spark, paths).where(F.trim("value") != "")
    columns = [column.alias(label) for label, column in _columns(known, line).items()]
    parsed = lines.select("value", *columns)
    good = F.col("key").isNotNull() & F.coalesce(
        F.col("start_ns").between(0, F.col("end_ns")), F.lit(False)
    )
    good = line.rlike(known.request or OBJECT) & good
    own = ~good & (line.rlike(known.own) if known.own else F.lit(False))
    found = Requests(parsed.where(good).drop("value"))
    counts = parsed.agg(
        F.count(F.lit(1)).alias("lines"),
        F.count(F.when(own, 1)).alias("own"),
        F.count(F.when(good, 1)).alias("good"),
    ).first()
    if counts is not None:
        found.lines, found.own, found.bad = (
            counts.lines,
            counts.own,
            counts.lines - counts.own - counts.good,
        )
    if found.bad:
        shown = parsed.where(~good & ~own).select("value").limit(SHOWN).collect()
        found.examples = [repr(row.value[:SHOWN_CHARACTERS]) for row in shown]
        found.others = other_formats(name, [row.value for row in shown])
    return found


def silences(requests: DataFrame, timeout_ns: int) -> DataFrame:
    """The silences between *requests*: key (of one connection), listener, at_ns (when
    it began), idle_ns, returned.

    Grain: one row per silence. This is the only window of the pipeline, because these
    logs do not carry the silence in the row. A silence longer than *timeout_ns*, the
    timeout in force when they were written, was cut there.
    """
    order = Window.partitionBy("key").orderBy("end_ns", "start_ns")
    log_end = requests.agg(F.max("end_ns").alias("log_end_ns"))
    following = requests.select(
        "key",
        "listener",
        "start_ns",
        "end_ns",
        F.lead("start_ns").over(order).alias("next_ns"),
        (F.lead("serial").over(order) == F.col("serial") + 1).alias("adjacent"),
    ).crossJoin(F.broadcast(log_end))
    gap = F.greatest(F.col("next_ns") - F.col("end_ns"), F.lit(0))
    returned = (
        F.col("next_ns").isNotNull() & F.coalesce("adjacent", F.lit(True)) & (gap <= timeout_ns)
    )
    cut = F.least(F.lit(timeout_ns), F.col("log_end_ns") - F.col("end_ns"))
    judged = following.withColumn("returned", returned).withColumn(
        "idle_ns", F.when(returned, gap).otherwise(cut)
    )
    cuts_before = F.sum(F.when(~F.col("returned"), 1)).over(
        order.rowsBetween(Window.unboundedPreceding, -1)
    )
    return judged.select(
        F.xxhash64("key", F.coalesce(cuts_before, F.lit(0))).alias("key"),
        "listener",
        F.col("end_ns").alias("at_ns"),
        "idle_ns",
        "returned",
    )
