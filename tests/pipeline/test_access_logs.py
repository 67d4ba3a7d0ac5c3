"""Access logs as their servers write them: the lines of real logs, by their shape."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from reaper.pipeline.advise.access_logs import _IIS, FORMATS, log_files, other_formats
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.cli import _why
from reaper.pipeline.read.inputs import Inputs
from tests.conftest import Ran

S = 10**9

AT = "[21/Sep/2026:14:13:20 +0200]"

COMBINED = {
    "plain": ("10.0.0.1 - -", '"GET / HTTP/1.1" 200 12 "-" "curl/8"', "10.0.0.1", "curl/8"),
    "common, without referer and agent": (
        "10.0.0.1 - -",
        '"GET / HTTP/1.1" 304 -',
        "10.0.0.1",
        None,
    ),
    "IPv6": ("::1 - -", '"GET / HTTP/1.1" 200 12 "-" "curl/8"', "::1", "curl/8"),
    "a host name": ("a.b.example - frank", '"GET / HTTP/1.0" 200 2326', "a.b.example", None),
    "a user with spaces": (
        "10.0.0.1 - John Q Public",
        '"GET / HTTP/1.1" 401 5 "-" "x"',
        "10.0.0.1",
        "x",
    ),
    "vhost_combined": (
        "www.example.com:443 10.0.0.1 - -",
        '"GET / HTTP/2.0" 200 1 "-" "x"',
        "10.0.0.1",
        "x",
    ),
    "vhost and a user with spaces": (
        "w.example:80 10.0.0.1 - a b",
        '"GET / HTTP/1" 200 1 "-" "x"',
        "10.0.0.1",
        "x",
    ),
    "escaped quotes in the request": (
        "10.0.0.1 - -",
        r'"GET /\"x\" HTTP/1.1" 404 9 "-" "y"',
        "10.0.0.1",
        "y",
    ),
    "a status within quotes": (
        "10.0.0.1 - -",
        r'"GET /a\" 200 1 HTTP/1.1" 404 9 "-" "y"',
        "10.0.0.1",
        None,
    ),
    "escaped quotes in referer": (
        "10.0.0.1 - -",
        r'"GET /" 200 9 "http://a/?q=\"b\"" "A \"b\" c"',
        "10.0.0.1",
        None,
    ),
    "a further field": (
        "10.0.0.1 - -",
        '"GET / HTTP/1.1" 200 9 "-" "agent 1.0" "10.9.9.9"',
        "10.0.0.1",
        "agent 1.0",
    ),
    "no request at all": ("10.0.0.1 - -", '"-" 408 - "-" "-"', "10.0.0.1", "-"),
    "bytes that are no HTTP": ("10.0.0.1 - -", r'"\x16\x03\x01" 400 226 "-" "-"', "10.0.0.1", "-"),
    "an empty request": ("10.0.0.1 - -", '"" 400 0 "-" "-"', "10.0.0.1", "-"),
    "a long request": (
        "10.0.0.1 - -",
        '"GET /' + r"\x41" * 20_000 + '" 414 0 "-" "z"',
        "10.0.0.1",
        "z",
    ),
}
"""What stands before and after the time; the client, and the agent where it can be
told.
"""


@pytest.mark.parametrize("kind", COMBINED)
def test_a_combined_line_gives_client_and_agent(kind: str) -> None:
    before, after, client, agent = COMBINED[kind]
    found = re.search(FORMATS["combined"].request, f"{before} {AT} {after}")
    assert found is not None
    assert (found[1], found[2]) == (client, AT[1:-1])
    if agent is not None:
        assert found[3] == agent


@pytest.mark.parametrize(
    "line", ["", "not a line", f"10.0.0.1 - - {AT}", '10.0.0.1 - - [yesterday] "GET /" 200 1']
)
def test_what_is_no_combined_line_is_none(line: str) -> None:
    assert re.search(FORMATS["combined"].request, line) is None


HEAD = "Sep 21 14:13:20 lb haproxy[14389]: "
ACCEPTED = "10.0.1.2:33317 [06/Feb/2026:12:14:14.655]"
HAPROXY = {
    "http": f"{ACCEPTED} http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0",
    "TLS": f"{ACCEPTED} https~ static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0",
    "aborted": f"{ACCEPTED} http-in static/<NOSRV> -1/-1/-1/-1/5007 408 212 - - cR-- 0/0/0/0/0 0/0",
    "logasap": f"{ACCEPTED} http-in static/srv1 9/10/7/14/+30 200 +243 - - ---- 3/1/1/1/0 0/0",
    "IPv6": f"2001:db8::1{ACCEPTED[8:]} web app/s1 0/0/0/1/500 200 99 - - ---- 1/1/1/1/0 0/0",
}
REPORTS = (
    "Proxy http-in started.",
    "Proxy static stopped (cumulated conns: FE: 0, BE: 3).",
    (
        'Server static/srv1 is DOWN, reason: Layer4 connection problem, info: "Connection '
        'refused", '
        "check duration: 0ms."
    ),
    "Server static/srv1 is UP, reason: Layer7 check passed, code: 200.",
    (
        "Health check for server static/srv1 failed, reason: Layer4 timeout, check duration: "
        "2001ms, status: 0/2 DOWN."
    ),
    "backend static has no server available!",
    "Connect from 10.0.1.2:33312 to 10.0.3.31:8012 (www/HTTP)",
    "Stopping frontend http-in in 0 ms.",
    "10.0.1.2:33320 [06/Feb/2026:12:14:14.655] http-in/1: SSL handshake failure",
    "[WARNING]  (14389) : Exiting Master process...",
    "New worker (14391) forked",
)


@pytest.mark.parametrize(
    "head",
    [HEAD, "<134>1 2026-09-21T14:13:20+00:00 lb haproxy 1 - - ", ""],
    ids=["BSD", "ISO", "none"],
)
@pytest.mark.parametrize("kind", HAPROXY)
def test_a_haproxy_request_is_found_in_its_line(kind: str, head: str) -> None:
    found = re.search(FORMATS["haproxy"].request, head + HAPROXY[kind] + ' "GET / HTTP/1.1"')
    assert found is not None
    assert found[2] == "06/Feb/2026:12:14:14.655"
    assert found[3] in {"http-in", "https", "web"}


@pytest.mark.parametrize("head", [HEAD, ""], ids=["syslog", "none"])
def test_what_haproxy_reports_of_itself_is_no_request_and_not_bad(head: str) -> None:
    own = FORMATS["haproxy"].own
    assert own is not None
    assert [report for report in REPORTS if not re.search(own, head + report)] == []
    assert [
        report for report in REPORTS if re.search(FORMATS["haproxy"].request, head + report)
    ] == []
    assert not re.search(own, "Sep 21 14:13:20 lb sshd[1]: Connection closed by 10.0.0.1")


ALB = (
    "https {} app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:{} 10.0.0.1:80 0.086 0.048 0.037 "
    "200 200 0 57 "
    '"GET https://www.example.com:443/ HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 '
    "arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "
    '"Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" '
    '"arn:aws:acm:us-east-2:123456789012:certificate/1" '
    '1 {} "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"{}'
)
"""An entry as AWS documents it: time of the answer, port of the client, time of the
request, conn_trace_id.
"""


@pytest.mark.parametrize(
    "trace", [" TID_123456", ""], ids=["traced", "before there was a trace id"]
)
def test_an_entry_of_a_load_balancer_of_aws_gives_its_connection(trace: str) -> None:
    entry = ALB.format("2018-07-02T22:23:00.186641Z", 2817, "2018-07-02T22:22:48.364000Z", trace)
    found = re.match(FORMATS["alb"].request, entry)
    assert found is not None
    assert found.groups() == (
        "2018-07-02T22:23:00.186641Z", "192.168.131.39:2817", "2018-07-02T22:22:48.364000Z",
        trace.strip() or None
    )  # fmt: skip


# ---- on Spark


def advice_from(
    spark: Any, name: str, path: Path, timeout_s: int = 75, max_cut: float = 0.3
) -> dict[str, Any]:
    return advise(spark, Inputs(), (name, [path], timeout_s * S), Policy(max_cut=max_cut))


SECOND = 1_790_000_000
TRAEFIK = (
    '{"ClientAddr":"10.0.0.1:%s","ClientHost":"10.0.0.1","Duration":500000000,'
    '"RequestCount":9,"DownstreamStatus":200,'
    '"RouterName":"web@file","StartUTC":"2026-09-21T14:13:%s123456Z","entryPointName":"web",'
    '"level":"info","msg":"",'
    '"time":"2026-09-21T14:13:30Z"}'
)
CADDY = (
    '{"level":"info","ts":%s,"logger":"http.log.access.log0","msg":"handled request",'
    '"request":{"remote_ip":"127.0.0.1","remote_port":"%s","client_ip":"127.0.0.1",'
    '"proto":"HTTP/2.0",'
    '"method":"GET",'
    '"host":"localhost","uri":"/","headers":{"User-Agent":["curl/7.82.0"]}},'
    '"bytes_read":0,"duration":0.5,"status":200}'
)
ISTIO = (
    '{"authority":"httpbin:8000","bytes_received":"0","connection_termination_details":null,'
    '"duration":"500",'
    '"downstream_remote_address":"10.244.1.3:%s",'
    '"method":"GET","protocol":"HTTP/1.1","response_flags":"-",'
    '"start_time":"2026-09-21T14:13:%sZ","upstream_host":"10.244.1.5:8000"}'
)
LINES: dict[str, Callable[[int, int, float], str]] = {
    "nginx": lambda conn, turn, at: f"{SECOND + at + 0.5:.3f} {conn} {turn} 0.500",
    "nginx-json": lambda conn, turn, at: json.dumps(
        {
            "msec": f"{SECOND + at + 0.5:.3f}",
            "connection": conn,
            "connection_requests": str(turn),
            "request_time": "0.500",
        }
    ),
    "columns": lambda conn, turn, at: f"{SECOND + at + 0.5:.3f} 10.0.0.{conn}:80 {turn} 0.500",
    "haproxy": lambda conn, turn, at: (
        f"{HEAD}10.0.0.{conn}:4000 [21/Sep/2026:14:13:{20 + at:.3f}] web~ app/s1 0/0/0/1/500 200 "
        "99 - - ----"
        ' 1/1/1/1/0 0/0 "GET / HTTP/1.1"'
    ),
    "envoy": lambda conn, turn, at: json.dumps(
        {
            "start_time": f"2026-09-21T14:13:{20 + at}Z",
            "duration": (500, "500")[turn % 2],
            "connection_id": conn,
        }
    ),
    "traefik": lambda conn, turn, at: TRAEFIK % (4000 + conn, f"{20 + at:.3f}"),
    "caddy": lambda conn, turn, at: CADDY % (SECOND + at + 0.5, 41342 + conn),
    "alb": lambda conn, turn, at: ALB.format(
        f"2026-09-21T14:13:{20.5 + at:.6f}Z",
        2817,
        f"2026-09-21T14:13:{20 + at:.6f}Z",
        f" TID_{conn}",
    ),
    "iis": lambda conn, turn, at: (
        f"2026-09-21 14:13:{int(20.5 + at - turn / 2)} 10.0.9.9 GET / - 443 - 10.0.0.{conn} curl/8 "
        "- 200 0 0 0"
    ),
    "combined": lambda conn, turn, at: (
        f"10.0.0.{conn} - - [21/Sep/2026:14:13:{int(20.5 + at - turn / 2)} +0000]"
        ' "GET /\\"a\\" HTTP/1.1" 200 12 "-" "curl/8"'
    ),
}
REQUESTS = ((1, 1, 0.0), (1, 2, 2.5), (1, 3, 7.0), (2, 1, 0.5))
"""Connection, number, second at which it begins. Each takes half a second, but in
logs of whole seconds none.
"""
LOGS = {name: [line(*request) for request in REQUESTS] for name, line in LINES.items()}
ISTIOS = [ISTIO % (4000 + conn, f"{20 + at:.3f}") for conn, _, at in REQUESTS]
"""It tells connections by the client's port."""


ISO_COLUMNS = [
    f"2026-09-21T14:13:{20 + at:.3f}Z\t10.0.0.{conn}:80\t-\t-" for conn, _, at in REQUESTS[:1]
] + [
    f"2026-09-21 14:13:{20.5 + at:.3f},10.0.0.{conn}:80,-,0.5".replace(" ", "T")
    for conn, _, at in REQUESTS[1:]
]
"""Instants of ISO 8601, and what is not known left out. The first ends as it begins."""


REPORT = {
    "iis": f"#Fields: {_IIS}",
    "haproxy": HEAD + REPORTS[0],
    "caddy": '{"level":"info","ts":1790000000.1,"logger":"tls","msg":"cleaning storage unit"}',
    "traefik": '{"level":"info","msg":"Configuration loaded from file: '
    '/a.yml","time":"2026-09-21T14:13:20Z"}',
}
"""A line that such a server writes about itself into the same file."""


HOSTILE = {
    "traefik": [
        "[]",
        '{"ClientAddr": "10.0.0.1:1", "StartUTC": "9999-01-01T00:00:00Z", "Duration": 1}',
    ],
    "caddy": [
        "[]",
        json.dumps(
            {"ts": 1e300, "request": {"remote_ip": "::1", "remote_port": "1"}, "duration": 1}
        ),
    ],
    "alb": [ALB.format("9999-01-01T00:00:00Z", 1, "9999-01-01T00:00:00Z", "")],
    "nginx": [
        f"{'9' * 40}.5 17 1 0.500",
        f"{SECOND}.5 17 {'9' * 30} 0.500",
        f"{SECOND}.5 17 1 {'9' * 30}.0",
    ],
    "nginx-json": [
        "[]",
        '{"msec": "1790000000.1", "connection": 5, "connection_requests": 1}',
        json.dumps({"msec": "9" * 40, "connection": 5, "request_time": 1}),
    ],
    "columns": [
        f"{'9' * 40}.5 a 1 0.500",
        "yesterday a 1 0.5",
        f"{SECOND}.5 a b 0.5",
        f"{SECOND}.5 - 1 0.5",
        f"{SECOND}.5",
    ],
    "iis": [
        "9999-01-01 00:00:00 10.0.9.9 GET / - 443 - 10.0.0.1 curl/8 - 200 0 0 0",
        "2026-09-21 14:13:20 10.0.9.9 GET /",
    ],
    "haproxy": [line.replace("/2026:", "/9999:") for line in LOGS["haproxy"][:1]],
    "envoy": [
        "{",
        "[]",
        '{"start_time": "9999-01-01T00:00:00Z", "duration": 1, "connection_id": 5}',
    ],
    "combined": [
        f'10.0.0.1 - - [21/Sep/{year}:14:13:20 +0000] "GET /" 200 1 "-" "x"'
        for year in (1066, 9999)
    ],
}


@pytest.mark.parametrize(("name", "requests"), [*LOGS.items(), ("envoy", ISTIOS)])
def test_a_log_gives_the_silences_that_are_in_it(
    spark: Any, tmp_path: Path, name: str, requests: list[str]
) -> None:
    # Two connections: silences of 2.0 s and 4.0 s on the first, none on the second.
    path = tmp_path / f"{name}.log"
    bad = ["not a line of any format", *HOSTILE[name], "\udcff\udcfe no text"]
    own = name in REPORT
    log = "\n".join([*requests, *([REPORT[name]] if own else []), *bad, ""])
    path.write_bytes(log.encode(errors="surrogateescape"))
    summary = advice_from(spark, name, path)
    (entry,) = summary["listeners"].values()
    assert (entry["connections"], entry["silences"], entry["silences_ended"]) == (2, 4, 2)
    assert [time for time, *_ in entry["survival"]] == [2.0, 4.0]
    counted = [
        summary[key] for key in ("rows_read", "rows_judged", "rows_of_writers", "rows_apart")
    ]
    lines = 4 + own + len(bad)
    assert counted == [lines, 4, own, len(bad)]
    (aside,) = summary["quarantined"]
    assert aside["reason"].startswith(f"{len(bad)} of {lines} line(s) are not in {name} format: '")
    assert any("do not show" in note for note in summary["notes"])


def test_columns_may_have_instants_of_iso_8601_and_leave_out_what_is_not_known(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("\n".join(ISO_COLUMNS))
    summary = advice_from(spark, "columns", tmp_path / "a")
    assert summary["quarantined"] == []
    (entry,) = summary["listeners"].values()
    assert (entry["connections"], entry["silences"], entry["silences_ended"]) == (2, 4, 2)
    assert [time for time, *_ in entry["survival"]] == [2.5, 4.0]


@pytest.mark.parametrize("name", FORMATS)
def test_the_line_that_a_message_shows_is_one_of_its_format(name: str) -> None:
    example, known = FORMATS[name].example, FORMATS[name]
    if known.request and name != "alb":  # of AWS's twenty fields a message shows the first
        assert re.search(known.request, example)
    assert name not in other_formats("none", ["no line"])
    assert name in other_formats("none", [LOGS[name][0]])


def test_a_log_in_another_format_is_told_how_to_log_and_what_it_is(
    pipeline: Ran, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text("\n".join(LOGS["combined"]))
    given = ("advise", "--logs", tmp_path / "a.log", "--format", "nginx", "--out", tmp_path / "out")
    status, said, _ = pipeline(*given)
    assert status == 1
    assert "(they are, as combined)" in said
    assert "a line of it is '1790000000.123 17 2 0.005'" in said
    assert "log_format reaper '$msec $connection $connection_requests $request_time';" in said


def night(*times: str) -> str:
    """A HAProxy log of connections that ask every minute; *times*: HH:MM."""
    lines = [
        f"{HEAD}10.0.0.1:4000 [25/Oct/2026:{at}:00.000] web app/s1 0/0/0/1/500 200 99 - - ----"
        for at in times
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("ending", [".log", ".log.gz"])
def test_the_hour_that_is_there_twice_when_summer_time_ends_has_a_reason(
    spark: Any, tmp_path: Path, ending: str
) -> None:
    back, plain = (tmp_path / f"{name}{ending}" for name in ("back", "plain"))
    pack = gzip.compress if ending.endswith("gz") else bytes
    back.write_bytes(pack(night("01:58", "02:30", "02:59", "02:00", "02:31", "03:00").encode()))
    plain.write_bytes(pack(night("01:58", "02:30", "02:59", "03:00").encode()))
    (aside,) = advice_from(spark, "haproxy", back)["quarantined"]
    assert aside["path"] == str(back)
    assert "its clock was put back about 25/Oct/2026:02:00:00: an hour is there twice" in str(aside)
    assert advice_from(spark, "haproxy", plain)["quarantined"] == []


def test_a_gzip_of_several_members_is_read_to_its_end(spark: Any, tmp_path: Path) -> None:
    lines = LOGS["nginx"]
    members = [gzip.compress(("\n".join(part) + "\n").encode()) for part in (lines[:1], lines[1:])]
    (tmp_path / "a.gz").write_bytes(b"".join(members))
    assert advice_from(spark, "nginx", tmp_path / "a.gz")["rows_read"] == 4


def test_a_file_that_is_no_gzip_though_its_name_says_so_is_named(
    pipeline: Ran, tmp_path: Path
) -> None:
    (tmp_path / "a.gz").write_text("\n".join(LOGS["nginx"]))
    given = ("advise", "--logs", tmp_path / "a.gz", "--format", "nginx", "--out", tmp_path / "out")
    status, _, said = pipeline(*given)
    assert (status, said.count("\n")) == (2, 1)
    assert f"{tmp_path / 'a.gz'} is not gzip" in said


def test_a_log_that_is_cut_is_named(pipeline: Ran, tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(LOGS["nginx"] * 500).encode())
    (tmp_path / "a.gz").write_bytes(whole[:-20])
    given = ("advise", "--logs", tmp_path / "a.gz", "--format", "nginx", "--out", tmp_path / "out")
    status, _, said = pipeline(*given)
    assert (status, said.count("\n")) == (2, 1)
    assert said.endswith(f": {tmp_path / 'a.gz'} cannot be read: it is damaged or cut\n")


def test_of_a_log_that_is_cut_spark_says_the_same() -> None:
    said = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///logs/a%20b.gz. "
    assert _why(OSError(said)) == "/logs/a b.gz cannot be read: it is damaged or cut"


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "b.log").symlink_to("a.log")
    assert log_files([tmp_path / "a.log", tmp_path, tmp_path / "b.log"]) == [tmp_path / "a.log"]


def test_visits_days_apart_are_no_silences(spark: Any, tmp_path: Path) -> None:
    visits = [
        f'10.0.0.1 - - [{day}/May/2026:10:00:{at} +0000] "GET / HTTP/1.1" 200 9'
        for day in (17, 19)
        for at in (10, 20)
    ]
    (tmp_path / "access.log").write_text("\n".join(visits))
    summary = advice_from(spark, "combined", tmp_path / "access.log")
    (entry,) = summary["listeners"].values()
    assert (
        entry["connections"],
        entry["silences"],
        entry["silences_ended"],
        entry["longest_seen_s"],
    ) == (2, 4, 2, 75)
    # At most 75 s of a visit's end are counted as open: days between visits are not.
    assert max(row["mean_open"] for row in entry["trade_off"]) < 0.01
    assert any("may be too short or too long" in note for note in summary["notes"])


def test_an_nginx_connection_whose_lines_have_a_hole_is_not_taken_for_a_long_silence(
    spark: Any, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    path.write_text(
        "1790000000.000 1 1 0.000\n1790000001.000 1 2 0.000\n1790000060.000 1 9 0.000\n"
    )
    (entry,) = advice_from(spark, "nginx", path)["listeners"].values()
    assert entry["silences_ended"] == 1
