"""Guards at sockets of which the kernel does not say when bytes moved: UNIX sockets and
datagrams. Asyncio and uvloop.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import reaper.asyncio
from reaper.asyncio import AsyncioReaper, guards
from reaper.asyncio.guards import OnTransport, guard_server
from reaper.config import ReaperConfig
from reaper.policy import Phase
from tests.helpers.echo import Echo, Resting

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

IDLE = 0.5


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def place() -> Iterator[str]:
    """Where a UNIX socket may be: its path has to be short."""
    with tempfile.TemporaryDirectory(prefix="reaper-test-") as folder:
        yield str(Path(folder) / "socket")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged, but for the stalls of this machine."""
    guards._say_untimed.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records if not hasattr(record, "lag")]


class Watched(Echo, reaper.asyncio.Protocol):
    idle = IDLE


@asynccontextmanager
async def echoed(
    place: str, config: ReaperConfig, protocol: Callable[[], Any], carrier: type[OnTransport]
) -> AsyncIterator[tuple[AsyncioReaper, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The reaper and a client of a server at *place* that guards *protocol*."""
    loop = asyncio.get_running_loop()
    async with reaper.asyncio.open_reaper(config, tick=0.1) as r:
        guarded = guard_server(protocol, carrier, lambda: r)
        server = await loop.create_unix_server(guarded, place)
        reader, writer = await asyncio.open_unix_connection(place)
        yield r, reader, writer
        writer.close()
        server.close()


async def test_guard_leaves_a_unix_socket_alone_and_says_so_once(
    place: str, said: Callable[[], list[str]]
) -> None:
    loop = asyncio.get_running_loop()
    async with reaper.asyncio.open_reaper(tick=0.1) as r:
        server = await loop.create_unix_server(reaper.asyncio.guard(Echo, IDLE, reaper=r), place)
        readers = [await asyncio.open_unix_connection(place) for _ in range(2)]
        await asyncio.sleep(3 * IDLE)
        for reader, writer in readers:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writer.close()
        assert r.statistics().reasons == {}
        server.close()
    [text] = said()
    assert text.startswith("guard: connections that are not TCP's are left alone")


async def test_a_protocol_of_ours_closes_who_is_silent_at_a_unix_socket(place: str) -> None:
    loop = asyncio.get_running_loop()
    async with reaper.asyncio.open_reaper(tick=0.1) as r:

        def watched() -> Watched:
            made = Watched()
            made.reaper = r
            return made

        server = await loop.create_unix_server(watched, place)
        (speaks, writer), (silent, other) = [
            await asyncio.open_unix_connection(place) for _ in range(2)
        ]
        for _ in range(6):
            await asyncio.sleep(IDLE / 3)
            writer.write(b"x")
            assert await speaks.readexactly(1) == b"x"
        assert await silent.read() == b""
        for each in (writer, other):
            each.close()
        server.close()


async def test_guard_leaves_a_datagram_endpoint_alone_and_says_so(
    said: Callable[[], list[str]],
) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()

    class Hears(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, peer: Any) -> None:
            came.put_nowait(data)

    loop = asyncio.get_running_loop()
    async with reaper.asyncio.open_reaper(tick=0.1) as r:
        transport, _ = await loop.create_datagram_endpoint(
            reaper.asyncio.guard(Hears, IDLE, reaper=r), local_addr=("127.0.0.1", 0)
        )
        await asyncio.sleep(3 * IDLE)
        assert len(r) == 0
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            client.sendto(b"x", transport.get_extra_info("sockname"))
        assert await came.get() == b"x"
        transport.close()
    assert said() == ["guard: a datagram endpoint has no connections, and is left alone"]


LIMITS = ReaperConfig.load(
    environ={},
    overrides={"timeouts.first_byte": "1h", "timeouts.keep_alive": f"{IDLE}s"},
)


async def test_a_rest_begins_when_it_is_seen_and_no_byte_is_missed(place: str) -> None:
    loop = asyncio.get_running_loop()
    async with echoed(place, LIMITS, Echo, Resting) as (r, reader, writer):
        for _ in range(8):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            await asyncio.sleep(IDLE / 2)
        writer.write(b"x")
        began = loop.time()
        assert await reader.read() == b"x"
        assert loop.time() - began >= IDLE
        assert r.statistics().reasons == {"keep_alive": 1}


async def test_bytes_that_another_protocol_gets_are_not_taken_for_silence(place: str) -> None:
    loop = asyncio.get_running_loop()

    class Turns(Echo):
        """Another protocol has its connection a while after its first byte."""

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            other = Echo()
            other.transport = self.transport
            loop.call_later(IDLE / 2, self.transport.set_protocol, other)

    async with echoed(place, LIMITS, Turns, Resting) as (_, reader, writer):
        for _ in range(10):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            await asyncio.sleep(0.6 * IDLE)


@pytest.mark.parametrize("takes", [0.0, 0.3])
async def test_a_rest_is_seen_soon_after_an_answer_and_then_not_looked_at(
    place: str, takes: float
) -> None:
    looks = itertools.count()

    class Works(Echo):
        works = False

        def data_received(self, data: bytes) -> None:
            self.works = True
            loop.call_later(takes, self.answer, data)

        def answer(self, data: bytes) -> None:
            self.works = False
            self.transport.write(data)

    class Counted(Resting):
        def phase(self) -> Phase:
            next(looks)
            return Phase.IN_FLIGHT if self.protocol.works else super().phase()

    given = {"timeouts.first_byte": "2s", "timeouts.keep_alive": "2s"}
    config = ReaperConfig.load(environ={}, overrides=given)
    loop = asyncio.get_running_loop()
    async with echoed(place, config, Works, Counted) as (r, reader, writer):
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        answered = r.driver.now()
        assert await reader.read() == b""
        assert 2 <= r.driver.now() - answered < 3  # without what the loop stood still
        assert next(looks) < 20
