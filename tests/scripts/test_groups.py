"""Memory control groups: what a group says of itself, read from files as both versions
have them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts import groups
from scripts.groups import Group, memory_group
from scripts.tools import Missing

FIRST = {"memory.limit_in_bytes": "0", "memory.memsw.limit_in_bytes": "0"}
SECOND = {"memory.max": "max", "memory.swap.max": "max"}


def group_of(folder: Path, files: dict[str, str]) -> Group:
    for name, text in files.items():
        (folder / name).write_text(text)
    return Group(folder)


@pytest.mark.parametrize("files", [FIRST, SECOND], ids=["first", "second"])
def test_a_group_is_limited_without_swap(tmp_path: Path, files: dict[str, str]) -> None:
    group_of(tmp_path, files).limit(4096)
    limit, swap = ((tmp_path / name).read_text() for name in files)
    assert (limit, swap) == ("4096", "0" if files is SECOND else "4096")


@pytest.mark.parametrize(
    ("files", "name"), [(FIRST, "memory.oom_control"), (SECOND, "memory.events")]
)
def test_the_kills_of_a_group_are_counted(tmp_path: Path, files: dict[str, str], name: str) -> None:
    assert group_of(tmp_path, files | {name: "oom 7\noom_kill 3\noom_group_kill 9\n"}).kills() == 3


def test_a_command_joins_its_group_before_it_begins(tmp_path: Path) -> None:
    joined = group_of(tmp_path, FIRST).joined(["/bin/sh", "-c", "echo $$"])
    done = subprocess.run(joined, capture_output=True, text=True, check=True)
    assert (tmp_path / "cgroup.procs").read_text() == done.stdout.strip()


def test_where_no_group_can_be_made_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "ROOT", tmp_path)
    with pytest.raises(Missing, match="no memory control group"), memory_group(4096):
        pass
    assert os.listdir(tmp_path) == []
