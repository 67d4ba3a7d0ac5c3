"""What the load generator does when things go wrong: with the server, with itself, with what was typed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loadgen_run import ROOT, faulty_server, loadgen

from loadgen.cli import main
from loadgen.drive import processes, watchdog
from loadgen.drive.client import Order
from loadgen.drive.fleet import drive
from loadgen.drive.watchdog import recognise
from loadgen.judge.observation import Counters, Observation, Outcome
from loadgen.judge.records import How, Record, RecordTable
from loadgen.judge.report import UNKNOWN_SERVER, build_report, report_schema
from loadgen.judge.words import drawn, headline, verdict_lines
from loadgen.plan.plan import Law, Plan, make_plan
from loadgen.plan.scenario import from_mix, parse_scenario
from loadgen.units import BadArgument, parse_address, parse_target

LAW = Law(timeout=0.5, tick=0.5)
TARGET = parse_target("127.0.0.1:9")


def plan_of(mix: str = "silent,chatty", connections: int = 40, duration: float = 2.0) -> Plan:
    return make_plan(from_mix(mix), connections, LAW, duration, 1, rate=4000.0)


def report_of(plan: Plan, seen: Observation) -> dict[str, Any]:
    config = {"target": "there", "timeout_s": LAW.timeout, "tick_s": LAW.tick}
    return build_report(plan, seen, config, dict(UNKNOWN_SERVER))


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does *answer* with each connection, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        held = []

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                held.append(sock)
                thread = threading.Thread(target=quietly, args=(answer, sock), daemon=True)
                thread.start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for sock in held:
        sock.close()


def quietly(answer: Callable[[socket.socket], None], sock: socket.socket) -> None:
    with suppress(OSError):
        answer(sock)


def run(port: int, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A run that is planned for ten minutes: what comes back within `loadgen`'s patience was ended early."""
    done = loadgen(
        "run", "--target", f"127.0.0.1:{port}", "--timeout", "500ms", "--tick", "500ms", "--connections", "12",
        "--duration", "10m", "--json", "--quiet", *arguments,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_run_is_ended_when_nothing_was_answered_for_too_long() -> None:
    dog = watchdog.Watchdog(TARGET, "echo", first_answer=10.0)
    asked = Counters(established=5, asked=5)
    assert dog.look(100.0, [asked]) is None
    assert dog.look(109.9, [asked]) is None
    assert "answered nothing within 10 s" in str(dog.look(110.0, [asked]))
    assert dog.look(111.0, [Counters(established=5, asked=5, answered=1)]) is None
    assert watchdog.Watchdog(TARGET, "echo").look(1e9, [Counters(established=5)]) is None


def echo(sock: socket.socket) -> None:
    while data := sock.recv(4096):
        sock.sendall(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "protocol", "words"),
    [
        (lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "echo",
         'answered "HTTP/1.1 400 Bad Request": did you mean --protocol http?'),
        (echo, "http", "sent the request back: did you mean --protocol echo?"),
    ],
)  # fmt: skip
def test_another_protocol_is_recognised_and_what_to_type_is_said(
    server: Callable[[socket.socket], None], protocol: str, words: str
) -> None:
    with answering(server) as port:
        status, report = run(port, "--mix", "silent", "--protocol", protocol)
    assert (status, report["verdict"]) == (1, "fail")
    assert report["reasons"][0] == f"127.0.0.1:{port} {words}"
    assert "TLS" in str(recognise("echo", b"\x15\x03\x01\x00\x02"))
    assert "SSH" in str(recognise("http", b"SSH-2.0-OpenSSH_9.2\r\n"))
    assert recognise("echo", b"hello\r\n") is recognise("http", b"HTTP/1.1 400 Bad Request\r\n") is None


@pytest.mark.slow
def test_a_run_ends_when_all_its_clients_are_gone() -> None:
    with answering(lambda sock: (sock.recv(1), sock.close())) as port:  # type: ignore[arg-type, return-value]
        status, report = run(port, "--mix", "chatty")
    assert status == 1
    assert report["reaps"]["false"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_costs_its_own_connections_only(blow: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENCE", 2.0)
    started: list[processes.Processes] = []
    begin = processes.Processes.__init__

    def note(self: processes.Processes, orders: Any) -> None:
        begin(self, orders)
        started.append(self)

    monkeypatch.setattr(processes.Processes, "__init__", note)
    plan = plan_of(duration=4.0)

    def strike(phase: str) -> None:
        if phase == "open":
            os.kill(started[0].all[1].child.pid, blow)

    with faulty_server(timeout=0.5) as server:
        target = parse_target(f"127.0.0.1:{server.port}")
        seen = drive(Order(plan, target, "echo", 1.0), processes=4, at_phase=strike)
    report = report_of(plan, seen)
    assert report["verdict"] == "inconclusive"
    (reason,) = report["reasons"]
    assert reason.startswith("process 2 of 4")
    assert reason.endswith("its 10 connections were not judged")
    assert report["connections"]["established"] == 40
    assert sum(sum(counts.values()) for counts in report["by_behaviour"].values()) == 30
    assert not started[0].all[1].child.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_inconclusive_with_status_130(number: signal.Signals, whole_group: bool) -> None:
    with faulty_server() as server:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "loadgen", "run", "--target", f"127.0.0.1:{server.port}", "--timeout", "1s",
                "--duration", "50s", "--connections", "10", "--json",
            ],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        while "hold" not in process.stderr.readline():
            pass
        if whole_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    report = json.loads(out)
    assert (process.returncode, report["verdict"]) == (130, "inconclusive")
    (reason,) = report["reasons"]
    assert reason.startswith("interrupted after")
    assert (report["partial"], report["connections"]["established"]) == (True, 10)


def simulated(plan: Plan) -> Observation:
    from loadgen.simulate import Faults, simulate_core

    return simulate_core(plan, Faults())


def test_an_early_close_within_a_millisecond_suggests_the_tolerance() -> None:
    plan = plan_of()
    seen = simulated(plan)
    silent = next(index for index in range(40) if plan.behaviour(index).kind == "silent")
    times = (100.0, 100.0, 100.0, 100.0)
    seen.records.append(Record(silent, 7, How.FIN, 1, 0, 1, *times, 100.4994, 100.4994))
    report = report_of(plan, seen)
    assert report["verdict"] == "fail"
    assert "by at most 600us" in report["reasons"][0]
    assert "--tolerance 1ms" in report["reasons"][0]
    seen.records.append(Record(silent, 8, How.FIN, 1, 0, 1, *times, 100.4, 100.4))
    assert "tolerance" not in report_of(plan, seen)["reasons"][0]


def test_the_headline_of_a_failed_run_says_what_failed_and_no_line_is_wider_than_a_terminal() -> None:
    plan = plan_of()
    seen = simulated(plan)
    for connection in range(3):
        final = int(plan.behaviour(connection).kind == "silent")
        seen.records.append(Record(connection, 7, How.FIN, final, 0, 1, 0.0, 0.0, 1.0, 1.0, 1.1, 1.1))
    report = report_of(plan, seen)
    lines = verdict_lines(report)
    (line,) = [line for line in lines if line.startswith("verdict")]
    assert line.startswith("verdict      FAIL: ")
    assert {word.strip(",") for word in line.split()[2:]} >= {"early", "false"}
    assert max(map(len, lines)) < 80
    report["reaps"] |= dict.fromkeys(("expected", "observed", "early", "late", "missed", "false"), 1_234_567)
    report["connections"]["failed"] = 1_234_567
    assert max(map(len, verdict_lines(report))) < 80
    assert headline(report).endswith("1,234,567 false, 1,234,567 not established")


def test_a_run_whose_stalls_may_explain_every_missing_close_does_not_pass() -> None:
    plan = plan_of()
    seen = simulated(plan)
    silent = [index for index in range(40) if plan.behaviour(index).kind == "silent"]

    def judged(missing: int) -> tuple[str, list[str]]:
        seen.records = RecordTable()
        for number, index in enumerate(100 * silent):
            how = How.OPEN if number < missing else How.FIN
            seen.records.append(Record(index, 7, how, 1, 0, 1, 100.0, 100.0, 100.0, 100.0, 100.6, 100.6))
        report = report_of(plan, seen)
        assert report["reaps"]["undecided"] == missing
        return report["verdict"], report["reasons"]

    assert judged(len(silent)) == ("pass", [])
    verdict, (reason,) = judged(len(silent) + 1)
    assert verdict == "inconclusive"
    assert reason.startswith(f"{len(silent) + 1:,} connections undecided: ")
    assert "more --patience" in reason


def test_many_lost_processes_are_one_headline_and_a_few_lines() -> None:
    lost = [f"process {number} of 9 ended by itself: its 4 connections were not judged" for number in range(1, 9)]
    seen = Observation(0.0, 1.0, 2.0, [Outcome(counters=Counters()) for _ in range(9)], lost=lost)
    report = report_of(plan_of(), seen)
    assert headline(report) == "INCONCLUSIVE: 8 of 9 processes were lost"
    lines = verdict_lines(report)
    assert sum("ended by itself" in line for line in lines) == 5
    assert lines[-1].strip() == "and 3 more reasons, in the report"
    assert len(report["reasons"]) == 8


def test_the_headline_of_a_run_that_was_ended_early_says_why() -> None:
    seen = Observation(0.0, 1.0, 2.0, [Outcome(counters=Counters(failed=8))], because="no route to there: is it?")
    report = report_of(plan_of(), seen)
    assert headline(report) == "FAIL: no route to there"
    report["interrupted"] = True
    assert headline(report) == "FAIL: 8 not established"


def test_the_lateness_is_drawn_in_at_most_ten_bars_that_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    lines = drawn({"width_s": 0.02, "bars": [[0.02 * number, number] for number in range(1, 31)]})
    assert len(lines) == 10
    assert max(map(len, lines)) < 70
    assert [int(line.split()[2]) for line in lines] == [6 + 9 * number for number in range(10)]
    assert drawn({"width_s": 0.02, "bars": []}) == []


@pytest.mark.parametrize(
    "command", [["behaviours"], ["run", "--help"], ["probe", "--help"], ["simulate", "--help"], ["--help"]]
)
def test_nothing_printed_wraps_at_80_columns(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        assert main(command) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 80


TEXTS = st.sampled_from(
    ["silent", "chatty", "linear", "waves", "1s", "0s", "0.5T", "9T", "0T", "", "x", "\n", "9" * 400 + "s"]
)
NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(), st.integers(min_value=10**300))
SCALARS = st.one_of(TEXTS, NUMBERS, st.none().map(lambda _: []), st.dates())
WORDS = "kind name weight timeout reconnect deadline shortest longest every tail earliest latest"
KEYS = st.sampled_from(WORDS.split())
ROWS = st.one_of(SCALARS, st.dictionaries(KEYS, SCALARS, max_size=5).map(lambda row: {"kind": "bursty", **row}))
RAMPS = st.dictionaries(st.sampled_from(["shape", "rate", "waves", "every"]), SCALARS, max_size=4)
FILES = st.fixed_dictionaries(
    {"client": st.one_of(SCALARS, st.lists(ROWS, max_size=3))},
    optional={"name": SCALARS, "description": SCALARS, "protocol": SCALARS, "ramp": st.one_of(SCALARS, RAMPS)},
)


@settings(max_examples=400)
@given(table=FILES)
def test_a_scenario_is_a_plan_or_one_line_of_complaint(table: dict[str, Any]) -> None:
    complaint = ""
    try:
        plan = make_plan(parse_scenario(table, "fuzz"), 5, Law(1.0, 0.5), 20.0, 1, 100.0)
        plan.survey()
        assert all(0 <= plan.connect_offset(index) < 1e15 for index in range(5))
    except BadArgument as error:
        complaint = str(error)
    assert "\n" not in complaint
    assert len(complaint) < 500


def check(report: dict[str, Any]) -> None:
    schema = report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(report, schema, jsonschema.Draft202012Validator)


@pytest.mark.slow
def test_reports_keep_to_the_published_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from test_loadgen_run import run as judged

    with faulty_server("some of each") as server:
        _, real = judged(server.port, "--mix", "silent=50,chatty=40,drip=10", connections=60)
    check(real)
    check(report_of(plan_of(), Observation(0.0, None, 1.0, [Outcome(counters=Counters())], interrupted=True)))
    main(["simulate", "--connections", "20", "--duration", "20m", "--json", "--quiet"])
    check(json.loads(capsys.readouterr().out))
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == report_schema()
    real["verdict"] = "passed"
    with pytest.raises(jsonschema.ValidationError):
        check(real)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8080", ("127.0.0.1:8080", "http", None)),
        ("http://127.0.0.1/a/b?c=d", ("127.0.0.1:80", "http", "/a/b?c=d")),
        ("HTTP://[::1]/", ("[::1]:80", "http", "/")),
        ("127.0.0.1:9", ("127.0.0.1:9", None, None)),
        ("https://localhost", ("127.0.0.1:443", "http", None)),
        ("wss://127.0.0.1:8443/ws", ("127.0.0.1:8443", "ws", "/ws")),
    ],
)
def test_a_target_may_be_a_url(text: str, expected: tuple[str, str | None, str | None]) -> None:
    target, protocol, path, _, _ = parse_address(text)
    assert (str(target), protocol, path) == expected


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    words = f"{sys.executable} -m loadgen schema | true"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
