"""What aiohttp's parser, in C, says of a head that has not come whole."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("aiohttp")

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser

from reaper.driver.served import TIMED_OUT
from reaper.policy import reasons
from reaper.servers.aiohttp.server import Aiohttp
from tests.helpers.served import bare

WHOLE = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


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
