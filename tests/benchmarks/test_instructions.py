"""The hot path in machine instructions and system calls: counts, not seconds, so a busy
machine cannot make them fail.

The bounds are the goal where there is one, and otherwise a little above what was
counted when they were set. Of an empty method call: lease.touch() 1.24, a touch with a
move 2.21; core.touch(uid): 2.8 dict stores. Of an echo by `trio.serve_tcp`:
`serve_tcp(idle=30)` 0.68, `serve_parked()` 0.63. An HTTP request that wakes its
connection: 1.13 of one with a task.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

from benchmarks import starts
from benchmarks.instructions import count
from benchmarks.servers import exchanges

pytestmark = [
    pytest.mark.slow,
    *(
        pytest.mark.skipif(
            shutil.which(tool) is None, reason=f"needs {tool} (Debian: apt-get install {tool})"
        )
        for tool in ("valgrind", "strace")
    ),
]
CONNECTIONS, ROUNDS = 20, 6
PLAIN, WATCHED, PARKED = "plain", "serve_tcp(idle=30)", "serve_parked()"
HTTP, HTTP_PARKED = "http", "http, parked"
CALL_3_11 = 347
"""Instructions of an empty call on CPython 3.11. Newer ones need fewer (320, 296), and
hardly more for what a touch has besides (86; 92, 92) and for a move (328; 336, 339).
"""


@pytest.fixture(scope="module")
def counts() -> dict[str, float]:
    parts = [
        "empty call",
        "lease.touch()",
        "lease.touch() of many",
        "dict store",
        "core.touch(uid)",
    ]
    return count([*parts, "idle tick small", "idle tick large", "beat"])


@pytest.fixture(scope="module")
def exchanged() -> dict[str, Any]:
    return exchanges.count([PLAIN, WATCHED, PARKED, HTTP, HTTP_PARKED], CONNECTIONS, ROUNDS)


def a_call(counts: dict[str, float]) -> float:
    """What the bounds are parts of: that calls became cheaper makes no bound less."""
    return counts["empty call"] if sys.version_info < (3, 12) else CALL_3_11


def test_a_touch_is_an_empty_call_and_one_store(counts: dict[str, float]) -> None:
    assert 0.0 < counts["lease.touch()"] - counts["empty call"] <= 0.3 * a_call(counts)


@pytest.mark.parametrize(
    ("few", "many"),
    [("lease.touch()", "lease.touch() of many"), ("idle tick small", "idle tick large")],
)
def test_a_touch_and_an_idle_tick_cost_the_same_however_many_leases_there_are(
    few: str, many: str, counts: dict[str, float]
) -> None:
    assert counts[many] == pytest.approx(counts[few], rel=0.02)


def test_a_touch_by_uid_is_a_call_a_look_up_and_one_store(counts: dict[str, float]) -> None:
    assert counts["core.touch(uid)"] / counts["dict store"] <= 3.0


def test_a_lease_that_was_touched_is_moved_on_for_less_than_another_call(
    counts: dict[str, float],
) -> None:
    assert counts["beat"] - counts["lease.touch()"] < a_call(counts)


def calls(found: dict[str, Any]) -> float:
    """Those that each exchange makes by itself: in how many passes a round is worked
    off is not always the same.
    """
    made: dict[str, float] = found["calls"]
    return sum(count for count in made.values() if count > 0.5)


@pytest.mark.parametrize(
    ("kind", "other", "instructions", "more_calls"),
    [
        pytest.param(
            WATCHED, PLAIN, 1.02, 1.1, id="an idle timeout adds nothing"
        ),  # one more call would be 1.25
        pytest.param(PARKED, WATCHED, 1.1, 1.0, id="parked each time no more than with a task"),
        pytest.param(
            HTTP_PARKED, HTTP, 1.17, 1.7, id="a request that wakes its connection a sixth more"
        ),
    ],
)
def test_what_an_exchange_costs_compared(
    kind: str, other: str, instructions: float, more_calls: float, exchanged: dict[str, Any]
) -> None:
    assert exchanged[kind]["instructions"] <= instructions * exchanged[other]["instructions"]
    assert calls(exchanged[kind]) <= more_calls * calls(exchanged[other])


def test_an_http_exchange_makes_four_calls_with_a_task(exchanged: dict[str, Any]) -> None:
    assert calls(exchanged[HTTP]) <= 4.5  # one more call would be 5


def test_an_http_exchange_makes_six_calls_when_its_connection_is_parked(
    exchanged: dict[str, Any],
) -> None:
    assert calls(exchanged[HTTP_PARKED]) <= 6.5


def test_a_python_start_below_reaper_run_costs_three_hundredths_more_at_most() -> None:
    found = starts.count()
    assert found["below reaper run"] <= 1.03 * found["bare"]  # 1.012; it was 4.1
