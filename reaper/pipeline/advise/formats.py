"""What is known of each kind of access log: its lines, and what it cannot show. docs/pipeline.md says how to write one.

The rule of this module: *a line is a request, a report of the server about itself, or bad*. Bad ones are shown. No
Spark here. The patterns repeat no group, so that no line, however long, is too deep for Java.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 3
"""Bad lines that are shown."""

SHOWN_CHARACTERS = 80


HTTP = "http"
"""The listener of what names none."""

UNIX, ISO = "unix", "iso"
"""Clocks of a log beside those that a pattern describes: seconds since 1970, and ISO 8601."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of access log. A field is the number of a group of `request`, or the path of a member of a JSON object;
    `a|b` is the first of them that has a value.
    """

    blind: str
    """What it cannot show."""
    key: tuple[str, ...]
    """Fields that tell the connection; without the first there is none."""
    clock: str
    """Of start and end: `UNIX`, `ISO`, or a pattern of Java's."""
    start: str = ""
    """Field of the instant at which the request began. Of start, end and length two are there; or one: both are it."""
    end: str = ""
    length: str = ""
    """How long it took."""
    unit_ns: int = 1
    """Of length."""
    serial: str = ""
    """Number of the request on its connection."""
    listener: str = ""
    request: str = ""
    """A request, as a regular expression; empty: the line is JSON."""
    own: str | None = None
    """A report of the server about itself, in the same file; None: there are none."""


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
        "connections that never sent a request, when a connection was closed and by which side; the last silence of "
        "each is taken as cut by the timeout in force",
        request=r"^(\d{1,12}\.\d{1,6}) (\d{1,18}) (\d{1,18}) (\d{1,9}\.\d{1,6})\s*$",
        key=("2",),
        clock=UNIX,
        end="1",
        length="4",
        unit_ns=10**9,
        serial="3",
    ),
    "haproxy": Format(
        f"{_CLOSES}; {_PORTS}",
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
        key=("connection_id|downstream_remote_address",),  # Istio's own JSON has no connection_id
        clock=ISO,
        start="start_time",
        length="duration",
        unit_ns=MS,
        listener="listener",
    ),
    "traefik": Format(
        f"{_CLOSES}; {_PORTS}",
        key=("ClientAddr",),
        clock=ISO,
        start="StartUTC",
        length="Duration",
        listener="entryPointName",
        own=r'^\{.*"(?:level|msg|message)":',
    ),
    "caddy": Format(
        f"{_CLOSES}; {_PORTS}",
        key=("request.remote_ip", "request.remote_port"),
        clock=UNIX,
        end="ts",
        length="duration",
        unit_ns=10**9,
        own=r'^\{"level":"\w+","ts":[\d.e+]+,(?:"msg"|"logger":"(?:admin|tls|pki|events|http(?:"|\.[a-km-z]|\.log\.error)))',
    ),
    "alb": Format(
        f"{_CLOSES}; of entries without a conn_trace_id {_PORTS}",
        # type, time, balancer, client:port, ...: the time is that of the answer
        request=r'^(?:https?|h2|grpcs?|wss?) (\S+Z) \S+ (\S+:\d+) .*" (?:-|-?\d+) (\S+Z) "[^"]*".*?(?: (TID_\w+))?\s*$',
        key=("4|2",),
        clock=ISO,
        start="3",
        end="1",
    ),
    "combined": Format(
        "connections: silences are those of a client address and agent, to one second, and one beyond the timeout in "
        "force counts as a new connection. Several connections of one client look like one that is busier; requests "
        "that came on a new connection look like a silence that ended. What is advised may be too short or too long",
        # Lazy up to the status: a request or an agent may hold escaped quotes, a user spaces.
        request=rf'^(?:\S+:\d{{1,5}} ([^-\s]\S*)|(\S+)) \S+ .*?\[({_TIME} [+-]\d{{4}})\] ".*?" (?:\d{{3}}|-) (?:\d+|-)'
        r'(?: ".*?" "(.*?)")?(?: .*)?$',
        key=("1|2", "4"),
        clock="dd/MMM/yyyy:HH:mm:ss Z",
        start="3",
    ),
}
