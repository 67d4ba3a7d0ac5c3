"""What fails while a connection is made leaves the connection to the server, as it
would be without a guard: uvloop's listener is dead after an exception in the protocol
factory.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

import reaper
import reaper.uvicorn
from reaper.asyncio.guards import OnTransport, guard_server
from reaper.asyncio.reaper import reaper_of
from reaper.config import ReaperConfig
from reaper.policy import Phase
from reaper.servers.uvicorn.shared import _SHARED
from reaper.servers.workers import inherited

OURS = str(Path(reaper.__file__).parent)
CATCHES = {"tried", "_wake", "data_received", "one_line"}
"""Our functions that catch what the others raise, or are the protocol's own: they do
nothing else.
"""


def may_fail(frame: FrameType) -> bool:
    """Whether *frame* is a call of ours that could raise."""
    code = frame.f_code
    ours = code.co_filename.startswith(OURS) and not code.co_flags & inspect.CO_GENERATOR
    return ours and code.co_name not in CATCHES


class Resting(OnTransport):
    """A connection of a server that always waits for a request."""

    def phase(self) -> Phase:
        return Phase.KEEP_ALIVE


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def failing(make: Callable[[], Any], renew: Callable[[], object]) -> Iterator[Any]:
    """What *make* returns if the first call of our code within it raises; then the
    second; and so on to the last. *renew* undoes what the one before has kept.
    """
    number = 1
    while True:
        calls = 0

        def called(frame: FrameType, event: str, argument: Any, at: int = number) -> None:
            nonlocal calls
            if event == "call" and may_fail(frame):
                calls += 1
                if calls == at + 1:  # the factory itself is the first
                    raise OSError("no descriptor is left")

        renew()
        sys.settrace(called)
        try:
            made = make()
        finally:
            sys.settrace(None)
        if calls <= number:
            return
        yield made
        number += 1


def test_each_call_in_uvicorns_protocol_factory_may_fail() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        """Never called."""

    async def body() -> None:
        kind = reaper.uvicorn.HttpTools.configured(ReaperConfig.load(environ={}))
        config = Config(application, log_config=None)
        config.load()
        loop = asyncio.get_running_loop()
        found = list(
            failing(
                lambda: kind(config, ServerState(), {}, loop), lambda: _SHARED.pop(config, None)
            )
        )
        stock = [made for made in found if type(made).__module__.startswith("uvicorn.")]
        assert len(stock) > 50
        for made in found:
            assert isinstance(made, asyncio.Protocol)
        _SHARED.pop(config)

    asyncio.run(body())


def test_each_call_in_a_factory_that_is_guarded_may_fail() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()

        guarded: list[Callable[[], Any]] = []

        def renew() -> None:
            guarded[:] = [guard_server(Echo, Resting, lambda: reaper_of(loop))]

        found = list(failing(lambda: guarded[0](), renew))
        assert any(type(made) is Echo for made in found)

    asyncio.run(body())


@pytest.mark.parametrize("number", range(1, 12))
def test_a_connection_whose_guard_fails_when_it_is_made_is_served(number: int) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        watcher = reaper_of(loop)
        ended = asyncio.Event()

        class Ends(Echo):
            def connection_lost(self, exc: Exception | None) -> None:
                ended.set()

        guarded = guard_server(Ends, Resting, lambda: watcher)
        server = await loop.create_server(guarded, "127.0.0.1", 0)
        calls = 0

        def called(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            if event == "call" and may_fail(frame):
                calls += frame.f_code.co_name == "connection_made" or calls > 0
                if calls == number + 1:
                    raise OSError("no descriptor is left")

        sys.settrace(called)
        try:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x")
            assert await asyncio.wait_for(reader.readexactly(1), 30) == b"x"
        finally:
            sys.settrace(None)
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(body())


def test_without_proc_a_worker_knows_of_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.listdir", missing)
    assert inherited() == 0
