"""What aiohttp's parser, in C, says of a head that has not come whole."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("aiohttp")

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser

from reaper.driver.served import TIMED_OUT
from reaper.policy import reasons
from reaper.servers.aiohttp.server import Aiohttp, _ends_in_a_part
from scripts.serving import PATIENCE
from tests.helpers.served import bare
from tests.helpers.servers_here import server_here

SETTINGS = {
    **{f"TIMEOUTS_{phase}": "1h" for phase in ("FIRST_BYTE", "KEEP_ALIVE", "BODY", "WRITE")},
    "TIMEOUTS_HEADERS": "600ms",
    "TICK": "100ms",
}
WHOLE = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "ends_in_a_part"),
    [
        (b"GET / HT", True),
        (WHOLE + b"GET / HT", True),
        (WHOLE, False),
        (b"\r\n", False),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123", False),
    ],
)
def test_a_piece_ends_in_a_part_of_a_head_behind_a_request_or_alone(
    data: bytes, ends_in_a_part: bool
) -> None:
    async def main() -> bool:
        return _ends_in_a_part(data)

    assert asyncio.run(main()) is ends_in_a_part


@pytest.mark.parametrize(
    ("heard", "has_begun"),
    [
        ([], False),
        ([WHOLE], False),
        ([WHOLE, b"\r\n"], False),
        ([WHOLE + WHOLE], False),
        ([b"G"], True),
        ([WHOLE + b"GET /"], True),
        ([WHOLE, b"GET / HTTP/1.1\r\nHo"], True),
        ([WHOLE, WHOLE[:-2]], True),
    ],
)
def test_a_part_of_a_head_is_told_from_none(heard: list[bytes], has_begun: bool) -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
        for data in heard:
            parser.feed_data(data)
        protocol = SimpleNamespace(_parser=parser)
        return bare(Aiohttp, SimpleNamespace(get_protocol=lambda: protocol)).begun()

    assert asyncio.run(main()) is has_begun


def test_a_parser_that_cannot_be_read_has_nothing() -> None:
    assert not bare(Aiohttp, SimpleNamespace(get_protocol=lambda: None)).begun()


def test_a_connection_is_told_408_at_keep_alive_only_if_a_head_has_begun() -> None:
    class Known(Aiohttp):
        def begun(self) -> bool:
            return bool(self.transport == "begun")

    assert bare(Known, "begun").answer(reasons.KEEP_ALIVE) == TIMED_OUT
    assert bare(Known, "silent").answer(reasons.KEEP_ALIVE) == b""
    assert bare(Known, "begun").answer(reasons.MAX_AGE) == b""


async def handle(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def until(client: socket.socket, end: bytes) -> bytes:
    """What comes to *client* until it ends so, or the connection does."""
    heard = b""
    while not heard.endswith(end) and (data := client.recv(1000)):
        heard += data
    return heard


@pytest.mark.slow
def test_half_a_head_in_one_piece_with_a_request_is_ended_by_its_own_limit(tmp_path: Path) -> None:
    """And not by `keep_alive`, an hour here; one that becomes whole is answered, and
    its connection rests.
    """
    app = web.Application()
    app.router.add_get("/", handle)
    # One goes on in time, also where the machine holds it up for a second or two.
    settings = SETTINGS | {"TIMEOUTS_HEADERS": "3s"}
    with (
        server_here("aiohttp", tmp_path / "log", None, app, settings) as here,
        socket.create_connection(here.address, PATIENCE) as stops,
        socket.create_connection(here.address, PATIENCE) as goes_on,
    ):
        for client in (stops, goes_on):
            client.sendall(WHOLE + WHOLE[:9])
            until(client, b"ok")
        time.sleep(0.3)
        goes_on.sendall(WHOLE[9:])
        assert until(goes_on, b"ok")
        assert until(stops, b"\n").startswith(b"HTTP/1.1 408 ")
        goes_on.sendall(WHOLE)
        assert until(goes_on, b"ok")
