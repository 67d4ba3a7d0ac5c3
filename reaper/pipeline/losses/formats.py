"""What each proxy logs of a request whose connection the server closed before it
answered.

The rule of this module: *a pattern names what the proxy knows*. A connection that was
refused, a timeout, or half an answer are failures of other kinds, wherever the log has
a word for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..advise.access_logs import _CADDY_ACCESS, _TIME, EITHER, FORMATS, ISO, MS, UNIX

NS = 10**9


@dataclass(frozen=True, slots=True)
class Losses:
    """How one kind of proxy logs its requests. Fields are those of
    `access_logs.Format`.
    """

    blind: str
    """What such a log cannot show."""
    example: str
    how: str
    clock: str
    length: str
    upstream: tuple[str, ...]
    """Fields that identify the server that was asked."""
    lost: tuple[tuple[str, str], ...]
    """(field, pattern): all match where the server closed instead of answering."""
    failed: tuple[tuple[str, str], ...]
    """All match where a request failed at the proxy for whatever reason."""
    balancer: str
    """Its row of `BALANCERS`."""
    start: str = ""
    end: str = ""
    unit_ns: int = NS
    took: str = ""
    """How long the last server was asked, s; empty: as long as the request took."""
    request: str = ""
    saved: str = ""
    """A pattern of lines for requests that were lost once, and answered at another try.
    """
    own: str | None = None
    asked: str | None = None
    """Which lines are no requests, as `access_logs.Format` says it."""
    served: str | None = None
    """A pattern of requests that went to a server: one without its name is bad. None:
    the log names the server, or says that there was none.
    """
    closes: str = ""
    """A pattern of extra lines, each for a close without an answer."""
    tries: bool = False
    """Whether the value of a member lists several tries, of which the last counts."""
    twice: str | None = None
    """A pattern of requests that another line describes better; None if the format has
    none.
    """


_LAST = r'"(?:[^"]*[, ])?([^", ]+)"'
"""The last of several tries: nginx parts them by commas, and groups by colons."""

_CLOSED = (
    r"(?:prematurely closed connection|recv\(\) failed \(104:.*) while reading response header"
)
"""What nginx's error log says of a server that closed without an answer."""

_LAST_USED = (
    "which connection to the server a request took: the silence before it is that of the one "
    "that was used last, which nginx takes"
)
"""What no log of nginx's tells."""

KNOWN = {
    "nginx": Losses(
        _LAST_USED,
        '1790000000.123 0.001 502 "10.0.0.1:80" "502" "0.000" "0.001" "-" "0"',
        'log_format losses \'$msec $request_time $status "$upstream_addr" "$upstream_status" '
        '"$upstream_connect_time" "$upstream_response_time" "$upstream_header_time" '
        '"$upstream_bytes_received"\'; and access_log /var/log/nginx/losses.log losses;',
        clock=UNIX,
        end="1",
        length="2",
        took="7",
        upstream=("4",),
        lost=(("3", "^502$"), ("5", "^502$"), ("6", r"^\d"), ("8", "^-$"), ("9", "^0$")),
        failed=(("3", "^50[234]$"), ("4", "[^-]")),
        balancer="ingress-nginx",
        request=r"^(\d{1,12}\.\d{1,6}) (\d{1,9}\.\d{1,6}) (\d{3})" + f" {_LAST}" * 6,
        saved=r'^\S+ \S+ [1-4]\d\d "[^"]*" "(?:502|504), ',
        closes=_CLOSED,
        own=FORMATS["nginx-json"].own,
    ),
    "nginx-json": Losses(
        _LAST_USED,
        '{"msec": "1790000000.123", "request_time": "0.001", "status": "502", '
        '"upstream_addr": "10.0.0.1:80", "upstream_status": "502", '
        '"upstream_connect_time": "0.000", "upstream_response_time": "0.001", '
        '"upstream_bytes_received": "0"}',
        'log_format losses escape=json \'{"msec":"$msec","request_time":"$request_time",'
        '"status":"$status","upstream_addr":"$upstream_addr",'
        '"upstream_status":"$upstream_status","upstream_connect_time":"$upstream_connect_time",'
        '"upstream_response_time":"$upstream_response_time",'
        '"upstream_bytes_received":"$upstream_bytes_received"}\'; members bear the names of '
        "nginx's variables, and there may be others",
        clock=EITHER,
        end="msec|time_iso8601",
        length="request_time",
        took="upstream_response_time",
        upstream=("upstream_addr",),
        lost=(
            ("status", "^502$"),
            ("upstream_status", "^502$"),
            ("upstream_connect_time", r"^\d"),
            ("upstream_bytes_received", "^0$"),
        ),
        failed=(("status", "^50[234]$"), ("upstream_addr", ".")),
        balancer="ingress-nginx",
        saved=r'"status"\s*:\s*"?[1-4]\d\d\D.*"upstream_status"\s*:\s*"50[24], '
        r'|"upstream_status"\s*:\s*"50[24], .*"status"\s*:\s*"?[1-4]\d\d\D',
        closes=_CLOSED,
        own=FORMATS["nginx-json"].own,
        tries=True,
    ),
    "haproxy": Losses(
        "requests that it lost on a client's connection that had asked before: HAProxy closes that "
        "connection without an answer, and logs nothing. Which connection to the server a request "
        "took: the silence before it is that of the one that was used last",
        "haproxy[9]: 10.0.0.1:4711 [21/Sep/2026:14:13:20.123] web app/s1 0/0/0/-1/1 502 208 - - "
        'SH-- 1/1/0/0/0 0/0 "POST / HTTP/1.1"',
        "option httplog",
        clock="dd/MMM/yyyy:HH:mm:ss.SSS",
        start="1",
        length="5",
        unit_ns=MS,
        upstream=("2", "3"),
        lost=(("6", "^502$"), ("7", "^SH"), ("4", r"^\d")),
        failed=(("6", "^50[234]$"),),
        balancer="haproxy",
        request=rf"\S+:\d+ \[({_TIME}\.\d{{3}})\] \S+ ([^\s/]+)/(\S+) -?\d+/-?\d+/(-?\d+)/-?\d+/\+?(\d+) (-?\d+) "
        r"\S+ \S+ \S+ (\S{4}) ",
        own=FORMATS["haproxy"].own,
    ),
    "envoy": Losses(
        "which connection to the server a request took: the silence before it is that of the one "
        "that was used last",
        '{"start_time": "2026-09-21T14:13:20.123Z", "duration": 1, "response_code": 503, '
        '"response_flags": "UC", "upstream_host": "10.0.0.1:80"}',
        "a json_format with start_time: %START_TIME%, duration: %DURATION%, response_code: "
        "%RESPONSE_CODE%, response_flags: %RESPONSE_FLAGS%, upstream_host: %UPSTREAM_HOST%; Istio's "
        "own JSON has them",
        clock=ISO,
        start="start_time",
        length="duration",
        unit_ns=MS,
        upstream=("upstream_host",),
        lost=(("response_flags", "(?:^|,)(?:UC|UPE)(?:,|$)"), ("response_code", "^50[23]$")),
        failed=(("response_flags", "[A-Z]"), ("response_code", "^5")),
        balancer="envoy",
        own=FORMATS["envoy"].own,
    ),
    "alb": Losses(
        "whether a target closed an idle connection, or one that had just been opened; which "
        "connection to the target a request took",
        "https 2026-09-21T14:13:20.124Z app/name/50dc6c495c0c9188 10.0.0.1:4711 10.0.1.1:80 0.000 "
        '-1 -1 502 - 34 366 "POST https://example.com:443/ HTTP/1.1" ...',
        "the access logs of the load balancer, as they lie in their bucket",
        clock=ISO,
        start="5",
        end="1",
        length="",
        upstream=("2",),
        lost=(("3", "^502$"), ("4", "^-$"), ("2", "[^-]")),
        failed=(("3", "^50[234]$"), ("4", "^-$")),
        balancer="alb",
        request=r'^(?:https?|h2|grpcs?|wss?) (\S+Z) \S+ \S+ (\S+) \S+ \S+ \S+ (\d{3}|-) (\S+) .*" (?:-|-?\d+) (\S+Z) "',
    ),
    "caddy": Losses(
        "which server of several was asked, and by which connection",
        '{"level": "error", "ts": 1790000000.123, "logger": "http.log.error", "msg": "EOF", '
        '"request": {"host": "example.com"}, "duration": 0.001, "status": 502}',
        "log { format json }, of the server's errors and of its access log together",
        clock=EITHER,
        end="ts",
        length="duration",
        upstream=("request.host",),
        lost=(
            ("status", "^502$"),
            ("msg", "EOF$|server closed idle connection|connection reset by peer|broken pipe"),
        ),
        failed=(("status", "^50[234]$"),),
        balancer="caddy",
        own=FORMATS["caddy"].own,
        asked=rf'{_CADDY_ACCESS}|"logger":\s?"http\.log\.error',
        # Of a request that failed both logs tell, and that of errors says why.
        twice=r'"logger":\s?"http\.log\.access.*"status":\s?50[234]\D',
    ),
    "traefik": Losses(
        "whether a server closed an idle connection, or refused one: this log has 502 for both; "
        "which connection to the server a request took",
        '{"StartUTC": "2026-09-21T14:13:20.123Z", "Duration": 1000000, "DownstreamStatus": 502, '
        '"OriginStatus": 502, "ServiceAddr": "10.0.0.1:80"}',
        "accessLog: {format: json}",
        clock=ISO,
        start="StartUTC|StartLocal",
        end="time",
        length="Duration",
        unit_ns=1,
        upstream=("ServiceAddr|ServiceName|RouterName",),
        lost=(("DownstreamStatus", "^502$"), ("OriginStatus", "^502$")),
        failed=(("DownstreamStatus", "^50[234]$"),),
        balancer="traefik",
        own=FORMATS["traefik"].own,
        asked=FORMATS["traefik"].asked,
        served=r'"(?:OriginStatus":\s?[1-9]|DownstreamStatus":\s?502)',
    ),
}
