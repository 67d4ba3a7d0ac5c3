"""Probing finds out what a server was configured with; foreign servers by name, where they are installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from test_loadgen_run import ROOMY, ROOT, faulty_server, loadgen, passes

from loadgen.clients import Ended, Speech
from loadgen.probe import QUESTIONS, as_text, granularity, probe, summarise
from loadgen.units import parse_target
from scripts.serving import Server, free_port, serving
from scripts.tools import Missing, nginx

NGINX = """keepalive_timeout 1s; client_header_timeout 1s; keepalive_requests 100000;
server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ return 200 "hello"; }} }}
"""


def server(name: str, folder: Path) -> AbstractContextManager[Server]:
    """A server we did not write, up and answering."""
    port = free_port()
    if name == "nginx":
        try:
            return serving(nginx(folder, NGINX.format(port=port)), folder / "log", port=port)
        except Missing as missing:
            pytest.skip(str(missing))
    options = ["--timeout-keep-alive", "1", "--port", str(port), "--app-dir", str(ROOT / "tests" / "run_apps")]
    return serving([sys.executable, "-m", name, *options, "asgi:app"], folder / "log", port=port)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nginx", "uvicorn"])
def test_probe_finds_the_keep_alive_timeout_of_servers_we_did_not_write(name: str, tmp_path: Path) -> None:
    with server(name, tmp_path) as running:
        done = loadgen("probe", "--target", running.target, "--wait", "2s", "--trials", "4", "--json")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    keep_alive = found["keep_alive"]
    assert done.returncode == 0
    assert keep_alive["expected"] == 1.0
    assert keep_alive["closed"] == 4
    assert keep_alive["how"] == "FIN"
    assert keep_alive["shortest"] > 0.99
    if name == "nginx":
        assert found["headers_drip"]["expected"] == 1.0


@pytest.mark.slow
def test_a_foreign_server_is_judged_over_http(tmp_path: Path) -> None:
    with server("nginx", tmp_path) as running:
        done = loadgen(
            "run", "--target", running.target, "--scenario", "http-everyday", "--timeout", "1s", *ROOMY,
            "--connections", "100", "--tolerance", "2ms", "--json", "--quiet", "--seed", "3",
        )  # fmt: skip
    report = json.loads(done.stdout)
    passes(done.returncode, report)
    assert report["connections"]["established"] == 100
    assert report["reaps"]["observed"] - report["reaps"]["own_lag"] == report["reaps"]["expected"] == 50
    assert report["actions"]["answered"] > 200


@pytest.mark.slow
def test_probe_tells_early_from_late_and_sees_the_tick() -> None:
    with faulty_server() as running:
        findings = probe(parse_target(f"127.0.0.1:{running.port}"), Speech("echo"), 2.0, {"idle": 1.0, "drip": 1.0}, 8)
    found = {finding.name: finding for finding in findings}
    idle = found["idle"]
    assert idle.expected == 1.0
    assert not idle.guessed
    assert idle.closed == 8
    assert idle.shortest is not None
    assert idle.shortest >= 1.0
    assert found["drip"].closed == 0 or (found["drip"].shortest or 0) >= 1.0  # we ourselves were late with a byte


def test_expectations_that_are_not_met_fail_the_probe() -> None:
    with faulty_server(timeout=0.5) as running:
        done = loadgen(
            "probe", "--target", f"127.0.0.1:{running.port}", "--protocol", "echo", "--wait", "1s", "--trials", "2",
            "--expect", "idle=3s",
        )  # fmt: skip
    assert done.returncode == 1
    assert "early by up to" in done.stdout


def test_closes_in_common_instants_show_a_tick_and_others_none() -> None:
    assert granularity([5.0, 5.001, 5.002, 6.0, 6.001, 6.002, 7.0, 7.001]) == pytest.approx(1.0, abs=0.01)
    assert granularity([5.0, 5.2, 5.4, 5.7, 6.1, 6.2]) is None
    assert granularity([]) is None


def finding_of(closes: Sequence[float], **more: Any) -> Any:
    trials = [Ended("silent", "closed", at=at) for at in closes]
    return summarise(QUESTIONS["echo"][1], trials, 30.0, more.get("expected"))


def test_a_timeout_is_guessed_only_when_it_is_nearly_round() -> None:
    assert finding_of([5.001, 5.004]).expected == 5.0
    assert finding_of([4.999]).expected == 5.0
    assert finding_of([4.3]).expected is None
    assert finding_of([4.3], expected=4.0).words() == "late by up to 300ms"


def test_the_table_says_what_is_still_open() -> None:
    text = as_text([finding_of([])], markdown=True)
    assert "still open after 30s" in text
    assert text.splitlines()[1].startswith("|--")
    polite = Ended("silent", "closed", at=5.0, said=b"HTTP/1.1 408 Request Time-out\r\n\r\n")
    assert "HTTP/1.1 408 Request Time-out + FIN" in as_text([summarise(QUESTIONS["echo"][1], [polite], 30.0, None)])
