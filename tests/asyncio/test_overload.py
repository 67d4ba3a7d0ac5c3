"""What a client hears from a guarded server on asyncio that has no room for it."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

from reaper.asyncio import AsyncioReaper, open_reaper, overload
from reaper.asyncio.guards import OnTransport, guarded
from reaper.asyncio.overload import BUSY, HEAD_BYTES, TRY_AGAIN_LATER
from reaper.config import ReaperConfig
from reaper.driver.served import Terms
from reaper.policy import Phase
from tests.helpers.server_process import PATIENCE

pytestmark = pytest.mark.anyio

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Busy(OnTransport):
    """A connection of a server that works."""

    def phase(self) -> Phase:
        return Phase.IN_FLIGHT


class Full(NamedTuple):
    """A server that takes one connection, which it has.

    Attributes:
        clients: Ends the clients that were connected when the block ends.
    """

    reaper: AsyncioReaper
    port: int
    clients: AsyncExitStack

    async def client(self, secret: ssl.SSLContext | None = None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=secret)
        self.clients.callback(writer.close)
        return reader, writer

    async def refusing(self, count: int) -> None:
        """Return when *count* clients are being refused."""
        while self.reaper.refusing != count:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def full(
    linger: str = "1h", *, http: bool = True, secret: ssl.SSLContext | None = None
) -> AsyncIterator[Full]:
    settings = {"limits.max_connections": 1, "timeouts.linger": linger, "reaper.tick": "100ms"}
    config = ReaperConfig.load(environ={}, overrides=settings)
    async with asyncio.timeout(PATIENCE), open_reaper(config) as r, AsyncExitStack() as clients:
        made = guarded(asyncio.Protocol, Busy, lambda: r, lambda r: Terms(r, {}, http=http))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(made, "127.0.0.1", 0, ssl=secret)
        clients.callback(server.close)
        one = Full(r, server.sockets[0].getsockname()[1], clients)
        trust = None if secret is None else ssl._create_unverified_context()
        await one.client(trust)
        while not len(r.core):
            await asyncio.sleep(0.01)
        yield one


@pytest.mark.slow
async def test_a_refused_client_that_says_nothing_is_told_so_when_its_time_is_over() -> None:
    async with full(linger="300ms") as server:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, _ = await server.client()
        assert await reader.read() == BUSY
        assert loop.time() - began >= 0.3


async def test_a_refused_request_in_two_pieces_is_answered_when_it_is_whole() -> None:
    async with full() as server:
        reader, writer = await server.client()
        cut = UPGRADE.index(b"dGhl")  # the answer depends on what stands before, and behind
        writer.write(UPGRADE[:cut])
        await server.refusing(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        writer.write(UPGRADE[cut:])
        assert (await reader.read()).endswith(b"\r\n\r\n" + TRY_AGAIN_LATER)


async def test_a_refused_client_whose_head_does_not_end_is_answered() -> None:
    async with full() as server:
        reader, writer = await server.client()
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"x" * HEAD_BYTES)
        assert await reader.read() == BUSY


async def test_a_refused_client_that_goes_on_sending_is_neither_reset_nor_answered_twice() -> None:
    async with full() as server:
        reader, writer = await server.client()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n\r\n")
        heard = await reader.readexactly(len(BUSY))
        for _ in range(10):
            writer.write(b"x" * 100_000 + b"\r\n\r\n")
            await writer.drain()
        await asyncio.sleep(0.1)
        assert (heard, await reader.read()) == (BUSY, b"")
        assert server.reaper.refusing == 1


async def test_who_is_refused_while_too_many_are_is_reset_until_one_of_them_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overload, "REFUSALS", 2)
    async with full() as server:
        _, first = await server.client()
        await server.client()
        await server.refusing(2)
        reader, _ = await server.client()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        first.close()
        await server.refusing(1)
        reader, writer = await server.client()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await reader.read() == BUSY
        assert server.reaper.refused == 4


async def test_over_tls_a_refused_client_is_told_so_and_its_connection_ended(
    certificate: tuple[str, str],
) -> None:
    secret = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secret.load_cert_chain(*certificate)
    async with full(secret=secret) as server:
        reader, writer = await server.client(ssl._create_unverified_context())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        heard = b""
        while not heard.endswith(BUSY):
            heard += await reader.readexactly(1)
        await server.refusing(0)
        assert heard == BUSY


async def test_a_client_of_another_protocol_is_reset_without_a_word() -> None:
    async with full(http=False) as server:
        reader, _ = await server.client()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert server.reaper.refused == 1


async def test_a_server_of_streams_need_not_hold_the_writer_of_a_client_that_is_refused() -> None:
    async with open_reaper(ReaperConfig.load(environ={})) as watcher:

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            overload.refuse(watcher, writer.transport, http=True, writer=writer)

        async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            while not watcher.refusing:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)  # the handler's task is over
            gc.collect()
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                assert await reader.read() == BUSY
            writer.close()
            while watcher.refusing:  # the server has not heard of that yet
                await asyncio.sleep(0.01)
