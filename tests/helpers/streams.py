"""What is asked of streams and of what has ended, a client of TLS, and a bound for
tests that would wait for ever.
"""

from __future__ import annotations

import gc
import os
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trio
import trio.testing

from reaper.trio import ParkingLot

SECONDS = 30
"""Far more than a test takes, on a busy machine too."""


class TlsClient:
    """The client's side of TLS without a socket: its bytes are in the test's hands.

    Attributes:
        tls: The session.
    """

    def __init__(self, authority: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        trust = ssl.create_default_context(cafile=authority)
        self.tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def hear(self, data: bytes) -> None:
        """*data* has come."""
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """A step of the handshake; True: it is over."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def says(self) -> bytes:
        """What is to be sent."""
        return self._outgoing.read()


async def settle() -> None:
    """Wait until every task does."""
    await trio.testing.wait_all_tasks_blocked(0.001)


def tasks(lot: ParkingLot) -> int:
    """All that live now, without those that *lot* keeps for the next connection that
    speaks.
    """
    return trio.lowlevel.current_statistics().tasks_living - len(lot.tasks.waiting)


@contextmanager
def steps() -> Iterator[Counter[str]]:
    """How often each function was run for a step, as a task; as "living", how many
    tasks there were at most.
    """
    counts: Counter[str] = Counter()

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            counts[task.name.rpartition(".")[2]] += 1
            counts["living"] = max(
                counts["living"], trio.lowlevel.current_statistics().tasks_living
            )

    instrument = Steps()
    trio.lowlevel.add_instrument(instrument)
    yield counts
    trio.lowlevel.remove_instrument(instrument)


async def check_stream(pair: Callable[[], tuple[Any, Any]]) -> None:
    """All that trio demands of a stream, of the ends that *pair* makes: connected, on
    non-blocking sockets.
    """

    async def make() -> tuple[Any, Any]:
        return pair()

    async def make_clogged() -> tuple[Any, Any]:
        ends = pair()
        for stream in ends:
            with suppress(BlockingIOError):
                while True:
                    os.write(stream.fileno(), b"x" * 65536)
        return ends

    await trio.testing.check_half_closeable_stream(make, make_clogged)


@contextmanager
def no_circles(*kinds: type) -> Iterator[None]:
    """Only the collector could free a circle: it would find none of *kinds* that was
    made within the block.
    """
    gc.collect()
    gc.disable()
    gc.freeze()  # a circle of the test before may be let go of only now
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(thing).__name__ for thing in gc.garbage if isinstance(thing, kinds))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    assert not found, dict(found)
