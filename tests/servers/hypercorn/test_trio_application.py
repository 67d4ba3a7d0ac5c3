"""The end of a response under hypercorn on trio: it is neither cut in its midst, nor
waited for without end.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from reaper.config.settings import ReaperConfig
from reaper.servers.hypercorn.trio_application import ENDS, TrioStreams

pytestmark = pytest.mark.trio

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"all of it"}
GONE = {"type": "http.disconnect"}


class Hypercorn:
    """Says `http.disconnect` in the midst of the end of a response, as hypercorn does;
    then its own end takes *seconds* more.
    """

    def __init__(self, seconds: float, *, says: bool = True) -> None:
        self._seconds = seconds
        self._says = says
        self._closing = trio.Event()
        self.closed = False

    async def receive(self) -> Any:
        await self._closing.wait()
        return GONE

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            if self._says:
                self._closing.set()
            await trio.sleep(self._seconds)
            self.closed = True


async def starlette(scope: Any, receive: Any, send: Any) -> None:
    """Sends, and cancels that when it hears that the client has gone."""

    async def listen() -> None:
        await receive()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await send(START)
        await send(END)
        nursery.cancel_scope.cancel()


async def answered(server: Hypercorn) -> None:
    streams = TrioStreams(starlette, ReaperConfig())
    await streams({"type": "http"}, server.receive, server.send)


async def test_the_end_of_a_response_is_not_cut_by_who_hears_of_it(
    autojump_clock: MockClock,
) -> None:
    server = Hypercorn(ENDS / 2)
    await answered(server)
    assert server.closed


async def test_an_end_that_does_not_come_is_cut_a_moment_later(autojump_clock: MockClock) -> None:
    server = Hypercorn(3600)
    start = trio.current_time()
    await answered(server)
    assert not server.closed
    assert trio.current_time() - start == pytest.approx(ENDS, abs=0.01)


async def test_an_end_that_its_client_does_not_take_is_cut_with_the_server(
    autojump_clock: MockClock,
) -> None:
    start = trio.current_time()
    with trio.move_on_after(5):
        await answered(Hypercorn(3600, says=False))
    assert trio.current_time() - start == pytest.approx(5, abs=0.01)
