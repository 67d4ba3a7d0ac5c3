"""Trust: servers that break the law in a known way are caught with the right counts, on
real sockets; a correct one passes.

The servers count their own sins (tests/helpers/faulty_servers.py); here the
client's counts are compared with theirs.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from scripts.serving import Server, serving
from tests.helpers.faulty_servers import TICK, TIMEOUT

ROOT = Path(__file__).parent.parent.parent
ROOMY = ("--tick", "2s", "--duration", "4s")
"""A tick beyond reason: a machine that does not let it run for a second is none of the
generator's subjects.
"""


def sins_of(server: Server) -> dict[str, int]:
    """Ends a faulty server and returns what it did."""
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(20)
    sins: dict[str, int] = json.loads(server.said().splitlines()[-1])
    return sins


@contextmanager
def faulty_server(name: str = "right", timeout: float = 1.0) -> Iterator[Server]:
    command = [
        sys.executable,
        str(ROOT / "tests" / "helpers" / "faulty_servers.py"),
        name,
        str(timeout),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(command, Path(folder, "server.log"), stdin=subprocess.PIPE) as server,
    ):
        yield server


def loadgen(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadgen", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def run(port: int, *arguments: str, connections: int = 1000) -> tuple[int, dict[str, Any]]:
    done = loadgen(
        "run",
        "--target",
        f"127.0.0.1:{port}",
        "--timeout",
        "1s",
        "--tick",
        "500ms",
        "--duration",
        "2s",
        "--json",
        "--quiet",
        "--patience",
        "500ms",
        "--connections",
        str(connections),
        "--seed",
        "11",
        *arguments,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def held_up(report: dict[str, Any]) -> list[str]:
    """The reasons to say nothing of a server on a machine like this one now."""
    return [
        reason
        for reason in report["reasons"]
        if re.search("too many to say anything|calmer machine", reason)
    ]


def passes(status: int, report: dict[str, Any]) -> None:
    """The server passes; or this machine kept the generator from its plan, which then
    says so and accuses nobody.
    """
    lag = held_up(report)
    verdict = "inconclusive" if lag else "pass"
    assert (report["verdict"], report["reasons"], status == 0) == (verdict, lag, not lag)


@pytest.mark.slow
def test_what_a_server_says_before_it_closes_too_early_is_a_reason() -> None:
    """As Redis does, which in its protected mode refuses all but 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    sock, peer = listening.accept()
                    came_from.append(peer[0])
                    sock.sendall(b"-DENIED in protected mode\r\n")
                    sock.close()

        came_from: list[str] = []
        threading.Thread(target=refuse, daemon=True).start()
        port = listening.getsockname()[1]
        status, report = run(port, "--protocol", "raw", "--mix", "silent=1", connections=10)
        listening.shutdown(socket.SHUT_RDWR)
    assert (status, report["verdict"], report["reaps"]["early"]) == (1, "fail", 10)
    assert [reason for reason in report["reasons"] if "-DENIED in protected mode" in reason]
    assert set(came_from) == {"127.0.0.1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["early", "some late", "some never", "some of each", "cuts the live"]
)
def test_a_faulty_server_is_caught_with_the_right_counts(name: str) -> None:
    with faulty_server(name, TIMEOUT) as server:
        # The patience: what is missed has to be missing for longer than all stalls of a
        # busy machine together.
        mix = (
            "--mix",
            "silent=50,pipelined=50",
            "--patience",
            "5s",
            "--duration",
            "3s",
            "--timeout",
            f"{TIMEOUT}s",
        )
        status, report = run(server.port, *mix)
        sins = sins_of(server)
    reaps = report["reaps"]
    assert (status, report["verdict"]) == (
        1,
        "inconclusive" if report["reasons"] == held_up(report) else "fail",
    )
    # The raw figures know each late close. Of these the verdict may forgive only what a
    # stall in just that window, of this busy machine, would explain as well; it never
    # calls a punctual close late.
    late = sum(count for edge, count in report["lateness_histogram"]["bars"] if edge >= 2.5 * TICK)
    found = {
        "early": reaps["early"],
        "late": late,
        "never": reaps["missed"],
        "false": reaps["false"],
    }
    sinned = {name: sins.get(name, 0) for name in found}
    if (
        report["loadgen"]["lag_s"]["max"] < 0.1 * TIMEOUT
    ):  # a gap is half of it, and who is closed early has 0.6
        assert found == sinned
    # Held up for longer, clients were silent whose plan was to speak: an early close is
    # a false one then, or excused.
    excused, unclear = reaps["late_but_server_stuck"], reaps["own_lag"] + reaps["undecided"]
    assert sum(sinned.values()) - unclear <= sum(found.values()) <= sum(sinned.values()) + excused
    assert found["late"] - excused <= reaps["late"] <= found["late"]
    assert sum(sinned.values()) > 50


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "beat"), [(1, 0.0), (10, 0.01)])
def test_a_correct_server_passes_and_the_observation_equals_the_plan(
    processes: int, beat: float
) -> None:
    how = ("--scenario", "everyday", "--processes", f"{processes}", "--beat", f"{beat * 1e3:g}ms")
    with faulty_server() as server:
        status, report = run(server.port, *how, *ROOMY)
        sins = sins_of(server)
    passes(status, report)
    assert report["schema"] == "reaper-loadgen-report/1"
    assert report["connections"]["established"] == report["connections"]["requested"] == 1000
    reaps = report["reaps"]  # each was planned, unless the client itself spoke too late
    assert reaps["observed"] == sins["closed"] == reaps["expected"] + reaps["own_lag"]
    names = {"reaped": "reaped", "alive": "alive", "closed_itself": "self"}
    for name, counts in report["by_behaviour"].items():
        planned = report["plan"]["by_behaviour"][name]
        unmet = Counter(
            {category: planned[end] for category, end in names.items() if end in planned}
        )
        unmet.subtract(
            {category: count for category, count in counts.items() if category != "own_lag"}
        )
        assert min(unmet.values()) >= 0
        assert unmet.total() == counts.get("own_lag", 0)
    assert report["lateness_s"]["min"] >= 0
    assert processes > 1 or report["loadgen"]["rss_bytes_per_connection"] <= 2048
    assert not report["partial"]
    assert (report["loadgen"]["processes"], report["config"]["beat_s"]) == (processes, beat)


@pytest.mark.slow
def test_churn_and_storms_are_judged_too() -> None:
    with faulty_server() as server:
        for scenario in ("churn", "reconnect-storm"):
            status, report = run(server.port, "--scenario", scenario, *ROOMY, connections=300)
            passes(status, report)
            assert report["connections"]["reconnected"] > 100


@pytest.mark.slow
def test_a_refused_connection_ends_the_run_at_once_and_is_reported() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        # All begin before the end of the first is known: at the usual pace a busy
        # machine has fewer to report.
        at_once = "--duration", "10m", "--connect-rate", "1000000"
        status, report = run(closed.getsockname()[1], *at_once, connections=5)
    assert (status, report["verdict"]) == (1, "fail")
    assert "connection refused by 127.0.0.1:" in report["reasons"][0]
    assert report["connections"]["failed"] == 5
    assert report["connections"]["failures"] == {"ECONNREFUSED": 5}
