"""uvicorn, guarded: its stop, in the process of the test. test_turns.py tries it with a
process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

import reaper.uvicorn
from reaper import stops
from reaper.servers import metrics
from reaper.servers.metrics import Reports
from reaper.servers.uvicorn import shared
from tests.servers.uvicorn.test_quiet import Served, ask, ended, serving, until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["HttpTools", "H11"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that uvicorn raises again when it has ended."""
    monkeypatch.setattr(metrics, "_STOPPING", [])
    raised: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: raised.append(number))
    yield raised
    signal.signal(signal.SIGTERM, before)
    stops.forget()


async def told(served: Served) -> None:
    """One client is served, and the process is sent SIGTERM, which is noted."""
    reader, writer = await served.connect()
    assert b"connection: close" not in (await ask(reader, writer)).lower()
    writer.close()
    await until(lambda: not served.connections)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: metrics._STOPPING)


async def answer_of(application: Any) -> tuple[int, bytes]:
    """The status and the body of the answer of an ASGI *application* to GET."""
    send = AsyncMock()
    await application({"type": "http", "method": "GET"}, None, send)
    start, body = (call.args[0] for call in send.await_args_list)
    return start["status"], body["body"]


async def test_until_the_delay_is_over_newcomers_are_served_and_told_to_go_elsewhere(
    protocol: str, signals: list[int]
) -> None:
    async with serving(protocol, drain_delay="1h", keep_alive="9s") as served:
        assert await answer_of(reaper.uvicorn.ready) == (200, b"ready\n")
        await told(served)
        reader, writer = await served.connect()
        said = (await ask(reader, writer)).lower()
        assert b"connection: close" in said
        assert b"keep-alive" not in said
        assert await ended(reader) == b""
        assert await answer_of(reaper.uvicorn.ready) == (503, b"stopping\n")
        assert not served.server.should_exit
        writer.close()


async def test_a_second_signal_does_not_wait_for_the_delay(
    protocol: str, signals: list[int]
) -> None:
    async with serving(protocol, drain_delay="1h") as served:
        await told(served)
        assert not served.server.should_exit
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: served.server.should_exit)
    assert signals == [signal.SIGTERM]


async def test_when_the_delay_is_over_the_server_stops_as_by_the_signal(
    protocol: str, signals: list[int]
) -> None:
    async with serving(protocol, drain_delay="200ms") as served:
        await told(served)
        await until(lambda: served.server.should_exit)
    assert signals == [signal.SIGTERM]


async def test_a_header_that_the_operator_set_is_not_sent_twice(protocol: str) -> None:
    headers = [("Connection", "close"), ("Keep-Alive", "timeout=3")]
    async with serving(
        protocol, uvicorns={"headers": headers}, drain_delay="1h", keep_alive="9s"
    ) as served:
        for _ in range(2):
            reader, writer = await served.connect()
            said = (await ask(reader, writer)).lower()
            assert said.count(b"connection: close") == 1
            assert said.count(b"keep-alive:") == 1
            writer.close()
            if not metrics._STOPPING:
                os.kill(os.getpid(), signal.SIGTERM)
                await until(lambda: metrics._STOPPING)


# ---- while a client shakes hands


@pytest.fixture
def over_tls(certificate: tuple[str, str]) -> dict[str, str]:
    return {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}


async def accepted(served: Served) -> None:
    """A client that has connected, and said nothing, has a protocol by now."""
    await until(lambda: shared._SHARED.get(served.server.config))


async def test_a_stop_does_not_wait_for_a_handshake(
    protocol: str, over_tls: dict[str, str]
) -> None:
    # From 3.12 on `Server.wait_closed` waits for it, in stock uvicorn too, for the 60 s
    # that asyncio gives it; `--loop reaper.uvicorn:loop` would bound that.
    seconds = 60 if sys.version_info < (3, 12) else 90
    async with (
        asyncio.timeout(seconds),
        serving(protocol, uvicorns=over_tls, drain="1h", handshake="1h") as served,
    ):
        address = served.server.servers[0].sockets[0].getsockname()
        _, writer = await asyncio.open_connection(*address)
        await accepted(served)
    writer.close()


async def test_who_has_shaken_hands_is_a_connection(
    protocol: str, over_tls: dict[str, str], certificate: tuple[str, str]
) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    async with serving(protocol, uvicorns=over_tls) as served:
        address = served.server.servers[0].sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address)
        await accepted(served)
        assert served.shared.reaper.count() == 0
        await writer.start_tls(trust, server_hostname="127.0.0.1")
        await until(lambda: served.shared.reaper.count() == 1)
        assert b"200 OK" in await ask(reader, writer)
        assert served.shared.reaper.count() == 1
        writer.close()


# ---- what is reported


async def test_several_servers_of_one_process_are_told_apart_in_its_metrics(protocol: str) -> None:
    async with serving(protocol) as served:
        reader, writer = await served.connect()
        await ask(reader, writer)
        _, alone = await answer_of(reaper.uvicorn.metrics)
        async with serving(protocol) as second:
            _, other = await second.connect()
            _, both = await answer_of(reaper.uvicorn.metrics)
            other.close()
        writer.close()
    assert b"\nreaper_leases 1\n" in alone
    assert b'\nreaper_leases{server="0"} 1\n' in both
    assert b'\nreaper_leases{server="1"} 1\n' in both


async def test_what_the_other_workers_say_stands_beside_what_this_one_says(protocol: str) -> None:
    async with serving(protocol) as served:
        reader, writer = await served.connect()
        await ask(reader, writer)
        reports = Reports(lambda: [served.shared.reaper])
        status = json.loads((await answer_of(reports.status))[1])["workers"][0]
        theirs = [{**status, "worker": 1, "pid": 1}]
        _, own = await answer_of(reports.metrics)
        said = {"/metrics": {1: own, 2: b""}, "/status": {1: json.dumps(theirs).encode(), 2: b""}}
        asked = AsyncMock(side_effect=lambda path: said[path])
        reports._siblings = SimpleNamespace(ask=asked)  # type: ignore[assignment]
        _, merged = await answer_of(reports.metrics)
        whole = json.loads((await answer_of(reports.status))[1])
        writer.close()
    for worker in (1, os.getpid()):
        assert b'\nreaper_leases{worker="%d"} 1\n' % worker in merged
    assert [one["worker"] for one in whole["workers"]] == [1, os.getpid()]
    assert whole["missing"] == [2]


async def test_only_a_request_for_a_page_is_answered_with_one(protocol: str) -> None:
    send = AsyncMock()
    await reaper.uvicorn.status({"type": "http", "method": "POST"}, None, send)
    assert send.await_args_list[0].args[0]["status"] == 405
    with pytest.raises(RuntimeError, match="HTTP requests, not websocket"):
        await reaper.uvicorn.status({"type": "websocket"}, None, send)
