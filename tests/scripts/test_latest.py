"""The newest releases: which packages they are of, and what is said of their ranges."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reaper.foreign import Foreign
from scripts import latest


def said(package: str) -> list[str]:
    """The row of *package*, by columns."""
    (row,) = [row for row in latest.rows() if row.startswith(f"| {package} |")]
    return [column.strip() for column in row.strip("|").split("|")]


def test_every_package_with_a_tested_range_is_tried_in_its_newest_release() -> None:
    rows = [row.split()[1] for row in latest.rows()]
    assert "h2" in rows
    assert set(rows) <= set(latest.PACKAGES)


def python_in(folder: Path) -> Path:
    """A Python in *folder*: this one."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_command_that_has_no_newer_release_is_run_by_the_newer_environment(
    tmp_path: Path,
) -> None:
    python = python_in(tmp_path / "latest")
    own = python.parent / "pip"
    own.write_text("its own")
    latest.take_commands(Path(sys.executable).parent, python)
    assert own.read_text() == "its own"
    assert (python.parent / "uvicorn").read_text().startswith(f"#!{python}\n")
    done = subprocess.run([python.parent / "uvicorn", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("Running uvicorn")


@pytest.mark.parametrize("name", ["a b", "long" * 30])
def test_commands_below_a_path_that_is_no_head_of_a_script_are_taken_too(
    name: str, tmp_path: Path
) -> None:
    """Their heads are those that pip writes there."""
    below, python = python_in(tmp_path / name).parent, python_in(tmp_path / f"{name}, latest")
    quoted = f'"{below}/python3"' if " " in name else f"{below}/python3"
    head = f"#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\n"
    (below / "says").write_text(f"{head}import sys\nprint(*sys.argv[1:])\n")
    (below / "other").write_text(head.replace(quoted, "/usr/bin/python3"))
    latest.take_commands(below, python)
    assert sorted(path.name for path in python.parent.iterdir()) == ["python", "says"]
    said = subprocess.run([python.parent / "says", "one", "two"], capture_output=True, text=True)
    assert said.stdout == "one two\n"
    assert str(python) in (python.parent / "says").read_text()


def test_a_version_within_the_range_is_as_tested() -> None:
    assert said("hypercorn")[-1] == "as tested"


@pytest.mark.parametrize(
    ("names", "what"), [("run", "widen the range"), ("run gone", "lacks TCPServer.gone")]
)
def test_of_a_newer_version_it_is_said_whether_the_range_may_be_widened(
    names: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "hypercorn.asyncio.tcp_server:TCPServer"
    table = Foreign("hypercorn", ("0.1", "0.2"), {place: names})
    monkeypatch.setattr(latest, "cards", lambda: [SimpleNamespace(tables=(table,))])
    assert said("hypercorn")[1] == "0.1 to 0.2"
    assert said("hypercorn")[-1] == what
