"""How many tasks wait for more bytes, and for how long."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from reaper.trio.linger import FEWEST, LINGERERS
from reaper.trio.parking import WAKES_PER_PASS
from tests.helpers.parking import echo_in_turn, echoes, heard, several
from tests.helpers.streams import settle, steps, tasks

pytestmark = pytest.mark.trio


async def test_a_burst_of_clients_never_has_more_tasks_than_work_and_wait_at_once() -> None:
    count = 400
    async with several(count, idle=60, linger=60) as (lot, peers):
        before = tasks(lot)
        for theirs in peers:
            theirs.send(b"all at once")
        with steps() as counts:
            for theirs in peers:
                assert await heard(theirs) == b"all at once"
            await settle()
        # A handler lives for four passes: it starts, answers, waits, and is sent away.
        assert FEWEST <= counts["living"] - before <= FEWEST + 4 * WAKES_PER_PASS < count
        assert count - lot.parked == FEWEST
        await settle()
        for theirs in (peers[0], peers[-1]):
            await echoes(theirs, b"again")


async def test_where_nobody_lingers_a_connection_is_parked_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait that ends at once made a coroutine for each exchange."""
    waited = list[object]()
    async with several(3, idle=60) as (lot, peers):
        monkeypatch.setattr(lot.lingering, "wait", waited.append)
        for theirs in peers:
            await echoes(theirs, b"once")
        await settle()
        assert (lot.parked, waited) == (3, [])


async def test_as_many_tasks_linger_as_are_asked_again_and_only_for_so_long(
    autojump_clock: MockClock,
) -> None:
    async with several(LINGERERS + 20, idle=60, linger=2) as (lot, peers):
        awake = []
        for _ in range(12):
            await echo_in_turn(peers, 0.001)
            awake.append(len(lot) - lot.parked)
        assert awake == sorted(awake)
        assert (awake[0], awake[-1]) == (FEWEST, LINGERERS)
        for _ in range(3):  # and it goes on for as long as they are
            await echo_in_turn(peers, 0.02)
            assert len(lot) - lot.parked == LINGERERS
        await trio.sleep(10)
        assert lot.parked == len(lot)
        await echo_in_turn(peers, 0.001)
        assert len(lot) - lot.parked == FEWEST
        for theirs in peers:
            theirs.close()
        await trio.sleep(5)
        assert len(lot) == 0
