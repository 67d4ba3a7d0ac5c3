"""The hot path in machine instructions: counts, not seconds, so a busy machine cannot make them fail.

The bounds are ratios to an empty method call of the same interpreter, a little above what was counted when they were
set: lease.touch() 1.24, core.touch(uid) 2.8 dict stores, a touch with a move 2.21.
"""

from __future__ import annotations

import shutil

import pytest

from benchmarks.instructions import count

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind (Debian: apt-get install valgrind)"),
]


@pytest.fixture(scope="module")
def counts() -> dict[str, float]:
    parts = ["empty call", "lease.touch()", "lease.touch() of many", "dict store", "core.touch(uid)"]
    return count([*parts, "idle tick small", "idle tick large", "beat"])


def test_a_touch_is_an_empty_call_and_one_store(counts: dict[str, float]) -> None:
    assert 1.0 < counts["lease.touch()"] / counts["empty call"] <= 1.3


def test_a_touch_costs_the_same_however_many_leases_there_are(counts: dict[str, float]) -> None:
    assert counts["lease.touch() of many"] == pytest.approx(counts["lease.touch()"], rel=0.02)


def test_a_touch_by_uid_is_a_call_a_look_up_and_one_store(counts: dict[str, float]) -> None:
    assert counts["core.touch(uid)"] / counts["dict store"] <= 3.0


def test_an_idle_tick_costs_the_same_however_many_leases_there_are(counts: dict[str, float]) -> None:
    assert counts["idle tick large"] == pytest.approx(counts["idle tick small"], rel=0.02)


def test_a_lease_that_was_touched_is_moved_on_for_less_than_another_call(counts: dict[str, float]) -> None:
    assert counts["beat"] - counts["lease.touch()"] < counts["empty call"]
