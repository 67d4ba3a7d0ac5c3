"""Requests per second of guarded uvicorn, beside stock and beside another commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import requests

NAMES = (requests.STOCK, requests.CONTROL, requests.NOW, requests.old("c" * 40))


def repository(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> str:
    """A repository with one commit of an empty *package*, in the place of ours; the
    commit's id.
    """
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("")
    author = ["-c", "user.name=a", "-c", "user.email=a@example"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "One"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    monkeypatch.setattr(requests, "ROOT", folder)
    return requests.commit("HEAD")


def test_the_guard_of_another_commit_is_imported_from_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with requests.tree_of(repository(tmp_path, monkeypatch, "reaper")) as folder:
        assert (folder / "reaper" / "__init__.py").read_text() == ""
    assert not folder.exists()


def test_a_commit_whose_files_would_not_be_imported_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = repository(tmp_path, monkeypatch, "another")
    with pytest.raises(RuntimeError, match="programs there import"), requests.tree_of(made):
        pass


def test_each_server_is_compared_with_stock_round_by_round() -> None:
    rates = dict(zip(NAMES, ([100, 200], [100, 220], [90, 180], [80, 160]), strict=True))
    taken = {
        name: {"requests_per_second": [float(each) for each in found], "cpu_us": [10.0, 10.0]}
        for name, found in rates.items()
    }
    said = requests.table(taken, "c" * 40)
    assert "| guarded | 135 | 10 | 0.900x (0.900-0.900) | 1.000x (1.000-1.000) |" in said
    assert "requests 1.125x (1.125-1.125), CPU 1.000x" in said
    assert said.endswith("The control, requests: 1.050x (1.000-1.100).")
    assert "against" not in requests.table({name: taken[name] for name in NAMES[:3]}, None)


@pytest.mark.parametrize("words", [["--against", "nonsense"], ["--rounds", "0"], ["--loop", "tri"]])
def test_a_wrong_argument_is_named_and_nothing_measured(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requests, "tool", lambda name: name)
    monkeypatch.setattr(sys, "argv", ["requests", *words])
    with pytest.raises(SystemExit) as ended:
        requests.main()
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err
