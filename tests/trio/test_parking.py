"""Parking lots on real sockets and trio's virtual clock: a task only while there are
bytes.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import reaper.trio
from reaper.trio import ParkableStream, open_reaper
from reaper.trio.parking import PARKED
from tests.helpers.parking import (
    Handler,
    dial,
    echo,
    echo_in_turn,
    echoes,
    heard,
    one,
    pair,
    several,
)
from tests.helpers.streams import settle, tasks

pytestmark = pytest.mark.trio


async def echo_in_a_nursery(stream: Any) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(echo, stream)


@pytest.mark.parametrize(
    ("handler", "parks"), [(echo, True), (echo_in_a_nursery, True), (echo, False)]
)
async def test_a_silent_connection_costs_no_task_unless_nothing_can_be_parked(
    handler: Handler, parks: bool
) -> None:
    async with several(50, handler, parks=parks) as (lot, peers):
        before = tasks(lot)
        for _ in range(3):
            await echo_in_turn(peers, 0)
            await settle()
            assert tasks(lot) == before
        assert len(lot) == len(lot._watcher) == len(lot._watcher.core) == 50
        assert all(parked.stream is None and parked.state is PARKED for parked in lot) == parks


@pytest.mark.parametrize("parks", [True, False])
async def test_the_silent_is_reaped_within_a_tick_and_the_touched_is_not(
    autojump_clock: MockClock, parks: bool
) -> None:
    async with several(2, idle=5, parks=parks) as (lot, (silent, chatty)):
        for _ in range(4):
            await trio.sleep(1.9)
            chatty.send(b"x")
            await settle()
        assert await heard(silent) == b""
        assert (len(lot), lot.reaped) == (1, {"idle": 1})
        last = trio.current_time()
        while await heard(chatty):
            pass
        assert 5 - 1.9 <= trio.current_time() - last <= 6
        assert lot.reaped == {"idle": 2}


async def test_another_timeout_is_in_force_at_once_for_who_is_there_and_for_who_comes(
    autojump_clock: MockClock,
) -> None:
    async with several(1) as (lot, (silent,)):
        lot.retime(5)
        _, later = dial(lot)
        assert await heard(silent) == await heard(later) == b""
        assert (lot.reaped, trio.current_time() <= 6) == ({"idle": 2}, True)


async def test_unread_bytes_avert_the_reap(autojump_clock: MockClock) -> None:
    """The lot hears of no bytes, as in a loop that stalled: the final check finds
    them.
    """
    async with one(idle=5) as (lot, theirs):
        (parked,) = lot
        assert lot._epoll is not None
        lot._epoll.unregister(parked.fd)
        theirs.send(b"unread")
        await trio.sleep(8)
        assert (len(lot), lot.reaped) == (1, {})
        assert lot._watcher.statistics().core.averted >= 1


@pytest.mark.parametrize("said", [b"", b"farewell"])
async def test_a_hang_up_is_forgotten_once_its_last_bytes_are_handled(
    said: bytes,
) -> None:
    got = []

    async def handler(stream: Any) -> None:
        got.append(b"".join([data async for data in stream]))

    async with one(handler, said) as (lot, theirs):
        (parked,) = lot
        fd = parked.fd
        theirs.close()
        await settle()
        assert (len(lot), len(lot._watcher.core), got) == (0, 0, [said] if said else [])
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


async def test_more_bytes_than_a_handler_read_wake_it_again() -> None:
    """A handler that takes one byte at a time and then waits is woken for each of the
    rest.
    """
    got = []

    async def one_byte(stream: Any) -> None:
        got.append(await stream.receive_some(1))
        raise reaper.trio.linger.Silent

    async with one(one_byte, b"abc"):
        await settle()
        assert got == [b"a", b"b", b"c"]


@pytest.mark.parametrize("parks", [True, False])
async def test_what_comes_while_a_handler_runs_or_waits_is_answered_too(parks: bool) -> None:
    async def slow(stream: ParkableStream) -> None:
        stream.may_park = parks
        while data := await stream.receive_some():
            theirs.send(b"more") if data == b"first" else None
            await stream.send_all(data)

    async with one(slow, b"first") as (lot, theirs):
        with trio.fail_after(10):
            assert [await heard(theirs, 5), await heard(theirs)] == [b"first", b"more"]
        await settle()
        await echoes(theirs, b"last")
        await settle()
        assert lot.parked == parks
        theirs.close()
        await settle()
        assert len(lot) == 0


async def test_a_request_behind_an_urgent_byte_and_a_half_close_is_handled() -> None:
    async with open_reaper() as r, r.parking_lot(echo, 30) as lot:
        _, client = dial(lot)
        client.send(b"!", socket.MSG_OOB)
        client.send(b"request")
        client.shutdown(socket.SHUT_WR)
        assert await heard(client) == b"request"
        assert await heard(client) == b""


async def slow(stream: ParkableStream) -> None:
    data = await stream.receive_some()
    await trio.sleep(3)
    await stream.send_all(data)
    await stream.receive_some()


@pytest.mark.parametrize(
    ("handler", "said", "linger", "took", "reason"),
    [(slow, b"", 0, 0, "drain"), (slow, b"x", 0, 3, "drain"), (slow, b"x", 0, 2, "drain_deadline"),
     (echo, b"x", 20, 0, "drain")],
    ids=["silent", "asking", "too slow", "lingering"],
)  # fmt: skip
async def test_a_drain_ends_the_silent_at_once_and_lets_the_others_finish_by_its_deadline(
    autojump_clock: MockClock,
    handler: Handler,
    said: bytes,
    linger: float,
    took: float,
    reason: str,
) -> None:
    async with one(handler, said, idle=60, linger=linger) as (lot, theirs):
        await settle()
        start = trio.current_time()
        await lot.drain(2 if reason == "drain_deadline" else 10)
        assert trio.current_time() - start == pytest.approx(took, abs=0.5)
        assert lot.reaped == {reason: 1}
        assert await heard(theirs) == (said if reason == "drain" else b"")


async def test_it_refuses_a_connection_while_it_does_not_run() -> None:
    async with open_reaper() as r:
        ours, theirs = pair()
        lot = reaper.trio.ParkingLot(r, echo, 30, parks=False)
        with ours, theirs, pytest.raises(RuntimeError, match="does not run"):
            lot.add(ours)


async def test_serve_parked_serves_and_reaps_on_tcp() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(reaper.trio.serve_parked, echo, 0, host="127.0.0.1", idle=1)
        )
        async with await trio.testing.open_stream_to_socket_listener(listener) as client:
            await client.send_all(b"hello")
            assert await client.receive_some() == b"hello"
            assert await client.receive_some() == b""
        nursery.cancel_scope.cancel()
