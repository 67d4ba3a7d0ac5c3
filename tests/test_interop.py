"""Claims about the HTTP server, made by tools that others wrote: slowhttptest, nginx, wrk, curl, ab.

Short versions of `python -m scripts.interop`. A tool that is not installed is said and skipped.
"""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from scripts.interop import proxy as interop_proxy
from scripts.interop import slow as interop_slow
from scripts.interop.tools import Established, Missing, metrics, server, tool

ATTACKERS = 200
BURSTS = 2

pytestmark = pytest.mark.slow


def found(name: str, package: str) -> str:
    try:
        return tool(name, package)
    except Missing as missing:
        pytest.skip(str(missing))


def test_slow_attackers_are_ended_in_time_and_a_healthy_client_is_answered_meanwhile() -> None:
    found("slowhttptest", "slowhttptest")
    report = interop_slow.run(connections=ATTACKERS)
    assert report["passed"], json.dumps(report, indent=2)


def test_what_is_held_is_counted_from_the_last_that_came_and_a_late_look_is_known() -> None:
    looks = Established(80, interval=0.2)
    looks.samples = [(0.2, 0), (0.4, 150), (0.6, 200), (0.8, 202), (5.4, 201), (7.6, 90), (9.0, 3)]
    assert looks.held(few=5) == (202, 8.4)
    assert looks.delay() == pytest.approx(4.4)
    looks.samples = [(number / 5, min(number, 100) if number < 130 else 0) for number in range(1, 132)]
    assert looks.held(few=5) == (100, 7.0)  # they came one by one, the 95th after 19 s


def test_behind_nginx_no_request_is_answered_502_and_a_tunnel_stays_open_under_pings() -> None:
    found("nginx", "nginx")
    found("wrk", "wrk")
    report = interop_proxy.run(bursts=BURSTS)
    assert report["passed"], json.dumps(report, indent=2)


def test_curl_reuses_the_connection_and_uploads_after_100_continue() -> None:
    curl = found("curl", "curl")
    with server() as (host, port):
        url = f"http://{host}:{port}"
        many = subprocess.run([curl, "-sv", f"{url}/", f"{url}/metrics"], capture_output=True, text=True, check=True)
        assert "Re-using existing connection" in many.stderr
        upload = subprocess.run(
            [curl, "-sv", "-H", "Expect: 100-continue", "--data-binary", "@-", f"{url}/upload"],
            input="x" * 500_000, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(upload.stdout)["bytes"] == 500_000
        assert "HTTP/1.1 100 " in upload.stderr


def test_ab_sees_no_failure_though_it_asks_http_1_0_for_keep_alive() -> None:
    ab = found("ab", "apache2-utils")
    with server() as address:
        host, port = address
        done = subprocess.run(
            [ab, "-q", "-k", "-n", "2000", "-c", "50", f"http://{host}:{port}/sleep?s=0"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        after = metrics(address)
    figures = dict(re.findall(r"^(.*?):\s+(\d+)", done.stdout, re.MULTILINE))
    assert (figures["Complete requests"], figures["Failed requests"]) == ("2000", "0")
    assert after['http_responses_total{status="200"}'] >= 2000
