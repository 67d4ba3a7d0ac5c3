"""reaper.trio in virtual time, and when things go wrong; what holds on asyncio too is in test_adapters."""

from __future__ import annotations

import gc
import socket
from functools import partial

import pytest
import trio
import trio.testing
from circles import no_circles

import reaper.trio
from reaper import InvalidArgument
from reaper.trio import TrioReaper, WatchedStream, open_reaper

pytestmark = pytest.mark.trio


async def test_start_hands_out_the_reaper_and_it_runs_only_once(autojump_clock):
    async with trio.open_nursery() as nursery:
        r = TrioReaper(tick=1.0)
        assert await nursery.start(r.run) is r
        with pytest.raises(RuntimeError, match="runs already"):
            await r.run()
        nursery.cancel_scope.cancel()


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

        async def make(pair=trio.testing.memory_stream_pair):
            left, right = (WatchedStream(end, r.watch(end, idle=1000)) for end in pair())
            return left, right

        await trio.testing.check_half_closeable_stream(make, None)
        await trio.testing.check_two_way_stream(make, partial(make, trio.testing.lockstep_stream_pair))


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
            (record.levelname, vars(record).get("in_use", vars(record).get("unknown")))
            for record in caplog.records
            if not hasattr(record, "reason")
        ] == [("INFO", 1), ("WARNING", 1)]
        assert [record.reason for record in caplog.records if hasattr(record, "reason")] == ["drain"] * 2 + [
            "drain_deadline"
        ]
        with (
            r.watch(None, idle=5) as connection,
            pytest.raises(InvalidArgument, match="a stream to receive by, got None"),
        ):
            connection.stream  # noqa: B018


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked(0.001)


async def test_all_of_several_drains_return(autojump_clock):
    async with open_reaper(tick=1.0) as r, r.parking_lot(trio.sleep, 30) as lot, trio.open_nursery() as nursery:
        peers = [socket.socketpair() for _ in range(3)]
        for ours, _ in peers:
            lot.add(ours)

        async def busy() -> None:
            with r.watch(None, idle=100) as connection, connection.in_use():
                await trio.sleep(5)

        nursery.start_soon(busy)
        await settle()
        with trio.fail_after(20):
            async with trio.open_nursery() as drains:
                for timeout in (15, 10, 12):
                    drains.start_soon(r.drain, timeout)
        for _, theirs in peers:
            theirs.close()


# ---- manners ---------------------------------------------------------------------------------------------------------


async def test_a_handler_that_is_cancelled_together_with_the_reaper_meets_only_its_cancellation():
    async with trio.open_nursery() as nursery:
        r = await nursery.start(TrioReaper(tick=1.0).run)

        async def handler() -> None:
            with r.watch(None, idle=5):
                await trio.sleep_forever()

        async def late() -> None:
            try:
                await trio.sleep_forever()
            finally:
                nursery.start_soon(handler)

        nursery.start_soon(late)
        await settle()
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_cancelled_in_the_moment_of_an_accept_harms_no_nursery_of_the_callers():
    """The handler takes its first step when the server has ended: the newcomer is closed, for nothing would reap it."""
    begun = []

    async def handler(stream) -> None:
        begun.append(stream)

    class Later:
        """A nursery that is slow to start its tasks."""

        def __init__(self) -> None:
            self.tasks: list = []

        def start_soon(self, function, *args) -> None:
            self.tasks.append(partial(function, *args))

    later = Later()
    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, handler, 0, host="127.0.0.1", handler_nursery=later)
        (listener,) = await nursery.start(serve)
        client = socket.create_connection(listener.socket.getsockname())
        while not later.tasks:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    with client:
        await later.tasks[0]()
        assert client.recv(10) == b""
    assert begun == []


async def test_serve_tcp_probes_too():
    pinged = trio.Event()

    async def ping(connection) -> None:
        pinged.set()

    async def handler(stream) -> None:
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, handler, 0, host="127.0.0.1", tick=0.05, idle=0.1, probe=ping, grace=0.1)
        (listener,) = await nursery.start(serve)
        async with await trio.testing.open_stream_to_socket_listener(listener) as client:
            with trio.fail_after(30):
                assert await client.receive_some() == b""
        assert pinged.is_set()
        nursery.cancel_scope.cancel()


# ---- ends of file and of patience ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["watched", "socket", "parked"])
async def test_a_handler_that_takes_the_end_of_file_for_a_pause_does_not_spin_and_is_reaped(autojump_clock, way):
    reads = 0

    async def endless(stream) -> None:
        nonlocal reads
        while True:
            await stream.receive_some()
            reads += 1

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    async with open_reaper(tick=1.0, idle=5) as r:
        start = trio.current_time()
        with theirs, ours:
            theirs.send(b"x")
            theirs.shutdown(socket.SHUT_WR)
            if way == "watched":
                await r.watched(endless)(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
            elif way == "socket":
                with r.watch(ours) as connection:
                    await endless(reaper.trio.streams.WatchedSocket(ours, connection))
            else:
                async with r.parking_lot(endless) as lot:
                    lot.add(ours)
                    await trio.sleep(7)
                    assert lot.reaped == {"idle": 1}
        assert 5 <= trio.current_time() - start <= 7.1
    assert 10 < reads < 80


async def test_a_handler_that_swallows_its_silence_in_a_loop_lets_the_loop_run():
    swallowed = 0

    async def swallows(stream) -> None:
        nonlocal swallowed
        while swallowed < 1000:
            try:
                await stream.receive_some()
            except BaseException as error:
                if not isinstance(error, reaper.trio.linger.Silent):
                    raise
                swallowed += 1

    async with open_reaper() as r, r.parking_lot(swallows, 30) as lot:
        ours, theirs = socket.socketpair()
        with theirs:
            lot.add(ours)
            theirs.send(b"x")
            passes = 0
            while lot:
                await trio.lowlevel.checkpoint()
                passes += 1
    assert swallowed == 1000
    assert passes >= 900


# ---- the garbage collector -------------------------------------------------------------------------------------------


async def test_a_tamed_collector_never_visits_the_connections_that_are_there(autojump_clock):
    """Ten thousand more objects come, as of new connections; what a collection visits then does not grow with them."""
    before = gc.get_threshold(), gc.get_freeze_count()  # CPython 3.12 begins with some of its own objects frozen
    visited: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            visited.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    async with open_reaper(tick=1.0, tame_gc=True) as r, trio.open_nursery() as nursery:
        gc.callbacks.append(note)

        async def one() -> None:
            with r.watch(None, idle=5):
                await trio.sleep_forever()

        for _ in range(3000):
            nursery.start_soon(one)
            await trio.lowlevel.checkpoint()
        await trio.sleep(10)
        gc.callbacks.remove(note)
    assert len(visited) >= 3
    assert max(visited) < 150_000
    assert gc.get_threshold() == before[0]
    assert gc.get_freeze_count() <= before[1]


async def test_connections_that_have_ended_leave_no_circle_for_the_collector(autojump_clock):
    async def ping(connection) -> None:
        """Not answered."""

    async def one(r: TrioReaper, **options) -> None:
        with r.watch(None, idle=5, **options) as connection:
            connection.touch()
            connection.deadline(100, "age")
            await trio.sleep_forever()

    async with open_reaper(tick=1.0) as r:
        with no_circles(reaper.trio.Connection):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(one, r)
                    nursery.start_soon(partial(one, r, probe=ping, grace=2))
            await trio.sleep(1)
