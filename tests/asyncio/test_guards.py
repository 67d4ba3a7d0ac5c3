"""Guarded protocols on real sockets, beside streams and the mixin; asyncio and uvloop,
with TLS and without.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import reaper.asyncio
from reaper.asyncio import AsyncioReaper
from reaper.asyncio.guards import guard_server, watch
from reaper.config import ReaperConfig
from reaper.driver.served import Served
from reaper.journal import Journal
from tests.helpers.echo import Echo, Resting

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

IDLE = 0.3
TICK = 0.1


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(scope="module")
def tls(certificate: tuple[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's side and the client's."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context, ssl.create_default_context(cafile=certificate[0])


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
    finally:
        writer.close()
        ENDED.append(writer)


class Noted(Echo):
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        ENDED.append(self)


class Picky(Noted):
    """Whoever derives from it must say more than that."""

    def __init_subclass__(cls, *, name: str) -> None:
        pass


class WatchedEcho(Noted, reaper.asyncio.Protocol):
    idle = IDLE


ENDED: list[object] = []
SERVERS = pytest.mark.parametrize(
    "served", [echo, Noted, WatchedEcho], ids=["streams", "guard", "mixin"]
)


@contextlib.asynccontextmanager
async def serving(
    served: Any,
    config: ReaperConfig | None = None,
    idle: float = IDLE,
    journal: Journal | None = None,
    **options: Any,
) -> AsyncIterator[tuple[AsyncioReaper, Any]]:
    """The reaper and the address of a server.

    *served* is a handler of streams, a `reaper.asyncio.Protocol`, another protocol,
    which is guarded, or what makes a protocol factory for a reaper.
    """
    async with reaper.asyncio.open_reaper(config, tick=TICK, journal=journal) as r:
        if inspect.iscoroutinefunction(served):
            server = await reaper.asyncio.start_server(
                served, "127.0.0.1", 0, idle=idle, reaper=r, **options
            )
        else:
            if not isinstance(served, type):
                factory = served(r)
            elif issubclass(served, reaper.asyncio.Protocol):
                factory, served.reaper = served, r
            else:
                factory = reaper.asyncio.guard(served, idle, reaper=r)
            server = await asyncio.get_running_loop().create_server(
                factory, "127.0.0.1", 0, **options
            )
        with contextlib.closing(server):
            yield r, server.sockets[0].getsockname()


def guards_of(r: AsyncioReaper) -> list[Served]:
    return [one for one in r.driver.connections.values() if isinstance(one, Served)]


async def eventually(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@SERVERS
async def test_where_the_interpreter_has_the_socket_the_kernel_is_asked_by_it(
    served: Any, anyio_backend: tuple[str, dict[str, bool]]
) -> None:
    """uvloop's view of a socket makes an object for each question, so there it is not
    used.
    """
    async with serving(served, idle=60.0) as (r, address):
        with socket.create_connection(address):
            await eventually(lambda: r.driver.connections)
            [connection] = r.driver.connections.values()
            own = connection.own_socket
            assert (own is None) is anyio_backend[1]["use_uvloop"]
            assert own is None or own.fileno() == connection.link
            connection.reap("idle")


@pytest.mark.parametrize("how", ["close", "shut"])
async def test_a_peer_hears_of_its_close_before_the_loop_goes_on(how: str) -> None:
    async with serving(Echo) as (r, address):
        with socket.create_connection(address) as client:
            client.settimeout(10)  # blocks this loop, too
            client.send(b"x")
            await eventually(lambda: guards_of(r))
            [connection] = r.driver.connections.values()
            if how == "close":
                connection.reap("idle")
            else:
                connection.shut()
            while client.recv(1):
                pass


async def test_the_log_names_a_peer_that_is_gone_as_soon_as_its_connection_is_shut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whose address the kernel forgets with the acknowledgement of the end."""

    kept = []  # uvloop frees a transport that reads no more, unless someone holds it

    class Waits(Echo):
        def eof_received(self) -> bool:
            kept.append(self)
            return True

    caplog.set_level("INFO", "reaper")
    async with serving(Waits) as (r, address):
        with socket.create_connection(address) as client:
            client.shutdown(socket.SHUT_WR)
            await eventually(lambda: r.statistics().reasons)
            host, port = client.getsockname()
    [closed] = (record for record in caplog.records if hasattr(record, "reason"))
    assert vars(closed)["peer"] == f"{host}:{port}"


@SERVERS
async def test_silence_counts_from_the_last_byte_or_the_opening_and_is_closed_never_early(
    served: Any,
) -> None:
    async with serving(served) as (r, address):
        opened = time.monotonic()
        silent, writes = await asyncio.open_connection(*address)
        assert await silent.read() == b""
        assert time.monotonic() - opened >= IDLE
        writes.write(b"too late")
        writes.close()
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(6):
            await asyncio.sleep(IDLE / 3)
            last = time.monotonic()
            writer.write(b"x")
            assert await reader.read(1) == b"x"
        assert await reader.read() == b""
        assert time.monotonic() - last >= IDLE
        writer.close()
        assert r.statistics().reasons == {"idle": 2}


@SERVERS
async def test_with_tls_it_is_the_same_and_the_server_hears_of_the_end(
    served: Any, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    ENDED.clear()
    async with serving(served, ssl=tls[0]) as (r, address):
        start = time.monotonic()
        reader, writer = await asyncio.open_connection(*address, ssl=tls[1])
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert time.monotonic() - start >= IDLE
        await eventually(lambda: ENDED and not len(r.core))
        writer.close()


@SERVERS
async def test_bytes_that_wait_in_the_kernel_while_the_loop_is_blocked_are_read_first(
    served: Any,
) -> None:
    """The loop is blocked for longer than the timeout; a client that sent something
    meanwhile is answered.
    """
    async with serving(served) as (_, address):
        loop = asyncio.get_running_loop()
        clients: dict[socket.socket, float] = {}
        fresh: list[socket.socket] = []
        while len(clients) < 30 or not fresh:
            client = socket.create_connection(address)
            client.setblocking(False)
            clients[client] = time.monotonic()
            client.send(b"a")
            assert await loop.sock_recv(client, 1) == b"a"
            # On a slow machine the first may have been closed, as they should be,
            # before the last was served.
            fresh = [client for client, spoke in clients.items() if time.monotonic() - spoke < IDLE]
        for client in fresh:
            client.send(b"b")
        time.sleep(3 * IDLE)
        answers = [await loop.sock_recv(client, 1) for client in fresh]
        assert answers == [b"b"] * len(fresh)
        for client in clients:
            client.close()


class Flood(asyncio.Protocol):
    """Sends far more than the kernel holds, before it is asked."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.write(FLOOD)


class WatchedFlood(Flood, reaper.asyncio.Protocol):
    """The same."""

    idle = IDLE


FLOOD = bytes(30_000_000)


async def test_a_client_that_takes_a_long_response_is_not_idle_for_the_guard() -> None:
    async with serving(Flood) as (_, address):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.connect(address)
            client.setblocking(False)
            start, got = time.monotonic(), 0
            while got < 2_000_000:
                got += len(await asyncio.get_running_loop().sock_recv(client, 100_000))
                await asyncio.sleep(IDLE / 8)
            assert time.monotonic() - start > 2 * IDLE


async def test_the_guard_asks_whether_the_server_is_busy() -> None:
    busy = True
    async with serving(
        lambda r: reaper.asyncio.guard(Echo, IDLE, busy=lambda _: busy, reaper=r)
    ) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        await asyncio.sleep(4 * IDLE)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        busy = False
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("kind", ["streams", "guard"])
async def test_drains_end_who_waits_for_bytes_at_once_and_who_works_when_it_has_answered(
    kind: str,
) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def answer(data: bytes, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await done.wait()
        writer.write(data)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1):
            await answer(data, writer)

    class Slow(Echo):
        def data_received(self, data: bytes) -> None:
            self.answering = asyncio.create_task(answer(data, self.transport))

    async with serving(slow if kind == "streams" else Slow, idle=60) as (r, address):
        idle, works = (
            await asyncio.open_connection(*address),
            await asyncio.open_connection(*address),
        )
        works[1].write(b"x")
        await begun.wait()
        await eventually(lambda: len(r) == 2)
        drains = asyncio.gather(r.drain(600), r.drain(600))
        assert await idle[0].read() == b""
        await eventually(lambda: len(r) == 1)
        done.set()
        await asyncio.wait_for(drains, 60)
        assert await works[0].read() == b"x"
        assert r.statistics().reasons == {"drain": 2}
        for _, writer in (idle, works):
            writer.close()


async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(FLOOD)
    try:
        await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def floods_and_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(FLOOD)
    writer.close()


@pytest.mark.parametrize("served", [floods, floods_and_ends, WatchedFlood, Flood])
async def test_what_a_silent_client_does_not_take_keeps_no_connection_open(served: Any) -> None:
    given = {
        "timeouts.linger": "300ms",
        "timeouts.write": "300ms",
        "limits.min_out_rate": "1000000",
    }
    async with serving(served, ReaperConfig.load(environ={}, overrides=given)) as (_, address):
        with socket.create_connection(address) as client:
            ports = f":{client.getpeername()[1]:04X}", f":{client.getsockname()[1]:04X}"
            await eventually(lambda: has_a_descriptor(*ports))
            await eventually(lambda: not has_a_descriptor(*ports))


def has_a_descriptor(local: str, remote: str) -> bool:
    """Whether a process has one of the connection's end at *local*: the kernel names
    the socket's inode only then.
    """
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            return fields[9] != "0"
    return False


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("closes", ["client", "server"])
@pytest.mark.parametrize(
    "base", [WatchedEcho, Noted, Picky, None], ids=["mixin", "guard", "picky", "streams"]
)
async def test_the_journal_says_at_once_who_has_closed(
    base: type[asyncio.Protocol] | None, closes: str, tmp_path: Path
) -> None:
    ends = {"client": lambda self, data: None, "server": lambda self, data: self.transport.close()}

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1 if closes == "client" else 1)
        writer.close()

    served: Any = handler
    if base is not None:
        more: dict[str, Any] = {"name": "Ends"} if base is Picky else {}
        served = type("Ends", (base,), {"data_received": ends[closes], "idle": 60}, **more)
        served.circle = served  # what the collector would have to find
    with Journal(tmp_path, tick=TICK, clock_ns=reaper.asyncio.journal_clock()) as journal:
        async with serving(served, idle=60, journal=journal) as (r, address):
            _, writer = await asyncio.open_connection(*address)
            await eventually(lambda: len(r) == 1)
            writer.write(b"x")
            if closes == "client":
                writer.close()
            await eventually(lambda: len(r) == 0)
            writer.close()
    kinds = [
        row["kind"]
        for file in tmp_path.glob("**/*.parquet")
        for row in parquet.read_table(file).to_pylist()
    ]
    assert [kind for kind in kinds if kind.startswith("close")] == [
        "close_peer" if closes == "client" else "close_app"
    ]


async def test_a_transport_that_is_closed_and_not_freed_is_forgotten_when_it_is_due() -> None:
    kept: list[Any] = []

    class Kept(Echo):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            watch(kept[0], Resting, transport)
            kept.append(transport)

    def factory(r: AsyncioReaper) -> type[Kept]:
        kept.append(r)
        return Kept

    given = {"timeouts.first_byte": "200ms"}
    config = ReaperConfig.load(environ={}, overrides=given)
    async with serving(factory, config) as (r, address):
        _, writer = await asyncio.open_connection(*address)
        await eventually(lambda: len(r) == 1)
        writer.close()
        await eventually(lambda: len(r) == 0)
        assert r.statistics().reasons == {}


async def test_the_log_says_the_whole_limit_and_not_what_the_last_look_left_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"timeouts.first_byte": "250ms", "timeouts.keep_alive": "600ms"}

    def resting(r: AsyncioReaper) -> Callable[[], Any]:
        return guard_server(Echo, Resting, lambda: r)

    caplog.set_level("INFO", "reaper")
    config = ReaperConfig.load(environ={}, overrides=given)
    async with serving(resting, config) as (r, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)
        assert await reader.read() == b""
        writer.close()
        assert not r.driver.books.seen
    [closed] = (record for record in caplog.records if hasattr(record, "reason"))
    found = vars(closed)
    assert (found["reason"], found["limit"]) == ("keep_alive", 0.6)
    assert found["silence"] >= 0.5  # and not since the last look


async def test_half_a_head_is_counted_from_its_byte_and_not_from_the_look_that_finds_it() -> None:
    given = {"timeouts.first_byte": "500ms", "timeouts.headers": "1h"}

    class Silent(Echo):
        def data_received(self, data: bytes) -> None:
            pass

    def silent(r: AsyncioReaper) -> Callable[[], Any]:
        return guard_server(Silent, Resting, lambda: r)

    config = ReaperConfig.load(environ={}, overrides=given)
    async with serving(silent, config) as (r, address):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"G")
        sent = r.driver.now()
        await eventually(lambda: any("headers" in one._reason() for one in guards_of(r)))
        assert guards_of(r)[0]._since < sent + 0.25
        writer.close()


async def test_deafness_is_counted_from_its_beginning_and_not_from_the_look_that_finds_it() -> None:
    given = {"timeouts.first_byte": "800ms", "timeouts.write": "1h"}
    begun: list[float] = []

    class Answers(Echo):
        def data_received(self, data: bytes) -> None:
            begun.append(r.driver.now())
            self.transport.write(bytes(8_000_000))

    def factory(r: AsyncioReaper) -> Callable[[], Any]:
        return guard_server(Answers, Resting, lambda: r)

    config = ReaperConfig.load(environ={}, overrides=given)
    async with serving(factory, config) as (r, address):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, b"x")
            asked = r.driver.now()
            await eventually(lambda: any("write" in one._reason() for one in guards_of(r)))
            # A stall before the answer is taken for a part of the deafness, and charged
            # to nobody.
            latest = begun[0] + 0.4 + r.driver.clock.stalled
            assert asked <= guards_of(r)[0]._since < latest


async def test_after_an_answer_that_was_taken_slowly_the_keep_alive_is_in_force() -> None:
    """`write`, an hour here, held in its place."""
    given = {"timeouts.keep_alive": "400ms", "timeouts.write": "1h"}

    class Answers(Echo):
        def data_received(self, data: bytes) -> None:
            self.transport.write(bytes(8_000_000))

    def factory(r: AsyncioReaper) -> Callable[[], Any]:
        return guard_server(Answers, Resting, lambda: r)

    loop = asyncio.get_running_loop()
    async with serving(factory, ReaperConfig.load(environ={}, overrides=given)) as (r, address):
        with socket.create_connection(address) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, b"x")
            await eventually(lambda: any("write" in one._reason() for one in guards_of(r)))
            while await loop.sock_recv(client, 1_000_000):
                pass
        assert r.statistics().reasons == {"keep_alive": 1}


async def test_who_rests_is_looked_at_once_in_its_own_limit_and_woken_by_a_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Served] = []
    given = {"timeouts.keep_alive": "15m", "timeouts.headers": "200ms"}
    look = Served.look

    def counted(self: Served) -> float | None:
        looks.append(self)
        return look(self)

    monkeypatch.setattr(Served, "look", counted)

    def factory(r: AsyncioReaper) -> Callable[[], Any]:
        return guard_server(Echo, Resting, lambda: r)

    config = ReaperConfig.load(environ={}, overrides=given)
    async with serving(factory, config) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)
        await eventually(lambda: looks)
        await asyncio.sleep(1.0)
        assert len(looks) == 1
        writer.write(b"x")  # it is answered: the guard looks once more
        await reader.readexactly(1)
        await eventually(lambda: len(looks) > 1)
        await asyncio.sleep(0.5)
        assert len(looks) == 2
        writer.close()


def test_the_reaper_of_a_loop_is_one_and_runs() -> None:
    async def body() -> None:
        assert reaper.asyncio.reaper_of() is reaper.asyncio.reaper_of()

    for _ in range(5):
        asyncio.run(body())
    assert len(reaper.asyncio.reaper._OF_LOOPS) < 3  # those of closed loops are forgotten


def test_the_settings_of_a_loop_are_loaded_once() -> None:
    loaded: list[ReaperConfig] = []

    def settings() -> ReaperConfig:
        loaded.append(ReaperConfig.load(environ={}, overrides={"timeouts.idle": 7.0}))
        return loaded[-1]

    async def body() -> None:
        alike = reaper.asyncio.reaper_of(
            config=ReaperConfig.load(environ={}, overrides={"timeouts.idle": 7.0})
        )
        found = [reaper.asyncio.reaper_of(config=settings) for _ in range(3)]
        assert found == [alike] * 3
        known = reaper.asyncio.reaper._OF_LOOPS[asyncio.get_running_loop()]
        assert len(known) == 2  # what was asked for, once each

    for count in (1, 2):
        asyncio.run(body())
        assert len(loaded) == count


@pytest.mark.parametrize("in_flight", [False, True])
async def test_only_what_no_limit_ends_is_looked_at_by_vanished(in_flight: bool) -> None:
    config = ReaperConfig.load(environ={}, overrides={"timeouts.vanished": 3.0})

    def factory(r: AsyncioReaper) -> Any:
        return reaper.asyncio.guard(Echo, idle=IDLE, busy=lambda transport: in_flight, reaper=r)

    async with serving(factory, config) as (r, address):
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            for _ in range(12):  # four times its limit: each time the final check spares it
                writer.write(b"x")
                await reader.readexactly(1)
                await asyncio.sleep(0.1)
            kept, looks = len(r), r.driver.vanished.looks
    assert kept == 1
    assert (looks > 0) is in_flight
