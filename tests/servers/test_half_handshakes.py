"""At a stop, who has half a handshake owes nothing and is owed nothing: no limit and no
drain of ours keeps the server for it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.asyncio.server import ServerConnection, serve

import reaper.asyncio
import reaper.trio
import reaper.websockets
from reaper.config import ReaperConfig
from reaper.driver.served import handshake_grace
from scripts.guests.columns import COLUMNS, LIMITS, PHASES, Column
from scripts.guests.trial import pair
from scripts.tools import certificate
from tests.helpers.server_process import PATIENCE, wait_until

pytestmark = pytest.mark.slow

HALF = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a ClientHello."""
CLIENTS = 30
NEVER = f"{10 * PATIENCE:g}s"
"""Whoever waits for that has not ended when the test gives up."""
SETTINGS = (
    LIMITS
    | {f"REAPER_TIMEOUTS_{phase}": NEVER for phase in PHASES}
    | {"REAPER_TIMEOUTS_DRAIN": NEVER, "REAPER_TIMEOUTS_DRAIN_IDLE": NEVER}
)
GRACE = f" --graceful-timeout {10 * PATIENCE:g}"
"""gunicorn's own, after which it kills a worker; stock threads wait for all of it."""


def with_grace(column: Column) -> Column:
    more = GRACE if column.name.startswith("gunicorn") else ""
    return replace(column, stock=column.stock + more, guarded=column.guarded + more)


GUESTS = [name for name, each in COLUMNS.items() if "tls" in each.speaks and not each.unguarded]
"""Those over TLS; the reference has no server beside it that others wrote."""


def come(address: tuple[str, int], stack: ExitStack) -> None:
    """Connect `CLIENTS` that say half a ClientHello, or nothing, until *stack* ends."""
    for number in range(CLIENTS):
        client = stack.enter_context(socket.create_connection(address))
        if number % 2:
            client.sendall(HALF)


@pytest.mark.parametrize("name", GUESTS)
def test_clients_that_never_finish_their_handshake_hold_no_stop(name: str, tmp_path: Path) -> None:
    with pair(with_grace(COLUMNS[name]), tmp_path, SETTINGS) as (_, server), ExitStack() as stack:
        come(server.address, stack)
        time.sleep(0.5)  # it has accepted them
        server.stop()
        wait_until(lambda: server.status is not None)
        assert "Traceback" not in server.said()


# ---- in a program of one's own


def tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(folder))
    return context


async def never_asked(*_: object) -> None:
    raise AssertionError("nobody has shaken hands")


@asynccontextmanager
async def start_server(context: ssl.SSLContext) -> AsyncIterator[tuple[str, int]]:
    limits = ReaperConfig.load(overrides={"timeouts.handshake": NEVER})
    async with reaper.asyncio.open_reaper(limits, idle=10 * PATIENCE) as watcher:
        server = await reaper.asyncio.start_server(
            never_asked, "127.0.0.1", 0, ssl=context, reaper=watcher
        )
        yield server.sockets[0].getsockname()
        server.close()
        await watcher.drain(10 * PATIENCE)
        await server.wait_closed()


@asynccontextmanager
async def websockets(context: ssl.SSLContext) -> AsyncIterator[tuple[str, int]]:
    async def talk(connection: ServerConnection) -> None:
        await never_asked()

    made = reaper.websockets.connection(idle=10 * PATIENCE)
    async with serve(talk, "127.0.0.1", 0, ssl=context, create_connection=made) as server:
        yield next(iter(server.sockets)).getsockname()


@pytest.mark.parametrize("served", [start_server, websockets])
def test_a_program_that_leaves_its_asyncio_server_waits_for_no_handshake(
    served: Callable[[ssl.SSLContext], AbstractAsyncContextManager[tuple[str, int]]],
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            async with asyncio.timeout(PATIENCE), served(tls(tmp_path)) as address:
                come(address, stack)
                await asyncio.sleep(0.2)

    asyncio.run(main())


# ---- when asyncio's server is closed, whatever its version waits for
async def hello(raw: socket.socket) -> bytes:
    """What the client of *raw*, whose certificate is nobody's, is answered."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(sock=raw, ssl=trust, server_hostname="localhost")
    try:
        writer.write(b"hello")
        return await reader.read(5)
    finally:
        writer.transport.abort()


async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(5))
    writer.close()


def by_start_server(limits: ReaperConfig, context: ssl.SSLContext) -> Any:
    return reaper.asyncio.start_server(echoes, "127.0.0.1", 0, ssl=context, config=limits)


async def by_the_loop(limits: ReaperConfig, context: ssl.SSLContext) -> Any:
    return await asyncio.start_server(echoes, "127.0.0.1", 0, ssl=context)


@pytest.mark.parametrize("served", [by_start_server, by_the_loop])
def test_a_closed_server_ends_its_handshakes_soon_and_serves_who_is_faster(
    served: Callable[[ReaperConfig, ssl.SSLContext], Any], tmp_path: Path
) -> None:
    limits = ReaperConfig.load(overrides={"timeouts.handshake": NEVER})
    grace = handshake_grace(limits.timeouts)

    async def main() -> None:
        server = await served(limits, tls(tmp_path))
        loop, address = asyncio.get_running_loop(), server.sockets[0].getsockname()
        with ExitStack() as stack:
            slow, fast = [stack.enter_context(socket.create_connection(address)) for _ in range(2)]
            slow.sendall(HALF)
            await asyncio.sleep(0.2)  # both are accepted
            closed_at = loop.time()
            server.close()
            assert "close" not in vars(server), "each would hold the other"
            assert await hello(fast) == b"hello"
            slow.setblocking(False)
            async with asyncio.timeout(PATIENCE):
                assert await loop.sock_recv(slow, 1) == b""
                await server.wait_closed()
            assert loop.time() - closed_at >= grace

    factory = reaper.asyncio.loop_factory(base=asyncio.SelectorEventLoop, config=limits)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


def test_a_closed_server_whose_reaper_has_stopped_ends_its_handshakes_at_once(
    tmp_path: Path,
) -> None:
    limits = ReaperConfig.load(overrides={"timeouts.handshake": NEVER})

    async def main() -> None:
        async with reaper.asyncio.open_reaper(limits) as watcher:
            server = await reaper.asyncio.start_server(
                never_asked, "127.0.0.1", 0, ssl=tls(tmp_path), reaper=watcher
            )
            client = socket.create_connection(server.sockets[0].getsockname())
            client.setblocking(False)
            await asyncio.sleep(0.2)  # it is accepted
        with client:
            server.close()
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""

    asyncio.run(main())


# ---- in a program of trio's
def by_hand(context: ssl.SSLContext) -> Callable[..., Any]:
    """`serve_tcp`, whose handler shakes hands, as programs of trio's do."""

    async def shake(stream: Any) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()

    return partial(reaper.trio.serve_tcp, shake, idle=10 * PATIENCE)


def parked(context: ssl.SSLContext) -> Callable[..., Any]:
    async def hear(stream: Any) -> None:
        await stream.receive_some(1)

    return partial(reaper.trio.serve_parked, hear, idle=10 * PATIENCE, tls=context)


@pytest.mark.parametrize("served", [by_hand, parked])
def test_a_program_that_leaves_its_trio_server_waits_for_no_handshake(
    served: Callable[[ssl.SSLContext], Callable[..., Any]], tmp_path: Path
) -> None:
    async def main() -> None:
        with ExitStack() as stack, trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                run = partial(served(tls(tmp_path)), 0, host="127.0.0.1")
                (listener,) = await nursery.start(run)
                come(listener.socket.getsockname(), stack)
                await trio.sleep(0.2)
                nursery.cancel_scope.cancel()

    trio.run(main)
