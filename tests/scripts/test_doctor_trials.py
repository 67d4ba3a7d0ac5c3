"""Servers that others wrote are healthy under load, for the doctor, too."""

from __future__ import annotations

import pytest

from scripts.doctor_trials import SERVERS, trial
from scripts.tools import Missing


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nginx", "redis", "node"])
def test_the_doctor_finds_nothing_wrong_with_a_server_under_load(name: str) -> None:
    try:
        said = trial(SERVERS[name], 3.0)
    except Missing as missing:
        pytest.skip(str(missing))
    assert [one.findings for one in said] == [[], []]
    assert all(one.connections >= 20 for one in said)
