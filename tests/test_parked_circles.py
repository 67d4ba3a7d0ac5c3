"""A parked connection that has ended is freed at once: it leaves no circle, which only the collector could free.

Servers tame the collector (`tamed_collector`), so what is old and in a circle stays for hours: behind TLS 18 KB each.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from circles import no_circles
from clocks import autojump
from http_world import head_of, rest, running, tls, until, will_reset
from trio.testing import MockClock

import reaper.trio
from reaper.core.lease import Lease
from reaper.trio import ParkableStream, open_reaper
from reaper.trio.parking import Parked
from reaper.trio.tls import TlsSession
from server_example.http.connection import HttpConnection
from server_example.http.transport import Transport

pytestmark = pytest.mark.trio

KINDS = (Parked, Lease, TlsSession, ParkableStream, HttpConnection, Transport, reaper.trio.Connection)
CLIENTS = 5


@pytest.fixture
def clock() -> MockClock:
    return autojump("still")


@asynccontextmanager
async def clients(
    address: tuple[str, int], certificate: tuple[str, str] | None
) -> AsyncIterator[list[trio.abc.Stream]]:
    streams: list[trio.abc.Stream] = []
    for _ in range(CLIENTS):
        stream: trio.abc.Stream = await trio.open_tcp_stream(*address)
        if certificate is not None:
            trust = ssl.create_default_context(cafile=certificate[0])
            stream = trio.SSLStream(stream, trust, server_hostname="127.0.0.1", https_compatible=True)
        streams.append(stream)
    yield streams
    for stream in streams:
        await trio.aclose_forcefully(stream)


ENDS = {
    "its peer goes while it is parked": b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "it is reaped while it is parked": b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a head is reaped": b"GET /nowhere HT",
    "its last answer is given": b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "its peer breaks off in a request": b"GET /sleep?s=100 HTTP/1.1\r\nhost: x\r\n\r\n",
    "its request takes too long": b"GET /sleep?s=100 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", ENDS)
async def test_an_http_connection_leaves_no_circle(clock: MockClock, certificate, secure: bool, end: str) -> None:
    secured = tls(certificate) if secure else {}
    async with running(keep_alive="5s", headers="5s", request="20s", linger="0s", **secured) as server:
        with no_circles(*KINDS):
            async with clients(server.address, certificate if secure else None) as streams:
                for stream in streams:
                    await stream.send_all(ENDS[end])
                if "peer" in end:
                    await until(lambda: server.counters.requests == CLIENTS)
                    for stream in streams:
                        if "parked" in end:
                            await head_of(stream)
                        else:
                            will_reset(stream)
                if "parked" in end:
                    await until(lambda: server.lot.parked == CLIENTS)
                if "peer" not in end:
                    for stream in streams:
                        await rest(stream)
            await until(lambda: server.counters.closed == CLIENTS)
            assert len(server.lot) == 0
            await trio.sleep(30)  # the sweep's lease goes by itself


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", ["its peer goes", "it is reaped", "its handler ends", "its handler is cut"])
async def test_a_connection_of_a_parking_lot_leaves_no_circle(
    clock: MockClock, certificate, tls: bool, end: str
) -> None:
    async def handler(stream) -> None:
        async for data in stream:
            await stream.send_all(data)
            if "handler ends" in end:
                return
            if "cut" in end:
                await trio.sleep_forever()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listening = socket.socket(fileno=socket.dup(listener.socket.fileno()))
    async with (
        listener,
        open_reaper(tick=1.0) as r,
        r.parking_lot(handler, idle=5, tls=context) as lot,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lot.accept, listening)
        with no_circles(*KINDS):
            async with clients(listener.socket.getsockname()[:2], certificate if tls else None) as streams:
                for stream in streams:
                    await stream.send_all(b"hello")
                    assert await stream.receive_some() == b"hello"
                if end != "its peer goes":
                    for stream in streams:
                        await rest(stream)
            await until(lambda: not len(lot))
            await trio.sleep(30)
        nursery.cancel_scope.cancel()
