"""Claims about the comparison of servers: each answers correctly first, and what cannot be run is said."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import burst, pauses, resting
from benchmarks.servers import process as servers_process
from benchmarks.servers import run as servers
from scripts import serving

WRK = """Running 1s test @ http://127.0.0.1:18999/ok
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.10ms    1.02ms  20.11ms   90.00%
    Req/Sec    16.30k     1.10k   18.00k    70.00%
  Latency Distribution
     50%    2.90ms
     75%    3.40ms
     90%    4.00ms
     99%    1.20s
  16321 requests in 1.00s, 1.56MB read
Requests/sec:  16279.11
Transfer/sec:      1.55MB
"""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return servers.run(True, lambda _: None, size=servers.TINY)


@pytest.mark.slow
@pytest.mark.parametrize("name", servers_process.KINDS)
def test_each_server_has_its_memory_and_a_figure_from_every_round(report: dict[str, Any], name: str) -> None:
    if name in report["not_run"]:
        pytest.skip(report["not_run"][name])
    found = report["results"][name]
    assert len(found["bytes_by_quarter"]) == servers.QUARTERS
    assert found["rss_empty_bytes"] > 0
    assert len(found["cpu_us"]["samples"]) == servers.TINY.rounds
    assert 0 < found["cpu_us"]["median"] < 1e5


@pytest.mark.slow
def test_http_is_compared_with_http_and_echo_with_echo(report: dict[str, Any]) -> None:
    compared = {theirs: set(each) for theirs, each in report["ratios"].items()}
    http = {"hypercorn", "uvicorn", "aiohttp", "asyncio", "nginx"} - set(report["not_run"])
    assert compared == {name: set(servers.OURS) for name in http} | {"asyncio-echo": set(servers.OURS_ECHO)}
    for each in compared:
        assert each in servers.table(report)


@pytest.mark.slow
def test_wrk_drives_our_server(tmp_path: Path) -> None:
    if servers_process.installed("wrk") is None:
        pytest.skip("wrk is not installed")
    size = servers.Size(4, 0, 50, 1, 1)
    with servers_process.running(["ours"], 200, tmp_path) as started:
        found = servers.wrk_rounds(started, size, lambda _: None)
    assert found["ours"]["requests_per_second"][0] > 0
    assert found["ours"]["cpu_us"][0] > 0


def test_what_wrk_prints_is_read_with_its_units() -> None:
    assert servers.read_wrk(WRK) == {
        "requests": 16321,
        "requests_per_second": 16279.11,
        "latency_ms_p50": 2.9,
        "latency_ms_p99": 1200.0,
    }


@pytest.mark.parametrize("added", ["  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 1\n"])
def test_answers_that_were_errors_are_no_result(added: str) -> None:
    with pytest.raises(ValueError, match="wrk met errors"):
        servers.read_wrk(WRK + added)


def test_without_its_tool_a_server_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_process.shutil, "which", lambda *words, **more: None)
    said: list[str] = []
    report = servers.run(True, said.append, size=servers.TINY, only=["nginx"])
    assert set(report["not_run"]) == {"nginx", "wrk"}
    assert "nginx NOT RUN: nginx is not installed" in said
    assert "NOT RUN: nginx" in servers.table(report)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\nok", "does not answer as it should"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", "does not answer as it should"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: close\r\n\r\nok", "does not keep its connections"),
    ],
)
def test_a_server_that_answers_wrongly_is_not_measured(answer: bytes, said: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                while client.recv(4096):
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        kind = servers_process.KINDS["asyncio"]
        started = serving.Server([sys.executable, "-c", ""], tmp_path / "log", port=listener.getsockname()[1])
        with pytest.raises(RuntimeError, match=said):
            servers_process.Server("wrong", kind, started).check()
        started.end()
        thread.join()


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error_and_the_others_are_ended(tmp_path: Path) -> None:
    kinds = servers_process.KINDS
    broken = servers_process.Kind("it ends at once", lambda port, most, folder: [sys.executable, "-c", ""])
    good = servers_process.Kind("it serves", kinds["asyncio"].command)
    started: list[socket.socket] = []
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(RuntimeError, match="broken does not serve"),
    ):
        patch.setitem(servers_process.ALL_KINDS, "broken", broken)
        patch.setitem(servers_process.ALL_KINDS, "good", good)
        with servers_process.running(["good"], 10, tmp_path) as servers_up:
            started.append(servers_up["good"].dial())
            with servers_process.running(["broken"], 10, tmp_path):
                pass
    with started[0] as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--only", "apache"], "--only apache: must be of ours"), (["--connections", "0"], "must be an integer >= 4")],
)
def test_bad_arguments_are_status_2_and_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        servers.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_burst_of_clients_is_answered_and_its_memory_reported_for_each_server() -> None:
    report = burst.run([60], lambda _: None, only=["ours-parked", "ours", "asyncio"], silence=0.3, rounds=1)
    for name in ("ours-parked", "ours", "asyncio"):
        found = report["results"][name]["60"]
        assert found["peak_bytes_per_connection"] >= found["bytes_per_idle_connection"]
        assert found["cpu_us"] > 0
        assert name in burst.table(report)
    assert report["busy"]["parked / not"]["median"] > 0


def test_a_burst_too_small_or_of_no_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["--clients", "10"], "must be a whole number >= 50"), (["--only", "x"], "--only x")):
        with pytest.raises(SystemExit) as ended:
            burst.main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_clients_that_rest_are_counted_plain_and_behind_tls_and_must_all_be_kept(tmp_path: Path) -> None:
    report = resting.run(60, 20, lambda _: None, only=["ours-parked", "sessions"], silence=0.2)
    assert set(report["results"]["ours-parked"]) == set(resting.MEASURES)
    assert set(report["results"]["sessions"]) == {"tls idle"}
    report["results"] = {"ours-parked": {"tls idle": 3.0}, "sessions": {"tls idle": 4.0}, "ours": {"silent": 2.0}}
    assert resting.table(report).splitlines()[-1] == "tls idle, ours-parked / sessions: 0.75"
    with (
        servers_process.running(["asyncio"], 100, tmp_path) as started,
        pytest.raises(RuntimeError, match="closed 2 of 2 clients"),
    ):

        def end(server: servers_process.Server) -> socket.socket:
            client = server.dial()
            client.shutdown(socket.SHUT_WR)
            return client

        resting._bytes_of(started["asyncio"], 2, 0.2, end)


@pytest.mark.slow
@pytest.mark.parametrize("name", pauses.NAMES)
def test_the_passes_of_each_event_are_counted(name: str) -> None:
    report = pauses.run(40, 50, lambda _: None, only=[name], idle=1.0)
    events = {"all due"} if name == "tasks" else {"connect", "all speak", "all due"}
    assert set(report["results"][name]) == events
    assert all(found["passes"] > 0 < found["worst_ms"] for found in report["results"][name].values())
    assert pauses.table(report).splitlines()[-1].startswith("longest pass ")


@pytest.mark.parametrize("module", [resting, pauses])
def test_nothing_to_measure_is_refused(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    number = {resting: "--clients", pauses: "--tasks"}[module]
    for arguments, said in ((["--only", "x"], "--only x: must be of"), ([number, "0"], f"{number} 0: must be an")):
        with pytest.raises(SystemExit) as ended:
            module.main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
