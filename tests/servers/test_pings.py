"""Quiet streams are pinged, and old ones ended, in virtual time;
`test_quiet_streams.py` does it over sockets.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reaper
from reaper import stops
from reaper.config import ReaperConfig
from reaper.policy.boundaries import EVENTS, MARK, NEW
from reaper.servers.goodbye import begin_stopping
from reaper.servers.hypercorn.trio_application import TrioStreams
from reaper.servers.pings import Pings, Quiet
from reaper.servers.streams import Streams
from tests.helpers.event_streams import events, pieces
from tests.helpers.loops import LOOPS, Asyncio, Trio

Loop = Trio | Asyncio
Write = Callable[[bytes], Awaitable[None]]
SSE = (b"content-type", b"text/event-stream")
PING = EVENTS.ping
A_STREAM = {"REAPER_TIMEOUTS_STREAM_PING": "4s", "REAPER_TICK": "500ms"}


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    return LOOPS[request.param]()


@pytest.fixture(autouse=True)
def _nothing_stays_told() -> Iterator[None]:
    yield
    stops.forget()


class Client:
    """Hears one response, and when.

    Attributes:
        said: Each message with bytes, and its instant.
        ended: When the response was complete; None: it is not.
        blocked: Whether it takes nothing.
        slow: Seconds that each message takes to be sent.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.said: list[tuple[float, bytes]] = []
        self.ended: float | None = None
        self.blocked = False
        self.slow = 0.0
        self.types: list[str] = []

    async def receive(self) -> Any:
        await self._loop.forever()

    async def send(self, message: Any) -> None:
        if self.slow and message["type"] == "http.response.body":
            await self._loop.sleep(self.slow)
        self.types.append(message["type"])
        body = bytes(message.get("body", b""))
        if body:
            self.said.append((round(self._loop.now(), 3), body))
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.ended = round(self._loop.now(), 3)

    @property
    def stream(self) -> bytes:
        return b"".join(body for _, body in self.said)

    @property
    def pings(self) -> list[float]:
        return [at for at, body in self.said if body == PING]


class World:
    """A server's streams, and a client for each of *apps*, which run until all have
    ended.

    Args:
        loop: In which all runs.
        given: Variables, by name.
    """

    def __init__(self, loop: Loop, given: dict[str, str], *, eager: bool = True) -> None:
        self.loop = loop
        self.config = ReaperConfig.load(environ=given)
        self._eager = eager
        self.streams: Streams
        self.reasons: dict[str, int] = {}

    def _made(self, app: Any, driver: Any) -> Streams:
        kind = TrioStreams if isinstance(self.loop, Trio) else Streams

        def blocked(receive: Any, send: Any) -> bool:
            return bool(send.__self__.blocked)

        return kind(app, self.config, driver, talks=True, blocked=blocked, eager=self._eager)

    def run(self, *apps: Any, stop: float | None = None, scope: Any = None) -> list[Client]:
        """The clients of *apps*; the server is told to *stop* at that instant."""
        loop, clients = self.loop, [Client(self.loop) for _ in apps]

        async def app(given: Any, receive: Any, send: Any) -> None:
            await given["app"](given, receive, send)

        async def body() -> None:
            async with loop.adapter.open_reaper(self.config) as watcher:
                self.streams = self._made(app, watcher.driver)

                async def stopped() -> None:
                    if stop is not None:
                        await loop.sleep(stop)
                        begin_stopping()
                        self.streams.stop(self.config.timeouts.drain_streams)

                def asked(client: Client, wanted: Any) -> Any:
                    request = {"type": "http", "method": "GET", "path": "/e", **(scope or {})}

                    async def ask() -> None:
                        request["app"] = wanted
                        request["client"] = client
                        await self.streams(request, client.receive, client.send)

                    return ask

                asks = [asked(*each) for each in zip(clients, apps, strict=True)]
                await loop.together(stopped, *asks)
                self.reasons = dict(watcher.driver.books.reasons)

        loop.run(body)
        return clients


def writing(
    loop: Loop, *steps: bytes | float, headers: Any = (SSE,), said: Any = None, **start: Any
) -> Any:
    """An application that writes bytes and sleeps seconds, in that order."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"]["reaper"].update(said or {})
        begin = {"type": "http.response.start", "status": 200, "headers": list(headers), **start}
        await send(begin)
        for step in steps:
            if isinstance(step, bytes):
                await send({"type": "http.response.body", "body": step, "more_body": True})
            else:
                await loop.sleep(step)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


EVENT = b"data: 1\n\n"


def again(piece: bytes, pause: float, times: int) -> list[bytes | float]:
    """*piece* and a *pause*, so many *times*."""
    return [step for _ in range(times) for step in (piece, pause)]


def test_a_quiet_stream_is_pinged_when_its_time_is_over_and_a_tick_later_at_most(
    loop: Loop,
) -> None:
    (client,) = World(loop, A_STREAM).run(writing(loop, 1.2, EVENT, 20.0))
    first, *others = client.pings
    assert 1.2 + 4 <= first <= 1.2 + 4 + 0.51
    gaps = [b - a for a, b in zip(client.pings, others, strict=False)]
    assert all(4 <= gap <= 4.51 for gap in gaps)
    assert len(gaps) == 3


def test_what_the_application_writes_counts_and_none_is_doubled(loop: Loop) -> None:
    (client,) = World(loop, A_STREAM).run(writing(loop, *again(b": ping\n\n", 4.0, 5), EVENT, 1.0))
    assert client.pings == []


def test_a_stream_is_not_pinged_inside_of_an_event(loop: Loop) -> None:
    (client,) = World(loop, A_STREAM).run(writing(loop, b"data: ", 20.0, b"1\n", 20.0, b"\n", 5.0))
    assert len(client.pings) == 1
    assert client.stream == b"data: 1\n\n" + PING


@pytest.mark.parametrize(("eager", "count"), [(True, 2), (False, 0)])
def test_a_stream_is_pinged_before_its_first_bytes_where_its_headers_are_out(
    loop: Loop, eager: bool, count: int
) -> None:
    (client,) = World(loop, A_STREAM, eager=eager).run(writing(loop, 9.5, EVENT, 1.0))
    assert len(client.pings) == count


def test_where_the_headers_come_with_the_first_bytes_it_is_pinged_from_then_on(loop: Loop) -> None:
    (client,) = World(loop, A_STREAM, eager=False).run(writing(loop, 5.0, EVENT, 5.0))
    assert len(client.pings) == 1


@pytest.mark.parametrize(
    ("headers", "scope", "given"),
    [
        ([SSE, (b"content-length", b"9")], {}, {}),
        ([SSE, (b"content-encoding", b"gzip")], {}, {}),
        ([(b"content-type", b"text/plain")], {}, {}),
        ([(b"content-type", b"application/x-ndjson")], {}, {}),
        ([SSE], {"method": "HEAD"}, {}),
        ([SSE], {}, {"REAPER_TIMEOUTS_STREAM_PING": "0s"}),
        ([SSE], {}, {"REAPER_SERVER_STREAMS": "text/plain"}),
    ],
)
def test_nothing_is_written_where_it_would_change_more_than_a_pause(
    loop: Loop, headers: Any, scope: Any, given: Any
) -> None:
    app = writing(loop, EVENT, 20.0, headers=headers)
    (client,) = World(loop, A_STREAM | given).run(app, scope=scope)
    assert client.stream == EVENT


def test_a_stream_of_lines_is_pinged_by_an_empty_line_where_the_setting_says_so(
    loop: Loop,
) -> None:
    headers = [(b"content-type", b"application/x-ndjson")]
    app = writing(loop, b"{}\n", 5.0, headers=headers)
    (client,) = World(loop, A_STREAM | {"REAPER_SERVER_STREAM_PING_LINES": "true"}).run(app)
    assert client.stream == b"{}\n\n"


@pytest.mark.parametrize(
    ("said", "given", "count"),
    [
        ({"stream_ping": False}, {}, 0),
        ({"stream_ping": True}, {"REAPER_TIMEOUTS_STREAM_PING": "0s"}, 1),
    ],
)
def test_an_application_switches_pings_off_and_on_for_one_response(
    loop: Loop, said: Any, given: Any, count: int
) -> None:
    one, other = World(loop, A_STREAM | given).run(
        writing(loop, EVENT, 20.0, said=said), writing(loop, EVENT, 20.0)
    )
    assert len(one.pings) == count
    assert len(other.pings) == (0 if given else 4)


def test_a_client_that_takes_nothing_is_not_pinged_until_it_does(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = scope["client"]
        client.blocked = True

        async def takes() -> None:
            await loop.sleep(30)
            client.blocked = False

        await loop.together(takes, lambda: writing(loop, EVENT, 40.0)(scope, receive, send))

    (client,) = World(loop, A_STREAM).run(app)
    assert len(client.pings) == 2
    assert client.pings[0] > 30


def test_what_the_application_sends_is_not_overtaken_by_a_ping_that_waits(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        scope["client"].slow = 3.0  # the ping takes that long
        await loop.sleep(5.5)
        scope["client"].slow = 0.0  # and what comes now would overtake it
        await send({"type": "http.response.body", "body": b"data: 2", "more_body": True})
        await send({"type": "http.response.body", "body": b"\n\n", "more_body": False})

    (client,) = World(loop, A_STREAM).run(app)
    assert client.stream == EVENT + PING + b"data: 2\n\n"


def test_a_stream_is_not_pinged_while_the_application_is_sending(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["client"].slow = 20.0
        await writing(loop, EVENT)(scope, receive, send)

    (client,) = World(loop, A_STREAM).run(app)
    assert client.stream == EVENT


def test_trailers_of_a_stream_come_through(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await writing(loop, EVENT, 5.0, trailers=True)(scope, receive, send)
        await send({"type": "http.response.trailers", "headers": [(b"a", b"b")]})

    (client,) = World(loop, A_STREAM).run(app)
    assert client.types[-2:] == ["http.response.body", "http.response.trailers"]
    assert len(client.pings) == 1


def test_a_stream_with_trailers_is_ended_with_them(loop: Loop) -> None:
    (client,) = World(loop, A_STREAM).run(writing(loop, EVENT, 30.0, trailers=True), stop=5)
    assert client.ended == 7
    assert client.types[-1] == "http.response.trailers"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(pieces(), st.integers(0, 1 << 14)), min_size=5, max_size=5))
def test_the_bytes_less_our_comments_are_those_of_the_application(
    drawn: list[tuple[list[bytes], int]],
) -> None:
    """A thousand streams, five at a time; the bits of a number say after which piece
    one pauses.
    """
    loop = Asyncio()
    apps = []
    for parts, pauses in drawn:
        steps: list[bytes | float] = []
        for number, part in enumerate(parts):
            steps.append(part)
            if pauses >> number & 1:
                steps.append(5.0)
        apps.append(writing(loop, *steps))
    for (parts, _), client in zip(drawn, World(loop, A_STREAM).run(*apps), strict=True):
        whole = b"".join(parts)
        if PING not in parts:
            theirs = b"".join(body for _, body in client.said if body != PING)
            early = bool(client.said) and client.said[0][1] == PING
            assert theirs == (whole.removeprefix(MARK) if early else whole)
        assert events(client.stream) == events(whole)


# ---- the end


def test_a_stream_that_has_reached_its_age_is_told_and_ended_with_a_reason(loop: Loop) -> None:
    async def listening(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        message = await receive()
        assert message["type"] == "http.disconnect"
        await loop.sleep(0.5)
        await send({"type": "http.response.body", "body": b"data: bye\n\n", "more_body": False})

    given = {
        "REAPER_TIMEOUTS_STREAM_AGE": "20s",
        "REAPER_LIMITS_MAX_AGE_JITTER": "0",
        "REAPER_TICK": "500ms",
    }
    world = World(loop, given)
    polite, stubborn, spared, download = world.run(
        listening,
        writing(loop, EVENT, 40.0),
        writing(loop, EVENT, 40.0, said={"stream_age": False}),
        writing(loop, EVENT, 40.0, headers=[]),
    )
    assert polite.ended is not None
    assert 20.5 <= polite.ended <= 21.01
    assert polite.stream == b"data: bye\n\n"
    assert stubborn.ended is not None
    assert 22 <= stubborn.ended <= 22.51
    assert spared.ended == download.ended == 40
    assert world.reasons == {"stream_age": 2}


def test_the_ages_of_streams_are_spread_by_the_jitter(loop: Loop) -> None:
    given = {"REAPER_TIMEOUTS_STREAM_AGE": "100s", "REAPER_LIMITS_MAX_AGE_JITTER": "0.5"}
    clients = World(loop, given).run(*[writing(loop, EVENT, 200.0)] * 40)
    ends = sorted(client.ended or 0.0 for client in clients)
    assert ends[0] < 80
    assert 90 < ends[-1] <= 103.1


def test_a_stream_that_asks_for_the_stop_says_goodbye_at_its_age(loop: Loop) -> None:
    async def polite(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        await reaper.stopping()
        await send({"type": "http.response.body", "body": b"data: bye\n\n", "more_body": False})

    given = {"REAPER_TIMEOUTS_STREAM_AGE": "20s", "REAPER_LIMITS_MAX_AGE_JITTER": "0"}
    (client,) = World(loop, given).run(polite)
    assert client.ended is not None
    assert 20 <= client.ended <= 21.01
    assert client.stream == b"data: bye\n\n"


def test_at_a_stop_streams_end_evenly_over_the_window_the_first_at_once(loop: Loop) -> None:
    asked: list[float] = []

    async def polite(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        await reaper.stopping()
        asked.append(loop.now())
        await send({"type": "http.response.body", "body": b"data: bye\n\n", "more_body": False})

    clients = World(loop, {"REAPER_TIMEOUTS_DRAIN_WINDOW": "5s"}).run(*[polite] * 100, stop=10)
    ends = sorted(round(client.ended - 10, 2) for client in clients if client.ended is not None)
    assert ends == pytest.approx([each * 0.05 for each in range(100)], abs=0.02)
    assert len(asked) == 100


def test_the_last_stream_is_ended_by_the_end_of_the_window_and_its_own_time(loop: Loop) -> None:
    endless = writing(loop, *again(EVENT, 1.0, 60))
    clients = World(loop, {"REAPER_TIMEOUTS_DRAIN_WINDOW": "5s"}).run(*[endless] * 50, stop=10)
    ends = sorted(client.ended or 99.0 for client in clients)
    assert ends[0] == 12
    assert ends[-1] == pytest.approx(10 + 5 * 49 / 50 + 2, abs=0.02)


def test_a_request_that_is_no_stream_hears_of_the_stop_at_the_signal(loop: Loop) -> None:
    heard: list[float] = []

    async def ordinary(scope: Any, receive: Any, send: Any) -> None:
        await reaper.stopping()
        heard.append(loop.now())

    World(loop, {"REAPER_TIMEOUTS_DRAIN_WINDOW": "5s"}).run(*[ordinary] * 5, stop=10)
    assert heard == [10] * 5


def test_a_client_is_told_when_to_come_back_before_its_stream_ends(loop: Loop) -> None:
    given = {"REAPER_SERVER_STREAM_RETRY": "2s", "REAPER_TIMEOUTS_STREAM_PING": "0s"}
    clients = World(loop, given).run(*[writing(loop, EVENT, 60.0)] * 30, stop=10)
    said = [re.fullmatch(rb"data: 1\n\nretry: (\d+)\n\n", client.stream) for client in clients]
    waits = [int(found[1]) for found in said if found is not None]
    assert len(waits) == 30
    assert all(2000 <= wait <= 4000 for wait in waits)
    assert max(waits) - min(waits) > 500


def test_nothing_is_said_inside_of_an_event_that_is_cut(loop: Loop) -> None:
    (client,) = World(loop, {"REAPER_SERVER_STREAM_RETRY": "2s"}).run(
        writing(loop, b"data: 1", 60.0), stop=10
    )
    assert client.stream == b"data: 1"


# ---- what it costs


def test_a_stream_in_the_ring_takes_112_bytes_at_most() -> None:
    async def body() -> None:
        config = ReaperConfig.load(environ={"REAPER_TIMEOUTS_STREAM_PING": "15s"})
        async with reaper.asyncio.open_reaper(config) as watcher:
            pings = Pings(None, config, watcher.driver)  # type: ignore[arg-type]
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(10_000):
                quiet = Quiet(pings, EVENTS, NEW)
                pings._add(quiet)
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(pings) == 10_000
            assert (after - before) / 10_000 <= 112

    Asyncio().run(body)


def test_nothing_wakes_once_all_streams_are_over() -> None:
    loop = Asyncio()
    world = World(loop, A_STREAM)
    calls: list[int] = []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        await writing(loop, EVENT, 3.0)(scope, receive, send)
        pings = world.streams.pings
        assert pings is not None
        await loop.sleep(10)
        calls.append(len(pings))
        before = pings.tick
        await loop.sleep(100)
        calls.append(pings.tick - before)

    world.run(counted)
    assert calls == [0, 0]
