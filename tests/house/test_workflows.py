"""What CI and a release do on GitHub: the same commands as here, with no right that is
not needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def jobs(name: str) -> dict[str, Any]:
    """The jobs of a workflow, by name."""
    read: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    found: dict[str, Any] = read["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_its_version_is_said(path: Path) -> None:
    used = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not PINNED.fullmatch(line.strip(" -"))] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_the_least_rights(path: Path) -> None:
    read = yaml.safe_load(path.read_text())
    assert read["permissions"] in ({}, {"contents": "read"})
    for job in read["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_ci_runs_what_is_run_here() -> None:
    steps = [step.get("run", "") for job in jobs("ci.yml").values() for step in job["steps"]]
    assert "sudo --preserve-env=PATH .ci/run" in steps
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in WORKFLOWS:
        for target in re.findall(
            r"^ +(?:- run: )?make (?:-C \S+ )?([a-z-]+)", path.read_text(), re.MULTILINE
        ):
            assert target in targets


def test_the_newest_releases_are_tried_every_week() -> None:
    (job,) = jobs("latest.yml").values()
    assert job["steps"][-1] == {"run": "make test-latest"}
    read = yaml.safe_load((ROOT / ".github" / "workflows" / "latest.yml").read_text())
    (when,) = read[True]["schedule"]  # YAML 1.1 reads the key `on` as true
    assert when["cron"].split()[2:] == ["*", "*", "1"]


def test_only_tagging_and_publishing_have_rights_and_run_no_checkout() -> None:
    found = jobs("release.yml")
    rights = {name: job.get("permissions") for name, job in found.items()}
    assert rights == {
        "build": {"contents": "read"},
        "tag": {"contents": "write"},
        "publish": {"id-token": "write"},
    }
    assert (found["tag"]["needs"], found["publish"]["needs"]) == ("build", "tag")
    for name in ("tag", "publish"):
        assert not any("checkout@" in step.get("uses", "") for step in found[name]["steps"])
        assert not any("password" in step.get("with", {}) for step in found[name]["steps"])


def test_a_tag_is_made_by_the_release_alone() -> None:
    read = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert list(read[True]) == ["workflow_dispatch"]  # YAML 1.1 reads the key `on` as true
