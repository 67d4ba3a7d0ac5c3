"""reaper.trio in virtual time and on real sockets, when things go wrong, and in the
journal.

What holds on asyncio too is in test_adapters.
"""

from __future__ import annotations

import gc
import itertools
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from pyarrow import parquet
from trio.testing import MockClock

import reaper.trio
from reaper import InvalidArgument
from reaper.journal import Journal
from reaper.trio import ParkableStream, TrioReaper, WatchedStream, journal_clock, open_reaper
from reaper.trio.streams import WatchedSocket
from tests.helpers.parking import Handler
from tests.helpers.streams import check_stream, no_circles, settle

pytestmark = pytest.mark.trio


async def test_start_hands_out_the_reaper_and_it_runs_only_once(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        r = TrioReaper(tick=1.0)
        assert await nursery.start(r.run) is r
        with pytest.raises(RuntimeError, match="runs already"):
            await r.run()
        nursery.cancel_scope.cancel()


async def test_the_kernel_is_asked_by_the_socket_at_the_bottom_of_a_stream(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with open_reaper(tick=1.0) as r:
            with r.watch(stream, idle=60) as connection:
                assert connection.own_socket is stream.socket
            with r.watch(trio.testing.memory_stream_pair()[0], idle=60) as connection:
                assert connection.own_socket is None


# ---- streams -------------------------------------------------------------------------


async def test_receiving_touches_by_itself_and_sending_does_not(autojump_clock: MockClock) -> None:
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        start = trio.current_time()

        async def peer() -> None:
            for _ in range(5):
                await trio.sleep(4)
                await theirs.send_all(b"x")

        async def chatter(stream: Any) -> None:
            while True:
                await trio.sleep(1)
                await stream.send_all(b"are you there?")

        async def handler(stream: Any) -> None:
            nursery.start_soon(chatter, stream)
            async for _ in stream:
                pass

        nursery.start_soon(peer)
        await r.watched(handler, idle=5)(ours)
        assert 25.0 <= trio.current_time() - start <= 26.0
        nursery.cancel_scope.cancel()


async def test_a_watched_stream_and_a_watched_socket_are_streams_like_any_other() -> None:
    async with open_reaper(tick=1.0) as r:

        async def make(
            pair: Callable[[], Any] = trio.testing.memory_stream_pair,
        ) -> tuple[Any, Any]:
            left, right = (WatchedStream(end, r.watch(end, idle=1000)) for end in pair())
            return left, right

        await trio.testing.check_half_closeable_stream(make, None)
        await trio.testing.check_two_way_stream(
            make, partial(make, trio.testing.lockstep_stream_pair)
        )

        def ends() -> tuple[WatchedSocket, WatchedSocket]:
            pair = socket.socketpair()
            for end in pair:
                end.setblocking(False)
            left, right = (WatchedSocket(end, r.watch(end, idle=1000)) for end in pair)
            return left, right

        await check_stream(ends)
        left, right = ends()
        assert left.socket is left.socket
        assert left.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
        left.close()
        left.close()
        with pytest.raises(trio.ClosedResourceError):
            await left.receive_some()
        assert await right.receive_some() == b""
        assert right.hung_up
        right.close()


async def test_a_drain_knows_whose_turn_it_is_by_the_stream_and_says_what_it_waits_for(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:

        async def handler(stream: Any, by_touch: bool) -> None:
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
        lines = [vars(record) for record in caplog.records]
        waits = [
            (line["levelname"], line.get("in_use", line.get("unknown")))
            for line in lines
            if "reason" not in line
        ]
        assert waits == [("INFO", 1), ("WARNING", 1)]
        assert [line["reason"] for line in lines if "reason" in line] == [
            "drain",
            "drain",
            "drain_deadline",
        ]
        with (
            r.watch(None, 5) as connection,
            pytest.raises(InvalidArgument, match="a stream to receive by, got None"),
        ):
            connection.stream  # noqa: B018


async def test_all_of_several_drains_return(autojump_clock: MockClock) -> None:
    async with (
        open_reaper(tick=1.0) as r,
        r.parking_lot(trio.sleep, 30) as lot,
        trio.open_nursery() as nursery,
    ):
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


# ---- manners -------------------------------------------------------------------------


async def test_a_handler_cancelled_together_with_the_reaper_meets_only_that() -> None:
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


async def test_a_server_cancelled_in_the_moment_of_an_accept_harms_no_other_nursery() -> None:
    """The handler takes its first step when the server has ended: the newcomer is
    closed, for nothing would reap it.
    """
    begun: list[object] = []
    tasks: list[Callable[[], Any]] = []

    async def handler(stream: Any) -> None:
        begun.append(stream)

    # A nursery that is slow to start its tasks.
    later: Any = SimpleNamespace(
        start_soon=lambda function, *args: tasks.append(partial(function, *args))
    )
    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, handler, 0, host="127.0.0.1", handler_nursery=later)
        (listener,) = await nursery.start(serve)
        client = socket.create_connection(listener.socket.getsockname())
        while not tasks:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    with client:
        await tasks[0]()
        assert client.recv(10) == b""
    assert begun == []


# ---- ends of file and of patience ----------------------------------------------------


@pytest.mark.parametrize("way", ["watched", "socket", "parked"])
async def test_a_handler_that_takes_the_end_of_file_for_a_pause_does_not_spin(
    autojump_clock: MockClock, way: str
) -> None:
    reads = 0

    async def endless(stream: Any) -> None:
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
                    await endless(WatchedSocket(ours, connection))
            else:
                async with r.parking_lot(endless) as lot:
                    lot.add(ours)
                    await trio.sleep(7)
                    assert lot.reaped == {"idle": 1}
        assert 5 <= trio.current_time() - start <= 7.1
    assert 10 < reads < 80


async def test_a_handler_that_swallows_its_silence_in_a_loop_lets_the_loop_run() -> None:
    swallowed = 0

    async def swallows(stream: Any) -> None:
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


# ---- the garbage collector -----------------------------------------------------------


async def test_a_tamed_collector_never_visits_the_connections_that_are_there(
    autojump_clock: MockClock,
) -> None:
    """Ten thousand more objects come, as of new connections; what a collection visits
    then does not grow with them.
    """
    before = (
        gc.get_threshold(),
        gc.get_freeze_count(),
    )  # CPython 3.12 begins with some of its own objects frozen
    visited: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            visited.append(
                sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1))
            )

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


async def test_connections_that_have_ended_leave_no_circle_for_the_collector(
    autojump_clock: MockClock,
) -> None:
    async def ping(connection: object) -> None:
        """Not answered."""

    async def one(r: TrioReaper, **options: Any) -> None:
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


# ---- real sockets --------------------------------------------------------------------

# Long enough for a machine that is busy with something else: a test whose own client
# stalls that long proves nothing.
IDLE, TICK = 2.0, 0.2


async def echo(stream: Any) -> None:
    """A handler that knows nothing of the reaper."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


def dial(listeners: Sequence[trio.SocketListener]) -> socket.socket:
    """A plain client: it works while our loop does not."""
    client = socket.create_connection(listeners[0].socket.getsockname())
    client.setblocking(False)
    return client


def closed(client: socket.socket) -> bool:
    """Whether the server has closed; reads whatever came."""
    try:
        while data := client.recv(4096):
            assert data
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.02)


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[Any]:
    async with trio.open_nursery() as nursery:
        serve = partial(
            reaper.trio.serve_tcp, handler, 0, host="127.0.0.1", idle=IDLE, tick=TICK, **options
        )
        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


async def test_what_came_while_the_handler_did_something_else_is_read_at_once(
    autojump_clock: MockClock,
) -> None:

    async def slow(stream: ParkableStream) -> None:
        while data := await stream.receive_some():
            await trio.sleep(IDLE / 10)
            await stream.send_all(data)

    async with serving(slow) as listeners:
        with dial(listeners) as client:
            for word in (b"one", b"two", b"end"):
                client.send(word)
                await trio.sleep(IDLE / 50)
            client.shutdown(socket.SHUT_WR)
            await trio.sleep(IDLE / 2)
            assert client.recv(100) == b"onetwoend"


@pytest.mark.parametrize("shielded", [True, False])
async def test_what_a_handler_awaits_at_a_close_has_to_be_shielded(
    shielded: bool, autojump_clock: MockClock
) -> None:
    saved: list[str] = []

    async def save(stream: ParkableStream) -> None:
        try:
            async for _ in stream:
                pass
        finally:
            with trio.move_on_after(1, shield=shielded):
                await trio.sleep(0.5)
                saved.append("state")

    async with serving(save) as listeners:
        with dial(listeners) as client:
            client.send(b"hello")
            await trio.sleep(IDLE + 2 * TICK + 1)
            assert closed(client)
    assert saved == ["state"] * shielded


@pytest.mark.slow
async def test_no_live_connection_is_reaped_after_the_loop_stalled() -> None:
    """Data lies in the kernel while the loop is blocked past every timeout: 0 of 200
    live ones are closed.
    """
    async with serving(echo, backlog=512) as listeners:
        live = [dial(listeners) for _ in range(200)]
        silent = [dial(listeners) for _ in range(20)]
        for client in live + silent:
            client.send(b"x")
        await trio.sleep(IDLE * 0.7)
        # In the middle of the stall every live peer speaks; the server is blocked until
        # long after all are due.
        stuck_until = time.monotonic() + IDLE + 12 * TICK
        for client in live:
            client.send(b"alive")
        while time.monotonic() < stuck_until:
            time.sleep(0.01)
        await trio.sleep(TICK)
        assert sum(closed(client) for client in live) == 0
        await until(lambda: all(closed(client) for client in silent))
        assert (
            sum(closed(client) for client in live) == 0
        )  # the stall is charged to neither: they keep their distance
        await until(lambda: all(closed(client) for client in live))
        for client in live + silent:
            client.close()


# ---- the journal: one life a connection, ended once, by whom and why -----------------


def rows(directory: Path) -> list[dict]:
    found = [parquet.read_table(path).to_pylist() for path in sorted(directory.glob("*.parquet"))]
    return sorted(itertools.chain(*found), key=lambda row: (row["conn"], row["t"]))


@asynccontextmanager
async def journaled(directory: Path, tick: float = 1.0) -> AsyncIterator[TrioReaper]:
    """A reaper with a journal in *directory*."""
    with Journal(
        directory, writer=1, tick=tick, clock_ns=journal_clock(), background=False
    ) as journal:
        async with open_reaper(tick=tick, journal=journal) as r:
            yield r


async def test_a_peer_that_hangs_up_has_ended_it_and_what_it_said_before_are_rows(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def handler(stream: Any) -> None:
        async for _ in stream:
            pass

    async with journaled(tmp_path) as r, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(r.watched(handler, idle=5), ours)
        await trio.sleep(4)
        await theirs.send_all(b"x")
        await trio.sleep(3)
        await theirs.aclose()
    found = [row for row in rows(tmp_path) if row["kind"] != "config"]
    assert [row["kind"] for row in found] == ["open", "activity", "close_peer"]
    assert found[1]["idle_ns"] // 10**9 in (3, 4)


async def test_a_parked_connection_that_its_own_handler_closes_has_an_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def closes(stream: Any) -> None:
        await stream.receive_some()
        stream.close()

    async with journaled(tmp_path) as r, r.parking_lot(closes, 5) as lot:
        ours, theirs = socket.socketpair()
        with theirs:
            lot.add(ours)
            theirs.send(b"x")
            await trio.sleep(1)
            assert len(lot) == 0
    assert [row["kind"] for row in rows(tmp_path) if row["kind"] != "config"] == [
        "open",
        "close_app",
    ]


async def test_a_stall_leaves_rows_that_explain_why_the_reap_came_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    clock: Any = trio.lowlevel.current_clock()
    async with journaled(tmp_path) as r, trio.open_nursery() as nursery:

        async def silent() -> None:
            with r.watch(None, idle=5):
                await trio.sleep_forever()

        async def answers() -> None:
            with r.watch(None, idle=5) as connection:
                await trio.sleep(24)  # after the stall
                connection.touch()
                await trio.sleep_forever()

        start = trio.current_time()
        nursery.start_soon(silent)
        nursery.start_soon(answers)
        await trio.sleep(2.25)
        clock.jump(20)  # what a handler that blocks the loop does to every clock
    took = trio.current_time() - start
    assert 29 <= took <= 30
    found = rows(tmp_path)
    (stall,) = [row for row in found if row["reason"] == "stall" and row["idle_ns"] > 10**9]
    assert 19 * 10**9 < stall["idle_ns"] <= 20 * 10**9
    reaps = [row for row in found if row["kind"] == "reap"]
    (activity,) = [row for row in found if row["kind"] == "activity"]
    assert activity["idle_ns"] > 19 * 10**9
    for reap in reaps:
        assert 0 <= reap["t"] - reap["due_ns"] <= 10**9
        assert reap["timeout_ms"] == 5000
        last = max(
            row["t"] for row in found if row["conn"] == reap["conn"] and row["kind"] != "reap"
        )
        assert reap["idle_ns"] == reap["t"] - last
        assert reap["due_ns"] - last >= 5 * 10**9
    # The silent one was let live for as long as the stall took, the other spoke after
    # it.
    assert sorted((row["idle_ns"] - 5 * 10**9) // 10**9 >= 19 for row in reaps) == [False, True]


@pytest.mark.slow
async def test_a_real_connection_carries_its_peer_and_what_spared_it(tmp_path: Path) -> None:
    async with journaled(tmp_path, 0.1) as r:
        listening = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with listening, client:
            client.send(b"unread")
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
            async with stream:
                with trio.fail_after(30), r.watch(stream, idle=0.3):
                    while not r.statistics().core.averted:
                        await trio.sleep(0.05)
    found = rows(tmp_path)
    assert "averted" in {row["kind"] for row in found}
    assert [row["peer"] for row in found if row["kind"] == "open"] != [None]
