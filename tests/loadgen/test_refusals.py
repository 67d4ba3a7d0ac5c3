"""What is typed wrong costs one line that says what would be right, and status 2,
before anything has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loadgen.cli import main

if TYPE_CHECKING:
    from tests.conftest import Ran

RUN = ["run", "--target=127.0.0.1:9", "--timeout=1s"]
DURATIONS, TARGET = "250ms, 30s, 5m or 1h", "HOST:PORT"

Refused = Callable[[list[str], str], None]


@pytest.fixture
def refused(call: Ran) -> Refused:
    """See that a command with these arguments is refused by a complaint."""

    def run(arguments: list[str], complaint: str) -> None:
        status, out, err = call(main, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert complaint in err
        assert len(err) < 800

    return run


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        *(
            (f"--timeout={text}", DURATIONS)
            for text in ("", "5", "s", "-1s", "1 year", "nan", "infs", "1e3s")
        ),
        ("--timeout=0s", "longer than 0"),
        *(
            (f"--target={text}", TARGET)
            for text in (
                "localhost",
                "127.0.0.1:",
                "127.0.0.1:0",
                "127.0.0.1:70000",
                ":80",
                "127.0.0.1:http",
                "http://",
                "http://127.0.0.1:99999",
                "http://127.0.0.1/a b",
                "http://a@127.0.0.1",
            )
        ),
        ("--target=ftp://127.0.0.1", "ftp is not spoken"),
        ("--target=192.0.2.1:80", "--allow-remote"),
        ("--target=http://127.0.0.1:9/path --protocol=echo", "leave one of them out"),
        ("--target=http://127.0.0.1:9/path --path=/other", "leave one of them out"),
        ("--connections=0", "at least 1"),
        ("--connections=100000M", "at most"),
        *(
            (f"--mix=silent={weight}", "must be a number > 0")
            for weight in ("x", "0", "-1", "inf", "nan")
        ),
        ("--mix=", "'' is no behaviour"),
        ("--mix=loud=1", "'loud' is no behaviour"),
        ("--mix=silent,silent", "'silent' is given twice"),
        (
            "--duration=1200ms --tick=250ms",
            "at timeout 1s and tick 250ms: at least 1.35s is needed",
        ),
        ("--beat=11ms", "too long for a timeout of 1s: at most 10ms"),
        (
            "--scenario=nowhere.toml",
            "nowhere.toml: No such file or directory: give a TOML file or one of churn, every",
        ),
        ("--scenario=\0", "null"),
        ("--scenario=slow --protocol=echo", "needs --protocol http"),
        ("--server-pid=999999999", "no such process"),
        *(
            (f"--threshold={text}", "--threshold: ")
            for text in (
                "x<1",
                "lateness.p99",
                "lateness.p98<1s",
                "lateness.p99<1",
                "reaps.late<x",
                "lateness.p99~1s",
            )
        ),
        ("--processes=none", "whole number"),
        ("--protocol=quic", "quic"),
    ],
)
def test_a_bad_argument_of_run(arguments: str, complaint: str, refused: Refused) -> None:
    first, *more = arguments.split(" --")
    refused([*RUN, first, *(f"--{each}" for each in more)], complaint)


@pytest.mark.parametrize(
    "arguments", [["run", "--timeout", "-5s"], ["simulate", "--duration", "-1h"]]
)
def test_a_negative_duration_is_shown_with_what_would_be_right(
    arguments: list[str], refused: Refused
) -> None:
    refused(arguments, f"'{arguments[-1]}' is not a duration")


@pytest.mark.parametrize("argument", ["--expect=tea=5s", "--expect=idle", "--wait=0", "--trials=x"])
def test_a_bad_argument_of_probe(argument: str, refused: Refused) -> None:
    refused(["probe", "--target=127.0.0.1:9", argument], argument[:6])


@pytest.mark.parametrize("command", [RUN, ["simulate"]])
@pytest.mark.parametrize("option", ["--report", "--html"])
def test_a_file_that_cannot_be_written(
    option: str, command: list[str], tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "inside", Path("/proc/inside")):
        refused([*command, "--connections=10", f"{option}={path}"], option)


@pytest.mark.parametrize("command", [RUN, ["simulate"]])
def test_a_journal_that_cannot_be_written(
    command: list[str], tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "inside", Path("/proc/inside")):
        refused([*command, "--connections=10", f"--journal={path}"], f"--journal {path}: ")


def test_a_report_of_a_probe_that_cannot_be_written(refused: Refused) -> None:
    refused(
        ["probe", "--target=127.0.0.1:9", "--expect=idle=5s", "--junit=/proc/inside"], "--junit"
    )


CLIENT = "[[client]]\nkind = "


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no clients"),
        ("client = [1]", "client 1 = 1: write [[client]]"),
        (CLIENT + "[]", "kind = []: choose from"),
        (CLIENT + "'slient'", "'slient': choose from"),
        (CLIENT + "'silent'\nwieght = 3", "silent.wieght: a silent client has no such parameter"),
        (CLIENT + "'silent'\nweight = 0", "must be a number > 0"),
        (CLIENT + "'silent'\nweight = " + "9" * 5000, "Exceeds the limit"),
        (CLIENT + "'drip'\nevery = '0.95T'", "neither end would be wrong"),
        (CLIENT + "'drip'\nevery = 3", "write a duration"),
        (CLIENT + "'chatty'\nshortest = '0.4T'\nlongest = '0.3T'", "longer than its longest"),
        (CLIENT + "'bursty'\ntail = 0", "tail must be a number from"),
        (CLIENT + "'bursty'\nshortest = '0s'", "its gap must be longer than 0"),
        (2 * (CLIENT + "'silent'\n"), "two clients are called 'silent'"),
        (CLIENT + "'silent'\n[ramp]\nshape = 'cliff'", "choose from linear, burst, waves"),
        (CLIENT + "'silent'\n[ramp]\nwaves = 0", "must be > 0"),
        (CLIENT + "'silent'\n[ramp]\nrate = nan", "must be a number"),
        ("protocol = 'quic'\n" + CLIENT + "'silent'", "choose from echo, http, raw"),
        ("clients = 3\n" + CLIENT + "'silent'", "unknown key 'clients'"),
        ("a = " + "[" * 5000, "nested too deeply"),
        (
            "\n".join(f"{CLIENT}'silent'\nname = 'n{number}'" for number in range(300)),
            "write at most 255",
        ),
        ("\xff\xfe", "codec can't decode"),
    ],
)
def test_a_bad_scenario(text: str, complaint: str, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    refused(["simulate", "--connections=10", f"--scenario={path}"], complaint)
    refused(["simulate", f"--scenario={tmp_path}"], "Is a directory")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[faults]\nearly = 0.5", "faults.early = 0.5: write a count"),
        ("[faults]\nrude = 1", "faults.rude = 1: write a count"),
        ("late = 1", "unknown key 'late'"),
        ("faults = 3", "write [faults]"),
        ("[faults]\nbackward = 1", "give --mode full"),
    ],
)
def test_a_bad_file_of_faults(text: str, complaint: str, tmp_path: Path, refused: Refused) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "faults.toml"
    path.write_text(text)
    out = f"--journal={tmp_path / 'out'}"
    refused(["simulate", out, f"--faults={path}", "--mode=gaps", "--connections=5"], complaint)


def test_faults_that_cannot_be_read_leave_no_folder(tmp_path: Path, refused: Refused) -> None:
    pytest.importorskip("pyarrow")
    out = tmp_path / "out"
    refused(
        ["simulate", f"--journal={out}", "--faults=nofile"],
        "--faults nofile: No such file or directory: give a TOML file",
    )
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["simulate", "--mix=slient=1"], "'slient' is no behaviour"),
        ([*RUN, "--protocol=http", "--mix=slow_message=1"], "a slow_message client needs"),
    ],
)
@pytest.mark.parametrize("kind", ["journal", "report", "html"])
def test_what_is_refused_leaves_no_folder(
    command: list[str], complaint: str, kind: str, tmp_path: Path, refused: Refused
) -> None:
    pytest.importorskip("pyarrow")
    out = tmp_path / "new"
    refused([*command, f"--{kind}={out / 'out'}"], complaint)
    assert not out.exists()


def test_what_is_written_makes_its_folder(tmp_path: Path, call: Ran) -> None:
    report = tmp_path / "new" / "report.json"
    few = ("--connections=10", "--duration=10s", "--timeout=5s")
    status, *_ = call(main, "simulate", *few, f"--report={report}")
    assert (status, report.is_file()) == (0, True)
