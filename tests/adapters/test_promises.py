"""What every adapter promises, on trio and on asyncio: one suite, virtual time."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import trio

import reaper
from reaper.journal import Journal
from reaper.policy.pressure import LEAST_ROOM, Pressure, Resources
from tests.helpers.loops import LOOPS, Asyncio, Trio

Loop = Trio | Asyncio


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]()


def reaping(**options: Any) -> Callable[[Any], Any]:
    """Run the test on each loop with a reaper, *options* of which are a tick of a
    second unless others are given.
    """

    def decorate(test: Any) -> Any:
        def run(loop: Loop, **fixtures: Any) -> None:
            async def body() -> None:
                async with loop.adapter.open_reaper(**options or {"tick": 1.0}) as r:
                    await test(loop, r, **fixtures)

            loop.run(body)

        signature = inspect.signature(test)
        wanted = [each for name, each in signature.parameters.items() if name != "r"]
        run.__signature__ = signature.replace(parameters=wanted)  # type: ignore[attr-defined]
        run.__name__ = test.__name__
        return run

    return decorate


def silent(
    loop: Loop,
    r: Any,
    ends: dict[Any, Any],
    name: object,
    idle: float = 5.0,
    busy: float = 0.0,
) -> Callable[[], Coroutine[Any, Any, None]]:
    """A handler that is silent once it has been *busy* for so long, and says how that
    ended.
    """

    async def body() -> None:
        with r.watch(None, idle) as connection:
            if busy:
                with connection.in_use():
                    await loop.sleep(busy)
            await loop.forever()
        ends[name] = (loop.now(), connection.reason)

    return body


@reaping()
async def test_a_silent_connection_is_closed_never_early_and_at_most_a_tick_late(
    loop: Loop, r: Any
) -> None:
    for offset in (0.0, 0.3, 0.49, 0.51, 0.99):
        await loop.sleep(offset)
        start = loop.now()
        with r.watch(None, idle=5) as connection:
            await loop.sleep(2.2)
            connection.touch()
            for _ in range(10):
                await loop.sleep(4.99)
                connection.touch()
            await loop.forever()
        assert 57.1 <= loop.now() - start <= 58.1
        assert (connection.reaped, connection.reason) == (True, "idle")
        assert connection.expiry.lateness == pytest.approx(0, abs=1e-6)
    r.core.check()


@reaping()
async def test_each_of_many_is_closed_exactly_once(loop: Loop, r: Any) -> None:
    ends: dict[Any, Any] = {}

    await loop.together(*(silent(loop, r, ends, name, 3 + name % 7) for name in range(1000)))
    assert len(ends) == 1000
    assert r.statistics().reasons == {"idle": 1000}
    for name, (ended, _) in ends.items():
        assert 3 + name % 7 <= ended <= 4 + name % 7
    assert len(r.core) == 0


@reaping(tick=1.0, idle=5)
async def test_the_reapers_own_idle_holds_where_nothing_else_is_said(loop: Loop, r: Any) -> None:
    with r.watch() as connection:
        await loop.forever()
    assert 5 <= loop.now() <= 6
    assert connection.reaped


@reaping()
async def test_an_error_of_the_body_is_not_swallowed(loop: Loop, r: Any) -> None:
    with pytest.raises(KeyError), r.watch(None, idle=5):
        raise KeyError
    assert len(r.core) == 0


@reaping()
async def test_another_cancellation_is_not_swallowed(loop: Loop, r: Any) -> None:
    async def handler() -> None:
        with r.watch(None, idle=5) as connection:
            ends.append(connection)
            await loop.forever()
        pytest.fail("another's cancellation was swallowed")

    ends: list = []
    await loop.limited(2, handler())
    assert [connection.reaped for connection in ends] == [False]
    assert len(r.core) == 0


@reaping()
async def test_the_reason_can_be_read_inside_the_block_too(loop: Loop, r: Any) -> None:
    with r.watch(None, idle=5, reason="headers") as connection:
        with pytest.raises(loop.Cancelled, match="reaped: headers") as caught:
            await loop.forever()
        assert connection.reason == "headers"
        raise caught.value
    assert connection.reaped


@reaping(tick=0.001)
async def test_it_does_not_wake_while_nothing_is_armed(loop: Loop, r: Any) -> None:
    await loop.sleep(3600)
    assert r.statistics().core.epochs == 0
    with r.watch(None, idle=5) as connection, connection.in_use():
        before = r.statistics().core.epochs
        await loop.sleep(3600)
        assert r.statistics().core.epochs - before <= 1
    with r.watch(None, idle=1000):
        await loop.sleep(0.1)
        assert r.statistics().core.epochs - before <= 2 * 100 + 3  # twice a tick


@reaping()
async def test_a_connection_in_use_is_never_closed_and_its_resume_counts_as_activity(
    loop: Loop, r: Any
) -> None:
    start = loop.now()
    with r.watch(None, idle=5) as connection:
        with connection.in_use(), connection.in_use():
            await loop.sleep(100)
            assert connection.busy
        await loop.forever()
    assert 105.0 <= loop.now() - start <= 106.0


@reaping()
async def test_what_has_been_closed_cannot_be_used(loop: Loop, r: Any) -> None:
    kept = []
    with r.watch(None, idle=5) as connection:
        kept.append(connection)
        await loop.forever()
    using = kept[0].in_use()
    with pytest.raises(reaper.ConnectionReaped, match=r"in_use\(\) .* reaped: idle"):
        using.__enter__()
    with r.watch(None, idle=5) as connection:
        pass
    with connection.in_use():  # it has ended by itself, and its user may finish
        pass


@reaping(tick=100.0)
async def test_a_shorter_timeout_is_kept_although_the_reaper_sleeps(loop: Loop, r: Any) -> None:
    start = loop.now()
    with r.watch(None, idle=1000) as connection:
        await loop.sleep(60)
        connection.retime(5.0, reason="keep_alive")
        await loop.forever()
    assert 60.0 <= loop.now() - start <= 61.0
    assert connection.reason == "keep_alive"


@reaping()
async def test_a_deadline_ends_the_connection_whatever_comes(loop: Loop, r: Any) -> None:
    start = loop.now()
    with r.watch(None, idle=5) as connection:
        connection.deadline(20.0, "headers").release()
        connection.deadline(30.0, "max_age")
        while True:
            await loop.sleep(1)
            connection.touch()
    assert 30.0 <= loop.now() - start <= 31.0
    assert connection.reason == "max_age"
    assert len(r.core) == 0


@reaping()
async def test_an_answered_probe_spares_and_one_that_raises_is_logged_and_no_answer(
    loop: Loop, r: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pings = []

    async def ping(connection: Any) -> None:
        pings.append(loop.now())
        if len(pings) == 3:
            raise OSError("no ping today")
        await loop.sleep(1.5)
        connection.touch()

    with r.watch(None, idle=10, probe=ping, grace=2) as connection:
        await loop.forever()
    assert len(pings) == 3
    assert pings[2] + 2 <= loop.now() <= pings[2] + 3
    assert connection.reason == "unanswered"
    assert "no ping today" in caplog.text


@reaping()
async def test_a_drain_ends_the_idle_at_once_and_the_busy_when_idle_or_at_its_deadline(
    loop: Loop, r: Any
) -> None:
    ends: dict[Any, Any] = {}

    async def drain() -> None:
        await loop.sleep(1)
        await r.drain(10)
        assert loop.now() == pytest.approx(11.0, abs=0.01)
        await r.drain(30)  # of nothing: it returns at once
        assert loop.now() == pytest.approx(11.0, abs=0.01)

    handlers = [
        silent(loop, r, ends, name, 1000, busy)
        for name, busy in (("idle", 0), ("soon", 4), ("never", 1000))
    ]
    await loop.together(*handlers, drain)
    assert len(r) == 0
    assert ends["idle"] == (pytest.approx(1.0, abs=0.01), "drain")
    assert ends["soon"] == (pytest.approx(4.0, abs=0.01), "drain")
    assert ends["never"] == (pytest.approx(11.0, abs=0.01), "drain_deadline")


@reaping()
async def test_a_stall_of_the_loop_is_charged_to_no_connection_not_even_a_new_one(
    loop: Loop, r: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that speaks only when it is spoken to is silent while we are; another
    speaks in the middle of the stall.

    No socket here, so no final check helps. What a loop does late it does in its next
    pass, next to the reaper.
    """
    ends: dict[Any, Any] = {}

    async def speaks() -> None:
        with r.watch(None, idle=5) as connection:
            await loop.sleep(50)
            connection.touch()
            await loop.forever()
        ends[connection] = (loop.now(), connection.reason)

    async def staller() -> None:
        await loop.sleep(2)
        loop.stall(100.0)
        with r.watch(None, idle=5):
            await loop.sleep(1)
            assert ends == {}
            await loop.forever()
        assert 107 <= loop.now() <= 109

    await loop.together(silent(loop, r, ends, "peer"), staller, *100 * [speaks])
    assert len(ends) == 101
    assert r.statistics().stalls == 1
    assert r.statistics().stalled == pytest.approx(100, abs=1)
    assert (
        105 <= ends["peer"][0] <= 107
    )  # 5 s of silence that was its own, a tick, and what of the stall is noticed
    assert "stalled" in caplog.text


@reaping()
async def test_what_a_late_loop_has_yet_to_do_it_does_before_a_connection_is_closed(
    loop: Loop, r: Any
) -> None:
    """Late by less than a tick, which is no stall. No socket here, so no final check
    helps.
    """

    async def speaks(at: float) -> None:
        with r.watch(None, idle=5) as connection:
            await loop.sleep(at)
            connection.touch()
            await loop.sleep(1)
        assert not connection.reaped

    async def staller() -> None:
        await loop.sleep(4.9)
        loop.stall(0.9)

    await loop.together(
        staller, *(partial(speaks, 5 + hundredths / 100) for hundredths in range(80))
    )


@reaping()
async def test_a_close_is_one_line_of_the_log_with_who_why_and_how_long(
    loop: Loop, r: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reaper")
    with r.watch(None, idle=5) as connection:
        await loop.sleep(2)
        connection.touch()
        await loop.forever()
    (closed,) = (record for record in caplog.records if hasattr(record, "reason"))
    assert re.fullmatch(
        r"a client - closed: idle, limit 5s, silent for [56]\.\d s", closed.getMessage()
    )
    assert (closed.levelname, vars(closed)["reason"], vars(closed)["limit"]) == (
        "INFO",
        "idle",
        5.0,
    )
    assert 5.0 <= vars(closed)["silence"] <= 7.0


@reaping()
async def test_under_pressure_a_connection_that_has_just_spoken_is_heard_first(
    loop: Loop, r: Any
) -> None:
    spoken = trio.Event() if loop.Cancelled is trio.Cancelled else asyncio.Event()

    async def one() -> None:
        with r.watch(None, idle=1000) as connection:
            with connection.in_use():
                await loop.sleep(0.1)
            await spoken.wait()
            connection.touch()
            await loop.sleep(60)
        assert not connection.reaped

    def read(count: int) -> Resources:
        spoken.set()
        return Resources(connections=10)

    async def press() -> None:
        await loop.sleep(15)
        pressure = Pressure(Resources(connections=10), high=0.9)
        await loop.limited(0.5, loop.adapter.relieve(r, pressure, read=read))
        assert (pressure.verdict and pressure.verdict.evict, pressure.evicted) == (1, 0)

    await loop.together(one, press)


@reaping()
async def test_under_pressure_the_silent_go_and_newcomers_wait_until_nobody_watches_it(
    loop: Loop, r: Any
) -> None:
    seen = []
    ends: dict[Any, Any] = {}

    async def look() -> None:
        await loop.sleep(2)
        seen.append(r.accepting)

    async def press() -> None:
        pressure = Pressure(Resources(connections=10), high=0.9)
        full = loop.adapter.relieve(r, pressure, read=lambda count: Resources(connections=10))
        await loop.limited(5, full)

    await loop.together(look, press, silent(loop, r, ends, "silent", 1000))
    assert seen == [False]
    assert ends["silent"][1] == "pressure"
    assert r.accepting


@reaping()
async def test_newcomers_between_two_readings_are_limited_by_reading_again(
    loop: Loop, r: Any
) -> None:
    """Each takes 20,000 of 4,000,000 bytes, and a thousand come within a tick."""
    read = []

    def reading(count: int) -> Resources:
        read.append(count)
        return Resources(memory=count * 20_000, connections=count)

    r.count = lambda: len(come)
    come: list[None] = []
    welcome = []

    async def crowd() -> None:
        await loop.sleep(0.5)
        assert read == [0]
        for _ in range(1000):
            welcome.append(r.welcomes())
            if welcome[-1]:
                come.append(None)

    full = loop.adapter.relieve(r, Pressure(Resources(memory=4_000_000)), read=reading)
    await loop.together(crowd, partial(loop.limited, 0.9, full))
    assert len(come) <= 200 + LEAST_ROOM
    assert not welcome[-1]
    assert len(read) < 20


@reaping()
async def test_without_pressure_a_newcomer_costs_one_comparison(loop: Loop, r: Any) -> None:
    r.reread = None
    assert all(r.welcomes() for _ in range(10))
    r.accepting = False
    r.reread = lambda: None
    assert not r.welcomes()


def test_the_journal_has_one_life_per_connection_and_why_it_ended(
    loop: Loop, tmp_path: Path
) -> None:
    async def body() -> None:
        def life(
            seconds: float, idle: float = 5, age: float | None = None
        ) -> Callable[[], Coroutine[Any, Any, None]]:
            async def live() -> None:
                with r.watch(None, idle=idle) as connection:
                    if age is not None:
                        connection.deadline(age, "max_age")
                    await loop.sleep(seconds)

            return live

        async def drain() -> None:
            await loop.sleep(50)
            await r.drain(10)

        clock = loop.adapter.journal_clock()
        with Journal(tmp_path, writer=1, tick=1.0, clock_ns=clock, background=False) as journal:
            async with loop.adapter.open_reaper(tick=1.0, journal=journal, listener="test") as r:
                await loop.together(
                    life(99), life(1), life(99, age=3.0), life(99, idle=1000), drain
                )

    loop.run(body)
    rows = [
        row
        for path in tmp_path.glob("*.parquet")
        for row in pyarrow.parquet.read_table(path).to_pylist()
    ]
    ends = sorted((row["kind"], row["reason"] or "") for row in rows if row["n"] is not None)
    assert ends == [
        ("close_app", ""),
        ("close_app", "drain"),
        ("reap", "idle"),
        ("reap", "max_age"),
    ]
    assert [row["listener"] for row in rows if row["kind"] == "open"] == ["test"] * 4
    (reap,) = [row for row in rows if row["reason"] == "idle"]
    assert reap["timeout_ms"] == 5000
    assert 0 <= reap["t"] - reap["due_ns"] < 10**9
    assert reap["idle_ns"] >= 5 * 10**9
