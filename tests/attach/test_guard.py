"""The library: sockets of this process, guarded without a touch."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest

from reaper.attach import Event, Guard
from reaper.attach.sockets import OwnSockets
from reaper.errors import InvalidArgument
from tests.helpers.attach_servers import until
from tests.helpers.attach_worlds import RealWorld


@pytest.fixture
def world() -> Iterator[RealWorld]:
    with closing(RealWorld()) as made:
        yield made


def driven(guard: Guard) -> None:
    """Drive *guard* until it has closed something."""
    end = time.monotonic() + 20
    while not guard.closed:
        assert time.monotonic() < end
        wake = guard.next_wakeup()
        assert wake is not None
        time.sleep(max(wake - time.monotonic(), 0.0))
        guard.advance()


def test_a_guard_is_driven_by_any_loop_that_asks_it_when(world: RealWorld) -> None:
    client, server = world.connect()
    guard = Guard(first_byte=0.2, tick=0.1)
    assert guard.next_wakeup() is None
    guard.add(server)
    driven(guard)
    assert client.recv(1) == b""
    assert guard.next_wakeup() is None


def test_a_closed_or_discarded_socket_is_forgotten_and_its_descriptor_left_alone(
    world: RealWorld,
) -> None:
    guard = Guard(idle=0.1, tick=0.1)
    (_, closed), (_, discarded) = world.connect(), world.connect()
    guard.add(closed)
    ident = guard.add(discarded)
    assert guard.discard(ident)
    assert not guard.discard(ident)
    fd, own = closed.fileno(), OwnSockets()
    old = own.ident(closed)
    closed.close()
    client, reused = world.connect()
    assert fd in (client.fileno(), reused.fileno())
    assert (own.look([old]), own.end(old, lambda seen: True)) == ([None], "other")
    until(lambda: guard.advance() >= 0 and not len(guard), "both are forgotten")
    assert guard.closed == 0
    reused.sendall(b"z")
    assert client.recv(1) == b"z"


def test_a_peer_that_takes_nothing_is_ended_and_one_that_takes_it_slowly_is_not(
    world: RealWorld,
) -> None:
    events: list[Event] = []
    guard = Guard(write=0.5, tick=0.1, on=events.append)
    (_, stalled), (reader, _) = two = world.connect(), world.connect()
    for pair in two:
        world.stall(pair)
        guard.add(pair.server)
    stop = threading.Event()

    def read_slowly() -> None:
        while not stop.wait(0.05):
            reader.recv(200_000)

    thread = threading.Thread(target=read_slowly)
    thread.start()
    driven(guard)
    stop.set()
    thread.join()
    (closed,) = (event for event in events if event.kind == "closed")
    assert closed.reason == "write"
    assert closed.at >= closed.due
    with pytest.raises(OSError, match="Broken pipe"):
        stalled.send(b"z")
    world.stall(two[1])  # it still sends


def test_a_guard_without_a_limit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one limit"):
        Guard()
    with pytest.raises(InvalidArgument, match="tick"):
        Guard(idle=1.0, tick=0.0)


def test_a_guard_that_is_left_while_its_thread_clears_its_signal_ends_all_the_same() -> None:
    guard = Guard(idle=1.0)

    class Signal(threading.Event):
        def clear(self) -> None:
            guard.__exit__(None, None, None)
            super().clear()

    guard._changed = Signal()
    thread = threading.Thread(target=guard._run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.slow
def test_no_connection_of_busy_threads_is_closed_for_the_silence_of_an_earlier_one(
    world: RealWorld,
) -> None:
    """Descriptors are reused at once, and the interpreter switches threads as often as
    it can.
    """
    events: list[Event] = []
    lived: list[int] = []
    unguarded: list[tuple[socket.socket, socket.socket]] = []
    interval = sys.getswitchinterval()
    silent = [world.connect() for _ in range(20)]
    over = time.monotonic() + 2.0

    def churn() -> None:
        """Short connections, guarded; none is silent for as long as 0.3 s, unless the
        machine stalls.
        """
        with socket.create_server(("127.0.0.1", 0)) as listener:
            while time.monotonic() < over or len(lived) < 100:
                began, heard = time.monotonic(), b""
                with socket.create_connection(listener.getsockname(), timeout=20) as client:
                    server, _ = listener.accept()
                    # It may have been ended already; that is judged below.
                    with server, suppress(ConnectionError, InvalidArgument):
                        guard.add(server)
                        client.sendall(b"x")
                        heard = server.recv(1)
                    assert heard == b"x" or time.monotonic() - began >= 0.3
                    lived.append(1)
                # This one gets a descriptor that the guard remembers.
                if len(unguarded) < min(len(lived) // 10, 200):
                    client = stack.enter_context(
                        socket.create_connection(listener.getsockname(), timeout=20)
                    )
                    unguarded.append((client, stack.enter_context(listener.accept()[0])))

    sys.setswitchinterval(1e-6)
    try:
        with (
            ExitStack() as stack,
            Guard(idle=0.3, first_byte=0.3, tick=0.1, on=events.append) as guard,
            ThreadPoolExecutor(4) as pool,
        ):
            wanted = {guard.add(server) for _, server in silent}
            for done in [pool.submit(churn) for _ in range(4)]:
                done.result()
            until(
                lambda: wanted <= {event.ident for event in events if event.kind == "closed"},
                "the silent ones end",
            )
            for client, server in unguarded:
                server.settimeout(20)
                client.sendall(b"z")
                assert server.recv(1) == b"z"
    finally:
        sys.setswitchinterval(interval)
    ended = [event.ident for event in events if event.kind == "closed"]
    assert len(ended) == len(set(ended))
    assert all(event.at - event.since >= 0.3 for event in events if event.kind == "closed")
    assert unguarded
