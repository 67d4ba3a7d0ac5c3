"""A server of asyncio's streams whose connections are watched: real sockets, one
process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import reaper.asyncio
from reaper.asyncio import loop_factory
from reaper.asyncio.guards import guard_server
from reaper.asyncio.serve import WatchedReader
from reaper.config import ReaperConfig
from tests.asyncio.test_guards import echo, eventually, guards_of, serving
from tests.helpers.echo import Echo, Resting
from tests.helpers.loops import Asyncio
from tests.helpers.program_trials import reset

pytestmark = pytest.mark.anyio

HOUR = 3600.0
READS: dict[str, Callable[[asyncio.StreamReader], Any]] = {
    "read": lambda reader: reader.read(10),
    "readexactly": lambda reader: reader.readexactly(10),
    "readuntil": lambda reader: reader.readuntil(b"."),
    "readline": lambda reader: reader.readline(),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("how", READS)
async def test_a_drain_ends_at_once_who_waits_for_bytes_however_it_reads(how: str) -> None:
    waits = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waits.set()
        await READS[how](reader)

    async with serving(handler, idle=HOUR) as (r, address):
        _, writer = await asyncio.open_connection(*address)
        await waits.wait()
        async with asyncio.timeout(60):
            await r.drain(HOUR)
        assert r.statistics().reasons == {"drain": 1}
        writer.close()


async def test_a_handler_that_does_not_read_learns_that_its_peer_has_reset() -> None:
    readers: list[WatchedReader] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, WatchedReader)
        readers.append(reader)
        await asyncio.Event().wait()

    async with serving(handler, idle=HOUR) as (r, address):
        client = await asyncio.to_thread(socket.create_connection, address)
        await eventually(lambda: readers)
        connection = readers[0].connection
        assert connection is not None
        assert not connection.hung_up
        reset(client)
        await eventually(lambda: connection.hung_up)
        await r.drain(0.01)


async def test_a_plain_function_leaves_its_connection_open_until_its_writer_is_closed() -> None:
    writers: list[asyncio.StreamWriter] = []
    async with reaper.asyncio.open_reaper(tick=0.1) as r:
        server = await reaper.asyncio.start_server(
            lambda reader, writer: writers.append(writer), "127.0.0.1", 0, idle=HOUR, reaper=r
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await eventually(lambda: writers)
        await asyncio.sleep(0)
        assert len(r) == 1
        writers[0].write(b"later")
        writers[0].close()
        assert await reader.read() == b"later"
        await eventually(lambda: len(r) == 0)
        writer.close()
        server.close()


@asynccontextmanager
async def handing_over(kind: str, given: list[Any], idle: float) -> AsyncIterator[tuple[Any, Any]]:
    """The reaper and the address of a server whose handler, a function of *kind*,
    leaves the streams to *given*, and returns.
    """

    async def coroutine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        given.append((reader, writer))

    def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        given.append((reader, writer))

    handler = coroutine if kind == "coroutine" else plain
    async with reaper.asyncio.open_reaper(tick=0.5) as r:
        server = await reaper.asyncio.start_server(handler, "127.0.0.1", 0, idle=idle, reaper=r)
        async with server:
            yield r, server.sockets[0].getsockname()


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_a_connection_whose_handler_gave_its_streams_to_others_is_closed_when_silent(
    kind: str,
) -> None:
    given: list[Any] = []

    async def body() -> None:
        async with handing_over(kind, given, 10) as (r, address):
            reader, writer = await asyncio.open_connection(*address)
            await eventually(lambda: given)
            tasks = len(asyncio.all_tasks())
            loop, (theirs, its) = asyncio.get_running_loop(), given.pop()
            for _ in range(3):
                await asyncio.sleep(8)
                writer.write(b"x")
                assert await theirs.read(9) == b"x"
            began = loop.time()
            assert await reader.read() == b""  # its own close, and nobody else's
            assert 10 <= loop.time() - began <= 10 + r.core.tick
            assert await theirs.read() == b""
            assert len(asyncio.all_tasks()) == tasks
            assert r.statistics().reasons == {"idle": 1}
            assert its.is_closing()  # one that nobody holds closes itself on 3.14
            writer.close()

    Asyncio().run(body)


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
@pytest.mark.parametrize("end", ["its peer resets it", "its writer is closed"])
def test_a_connection_that_outlives_its_handler_is_forgotten_when_it_ends(
    kind: str, end: str
) -> None:
    given: list[Any] = []
    errors: list[Any] = []

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with handing_over(kind, given, HOUR) as (r, address):
            client = await asyncio.to_thread(socket.create_connection, address)
            await eventually(lambda: given)
            assert len(r) == 1
            _, writer = given.pop()
            if end == "its peer resets it":
                reset(client)
            else:
                writer.close()
            await eventually(lambda: len(r) == 0)
            client.close()
            assert not r.statistics().reasons

    Asyncio().run(body)
    assert errors == []


async def test_one_connection_too_many_is_closed_and_its_handler_does_not_begin() -> None:
    config = ReaperConfig.load(environ={}, overrides={"limits.max_connections": 1})
    async with serving(echo, config, HOUR) as (r, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        refused, its = await asyncio.open_connection(*address)
        async with asyncio.timeout(60):
            assert await refused.read() == b""
        assert len(r) == 1
        its.close()
        writer.close()


def test_a_loop_that_guards_closes_what_is_silent_on_every_server_of_it() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        began = loop.time()
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert loop.time() - began >= 0.3
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=loop_factory(0.3, base=asyncio.SelectorEventLoop)) as runner:
        runner.run(body())


async def test_under_pressure_a_guarded_connection_is_as_silent_as_its_kernel_says() -> None:
    """Its lease is touched by each look, so that says nothing of the client."""
    settings = {"timeouts.keep_alive": HOUR}

    def factory(r: Any) -> Callable[[], Any]:
        return guard_server(Echo, Resting, lambda: r)

    config = ReaperConfig.load(environ={}, overrides=settings)
    async with serving(factory, config) as (r, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await asyncio.sleep(0.4)
        (guard,) = guards_of(r)
        guard.lease.touch()
        silent, limit = guard.silence(r.core.explain(guard.uid), r.driver.now())
        assert limit == HOUR
        assert silent >= 0.3
        transport = guard.wire.whose
        assert transport is not None
        transport.abort()
        silent, _ = guard.silence(r.core.explain(guard.uid), r.driver.now())
        assert silent < 0.3  # there is only the lease to ask
        writer.close()


async def test_a_client_that_nobody_can_tell_that_its_connection_is_old_may_rest_first() -> None:
    ages = {"timeouts.max_age": 0.2, "timeouts.drain_idle": 0.4, "reaper.tick": 0.1}
    settings = {"timeouts.keep_alive": HOUR, **ages}

    def factory(r: Any) -> Callable[[], Any]:
        return guard_server(Echo, Resting, lambda: r)

    config = ReaperConfig.load(environ={}, overrides=settings)
    async with serving(factory, config) as (r, address):
        reader, writer = await asyncio.open_connection(*address)
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 1.2:
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            await asyncio.sleep(0.1)
        assert await reader.read() == b""
        assert r.statistics().reasons == {"max_age": 1}
        writer.close()
