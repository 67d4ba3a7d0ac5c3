"""Quiet streams over sockets: each server pings them between two events, and nowhere
else. When, and what that costs, is in test_pings.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path

import pytest
from aiohttp import web
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import reaper
import reaper.uvicorn
from reaper.config import ReaperConfig
from reaper.policy.boundaries import EVENTS, MARK
from tests.helpers import quiet_streams
from tests.helpers.event_streams import events, pieces
from tests.helpers.quiet_streams import query_of
from tests.helpers.servers_here import SERVERS_HERE, server_here, uvicorn_here

pytestmark = pytest.mark.slow

EVENT = b"data: 1\n\n"
PING = EVENTS.ping
PINGS = rb"(:\n\n)+"
LAZY = ("ASGIWorker",)
"""The servers that send the headers of a response with its first bytes."""


async def pieces_of(
    address: tuple[str, int], plan: list[bytes | float], path: str = "/", method: str = "GET"
) -> list[bytes]:
    """The chunks of the answer to a request for *plan*; what has no chunks is one."""
    reader, writer = await asyncio.open_connection(*address[:2])
    request = f"{method} {path}?{query_of(plan)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    said = await reader.read()
    writer.close()
    head, _, rest = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    if b"transfer-encoding: chunked" not in head.lower():
        return [rest]
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return found


async def heard(address: tuple[str, int], plan: list[bytes | float], path: str = "/") -> bytes:
    """The body of the answer to a request for *plan*."""
    return b"".join(await pieces_of(address, plan, path))


async def heard_over_http2(address: tuple[str, int], plan: list[bytes | float]) -> bytes:
    """The same by HTTP/2."""
    reader, writer = await asyncio.open_connection(*address[:2])
    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    path = f"/?{query_of(plan)}"
    names = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "x"}
    connection.send_headers(1, list(names.items()), end_stream=True)
    writer.write(connection.data_to_send())
    body, ended = b"", False
    while not ended and (data := await reader.read(65536)):
        for event in connection.receive_data(data):
            if isinstance(event, DataReceived):
                body += event.data
            ended = ended or isinstance(event, StreamEnded)
        writer.write(connection.data_to_send())
    writer.close()
    assert ended
    return body


PLAN: list[bytes | float] = [EVENT, 2.2, b"data: ", 2.2, b"2\n\n"]
PAUSED = re.escape(EVENT) + PINGS + rb"data: 2\n\n"
GIVEN = {"TIMEOUTS_STREAM_PING": "1s", "TICK": "100ms"}


@pytest.mark.parametrize("kind", SERVERS_HERE)
def test_each_server_pings_between_two_events_and_nowhere_else(kind: str, tmp_path: Path) -> None:
    async def ask(address: tuple[str, int]) -> list[bytes]:
        return list(
            await asyncio.gather(
                heard(address, PLAN),
                heard(address, [2.2, EVENT]),
                heard(address, [EVENT, 2.2, EVENT], "/gzip"),
                *([heard_over_http2(address, PLAN)] if "hypercorn" in kind else []),
            )
        )

    made = quiet_streams.for_aiohttp()
    with server_here(kind, tmp_path / "log", quiet_streams.application, made, GIVEN) as here:
        paused, late, gzip, *others = asyncio.run(ask(here.address))
    for each in (paused, *others):
        assert re.fullmatch(PAUSED, each), each
    early = b"" if kind in LAZY else PINGS
    assert re.fullmatch(early + re.escape(EVENT), late), late
    assert gzip == EVENT * 2


def test_uvicorn_pings_a_stream_of_http2(tmp_path: Path) -> None:
    config = ReaperConfig.load(environ={f"REAPER_{name}": said for name, said in GIVEN.items()})
    protocol, app = reaper.uvicorn.Http2, quiet_streams.application
    with uvicorn_here(protocol, tmp_path / "log", app, config) as here:
        assert re.fullmatch(PAUSED, asyncio.run(heard_over_http2(here.address, PLAN)))


async def goodbye(request: web.Request) -> web.StreamResponse:
    """A stream that says goodbye when it is told; `/spared` is told of no age, `/deaf`
    asks nothing.
    """
    request["reaper"] = {"stream_age": request.path != "/spared"}
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    if request.path == "/deaf":
        await asyncio.sleep(60)
    try:
        await asyncio.wait_for(reaper.stopping().wait(), 2)
        await response.write(b"data: bye\n\n")
    except TimeoutError:
        await response.write(EVENT)
    return response


def test_a_stream_of_aiohttp_is_told_at_its_age_and_ended_if_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = web.Application()
    app.router.add_get("/{path:.*}", goodbye)
    aged = {
        "TIMEOUTS_STREAM_AGE": "1s",
        "TIMEOUTS_DRAIN_STREAMS": "500ms",
        "LIMITS_MAX_AGE_JITTER": "0",
        "TICK": "100ms",
    }

    async def ask(address: tuple[str, int]) -> list[bytes]:
        paths = ("/polite", "/deaf", "/spared")
        return list(await asyncio.gather(*(heard(address, [], path) for path in paths)))

    application = quiet_streams.application
    with server_here("aiohttp", tmp_path / "log", application, app, aged) as here:
        assert asyncio.run(ask(here.address)) == [b"data: bye\n\n", b"", EVENT]
    assert caplog.text.count("stream ended: stream_age, limit 1s") == 2


DRAWN = st.lists(st.tuples(pieces(), st.integers(0, 1 << 14)), min_size=50, max_size=50)
CHUNKINGS = int(os.environ.get("CHUNKINGS", "100"))
"""How many random streams are asked for, rounded up to fifties."""


@pytest.mark.parametrize("kind", ["HttpTools", "Http2"])
def test_what_arrives_less_our_comments_is_what_the_application_has_sent(
    kind: str, tmp_path: Path
) -> None:
    """Fifty streams at a time; the bits of a number say after which piece one pauses.
    By HTTP/1, a quarter each goes to a response that is plain, encoded, of a length,
    and to HEAD.
    """
    made = quiet_streams.for_aiohttp()
    given_here = {"TIMEOUTS_STREAM_PING": "100ms", "TICK": "25ms"}
    pinged = 0

    async def one(address: tuple[str, int], number: int, parts: list[bytes], pauses: int) -> None:
        nonlocal pinged
        plan: list[bytes | float] = []
        for at, part in enumerate(parts):
            plan += [part, 0.15] if pauses >> at & 1 else [part]
        whole = b"".join(parts)
        if kind == "Http2":
            body = await heard_over_http2(address, plan)
            assert events(body) == events(whole)
            pinged += len(body) > len(whole)
        elif way := number % 4:
            path, method = ("/gzip", "/length", "/")[way - 1], "HEAD" if way == 3 else "GET"
            body = b"".join(await pieces_of(address, plan, path, method))
            assert body == (b"" if way == 3 else whole)
        else:
            chunks = await pieces_of(address, plan)
            assert events(b"".join(chunks)) == events(whole)
            if PING not in parts:
                early = bool(chunks) and chunks[0] == PING
                theirs = b"".join(chunk for chunk in chunks if chunk != PING)
                assert theirs == (whole.removeprefix(MARK) if early else whole)
                pinged += chunks.count(PING)

    @settings(
        max_examples=-(-CHUNKINGS // 50),
        deadline=None,
        phases=[Phase.generate],  # a smaller failure would take minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],  # fifty at a time
    )
    @given(DRAWN)
    def asked(drawn: list[tuple[list[bytes], int]]) -> None:
        async def ask() -> None:
            await asyncio.gather(
                *(one(here.address, number, *each) for number, each in enumerate(drawn))
            )

        asyncio.run(ask())

    log, app = tmp_path / "log", quiet_streams.application
    with server_here(kind, log, app, made, given_here) as here:
        asked()
    assert pinged
