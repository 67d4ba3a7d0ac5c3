"""What is known of each kind of access log: its lines, what the server must be told to write, what it cannot show.

The rule of this module: *a line is a request, a report of the server about itself, or bad*. Bad ones are shown. No
Spark here. The patterns repeat no group, so that no line, however long, is too deep for Java.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 3
"""Bad lines that are shown."""

SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of access log."""

    wanted: str
    """What the server must be told to write."""
    blind: str
    """What it cannot show."""
    request: str = ""
    """A request, as a regular expression; empty: the line is JSON."""
    own: str | None = None
    """A report of the server about itself, in the same file; None: there are none."""


_TIME = r"\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2}"

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
        "log_format reaper '$msec $connection $connection_requests $request_time';",
        "connections that never sent a request, when a connection was closed and by which side; the last silence of "
        "each is taken as cut by the timeout in force",
        r"^(\d{1,12}\.\d{1,6}) (\d{1,18}) (\d{1,18}) (\d{1,9}\.\d{1,6})\s*$",
    ),
    "haproxy": Format(
        "option httplog",
        "when a connection was closed and by which side; a client port that was used again after the timeout in force "
        "counts as a new connection",
        rf"(\S+:\d+) \[({_TIME}\.\d{{3}})\] (\S+?)~? \S+ -?\d+/-?\d+/-?\d+/-?\d+/\+?(\d+) -?\d+ ",
        rf"(?:haproxy\[\d+\]: |^)(?:{'|'.join(_HAPROXY_REPORTS)})",
    ),
    "envoy": Format(
        'json_format: {start_time: "%START_TIME%", duration: "%DURATION%", connection_id: "%CONNECTION_ID%"}',
        "when a connection was closed and by which side",
    ),
    "combined": Format(
        "the combined format of Apache and nginx, or vhost_combined",
        "connections: silences are those of a client address and agent, to one second, and one beyond the timeout in "
        "force counts as a new connection. Several connections of one client look like one that is busier; requests "
        "that came on a new connection look like a silence that ended. What is advised may be too short or too long",
        # Lazy up to the status: a request or an agent may hold escaped quotes, a user spaces.
        rf'^(?:\S+:\d{{1,5}} ([^-\s]\S*)|(\S+)) \S+ .*?\[({_TIME} [+-]\d{{4}})\] ".*?" (?:\d{{3}}|-) (?:\d+|-)'
        r'(?: ".*?" "(.*?)")?(?: .*)?$',
    ),
}
