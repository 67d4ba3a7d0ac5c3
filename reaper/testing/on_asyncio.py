"""A server of your own on asyncio, its clients, and time that passes at once.

The rule of this module: *nobody waits*. The loop's clock jumps to the next timer as
soon as no socket of the loop has anything to say. Connections are real ones, over the
loopback.

Stability: public.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from ..asyncio.serve import start_server
from ..config.settings import ReaperConfig
from ..core.ticks import check_timeout
from ..errors import InvalidArgument
from .clients import Client, Closing
from .keepers import LONGEST, Body, LoopStage, play_all

__all__ = ["VirtualLoop", "check_keeper", "closings"]


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits for an instant: it moves its clock there."""

    now: float = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # nothing is due ever: only a socket or another thread goes on
            return super().select(None)
        found = super().select(0)
        if not found and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, whose time is virtual: whatever sleeps, sleeps no real time.

    Not for what waits on other threads or processes: the clock does not know that they
    work.
    """

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def closings(
    handler: Callable[[Any, Any], Awaitable[object]],
    clients: Sequence[Client],
    *,
    idle: float | None = None,
    tick: float | None = None,
    config: ReaperConfig | None = None,
    until: float = 86_400.0,
) -> list[Closing]:
    """Serve *clients* by *handler* as `reaper.asyncio.start_server` does, and say when
    each was closed.

    Args:
        handler: Takes a reader and a writer, as for `asyncio.start_server`.
        clients: They all connect at the beginning.
        idle, tick: As in `reaper.asyncio.start_server`.
        config: As there. Its `timeouts.vanished` has to be 0s, as it is without a
            config: the kernel, which would be asked, knows nothing of virtual time.
        until: Seconds of virtual time after which clients that are still connected are
            left alone.

    Returns:
        What became of each client, in their order.

    Raises:
        InvalidArgument: by name and value.

    Cost: milliseconds, however long the timeouts are; a descriptor per client and
    connection.
    """
    check_timeout("until", until)
    if config is None:
        config = ReaperConfig.load(environ={}, overrides={"timeouts.vanished": "0s"})
    if config.timeouts.vanished:
        raise InvalidArgument(
            f"config: timeouts.vanished must be 0s here, got {config.timeouts.vanished!r}"
        )
    found = [Closing(None, b"") for _ in clients]

    async def be(client: Client, address: Any, number: int) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(*address)
        begun = loop.time()
        left = False

        async def act() -> None:
            nonlocal left
            for instant, data in client.sends:
                await asyncio.sleep(begun + instant - loop.time())
                writer.write(data)
            if client.leaves is not None:
                await asyncio.sleep(begun + client.leaves - loop.time())
                left = True
                writer.close()

        acting = loop.create_task(act())
        heard = bytearray()
        try:
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    heard += data
                    found[number] = Closing(None, bytes(heard))
        finally:
            acting.cancel()
            writer.close()
        if not left:
            found[number] = Closing(loop.time() - begun, bytes(heard))

    async def main() -> None:
        server = await start_server(handler, "127.0.0.1", 0, idle=idle, tick=tick, config=config)
        async with server:
            address = server.sockets[0].getsockname()
            tasks = [
                asyncio.ensure_future(be(client, address, number))
                for number, client in enumerate(clients)
            ]
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=until)
                for task in late:
                    task.cancel()
                await asyncio.wait(tasks)
                for task in set(tasks) - late:
                    task.result()
            await asyncio.sleep(0.01)  # the handlers hear of the ends

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return found


class KeeperStage(LoopStage):
    """asyncio in virtual time, where the stories of keepers are played."""

    def __init__(self) -> None:
        self.loop: VirtualLoop = VirtualLoop()
        self._started: list[asyncio.Task[Any]] = []

    def now(self) -> float:
        """Seconds of the loop."""
        return self.loop.time()

    async def sleep(self, units: float) -> None:
        """Wait."""
        await asyncio.sleep(units)

    def stall(self, units: float) -> None:
        """Hold the loop."""
        self.loop._jumping.now += units

    def start(self, body: Body, *arguments: Any) -> asyncio.Task[Any]:
        """Play *body* beside the others."""
        task = self.loop.create_task(body(*arguments))
        self._started.append(task)
        return task

    def played(self, story: Body) -> None:
        """Play *story* to its end, and all that it has started."""

        async def main() -> None:
            async with asyncio.timeout(LONGEST):
                await story()
                for task in self._started:
                    with suppress(asyncio.CancelledError):
                        await task

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(main())


def check_keeper(open_keeper: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
    """Run the conformance kit for keepers on one of asyncio, in virtual time.

    Args:
        open_keeper: Called many times, in a loop, as `open_keeper(make, end, idle=10.0,
            tick=1.0)`; must return an `async with` block whose value has `use(key)`,
            another one: see `reaper.asyncio.open_keeper`. `end` may be called with
            (key, thing) or (key, thing, reason).
    Raises:
        NotConforming: at the first broken promise. The message says which, where, and
            after which steps.

    A keeper must tell the time by its loop. Cost: about half a second.
    """
    play_all(KeeperStage, open_keeper)
