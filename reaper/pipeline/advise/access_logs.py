"""Access logs that users already have, as silences.

The rule of this module: *a silence is one connection's, or is said to be less*. Of each
request there is one row: key (of the connection, or of the client where the format
knows no connection), start_ns, end_ns, serial (number of the request on its connection,
null where unknown), listener. A silence runs from the end of one request to the start
of the next; one beyond the timeout in force cannot have been on one connection, so
there a new one begins. *A line is a request, a report of the server about itself, or
bad*: it is a report only by what a request cannot have, the first field is looked at,
what follows the known fields is not, and bad lines are shown. A key is its text: an
engine's hash may give two connections one number. docs/pipeline.md says how to write a
log. The patterns repeat no group, so that no line, however long, is too deep for Java.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..arguments import Fault
from ..engine import F, Window, here
from ..places import Place, Remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN = 3
"""Bad lines that are shown."""

SHOWN_CHARACTERS = 80

OVERLAP_NS = 1_000_000_000
"""So much earlier than the end before it a request may seem to begin: many logs know
whole seconds alone.
"""

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


class Dated(Protocol):
    """What two questions to a line have in common; see `Format`."""

    @property
    def clock(self) -> str: ...
    @property
    def start(self) -> str: ...
    @property
    def end(self) -> str: ...
    @property
    def length(self) -> str: ...
    @property
    def unit_ns(self) -> int: ...
    @property
    def own(self) -> str | None: ...
    @property
    def asked(self) -> str | None: ...


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
    and length; if it has one, start and end are the same; if it has all, end stands in
    for a start that is missing.
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
    asked: str | None = None
    """What only a request's line has, beside what `own` asks: a line with it is no
    report, whatever else it lacks. None: no request looks like `own`.
    """
    layout: str = ""
    """What a line begins with that names the fields; then `request` is that of the
    usual layout, and `laid_out` makes that of the file.
    """
    loose: bool = False
    """Whether a line may leave out how long a request took, or when it ended."""
    used: str = ""
    """The field that only a row of a table has: key, when it was used, and when that
    ended.
    """
    local: bool = False
    """Whether it logs local time without an offset: one hour of the year is there
    twice.
    """


_TIME = r"\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2}"

_INSTANT = (
    r"(\d{9,12}|\d{9,12}\.\d{1,9}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?"
    r"(?:Z|[+-]\d\d(?::?\d\d)?)?)"
)
"""Seconds since 1970, from 1973 on, or ISO 8601. Nine digits: a number of a connection,
or of milliseconds, is not taken for an instant.
"""

MS = 1_000_000

_CLOSES = "when a connection was closed and by which side"
_PORTS = "a client port that was used again after the timeout in force counts as a new connection"

_CLIENTS = (
    "connections: silences are those of a client address and agent, to one second, and one "
    "beyond the timeout in force counts as a new connection. Several connections of one "
    "client look like one that is busier; requests that came on a new connection look like a "
    "silence that ended. What is advised may be too short or too long"
)

_IIS = (
    "date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) "
    "cs(Referer) sc-status sc-substatus sc-win32-status time-taken"
)
"""The layout that IIS has by default."""

_IIS_KNOWN = {
    "date": r"(\d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d:\d\d)",
    "c-ip": r"([0-9A-Fa-f.:%]+)",
    "c-port": r"(\d{1,5})",
    "cs(User-Agent)": r"(\S+)",
    "time-taken": r"(\d{1,12})",
}
"""The fields that are asked for. Date and time are one instant, and so one group."""

_IIS_NEEDED = ("date", "time", "c-ip", "time-taken")


def _pattern_of(layout: str, known: dict[str, str]) -> str:
    """A line whose fields *layout* names: a group for each of *known*."""
    parts = [known.get(name, r"\S+") for name in layout.split()]
    return rf"^{' '.join(parts)}(?:\s.*)?$"


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

_SYSLOG = (
    r"(?:(?:<\d{1,3}>)?(?:\d )?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) "
    r"(?:\S+ )?(?:\S+: |\S+ \S+ \S+ \S+ ))?"
)
"""What syslog puts before a line: a time, a host, and a program."""

_CLIENT = r"[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:.]+|::[0-9A-Fa-f:.]*|[\w.-]*\w"
"""A client: its address or its name, and no `unix:`, which any client may be."""

_NGINX_ERRORS = r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w+\] "

_CADDY = r'^\{.*"(?:level|logger|msg)":'
_CADDY_ACCESS = r'"logger":\s?"http\.log\.access|"msg":\s?"handled request"'
"""Modules and plugins of Caddy log of requests, too: with a logger of their own."""

FORMATS = {
    "nginx": Format(
        "connections that never sent a request, when a connection was closed and by which side; "
        "the last silence of each is taken as cut by the timeout in force",
        "1790000000.123 17 2 0.005",
        "log_format reaper '$msec $connection $connection_requests $request_time'; and "
        "access_log /var/log/nginx/reaper.log reaper;",
        request=r"^(\d{1,12}\.\d{1,6}) (\d{1,18}) (\d{1,18}) (\d{1,9}\.\d{1,6})(?:\s.*)?$",
        key=("2",),
        clock=UNIX,
        end="1",
        length="4",
        unit_ns=10**9,
        serial="3",
        own=_NGINX_ERRORS,
    ),
    "nginx-json": Format(
        "connections that never sent a request, when a connection was closed and by which side; "
        "the last silence of each is taken as cut by the timeout in force",
        '{"msec": "1790000000.123", "connection": "17", "connection_requests": "2", '
        '"request_time": "0.005"}',
        'log_format reaper escape=json \'{"msec":"$msec","connection":"$connection",'
        '"connection_requests":"$connection_requests","request_time":"$request_time"}\'; members '
        "bear the names of nginx's variables, and there may be others",
        key=("connection",),
        clock=EITHER,
        end="msec|time_iso8601",
        length="request_time",
        unit_ns=10**9,
        serial="connection_requests",
        own=_NGINX_ERRORS,
    ),
    "columns": Format(
        f"{_CLOSES}; connections that never sent a request",
        "1790000000.123 10.0.0.1:4711 2 0.005",
        "print four columns, for example with awk: when the request ended (seconds since 1970, or "
        "ISO 8601), the connection, the number of the request on it or -, how many seconds it took "
        "or -. Or two or three of anything that can be idle: its key, when it was used, and when "
        "that use ended",
        request=rf"^(?:{_INSTANT}[\s,]+([^\s,-][^\s,]*|-[^\s,]+)[\s,]+(\d{{1,18}}|-)[\s,]+"
        r"(\d{1,9}|\d{1,9}\.\d{1,9}|-)(?:[\s,].*)?"
        rf"|(?:([^,\t]+)[,\t]|(\S+) +){_INSTANT}(?:[\s,]+{_INSTANT})?\s*)$",
        key=("2|5|6",),
        clock=EITHER,
        start="7",
        end="1|8",
        length="4",
        unit_ns=10**9,
        serial="3",
        # A name begins with a letter, and an instant with a digit.
        own=r"^[A-Za-z_][\w ]*(?:[,\t] ?[A-Za-z_][\w ]*){1,3}$",
        loose=True,
        used="7",
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
        own=rf"(?:haproxy\[\d+\]: | haproxy \S+ \S+ \S+ |^)(?:{'|'.join(_HAPROXY_REPORTS)})",
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
        own=r"^\[\d{4}-\d\d-\d\d [\d:.,]+\]\[\d+\]\[\w+\]|^\S+Z\t(?:debug|info|warn|error|fatal)\t",
    ),
    "traefik": Format(
        f"{_CLOSES}; {_PORTS}",
        '{"ClientAddr": "10.0.0.1:4711", "StartUTC": "2026-09-21T14:13:20.123Z", "Duration": '
        "5000000}",
        "accessLog: {format: json}",
        key=("ClientAddr",),
        clock=ISO,
        start="StartUTC|StartLocal",
        end="time",
        length="Duration",
        listener="entryPointName",
        own=r'^\{.*"(?:level|msg|message)":|^time="[^"]*" level=|^\S+ (?:TRC|DBG|INF|WRN|ERR|FTL|PNC) ',
        asked=r'"(?:ClientAddr|ClientHost|ClientPort|RequestCount|RequestHost|RequestMethod|RequestPath|'
        r'DownstreamStatus|OriginStatus|Duration|StartUTC|StartLocal)":',
    ),
    "caddy": Format(
        f"{_CLOSES}; {_PORTS}",
        '{"ts": 1790000000.123, "request": {"remote_ip": "10.0.0.1", "remote_port": "4711"}, '
        '"duration": 0.005}',
        "log { format json }",
        # Before 2.5 both were one member, remote_addr.
        key=("request.remote_ip|request.remote_addr", "request.remote_port"),
        clock=EITHER,
        end="ts",
        length="duration",
        unit_ns=10**9,
        own=_CADDY,
        asked=_CADDY_ACCESS,
    ),
    "alb": Format(
        f"{_CLOSES}; of entries without a conn_trace_id {_PORTS}",
        "https 2026-09-21T14:13:20.123456Z app/name/50dc6c495c0c9188 10.0.0.1:4711 10.0.1.1:80 "
        '0.000 0.005 0.000 200 200 34 366 "GET https://example.com:443/ HTTP/1.1" ... TID_12ab ...',
        "the access logs of the load balancer, as they lie in their bucket",
        # type, time, balancer, client:port, ...: the time is that of the answer
        request=r'^(?:https?|h2|grpcs?|wss?) (\S+Z) \S+ (\S+:\d+) .*" (?:-|-?\d+) (\S+Z) "[^"]*"'
        r"(?:.*? (TID_\w+)(?: .*)?|.*)$",
        key=("4|2",),
        clock=ISO,
        start="3",
        end="1",
    ),
    "iis": Format(
        _CLIENTS,
        "2026-09-21 14:13:20 10.0.0.9 GET / - 443 - 10.0.0.1 curl/8 - 200 0 0 5",
        "the W3C format, IIS's default, with date, time, c-ip and time-taken (and c-port where it is "
        "to be had); its #Fields line says where they are",
        request=_pattern_of(_IIS, _IIS_KNOWN),
        key=("2", "3"),
        clock=ISO,
        end="1",
        length="4",
        unit_ns=MS,
        own=r"^#(?:Software|Version|Date|Fields|Start-Date|End-Date|Remark):",
        layout="#Fields: ",
    ),
    "combined": Format(
        _CLIENTS,
        '10.0.0.1 - - [21/Sep/2026:14:13:20 +0000] "GET / HTTP/1.1" 200 12 "-" "curl/8"',
        "the combined format of nginx and Apache, their default",
        # Lazy up to the status: a request or an agent may hold escaped quotes, a user
        # spaces. Identities are not asked for any more, so before a user stands "-",
        # and what stands before a client is a virtual host.
        request=rf'^{_SYSLOG}(?:[^\s",\[]+ )?({_CLIENT}) - .*?\[({_TIME} [+-]\d{{4}})\] ".*?" (?:\d{{3}}|-) (?:\d+|-)'
        r'(?: ".*?" "(.*?)")?(?: .*)?$',
        key=("1", "3"),
        clock="dd/MMM/yyyy:HH:mm:ss Z",
        start="2",
    ),
}

STRANGERS = {
    "HAProxy's TCP log, which has no requests: option httplog": (
        rf"\S+:\d+ \[{_TIME}\.\d{{3}}\] \S+ \S+ -?\d+/-?\d+/\+?-?\d+ \+?\d+ \S\S "
    ),
    "a Network Load Balancer's log, which has no requests": r"^tls \d\.\d \S+ net/",
    "Envoy's or Istio's default text, which names no connection: a json_format": (
        r'^\[\d{4}-\d\d-\d\dT[\d:.]+Z\] "'
    ),
    "Traefik's CLF, which names no connection: accessLog: {format: json}": (
        rf'\[{_TIME} [+-]\d{{4}}\] ".*" \d+ "[^"]*" "[^"]*" \d+ms$'
    ),
    "W3C's extended format: --format iis": r"^#(?:Software|Version|Fields):",
    "CloudFront's log, which names no connection": r"^\d{4}-\d\d-\d\d\t[\d:]{8}\t",
    "an nginx error log": _NGINX_ERRORS,
}
"""Formats that are known and cannot be asked, and what can: each with a pattern."""


def stranger(lines: Sequence[str]) -> str:
    """What *lines* are, if all are of one of `STRANGERS`; else nothing."""
    for words, pattern in STRANGERS.items():
        if lines and all(re.search(pattern, line) for line in lines):
            return f". This is {words}"
    return ""


_ISO = r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\d*(Z|[+-]\d\d(?::?\d\d)?)?$"
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


def times(
    known: Dated, field: Callable[[str], Column], *, loose: bool = False
) -> tuple[Column, Column]:
    """When the request began and ended, by the *field*s that *known* names, Unix ns;
    null where the line does not say. *loose*: see `Format`.
    """
    first, last = (
        instant(field(name), known.clock) if name else F.lit(None).cast("long")
        for name in (known.start, known.end)
    )
    if not known.length:
        return (first, last) if known.start and known.end else (F.coalesce(first, last),) * 2
    took = field(known.length)
    length = scaled(took, known.unit_ns)
    if loose:
        length = F.when(took == "-", F.lit(0).cast("long")).otherwise(length)
    start = F.coalesce(first, last - length)
    end = start + length
    return start, F.coalesce(end, last, start) if loose else end


def _columns(known: Format, line: Column) -> dict[str, Column]:
    """The columns of the request in *line*. *known* says where they are."""

    def field(name: str) -> Column:
        return field_of(known.request, line, name)

    start, end = times(known, field, loose=known.loose)
    key = F.concat_ws(" ", *map(field, known.key))
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
        "used": field(known.used).isNotNull() if known.used else F.lit(False),
    }


def is_own(known: Dated, line: Column) -> Column:
    """Whether *line* is a report of the server about itself: by what a request cannot
    have.
    """
    if not known.own:
        return F.lit(False)
    own = line.rlike(known.own)
    return own & ~line.rlike(known.asked) if known.asked else own


@dataclass(slots=True)
class Requests:
    """The requests in access logs."""

    frame: DataFrame
    """Grain: one row per request; key, start_ns and end_ns in Unix ns, serial long
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
    stranger: str = ""
    """What `stranger` says of them."""
    tabled: bool = False
    """Whether they are the uses of any table, and no requests."""


def log_files(paths: Iterable[Place]) -> list[Place]:
    """The files that *paths* name, each once: files, and all below directories.

    Raises:
        Fault: a directory has no file, or a file is named `.gz` and is none. Files that
            are not on this machine are not checked here.
    """
    found: dict[Place, None] = {}
    for where in paths:
        if isinstance(where, Remote):
            found[where] = None
            continue
        below = sorted(where.rglob("*")) if where.is_dir() else [where]
        files = [
            file.resolve()
            for file in below
            if file.is_file() and not _is_hidden(file.relative_to(where))
        ]
        if not files:
            raise Fault(f"--logs {where} holds no file")
        for file in files:
            if file.suffix == ".gz" and not _is_gzip(file):
                raise Fault(f"--logs {file} is not gzip, though its name says so: rename it")
            found[file] = None
    return list(found)


def _is_hidden(below: Path) -> bool:
    return any(part.startswith((".", "_")) for part in below.parts)


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == GZIP


def laid_out(name: str, lines: DataFrame) -> Format:
    """The format *name* as *lines* (`value`) are laid out by themselves.

    Raises:
        Fault: no line says how, or two say different things, or a field is missing that
            is asked for.
    """
    known = FORMATS[name]
    if not known.layout:
        return known
    said = lines.where(F.col("value").rlike(f"^{known.layout}")).select("value").distinct()
    found = sorted(" ".join(row.value.split()[1:]) for row in said.limit(3).collect())
    if not found:
        raise Fault(f"no line begins with {known.layout!r}; {expected_line(name)}")
    if len(set(found)) > 1:
        raise Fault(f"the fields change: {found[0]!r}, then {found[1]!r}; ask for each by itself")
    fields = found[0].split()
    if missing := [each for each in _IIS_NEEDED if each not in fields]:
        raise Fault(f"the log has no {' and no '.join(missing)}: {known.how}")
    if fields[fields.index("date") + 1 : fields.index("date") + 2] != ["time"]:
        raise Fault(f"time does not follow date in {found[0]!r}")
    grouped = [each for each in fields if each in _IIS_KNOWN and each != "time"]
    group = {each: str(at + 1) for at, each in enumerate(grouped)}
    client = ("c-ip", "c-port") if "c-port" in group else ("c-ip", "cs(User-Agent)")
    return replace(
        known,
        request=_pattern_of(found[0], _IIS_KNOWN),
        key=tuple(group[each] for each in client if each in group),
        end=group["date"],
        length=group["time-taken"],
    )


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
    whens = f"{known.start}|{known.end}".strip("|").split("|")
    keys = [each.partition(".")[0] for each in known.key[0].split("|")]
    return isinstance(members, dict) and all(
        any(each in members for each in names) for names in (whens, keys)
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
    line = F.col("value")
    lines = here().read_lines(spark, paths).where(F.trim("value") != "")
    known = laid_out(name, lines)
    columns = [column.alias(label) for label, column in _columns(known, line).items()]
    parsed = lines.select("value", *columns)
    good = F.col("key").isNotNull() & F.coalesce(
        F.col("start_ns").between(0, F.col("end_ns")), F.lit(False)
    )
    own = is_own(known, line)
    good = line.rlike(known.request or OBJECT) & good & ~own
    found = Requests(parsed.where(good).drop("value"))
    used = F.col("used") & good
    counts = parsed.agg(
        F.count(F.lit(1)).alias("lines"),
        F.count(F.when(own, 1)).alias("own"),
        F.count(F.when(good, 1)).alias("good"),
        F.count(F.when(used, 1)).alias("used"),
    ).first()
    if counts is not None:
        found.tabled = counts.used > 0
        if 0 < counts.used < counts.good:
            raise Fault(
                f"{counts.used} of {counts.good} lines are of key, time[, end], and the others of "
                "time, connection, number, seconds: ask for each by itself"
            )
        found.lines, found.own, found.bad = (
            counts.lines,
            counts.own,
            counts.lines - counts.own - counts.good,
        )
    if found.bad:
        shown = parsed.where(~good & ~own).select("value").limit(SHOWN).collect()
        found.examples = [repr(row.value[:SHOWN_CHARACTERS]) for row in shown]
        found.others = other_formats(name, [row.value for row in shown])
        found.stranger = stranger([row.value for row in shown])
    return found


def silences(requests: DataFrame, timeout_ns: int) -> DataFrame:
    """The silences between *requests*: key and visit (of one connection), listener,
    at_ns (when it began), idle_ns, returned, overlaps (whether the next request began
    `OVERLAP_NS` or more before this one had ended).

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
        "key",
        F.coalesce(cuts_before, F.lit(0).cast("long")).alias("visit"),
        "listener",
        F.col("end_ns").alias("at_ns"),
        "idle_ns",
        "returned",
        (F.col("next_ns") < F.col("end_ns") - F.lit(OVERLAP_NS)).alias("overlaps"),
    )
