"""`reaper run -- COMMAND`, the command line: what is refused, what is explained, what the command
is started with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reaper.run.command import HOOK, environment_of, interpreter_of
from tests.helpers.reaper_run import PATIENCE, REAPER, run


@pytest.mark.slow
@pytest.mark.parametrize("inside", [["--inside"], []])
def test_the_exit_status_and_the_output_are_the_commands_own(inside: list[str]) -> None:
    done = run(*inside, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.slow
@pytest.mark.parametrize("inside", [["--inside"], []])
def test_a_signal_reaches_the_command_itself(inside: list[str]) -> None:
    looping = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    command = [*REAPER, "run", *inside, "--", "sh", "-c", looping]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.wait(PATIENCE) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "no command: expected `reaper run -- COMMAND...`"),
        (["--", "no-such-thing"], 127, "no-such-thing: no such command"),
        (["--", __file__], 126, "test_command.py: Permission denied"),
        (
            ["--keep-alive", "5", "--", "true"],
            2,
            "timeouts.keep_alive: '5' (from command line): expected",
        ),
        (["--config", "/no/such.toml", "--", "true"], 2, "/no/such.toml: cannot be read"),
    ],
)
def test_what_cannot_work_is_one_line_and_starts_nothing(
    arguments: list[str], status: int, said: str
) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_environment_keeps_what_the_user_set_and_carries_the_limits() -> None:
    before = {"PYTHONPATH": "/theirs", "OTHER": "1"}
    made = environment_of(before, "a.toml", {"REAPER_TIMEOUTS_KEEP_ALIVE": "5s"}, strict=True)
    assert made["PYTHONPATH"] == f"{HOOK}{os.pathsep}/theirs"
    assert (made["REAPER_RUN"], made["OTHER"]) == ("strict", "1")
    assert made["REAPER_CONFIG"] == os.path.abspath("a.toml")
    assert made["REAPER_TIMEOUTS_KEEP_ALIVE"] == "5s"


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("#!/usr/bin/env python3\n", ["python3"]),
        ("#!/bin/sh\n", None),
        ("#!/x/python -E\n", ["/x/python"]),
    ],
)
def test_the_interpreter_is_read_from_the_first_line(
    tmp_path: Path, text: str, python: list[str] | None
) -> None:
    (tmp_path / "program").write_text(text)
    assert interpreter_of(str(tmp_path / "program"), []) == python


@pytest.mark.slow
def test_explain_says_what_would_be_guarded_by_which_limits_and_starts_nothing() -> None:
    done = run("--explain", "--keep-alive", "7s", "--", sys.executable, "-c", "print('started')")
    assert done.returncode == 0
    assert "started" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("uvicorn ")]
    assert "is guarded from inside: first_byte 10s" in line
    assert "keep_alive 7s" in line
    assert "is guarded from outside: idle 7s" in done.stdout


@pytest.mark.slow
def test_explain_says_that_inside_leaves_another_language_alone() -> None:
    done = run("--explain", "--inside", "--", "sh")
    assert (
        done.stdout
        == "sh is no Python program\nwhat it listens on is not guarded: --inside was given\n"
    )


def test_hook_prints_the_folder_for_pythonpath() -> None:
    assert run("--hook").stdout.strip() == str(HOOK)
