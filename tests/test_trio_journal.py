"""What the trio adapter writes into the journal: one life a connection, ended once, by whom and why."""

from __future__ import annotations

import itertools
import socket
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from reaper.journal import Journal
from reaper.trio import journal_clock, open_reaper

pytestmark = [pytest.mark.trio]


def rows(directory) -> list[dict]:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = [parquet.read_table(path).to_pylist() for path in sorted(directory.glob("*.parquet"))]
    return sorted(itertools.chain(*found), key=lambda row: (row["conn"], row["t"]))


@asynccontextmanager
async def journaled(directory, tick=1.0):
    """A reaper with a journal in *directory*."""
    with Journal(directory, writer=1, tick=tick, clock_ns=journal_clock(), background=False) as journal:
        async with open_reaper(tick=tick, journal=journal) as r:
            yield r


async def test_a_peer_that_hangs_up_has_ended_it_and_what_it_said_before_are_rows(tmp_path, autojump_clock):
    async def handler(stream):
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


async def test_a_parked_connection_that_its_own_handler_closes_has_an_end(tmp_path, autojump_clock):
    async def closes(stream):
        await stream.receive_some()
        stream.close()

    async with journaled(tmp_path) as r, r.parking_lot(closes, 5) as lot:
        ours, theirs = socket.socketpair()
        with theirs:
            lot.add(ours)
            theirs.send(b"x")
            await trio.sleep(1)
            assert len(lot) == 0
    assert [row["kind"] for row in rows(tmp_path) if row["kind"] != "config"] == ["open", "close_app"]


async def test_a_stall_leaves_rows_that_explain_why_the_reap_came_later(tmp_path, autojump_clock):
    clock = trio.lowlevel.current_clock()
    async with journaled(tmp_path) as r, trio.open_nursery() as nursery:

        async def silent():
            with r.watch(None, idle=5):
                await trio.sleep_forever()

        async def answers():
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
        last = max(row["t"] for row in found if row["conn"] == reap["conn"] and row["kind"] != "reap")
        assert reap["idle_ns"] == reap["t"] - last
        assert reap["due_ns"] - last >= 5 * 10**9
    # The silent one was let live for as long as the stall took, the other spoke after it.
    assert sorted((row["idle_ns"] - 5 * 10**9) // 10**9 >= 19 for row in reaps) == [False, True]


@pytest.mark.slow
async def test_a_real_connection_carries_its_peer_and_what_spared_it(tmp_path):
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
