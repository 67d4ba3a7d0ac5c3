"""reaper.trio on real sockets: a loop that stalls, the final check, an unchanged handler."""

from __future__ import annotations

import socket
import time
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing
from streams import check_stream

import reaper.trio
from reaper.trio import open_reaper
from reaper.trio.streams import WatchedSocket

pytestmark = [pytest.mark.trio, pytest.mark.slow]

# Long enough for a machine that is busy with something else: a test whose own client stalls that long proves nothing.
IDLE, TICK = 2.0, 0.2


async def echo(stream) -> None:
    """A handler that knows nothing of the reaper."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


async def dial(listeners) -> socket.socket:
    """A plain blocking client: it works while our loop does not."""
    client = socket.socket()
    client.setblocking(False)
    with suppress(BlockingIOError):
        client.connect(listeners[0].socket.getsockname())
    await trio.lowlevel.wait_writable(client)
    return client


def closed(client: socket.socket) -> bool:
    """Whether the server has closed; reads whatever came."""
    try:
        while data := client.recv(4096):
            assert data
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


async def until(condition) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.02)


@asynccontextmanager
async def serving(handler, **options):
    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, handler, 0, host="127.0.0.1", idle=IDLE, tick=TICK, **options)
        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


async def test_what_came_while_the_handler_did_something_else_is_read_at_once():

    async def slow(stream) -> None:
        while data := await stream.receive_some():
            await trio.sleep(IDLE / 10)
            await stream.send_all(data)

    async with serving(slow) as listeners:
        with await dial(listeners) as client:
            for word in (b"one", b"two", b"end"):
                client.send(word)
                await trio.sleep(IDLE / 50)
            client.shutdown(socket.SHUT_WR)
            heard = b""
            with trio.fail_after(IDLE):
                while not heard.endswith(b"end"):
                    await trio.lowlevel.wait_readable(client)
                    heard += client.recv(100)
            assert heard == b"onetwoend"


async def test_no_live_connection_is_reaped_after_the_loop_stalled():
    """Data lies in the kernel while the loop is blocked past every timeout: 0 of 200 live ones are closed."""
    async with serving(echo, backlog=512) as listeners:
        live = [await dial(listeners) for _ in range(200)]
        silent = [await dial(listeners) for _ in range(20)]
        for client in live + silent:
            client.send(b"x")
        await trio.sleep(IDLE * 0.7)
        # In the middle of the stall every live peer speaks; the server is blocked until long after all are due.
        stuck_until = time.monotonic() + IDLE + 12 * TICK
        for client in live:
            client.send(b"alive")
        while time.monotonic() < stuck_until:
            time.sleep(0.01)
        await trio.sleep(TICK)
        assert sum(closed(client) for client in live) == 0
        await until(lambda: all(closed(client) for client in silent))
        assert sum(closed(client) for client in live) == 0  # the stall is charged to neither: they keep their distance
        await until(lambda: all(closed(client) for client in live))
        for client in live + silent:
            client.close()


async def test_the_watched_socket_is_a_stream_like_any_other():
    async with open_reaper(tick=TICK) as r:

        def ends() -> tuple[WatchedSocket, WatchedSocket]:
            pair = socket.socketpair()
            for end in pair:
                end.setblocking(False)
            left, right = (WatchedSocket(end, r.watch(end, idle=1000)) for end in pair)
            return left, right

        await check_stream(ends)
        left, right = ends()
        assert left.socket is left.socket
        assert left.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
        left.close()
        left.close()
        with pytest.raises(trio.ClosedResourceError):
            await left.receive_some()
        assert await right.receive_some() == b""
        assert right.hung_up
        right.close()
