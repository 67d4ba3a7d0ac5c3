"""What a reap does to the task: it takes back exactly the cancellation it gave."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from reaper.asyncio import AsyncioReaper
from tests.adapters.test_promises import reaping
from tests.helpers.loops import LOOPS, Asyncio


def cancelling() -> int:
    """How many cancellations of the current task are under way."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@pytest.fixture(params=[name for name in LOOPS if name != "trio"])
def loop(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]()


@reaping()
async def test_a_cancellation_that_comes_together_with_the_reap_wins(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    async def handler() -> object:
        with r.watch(None, idle=5) as connection:
            try:
                await loop.forever()
            finally:
                task.cancel()  # from elsewhere, before the block has ended
        return connection

    task = asyncio.create_task(handler())
    with pytest.raises(asyncio.CancelledError):
        await task


@reaping()
async def test_a_timeout_outside_and_one_inside_each_do_their_own(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            with r.watch(None, idle=5) as outer:
                await loop.forever()
    assert not outer.reaped
    with r.watch(None, idle=5) as inner:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await loop.forever()
        async with asyncio.timeout(100):
            await loop.forever()
    assert inner.reaped
    assert cancelling() == 0
    await loop.sleep(1)  # the task goes on


@reaping()
async def test_a_task_group_within_is_ended_and_one_around_goes_on(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    ended = []

    async def child(name: str) -> None:
        try:
            await loop.forever()
        finally:
            ended.append(name)

    async def handler() -> object:
        with r.watch(None, idle=5) as connection:
            async with asyncio.TaskGroup() as group:
                group.create_task(child("one"))
                group.create_task(child("two"))
        return connection.reason

    async with asyncio.TaskGroup() as around:
        handled = around.create_task(handler())
        other = around.create_task(loop.sleep(50))
    assert handled.result() == "idle"
    assert not other.cancelled()
    assert sorted(ended) == ["one", "two"]


@reaping()
async def test_a_task_group_whose_child_fails_while_it_is_ended_raises_that(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    async def child() -> None:
        try:
            await loop.forever()
        finally:
            raise ValueError("in the cleanup")

    with pytest.raises(ExceptionGroup), r.watch(None, idle=5):
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
    assert cancelling() == 0


@reaping()
async def test_a_handler_cancelled_before_it_began_to_watch_is_reaped_like_any_other(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    said = []

    async def handler() -> None:
        try:
            await loop.forever()
        except asyncio.CancelledError:
            with r.watch(
                None, idle=5
            ) as connection:  # says goodbye, to a peer that does not listen
                await loop.forever()
            said.append((connection.reason, cancelling()))
            raise

    task = asyncio.create_task(handler())
    await loop.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == [("idle", 1)]


@reaping()
async def test_a_task_that_ends_its_own_connection_is_cancelled_only_where_it_waits(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    with r.watch(None, idle=5) as connection:
        connection.reap("mine")
    await loop.sleep(1)  # nothing is left that would be raised here
    assert (connection.reason, cancelling()) == ("mine", 0)
    with r.watch(None, idle=5) as connection:
        connection.reap("mine")
        await loop.forever()
    await loop.sleep(1)
    assert cancelling() == 0


@reaping()
async def test_a_body_that_swallows_the_cancellation_ends_in_peace(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    with r.watch(None, idle=5) as connection:
        try:
            await loop.forever()
        except asyncio.CancelledError:
            await loop.sleep(10)
    assert connection.reaped
    assert cancelling() == 0


@reaping()
async def test_a_connection_that_is_reaped_before_its_block_begins_ends_it_at_once(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    connection = r.watch(None, idle=2)
    await loop.sleep(10)
    with connection:
        await loop.forever()
    assert connection.reaped
    assert loop.now() < 11


@reaping()
async def test_a_block_within_a_block_ends_alone(loop: Asyncio, r: AsyncioReaper) -> None:
    with r.watch(None, idle=100) as outer:
        with r.watch(None, idle=5) as inner:
            await loop.forever()
        await loop.sleep(1)
    assert (outer.reaped, inner.reaped) == (False, True)
    with pytest.raises(RuntimeError, match="was entered before"), inner:
        pass


@reaping()
async def test_what_cuts_a_connection_without_a_task_may_take_its_transport_or_nothing(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    seen: list[Any] = []
    transport = asyncio.Transport()
    cuts = (
        seen.append,
        lambda transport=None: seen.append(transport),
        functools.partial(seen.append, "nothing"),
        lambda: seen.append("nothing"),
    )
    for cut in cuts:
        with r.watch(None, idle=5) as connection:
            connection.outlive(transport, cut)
    await loop.sleep(10)
    assert seen == [transport, transport, "nothing", "nothing"]


@reaping()
async def test_a_watch_outside_of_a_task_is_refused_with_what_to_do_instead(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    errors = []

    def callback() -> None:
        try:
            r.watch(None, idle=5).__enter__()
        except RuntimeError as error:
            errors.append(str(error))

    asyncio.get_running_loop().call_soon(callback)
    await loop.sleep(1)
    assert "reaper.asyncio.guard" in errors[0]


@reaping()
async def test_it_works_under_anyio(loop: Asyncio, r: AsyncioReaper) -> None:
    import anyio

    reasons = []

    async def handler() -> None:
        with r.watch(None, idle=5) as connection:
            with anyio.move_on_after(2):
                await anyio.sleep_forever()
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
        reasons.append(connection.reason)

    async with anyio.create_task_group() as around:
        around.start_soon(handler)
        with anyio.move_on_after(50):
            await anyio.sleep(20)
    assert reasons == ["idle"]


@reaping()
async def test_a_connection_says_what_to_do_in_place_of_a_stream(
    loop: Asyncio, r: AsyncioReaper
) -> None:
    with (
        r.watch(None, idle=5) as connection,
        pytest.raises(AttributeError, match=r"call connection\.touch\(\) after each read"),
    ):
        _: object = connection.stream
    assert not hasattr(connection, "stream")
