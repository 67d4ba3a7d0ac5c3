"""What fails while a connection is made leaves the connection to the server, as it
would be without a guard: uvloop's listener is dead after an exception in the protocol
factory.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

import reaper
import reaper.gunicorn
import reaper.uvicorn
from reaper.asyncio.guards import guard_server
from reaper.asyncio.reaper import reaper_of
from reaper.config import ReaperConfig
from reaper.servers.gunicorn import threads
from reaper.servers.uvicorn.shared import _SHARED
from reaper.servers.workers import inherited
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE
from tests.helpers.echo import Echo, Resting
from tests.helpers.hypercorn_here import FLAVOURS, hypercorn_here
from tests.helpers.servers_here import worker

OURS = str(Path(reaper.__file__).parent)
CATCHES = {"tried", "_wake", "data_received", "one_line"}
"""Our functions that catch what the others raise, or are the protocol's own: they do
nothing else.
"""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """The collector would call ours amid the call of another, for what an earlier test
    has left: it would be counted, and an exception in it is nobody's.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def may_fail(frame: FrameType) -> bool:
    """Whether *frame* is a call of ours that could raise."""
    code = frame.f_code
    ours = code.co_filename.startswith(OURS) and not code.co_flags & inspect.CO_GENERATOR
    return ours and code.co_name not in CATCHES


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


class Failing:
    """Has one call of our code raise while a connection is made: the first in the first
    connection, and so on.
    """

    def __init__(self) -> None:
        self.number = 0
        self.calls = 0

    def called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and may_fail(frame) and not frame.f_code.co_flags & inspect.CO_COROUTINE:
            self.calls += 1
            if self.calls == self.number:
                raise OSError("no descriptor is left")

    def begin(self) -> None:
        self.number, self.calls = self.number + 1, 0
        sys.settrace(self.called)

    @property
    def is_over(self) -> bool:
        """Whether no call has raised in the last connection."""
        return self.calls < self.number


async def says_ok(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


def is_answered(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        heard = b""
        while not heard.endswith(b"ok") and (data := client.recv(1000)):
            heard += data
    return heard.endswith(b"ok")


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["asyncio", "trio"])
def test_each_call_before_hypercorn_serves_may_fail(
    flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, failing = FLAVOURS[flavour].TCPServer, Failing()
    stock = kind.run

    async def served(self: Any) -> None:
        sys.settrace(None)
        await stock(self)

    monkeypatch.setattr(kind, "run", served)
    with (
        hypercorn_here(flavour, tmp_path / "log", says_ok, {}) as here,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert is_answered(here.address)  # the reaper runs from now on
        guarded = kind.run

        async def traced(self: Any) -> None:
            failing.begin()
            try:
                await guarded(self)
            finally:
                sys.settrace(None)

        patch.setattr(kind, "run", traced)
        while not failing.is_over or not failing.number:
            assert is_answered(here.address)
    assert failing.number > 10


@pytest.mark.slow
def test_each_call_in_enqueue_req_of_gunicorns_threads_may_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, failing = reaper.gunicorn.ThreadWorker, Failing()
    guarded = kind.enqueue_req

    def traced(self: Any, conn: Any) -> None:
        if hasattr(conn, "wire"):
            guarded(self, conn)
            return
        failing.begin()
        failing.calls = -1  # `enqueue_req` itself
        try:
            guarded(self, conn)
        finally:
            sys.settrace(None)

    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    monkeypatch.setattr(kind, "enqueue_req", traced)
    with worker(kind, application, keepalive="1") as made:
        while not failing.is_over or not failing.number:
            assert is_answered(made.address)
    assert failing.number > 5


@pytest.mark.slow
def test_gunicorns_own_keep_alive_ends_a_connection_without_a_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no descriptor is left")

    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    monkeypatch.setattr(threads, "ThreadWire", fails)
    with (
        worker(reaper.gunicorn.ThreadWorker, application, keepalive="1") as made,
        socket.create_connection(made.address, PATIENCE) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        while client.recv(1000):
            pass


def test_without_proc_a_worker_knows_of_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.listdir", missing)
    assert inherited() == 0
