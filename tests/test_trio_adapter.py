"""reaper.trio in virtual time: one task, cancel-scope semantics, slices, probes, drains."""

from __future__ import annotations

import itertools
import logging
import math

import pytest
import trio
import trio.testing
from clocks import autojump

import reaper.trio
from reaper import InvalidArgument
from reaper.driver.pacing import REAPS_PER_SLICE, fair_slice
from reaper.trio import TrioReaper, WatchedStream, open_reaper

pytestmark = pytest.mark.trio


@pytest.fixture(params=["still", "moving"])
def autojump_clock(request):
    """Every test here passes under a clock that moves between two readings, too."""
    return autojump(request.param)


async def silent(reaper_: TrioReaper, idle: float, ends: dict, name, **options) -> None:
    with reaper_.watch(None, idle=idle, **options) as connection:
        await trio.sleep_forever()
    ends[name] = (trio.current_time(), connection.reaped, connection.reason)


async def test_a_silent_body_is_cancelled_after_its_timeout_and_within_a_tick(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        start = trio.current_time()
        with r.watch(None, idle=5) as connection:
            await trio.sleep(2.2)
            connection.touch()
            await trio.sleep_forever()
        assert 7.2 <= trio.current_time() - start <= 8.2
        assert (connection.reaped, connection.reason) == (True, "idle")
        assert 0 <= connection.expiry.lateness < 0.01  # what the clock moves by until the reaper has its turn
        r.core.check()


async def test_a_touched_body_is_never_cancelled(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=5) as connection:
            for _ in range(100):
                await trio.sleep(4.99)
                connection.touch()
        assert (connection.reaped, connection.reason) == (False, None)
        assert len(r) == len(r.core) == 0


async def test_it_swallows_its_own_cancellation_and_no_other(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        with trio.move_on_after(2) as outer:
            with r.watch(None, idle=5) as connection:
                await trio.sleep_forever()
            pytest.fail("another scope's cancellation was swallowed")
        assert outer.cancelled_caught
        assert not connection.reaped
        with pytest.raises(KeyError), r.watch(None, idle=5):
            raise KeyError
        assert len(r.core) == 0


async def test_the_reason_can_be_read_inside_too(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=5, reason="headers") as connection:
            with pytest.raises(trio.Cancelled, match="reaped: headers") as caught:
                await trio.sleep_forever()
            assert connection.reason == "headers"
            raise caught.value


async def test_it_sleeps_while_nothing_is_registered(autojump_clock):
    async with open_reaper(tick=0.001) as r:
        await trio.sleep(3600)
        assert r.statistics().core.epochs == 0
        assert r.driver.rest() == math.inf
        with r.watch(None, idle=5) as connection, connection.in_use():
            before = r.statistics().core.epochs
            await trio.sleep(3600)  # none is armed
            assert r.statistics().core.epochs - before <= 1


async def test_it_wakes_once_an_epoch_and_does_not_spin(autojump_clock):
    passes = 0

    class CountPasses(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += 1

    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=1000):
            trio.lowlevel.add_instrument(CountPasses())
            await trio.sleep(100)
    assert passes <= 2 * 100 * 3  # two epochs a tick; the clock jumps, the task wakes, and it sleeps again


async def test_start_hands_out_the_reaper_and_it_runs_only_once(autojump_clock):
    async with trio.open_nursery() as nursery:
        r = TrioReaper(tick=1.0)
        assert await nursery.start(r.run) is r
        with pytest.raises(RuntimeError, match="runs already"):
            await r.run()
        nursery.cancel_scope.cancel()


async def test_a_mass_expiry_lets_the_loop_run_between_slices(autojump_clock):
    n = 10 * REAPS_PER_SLICE
    ends: dict = {}
    seen = [0]

    class LookIn(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            seen.append(len(ends))

    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        trio.lowlevel.add_instrument(LookIn())
        for name in range(n):
            nursery.start_soon(silent, r, 5.0, ends, name)
    assert len(ends) == n
    assert all(reaped for _, reaped, _ in ends.values())
    # Between two looks at the sockets no more than one slice was closed.
    assert max(after - before for before, after in itertools.pairwise(seen)) == REAPS_PER_SLICE


@pytest.mark.parametrize(
    ("two_passes", "reaps"), [(0.0, REAPS_PER_SLICE), (0.01, REAPS_PER_SLICE), (0.065, 500), (0.1, 769), (60.0, 769)]
)
async def test_a_busy_loop_does_not_starve_the_reaper(two_passes, reaps):
    assert fair_slice(two_passes) == reaps


async def test_suspended_is_never_idle_and_resume_counts_as_activity(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        start = trio.current_time()
        with r.watch(None, idle=5) as connection:
            with connection.in_use():
                assert connection.busy
                with connection.in_use():
                    await trio.sleep(100)
                assert connection.busy
            await trio.sleep_forever()
        assert 105.0 <= trio.current_time() - start <= 106.0


async def test_retime_to_something_shorter_wakes_the_task(autojump_clock):
    async with open_reaper(tick=100.0) as r:
        start = trio.current_time()
        with r.watch(None, idle=1000) as connection:
            await trio.sleep(60)
            connection.retime(5.0, reason="keep_alive")
            await trio.sleep_forever()
        assert 60.0 <= trio.current_time() - start <= 61.0
        assert connection.reason == "keep_alive"


async def test_zero_switches_the_timeout_off(autojump_clock):
    async with open_reaper(tick=1000.0) as r:
        with trio.move_on_after(10**6), r.watch(None, idle=0) as connection:
            await trio.sleep_forever()
        assert not connection.reaped


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "5", True])
async def test_a_bad_timeout_is_refused_and_nothing_is_left_behind(bad):
    async with open_reaper(tick=1.0) as r:
        with pytest.raises(InvalidArgument, match="idle must be"):
            r.watch(None, idle=bad)
        with pytest.raises(InvalidArgument, match="idle must be"):
            r.watched(lambda stream: trio.sleep(0), idle=bad)
        with pytest.raises(InvalidArgument, match="grace must be"):
            r.watch(None, idle=5, grace=bad)
        assert len(r) == len(r.core) == 0


async def test_a_deadline_ends_the_connection_whatever_it_says(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        start = trio.current_time()
        with r.watch(None, idle=5) as connection:
            first = connection.deadline(20.0, "headers")
            for _ in range(10):
                await trio.sleep(1)
                connection.touch()
            first.release()
            connection.deadline(30.0, "max_age")
            while True:
                await trio.sleep(1)
                connection.touch()
        assert 40.0 <= trio.current_time() - start <= 41.0
        assert connection.reason == "max_age"
        assert len(r.core) == 0


async def test_deadlines_end_with_their_connection(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=5) as connection:
            connection.deadline(3600.0, "max_age")
        assert len(r.core) == 0
        r.core.check()


# ---- probes ----------------------------------------------------------------------------------------------------------


async def test_an_answered_probe_spares_and_an_unanswered_one_reaps(autojump_clock):
    pings = []

    async def ping(connection):
        pings.append(trio.current_time() - start)
        if len(pings) < 3:
            await trio.sleep(1.5)
            connection.touch()

    async with open_reaper(tick=1.0) as r:
        start = trio.current_time()
        with r.watch(None, idle=10, probe=ping, grace=2) as connection:
            await trio.sleep_forever()
        elapsed = trio.current_time() - start
    assert len(pings) == 3
    assert pings[2] + 1.99 <= elapsed <= pings[2] + 3  # its time begins when it is decided on, a pass before it is sent
    assert connection.reason == "unanswered"
    assert r.driver._purgatory.delayed == 0
    assert r.driver._purgatory.watched == 0


async def test_a_probe_with_more_time_than_the_timeout_is_sent_again_after_each_answer(autojump_clock):
    pings = []

    async def ping(connection):
        pings.append(trio.current_time())
        if len(pings) < 4:
            await trio.sleep(0.5)
            connection.touch()

    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=5, probe=ping, grace=20) as connection:
            await trio.sleep_forever()
    assert len(pings) == 4
    assert all(later - earlier < 8 for earlier, later in itertools.pairwise(pings))
    assert trio.current_time() >= pings[-1] + 19.99
    assert connection.reason == "unanswered"


async def test_a_probe_that_raises_is_no_answer_and_is_logged(autojump_clock, caplog):
    async def ping(connection):
        raise OSError("no ping today")

    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=10, probe=ping, grace=2) as connection:
            await trio.sleep_forever()
    assert connection.reason == "unanswered"
    assert "no ping today" in caplog.text


async def test_a_connection_that_ends_while_probed_leaves_nothing_behind(autojump_clock):
    async def ping(connection):
        pass

    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=10, probe=ping, grace=5):
            await trio.sleep(12)
            assert r.driver._purgatory.delayed == 1
        assert r.driver._purgatory.delayed == 0
        await trio.sleep(100)


# ---- draining --------------------------------------------------------------------------------------------------------


async def test_a_drain_ends_the_idle_at_once_the_busy_when_they_go_idle_and_the_rest_at_the_deadline(autojump_clock):
    ends: dict = {}

    async def busy_for(r, seconds, name):
        with r.watch(None, idle=1000) as connection:
            with connection.in_use():
                await trio.sleep(seconds)
            await trio.sleep_forever()
        ends[name] = (trio.current_time() - start, connection.reason)

    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        for name, seconds in (("idle", 0), ("soon", 3), ("never", 1000)):
            nursery.start_soon(busy_for, r, seconds, name)
        await trio.sleep(1)
        start = trio.current_time()
        await r.drain(10)
        assert trio.current_time() - start == pytest.approx(10.0, abs=0.01)
    assert ends["idle"] == (pytest.approx(0.0, abs=0.01), "drain")
    assert ends["soon"] == (pytest.approx(2.0, abs=0.01), "drain")
    assert ends["never"] == (pytest.approx(10.0, abs=0.01), "drain_deadline")
    assert len(r) == 0


async def test_a_connection_that_begins_during_a_drain_is_drained_too(autojump_clock):
    ends: dict = {}
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        keep = r.watch(None, idle=1000)
        keep.suspend()
        nursery.start_soon(r.drain, 10)
        await trio.sleep(1)
        nursery.start_soon(silent, r, 1000.0, ends, "late")
        await trio.sleep(1)
        assert ends["late"][2] == "drain"
        with keep:
            await trio.sleep_forever()
        assert keep.reason == "drain_deadline"


async def test_a_drain_of_nothing_returns_at_once(autojump_clock):
    async with open_reaper() as r:
        await r.drain(30)


# ---- streams ---------------------------------------------------------------------------------------------------------


async def test_receiving_touches_by_itself_and_sending_does_not(autojump_clock):
    async with open_reaper(tick=1.0) as r:
        ours, theirs = trio.testing.memory_stream_pair()
        start = trio.current_time()

        async def peer():
            for _ in range(5):
                await trio.sleep(4)
                await theirs.send_all(b"x")

        async def handler(stream):
            async with trio.open_nursery() as nursery:

                async def chatter():
                    while True:
                        await trio.sleep(1)
                        await stream.send_all(b"are you there?")

                nursery.start_soon(chatter)
                async for _ in stream:
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer)
            await r.watched(handler, idle=5)(ours)
        assert 25.0 <= trio.current_time() - start <= 26.0


async def test_the_watched_stream_is_a_stream_like_any_other():
    async with open_reaper(tick=1.0) as r:

        async def make():
            left, right = trio.testing.memory_stream_pair()
            return WatchedStream(left, r.watch(left, idle=1000)), WatchedStream(right, r.watch(right, idle=1000))

        async def make_clogged():
            left, right = trio.testing.lockstep_stream_pair()
            return WatchedStream(left, r.watch(left, idle=1000)), WatchedStream(right, r.watch(right, idle=1000))

        await trio.testing.check_half_closeable_stream(make, None)
        await trio.testing.check_two_way_stream(make, make_clogged)


async def test_a_stall_is_logged_and_counted(autojump_clock, caplog):
    clock = trio.lowlevel.current_clock()
    async with open_reaper(tick=1.0) as r:
        with r.watch(None, idle=1000):
            await trio.sleep(10)
            clock.jump(7.0)  # what a handler that blocks the loop does to every connection's clock
            await trio.sleep(10)
        statistics = r.statistics()
    assert statistics.stalls == 1
    assert 6.0 <= statistics.max_lag <= 7.0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].lag == statistics.max_lag


async def test_after_a_stall_two_passes_let_every_connection_be_read_first(autojump_clock):
    """No socket here, so no final check helps. What a loop does late it does in its next pass, next to the reaper."""
    clock = trio.lowlevel.current_clock()
    ends: dict = {}
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:

        async def handler(name):
            with r.watch(None, idle=5) as connection:
                await trio.sleep(8)  # in the middle of the stall something comes
                connection.touch()
                await trio.sleep_forever()
            ends[name] = trio.current_time()

        for name in range(100):
            nursery.start_soon(handler, name)
        await trio.sleep(2)
        clock.jump(10.0)
        await trio.sleep(1)
        assert ends == {}
        await trio.sleep(10)
        assert len(ends) == 100


async def test_a_hook_that_raises_is_logged_and_harms_no_other_connection(autojump_clock, caplog):
    async with open_reaper(tick=1.0) as r:

        def broken(expiry):
            raise ValueError("broken hook")

        r.register("mine", 3.0, broken)
        with r.watch(None, idle=5) as connection:
            await trio.sleep_forever()
        assert connection.reaped
    assert "broken hook" in caplog.text


async def test_the_public_names_stand():
    assert {"open_reaper", "serve_tcp", "TrioReaper", "Connection", "WatchedStream"} <= set(dir(reaper.trio))


async def test_a_drain_knows_whose_turn_it_is_by_the_stream_of_the_watch_and_says_what_it_waits_for(
    autojump_clock, caplog
):
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:

        async def handler(stream, by_touch: bool) -> None:
            with r.watch(stream, idle=100) as connection:
                if by_touch:
                    await stream.receive_some()
                    connection.touch()
                    await stream.receive_some()
                while data := await connection.stream.receive_some():
                    await trio.sleep(3)
                    await stream.send_all(data)

        peers = []
        for by_touch in (False, False, True):
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(handler, ours, by_touch)
            peers.append(theirs)
        await peers[2].send_all(b"x")
        await trio.sleep(50)
        await peers[1].send_all(b"x")
        await trio.sleep(1)
        start = trio.current_time()
        with caplog.at_level("INFO", "reaper"):
            await r.drain(10)
        assert trio.current_time() - start == pytest.approx(10, abs=0.1)
        assert r.statistics().reasons == {"drain": 2, "drain_deadline": 1}
        assert [
            (record.levelname, vars(record).get("in_use", vars(record).get("unknown"))) for record in caplog.records
        ] == [
            ("INFO", 1),
            ("WARNING", 1),
        ]
        with (
            r.watch(None, idle=5) as connection,
            pytest.raises(InvalidArgument, match="a stream to receive by, got None"),
        ):
            connection.stream  # noqa: B018
