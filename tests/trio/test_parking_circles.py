"""A parked connection that has ended is freed at once: it leaves no circle, which only
the collector could free.

Servers tame the collector (`tamed_collector`), so what is old and in a circle stays for
hours: behind TLS 18 KB each.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import reaper.trio
from reaper.core.lease import Lease
from reaper.trio import ParkableStream
from reaper.trio.parking import Parked
from reaper.trio.tls import TlsSession
from server_example.http.connection import HttpConnection
from server_example.http.transport import Transport
from tests.helpers.http_world import head_of, rest, running, until, will_reset
from tests.helpers.loops import autojump
from tests.helpers.streams import no_circles

pytestmark = pytest.mark.trio

KINDS = (
    Parked,
    Lease,
    TlsSession,
    ParkableStream,
    HttpConnection,
    Transport,
    reaper.trio.Connection,
)
CLIENTS = 5


@pytest.fixture
def clock() -> MockClock:
    return autojump("still")


ENDS = {
    "its peer goes while it is parked": b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "it is reaped while it is parked": b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a head is reaped": b"GET /nowhere HT",
    "its last answer is given": b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "its peer breaks off in a request": b"GET /sleep?s=100 HTTP/1.1\r\nhost: x\r\n\r\n",
    "its request takes too long": b"GET /sleep?s=100 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_http_connection_leaves_no_circle(
    clock: MockClock, secured: dict[str, Any], end: str
) -> None:
    async with running(
        keep_alive="5s", headers="5s", request="20s", linger="0s", **secured
    ) as server:
        with no_circles(*KINDS):
            streams = [await server.dial() for _ in range(CLIENTS)]
            for stream in streams:
                await stream.send_all(ENDS[end])
            if "peer" in end:
                await until(lambda: server.counters.requests == CLIENTS)
                for stream in streams:
                    if "parked" in end:
                        await head_of(stream)
                    else:
                        will_reset(stream)
            if "parked" in end:
                await until(lambda: server.lot.parked == CLIENTS)
            if "peer" not in end:
                for stream in streams:
                    await rest(stream)
            for stream in streams:
                await trio.aclose_forcefully(stream)
            del stream, streams
            await until(lambda: server.counters.closed == CLIENTS)
            assert len(server.lot) == 0
            await trio.sleep(30)  # the sweep's lease goes by itself


class Circle:
    """One that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


async def test_a_circle_that_was_made_before_is_not_charged_to_the_block() -> None:
    before = [Circle()]
    with no_circles(Circle):
        before.clear()
    with pytest.raises(AssertionError, match="Circle"), no_circles(Circle):
        Circle()
