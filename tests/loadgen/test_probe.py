"""Probing finds out what a server was configured with; foreign servers by name, where they are
installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from loadgen.clients import Ended
from loadgen.probe import QUESTIONS, Finding, as_text, granularity, summarise
from scripts.serving import Server, free_port, serving
from scripts.tools import Missing, nginx
from tests.loadgen.test_run import ROOMY, ROOT, faulty_server, loadgen, passes, run

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
    options = [
        "--timeout-keep-alive",
        "1",
        "--port",
        str(port),
        "--app-dir",
        str(ROOT / "tests" / "run" / "apps"),
    ]
    return serving([sys.executable, "-m", name, *options, "asgi:app"], folder / "log", port=port)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nginx", "uvicorn"])
def test_probe_finds_the_keep_alive_timeout_of_servers_we_did_not_write(
    name: str, tmp_path: Path
) -> None:
    with server(name, tmp_path) as running:
        done = loadgen(
            "probe", "--target", running.target, "--wait", "2s", "--trials", "4", "--json"
        )
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    keep_alive = found["keep_alive"]
    assert done.returncode == 0
    assert [keep_alive[name] for name in ("expected", "closed", "how")] == [1.0, 4, "FIN"]
    assert keep_alive["shortest"] > 0.99
    if name == "nginx":
        assert found["headers_drip"]["expected"] == 1.0


@pytest.mark.slow
def test_a_foreign_server_is_judged_over_http(tmp_path: Path) -> None:
    with server("nginx", tmp_path) as running:
        status, report = run(
            running.port,
            "--scenario",
            "http-everyday",
            *ROOMY,
            "--tolerance",
            "2ms",
            connections=100,
        )
    passes(status, report)
    assert report["connections"]["established"] == 100
    assert (
        report["reaps"]["observed"] - report["reaps"]["own_lag"]
        == report["reaps"]["expected"]
        == 50
    )
    assert report["actions"]["answered"] > 200


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "words"), [("3s", "early by up to"), ("1s", "late by up to")])
def test_probe_tells_early_from_late_and_fails_where_an_expectation_is_not_met(
    expected: str, words: str
) -> None:
    with faulty_server() as running:
        how = f"--protocol echo --wait 2s --trials 8 --expect idle={expected} --json"
        done = loadgen("probe", "--target", running.target, *how.split())
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    idle, drip = found["idle"], found["drip"]
    assert done.returncode == (expected == "3s")
    assert (idle["guessed"], idle["closed"], idle["words"].startswith(words)) == (False, 8, True)
    assert idle["shortest"] >= 1.0
    assert drip["closed"] == 0 or drip["shortest"] >= 1.0  # we ourselves were late with a byte


def test_closes_in_common_instants_show_a_tick_and_others_none() -> None:
    assert granularity([5.0, 5.001, 5.002, 6.0, 6.001, 6.002, 7.0, 7.001]) == pytest.approx(
        1.0, abs=0.01
    )
    assert granularity([5.0, 5.2, 5.4, 5.7, 6.1, 6.2]) is None
    assert granularity([]) is None


def finding_of(closes: Sequence[float], expected: float | None = None) -> Finding:
    trials = [Ended("silent", "closed", at=at) for at in closes]
    return summarise(QUESTIONS["echo"][1], trials, 30.0, expected)


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
    assert "HTTP/1.1 408 Request Time-out + FIN" in as_text(
        [summarise(QUESTIONS["echo"][1], [polite], 30.0, None)]
    )
