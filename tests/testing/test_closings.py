"""A server of one's own under test: who is closed when, in virtual time, on both loops
alike.
"""

from __future__ import annotations

from typing import Any

import pytest

from reaper import InvalidArgument
from reaper.config import ReaperConfig
from reaper.testing import Client, on_asyncio, on_trio

IDLE, TICK = 30.0, 1.0
SPEAKS = [(20.0 * number, b"x") for number in range(1, 101)]


async def trio_echo(stream: Any) -> None:
    async for data in stream:
        await stream.send_all(data)


async def asyncio_echo(reader: Any, writer: Any) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


WAYS: dict[str, Any] = {
    "trio": (on_trio.closings, trio_echo),
    "asyncio": (on_asyncio.closings, asyncio_echo),
}


@pytest.mark.parametrize("way", WAYS)
def test_silent_ones_are_closed_in_time_and_those_that_speak_when_they_stop(way: str) -> None:
    closings, echo = WAYS[way]
    clients = [Client(), Client(SPEAKS), Client([(5.0, b"hello")]), Client(leaves=10.0)]
    silent, speaks, once, left = closings(echo, clients, idle=IDLE, tick=TICK)
    assert IDLE <= silent.at <= IDLE + TICK
    assert silent.heard == b""
    assert 2000 + IDLE <= speaks.at <= 2000 + IDLE + TICK
    assert speaks.heard == b"x" * 100
    assert 5 + IDLE <= once.at <= 5 + IDLE + TICK
    assert once.heard == b"hello"
    assert left.at is None


@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_connected_when_time_is_over_was_not_closed(way: str) -> None:
    closings, echo = WAYS[way]
    clients = [Client(SPEAKS), Client()]
    speaks, silent = closings(echo, clients, idle=IDLE, tick=TICK, until=100.0)
    assert (speaks.at, speaks.heard) == (None, b"xxxx")
    assert IDLE <= silent.at <= IDLE + TICK


@pytest.mark.parametrize("way", WAYS)
def test_nobody_and_no_timeout_are_fine(way: str) -> None:
    closings, echo = WAYS[way]
    assert closings(echo, [], idle=IDLE) == []
    (kept,) = closings(echo, [Client()], idle=0, until=1000.0)
    assert kept.at is None


def test_what_a_client_cannot_do_is_refused() -> None:
    for wrong in ({"sends": [(-1.0, b"")]}, {"sends": [(2.0, b""), (1.0, b"")]}, {"leaves": -1.0}):
        with pytest.raises(InvalidArgument):
            Client(**wrong)
    with pytest.raises(InvalidArgument, match=r"timeouts\.vanished must be 0s here"):
        on_asyncio.closings(asyncio_echo, [Client()], config=ReaperConfig())
    for closings, echo in WAYS.values():
        with pytest.raises(InvalidArgument, match="until"):
            closings(echo, [Client()], until=0.0)
