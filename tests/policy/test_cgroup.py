"""The memory of control groups, read from files as both versions have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reaper.policy.cgroup import Memory, memory

VERSIONS = {
    "first": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "second": ("", "memory.max", "memory.current", "inactive_file"),
}
OWN = "12:cpu,cpuacct:/x\n4:memory:/a/b\n0::/a/b\n"


class Groups:
    """A tree of groups of one version, /a/b, in *root*."""

    def __init__(self, root: Path, version: str) -> None:
        self.root = root
        self.own = root / "own"
        self.own.write_text(OWN)
        folder, self._limit, self._used, self._reclaimable = VERSIONS[version]
        self._top = root / folder
        (self._top / "a" / "b").mkdir(parents=True)

    def have(self, group: str, limit: str, used: int, reclaimable: int = 0) -> None:
        folder = self._top / group
        (folder / self._limit).write_text(f"{limit}\n")
        (folder / self._used).write_text(f"{used}\n")
        lines = {"cache": 7, "inactive_file": 1, self._reclaimable: reclaimable}
        stat = "".join(f"{name} {value}\n" for name, value in lines.items())
        (folder / "memory.stat").write_text(stat)

    def memory(self) -> Memory | None:
        return memory(self.root, self.own)


@pytest.fixture(params=VERSIONS)
def groups(tmp_path: Path, request: pytest.FixtureRequest) -> Groups:
    return Groups(tmp_path, request.param)


def test_no_group_has_a_limit(groups: Groups) -> None:
    assert groups.memory() is None


def test_there_are_no_groups(tmp_path: Path) -> None:
    assert memory(tmp_path, tmp_path / "nowhere") is None


def test_what_a_group_has_left_is_its_limit_less_what_is_used(groups: Groups) -> None:
    groups.have("a/b", "4096", used=1000)
    assert groups.memory() == Memory(4096, 3096)


def test_files_that_nobody_has_used_for_a_while_count_as_left(groups: Groups) -> None:
    groups.have("a/b", "4096", used=1000, reclaimable=400)
    assert groups.memory() == Memory(4096, 3496)


def test_the_least_limit_of_a_group_and_those_around_it_counts(groups: Groups) -> None:
    groups.have("a/b", "8192", used=0)
    groups.have("a", "4096", used=0)
    groups.have("", "16384", used=0)
    assert groups.memory() == Memory(4096, 4096)


def test_a_fuller_group_around_it_counts(groups: Groups) -> None:
    groups.have("a/b", "4096", used=1000)
    groups.have("a", "8192", used=8000)
    assert groups.memory() == Memory(4096, 192)


def test_a_group_that_is_over_its_limit_has_nothing_left(groups: Groups) -> None:
    groups.have("a/b", "4096", used=5000)
    assert groups.memory() == Memory(4096, 0)


@pytest.mark.parametrize("word", ["max", str((1 << 63) - 4096)])
def test_a_group_without_a_limit_is_passed_over(groups: Groups, word: str) -> None:
    groups.have("a/b", word, used=1000)
    groups.have("a", "8192", used=2000)
    assert groups.memory() == Memory(8192, 6192)
