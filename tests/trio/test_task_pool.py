"""The tasks that run handlers: they are used again, and hold nothing of the connection
before.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import reaper.trio
from reaper.trio import ParkableStream
from reaper.trio.parking import WAKES_PER_PASS
from reaper.trio.task_pool import KEPT
from tests.helpers.parking import echoes, heard, one, pair, several
from tests.helpers.streams import settle

pytestmark = pytest.mark.trio


async def test_what_a_handler_raises_is_not_swallowed() -> None:
    async def broken(stream: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        async with one(broken, b"x") as (_, theirs):
            await trio.sleep_forever()
    assert caught.group_contains(LookupError, match="mine")
    assert await heard(theirs) == b""


async def test_the_next_connection_gets_the_task_of_one_before_and_sees_nothing_of_it() -> None:
    said: ContextVar[bytes] = ContextVar("said", default=b"nothing")
    ran = []

    async def remembering(stream: Any) -> None:
        while data := await stream.receive_some():
            ran.append((trio.lowlevel.current_task(), said.get()))
            said.set(data)
            await stream.send_all(data)
            ran.append((trio.lowlevel.current_task(), said.get()))

    async with several(2, remembering) as (_, peers):
        for theirs, word in zip(peers, (b"one", b"two"), strict=True):
            await echoes(theirs, word)
            await settle()
        ran_in, words = zip(*ran, strict=True)
        assert len(set(ran_in)) == 1
        assert words == (b"nothing", b"one", b"nothing", b"two")


@pytest.mark.parametrize("how", ["cancelled", "swallowed", "silent"])
async def test_a_handler_that_is_reaped_awake_knows_it_and_its_task_is_fit_for_the_next(
    how: str, autojump_clock: MockClock
) -> None:
    async def slow(stream: ParkableStream) -> None:
        data = await stream.receive_some()
        if data == b"slow":
            try:
                await trio.sleep(60)
            except trio.Cancelled:
                assert (stream.reaped, stream.reason) == (True, "idle")
                if how == "silent":
                    raise reaper.trio.linger.Silent from None
                if how == "cancelled":
                    raise
                return
        await stream.send_all(data)
        await stream.receive_some()

    async with several(1, slow, 5) as (lot, (theirs,)):
        for turn in range(1, 3):
            theirs.send(b"slow")
            assert await heard(theirs) == b""
            assert (lot.reaped, len(lot), len(lot.tasks.waiting)) == ({"idle": turn}, 0, 1)
            ours, theirs = pair()
            lot.add(ours)
            await echoes(theirs, b"quick")
            theirs.close()
            await settle()
            assert (len(lot), len(lot.tasks.waiting)) == (0, 1)
            ours, theirs = pair()
            lot.add(ours)


async def test_of_a_burst_no_more_tasks_are_kept_than_two_passes_wake() -> None:
    gate = trio.Event()

    async def together(stream: Any) -> None:
        data = await stream.receive_some()
        await gate.wait()
        await stream.send_all(data)
        await stream.receive_some()

    async with several(KEPT + 20, together) as (lot, peers):
        before = trio.lowlevel.current_statistics().tasks_living
        for theirs in peers:
            theirs.send(b"x")
        await settle()
        gate.set()
        for theirs in peers:
            assert await heard(theirs) == b"x"
        await settle()
        assert len(lot.tasks.waiting) == KEPT == 2 * WAKES_PER_PASS
        assert trio.lowlevel.current_statistics().tasks_living == before + KEPT
        assert lot.parked == len(peers)
