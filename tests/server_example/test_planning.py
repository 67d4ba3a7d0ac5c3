"""How many workers there are, and how often each wakes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("workers", "watchdog", "expected"),
    [(1, 30.0, 0.25), (8, 30.0, 0.25), (64, 30.0, 2.0), (64, 4.0, 0.5), (64, 0, 2.0)],
)
def test_many_workers_together_wake_no_oftener_to_give_signs_of_life(
    workers: int, watchdog: float, expected: float
) -> None:
    from server_example.workers import Worker

    nothing: Any = None
    made = [Worker(index, workers, watchdog, [], nothing, nothing, -1) for index in range(workers)]
    assert {each.beat for each in made} == {expected}
    assert len({each.phase for each in made}) == workers


def test_connections_that_fit_in_no_workers_are_refused_before_the_first_starts() -> None:
    from reaper.errors import ConfigError
    from server_example.planning import plan

    assert plan("auto", 1_000_000, 20_000) == 54
    for workers in ("auto", 4):
        with pytest.raises(ConfigError, match="100000000 connections need 5332 workers"):
            plan(workers, 100_000_000, 20_000)
    assert plan(1, 10_000, 20_000, most=10_000) == 1
    assert plan(3, 20_000, 20_000, most=10_000) == 3
    with pytest.raises(
        ConfigError, match=r"limits.max_connections = 10000 each \(9500 connections per worker\)"
    ):
        plan(2, 20_000, 20_000, most=10_000)  # the kernel gives one of them 10,002


@pytest.mark.parametrize(
    ("given", "tame"),
    [({}, True), ({"reaper.tame_gc": "true"}, True), ({"reaper.tame_gc": "false"}, False)],
)
def test_the_reference_server_tames_the_collector_unless_told_not_to(
    given: dict[str, str], tame: bool
) -> None:
    from reaper.config import ReaperConfig
    from server_example.serving import tames

    assert tames(ReaperConfig.load(None, overrides=given)) is tame
