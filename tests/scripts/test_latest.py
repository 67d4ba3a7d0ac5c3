"""The newest releases: which packages they are of, and what is said of their ranges."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from reaper.foreign import Foreign
from reaper.servers.hypercorn import names as hypercorn
from scripts import latest
from tests.run.test_programs import INSIDE


def said(package: str) -> list[str]:
    """The row of *package*, by columns."""
    (row,) = [row for row in latest.rows() if row.startswith(f"| {package} |")]
    return [column.strip() for column in row.strip("|").split("|")]


def test_every_package_with_a_tested_range_is_tried_in_its_newest_release() -> None:
    rows = [row.split()[1] for row in latest.rows()]
    assert "h2" in rows
    assert set(rows) <= set(latest.PACKAGES)


def test_every_program_that_is_tried_is_installed_there_with_its_command() -> None:
    commands = {program.command.split()[0] for program in INSIDE}
    packages = {
        entry.dist.name.lower()
        for entry in entry_points(group="console_scripts")
        if entry.dist and entry.name in commands
    }
    assert "uvicorn" in packages
    assert packages <= set(latest.PACKAGES)


def test_a_version_within_the_range_is_as_tested() -> None:
    assert said("hypercorn")[-1] == "as tested"


@pytest.mark.parametrize(
    ("names", "what"), [("run", "widen the range"), ("run gone", "lacks TCPServer.gone")]
)
def test_of_a_newer_version_it_is_said_whether_the_range_may_be_widened(
    names: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "hypercorn.asyncio.tcp_server:TCPServer"
    for name in ("ASYNCIO", "TRIO"):
        table = Foreign("hypercorn", ("0.1", "0.2"), {place: names})
        monkeypatch.setattr(hypercorn, name, table)
    assert said("hypercorn")[1] == "0.1 to 0.2"
    assert said("hypercorn")[-1] == what
