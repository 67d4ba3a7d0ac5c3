"""gunicorn's workers, guarded, when the client speaks HTTP/2 or the fast parser is
installed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

import reaper.gunicorn
from loadgen.drive.wire import Tls
from loadgen.http2 import CONTINUATION
from loadgen.plan.acts import Again, Ask, Begin, Body, Done, Open, Pings, Rest, Send
from loadgen.playing.client import Gone
from reaper.servers.gunicorn import asgi as gunicorn_asgi
from reaper.servers.gunicorn import threads as gunicorn_threads
from tests.helpers import asgi, wsgi
from tests.helpers.http2_clients import STINGY, Http2, talking
from tests.helpers.http2_frames import spoken
from tests.helpers.lagging import speaking_in_time
from tests.helpers.program_trials import PATIENCE, connect
from tests.helpers.program_trials import heard as until
from tests.helpers.servers_here import Worker, worker
from tests.servers.test_other_servers import LIMITS
from tests.servers.uvicorn.test_limits import get

pytestmark = pytest.mark.slow

APPLICATIONS: dict[str, Any] = {"ASGIWorker": asgi.application, "ThreadWorker": wsgi.application}

CLEAR = {"http_protocols": "h1,h2", "http2_cleartext": "prior-knowledge"}
"""What has gunicorn speak HTTP/2 in clear text."""
UPLOAD, RESET = Ask("/echo", "POST", end=False), "RST_STREAM 8"


@pytest.fixture(params=["ASGIWorker", "ThreadWorker"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker that takes HTTP/2 in clear text, with every timeout 1 s; gunicorn's own
    are an hour.
    """
    monkeypatch.setenv("REAPER_TICK", "250ms")
    monkeypatch.setenv("REAPER_LIMITS_MIN_IN_RATE", "0")  # it would end who drips, too
    for name in LIMITS:
        monkeypatch.setenv(f"REAPER_TIMEOUTS_{name}", "1s")
    kind = getattr(reaper.gunicorn, request.param)
    given = CLEAR
    own = dict.fromkeys(("keepalive", "timeout"), "3600")
    with worker(kind, APPLICATIONS[request.param], **given, **own) as running:
        yield running


def test_a_request_over_http2_that_takes_longer_than_every_timeout_is_answered(
    server: Worker,
) -> None:
    with talking(server) as client:
        client.is_answered("/slow?4")


def test_a_connection_of_http2_without_a_request_is_closed_and_never_early(
    server: Worker,
) -> None:
    with talking(server) as client:
        start = time.monotonic()
        client.is_answered("/")
        client.rests()
        assert time.monotonic() - start >= 1


def test_a_client_of_http2_is_told_that_its_idle_connection_ends(server: Worker) -> None:
    with talking(server) as client:
        client.is_answered("/")
        client.is_told()


def test_a_client_of_http2_that_only_sends_pings_is_told_that_its_connection_ends(
    server: Worker,
) -> None:
    with talking(server) as client:
        start = time.monotonic()
        client.is_answered("/")
        with suppress(Gone):
            client.do(Again((Pings(),), 0.1))
        assert client.told
        assert time.monotonic() - start >= 1


def test_a_header_block_that_drips_ends_its_connection_by_goaway(server: Worker) -> None:
    with talking(server) as client:
        start = time.monotonic()
        with suppress(Gone):
            client.do(Ask(whole=False), Again((Send(CONTINUATION),), 0.1))
        assert (client.told, client.client.code) == (True, 0)  # h2 ends who sends too many
        assert time.monotonic() - start >= 1


@contextmanager
def limited(name: str, monkeypatch: pytest.MonkeyPatch, **limits: str) -> Iterator[Http2]:
    """A client of the worker *name* with the timeouts *limits*; gunicorn's own are an
    hour.
    """
    for key, value in limits.items():
        monkeypatch.setenv(f"REAPER_TIMEOUTS_{key}", value)
    monkeypatch.setenv("REAPER_TICK", "100ms")
    kind = getattr(reaper.gunicorn, name)
    with (
        worker(kind, APPLICATIONS[name], **CLEAR, keepalive="3600") as running,
        talking(running) as client,
    ):
        yield client


def test_a_thread_waits_for_a_header_block_that_has_begun_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with limited("ThreadWorker", monkeypatch, KEEP_ALIVE="1s", HEADERS="1h") as client:
        time.sleep(0.1)  # the kernel's stamps tell who spoke last
        _, frame = spoken(Begin(), Ask())
        client.do(Send(frame[:12]), Rest(2), Send(frame[12:]))
        client.has(0)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_client_of_http2_is_told_that_its_connection_is_too_old(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limited(name, monkeypatch, MAX_AGE="1s", DRAIN_IDLE="100ms") as client:
        client.is_answered("/")
        client.is_told()


def test_a_client_of_http2_is_told_that_its_connection_ends_with_its_last_stream(
    server: Worker,
) -> None:
    with talking(server) as client:
        client.do(UPLOAD, Done(0))
        assert (client.stream(0).end, client.told) == (RESET, True)
        assert client.rests() == "closed"


def test_pings_do_not_put_off_the_end_of_a_stream(server: Worker) -> None:
    with talking(server) as client:
        with suppress(Gone):
            client.do(UPLOAD, Again((Pings(),), 0.05))  # which is no flood
        assert client.stream(0).end == RESET


def test_a_frame_of_a_body_that_comes_in_pieces_keeps_its_stream(server: Worker) -> None:
    *_, frame = spoken(Begin(), UPLOAD, Body(0, bytes(1200)))

    def is_kept(speaks: Callable[[], None]) -> None:
        with talking(server) as client:
            client.do(UPLOAD)
            for begin in range(0, len(frame), 100):
                client.do(Send(frame[begin : begin + 100]))
                speaks()
                client.do(Rest(0.2))
            client.has(0)

    speaking_in_time(is_kept, 1)


@pytest.mark.parametrize(
    ("name", "tls", "pause"),
    [("ASGIWorker", False, 1.2), ("ASGIWorker", True, 1.2), ("ThreadWorker", True, 2.5)],
)
def test_a_stop_resets_nobody_who_opens_the_window_as_the_end_of_an_answer_comes(
    name: str,
    tls: bool,
    pause: float,
    certificate: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """*pause*: seconds after which gunicorn has closed its socket."""
    monkeypatch.setenv("REAPER_TICK", "100ms")
    given = CLEAR
    if tls:
        given = {"http_protocols": "h1,h2", "certfile": certificate[0], "keyfile": certificate[1]}
    speaks = Tls("localhost", certificate[0], alpn="h2") if tls else None
    kind = getattr(reaper.gunicorn, name)
    with (
        worker(kind, APPLICATIONS[name], asgi_loop="asyncio", **given) as running,
        talking(running, STINGY, speaks, 16_384) as client,  # the rest waits at the server
    ):
        client.asks("/some?120000")
        client.until(lambda: len(client.stream(0).body) == 65_535)
        running.stop()
        for count, seconds in ((60_000, pause), (10_000, 0.3), (10_000, 0.3)):
            client.do(Open(count))
            time.sleep(seconds)
        client.rests()
        assert len(client.stream(0).body) == 120_000


def test_a_thread_waits_for_its_client_no_longer_than_its_worker_for_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = CLEAR | {"graceful_timeout": "3600"}
    asked, goes_on = threading.Event(), threading.Event()
    waits: list[tuple[float, float]] = []

    def answers_after_the_stop(environ: Any, start_response: Any) -> Any:
        asked.set()
        assert goes_on.wait(PATIENCE)
        return wsgi.application(environ, start_response)

    def waited(_: object, end: float) -> None:
        waits.append((time.monotonic(), end))

    monkeypatch.setattr(gunicorn_threads, "until_it_has_gone", waited)
    with (
        worker(reaper.gunicorn.ThreadWorker, answers_after_the_stop, **given) as running,
        talking(running) as client,
    ):
        client.asks("/")
        assert asked.wait(PATIENCE)
        running.stop()
        stopped = time.monotonic()
        goes_on.set()
        client.has(0)
        running.end()
    ((began, ended),) = waits
    assert began > stopped
    assert ended <= stopped + 3600


def test_a_stop_during_an_answer_over_http2_is_told_by_goaway(server: Worker) -> None:
    with talking(server, STINGY) as client:
        client.asks("/some?120000")  # more than the window that a client begins with
        client.until(lambda: bool(client.stream(0).body))
        server.stop()
        client.do(Open(60_000))
        client.is_told()


class FastParser:
    """Stands for `gunicorn_h1c.H1CProtocol`: gunicorn's parser in Python, counted."""

    made = 0

    def __new__(cls, **options: Any) -> Any:
        from gunicorn.asgi.parser import PythonProtocol

        cls.made += 1
        return PythonProtocol(**options)


def test_a_preface_that_a_stall_has_left_unread_is_waited_for() -> None:
    async def said(*after: str) -> list[str]:
        """What is heard of a server whose timer fires *after* that was sent."""
        near, far = socket.socketpair()
        loop, heard = asyncio.get_running_loop(), list[str]()
        settings = Config()
        for name, value in CLEAR.items():
            settings.set(name, value)
        worker: Any = SimpleNamespace(loop=loop)

        class Protocol(gunicorn_asgi._Protocol):
            def __init__(self) -> None:  # of the whole only the timer is looked at
                self.worker, self.cfg = worker, settings
                self._h2c_timer: Any = None
                self._h2c_buffer: Any = b""

            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def _send_error_response(self, *words: object) -> None:
                heard.append("closed")

            def _close_transport(self) -> None:
                self.transport.close()

            def connection_lost(self, error: Exception | None) -> None:
                self._h2c_cancel_timer()

            def data_received(self, data: bytes) -> None:
                heard.append("read")
                self._h2c_cancel_timer()
                self._h2c_buffer = None

        transport, protocol = await loop.create_connection(Protocol, sock=near)
        with far:
            for words in after:
                far.sendall(words.encode())
            protocol._h2c_undecided_timeout()  # in the pass in which it has not read
            await asyncio.sleep(2 * gunicorn_asgi.AGAIN)
            transport.close()
        await asyncio.sleep(0)
        return heard

    assert asyncio.run(said("PRI")) == ["read"]
    assert asyncio.run(said()) == ["closed"]


@pytest.mark.parametrize("parser", ["fast", "auto"])
def test_the_fast_parser_of_gunicorn_is_used_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, parser: str
) -> None:
    from gunicorn.asgi.protocol import ASGIProtocol

    package: Any = ModuleType("gunicorn_h1c")
    package.H1CProtocol = FastParser
    package.LimitRequestLine = package.LimitRequestHeaders = type("Limit", (Exception,), {})
    monkeypatch.setitem(sys.modules, "gunicorn_h1c", package)
    monkeypatch.setattr(FastParser, "made", 0)
    for name in [name for name in vars(ASGIProtocol) if name.startswith("_h1c_")]:
        monkeypatch.setattr(ASGIProtocol, name, vars(ASGIProtocol)[name])
    monkeypatch.setattr(ASGIProtocol, "_h1c_available", None)
    with worker(reaper.gunicorn.ASGIWorker, asgi.application, http_parser=parser) as running:
        for _ in range(2):
            with connect(running) as client:
                client.sendall(get())
                until(client)
    assert FastParser.made == 2
