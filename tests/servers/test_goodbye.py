"""When the streams of a server that stops are told of it, in virtual time; over real
sockets test_streams.py tries it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

import reaper
from reaper import stops
from reaper.config import ReaperConfig
from reaper.servers.goodbye import begin_stopping
from reaper.servers.hypercorn.trio_application import TrioStreams
from reaper.servers.streams import Streams
from tests.helpers.loops import LOOPS, Asyncio, Trio

Loop = Trio | Asyncio
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}
MORE = {"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True}
STOP, WINDOW = 10, 4
LAST = {"type": "http.response.body", "body": b"data: goodbye\n\n", "more_body": False}


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    return LOOPS[request.param]()


@pytest.fixture(autouse=True)
def _nothing_stays_told() -> Iterator[None]:
    yield
    stops.forget()


class Stream:
    """A request of *streams* whose client hears what is sent, and when."""

    def __init__(self, loop: Loop, streams: Streams, kind: str = "http") -> None:
        self._loop = loop
        self.scope: dict[str, Any] = {"type": kind}
        self._streams = streams
        self.sent: list[tuple[float, bytes]] = []
        self.closes = False  # the closing frame is being written
        self.cut = False  # the application returned meanwhile: a server closes the connection then

    async def run(self) -> None:
        await self._streams(self.scope, self.receive, self.send)
        self.cut = self.closes

    async def receive(self) -> Any:
        await self._loop.forever()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            end = b"" if message.get("more_body") else b"."
            self.sent.append((self._loop.now(), message.get("body", b"") + end))
        elif message["type"] == "websocket.close":
            self.closes = True
            await self._loop.sleep(0.001)
            self.closes = False
            self.sent.append((self._loop.now(), b"%d" % message["code"]))

    @property
    def last(self) -> tuple[float, bytes]:
        """The end of the response, and its instant to a hundredth."""
        at, said = self.sent[-1]
        return round(at, 2), said


class Server:
    """The streams of an application, whose stop begins at the instant 10."""

    def __init__(self, loop: Loop, app: Callable[..., Any], window_s: float = 0.0) -> None:
        kind = TrioStreams if isinstance(loop, Trio) else Streams
        self._loop = loop
        window = {"REAPER_TIMEOUTS_DRAIN_WINDOW": f"{window_s:g}s"}
        self.streams = kind(app, ReaperConfig.load(environ=window), talks=True)

    async def stop(self) -> None:
        await self._loop.sleep(STOP)
        begin_stopping()
        self.streams.stop(2)


async def polite(loop: Loop, receive: Any, send: Any) -> None:
    """Looks every 0.75 s whether the server stops, and says goodbye."""
    await send(START)
    while not reaper.stopping():
        await send(MORE)
        await loop.sleep(0.75)
    await send(LAST)


async def listening(loop: Loop, receive: Any, send: Any) -> None:
    """Listens for `http.disconnect`, and ends then."""
    await send(START)
    await receive()
    await send(LAST)


async def endless(loop: Loop, receive: Any, send: Any) -> None:
    """Does neither."""
    await send(START)
    while True:
        await send(MORE)
        await loop.sleep(0.25)


def heard(loop: Loop, *apps: Callable[..., Any]) -> list[Stream]:
    """What the clients of *apps* heard, a stream each."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await scope["app"](loop, receive, send)

    server = Server(loop, app)
    made = [Stream(loop, server.streams) for _ in apps]
    for stream, wanted in zip(made, apps, strict=True):
        stream.scope["app"] = wanted
    loop.run(lambda: loop.together(server.stop, *(stream.run for stream in made)))
    return made


def test_where_nobody_asks_for_the_stop_a_stream_is_told_at_once(loop: Loop) -> None:
    (stream,) = heard(loop, listening)
    assert stream.last == (10, b"data: goodbye\n\n.")


def test_a_stream_that_asks_for_the_stop_ends_by_itself_and_is_not_told(loop: Loop) -> None:
    polite_one, listener = heard(loop, polite, listening)
    assert polite_one.last == (10.5, b"data: goodbye\n\n.")
    assert listener.last == (11.5, b"data: goodbye\n\n.")


def test_a_stream_that_goes_on_is_ended_in_time_although_another_one_asks(loop: Loop) -> None:
    _, stream = heard(loop, polite, endless)
    assert stream.last == (12, b".")


def test_a_stream_that_begins_during_the_stop_has_the_same_time(loop: Loop) -> None:
    async def late(loop: Loop, receive: Any, send: Any) -> None:
        await loop.sleep(STOP + 0.5)
        await listening(loop, receive, send)

    _, stream = heard(loop, polite, late)
    assert stream.last == (12.0, b"data: goodbye\n\n.")


def talked(loop: Loop) -> list[Stream]:
    """What the clients of WebSockets heard, beside a stream that asks for the stop; the
    application returns as soon as it is told.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await polite(loop, receive, send)
        else:
            await send({"type": "websocket.accept"})
            await receive()

    server = Server(loop, app, WINDOW)
    stream = Stream(loop, server.streams)
    talks = [Stream(loop, server.streams, "websocket") for _ in range(50)]
    loop.run(lambda: loop.together(server.stop, stream.run, *(talk.run for talk in talks)))
    return talks


def test_a_websocket_has_its_turn_in_the_window_although_a_stream_asks(loop: Loop) -> None:
    talks = talked(loop)
    assert {talk.last[1] for talk in talks} == {b"1012"}
    ends = sorted(talk.last[0] - STOP for talk in talks)
    assert ends[0] < WINDOW / 4
    assert WINDOW / 2 < ends[-1] <= WINDOW + 0.01


def test_a_websocket_whose_application_returns_when_told_is_not_cut_in_its_close(
    loop: Loop,
) -> None:
    assert not any(talk.cut for talk in talked(loop))


def test_on_trio_a_stop_starts_one_task_for_all_streams_together() -> None:
    async def body() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await endless(Trio(), receive, send)

        server = Server(Trio(), app)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(Stream(Trio(), server.streams).run)
            await trio.sleep(1)
            before = trio.lowlevel.current_statistics().tasks_living
            server.streams.stop(2)
            assert trio.lowlevel.current_statistics().tasks_living == before + 1

    Trio().run(body)
