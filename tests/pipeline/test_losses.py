"""Requests lost to an idle close: recorded lines of every format, and races that were
planted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

from reaper.config.balancers import BALANCERS
from reaper.pipeline.losses.formats import KNOWN
from reaper.pipeline.losses.run import MARGIN_S, idle_band, losses
from scripts import races, tools
from scripts.races import asked, datagrams, uvicorn, wire
from tests.conftest import Ran
from tests.helpers.attach_servers import free_port, running, tool, until

SECOND = 1_790_000_000
ASKED = ((0, "ok"), (5, "lost"), (6, "ok"), (11, "lost"), (12, "ok"), (13, "refused"), (14, "ok"))
"""The second at which each request begins, and what comes of it. An answer takes 10 ms,
and so the silences before those that are lost are of 4.99 s.
"""
CUT = (20, "cut")
"""One whose server closes after it has worked for a while."""


def nginx(at: float, what: str) -> str:
    end, took = {"cut": (at + 2, "2.000")}.get(what, (at + 0.01, "0.010"))
    status = {"ok": "200", "saved": "200"}.get(what, "502")
    addr, tried = "10.0.0.1:80", status
    if what == "saved":
        addr, tried = "10.0.0.1:80, 10.0.0.1:80", "502, 200"
    connected = "-" if what == "refused" else "0.000"
    head, size = (took, "94") if status == "200" else ("-", "0")
    return (
        f'{SECOND + end:.3f} {took} {status} "{addr}" "{tried}" "{connected}" "{took}" "{head}" '
        f'"{size}"'
    )


def nginx_json(at: float, what: str) -> str:
    """The line of `nginx`, as an object."""
    time, took, status, *quoted = nginx(at, what).replace(", ", ",").split()
    addr, tried, connected, answered, _, size = (
        each.strip('"').replace(",", ", ") for each in quoted
    )
    return json.dumps(
        {
            "upstream_status": tried,
            "request_uri": "/",
            "msec": time,
            "request_time": took,
            "status": status,
            "upstream_addr": addr,
            "upstream_connect_time": connected,
            "upstream_response_time": answered,
            "upstream_bytes_received": size,
        }
    )


def haproxy(at: float, what: str) -> str:
    state = {"ok": "----", "refused": "SC--"}.get(what, "SH--")
    times = {"ok": "0/0/0/10/10", "refused": "0/0/-1/-1/10", "cut": "0/0/0/-1/2000"}
    status = {"ok": 200, "refused": 503}.get(what, 502)
    return (
        f"haproxy[9]: 10.0.0.9:4711 [21/Sep/2026:14:13:{20 + at:06.3f}] web app/s1 "
        f'{times.get(what, "0/0/0/-1/10")} {status} 99 - - {state} 1/1/1/1/0 0/0 "POST / HTTP/1.1"'
    )


def envoy(at: float, what: str) -> str:
    flags = {"ok": "-", "refused": "UF,URX"}.get(what, "UC")
    return json.dumps(
        {
            "start_time": f"2026-09-21T14:13:{20 + at:06.3f}Z",
            "duration": 2000 if what == "cut" else 10,
            "response_code": 200 if what == "ok" else 503,
            "response_flags": flags,
            "upstream_host": "10.0.0.1:80",
        }
    )


def alb(at: float, what: str) -> str:
    began, took = 20 + at, 2 if what == "cut" else 0.01
    codes = {"ok": "200 200", "refused": "504 -"}.get(what, "502 -")
    return (
        f"https 2026-09-21T14:13:{began + took:09.6f}Z app/lb/50dc6c495c0c9188 10.0.0.9:4711 "
        f'10.0.0.1:80 0.000 -1 -1 {codes} 34 366 "POST https://example.com:443/ HTTP/1.1" "curl/8" '
        "ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:x "
        f'"Root=1-58337281" "example.com" "arn:aws:acm:x" 0 2026-09-21T14:13:{began:09.6f}Z "forward" '
        '"-" "-" "10.0.0.1:80" "-" "-" "-"'
    )


def caddy(at: float, what: str) -> str:
    took = 2 if what == "cut" else 0.01
    request = {"remote_ip": "10.0.0.9", "method": "POST", "host": "example.com", "uri": "/"}
    line: dict[str, Any] = {"level": "info", "ts": SECOND + at + took}
    line["logger"] = "http.log.access.log0" if what == "ok" else "http.log.error.log0"
    dial = "dial tcp 10.0.0.1:80: connect: connection refused"
    line["msg"] = {"ok": "handled request", "refused": dial}.get(what, "EOF")
    line |= {"request": request, "duration": took, "status": 200 if what == "ok" else 502}
    text = json.dumps(line, separators=(",", ":"))
    if what == "ok":
        return text
    access = line | {"logger": "http.log.access.log0", "msg": "handled request"}
    return text + "\n" + json.dumps(access, separators=(",", ":"))


def traefik(at: float, what: str) -> str:
    status = {"ok": 200, "refused": 504}.get(what, 502)
    return json.dumps(
        {
            "StartUTC": f"2026-09-21T14:13:{20 + at:06.3f}Z",
            "Duration": 2 * 10**9 if what == "cut" else 10**7,
            "DownstreamStatus": status,
            "OriginStatus": status,
            "ServiceAddr": "10.0.0.1:80",
            "RequestCount": 3,
            "level": "info",
            "msg": "",
        }
    )


LINES = {
    "nginx": nginx,
    "nginx-json": nginx_json,
    "haproxy": haproxy,
    "envoy": envoy,
    "alb": alb,
    "caddy": caddy,
    "traefik": traefik,
}


def written(path: Path, name: str, asked: tuple[tuple[float, str], ...]) -> Path:
    path.write_text("".join(f"{LINES[name](at, what)}\n" for at, what in asked))
    return path


def test_every_format_has_recorded_lines() -> None:
    assert LINES.keys() == KNOWN.keys()


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_lost_is_counted_and_what_failed_otherwise_is_told_apart(
    spark: Any, tmp_path: Path, name: str
) -> None:
    found = losses(spark, name, [written(tmp_path / "log", name, (*ASKED, CUT))])
    ((_, entry),) = found["upstreams"].items()
    assert (found["quarantined"], found["result"]) == ([], "fail")
    assert (entry["lost"], entry["untold"], entry["failed_otherwise"]) == (2, 0, 2)
    low, high = entry["silence_s"]
    assert 4.98 < low <= high < 5.0
    assert entry["requests"] == len(ASKED) + 1
    idle = BALANCERS[KNOWN[name].balancer].idle
    assert found["keep_alive_s"] == idle + MARGIN_S


@pytest.mark.parametrize("name", KNOWN)
def test_without_a_race_nothing_is_lost(spark: Any, tmp_path: Path, name: str) -> None:
    kept = tuple((at, what) for at, what in (*ASKED, CUT) if what != "lost")
    found = losses(spark, name, [written(tmp_path / "log", name, kept)])
    assert (found["lost"], found["untold"], found["result"]) == (0, 0, "pass")
    assert found["keep_alive_s"] is None


@pytest.mark.parametrize("name", KNOWN)
def test_a_message_shows_a_line_of_its_format(name: str, spark: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        KNOWN[name].example.replace("...", '"-" 1 2026-09-21T14:13:20.123Z "x" ') + "\nno line\n"
    )
    found = losses(spark, name, [tmp_path / "log"])
    (aside,) = found["quarantined"]
    assert aside["reason"].startswith(f"1 of 2 line(s) are not in {name} format: 'no line'")
    assert KNOWN[name].how in aside["reason"]
    assert found["requests"] == 1


@pytest.mark.parametrize("name", ["nginx", "nginx-json"])
def test_a_request_that_another_try_answered_is_not_lost_but_counted(
    spark: Any, tmp_path: Path, name: str
) -> None:
    found = losses(spark, name, [written(tmp_path / "log", name, ((0, "ok"), (5, "saved")))])
    ((_, entry),) = found["upstreams"].items()
    assert (entry["lost"], entry["saved_by_another_try"]) == (0, 1)


def test_a_server_that_closes_at_once_after_any_silence_is_untold(
    spark: Any, tmp_path: Path
) -> None:
    """It dies of some requests: the silences before them have nothing in common."""
    times = ((0, "ok"), (1, "lost"), (2, "ok"), (5, "lost"), (6, "ok"), (14, "lost"), (20, "lost"))
    found = losses(spark, "nginx", [written(tmp_path / "log", "nginx", times)])
    assert (found["lost"], found["untold"]) == (1, 3)  # the last on a connection that was new


def test_of_several_connections_each_has_its_own_silence(spark: Any, tmp_path: Path) -> None:
    """Two at once: the one that is put back last is taken first."""
    each = (
        (20.0, 1000, "-"),
        (20.5, 1500, "-"),  # on another connection; put back at 22.0
        (23.0, 100, "-"),  # takes that one
        (25.0, 1, "UC"),  # and again, after 1.9 s
        (26.0, 1, "UC"),  # the first, after 5.0 s
    )
    lines = [
        json.dumps(
            {
                "start_time": f"2026-09-21T14:13:{at:06.3f}Z",
                "duration": took,
                "response_code": 200 if flags == "-" else 503,
                "response_flags": flags,
                "upstream_host": "a",
            }
        )
        for at, took, flags in each
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    found = losses(spark, "envoy", [tmp_path / "log"])
    ((_, entry),) = found["upstreams"].items()
    assert (entry["lost"], entry["untold"], entry["silence_s"]) == (1, 1, [1.9, 1.9])


@pytest.mark.parametrize(
    ("silences", "band"),
    [
        ([], []),
        ([None, None], []),
        ([5.0, 5.2, None, 1.0, 5.4], [5.0, 5.2, 5.4]),
        ([60.0, 65.9, 66.1], [60.0, 65.9]),
    ],
)
def test_the_band_is_where_most_silences_are(silences: list[Any], band: list[float]) -> None:
    assert idle_band(silences) == band


def test_the_command_says_which_keep_alive_ends_it(pipeline: Ran, tmp_path: Path) -> None:
    log = written(tmp_path / "log", "nginx", ASKED)
    given = ("losses", "--logs", log, "--format", "nginx", "--out", tmp_path / "out")
    status, said, _ = pipeline(*given)
    assert status == 1
    assert "2 of 7 requests lost to an idle close" in said
    assert "10.0.0.1:80: 7 requests, 2 lost after silences of 4.99 s to 4.99 s, 1 failed" in said
    assert 'keep_alive = "65s" at the server ends it' in said
    status, said, _ = pipeline(*given, "--proxy-idle", "20s", "--json")
    assert (status, json.loads(said)["keep_alive_s"]) == (1, 25.0)


# ---- races that were planted

IN_A_RACE, IN_TIME = 0.7, 0.05
"""How long a client rests to meet a race, or none."""
RACES = [0.0, IN_A_RACE, IN_A_RACE, IN_TIME, IN_A_RACE]
"""Rests. After a request that is lost the proxy opens a connection."""


def none(lost: int) -> bool:
    return lost == 0


def some(lost: int) -> bool:
    return lost >= 2


def tried(
    port: int,
    rests: list[float],
    wanted: Callable[[int], bool],
    late: list[float],
    *,
    afresh: bool = False,
) -> tuple[int, int]:
    """`asked`, again until as many of *rests* are lost as is *wanted*: a pause of the
    machine makes a race, or spoils one. Returns how many were lost and asked in all;
    *late* is that of `asked`.
    """
    total = 0
    for times in range(1, 6):
        lost = asked(port, rests, afresh=afresh, late=late)
        total += lost
        if wanted(lost):
            return total, times * len(rests)
    raise AssertionError(f"five times {rests}: {total} lost")


def check_races(entry: dict[str, Any], lost: int, late: list[float]) -> None:
    """Of the *lost* that a client counted all are in the log: each as a race, but for
    those that a pause of the machine made *late*, which may have failed in another way.
    """
    assert entry["lost"] + entry["untold"] + entry["failed_otherwise"] == lost
    assert entry["untold"] == 0
    assert entry["failed_otherwise"] <= len(late)


def lines_of(log: Path) -> int:
    return log.read_text().count("\n") if log.exists() else 0


@pytest.fixture
def slow_uvicorn(tmp_path: Path) -> Iterator[int]:
    """The port of a uvicorn that closes idle connections early, at the end of a slow
    wire.
    """
    with uvicorn(tmp_path, 1) as port, wire(port) as ours:
        yield ours


@pytest.mark.slow
def test_the_races_of_a_real_nginx_are_those_that_its_client_counted(
    spark: Any, tmp_path: Path, slow_uvicorn: int
) -> None:
    tool("nginx")
    port, nobody, log = free_port(), free_port(), tmp_path / "losses.log"
    form = KNOWN["nginx"].how.split(" losses ", 1)[1].split(";")[0]
    config = races.NGINX.format(form=form, backend=slow_uvicorn, port=port, log=log, nobody=nobody)
    with running(*tools.nginx(tmp_path, config), port=port):
        late: list[float] = []
        disturbed, first = tried(port, [0.0, IN_TIME, IN_TIME], none, late)
        until(lambda: lines_of(log) == first, "nginx has logged, which it does after the answer")
        found = losses(spark, "nginx", [log])
        check_races(found["upstreams"][f"127.0.0.1:{slow_uvicorn}"], disturbed, late)
        lost, then = tried(port, RACES, some, late)
        lost += disturbed
        assert asked(port, [0.0], "/gone") == 1
        until(lambda: lines_of(log) == first + then + 1, "nginx has logged all")
    found = losses(spark, "nginx", [log, tmp_path / "error.log"])
    check_races(found["upstreams"][f"127.0.0.1:{slow_uvicorn}"], lost, late)
    assert f"{lost} line(s) of the error log tell of a server that closed" in found["notes"][1]
    assert found["upstreams"][f"127.0.0.1:{nobody}"]["failed_otherwise"] == 1
    assert found["quarantined"] == []


@pytest.mark.slow
def test_the_races_of_a_real_haproxy_are_those_that_its_clients_counted(
    spark: Any, tmp_path: Path, slow_uvicorn: int
) -> None:
    command, port = tool("haproxy"), free_port()
    config, log = tmp_path / "haproxy.cfg", tmp_path / "log"
    with datagrams() as (heard, lines):
        config.write_text(
            races.HAPROXY.format(log=heard, backend=slow_uvicorn, port=port, nobody=free_port())
        )
        with running(command, "-f", str(config), "-db", port=port):
            late: list[float] = []
            disturbed, first = tried(port, [0.0, IN_TIME, IN_TIME], none, late, afresh=True)
            lost, then = tried(port, RACES, some, late, afresh=True)
            lost += disturbed
            until(
                lambda: sum("POST" in line for line in lines) == first + then,
                "HAProxy has logged all",
            )
    log.write_text("".join(lines))
    found = losses(spark, "haproxy", [log])
    check_races(found["upstreams"]["app/s1"], lost, late)
    assert (found["lost"], found["quarantined"]) == (found["upstreams"]["app/s1"]["lost"], [])
