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
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import reaper
from loadgen.plan.acts import Ask, Begin, Done, Kind
from loadgen.playing.play import played
from reaper.policy.boundaries import EVENTS, MARK
from scripts.acting import PATIENCE
from tests.helpers import quiet_streams
from tests.helpers.event_streams import events, pieces
from tests.helpers.quiet_streams import TRAILER, query_of
from tests.helpers.servers_here import CLEAR, SERVERS_HERE, server_here

pytestmark = pytest.mark.slow

EVENT = b"data: 1\n\n"
PING = EVENTS.ping
PINGS = rb"(:\n\n)+"
LAZY = ("ASGIWorker",)
"""The servers that send the headers of a response with its first bytes."""
OVER_HTTP2 = ("hypercorn", "hypercorn on trio")
"""The servers that speak HTTP/2 on the port of HTTP/1."""


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


async def heard_over_http2(
    address: tuple[str, int], plan: list[bytes | float], path: str = "/", method: str = "GET"
) -> tuple[bytes, dict[str, str]]:
    """The same by HTTP/2, and its trailers."""
    asks = Ask(f"{path}?{query_of(plan)}", method, more=(("te", "trailers"),))
    kind = Kind(name="hears", speaks="http2", acts=(Begin(), asks, Done(0)))
    seen = await played(kind, address[:2], PATIENCE)
    ((_, body, end),) = seen.streams
    assert end == "whole"
    return body, seen.trailers[0]


PLAN: list[bytes | float] = [EVENT, 2.2, b"data: ", 2.2, b"2\n\n"]
PAUSED = re.escape(EVENT) + PINGS + rb"data: 2\n\n"
GIVEN = {"TIMEOUTS_STREAM_PING": "1s", "TICK": "100ms"}


async def body_over_http2(address: tuple[str, int], plan: list[bytes | float]) -> bytes:
    return (await heard_over_http2(address, plan))[0]


@pytest.mark.parametrize("kind", SERVERS_HERE)
def test_each_server_pings_between_two_events_and_nowhere_else(kind: str, tmp_path: Path) -> None:
    async def ask(address: tuple[str, int]) -> list[bytes]:
        return list(
            await asyncio.gather(
                heard(address, PLAN),
                heard(address, [2.2, EVENT]),
                heard(address, [EVENT, 2.2, EVENT], "/gzip"),
                *([body_over_http2(address, PLAN)] if kind in OVER_HTTP2 else []),
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


@pytest.mark.parametrize("kind", ["Http2", "ASGIWorker"])
def test_a_stream_of_http2_is_pinged_where_that_is_another_server(
    kind: str, tmp_path: Path
) -> None:
    made, app, log = quiet_streams.for_aiohttp(), quiet_streams.application, tmp_path / "log"
    with server_here(kind, log, app, made, GIVEN, **CLEAR) as here:
        assert re.fullmatch(PAUSED, asyncio.run(body_over_http2(here.address, PLAN)))


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
        # A stream grows no older while its loop stalls: who is to be told has time.
        await asyncio.wait_for(reaper.stopping().wait(), 2 if request.path == "/spared" else 20)
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
"""How many random streams each server is asked for, rounded up to fifties. The first
fifty are the simplest there are, and nothing pauses in them.
"""
KINDS = [
    *(("HttpTools", 1), ("hypercorn", 1), ("ASGIWorker", 1), ("aiohttp", 1)),
    *(("Http2", 2), ("hypercorn", 2), ("hypercorn on trio", 2), ("ASGIWorker", 2)),
]
"""The servers, and the HTTP that they are asked by."""
WAYS = ["/", "/gzip", "/length", "HEAD", "/trailers"]
"""What each fifth of the streams goes to; by HTTP/1 the last is as the first."""


@pytest.mark.parametrize(("kind", "spoken"), KINDS)
def test_what_arrives_less_our_comments_is_what_the_application_has_sent(
    kind: str, spoken: int, tmp_path: Path
) -> None:
    """Fifty streams at a time; the bits of a number say after which piece each
    pauses.
    """
    made = quiet_streams.for_aiohttp()
    given_here = {"TIMEOUTS_STREAM_PING": "100ms", "TICK": "25ms"}
    pinged = 0

    async def one(address: tuple[str, int], number: int, parts: list[bytes], pauses: int) -> None:
        nonlocal pinged
        plan: list[bytes | float] = []
        for at, part in enumerate(parts):
            plan += [part, 0.15] if pauses >> at & 1 else [part]
        whole, way = b"".join(parts), WAYS[number % len(WAYS)]
        path, method = ("/", "HEAD") if way == "HEAD" else (way, "GET")
        if spoken == 2:
            body, trailers = await heard_over_http2(address, plan, path, method)
            name, value = (word.decode() for word in TRAILER)
            assert trailers == ({name: value} if way == "/trailers" else {})
        else:
            path = "/" if way == "/trailers" else path
            body = b"".join(await pieces_of(address, plan, path, method))
        if way in ("/gzip", "/length", "HEAD"):
            assert body == (b"" if way == "HEAD" else whole)
            return
        assert events(body) == events(whole)
        theirs = whole.removeprefix(MARK) if body.startswith(PING) else whole
        assert body.replace(PING, b"") == theirs.replace(PING, b"")
        pinged += len(body) > len(theirs)

    @settings(
        max_examples=-(-CHUNKINGS // 50),
        deadline=None,
        phases=[Phase.generate],  # a smaller failure would take minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],  # fifty at a time
    )
    @given(DRAWN)
    def asked(drawn: list[tuple[list[bytes], int]]) -> None:
        async def ask() -> None:
            plans = [([EVENT] * 4, 0b111), *drawn]  # of the others none may be at a boundary
            await asyncio.gather(
                *(one(here.address, number, *each) for number, each in enumerate(plans))
            )

        asyncio.run(ask())

    log, app = tmp_path / "log", quiet_streams.application
    more = CLEAR if spoken == 2 else {}
    with server_here(kind, log, app, made, given_here, **more) as here:
        # A server that begins draws random numbers, which Hypothesis takes for ours.
        asyncio.run(one(here.address, 0, [EVENT], 0))
        asked()
    assert pinged
