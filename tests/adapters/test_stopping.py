"""`reaper.stopping()`: whoever wants to say goodbye hears of the end before anything is
closed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing

import reaper
from reaper import stops
from reaper.trio import open_reaper
from tests.adapters.test_promises import reaping
from tests.helpers.loops import LOOPS, Asyncio, Trio
from tests.helpers.parking import heard, pair

Loop = Trio | Asyncio


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    return LOOPS[request.param]()


@pytest.fixture(autouse=True)
def _nothing_stays_told() -> Iterator[None]:
    yield
    stops.forget()


@reaping()
async def test_a_drain_tells_who_waits_before_it_ends_any_connection(loop: Loop, r: Any) -> None:
    seen: list[object] = []

    async def idle() -> None:
        with r.watch(None, idle=100) as connection:
            await loop.forever()
        seen.append(connection.reason)

    async def waits() -> None:
        await reaper.stopping()
        seen.append("told")

    async def drains() -> None:
        await loop.sleep(1)
        assert not reaper.stopping()
        await r.drain(10)
        assert reaper.stopping()

    await loop.together(idle, waits, drains)
    assert seen == ["told", "drain"]


@reaping()
async def test_a_handler_hears_of_it_by_its_connection(loop: Loop, r: Any) -> None:
    said: list[str | None] = []

    async def streams() -> None:
        with r.watch(None, idle=100) as connection, connection.in_use():
            while not connection.leaving:
                await loop.sleep(1)
            said.append("goodbye")
        said.append(connection.reason)

    async def drains() -> None:
        await loop.sleep(2.5)
        await r.drain(10)

    await loop.together(streams, drains)
    assert said == ["goodbye", "drain"]  # it was ended as it went idle, not cut


def test_every_loop_is_told_at_a_signal_and_one_that_begins_afterwards_too(loop: Loop) -> None:
    async def told() -> None:
        await loop.limited(10, reaper.stopping().wait())
        assert reaper.stopping()

    async def body() -> None:
        async def signals() -> None:
            await loop.sleep(1)
            thread = threading.Thread(target=stops.begin_everywhere)
            thread.start()
            thread.join()

        await loop.together(told, signals)

    assert not reaper.stopping()
    loop.run(body)
    assert reaper.stopping()
    loop.run(told)


def test_what_one_loop_was_told_another_was_not(loop: Loop) -> None:
    async def drains() -> None:
        async with loop.adapter.open_reaper() as r:
            await r.drain(10)
        assert reaper.stopping()

    async def begins() -> None:
        assert not reaper.stopping()

    loop.run(drains)
    loop.run(begins)
    assert not reaper.stopping()


def test_a_thread_hears_of_the_stop_of_a_loop_until_that_loop_has_ended(loop: Loop) -> None:
    heard: list[bool] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: heard.append(bool(reaper.stopping())))
        thread.start()
        thread.join()

    async def drains() -> None:
        async with loop.adapter.open_reaper() as r:
            look()
            await r.drain(10)
            look()

    loop.run(drains)
    look()
    assert heard == [False, True, False]


def test_it_is_known_whether_anybody_has_asked_in_a_loop_or_in_a_thread(loop: Loop) -> None:
    async def asks_nothing() -> None:
        reaper.stopping()
        assert not stops.was_asked()

    async def looks() -> None:
        assert not reaper.stopping()
        assert stops.was_asked()

    async def waits() -> None:
        await loop.limited(1, reaper.stopping().wait())
        assert stops.was_asked()

    async def a_thread_asked() -> None:
        assert stops.was_asked()

    for body in (asks_nothing, looks, waits, asks_nothing):
        loop.run(body)
    assert not reaper.stopping()  # outside of any loop, as a thread does
    loop.run(a_thread_asked)


def test_who_is_cancelled_while_it_waits_is_forgotten(loop: Loop) -> None:
    async def body() -> None:
        await loop.limited(1, reaper.stopping().wait())
        assert not reaper.stopping()._waiters

    loop.run(body)


def test_where_no_loop_runs_it_is_a_flag_and_not_awaited() -> None:
    with pytest.raises(RuntimeError, match="here it is a flag"):
        reaper.stopping().wait().send(None)


@pytest.mark.trio
async def test_a_parked_connection_that_streams_says_goodbye() -> None:
    async def streams(stream: Any) -> None:
        await stream.receive_some()
        with stream.in_use():
            await stream.leaving
            await stream.send_all(b"goodbye")

    async with open_reaper() as r, r.parking_lot(streams, 30) as lot:
        ours, theirs = pair()
        lot.add(ours)
        theirs.send(b"x")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await r.drain(10)
        assert await heard(theirs) == b"goodbye"
        theirs.close()


PROGRAM = """
import signal, sys
import reaper
from reaper import stops
assert not {"trio", "asyncio"} & set(sys.modules)
signal.signal(signal.SIGTERM, lambda *_: stops.begin_everywhere())

async def main():
    print("ready", flush=True)
    await reaper.stopping()
    print("told", flush=True)

if sys.argv[1] == "trio":
    import trio
    trio.run(main)
elif sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    import asyncio
    asyncio.run(main())
"""


@pytest.mark.parametrize("framework", ["trio", "asyncio", "uvloop"])
def test_a_signal_handler_may_begin_it(framework: str) -> None:
    words = [sys.executable, "-c", PROGRAM, framework]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == "told\n"
    assert program.returncode == 0
