"""anyio's TCP listeners, guarded: what is a client's turn and what is the handler's,
and which programs are left in peace.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from reaper.config import ReaperConfig
from reaper.policy import Phase
from reaper.run import report
from reaper.servers import guest
from reaper.servers.anyio import phases
from reaper.servers.anyio.card import CARD
from reaper.servers.guest import Visit, silence
from tests.helpers.reaper_run import PATIENCE, guarded
from tests.helpers.served import bare
from tests.servers.test_renamed import renamed

WORKS = 1.0
"""Seconds that a handler works: twice the limit."""


def config(**values: str) -> ReaperConfig:
    overrides = {f"timeouts.{name}": value for name, value in values.items()}
    return ReaperConfig.load(environ={}, overrides=overrides | {"reaper.tick": "100ms"})


@pytest.mark.parametrize(("waits", "phase"), [(True, Phase.IDLE), (False, Phase.IN_FLIGHT)])
def test_it_is_the_clients_turn_while_the_handler_waits_in_receive(
    waits: bool, phase: Phase
) -> None:
    stream = SimpleNamespace(_receive_guard=SimpleNamespace(_guarded=waits))
    protocol = SimpleNamespace(_reaper_stream=lambda: stream)
    transport = SimpleNamespace(get_protocol=lambda: protocol)
    assert bare(phases.Listened, transport).phase() is phase


def test_nobody_works_for_a_connection_whose_stream_is_forgotten() -> None:
    protocol = SimpleNamespace(_reaper_stream=lambda: None)
    transport = SimpleNamespace(get_protocol=lambda: protocol)
    assert bare(phases.Listened, transport).phase() is Phase.IDLE


@pytest.mark.parametrize(("given", "name"), [({}, "tunnel"), ({"idle": "9s"}, "idle")])
def test_silence_has_the_limit_of_tunnels_unless_idle_is_set(
    given: dict[str, str], name: str
) -> None:
    assert silence(config(**given)) == name
    assert list(CARD.in_force(config(**given))) == [name, "write", "vanished"]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_silent_client_is_closed_and_one_that_is_worked_for_is_answered() -> None:
    loop = asyncio.get_running_loop()
    ended: list[bytes] = []

    async def answer(stream: SocketStream) -> None:
        async with stream:
            async for data in stream:
                await asyncio.sleep(WORKS)
                await stream.send(data)
            ended.append(b"told")

    made = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    settings = config(idle="500ms", write="500ms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "settings", lambda: settings)
        for each in made.listeners:
            phases.note(each)
        serving = loop.create_task(made.serve(answer))
        port = made.extra(anyio.abc.SocketAttribute.local_port)
        silent = await asyncio.open_connection("127.0.0.1", port)
        asks = await asyncio.open_connection("127.0.0.1", port)
        asks[1].write(b"one")
        async with asyncio.timeout(PATIENCE):
            assert await asks[0].read(100) == b"one"
            assert await silent[0].read() == b""
            assert await asks[0].read() == b"", "its handler waits again"
            while len(ended) < 2:
                await asyncio.sleep(0.01)
        serving.cancel()
        await asyncio.wait([serving])
        for _, writer in (silent, asks):
            writer.close()
    await made.aclose()


SERVES = """
import anyio
async def talk(stream):
    async with stream:
        async for data in stream:
            await stream.send(data)
async def main():
    made = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=int({port}))
    await made.serve(talk)
anyio.run(main, backend="BACKEND")
"""


def echoed(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(b"one")
        return client.recv(100)


@pytest.mark.slow
def test_an_anyio_that_has_renamed_a_name_is_left_alone_and_serves(tmp_path: Path) -> None:
    copy = renamed(tmp_path / "copy", "anyio", "_receive_guard")
    command = [sys.executable, "-c", SERVES.replace("BACKEND", "asyncio")]
    said = ["is not guarded: it has no SocketStream._receive_guard"]
    with guarded(command, tmp_path, "--inside", said=said, before=[copy]) as (server, _):
        assert echoed(server.port) == b"one"


@pytest.mark.slow
def test_on_trio_it_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVES.replace("BACKEND", "trio")]
    with guarded(command, tmp_path, "--inside", said=["on trio is not guarded"]) as (server, _):
        assert echoed(server.port) == b"one"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The libraries that have been asked to listen: none yet."""
    found: set[str] = set()
    monkeypatch.setattr(guest, "SERVING", found)
    return found


Listens = Callable[[], Any]


@pytest.fixture
def library(known: set[str], monkeypatch: pytest.MonkeyPatch) -> Listens:
    """An anyio that lacks all names but one, met by `reaper run --strict`; it listens
    when this is called.
    """

    async def create_tcp_listener() -> str:
        return "made"

    module = ModuleType("anyio._core._sockets")
    monkeypatch.setattr(module, "create_tcp_listener", create_tcp_listener, raising=False)
    monkeypatch.setattr(guest, "missing", lambda tables, whose: "it has no name")
    Visit(CARD, report, True).guard(module)
    return lambda: asyncio.run(module.create_tcp_listener())


def test_a_program_that_never_listens_by_a_library_is_left_in_peace(library: Listens) -> None:
    assert not CARD.is_there


def test_one_that_does_is_refused_where_names_are_missing(
    library: Listens, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        library()
    assert "does not fit: it has no name" in capsys.readouterr().err
    assert CARD.is_there
