"""What an exchange costs a server, in machine instructions and system calls: counts, so a busy machine fails no test.

The bounds are the goal where there is one, and otherwise a little above what was counted when they were set: 0.68 of
`trio.serve_tcp` for `serve_tcp(idle=30)`, 0.63 for `serve_parked()`; for an HTTP request that wakes its connection 1.13
of one with a task.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from benchmarks.servers import exchanges

pytestmark = [
    pytest.mark.slow,
    *(
        pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool} (Debian: apt-get install {tool})")
        for tool in ("valgrind", "strace")
    ),
]

CONNECTIONS, ROUNDS = 20, 6
PLAIN, WATCHED, PARKED = "plain", "serve_tcp(idle=30)", "serve_parked()"
HTTP, HTTP_PARKED = "http", "http, parked"


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, Any]]:
    return exchanges.count([PLAIN, WATCHED, PARKED, HTTP, HTTP_PARKED], CONNECTIONS, ROUNDS)


def calls(found: dict[str, Any]) -> float:
    """Those that each exchange makes by itself: in how many passes a round is worked off is not always the same."""
    return sum(n for n in found["calls"].values() if n > 0.5)


def test_an_idle_timeout_adds_nothing_to_what_an_exchange_costs(counts: dict[str, dict[str, Any]]) -> None:
    assert counts[WATCHED]["instructions"] <= 1.02 * counts[PLAIN]["instructions"]
    assert calls(counts[WATCHED]) <= 1.1 * calls(counts[PLAIN])  # one more call would be 1.25


def test_a_connection_that_is_parked_each_time_costs_no_more_than_one_with_a_task(
    counts: dict[str, dict[str, Any]],
) -> None:
    assert counts[PARKED]["instructions"] <= 1.1 * counts[WATCHED]["instructions"]
    assert calls(counts[PARKED]) <= calls(counts[WATCHED])


def test_a_request_that_wakes_its_connection_costs_a_sixth_more_than_one_with_a_task(
    counts: dict[str, dict[str, Any]],
) -> None:
    assert counts[HTTP_PARKED]["instructions"] <= 1.17 * counts[HTTP]["instructions"]
    assert calls(counts[HTTP_PARKED]) <= 1.7 * calls(counts[HTTP])


def test_an_http_exchange_makes_four_calls_with_a_task_and_six_when_its_connection_is_parked() -> None:
    plain, parked = (calls({"calls": exchanges.calls(kind, CONNECTIONS, ROUNDS)}) for kind in (HTTP, HTTP_PARKED))
    assert plain <= 4.5  # one more call would be 5
    assert parked <= 6.5
