"""Claims about tasks that wait for bytes by the thousand: few are woken per pass, and nothing else differs."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from streams import SECONDS, bounded, check_stream

import reaper.trio
from reaper.trio import open_reaper
from reaper.trio import readiness as module
from reaper.trio.readiness import READS_PER_PASS, Readiness
from reaper.trio.streams import WatchedSocket

pytestmark = pytest.mark.trio


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """None are left to trio's own waiting."""
    monkeypatch.setattr(module, "FEW", -1)


@asynccontextmanager
async def ends() -> AsyncIterator[object]:
    """A function that makes two connected streams, whose receives wait together with all others of the block."""
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        readiness = Readiness(())
        nursery.start_soon(readiness.run)

        def pair(idle: float = 1000) -> tuple[WatchedSocket, WatchedSocket]:
            both = socket.socketpair()
            for end in both:
                end.setblocking(False)
            left, right = (WatchedSocket(end, r.watch(end, idle=idle), readiness) for end in both)
            return left, right

        yield pair
        nursery.cancel_scope.cancel()


@bounded
async def test_it_is_a_stream_like_any_other() -> None:
    async with ends() as pair:
        await check_stream(pair)


@bounded
async def test_a_receive_that_waits_ends_with_its_bytes_its_close_and_its_cancellation() -> None:
    async with ends() as pair:
        for turn in range(3):  # the descriptors are the same each time
            left, right = pair()
            for text in (b"one", b"two"):
                async with trio.open_nursery() as nursery:
                    got: list[bytes] = []

                    async def receive(left=left, got=got) -> None:
                        got.append(await left.receive_some(2))
                        got.append(await left.receive_some(2))

                    nursery.start_soon(receive)
                    await trio.testing.wait_all_tasks_blocked()
                    with pytest.raises(trio.BusyResourceError):
                        await left.receive_some()
                    await right.send_all(text)
                assert b"".join(got) == text
            with trio.move_on_after(0.01) as scope:
                await left.receive_some()
            assert scope.cancelled_caught
            await right.send_all(b"three")
            assert await left.receive_some() == b"three"
            async with trio.open_nursery() as nursery:

                async def closed(left=left) -> None:
                    with pytest.raises(trio.ClosedResourceError):
                        await left.receive_some()

                nursery.start_soon(closed)
                await trio.testing.wait_all_tasks_blocked()
                (left if turn else right).close()
                if not turn:
                    nursery.cancel_scope.cancel()
            left.close()
            right.close()


@bounded
async def test_a_receive_that_outlives_the_task_that_wakes_it_still_gets_its_bytes() -> None:
    hub = trio.CancelScope()
    readiness = Readiness(())

    async def run() -> None:
        with hub:
            await readiness.run()

    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        stream = WatchedSocket(ours, r.watch(ours, idle=1000), readiness)

        async def hear() -> None:
            for text in (b"before", b"goodbye"):
                assert await stream.receive_some() == text
            stream.close()

        nursery.start_soon(hear)
        await trio.testing.wait_all_tasks_blocked()
        theirs.send(b"before")
        await trio.testing.wait_all_tasks_blocked(0.01)
        hub.cancel()
        await trio.testing.wait_all_tasks_blocked()
        theirs.send(b"goodbye")
    theirs.close()


@bounded
async def test_an_end_of_file_wakes_it() -> None:
    async with ends() as pair:
        left, right = pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            right.close()
        assert left.hung_up
        left.close()


@bounded
async def test_bytes_that_are_not_asked_for_keep_nothing_awake() -> None:
    async with ends() as pair:
        left, right = pair()
        with trio.move_on_after(0.01):
            await left.receive_some()
        await right.send_all(b"unasked")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await left.receive_some() == b"unasked"
        left.close()
        right.close()


@bounded
async def test_a_copy_of_a_closed_descriptor_wakes_nothing() -> None:
    """As a process that was forked meanwhile may have one."""
    readiness = Readiness(())
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.dup():
        with trio.move_on_after(0.01):
            await readiness.wait(ours.fileno(), ours)
        readiness.closing(ours.fileno(), ours)
        ours.close()
        theirs.send(b"too late")
        assert readiness._epoll.poll(0) == []


@bounded
async def test_a_handler_that_leaves_the_closing_to_the_server_is_in_no_later_ones_way() -> None:
    descriptors: list[int] = []

    async def once(stream: trio.abc.Stream) -> None:
        descriptors.append(stream.fileno())
        await stream.send_all(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, once, 0, host="127.0.0.1", idle=30)
        (listener,) = await nursery.start(serve)
        for _ in range(3):
            async with await trio.open_tcp_stream(*listener.socket.getsockname()) as client:
                await trio.testing.wait_all_tasks_blocked(0.01)
                await client.send_all(b"hello")
                assert await client.receive_some() == b"hello"
                assert await client.receive_some() == b""
        assert len(set(descriptors)) == 1
        nursery.cancel_scope.cancel()


@bounded
async def test_a_socket_that_was_closed_behind_the_back_of_its_stream_is_in_no_later_ones_way() -> None:
    """As by a handler that closes `stream.socket`, and goes on; the number is the next connection's."""
    async with ends() as pair, trio.open_nursery() as nursery:
        ended: list[int] = []

        async def receive(stream: WatchedSocket, number: int) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()
            ended.append(number)

        left, right = pair()
        number = left.fileno()
        nursery.start_soon(receive, left, number)
        await trio.testing.wait_all_tasks_blocked()
        left._connected.close()
        ours, theirs = pair()
        assert number in (ours.fileno(), theirs.fileno())
        if ours.fileno() != number:
            ours, theirs = theirs, ours
        async with trio.open_nursery() as inner:
            inner.start_soon(theirs.send_all, b"hello")
            assert await ours.receive_some() == b"hello"
            with trio.move_on_after(0.01):
                await ours.receive_some()
            inner.start_soon(theirs.send_all, b"once more")
            assert await ours.receive_some() == b"once more"
        left.close()
        with trio.move_on_after(0.01):
            await ours.receive_some()
        await theirs.send_all(b"and again")
        assert await ours.receive_some() == b"and again"
        assert ended == [number]
        for stream in (ours, theirs, right):
            stream.close()


@bounded
async def test_however_many_speak_at_once_few_are_woken_per_pass_and_all_are_answered() -> None:
    count = 3 * READS_PER_PASS
    steps: list[int] = []

    class Count(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:
            steps.append(0)

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if "handle" in task.name:
                steps[-1] += 1

    async def echo(stream: trio.abc.Stream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, echo, 0, host="127.0.0.1", idle=30, backlog=count)
        (listener,) = await nursery.start(serve)
        clients = [socket.create_connection(listener.socket.getsockname(), SECONDS) for _ in range(count)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        trio.lowlevel.add_instrument(counting := Count())
        for turn in range(3):
            steps[:] = [0]
            for client in clients:
                client.send(b"%d" % turn)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert sum(steps) >= count
            # A task that was woken takes another step after it has sent.
            assert max(steps) <= 2 * READS_PER_PASS
            for client in clients:
                assert client.recv(10) == b"%d" % turn
        trio.lowlevel.remove_instrument(counting)
        for client in clients:
            client.close()
        nursery.cancel_scope.cancel()


async def test_the_silent_are_reaped_and_those_with_unread_bytes_are_not(autojump_clock) -> None:
    ended: list[str | None] = []

    async def echo(stream: trio.abc.Stream) -> None:
        try:
            async for data in stream:
                await stream.send_all(data)
        finally:
            ended.append(stream.connection.reason)

    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, echo, 0, host="127.0.0.1", idle=5)
        (listener,) = await nursery.start(serve)
        silent, busy = (socket.create_connection(listener.socket.getsockname(), SECONDS) for _ in range(2))
        for _ in range(6):
            await trio.sleep(3)
            busy.send(b"x")
        assert ended == ["idle"]
        await trio.sleep(10)
        assert ended == ["idle", "idle"]
        silent.close()
        busy.close()
        nursery.cancel_scope.cancel()
