"""A server of your own on trio, its clients, and time that passes at once.

The rule of this module: *nobody waits*. Time is trio's MockClock, connections are in
memory.

Stability: public.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import trio
from trio.testing import MockClock, memory_stream_pair

from ..config.settings import ReaperConfig
from ..core.ticks import check_timeout
from ..trio.reaper import open_reaper
from .clients import Client, Closing
from .keepers import LONGEST, Body, LoopStage, play_all

__all__ = ["check_keeper", "closings"]

GONE = (trio.BrokenResourceError, trio.ClosedResourceError)
"""What a stream raises once the client has left, or was closed."""


def closings(
    handler: Callable[[Any], Awaitable[object]],
    clients: Sequence[Client],
    *,
    idle: float | None = None,
    tick: float | None = None,
    config: ReaperConfig | None = None,
    until: float = 86_400.0,
) -> list[Closing]:
    """Serve *clients* by *handler* as `reaper.trio.serve_tcp` does, and say when each
    was closed.

    Args:
        handler: Takes a stream; receiving counts as activity.
        clients: They all connect at the beginning.
        idle, tick, config: As in `reaper.trio.serve_tcp`.
        until: Seconds of virtual time after which clients that are still connected are
            left alone.

    Returns:
        What became of each client, in their order.

    Raises:
        InvalidArgument: by name and value; and whatever *handler* raises, but for a
            stream that the client or reaper has closed.

    Cost: milliseconds, however long the timeouts are. A handler that sleeps by trio
    sleeps in virtual time, too; one that waits for a thread or a real socket does not
    belong here.
    """
    check_timeout("until", until)
    found = [Closing(None, b"") for _ in clients]

    async def serve(stream: trio.abc.Stream, watched: Callable[[Any], Awaitable[None]]) -> None:
        async with stream:
            with suppress(*GONE):  # while the handler sent
                await watched(stream)

    async def be(client: Client, stream: trio.abc.Stream, number: int) -> None:
        begun = trio.current_time()

        async def act() -> None:
            for instant, data in client.sends:
                await trio.sleep_until(begun + instant)
                await stream.send_all(data)
            if client.leaves is not None:
                await trio.sleep_until(begun + client.leaves)
                left.append(True)
                await stream.aclose()

        heard, left = bytearray(), list[bool]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_if_open, act)
            with suppress(*GONE):
                while data := await stream.receive_some():
                    heard += data
                    found[number] = Closing(None, bytes(heard))
            if not left:
                found[number] = Closing(trio.current_time() - begun, bytes(heard))
            nursery.cancel_scope.cancel()

    async def main() -> None:
        with trio.move_on_after(until):
            async with open_reaper(config, tick=tick) as r, trio.open_nursery() as nursery:
                watched = r.watched(handler, idle=idle)
                async with trio.open_nursery() as served:
                    for number, client in enumerate(clients):
                        ours, theirs = memory_stream_pair()
                        nursery.start_soon(be, client, theirs, number)
                        served.start_soon(serve, ours, watched)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return found


async def _if_open(act: Callable[[], Awaitable[None]]) -> None:
    """Run *act*, which ends when its stream is closed."""
    with suppress(*GONE):
        await act()


class KeeperStage(LoopStage):
    """trio in virtual time, where the stories of keepers are played."""

    def __init__(self) -> None:
        self._clock = MockClock(autojump_threshold=0)
        self._begun = 0.0

    def now(self) -> float:
        """Seconds of the run."""
        return self._clock.current_time() - self._begun

    async def sleep(self, units: float) -> None:
        """Wait."""
        await trio.sleep(units)

    def stall(self, units: float) -> None:
        """Hold the loop."""
        self._clock.jump(units)

    def start(self, body: Body, *arguments: Any) -> trio.CancelScope:
        """Play *body* beside the others."""
        scope = trio.CancelScope()

        async def play() -> None:
            with scope:
                await body(*arguments)

        self._nursery.start_soon(play)
        return scope

    def played(self, story: Body) -> None:
        """Play *story* to its end, and all that it has started."""

        async def main() -> None:
            self._begun = self._clock.current_time()
            with trio.move_on_after(LONGEST) as scope:
                async with trio.open_nursery() as self._nursery:
                    await story()
            if scope.cancelled_caught:
                raise TimeoutError

        trio.run(main, clock=self._clock)


def check_keeper(open_keeper: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
    """Run the conformance kit for keepers on one of trio, as
    `reaper.testing.on_asyncio.check_keeper`.

    Raises:
        NotConforming: at the first broken promise.
    """
    play_all(KeeperStage, open_keeper)
