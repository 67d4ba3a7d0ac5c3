"""Watched connections: probes, timeouts that are off, and who counts as busy."""

from __future__ import annotations

import pytest

from reaper.driver.pace import REAPS_PER_SLICE
from tests.helpers.driver_loop import Loop, ping


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("way", ["touch", "bound", "lease", "core", "resume"])
def test_any_way_of_noting_activity_answers_a_probe(loop: Loop, way: str) -> None:
    connection = loop.watch(5, probe=ping, grace=2)
    bound = connection.touch
    loop.run_until(6.5)
    assert loop.probed == [connection]
    ways = {
        "touch": lambda: connection.touch(),
        "bound": bound,
        "lease": connection.lease.touch,
        "core": lambda: loop.driver.core.touch(connection.uid),
        "resume": lambda: connection.suspend() and connection.resume(),
    }
    ways[way]()
    loop.run_until(11)
    assert not connection.reaped
    loop.run_until(15)
    assert (len(loop.probed), connection.reason) == (2, "unanswered")


def test_a_grace_longer_than_the_timeout_sends_one_probe_and_then_reaps(loop: Loop) -> None:
    connection = loop.watch(2, probe=ping, grace=7)
    loop.run_until(9)
    assert (loop.probed, connection.reaped) == ([connection], False)
    loop.run_until(11)
    assert connection.reason == "unanswered"


def test_who_leaves_while_a_probe_waits_for_its_answer_wakes_nobody(loop: Loop) -> None:
    connection = loop.watch(2, probe=ping, grace=50)
    loop.run_until(9)
    assert (loop.probed, connection.reaped) == ([connection], False)
    connection.leave()
    loop.run_until(11)
    assert loop.driver.rest() == float("inf")


def test_a_timeout_of_zero_is_none(loop: Loop) -> None:
    connection = loop.watch(0)
    loop.run_until(10**4)
    assert (connection.lease.timeout, connection.reaped) == (None, False)
    connection.leave()
    loop.driver.core.check()
    assert loop.run_until(10**5)[1:] == []


def test_a_hand_watched_connection_counts_as_busy_until_it_says_that_it_waits(
    loop: Loop,
) -> None:
    unknown, told, waits, mute = (loop.watch(100) for _ in range(4))
    for connection in (unknown, told, waits):
        connection.touch()
    with told.in_use():
        pass
    waits.receiving = True
    loop.driver.begin_drain(10)
    for _ in loop.driver.drain_slices(lambda: REAPS_PER_SLICE):
        pass
    assert [unknown.reason, told.reason, waits.reason, mute.reason] == [
        None,
        "drain",
        "drain",
        "drain",
    ]
    loop.run_until(11)
    assert unknown.reason == "drain_deadline"
    assert loop.watch(100).reason == "drain"  # so does who comes afterwards
