"""Clients that leave at random instants: nothing leaks, and nobody else is
cancelled.
"""

from __future__ import annotations

from typing import Any

import pytest

from scripts.leaving.applications import APPLICATIONS
from scripts.leaving.trial import faults, tried

CLIENTS = 100

QUERY = 0.06
"""Seconds: so long that most clients leave before it is their turn with the
database.
"""


TRIED = [name for name in APPLICATIONS if name != "postgresql"]
"""PostgreSQL is tried by hand: `python -m scripts.leaving --application postgresql`."""


@pytest.fixture(scope="module", params=TRIED)
def row(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of the requests of a guarded server."""
    log = tmp_path_factory.mktemp("leaving") / "log"
    return tried(
        request.param,
        "guarded",
        log,
        clients=CLIENTS,
        at_once=50,
        abandoned="200ms",
        query=QUERY,
    )


@pytest.mark.slow
def test_nothing_leaks_and_no_live_request_is_cancelled(row: dict[str, Any]) -> None:
    assert not faults(row)


@pytest.mark.slow
def test_requests_whose_clients_have_left_are_cancelled(row: dict[str, Any]) -> None:
    assert row["cancelled"] > 0


SEEN: dict[str, Any] = {
    "stayed": 10,
    "answered": 10,
    "waited": 10,
    "heard": 10,
    "out": 0,
    "error": "",
    "begun": 100,
    "done": 60,
    "cancelled": 40,
    "failed": 0,
}


def test_a_trial_in_which_nothing_is_lost_has_no_faults() -> None:
    assert faults(SEEN) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("answered", 9, "1 clients that stayed had no answer"),
        ("heard", 8, "2 half-closed clients had no answer"),
        ("out", 1, "1 connections of the pool leaked"),
        ("done", 59, "requests have not ended"),
    ],
)
def test_a_trial_names_what_was_lost(name: str, value: int, words: str) -> None:
    assert words in faults(SEEN | {name: value})
