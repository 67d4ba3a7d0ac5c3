"""Who does not use a keeper pays nothing for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.test_layers import graph, reachable


@pytest.mark.parametrize("door", ["reaper", "reaper.asyncio", "reaper.trio", "reaper.uvicorn"])
def test_a_door_does_not_import_the_keeper(door: str) -> None:
    loaded = f"import {door}, sys; print(*[m for m in sys.modules if 'keeper' in m])"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("\n", "")


def test_no_guest_imports_the_keeper() -> None:
    known = graph("reaper")
    rooms = [name for name in known if name.startswith(("reaper.servers.", "reaper.run."))]
    assert len(rooms) > 50
    for name in rooms:
        reached = reachable(known, name)
        assert not [other for other in reached if other.startswith("reaper.keeper")], name
