"""`reaper` imports the command that it is asked for, and says a line of the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reaper.__main__ import COMMANDS, QUESTIONS, main, make_parser
from reaper.config.flags import Parser

LOADED = """
import contextlib, io, runpy, sys
sys.argv = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("reaper", run_name="__main__")
print(*(name for name in sys.modules if name.startswith("reaper.")))
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_line_of_a_command_that_is_not_asked_for_is_the_commands_own(name: str) -> None:
    assert make_parser("reaper", name).format_help() == make_parser("reaper", "").format_help()


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_what_asks_for_no_command_imports_none(flag: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", LOADED, "reaper", flag], capture_output=True, text=True, check=True
    ).stdout
    rooms = {name.split(".")[1] for name in said.split()}
    assert rooms == {"config", "core", "errors", "stops"}


def test_a_command_imports_no_other_ones_room() -> None:
    said = subprocess.run(
        [sys.executable, "-c", LOADED, "reaper", "check", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rooms = {name.split(".")[1] for name in said.split()}
    assert not rooms & {"run", "attach", "doctor", "top", "pipeline", "journal"}


def test_a_question_of_the_pipeline_is_named_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--logs", "x"]) == 2
    assert capsys.readouterr().err.endswith("pipeline advise\n")
    from reaper.pipeline.cli import add_commands

    commands = Parser().add_subparsers()
    add_commands(commands)
    assert tuple(commands.choices) == QUESTIONS
