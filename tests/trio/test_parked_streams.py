"""The streams of parked connections, plain and with TLS, on real sockets."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import reaper.trio
from reaper import ConnectionReaped
from reaper.driver.sockets import reset_on_close
from reaper.trio import ParkableStream, open_reaper
from reaper.trio.tls import TlsSession
from tests.helpers.parking import Handler, Secure, dial, echo, echoes, heard, one, pair
from tests.helpers.streams import TlsClient, settle, steps, tasks

pytestmark = pytest.mark.trio


async def test_in_use_is_neither_reaped_nor_parked(autojump_clock: MockClock) -> None:
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


async def test_what_was_reaped_cannot_be_used(autojump_clock: MockClock) -> None:
    kept: list[ParkableStream] = []

    async def working(stream: ParkableStream) -> None:
        kept.append(stream)
        stream.may_park = False
        await stream.receive_some()
        await stream.receive_some()

    async with one(working, b"a", idle=5) as (_, theirs):
        assert await heard(theirs) == b""
        with pytest.raises(ConnectionReaped):
            kept[0].in_use().__enter__()


async def test_a_handler_that_answers_at_once_takes_one_step_and_one_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
async def test_a_handler_that(handler: Handler, size: int) -> None:
    """And what its peer hears until its connection is closed; what a handler raises
    would end the test.
    """
    async with one(handler, b"x") as (lot, theirs):
        theirs.shutdown(socket.SHUT_WR)
        total = 0
        with trio.fail_after(30):
            while data := await heard(theirs):
                total += len(data)
            await settle()
        assert (total, len(lot)) == (size, 0)


async def test_a_handler_that_sends_and_sends_lets_others_run() -> None:
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
async def test_a_handler_that_closes_its_stream_as_it_falls_silent_is_served_again(
    server: ssl.SSLContext, secure: Secure, tls: bool
) -> None:
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


async def test_a_session_that_cannot_be_made_costs_no_other_its_descriptor(
    server: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL's socket closes the descriptor as it fails; when the lot ends the
    connection it may be another's.
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


@pytest.mark.parametrize("slow", [False, True])
async def test_tls_never_parks_on_bytes_it_has_buffered_nor_in_a_handshake(
    server: ssl.SSLContext, secure: Secure, slow: bool
) -> None:
    """The handler takes a byte at a time of records that came in one packet: TLS holds
    the rest, the kernel nothing.
    """
    starts = []

    async def sips(stream: Any) -> None:
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


async def test_a_handshake_that_its_peer_has_ended_is_an_error_and_not_one_more_step(
    server: ssl.SSLContext,
) -> None:
    ours, theirs = pair()
    with ours:
        session = TlsSession(ours.fileno(), server)
        session.detach()
        theirs.close()
        with pytest.raises(ConnectionAbortedError, match="in its handshake"):
            session.shake_hands()


async def test_a_tls_peer_that_breaks_off_anywhere_ends_only_its_own_connection(
    server: ssl.SSLContext, secure: Secure
) -> None:
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
    certificate: tuple[str, str], server: ssl.SSLContext, autojump_clock: MockClock
) -> None:
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
