"""A silent connection of a guarded uvicorn costs nothing of uvicorn's: its protocol
comes with the first byte, goes when the connection has rested between two requests, and
comes back with the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pyarrow import parquet

import reaper.uvicorn
from reaper.asyncio.at_rest import Allocator
from reaper.config import ReaperConfig
from reaper.core.lease import Lease
from reaper.core.slices import AT_ONCE
from reaper.journal import Journal
from reaper.servers.uvicorn import shared
from reaper.servers.uvicorn.base import Age, Waiting
from reaper.servers.uvicorn.idle import IdleProtocol
from reaper.servers.uvicorn.shared import Shared
from tests.helpers.streams import no_circles

PATIENCE = 30.0
REQUEST = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["HttpTools", "H11"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "REST_AFTER", 0.2)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/slow":
        await asyncio.sleep(0.8)
    body = bytes(7_000_000) if scope["path"] == "/big" else b"hello"
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Served:
    """A server in this process, and what it knows."""

    def __init__(self, server: uvicorn.Server, kind: type) -> None:
        self.server, self.kind = server, kind

    @property
    def connections(self) -> list[Any]:
        return list(self.server.server_state.connections)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = len(self.connections)
        host, port = self.server.servers[0].sockets[0].getsockname()
        made = await asyncio.open_connection(host, port)
        await until(lambda: len(self.connections) > before)
        return made

    @property
    def shared(self) -> Shared:
        return shared.shared_by(self.server.config)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: bytes = b"/"
) -> bytes:
    writer.write(REQUEST.replace(b"/", path, 1))
    async with asyncio.timeout(PATIENCE):
        return await reader.readuntil(b"hello")


async def ended(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await reader.read()


@contextlib.asynccontextmanager
async def serving(
    protocol: str,
    journal: Journal | None = None,
    uvicorns: dict[str, Any] | None = None,
    **timeouts: Any,
) -> AsyncIterator[Served]:
    """uvicorn with the guarded *protocol*, until the end of the block; *uvicorns* are
    its own settings. A full buffer hides no reader for long.
    """
    given = {f"timeouts.{name}": value for name, value in timeouts.items()}
    given["limits.min_out_rate"] = "1000000"
    settings = ReaperConfig.load(environ={}, overrides={"reaper.tick": "100ms", **given})
    kind = getattr(reaper.uvicorn, protocol).configured(settings, journal)
    own: dict[str, Any] = {
        "lifespan": "off",
        "log_level": "error",
        "ws": "none",
        **(uvicorns or {}),
    }
    config = uvicorn.Config(hello, port=0, http=kind, **own)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield Served(server, kind)
    except BaseException:
        server.force_exit = True  # the clients of a test that failed may still be there
        raise
    finally:
        server.should_exit = True
        await task


async def test_half_a_request_that_came_with_the_one_before_has_headers_and_no_more(
    protocol: str,
) -> None:
    async with serving(protocol, keep_alive="1h", headers="1s") as served:
        reader, writer = await served.connect()
        writer.write(REQUEST + REQUEST[:-2])
        assert b"408" in await ended(reader)
        writer.close()


@pytest.mark.parametrize(
    "anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
async def test_over_tls_an_answer_that_is_not_taken_has_write_and_not_keep_alive(
    protocol: str, certificate: tuple[str, str]
) -> None:
    """The TLS of either loop hands the whole answer on at once, and pauses nobody."""
    trust = ssl.create_default_context(cafile=certificate[0])
    files = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    async with serving(protocol, uvicorns=files, keep_alive="1h", write="200ms") as served:
        address = served.server.servers[0].sockets[0].getsockname()

        def asks() -> ssl.SSLSocket:
            plain = socket.create_connection(address, PATIENCE)
            client = trust.wrap_socket(plain, server_hostname="127.0.0.1")
            client.sendall(REQUEST.replace(b"/", b"/big", 1))
            return client

        with await asyncio.to_thread(asks):
            await until(lambda: not served.connections)


async def rests(served: Served) -> None:
    await until(lambda: [type(one) for one in served.connections] == [IdleProtocol])


async def test_after_a_burst_the_allocator_is_told_once_and_not_for_a_few(protocol: str) -> None:
    async with serving(protocol) as served:
        told: list[int] = []
        served.shared.allocator = Allocator(lambda: told.append(1), worth=3)
        served.shared.rest_after = 0.2
        clients = [await served.connect() for _ in range(8)]
        for some, expected in (2, 0), (5, 1), (8, 1):  # the last time comes too soon
            for client in clients[:some]:
                await ask(*client)
            await until(lambda: {type(one) for one in served.connections} == {IdleProtocol})
            await asyncio.sleep(3 * served.shared.rest_after)
            assert len(told) == expected
        for _, writer in clients:
            writer.close()


async def test_a_crowd_that_falls_silent_is_looked_at_a_slice_in_a_pass(protocol: str) -> None:
    """All in one pass held the loop for 10 us a client: 42 to 100 ms with a crowd."""
    loop, looks = asyncio.get_running_loop(), [0]

    class Idler:
        def rests(self) -> bool:
            looks[-1] += 1
            return True

    def count() -> None:
        looks.append(0)
        loop.call_soon(count)

    async with serving(protocol) as served:
        served.shared.rest_after = 0.05
        for _ in range(3 * AT_ONCE):
            served.shared.note_idle(Idler())
        count()
        await until(lambda: sum(looks) == 3 * AT_ONCE)
        assert max(looks) == AT_ONCE


@pytest.mark.parametrize(
    "anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
async def test_uvicorns_protocol_is_there_while_something_moves_and_at_no_other_time(
    protocol: str,
) -> None:
    async with serving(protocol) as served:
        reader, writer = await served.connect()
        assert [type(one) for one in served.connections] == [IdleProtocol]
        for _ in range(3):
            assert b"200 OK" in await ask(reader, writer)
            assert [type(one) for one in served.connections] == [served.kind]
            await rests(served)
        assert len(served.shared.driver.core) == 1
        writer.close()
        await until(lambda: not served.connections)
        assert len(served.shared.driver.core) == 0


CLOSES = {
    "its peer goes": ["rests", "awake", "has asked nothing", "half a request"],
    "it is reaped": ["rests", "awake", "has asked nothing", "half a request"],
    "it grows old": ["rests", "awake"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "state"), [(end, state) for end, states in CLOSES.items() for state in states]
)
async def test_a_connection_that_has_ended_leaves_no_circle(
    protocol: str, end: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state == "awake":
        monkeypatch.setattr(shared, "REST_AFTER", 0.6)
    soon = dict.fromkeys(("keep_alive", "first_byte", "headers"), "400ms")
    timeouts: dict[str, dict[str, Any]] = {
        "its peer goes": {"max_age": "1h"},
        "it is reaped": soon,
        "it grows old": {"max_age": "600ms"},
    }
    async with serving(protocol, **timeouts[end]) as served:
        with no_circles(Lease, Age, Waiting, IdleProtocol, served.kind):
            streams = [await served.connect() for _ in range(3)]
            for reader, writer in streams:
                if state in ("rests", "awake"):
                    await ask(reader, writer)
                elif state == "half a request":
                    writer.write(REQUEST[:10])
            if state == "half a request":
                await until(
                    lambda: all(isinstance(one.waiting, Waiting) for one in served.connections)
                )
            if state == "rests" and end != "it is reaped":
                await until(lambda: {type(one) for one in served.connections} == {IdleProtocol})
            for reader, writer in streams:
                if end != "its peer goes":
                    await ended(reader)
                writer.close()
            await until(lambda: not served.connections)
            assert len(served.shared.driver.core) == 0
            await asyncio.sleep(
                1.0
            )  # by then no timer holds one, and its slot of the wheel has come


async def test_a_rest_is_no_activity(protocol: str) -> None:
    async with serving(protocol, keep_alive="20s", max_age="1h") as served:
        reader, writer = await served.connect()
        explain = served.shared.driver.core.explain
        (quiet,) = served.connections
        age = quiet._age
        await ask(reader, writer)
        (awake,) = served.connections
        assert (awake._age, age.whose) == (age, awake)
        await until(lambda: explain(awake.lease.uid).active_until is not None)
        before = explain(awake)
        await rests(served)
        (quiet,) = served.connections
        after = explain(quiet)
        assert (after.active_until, after.due) == (before.active_until, before.due)
        assert (after.timeout, after.reason) == (20.0, "keep_alive")
        assert (quiet._age, age.whose, age.lease.alive) == (age, quiet, True)
        writer.close()


async def test_neither_a_request_in_flight_nor_half_a_request_ever_rests(protocol: str) -> None:
    async with serving(protocol) as served:
        reader, writer = await served.connect()
        await ask(reader, writer)
        (awake,) = served.connections
        assert b"200 OK" in await ask(reader, writer, b"/slow")
        assert served.connections == [awake]
        writer.write(REQUEST[:10])
        (awake,) = served.connections
        await until(lambda: awake.waiting is not None)
        await asyncio.sleep(0.6)
        assert served.connections == [awake]
        writer.write(REQUEST[10:])
        async with asyncio.timeout(PATIENCE):
            assert b"200 OK" in await reader.readuntil(b"hello")
        await rests(served)
        writer.close()


async def test_a_stop_answers_the_request_that_is_on_its_way_to_a_quiet_connection(
    protocol: str,
) -> None:
    async with serving(protocol, drain_idle="10s") as served:
        reader, writer = await served.connect()
        await ask(reader, writer)
        await rests(served)
        served.server.should_exit = True
        await until(lambda: [type(one) for one in served.connections] == [served.kind])
        said = await ask(reader, writer)
        assert b"connection: close" in said.lower()
        writer.close()


@pytest.mark.parametrize("end", ["close_peer", "reap"])
async def test_in_the_journal_a_connection_is_one_life_however_often_it_rested(
    protocol: str, end: str, tmp_path: Path
) -> None:
    timeouts: dict[str, Any] = {"max_age": "300ms", "drain_idle": "100ms"} if end == "reap" else {}
    with Journal(tmp_path, tick=0.1) as journal:
        async with serving(protocol, journal, **timeouts) as served:
            reader, writer = await served.connect()
            await ask(reader, writer)
            if end == "close_peer":
                await rests(served)
                await ask(reader, writer)
                await rests(served)
            else:
                assert await ended(reader) == b""
            writer.close()
            await until(lambda: not served.connections)
    rows = [
        row
        for file in tmp_path.glob("**/*.parquet")
        for row in parquet.read_table(file).to_pylist()
    ]
    opened, closed = [
        row for row in rows if row["kind"] in ("open", "close_peer", "close_app", "reap")
    ]
    assert (opened["kind"], closed["kind"]) == ("open", end)
    if end == "reap":
        assert (closed["reason"], closed["timeout_ms"]) == ("max_age", None)
        assert closed["due_ns"] <= closed["t"]
