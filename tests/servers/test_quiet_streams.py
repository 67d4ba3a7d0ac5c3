"""Quiet streams over sockets: each server pings them between two events, and nowhere else. When, and
what that costs, is in test_pings.py.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.helpers import quiet_streams
from tests.helpers.quiet_streams import query_of
from tests.helpers.servers_here import SERVERS_HERE, server_here

pytestmark = pytest.mark.slow

EVENT = b"data: 1\n\n"
PINGS = rb"(:\n\n)+"
LAZY = ("ASGIWorker",)
"""The servers that send the headers of a response with its first bytes."""


async def heard(address: tuple[str, int], plan: list[bytes | float], path: str = "/") -> bytes:
    """The body of the answer to a request for *plan*, without what chunks add."""
    reader, writer = await asyncio.open_connection(*address[:2])
    request = f"GET {path}?{query_of(plan)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    said = await reader.read()
    writer.close()
    head, _, rest = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize("kind", SERVERS_HERE)
def test_each_server_pings_between_two_events_and_nowhere_else(kind: str, tmp_path: Path) -> None:
    async def ask(address: tuple[str, int]) -> list[bytes]:
        return list(
            await asyncio.gather(
                heard(address, [EVENT, 2.2, b"data: ", 2.2, b"2\n\n"]),
                heard(address, [2.2, EVENT]),
                heard(address, [EVENT, 2.2, EVENT], "/gzip"),
            )
        )

    given = {"TIMEOUTS_STREAM_PING": "1s", "TICK": "100ms"}
    made = quiet_streams.for_aiohttp()
    with server_here(kind, tmp_path / "log", quiet_streams.application, made, given) as here:
        paused, late, gzip = asyncio.run(ask(here.address))
    assert re.fullmatch(re.escape(EVENT) + PINGS + rb"data: 2\n\n", paused), paused
    early = b"" if kind in LAZY else PINGS
    assert re.fullmatch(early + re.escape(EVENT), late), late
    assert gzip == EVENT * 2
