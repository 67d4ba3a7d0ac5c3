"""`make demo`: what it plans for a size, what it refuses before the start, and that a
small one passes for real.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import scale
from scripts import demo, limits
from scripts.limits import Machine, Plan, make_plan, shortages
from scripts.serving import ROOT, DidNotStart, free_port, serving
from tests.loadgen.test_run import passes

ROOMY = Machine(20_000, 3_000_000, 1_500_000, 64 << 30)


CONNECTIONS = st.integers(1, 2_000_000)
DESCRIPTORS = st.sampled_from([1024, 4096, 20_000, 1 << 20])


@given(CONNECTIONS, DESCRIPTORS)
def test_every_connection_is_open_before_the_first_is_closed(
    connections: int, descriptors: int
) -> None:
    plan = make_plan(connections, descriptors)
    assert connections / plan.rate <= plan.timeout
    assert plan.duration >= plan.timeout * 1.1 + 1


@given(CONNECTIONS, DESCRIPTORS)
def test_the_connections_of_a_plan_fit_their_processes(connections: int, descriptors: int) -> None:
    plan = make_plan(connections, descriptors)
    assert plan.workers * (descriptors - 256) * 0.95 + plan.workers >= connections
    assert plan.generators * (descriptors - 200) >= connections


def test_a_million_is_planned_for_less_than_25_minutes_and_what_it_was_seen_to_take() -> None:
    plan = make_plan(1_000_000, 20_000, processors=2)
    assert (plan.rate, plan.workers, plan.generators) == (4000, 54, 51)
    assert 8 * 60 <= plan.timeout < plan.expected < 25 * 60
    assert plan.timeout < make_plan(1_000_000, 20_000, processors=1).timeout
    assert (
        shortages(plan, ROOMY) == shortages(plan, Machine(20_000)) == []
    )  # the latter's limits cannot be read
    assert 12.5 < plan.memory() / 2**30 < 17
    assert max(map(len, demo.described(plan))) < 80


@pytest.mark.parametrize("connections", [100_000, 300_000, 1_000_000])
def test_what_a_plan_does_per_second_once_all_are_open_fits_its_budget_of_cpu(
    connections: int,
) -> None:
    plan = make_plan(connections, 20_000, processors=2)
    exchanges = connections * limits.SPEAKING / plan.timeout
    closes = plan.rate * limits.SILENT
    resting = limits.RESTING * (plan.workers + plan.generators)
    assert exchanges * limits.EXCHANGE + closes * limits.CLOSE + resting <= limits.BUDGET * 2
    assert (
        exchanges * plan.beat * limits.EXCHANGE / 2 < 0.05
    )  # a burst on two processors is no stall


@pytest.mark.parametrize("connections", [300_000, 1_000_000])
def test_clients_that_act_apart_leave_processors_free_while_the_last_are_opened(
    connections: int,
) -> None:
    plan = make_plan(connections, 20_000, processors=2, apart=True)
    exchanges = connections * limits.SPEAKING / plan.timeout
    used = exchanges * limits.EXCHANGE_APART + plan.rate * limits.NEWCOMER_APART
    assert used < 0.75 * 2
    assert plan.expected < 25 * 60
    assert plan.beat == 0


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("descriptors", 1024, "ulimit -Hn"),
        ("files", 1_000_000, "fs.file-max"),
        ("conntrack", 262_144, "nf_conntrack_max"),
        ("memory", 8 << 30, "is needed"),
    ],
)
def test_each_limit_that_is_too_low_is_named_with_what_is_needed(
    limit: str, value: int, words: str
) -> None:
    machine = replace(ROOMY, **{limit: value})
    (line,) = shortages(make_plan(1_000_000, machine.descriptors), machine)
    assert words in line


def test_what_cannot_fit_is_refused_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Machine, "here", lambda: replace(ROOMY, memory=1 << 30))
    monkeypatch.setattr("sys.argv", ["demo", "--connections", "1000000"])
    assert demo.main() == 2
    assert "this machine is too small" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_demo_passes_on_real_connections(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(60, 2, 4, 4000, "silent=50,chatty=40,drip=10", 2, 1)
    status = demo.run(plan, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    passes(status, report)
    assert (
        report["reaps"]["observed"] - report["reaps"]["own_lag"]
        == report["reaps"]["expected"]
        == 30
    )
    assert report["machine"]["memory_bytes"]["server"] > 0
    drawn = scale.picture(report)
    assert "30 silent clients of 60 closed: none early, none more than a tick late" in drawn
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    out = capfd.readouterr().out
    assert (
        report["verdict"] != "pass"
        or "verdict      PASS: 30 of 30 connections were closed, each in time" in out
    )
    assert max(len(line) for line in out.splitlines() if str(tmp_path.parent.name) not in line) < 80
    assert (tmp_path / "report.html").exists()


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no such thing; exit 3"]
    with (
        pytest.raises(DidNotStart, match="ended with status 3: no such thing"),
        serving(command, tmp_path / "log"),
    ):
        pass


def test_a_server_is_found_listening_without_a_connection_of_which_it_would_hear(
    tmp_path: Path,
) -> None:
    program = (
        "import select, signal, socket, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); "
        "listening = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
        "signal.sigwait([15]); print('waiting:', select.select([listening], [], [], 0)[0])"
    )
    port = free_port()
    with serving([sys.executable, "-c", program, str(port)], tmp_path / "log", port=port) as server:
        pass
    assert (server.status, server.said()) == (0, "waiting: []\n")


def test_a_port_is_kept_until_the_end_of_the_process_and_given_back_there() -> None:
    command = [
        sys.executable,
        "-X",
        "dev",
        "-c",
        "import scripts.serving as s; assert s.free_port() != s.free_port()",
    ]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stderr == b""


def see_it_ended(port: int, folder: Path) -> None:
    """See that a server which never listens on *port* is ended, with the words that say
    so.
    """
    with (
        pytest.raises(DidNotStart, match=r"did not listen within 0.1 s"),
        serving(["sleep", "60"], folder / "log", port=port, patience=0.1) as server,
    ):
        pytest.fail(f"{server.pid} does not listen")


def test_a_server_that_never_listens_is_ended(tmp_path: Path) -> None:
    see_it_ended(free_port(), tmp_path)


def test_another_server_on_its_port_does_not_pass_for_one_that_never_listens(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        see_it_ended(other.getsockname()[1], tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_a_demo_with_what_was_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.demo", "--connections", "40", "--out", str(tmp_path)]
    log = tmp_path / "said"
    with log.open("wb") as output:
        demo_process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
        while "hold" not in log.read_text() and demo_process.poll() is None:
            time.sleep(0.05)
        os.killpg(demo_process.pid, signal.SIGINT)
        assert demo_process.wait(60) == 130
    assert "INCONCLUSIVE: interrupted after" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert json.loads((tmp_path / "report.json").read_text())["interrupted"] is True


def test_ctrl_c_before_the_clients_have_begun_is_an_interruption_too() -> None:
    words = (
        "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)"
    )
    assert demo.call([sys.executable, "-c", words]) == 130
    assert demo.call([sys.executable, "-c", "raise SystemExit(3)"]) == 3


def test_a_run_without_a_report_does_not_show_that_of_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = (
        "stopped: open 0, accepted 100000, reaped 50764, averted 0, "
        "worst loop lag 90 ms, stalls 0, reaper task 1 s"
    )
    server = SimpleNamespace(
        target="127.0.0.1:9", pid=1, status=0, said=lambda: f"listening\n{said}\n"
    )
    monkeypatch.setattr(demo, "serving", lambda *_, **__: nullcontext(server))
    monkeypatch.setattr(demo, "call", lambda command: 130)
    (tmp_path / "report.json").write_text("{}")
    assert demo.run(make_plan(10, 1024), tmp_path) == 130
    assert not (tmp_path / "report.json").exists()
    out = capsys.readouterr().out
    assert "report:" not in out
    assert max(map(len, out.splitlines())) < 80


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--connections", "0"], "'0' is not a count: write a whole number of at least 1"),
        (["--out", __file__], f"{__file__} is not a directory"),
    ],
)
def test_the_pipeline_demo_refuses_in_one_line_and_deletes_nothing(
    given: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pyarrow")
    from scripts import pipeline_demo

    kept = tmp_path / "server-journal"
    kept.mkdir()
    monkeypatch.setattr("sys.argv", ["pipeline_demo", "--out", str(tmp_path), *given])
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is started
    with pytest.raises(SystemExit) as ended:
        pipeline_demo.main()
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert said in told
    assert kept.is_dir()
