"""uvicorn, guarded: which responses say for how long the connection is kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

import reaper.uvicorn
from reaper.config import ReaperConfig
from reaper.servers.uvicorn import kinds
from reaper.servers.uvicorn.answers import together
from tests.servers.uvicorn.test_limits import UPGRADE
from tests.servers.uvicorn.test_quiet import PATIENCE, until

pytestmark = pytest.mark.anyio

PROMISE = b"keep-alive: timeout="


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Accepts every WebSocket; answers `/last` with `Connection: close`, and `/own`
    with a `Keep-Alive` of its own.
    """
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        return
    headers = [(b"content-length", b"5")]
    if scope["path"] == "/last":
        headers.append((b"Connection", b"Close"))
    if scope["path"] == "/own":
        headers.append((b"Keep-Alive", b"timeout=99"))
    given = iter(headers) if scope["path"] == "/iterator" else headers
    await send({"type": "http.response.start", "status": 200, "headers": given})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture(params=["HttpTools", "H11"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def configured(protocol: str, ws: str = "none") -> uvicorn.Config:
    settings = ReaperConfig.load(environ={}, overrides={"timeouts.keep_alive_margin": "1s"})
    kind: Any = getattr(reaper.uvicorn, protocol).configured(settings)
    return uvicorn.Config(application, port=0, http=kind, ws=ws, lifespan="off", log_level="error")


@contextlib.asynccontextmanager
async def answers(
    protocol: str, said: bytes, ws: str = "none"
) -> AsyncIterator[asyncio.StreamReader]:
    """What a server sends to a client that has said that."""
    server = uvicorn.Server(configured(protocol, ws))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    address = server.servers[0].sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(said)
    async with asyncio.timeout(PATIENCE):
        yield reader
    writer.close()
    server.should_exit = True
    await task


def head(path: str, *more: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/{version}", "host: h", *more, "", ""]).encode()


async def test_a_response_names_the_time_for_which_the_connection_is_kept(protocol: str) -> None:
    async with answers(protocol, head("/")) as reader:
        assert PROMISE in (await reader.readuntil(b"hello")).lower()


async def test_an_application_that_names_the_time_itself_is_not_contradicted(
    protocol: str,
) -> None:
    async with answers(protocol, head("/own")) as reader:
        said = (await reader.readuntil(b"hello")).lower()
        assert said.count(b"keep-alive:") == said.count(b"keep-alive: timeout=99") == 1


@pytest.mark.parametrize(
    "said",
    [
        head("/", "connection: close"),
        head("/", version="1.0"),
        head("/last"),
        b"this is no HTTP\r\n\r\n",
    ],
    ids=["the client closes", "HTTP/1.0", "the application closes", "bad request"],
)
async def test_the_last_response_of_a_connection_names_no_time(protocol: str, said: bytes) -> None:
    async with answers(protocol, said) as reader:
        heard = (await reader.read()).lower()
    assert b"connection: close" in heard
    assert PROMISE not in heard


async def test_headers_that_are_an_iterator_are_sent(protocol: str) -> None:
    async with answers(protocol, head("/iterator")) as reader:
        assert b"content-length: 5" in await reader.readuntil(b"hello")


@pytest.mark.parametrize("tested", [True, False], ids=["tested", "a later uvicorn"])
async def test_default_headers_are_written_one_by_one_or_together_but_never_otherwise(
    monkeypatch: pytest.MonkeyPatch, tested: bool
) -> None:
    if not tested:
        monkeypatch.setattr(kinds, "_LOWER", ())
    async with answers("HttpTools", head("/") + head("/")) as reader:
        both = [await reader.readuntil(b"hello") for _ in range(2)]
    date = both[0].split(b"date: ")[1][: len(b"Fri, 27 Nov 2026 14:16:13 GMT")]
    assert both[0] == (
        b"HTTP/1.1 200 OK\r\ndate: %s\r\nserver: uvicorn\r\nkeep-alive: timeout=4\r\n"
        b"content-length: 5\r\n\r\nhello"
    ) % (date,)
    assert len(both[1]) == len(both[0])


@pytest.mark.parametrize(
    "other",
    [
        (b"Connection", b"upgrade"),
        (b"content-length", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"two words", b"x"),
        (b"", b"x"),
        (b"x", b"two\r\nlines"),
        (b"x", b"nul\0"),
    ],
)
def test_a_header_that_uvicorn_acts_on_or_refuses_is_left_to_it(other: tuple[bytes, bytes]) -> None:
    headers = [(b"server", b"uvicorn"), other, (b"keep-alive", b"timeout=4")]
    assert together(headers) is headers


async def test_of_two_requests_in_one_packet_the_last_is_named_no_time(protocol: str) -> None:
    async with answers(protocol, head("/") + head("/", "connection: close")) as reader:
        first, _, second = (await reader.read()).lower().partition(b"hello")
    assert PROMISE in first
    assert PROMISE not in second


@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
async def test_the_answer_that_switches_protocols_names_no_time(protocol: str, ws: str) -> None:
    async with answers(protocol, UPGRADE, ws) as reader:
        heard = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert b" 101 " in heard
    assert PROMISE not in heard


async def test_a_settings_object_that_is_not_loaded_is_loaded_as_uvicorn_does(
    protocol: str,
) -> None:
    config = configured(protocol)
    kind: Any = config.http
    kind(config, ServerState(), {})
    assert config.loaded
