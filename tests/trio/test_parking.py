"""Parked connections on real sockets and trio's virtual clock: a task only while there are bytes."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import reaper.trio
from reaper.driver.sockets import reset_on_close
from reaper.trio import ParkableStream, ParkingLot, open_reaper
from reaper.trio.linger import FEWEST, LINGERERS
from reaper.trio.parking import PARKED, WAKES_PER_PASS
from reaper.trio.task_pool import KEPT
from reaper.trio.tls import TlsSession
from tests.helpers.streams import TlsClient, settle, steps, tasks

pytestmark = pytest.mark.trio


async def echo(stream) -> None:
    async for data in stream:
        await stream.send_all(data)


peers: list[socket.socket] = []


def pair() -> tuple[socket.socket, socket.socket]:
    """(ours, the peer's); the test need not close the latter."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    peers.append(theirs)
    return ours, theirs


@pytest.fixture(autouse=True)
def _no_peer_is_left_open():
    yield
    while peers:
        peers.pop().close()


async def heard(theirs: socket.socket, size: int = 65536) -> bytes:
    """What the peer hears next; empty: the connection was closed."""
    await trio.lowlevel.wait_readable(theirs)
    with suppress(ConnectionResetError):  # closed with bytes unread
        return theirs.recv(size)
    return b""


async def echoes(theirs: socket.socket, word: bytes) -> None:
    """The peer says *word*, and hears it."""
    theirs.send(word)
    with trio.fail_after(10):
        assert await heard(theirs) == word


async def echo_in_turn(peers: list[socket.socket], pause: float) -> None:
    """So that the longest silent is always the next."""
    for theirs in peers:
        await echoes(theirs, b"again")
        await trio.sleep(pause)


def dial(lot: ParkingLot) -> tuple[Any, socket.socket]:
    """A connection of *lot* over TCP, and its client, which the test need not close."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        client.setblocking(False)
        peers.append(client)
        return lot.add(listening.accept()[0]), client


@asynccontextmanager
async def several(
    count, handler=echo, idle=30, **options
) -> AsyncIterator[tuple[ParkingLot, list[socket.socket]]]:
    """A parking lot of *count* connections, and their peers; each is closed at the end of the
    block.
    """
    async with open_reaper(tick=1.0) as r, r.parking_lot(handler, idle, **options) as lot:
        pairs = [pair() for _ in range(count)]
        for ours, _ in pairs:
            lot.add(ours)
        yield lot, [theirs for _, theirs in pairs]
        r.core.check()
    with trio.fail_after(10):
        for _, theirs in pairs:
            while theirs.fileno() >= 0 and await heard(theirs):
                pass
    assert (len(lot), len(r), len(r.core)) == (0, 0, 0)


@asynccontextmanager
async def one(
    handler=echo, said=b"", idle=30, **options
) -> AsyncIterator[tuple[ParkingLot, socket.socket]]:
    """The same of one, and its peer, which has *said* something."""
    async with several(1, handler, idle, **options) as (lot, (theirs,)):
        theirs.send(said)
        yield lot, theirs


@pytest.fixture
def server(certificate) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(*certificate)
    return made


@pytest.fixture
def secure(certificate):
    """Makes a client of TLS of a socket; a slow one sends when all others have come to a halt."""
    trust = ssl.create_default_context(cafile=certificate[0])

    def wrap(sock: socket.socket, slow: bool = False) -> trio.SSLStream:
        plain: Any = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        send = plain.send_all

        async def send_slowly(data) -> None:
            await settle()
            await send(data)

        if slow:
            plain.send_all = send_slowly
        return trio.SSLStream(plain, trust, server_hostname="127.0.0.1")

    return wrap


async def echo_in_a_nursery(stream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(echo, stream)


@pytest.mark.parametrize(
    ("handler", "parks"), [(echo, True), (echo_in_a_nursery, True), (echo, False)]
)
async def test_a_silent_connection_costs_no_task_unless_nothing_can_be_parked(handler, parks):
    async with several(50, handler, parks=parks) as (lot, peers):
        before = tasks(lot)
        for _ in range(3):
            await echo_in_turn(peers, 0)
            await settle()
            assert tasks(lot) == before
        assert len(lot) == len(lot._watcher) == len(lot._watcher.core) == 50
        assert all(parked.stream is None and parked.state is PARKED for parked in lot) == parks


@pytest.mark.parametrize("parks", [True, False])
async def test_the_silent_is_reaped_within_a_tick_and_the_touched_is_not(autojump_clock, parks):
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
    autojump_clock,
):
    async with several(1) as (lot, (silent,)):
        lot.retime(5)
        _, later = dial(lot)
        assert await heard(silent) == await heard(later) == b""
        assert (lot.reaped, trio.current_time() <= 6) == ({"idle": 2}, True)


async def test_in_use_is_neither_reaped_nor_parked(autojump_clock):
    async def working(stream: ParkableStream) -> None:
        question = await stream.receive_some()
        with stream.in_use():
            await trio.sleep(100)
            question += await stream.receive_some()
        await stream.send_all(question)

    async with one(working, b"a", idle=5) as (lot, theirs):
        await trio.sleep(150)
        theirs.send(b"b")
        assert await heard(theirs) == b"ab"
        assert await heard(theirs) == b""
        assert not lot.reaped


async def test_unread_bytes_avert_the_reap(autojump_clock):
    """The lot is kept from waking any, as by a loop that stalled: the final check finds the bytes."""
    async with one(idle=5) as (lot, theirs):
        (parked,) = lot
        lot._epoll.unregister(parked.fd)
        theirs.send(b"unread")
        await trio.sleep(8)
        assert (len(lot), lot.reaped) == (1, {})
        assert lot._watcher.statistics().core.averted >= 1


@pytest.mark.parametrize("said", [[], [b"farewell"]])
async def test_the_last_bytes_before_a_hang_up_are_handled_and_it_is_forgotten_without_a_task(said):
    got = []

    async def handler(stream) -> None:
        got.append(b"".join([data async for data in stream]))

    async with one(handler, *said) as (lot, theirs):
        (parked,) = lot
        fd = parked.fd
        theirs.close()
        await settle()
        assert (len(lot), len(lot._watcher.core), got) == (0, 0, said)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


async def test_more_bytes_than_a_handler_read_wake_it_again():
    """A handler that takes one byte at a time and then waits is woken for each of the rest."""
    got = []

    async def one_byte(stream) -> None:
        got.append(await stream.receive_some(1))
        raise reaper.trio.linger.Silent

    async with one(one_byte, b"abc"):
        await settle()
        assert got == [b"a", b"b", b"c"]


async def test_a_handler_that_answers_at_once_takes_one_step_and_one_read(monkeypatch):
    reads = []

    def read(fd: int, most: int) -> bytes:
        reads.append(fd)
        return os_read(fd, most)

    os_read = os.read
    async with one() as (lot, theirs):
        (parked,) = lot
        fd = parked.fd
        monkeypatch.setattr(os, "read", read)
        with steps() as counts:
            for _ in range(3):
                await echoes(theirs, b"hello")
                await settle()
        assert (lot.parked, counts["_run"], reads.count(fd)) == (1, 3, 3)


@pytest.mark.parametrize("parks", [True, False])
async def test_what_comes_while_a_handler_runs_or_waits_is_answered_too(parks):
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


async def asks_on_after_its_own_close(stream: ParkableStream) -> None:
    await stream.receive_some()
    stream.close()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def answers_at_once_although_it_is_cancelled(stream: ParkableStream) -> None:
    await stream.receive_some()
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.send_all(b"that is a place to be cancelled all the same")
        raise AssertionError("it went on")


async def sees_the_end_of_file_that_came_with_the_last_bytes(stream: ParkableStream) -> None:
    assert [data async for data in stream] == [b"x"]
    await stream.send_all(b"goodbye")


async def reads_what_it_left_behind(stream: ParkableStream) -> None:
    assert [await stream.receive_some(1) for _ in range(2)] == [b"x", b""]


async def sends_more_than_the_kernel_takes(stream: ParkableStream) -> None:
    await stream.receive_some()
    await stream.send_all(bytes(5_000_000))


async def meets_a_broken_connection(stream: ParkableStream) -> None:
    raise trio.BrokenResourceError


@pytest.mark.parametrize(
    ("handler", "size"),
    [
        (asks_on_after_its_own_close, 0),
        (answers_at_once_although_it_is_cancelled, 44),
        (sees_the_end_of_file_that_came_with_the_last_bytes, 7),
        (reads_what_it_left_behind, 0),
        (sends_more_than_the_kernel_takes, 5_000_000),
        (meets_a_broken_connection, 0),
    ],
)
async def test_a_handler_that(handler, size):
    """And what its peer hears until its connection is closed; what a handler raises would end the
    test.
    """
    async with one(handler, b"x") as (lot, theirs):
        theirs.shutdown(socket.SHUT_WR)
        total = 0
        with trio.fail_after(30):
            while data := await heard(theirs):
                total += len(data)
            await settle()
        assert (total, len(lot)) == (size, 0)


async def test_a_handler_that_sends_and_sends_lets_others_run():
    async def sends(stream: ParkableStream) -> None:
        await stream.receive_some()
        for _ in range(20):
            await stream.send_all(b"y")

    async with one(sends) as (_, theirs):
        with steps() as counts:
            theirs.send(b"x")
            while await heard(theirs):
                pass
        assert counts["_run"] == 20


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_handler_that_closes_its_stream_as_it_falls_silent_is_parked_and_served_again(
    server, secure, tls
):
    seen = []

    async def careful(stream: ParkableStream) -> None:
        async with stream:
            try:
                await echo(stream)
            finally:
                await stream.aclose()
                with suppress(trio.ClosedResourceError):
                    seen.append(await stream.receive_some())
                await stream.aclose()

    async with one(careful, tls=server if tls else None) as (lot, theirs):
        wrapped = secure(theirs)
        client = wrapped if tls else wrapped.transport_stream
        for text in (b"first", b"after a pause"):
            await client.send_all(text)
            assert await client.receive_some(100) == text
            await settle()
            assert (len(lot), lot.parked, seen) == (1, 1, [])
        await wrapped.transport_stream.aclose()
        await settle()
        assert (len(lot), len(lot._watcher.core)) == (0, 0)


async def test_a_request_behind_an_urgent_byte_and_a_half_close_is_handled():
    async with open_reaper() as r, r.parking_lot(echo, 30) as lot:
        _, client = dial(lot)
        client.send(b"!", socket.MSG_OOB)
        client.send(b"request")
        client.shutdown(socket.SHUT_WR)
        assert await heard(client) == b"request"
        assert await heard(client) == b""


async def test_a_session_that_cannot_be_made_costs_no_other_its_descriptor(server, monkeypatch):
    """OpenSSL's socket closes the descriptor as it fails; when the lot ends the connection it may
    be another's.
    """

    class Broken(TlsSession):
        def __init__(self, fd: int, context: ssl.SSLContext) -> None:
            try:
                super().__init__(fd, context)
            finally:
                with pytest.raises(OSError, match="Bad file"):
                    os.fstat(fd)
                with open(os.devnull) as other:
                    os.dup2(other.fileno(), fd)

    monkeypatch.setattr(reaper.trio.parked_streams, "TlsSession", Broken)
    async with open_reaper() as r, r.parking_lot(echo, 30, tls=server) as lot:
        parked, client = dial(lot)
        fd = parked.fd
        reset_on_close(client)
        client.close()  # there is no peer to make a session with
        lot.start(parked)
        assert len(lot) == 0
        os.fstat(fd)
        os.close(fd)


async def test_a_burst_of_clients_never_has_more_tasks_than_work_and_wait_at_once():
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


async def test_as_many_tasks_linger_as_are_asked_again_and_only_for_so_long(autojump_clock):
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


async def slow(stream) -> None:
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
    autojump_clock, handler, said, linger, took, reason
):
    async with one(handler, said, idle=60, linger=linger) as (lot, theirs):
        await settle()
        start = trio.current_time()
        await lot.drain(2 if reason == "drain_deadline" else 10)
        assert trio.current_time() - start == pytest.approx(took, abs=0.5)
        assert lot.reaped == {reason: 1}
        assert await heard(theirs) == (said if reason == "drain" else b"")


async def test_what_a_handler_raises_is_not_swallowed():
    async def broken(stream) -> None:
        raise LookupError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        async with one(broken, b"x") as (_, theirs):
            await trio.sleep_forever()
    assert caught.group_contains(LookupError, match="mine")
    assert await heard(theirs) == b""


async def test_it_refuses_a_connection_while_it_does_not_run():
    async with open_reaper() as r:
        ours, theirs = pair()
        lot = reaper.trio.ParkingLot(r, echo, 30, parks=False)
        with ours, theirs, pytest.raises(RuntimeError, match="does not run"):
            lot.add(ours)


async def test_serve_parked_serves_and_reaps_on_tcp():
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(reaper.trio.serve_parked, echo, 0, host="127.0.0.1", idle=1)
        )
        async with await trio.testing.open_stream_to_socket_listener(listener) as client:
            await client.send_all(b"hello")
            assert await client.receive_some() == b"hello"
            assert await client.receive_some() == b""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("slow", [False, True])
async def test_tls_never_parks_on_bytes_it_has_buffered_nor_in_a_handshake(server, secure, slow):
    """The handler takes a byte at a time of records that came in one packet: TLS holds the rest,
    the kernel nothing.
    """
    starts = []

    async def sips(stream) -> None:
        starts.append(stream)
        while data := await stream.receive_some(1):
            await stream.send_all(data)

    async with one(sips, tls=server) as (lot, theirs):
        before = tasks(lot)
        stream = secure(theirs, slow)
        for text in (b"first", b"second, after a silence"):
            half = len(text) // 2
            await stream.send_all(text[:half])
            await stream.send_all(text[half:])
            back = b""
            while len(back) < len(text):
                back += await stream.receive_some(100)
            assert back == text
            await settle()
            assert tasks(lot) == before
        assert len(starts) >= 2
        assert len(set(starts)) == 1
        await stream.transport_stream.aclose()


async def test_a_handshake_that_its_peer_has_ended_is_an_error_and_not_one_more_step(server):
    ours, theirs = pair()
    with ours:
        session = TlsSession(ours.fileno(), server)
        session.detach()
        theirs.close()
        with pytest.raises(ConnectionAbortedError, match="in its handshake"):
            session.shake_hands()


async def test_a_tls_peer_that_breaks_off_anywhere_ends_only_its_own_connection(server, secure):
    hello = b"\x16\x03\x01\x02\x00\x01"  # the beginning of a handshake
    async with open_reaper() as r, r.parking_lot(echo, 30, tls=server) as lot:
        before = tasks(lot)
        for said in (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", hello):
            for reset in (False, True):
                _, client = dial(lot)
                client.send(said)
                if reset:
                    reset_on_close(client)
                else:
                    await settle()
                client.close()
                await settle()
        assert (len(lot), tasks(lot)) == (0, before)
        _, slow = dial(lot)
        slow.send(hello)
        await settle()
        assert (len(lot), lot.parked, tasks(lot)) == (1, 1, before), (
            "a slow handshake costs no task"
        )
        parked, client = dial(lot)
        stream = secure(client)
        await stream.send_all(bytes(300_000))
        back = 0
        while back < 300_000:
            back += len(await stream.receive_some(65536))
        await settle()
        assert tasks(lot) == before
        assert parked.stream.version() == "TLSv1.3"


async def test_a_silent_tls_connection_is_reaped_and_dripped_records_are_activity(
    certificate, server, autojump_clock
):
    client = TlsClient(certificate[0])
    async with one(idle=5, tls=server) as (lot, theirs):
        client.shake_hands()
        hello = client.says()
        start = trio.current_time()
        for index in range(8):  # a handshake of 24 seconds
            theirs.send(hello[index : index + 1])
            await trio.sleep(3)
        assert len(lot) == 1
        assert await heard(theirs) == b""
        assert 26 <= trio.current_time() - start <= 28
        assert lot.reaped == {"idle": 1}


# ---- tasks that are kept
# -----------------------------------------------------------------------------------------


async def test_the_next_connection_that_speaks_gets_the_task_of_one_before_and_sees_nothing_of_it():
    said: ContextVar[bytes] = ContextVar("said", default=b"nothing")
    ran = []

    async def remembering(stream) -> None:
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
    how, autojump_clock
):
    async def slow(stream) -> None:
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


async def test_of_a_burst_no_more_tasks_are_kept_than_two_passes_wake():
    gate = trio.Event()

    async def together(stream) -> None:
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
