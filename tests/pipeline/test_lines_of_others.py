"""One line, in the shape that its maker publishes, of each format and year: what comes
out of it, or the refusal that names what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

import pyarrow as pa

from reaper.pipeline.advise.access_logs import FORMATS, log_files, read_requests
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.arguments import Fault
from reaper.pipeline.engine import F
from reaper.pipeline.losses.run import losses
from reaper.pipeline.read.frames import small_frame
from reaper.pipeline.read.inputs import Inputs
from tests.conftest import Ran

ALB = (
    "https 2026-09-21T14:13:25.000000Z app/shop/50dc6c495c0c9188 10.0.0.1:40001 10.0.9.9:80 0.000 "
    '0.048 0.000 200 200 34 366 "GET https://shop.example:443/ HTTP/1.1" "curl/8" '
    "ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:eu-1:1:targetgroup/t/1 "
    '"Root=1-5833" "shop.example" "arn:aws:acm:eu-1:1:certificate/1" 0 '
    '2026-09-21T14:13:20.000000Z "forward" "-" "-"'
)
CADDY = (
    '{"level":"info","ts":%s,"logger":"http.log.access.log0","msg":"handled request","request":{%s,'
    '"proto":"HTTP/2.0","method":"GET","host":"a.example","uri":"/","headers":{}},"user_id":"",'
    '"duration":5,"size":99,"status":200,"resp_headers":{}}'
)
TRAEFIK = (
    '{"ClientAddr":"10.0.0.1:40001","ClientHost":"10.0.0.1","ClientPort":"40001","DownstreamStatus":'
    '200,"Duration":5000000000,"OriginDuration":1,"OriginStatus":200,"RequestCount":9,%s'
    '"RouterName":"web@file","ServiceAddr":"10.0.9.9:80","entryPointName":"web","level":"info",'
    '"msg":"","time":"2026-09-21T14:13:25Z"}'
)
HAPROXY = (
    "10.0.0.1:40001 [21/Sep/2026:14:13:20.000] web%s app/s1 0/0/0/1/5000 200 99 - - ---- "
    '1/1/1/1/0 0/0 %s"GET / HTTP/1.1"%s'
)
COMBINED = '10.0.0.1 - - [21/Sep/2026:14:13:20 +0000] "GET / HTTP/1.1" 200 12'
ISTIO = (
    '{"authority":"a:8000","bytes_received":0,"bytes_sent":5,"connection_termination_details":null,'
    '"downstream_local_address":"10.0.9.9:80","downstream_remote_address":"10.0.0.1:40001",'
    '"duration":5000,"method":"GET","path":"/","protocol":"HTTP/1.1","response_code":200,'
    '"response_flags":"-","route_name":"default","start_time":"2026-09-21T14:13:20.000Z",'
    '"upstream_cluster":"inbound|80||","upstream_host":"10.0.9.9:80"}'
)
IIS_10 = (
    "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n"
    "#Date: 2026-09-21 14:00:00\n"
    "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip "
    "cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken\n"
    "2026-09-21 14:13:25 10.0.9.9 GET /a.html q=1 443 - 10.0.0.1 curl/8 - 200 0 0 5000"
)
IIS_7 = (
    "#Software: Microsoft Internet Information Services 7.5\n#Version: 1.0\n"
    "#Date: 2012-07-30 00:00:00\n"
    "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip "
    "cs(User-Agent) sc-status sc-substatus sc-win32-status time-taken \n"
    "2026-09-21 14:13:25 10.0.9.9 GET /a.html - 80 - 10.0.0.1 curl/8 200 0 0 5000"
)
IIS_PORT = (
    "#Fields: date time c-ip c-port cs-method cs-uri-stem sc-status time-taken\n"
    "2026-09-21 14:13:25 10.0.0.1 40001 GET /a.html 200 5000"
)

PORT = "10.0.0.1:40001"
KNOWN = {
    "nginx, of ours": ("nginx", "1790000005.000 17 2 5.000", "17"),
    "nginx, and more": ("nginx", '1790000005.000 17 2 5.000 "GET / HTTP/1.1" 200', "17"),
    "nginx JSON, as it is passed around": (
        "nginx-json",
        (
            '{"msec": "1790000005.000", "connection": "17", "connection_requests": "2", "pid": "7", '
            '"remote_addr": "10.0.0.1", "time_local": "21/Sep/2026:14:13:25 +0000", "time_iso8601": '
            '"2026-09-21T14:13:25+00:00", "request": "GET / HTTP/1.1", "status": "200", '
            '"request_time": "5.000", "upstream_addr": "10.0.9.9:80"}'
        ),
        "17",
    ),
    "nginx JSON with numbers, and without msec": (
        "nginx-json",
        (
            '{"time_iso8601":"2026-09-21T16:13:25+02:00","connection":17,"connection_requests":2,'
            '"request_time":5.000}'
        ),
        "17",
    ),
    "Apache common": ("combined", COMBINED, "10.0.0.1"),
    "Apache combined": ("combined", f'{COMBINED} "-" "curl/8"', "10.0.0.1 curl/8"),
    "Apache vhost_combined": (
        "combined",
        f'a.example:443 {COMBINED} "-" "curl/8"',
        "10.0.0.1 curl/8",
    ),
    "a virtual host without a port": (
        "combined",
        f'a.example {COMBINED} "-" "curl/8"',
        "10.0.0.1 curl/8",
    ),
    "nginx by way of syslog": (
        "combined",
        f'Aug 24 01:25:11 lb nginx[1]: {COMBINED} "-" "curl/8"',
        "10.0.0.1 curl/8",
    ),
    "nginx to a syslog of ISO times": (
        "combined",
        f'2026-09-21T14:13:20+00:00 lb nginx: {COMBINED} "-" "curl/8"',
        "10.0.0.1 curl/8",
    ),
    "HAProxy http": ("haproxy", HAPROXY % ("", "", ""), f"{PORT} web"),
    "HAProxy http in syslog": (
        "haproxy",
        "<134>Sep 21 14:13:20 lb haproxy[9]: " + HAPROXY % ("~", "{a.example} {} ", ""),
        f"{PORT} web",
    ),
    "HAProxy https": (
        "haproxy",
        HAPROXY % ("~", "", " 0/0/0/0/0 a.example/TLSv1.3/TLS_AES_256_GCM_SHA384"),
        f"{PORT} web",
    ),
    "ALB of 2018": ("alb", ALB, PORT),
    "ALB of 2020": ("alb", f'{ALB} "10.0.9.9:80" "200" "-" "-"', PORT),
    "ALB with a trace id": (
        "alb",
        f'{ALB} "10.0.9.9:80" "200" "-" "-" TID_1234abcd',
        "TID_1234abcd",
    ),
    "ALB since August 2025": (
        "alb",
        f'{ALB} "10.0.9.9:80" "200" "-" "-" TID_1234abcd "m.example" "-" "TransformSuccess"',
        "TID_1234abcd",
    ),
    "Envoy JSON": (
        "envoy",
        (
            '{"start_time":"2026-09-21T14:13:20.000Z","duration":5000,"connection_id":17,'
            '"response_code":200}'
        ),
        "17",
    ),
    "Istio JSON": ("envoy", ISTIO, PORT),
    "Caddy 2.4": ("caddy", CADDY % ("1790000005.0", f'"remote_addr":"{PORT}"'), PORT),
    "Caddy 2.6": (
        "caddy",
        CADDY % ("1790000005.0", '"remote_ip":"10.0.0.1","remote_port":"40001"'),
        "10.0.0.1 40001",
    ),
    "Caddy with ISO times": (
        "caddy",
        CADDY
        % (
            '"2026-09-21T14:13:25.000Z"',
            '"remote_ip":"10.0.0.1","remote_port":"40001","client_ip":"10.0.0.1"',
        ),
        "10.0.0.1 40001",
    ),
    "Traefik JSON": (
        "traefik",
        TRAEFIK % '"StartLocal":"2026-09-21T16:13:20.000000000+02:00",'
        '"StartUTC":"2026-09-21T14:13:20.000000000Z",',
        PORT,
    ),
    "Traefik JSON without StartUTC": (
        "traefik",
        TRAEFIK % '"StartLocal":"2026-09-21T16:13:20.000000000+02:00",',
        PORT,
    ),
    "Traefik JSON with time alone": ("traefik", TRAEFIK % "", PORT),
    "IIS 10": ("iis", IIS_10, "10.0.0.1 curl/8"),
    "IIS 7.5": ("iis", IIS_7, "10.0.0.1 curl/8"),
    "IIS with the client's port": ("iis", IIS_PORT, "10.0.0.1 40001"),
    "columns": ("columns", f"1790000005.000 {PORT} 2 5.000", PORT),
    "columns of a table": (
        "columns",
        "session_id,last_seen,done\na b,2026-09-21 14:13:20,2026-09-21 14:13:25.000000+00",
        "a b",
    ),
    "columns of a table, as COPY prints them": ("columns", "17\t1790000000\t1790000005", "17"),
}
"""A request from 14:13:20 to 14:13:25 on 21 September 2026, UTC; its key. A combined
log knows its beginning alone.
"""


def asked(
    session: Any, tmp_path: Path, name: str, text: str | Sequence[str]
) -> tuple[Any, list[Any]]:
    path = tmp_path / "log"
    path.write_text(text if isinstance(text, str) else "\n".join(text))
    found = read_requests(session, name, [path])
    return found, found.frame.select("key", "start_ns", "end_ns").collect()


def check_known(session: Any, tmp_path: Path, kind: str) -> None:
    name, text, key = KNOWN[kind]
    found, rows = asked(session, tmp_path, name, text)
    long = 0 if name == "combined" else 5
    start = 1_790_000_000 * 10**9
    assert [tuple(row) for row in rows] == [(key, start, start + long * 10**9)]
    assert (found.bad, found.own) == (0, len(text.splitlines()) - 1)


@pytest.mark.parametrize("kind", KNOWN)
def test_a_request_comes_out_of_a_line_as_its_maker_writes_it(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    check_known(spark, tmp_path, kind)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_each_of_them_alike(real_spark: Any, tmp_path: Path) -> None:
    for kind in KNOWN:
        check_known(real_spark, tmp_path, kind)


def test_each_format_has_a_line() -> None:
    assert {name for name, _, _ in KNOWN.values()} == FORMATS.keys()


CADDY_LINE = CADDY % ("1790000005.0", '"remote_ip":"10.0.0.1","remote_port":"40001"')
BAD = {
    "a connection that is none": ("columns", "1790000005.000 - 2 5.000", ""),
    "milliseconds since 1970": ("columns", "a,1790000000000", ""),
    "what stands before a client is no virtual host": (
        "combined",
        f'x y z {COMBINED} "-" "curl/8"',
        "",
    ),
    "a client of a socket of the machine": ("combined", COMBINED.replace("10.0.0.1", "unix:"), ""),
    "an access line without its duration": (
        "caddy",
        CADDY_LINE.replace('"duration":5,', ""),
        "",
    ),
    "an access line of Traefik without an address": (
        "traefik",
        (TRAEFIK % "").replace('"ClientAddr":"10.0.0.1:40001",', ""),
        "",
    ),
    "HAProxy tcp": (
        "haproxy",
        f"{PORT} [21/Sep/2026:14:13:20.000] tcp-in db/s1 0/0/5000 212 -- 0/0/0/0/3 0/0",
        "HAProxy's TCP log",
    ),
    "NLB": (
        "alb",
        (
            "tls 2.0 2026-09-21T14:13:20 net/lb/c6e77e28c25b2234 g3d4b5e8bb8464cd 10.0.0.1:40001 "
            "10.0.9.9:443 5 2 98 246 - arn:aws:acm:eu-1:1:certificate/1 - "
            "ECDHE-RSA-AES128-SHA tlsv12 - a.example - - - 2026-09-21T14:13:20"
        ),
        "a Network Load Balancer's log",
    ),
    "Envoy text": (
        "envoy",
        (
            '[2026-09-21T14:13:20.000Z] "POST /a HTTP/2" 204 - 154 0 226 100 "10.0.0.1" "curl/8" '
            '"cc21d9b0-cf5c" "a" "tcp://10.0.9.9:80"'
        ),
        "Envoy's or Istio's default text",
    ),
    "Istio text": (
        "envoy",
        (
            '[2026-09-21T14:13:20.000Z] "GET /a HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "-" '
            '"curl/8" "84961386-6d84" "a:8000" "10.0.9.9:80" inbound|80|| 127.0.0.1:41854 '
            "10.0.9.9:80 10.0.0.1:37652 outbound_.8000_._.a default"
        ),
        "Envoy's or Istio's default text",
    ),
    "Traefik CLF": (
        "traefik",
        f'{COMBINED} "-" "curl/8" 5 "web@docker" "http://10.0.9.9:80" 87ms',
        "Traefik's CLF",
    ),
    "IIS under another name": (
        "combined",
        "#Software: Microsoft Internet Information Services 10.0",
        "W3C's extended format",
    ),
}
"""What is no request, and no report of the server about itself; what it is called."""


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_told_is_bad_and_is_called_by_its_name(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    name, line, words = BAD[kind]
    found, rows = asked(spark, tmp_path, name, line)
    assert (rows, found.bad, found.own) == ([], 1, 0)
    assert found.stranger.startswith(f". This is {words}" if words else "")


OWN = {
    "a plugin of Caddy": (
        "caddy",
        '{"level":"info","ts":1790000005.0,"logger":"crowdsec","msg":"using API key auth"}',
    ),
    "a handler of Caddy that tells of a request": (
        "caddy",
        (
            '{"level":"debug","ts":1790000005.0,"logger":"http.handlers.reverse_proxy","msg":'
            '"upstream roundtrip","upstream":"10.0.9.9:80","duration":5,"request":{"remote_ip":'
            '"10.0.0.1","remote_port":"40001"},"status":200}'
        ),
    ),
    "an error of Caddy, which its access log tells, too": (
        "caddy",
        (
            '{"level":"error","ts":1790000005.0,"logger":"http.log.error","msg":"EOF","request":'
            '{"remote_ip":"10.0.0.1","remote_port":"40001"},"duration":5,"status":502}'
        ),
    ),
    "Traefik of itself": (
        "traefik",
        (
            '{"level":"error","routerName":"a@file","msg":"no such service","time":'
            '"2026-09-21T14:13:20Z"}'
        ),
    ),
    "Traefik 3 in text": ("traefik", "2026-09-21T14:13:20Z INF Starting provider *file.Provider"),
    "Envoy of itself": ("envoy", "[2026-09-21 14:13:20.123][1][info][main] [source/server.cc:1]"),
    "an error log of nginx": (
        "nginx",
        "2026/09/21 14:13:20 [error] 7#7: *1 upstream timed out (110: Operation timed out)",
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_report_of_the_server_about_itself_is_excused_and_counted(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    name, line = OWN[kind]
    found, rows = asked(spark, tmp_path, name, line)
    assert (rows, found.bad, found.own) == ([], 0, 1)


def check_keys(session: Any, tmp_path: Path) -> None:
    clients = [f"10.0.{x}.7:{port}" for x in range(100, 140) for port in range(10_000, 10_050)]
    text = [f"1790000000.000 {client} - 0.005" for client in clients]
    (tmp_path / "log").write_text("\n".join(text))
    logs = "columns", [tmp_path / "log"], 75 * 10**9
    (entry,) = advise(session, Inputs(), logs, Policy())["listeners"].values()
    assert entry["connections"] == len(clients)


def test_connections_are_told_apart_by_their_text(spark: Any, tmp_path: Path) -> None:
    """An engine's hash merges addresses that differ in every eighth character."""
    check_keys(spark, tmp_path)


@pytest.mark.slow
@pytest.mark.spark
def test_connections_are_told_apart_by_their_text_on_spark(real_spark: Any, tmp_path: Path) -> None:
    check_keys(real_spark, tmp_path)


def test_listeners_are_told_apart_too(spark: Any) -> None:
    names = [(f"10.0.{x}.7:{port}",) for x in range(100, 140) for port in range(10_000, 10_050)]
    frame = small_frame(spark, names, pa.schema([("name", pa.string())]))
    hashes = frame.select(F.xxhash64("name").alias("hash")).distinct().count()
    assert hashes == len(names)


LOST = '"StartLocal":"2026-09-21T14:13:%06.3fZ",'


def test_requests_that_traefik_lost_are_told_without_start_utc(spark: Any, tmp_path: Path) -> None:
    """They have a level and a message, as reports of the server about itself have."""
    lines = []
    for turn, status in ((0, 200), (5, 502), (6, 200), (11, 502)):
        line = (TRAEFIK % (LOST % (20 + turn))).replace("5000000000", "10000000")
        lines.append(
            line.replace('Status":200', f'Status":{status}').replace(
                '"DownstreamStatus":200', f'"DownstreamStatus":{status}'
            )
        )
    (tmp_path / "log").write_text("\n".join(lines))
    found = losses(spark, "traefik", [tmp_path / "log"])
    assert (found["lost"], found["result"], found["lines_of_the_server"]) == (2, "fail", 0)


def test_a_member_that_is_left_out_is_no_answer(spark: Any, tmp_path: Path) -> None:
    """A log without response_flags does not say that none was lost."""
    line = ISTIO.replace('"response_flags":"-",', "")
    (tmp_path / "log").write_text("\n".join([line] * 30))
    found = losses(spark, "envoy", [tmp_path / "log"])
    assert (found["result"], found["requests"]) == ("inconclusive", 0)


def test_what_losses_excuses_stands_in_its_first_line(pipeline: Ran, tmp_path: Path) -> None:
    unserved = ISTIO.replace('"upstream_host":"10.0.9.9:80"', '"upstream_host":null')
    (tmp_path / "log").write_text("\n".join([ISTIO, unserved, OWN["Envoy of itself"][1]]))
    given = ("losses", "--logs", tmp_path / "log", "--format", "envoy", "--out", tmp_path / "out")
    status, said, _ = pipeline(*given)
    assert status == 0
    assert said.splitlines()[0] == (
        "envoy: 0 of 1 requests lost to an idle close; of 3 lines 1 answered by the proxy itself, "
        "1 no request"
    )


def test_lengths_in_another_unit_are_refused(pipeline: Ran, tmp_path: Path) -> None:
    """Milliseconds read as seconds turn silences of 30 s into none."""
    lines = [f"{1_790_000_000 + 30 * turn}.000 a {turn + 1} 40" for turn in range(500)]
    (tmp_path / "log").write_text("\n".join(lines))
    given = ("--format", "columns", "--out", tmp_path / "out", "--max-cut", "0.3")
    status, said, _ = pipeline("advise", "--logs", tmp_path / "log", *given)
    assert (status, (tmp_path / "out" / "reaper.toml").exists()) == (1, False)
    assert "99.8% of the requests begin before the one before them" in said
    assert "are the lengths in seconds?" in said


def test_logs_are_found_however_deep_they_lie(spark: Any, tmp_path: Path) -> None:
    deep = tmp_path / "AWSLogs" / "1" / "elasticloadbalancing" / "eu-1" / "2026" / "09" / "21"
    deep.mkdir(parents=True)
    (deep / "a.log").write_text(ALB)
    (deep / ".partly").write_text("no line")
    assert log_files([tmp_path / "AWSLogs"]) == [deep / "a.log"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (IIS_10.splitlines()[-1], "no line begins with '#Fields: '"),
        (f"{IIS_10}\n{IIS_7}", "the fields change"),
        (IIS_10.replace(" time-taken", "").replace("- 200 0 0 5000", "- 200 0 0"), "no time-taken"),
    ],
)
def test_an_iis_log_that_does_not_say_what_its_fields_are_is_refused(
    spark: Any, tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(Fault, match=said):
        asked(spark, tmp_path, "iis", text)


def test_without_a_format_the_formats_are_listed(pipeline: Ran, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no line")
    status, _, said = pipeline("advise", "--logs", tmp_path / "log", "--out", tmp_path / "out")
    assert (status, said.count("\n")) == (2, 1)
    assert "one of alb, caddy, columns, combined, envoy, haproxy, iis, nginx, nginx-json" in said
