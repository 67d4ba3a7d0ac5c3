"""What the load generator does when things go wrong: with the server, with itself, with
what was typed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from multiprocessing import active_children
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.cli import main
from loadgen.drive import fleet, watchdog
from loadgen.drive.client import Order
from loadgen.drive.fleet import drive
from loadgen.drive.watchdog import recognise
from loadgen.judge.observation import Counters, Observation, Outcome
from loadgen.judge.report import report_schema
from loadgen.plan.plan import Law, make_plan
from loadgen.plan.scenario import from_mix, parse_scenario
from loadgen.units import BadArgument, parse_target
from tests.loadgen.test_output import report_of
from tests.loadgen.test_run import ROOT, faulty_server, run

if TYPE_CHECKING:
    from tests.conftest import Ran

TARGET = parse_target("127.0.0.1:9")


LONG = ("--timeout", "500ms", "--duration", "10m")
"""A run that is planned for ten minutes: what comes back within `loadgen`'s patience
was ended early.
"""


def test_a_run_is_ended_when_nothing_was_answered_for_too_long() -> None:
    dog = watchdog.Watchdog(TARGET, "echo", first_answer=10.0)
    asked = Counters(established=5, asked=5)
    assert dog.look(100.0, [asked]) is None
    assert dog.look(109.9, [asked]) is None
    assert "answered nothing within 10 s" in str(dog.look(110.0, [asked]))
    assert dog.look(111.0, [Counters(established=5, asked=5, answered=1)]) is None
    assert watchdog.Watchdog(TARGET, "echo").look(1e9, [Counters(established=5)]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "protocol", "words"),
    [
        (
            "answers in HTTP",
            "echo",
            'answered "HTTP/1.1 400 Bad Request": did you mean --protocol http?',
        ),
        ("right", "http", "sent the request back: did you mean --protocol echo?"),
    ],
)
def test_another_protocol_is_recognised_and_what_to_type_is_said(
    server: str, protocol: str, words: str
) -> None:
    with faulty_server(server, timeout=60.0) as running:
        status, report = run(
            running.port, *LONG, "--mix", "silent", "--protocol", protocol, connections=12
        )
    assert (status, report["verdict"]) == (1, "fail")
    assert report["reasons"][0] == f"127.0.0.1:{running.port} {words}"
    assert "TLS" in str(recognise("echo", b"\x15\x03\x01\x00\x02"))
    assert "SSH" in str(recognise("http", b"SSH-2.0-OpenSSH_9.2\r\n"))
    assert (
        recognise("echo", b"hello\r\n")
        is recognise("http", b"HTTP/1.1 400 Bad Request\r\n")
        is None
    )


@pytest.mark.slow
def test_a_run_ends_when_all_its_clients_are_gone() -> None:
    with faulty_server("cuts the young, whatever the scenario says") as server:
        # At this timeout each speaks once before it is cut: no lag of this machine can
        # be why.
        status, report = run(
            server.port, *LONG, "--mix", "chatty", "--timeout", "60s", connections=12
        )
    assert status == 1
    assert report["reaps"]["false"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_costs_its_own_connections_only(
    blow: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SILENCE", 2.0)
    # Clients that no lag of their own kills, and a tick that no stall exceeds: both
    # would be a reason more.
    plan = make_plan(from_mix("silent"), 40, Law(timeout=0.5, tick=2.0), 4.0, 1, rate=4000.0)
    struck: list[Any] = []

    def strike(phase: str) -> None:
        if phase == "open":
            struck.append(
                sorted(active_children(), key=lambda child: int(child.name.rpartition("-")[2]))[1]
            )
            os.kill(struck[0].pid, blow)

    with faulty_server(timeout=0.5) as server:
        target = parse_target(f"127.0.0.1:{server.port}")
        seen = drive(Order(plan, target, "echo", 1.0), processes=4, at_phase=strike)
    report = report_of(seen, plan=plan)
    assert report["verdict"] == "inconclusive"
    (reason,) = report["reasons"]
    assert reason.startswith("process 2 of 4")
    assert reason.endswith("its 10 connections were not judged")
    assert report["connections"]["established"] == 40
    assert sum(sum(counts.values()) for counts in report["by_behaviour"].values()) == 30
    assert not struck[0].is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_inconclusive_with_status_130(
    number: signal.Signals, whole_group: bool
) -> None:
    # At this timeout no lag of this machine ends a client before the interruption.
    with faulty_server(timeout=60.0) as server:
        words = f"run --target {server.target} --timeout 60s --duration 2m --connections 10 --json"
        process = subprocess.Popen(
            [sys.executable, "-m", "loadgen", *words.split()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
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


@pytest.mark.parametrize(
    "command",
    [["behaviours"], ["run", "--help"], ["probe", "--help"], ["simulate", "--help"], ["--help"]],
)
def test_nothing_printed_wraps_at_80_columns(
    command: list[str], call: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, printed, _ = call(main, *command)
    assert (status, max(map(len, printed.splitlines())) < 80) == (0, True)
    assert command != ["behaviours"] or {"slow_headers", "reconnect-storm"} <= set(printed.split())


TEXTS = st.sampled_from(
    [
        "silent",
        "chatty",
        "linear",
        "waves",
        "1s",
        "0s",
        "0.5T",
        "9T",
        "0T",
        "",
        "x",
        "\n",
        "9" * 400 + "s",
    ]
)
NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(), st.integers(min_value=10**300))
SCALARS: st.SearchStrategy[Any] = st.one_of(TEXTS, NUMBERS, st.none().map(lambda _: []), st.dates())
WORDS = "kind name weight timeout reconnect deadline shortest longest every tail earliest latest"
KEYS = st.sampled_from(WORDS.split())
ROWS = st.one_of(
    SCALARS, st.dictionaries(KEYS, SCALARS, max_size=5).map(lambda row: {"kind": "bursty", **row})
)
RAMPS = st.dictionaries(st.sampled_from(["shape", "rate", "waves", "every"]), SCALARS, max_size=4)
FILES = st.fixed_dictionaries(
    {"client": st.one_of(SCALARS, st.lists(ROWS, max_size=3))},
    optional={
        "name": SCALARS,
        "description": SCALARS,
        "protocol": SCALARS,
        "ramp": st.one_of(SCALARS, RAMPS),
    },
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
def test_reports_keep_to_the_published_schema(call: Ran) -> None:
    with faulty_server("some of each") as server:
        _, real = run(server.port, "--mix", "silent=50,chatty=40,drip=10", connections=60)
    check(real)
    check(report_of(Observation(0.0, None, 1.0, [Outcome()], interrupted=True)))
    check(
        json.loads(
            call(
                main, *["simulate", "--connections", "20", "--duration", "20m", "--json", "--quiet"]
            )[1]
        )
    )
    assert json.loads(call(main, "schema")[1]) == report_schema()
    real["verdict"] = "passed"
    with pytest.raises(jsonschema.ValidationError):
        check(real)


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    words = f"{shlex.quote(sys.executable)} -m loadgen schema | true"
    done = subprocess.run(
        ["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
