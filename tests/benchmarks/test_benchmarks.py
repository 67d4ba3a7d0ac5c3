"""The benchmarks run, their peers are real, and the page says what was found - and
nothing that was not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import apart, scale
from benchmarks.__main__ import main
from benchmarks.common import RESULTS, ROOT, ratios, spread
from benchmarks.document import PROGRAMS, measured, page
from benchmarks.peers import jvm
from benchmarks.peers import python as peers
from benchmarks.pipeline import run as pipeline
from benchmarks.servers import guarded, idle, pauses, process, tls, tls_costs, without
from benchmarks.servers import run as servers
from reaper.pipeline.read.inputs import check

if TYPE_CHECKING:
    from tests.conftest import Ran

SMOKED = [
    "touch",
    "ticks",
    "timers",
    "calls",
    "memory",
    "mass",
    "journal",
    "streams",
    "vanished",
    "attach",
    "starts",
]
"""The others have tests of their own."""
EXPIRING = [kind for kind in peers.ALL if kind.expires]


@pytest.mark.parametrize("kind", EXPIRING, ids=lambda kind: kind.name)
def test_each_peer_expires_the_silent_and_no_other_and_forgets_the_released(
    kind: type[peers.Peer],
) -> None:
    keys = [f"client {i}" for i in range(12)]
    died = {}
    with closing(kind(keys, 20.0)) as peer:
        peer.register(12, 0.0)
        for second in range(1, 51):
            if second == 5:
                peer.release(peer.handles([10, 11]))
            if second == 10:
                peer.touch_all(peer.handles([0, 2, 4, 6, 8]), float(second))
            for uid in peer.tick(float(second)):
                assert uid not in died, f"{uid} was expired twice"
                died[uid] = second
    assert sorted(died) == sorted(keys[:10])
    assert all(20 <= died[keys[i]] <= 23 for i in (1, 3, 5, 7, 9)), died
    assert all(30 <= died[keys[i]] <= 33 for i in (0, 2, 4, 6, 8)), died


def test_a_ratio_is_taken_round_by_round_and_not_of_the_medians() -> None:
    found = ratios([1.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found["median"], found["samples"]) == (2.0, [1.0, 2.0, 3.0])
    assert spread([4, 1, 3, 2, 5])["samples"] == [4, 1, 3, 2, 5]


def test_a_large_journal_is_a_small_one_of_several_times_as_many_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SIMULATED", 2_000)
    pipeline.made(2_000, tmp_path)
    pipeline.made(6_000, tmp_path)  # the size before is a part of it, and is not simulated again
    found = check([tmp_path / "journal" / "server"])
    rows: dict[int, list[int]] = {}
    for facts in found.files:
        rows.setdefault(facts.writer, []).append(facts.rows)
    assert (found.quarantined, sorted(rows)) == ([], [1, 2, 3, 4, 5, 6])
    assert rows[1] == rows[3] == rows[5]
    assert rows[2] == rows[4] == rows[6]
    assert found.rows == pytest.approx(6_000, rel=0.1)
    assert len({run.name for run in found.runs}) == 6


def test_seconds_and_processor_time_of_the_pipeline_are_compared_apart() -> None:
    def of(**seconds: list[float]) -> dict[str, Any]:
        return {step: spread(samples) for step, samples in seconds.items()}

    found = {
        "sizes": {
            "20000": {
                "spark": of(session=[2.0, 3.0], audit=[8.0, 9.0], advise=[6.0, 6.0]),
                "floor": of(
                    **{"session": [2.0, 2.0], "first query": [1.0, 1.0], "read": [1.0, 1.0]}
                ),
                "embedded": of(audit=[2.0, 2.0], advise=[3.0, 2.0]),
                "duckdb": of(audit=[2.0, 3.0]),
            }
        },
        "cpu": {
            "20000": {
                "spark": of(check=[1.0, 1.0], session=[2.0, 3.0], audit=[9.0, 9.0]),
                "hand": of(check=[1.0, 1.0], session=[2.0, 2.0], audit=[5.0, 7.0]),
                "duckdb": of(audit=[1.0, 1.0]),
            }
        },
    }
    lines = pipeline.table(found).splitlines()
    assert lines[0].endswith("| session | first query | read | audit | advise |")
    assert lines[3] == "| 20k, Spark's floor | 2 | 1 | 1 | - | - |"
    lines = lines[lines.index("") + 1 :]
    assert lines[0].endswith(
        "| audit / DuckDB | audit / DuckDB, CPU | advise / embedded | advise / embedded, CPU |"
        " from the start to the audit, CPU | session and audit / Spark's floor |"
    )
    assert lines[2].endswith(
        "| 3.50x (3.00-4.00) | 9.00x (9.00-9.00) | 2.50x (2.00-3.00) | - | 1.40x (1.30-1.50) |"
        " 2.75x (2.50-3.00) |"
    )
    assert not any(line.startswith("| 20k, Spark's floor") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uvicorn", "websockets", "`start_server`"])
@pytest.mark.parametrize("kind", ["stock", "guarded"])
def test_idle_clients_of_tls_are_kept_and_answered_again(name: str, kind: str) -> None:
    assert isinstance(tls.measured(tls.PAIRS[name], kind, 20_000, 4, 0.1), float)


def test_what_a_tls_connection_costs_is_shown_for_every_side_beside_its_control() -> None:
    ratio = {"median": 1.0, "p10": 0.9, "p90": 1.1}
    sides = {"guarded": ratio, "not released": ratio, "again": ratio}
    wakes = {"stock": [4.0, 9.0, 5.0], "guarded": [30.0], "not released": [20.0], "again": [6.0]}
    found = {"clients": 3, "rest_s": 14.0, "goal_us": 20.0}
    text = tls_costs.table(
        {**found, "results": {"a server": {"wake_us": wakes, "cpu": sides, "rate": sides}}}
    )
    row = text.splitlines()[2].strip(" |").split(" | ")
    assert row[1:5] == ["5", "30", "20", "6"]
    assert "{" not in text


def test_a_request_is_told_part_by_part_and_each_part_can_be_taken_off() -> None:
    results = {"uvicorn": {"stock": 100, "guarded": 150}}
    parts = {part: 1000 + index for index, part in enumerate(guarded.PARTS)}
    text = guarded.table({"results": results, "parts": parts})
    for part, more in parts.items():
        assert f"| {guarded.PARTS[part]} | {more:,} |" in text
    assert set(guarded.PARTS) == set(without.PARTS) - {"all"}
    assert "Of what the guard adds" not in guarded.table({"results": results})


@pytest.mark.slow
def test_a_client_is_asked_in_every_phase_beside_a_crowd_that_is_answered_and_closed() -> None:
    found = pauses.run("tiny", lambda _: None, only=["gunicorn, asgi"])
    for side in found["results"]["gunicorn, asgi"].values():
        assert (side["answered"], side["closed"]) == (40, 40)
        assert set(side["phases"]) == set(pauses.PHASES)
        assert all(each["work"] > 0 for each in side["phases"].values())
    assert pauses.table(found).count("| gunicorn, asgi |") == 2


def test_the_work_in_a_wait_is_the_processor_time_of_the_server_and_the_most_is_kept() -> None:
    live = pauses.Live(SimpleNamespace(pid=os.getpid(), address=None))  # type: ignore[arg-type]
    live.look()
    for spins in (0.03, 0.001):
        before, worked = time.thread_time(), live.worked()
        while time.thread_time() < before + spins:
            pass
        live.waited(0.0, worked, "reap")
    assert live.longest["reap"][1] > 0.02  # the two clocks round by themselves
    assert live.asked["reap"] == 2


def test_the_past_of_a_process_that_is_found_during_a_wait_is_no_work_in_it() -> None:
    live = pauses.Live(SimpleNamespace(pid=os.getpid(), address=None))  # type: ignore[arg-type]
    worked = live.worked()
    live.look()
    live.waited(0.0, worked, "reload")
    assert live.longest["reload"][1] == 0.0


@pytest.mark.parametrize(
    ("guarded", "stock", "bold"), [(9.0, 1.0, False), (12.0, 1.0, True), (12.0, 13.0, False)]
)
def test_a_wait_is_shown_bold_beyond_the_goal_and_beyond_stock(
    guarded: float, stock: float, bold: bool
) -> None:
    sides = {
        side: {"phases": {"reap": {"work": ms, "wait": ms, "asked": 1}}}
        for side, ms in (("guarded", guarded), ("stock", stock))
    }
    text = pauses.table({"clients": 8000, "kept": 20.0, "results": {"a server": sides}})
    assert (f"**{guarded:g} / {stock:g}**" in text) is bold
    assert "8,000 others" in text


# ---- the harness


def test_a_page_says_beside_what_a_benchmark_ran() -> None:
    about = {"load_before": 0.1, "cpus": 2, "dirty": False, "commit": "0" * 40, "date": "today"}
    part = {"part": "touch", "scale": "full", "about": {**about, "beside": "a campaign"}}
    assert measured(part) == "`touch`, 000000000000, today. **Beside a campaign.**"


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of the smallest sizes: the folder of its results, and what it printed."""
    out = tmp_path_factory.mktemp("tiny")
    command = [sys.executable, "-m", "benchmarks", "run", "--tiny", *SMOKED, "--out", str(out)]
    command += ["--beside", "a test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.mark.slow
def test_a_run_prints_tables_and_writes_what_they_were_measured_on(
    tiny_run: tuple[Path, str],
) -> None:
    out, printed = tiny_run
    for name in SMOKED:
        part = json.loads((out / f"{name}.json").read_text())
        assert (part["scale"], part["about"]["beside"]) == ("tiny", "a test")
        assert {"cpu", "kernel", "python", "packages", "commit", "dirty", "date"} <= set(
            part["about"]
        ), name
        assert PROGRAMS[name].load().table(part) in printed


@pytest.mark.slow
def test_the_page_has_every_program_that_was_run_and_names_the_others(
    tiny_run: tuple[Path, str],
) -> None:
    text = page(tiny_run[0])
    for name, program in PROGRAMS.items():
        section = text.partition(f"## {program.title}\n")[2].partition("\n## ")[0]
        if name in SMOKED:
            assert "**A tiny run, with small sizes.**" in section
        else:
            assert f"Not measured: `python -m benchmarks run {name}`" in section
    assert "| an idle HTTP connection, memory | not measured | not measured |" in text


@pytest.fixture
def page_of_scale(tmp_path: Path) -> Path:
    """A copy of docs/scale.md without its table."""
    copied = tmp_path / "scale.md"
    copied.write_text(scale.TABLE.sub(r"\1\2", scale.PAGE.read_text()))
    return copied


def test_the_pages_say_what_the_results_in_the_repository_say(page_of_scale: Path) -> None:
    assert (ROOT / "docs" / "performance.md").read_text() == page(RESULTS)
    assert scale.main(["--page", str(page_of_scale)]) == 0
    assert page_of_scale.read_text() == scale.PAGE.read_text()


@pytest.mark.parametrize(("verdict", "partial"), [("fail", False), ("pass", True)])
def test_a_demo_that_failed_or_was_cut_short_is_not_shown(
    verdict: str, partial: bool, page_of_scale: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    report.write_text(
        json.dumps({"verdict": verdict, "partial": partial, "connections": {"requested": 1}})
    )
    assert scale.main(["--page", str(page_of_scale), "--add", str(report)]) == 2


def test_a_demo_without_a_beat_has_a_column_of_its_own(page_of_scale: Path, tmp_path: Path) -> None:
    demos = json.loads((RESULTS / "scale" / "demos.json").read_text())["results"]
    known = dict(demos["1000000"])
    report = tmp_path / "report.json"
    report.write_text(
        json.dumps(
            {
                "verdict": "pass",
                "partial": False,
                "connections": {
                    "requested": 1_000_000,
                    "connect_s": known["connect_s"],
                    "peak_open": known["peak_open"],
                },
                "config": {**known["config"], "beat_s": 0.0},
                "loadgen": {"processes": known["processes"]},
                "machine": known["parts"],
                **{each: known[each] for each in ("elapsed_s", "reaps", "lateness_s", "server")},
            }
        )
    )
    results = tmp_path / "results"
    arguments = ["--results", str(results), "--page", str(page_of_scale), "--add", str(report)]
    assert scale.main(arguments) == 0
    shown = page_of_scale.read_text()
    assert "| `make demo CONNECTIONS=` | **1,000,000** `--beat 0` |" in shown
    assert re.search(r"timeout, beat, whole run \| \w+, none, ", shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing"], "NAME nothing: must be of touch, "),
        (
            ["document", "--results", "/nonexistent"],
            "--results /nonexistent: no results there; measure first",
        ),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], words: str, call: Ran) -> None:
    status, _, err = call(main, *arguments)
    assert (status, words in err.splitlines()[-1]) == (2, True)


# ---- the JVM


@pytest.mark.slow
def test_each_way_of_using_the_wheel_has_figures_from_every_round_next_to_ours() -> None:
    found = jvm.run("tiny", lambda _: None, sizes=[jvm.Size(500, 5_000, 2, 100)])
    if "absent" in found:
        pytest.skip(found["absent"])
    for peer in jvm.PEERS:
        assert (
            len(found["results"][peer]["500"]["samples"])
            == len(found["ratios"][peer]["500"]["samples"])
            == 2
        )
    assert jvm.PEERS["netty-wheel"] in jvm.table(found)


@pytest.mark.parametrize(
    ("name", "value"), [("silent", 0), ("touched", 99), ("twice", 1), ("early", 1)]
)
def test_a_peer_that_does_not_do_its_work_is_found_out(name: str, value: int) -> None:
    good = {"each": 100, "silent": 100, "touched": 100, "twice": 0, "early": 0}
    jvm.check("netty", good)
    with pytest.raises(RuntimeError, match=f"{name}: {value}"):
        jvm.check("netty", good | {name: value})


def test_without_its_tool_nothing_is_run_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda *words, **more: None)
    needs: tuple[tuple[str, Any, str], ...] = (
        ("jvm", jvm, "java"),
        ("servers", servers, "wrk"),
        ("guarded", guarded, "valgrind"),
    )
    for name, program, tool in needs:
        (tmp_path / f"{name}.json").write_text(json.dumps(program.run("tiny", lambda _: None)))
        assert f"Not measured: {tool} is not installed" in page(tmp_path)
    found = idle.run("tiny", lambda _: None, only=["nginx"])
    assert "NOT RUN: nginx: nginx is not installed" in idle.table(found)


# ---- servers

WRK = """Running 1s test @ http://127.0.0.1:18999/ok
  1 threads and 50 connections
  Latency Distribution
     50%    2.90ms
     99%    1.20s
  16321 requests in 1.00s, 1.56MB read
Requests/sec:  16279.11
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk (Debian: apt-get install wrk)")
def test_each_server_has_a_figure_from_every_round_and_is_compared_with_its_kind() -> None:
    names = ["ours-parked", "uvicorn", "guarded", "nginx"]
    found = servers.run("tiny", lambda _: None, rounds=2, only=names)
    assert set(found["results"]) == set(names) - set(found["not_run"])
    assert all(len(each["cpu_us"]["samples"]) == 2 for each in found["results"].values())
    assert set(found["ratios"]["uvicorn"]) == {"ours-parked", "guarded"}
    assert process.KINDS["uvicorn"].about in servers.table(found)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("valgrind") is None, reason="needs valgrind (Debian: apt-get install valgrind)"
)
@pytest.mark.parametrize("name", ["uvicorn, httptools, asyncio", "uvicorn, TLS"])
def test_the_instructions_of_a_request_are_counted_without_the_start(name: str) -> None:
    pair = guarded.PAIRS[name]
    # A start of Python takes a billion.
    assert 5e4 < guarded.instructions(pair.guarded, 20, pair.speaks) < 5e6


def test_what_wrk_prints_is_read_with_its_units_and_errors_are_no_result() -> None:
    right = {"requests": 16321, "requests_per_second": 16279.11, "latency_ms_p99": 1200.0}
    assert servers.read_wrk(WRK) == right
    assert (
        servers.read_wrk(WRK.replace("1.20s", "1.20s ")) == right
    )  # it pads seconds to the width of ms
    for added in ("  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 1\n"):
        with pytest.raises(ValueError, match="wrk met errors"):
            servers.read_wrk(WRK + added)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\nok", "does not answer as it should"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", "does not answer as it should"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: close\r\n\r\nok",
            "does not keep its connections",
        ),
    ],
)
def test_a_server_that_answers_wrongly_is_not_measured(
    answer: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = process.Server("wrong", ["true"], tmp_path / "log", 9)
    near, far = socket.socketpair()
    monkeypatch.setattr(server, "dial", lambda: near)
    monkeypatch.setattr(server, "_answer", lambda client: answer)
    with far, pytest.raises(RuntimeError, match=said):
        server.check()
    server.end()


@pytest.mark.slow
def test_clients_that_do_nothing_are_counted_plain_and_behind_tls() -> None:
    found = idle.run("tiny", lambda _: None, only=["ours-parked"])
    assert set(found["results"]["ours-parked"]) == set(idle.MEASURES)
    assert process.KINDS["ours-parked"].about in idle.table(found)


@pytest.mark.slow
def test_clients_that_do_nothing_must_all_be_kept(tmp_path: Path) -> None:
    def leaving(server: process.Server, clients: int) -> list[socket.socket]:
        held = [server.dial() for _ in range(clients)]
        for client in held:
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""  # however long the server stood still before
        return held

    with (
        process.running(["asyncio"], 100, tmp_path) as started,
        pytest.raises(RuntimeError, match="closed 2 of 2 clients"),
    ):
        held: list[socket.socket] = []
        idle.bytes_of(started["asyncio"], 2, 0.2, leaving, held)
        idle.close(started["asyncio"], held)


@pytest.mark.slow
@pytest.mark.parametrize("server", apart.SERVERS)
def test_clients_apart_are_answered_by_either_server_and_counted(
    server: str, tmp_path: Path
) -> None:
    row = apart.measure(server, 50, 0.0, 3.0, tmp_path)
    assert int(row[1].replace(",", "")) > 100
