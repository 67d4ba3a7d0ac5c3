"""HTTP/2 under a guarded uvicorn: real attackers, and clients that live."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h2")
pytest.importorskip(
    "uvicorn.protocols.http.zttp_h2_impl", exc_type=ImportError
)  # not in the lowest uvicorn

import reaper.uvicorn
from loadgen.drive.wire import Tls
from loadgen.plan.acts import Ask, Begin, Cancel, Deaf, Kind, Open
from loadgen.playing import play as loadgen_play
from loadgen.units import parse_target
from reaper.config import ReaperConfig
from scripts.serving import free_port, serving
from tests.helpers.asgi import application
from tests.helpers.http2_clients import (
    CALM,
    ENDS,
    LATE,
    LIMIT,
    MUCH,
    SETTINGS,
    SPEECH,
    STINGY,
    STREAM_RESET,
    late_headers_have_their_own_time,
    pings_for_each_frame,
    played,
    played_in_time,
    talking,
)
from tests.helpers.http2_frames import (
    DATA,
    GOES_AWAY,
    HEADERS,
    RST_STREAM,
    SETTINGS_FRAME,
    asking,
    frames,
    spoken,
)
from tests.helpers.http2_tools import h2load_has_all, nghttp_has_all
from tests.helpers.hypercorn_here import Here
from tests.helpers.neighbours import all_share_a_window, one_takes_nothing
from tests.helpers.program_trials import PATIENCE, connect, heard, rest
from tests.helpers.server_process import installed, wait_until
from tests.helpers.servers_here import uvicorn_here

pytestmark = pytest.mark.slow


def uvicorn(
    log: Path, settings: dict[str, str], app: Any = application, **given: object
) -> AbstractContextManager[Here]:
    """uvicorn that takes HTTP/2, in a thread; *settings* are REAPER_*, without that
    prefix.
    """
    config = ReaperConfig.load(
        environ={f"REAPER_{name}": value for name, value in settings.items()}
    )
    return uvicorn_here(reaper.uvicorn.Http2, log, app, config, **given)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with uvicorn(tmp_path_factory.mktemp("uvicorn") / "log", SETTINGS) as running:
        yield running


def test_a_client_that_gives_nothing_is_ended_by_its_timeout(server: Here) -> None:
    found, lag = played_in_time(server.target, *ENDS)
    for ended in found:
        assert (ended.how, ended.said) == ("closed", ENDS[ended.kind]), ended
        assert ended.borne is not None
        assert LIMIT <= ended.borne <= LIMIT + LATE + lag, ended


def test_over_tls_they_are_ended_likewise(certificate: tuple[str, str], tmp_path: Path) -> None:
    held = ("no_stream", "half_body", "unopened_pings", "silent")
    speech = replace(SPEECH, tls=Tls("localhost", certificate[0]))
    given = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    with uvicorn(tmp_path / "log", SETTINGS, **given) as running:
        ends, lag = played_in_time(running.target, *held, speech=speech)
        assert [ended.said for ended in ends] == [ENDS[kind] for kind in held]
        assert max(ended.borne or 0.0 for ended in ends) <= LIMIT + LATE + lag
        assert "Traceback" not in running.said()


def test_a_flood_of_frames_that_move_nothing_ends_its_connection(server: Here) -> None:
    for ended in played(
        server.target, "rapid_reset", "ping_flood", "settings_flood", patience=20.0
    ):
        assert ended.how in ("closed", "reset")
        assert ended.said in (b"", CALM)  # a client that goes on sending may be reset before


def test_a_client_that_reads_keeps_all_streams_that_wait_for_its_window(server: Here) -> None:
    assert all_share_a_window(server, 40, 16_384, 2.5 * LIMIT) == 40 * 16_384


def test_a_client_that_sends_a_ping_for_each_frame_it_reads_has_all(server: Here) -> None:
    assert pings_for_each_frame(server, MUCH) == MUCH


def test_a_body_that_its_application_reads_late_is_taken_whole(tmp_path: Path) -> None:
    got: list[int] = []

    async def late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        await asyncio.sleep(LIMIT + 0.5)  # uvicorn pauses reading meanwhile
        got.append(0)
        message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            got[0] += len(message["body"])
        await application(scope | {"path": "/"}, receive, send)

    body = tmp_path / "body"
    body.write_bytes(bytes(3_000_000))
    with uvicorn(tmp_path / "log", SETTINGS, late) as running:
        command = [installed("nghttp", "nghttp2-client"), "-d", str(body)]
        done = subprocess.run([*command, f"http://{running.target}/"], capture_output=True)
    assert (got, done.stdout) == ([3_000_000], b"hello")


def test_a_stream_whose_body_drips_is_reset_by_the_least_rate(server: Here) -> None:
    (ended,), lag = played_in_time(server.target, "dripped_body")
    assert (ended.how, ended.said) == ("closed", STREAM_RESET)
    assert (ended.borne or 0.0) <= 5 + LIMIT + LATE + lag


def test_a_stream_whose_client_reads_slowly_is_kept(server: Here) -> None:
    (ended,) = played(server.target, "slow_reader", patience=3 * LIMIT)
    assert ended.how == "left"


def test_a_stream_that_is_due_does_not_end_its_neighbour(server: Here) -> None:
    ended = one_takes_nothing(parse_target(server.target), SPEECH, LIMIT, 3 * LIMIT + LATE)
    assert ended == ([1], 1)


def test_a_client_whose_kernel_takes_nothing_is_ended_though_its_window_is_open(
    server: Here,
) -> None:
    acts = (Deaf(), Begin(2**31 - 1), Open(2**30), Ask("/big"))
    kind = Kind(name="takes nothing", speaks="http2", acts=acts, limit="write")
    seen = asyncio.run(loadgen_play.played(kind, server.address, 2 * LIMIT + LATE))
    assert seen.how == "reset", seen


def test_h2load_has_all_of_its_answers(server: Here) -> None:
    h2load_has_all(server.target, connections=10)


def test_nghttp_has_a_long_answer(server: Here) -> None:
    nghttp_has_all(server.target)


@pytest.mark.parametrize(("flag", "spoken"), [("--http1.1", "1.1"), ("--http2", "2")])
def test_over_tls_curl_has_its_answer_in_what_it_speaks(
    flag: str, spoken: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    given = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    command = [installed("curl"), "-sS", "--cacert", certificate[0], flag, "-w", "%{http_version}"]
    with uvicorn(tmp_path / "log", SETTINGS, **given) as running:
        url = f"https://localhost:{running.address[1]}/"
        done = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    assert done.stdout == f"hello{spoken}"


def test_a_client_of_http_1_is_answered_and_guarded(server: Here) -> None:
    with connect(server) as client:
        for part in (b"P", b"OST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello"):
            client.sendall(part)
            time.sleep(0.1)
        heard(client)
        client.sendall(b"GET / HT")
        assert rest(client).startswith(b"HTTP/1.1 408")


def test_a_preface_that_comes_in_parts_is_understood(server: Here) -> None:
    (preface,) = spoken(Begin())
    with connect(server) as client:
        for part in (preface[:2], preface[2:10], preface[10:]):
            client.sendall(part)
            time.sleep(0.1)
        assert client.recv(9)[3] == SETTINGS_FRAME


def test_no_failure_is_logged(server: Here) -> None:
    assert "Traceback" not in server.said()


NO_ERROR, REFUSED_STREAM = bytes(4), (7).to_bytes(4, "big")


def until(client: socket.socket, last: int) -> Iterator[tuple[int, int, bytes]]:
    """The `frames` up to the first of the type *last*."""
    for frame in frames(client):
        yield frame
        if frame[0] == last:
            return


def test_an_application_that_awaits_a_body_is_told_that_there_is_none(tmp_path: Path) -> None:
    with uvicorn(tmp_path / "log", SETTINGS) as running, talking(running) as client:
        client.is_answered("/echo")


def test_who_is_too_old_begins_no_stream_and_is_answered_on_those_that_are_open(
    tmp_path: Path,
) -> None:
    asked = asking("/slow?3", "/")
    aged = {"TIMEOUTS_MAX_AGE": "500ms", "TIMEOUTS_DRAIN_IDLE": "100ms", "TICK": "100ms"}
    said = []
    with uvicorn(tmp_path / "log", aged) as running, connect(running) as client:
        client.sendall(asked[0])
        for frame in frames(client):
            said += [frame] if frame[0] in (DATA, RST_STREAM, GOES_AWAY) else []
            if frame[0] == GOES_AWAY and len(said) == 1:
                client.sendall(asked[1])
    assert said[:3] == [
        (GOES_AWAY, 0, (1).to_bytes(4, "big") + NO_ERROR),
        (RST_STREAM, 3, REFUSED_STREAM),
        (DATA, 1, b"hello"),
    ]


def test_who_leaves_the_answers_to_its_frames_unread_is_not_read_until_it_takes_them(
    tmp_path: Path,
) -> None:
    asked, asked_again = asking("/", "/")
    frame = b"\0\0\1\0\0" + (1).to_bytes(4, "big") + b"x"  # of a stream that has ended
    given, enough = 0, 20_000_000
    with (
        uvicorn(tmp_path / "log", {"LIMITS_MIN_OUT_RATE": "0"}) as running,
        connect(running) as client,
    ):
        client.sendall(asked)
        client.settimeout(1)
        with suppress(TimeoutError):
            while given < enough:
                given += client.send(frame * 5_000)
        assert given < enough
        client.settimeout(PATIENCE)
        rest_of_frame = frame[given % len(frame) :]
        sends = threading.Thread(target=client.sendall, args=(rest_of_frame + asked_again,))
        sends.start()
        assert (HEADERS, 3) in ((kind, number) for kind, number, _ in frames(client))
        sends.join()


@pytest.mark.parametrize("given_first", [True, False], ids=["given", "not given yet"])
def test_a_stop_waits_until_the_client_has_read_its_answer(
    given_first: bool, tmp_path: Path
) -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not given_first:
            await asyncio.sleep(1)
        await application(scope, receive, send)

    settings = {"TICK": "100ms", "TIMEOUTS_DRAIN_IDLE": "100ms"}
    with (
        uvicorn(tmp_path / "log", settings, late) as running,
        talking(running, STINGY) as client,
    ):
        client.asks("/some?70000")  # more than the window that a client begins with
        if given_first:
            client.until(lambda: len(client.stream(0).body) == 65_535)
        running.stop()
        client.until(lambda: client.told and len(client.stream(0).body) == 65_535)
        time.sleep(0.5)  # longer than an idle connection would be kept
        client.do(Open(10_000))
        client.rests()
        assert len(client.stream(0).body) == 70_000


def test_a_stop_resets_nobody_who_opens_the_window_as_the_end_of_an_answer_comes(
    tmp_path: Path,
) -> None:
    settings = {"TICK": "100ms", "TIMEOUTS_DRAIN_IDLE": "100ms"}
    with (
        uvicorn(tmp_path / "log", settings) as running,
        talking(running, STINGY, buffer=16_384) as client,  # the rest waits at the server
    ):
        client.asks("/some?120000")
        client.until(lambda: len(client.stream(0).body) == 65_535)
        running.stop()
        client.is_told()
        client.do(Open(60_000))  # the server can give all to its kernel now
        time.sleep(0.5)
        client.do(Open(10_000))
        client.rests()
        assert len(client.stream(0).body) == 120_000


def test_the_keep_alive_counts_from_the_end_of_the_last_stream(tmp_path: Path) -> None:
    (asked,) = asking("/slow?1")
    limits = {"TIMEOUTS_KEEP_ALIVE": "1500ms", "TICK": "100ms"}
    with uvicorn(tmp_path / "log", limits) as running, connect(running) as client:
        began = time.monotonic()
        client.sendall(asked)
        rest(client)
        # The stream ends a second later or more; when, only the server knows.
        assert time.monotonic() - began >= 1 + 1.5


def test_a_connection_that_has_ended_leaves_nothing_to_the_garbage_collector(
    tmp_path: Path,
) -> None:
    def left() -> int:
        kinds = [type(each) for each in gc.get_objects()]
        return sum(each.__name__ == "Http2" and "reaper" in each.__module__ for each in kinds)

    # Those of the tests before may be ending still.
    wait_until(lambda: gc.collect() >= 0 and not left())
    gc.disable()
    try:
        with uvicorn(tmp_path / "log", SETTINGS) as running:
            with talking(running) as client:
                client.is_answered("/")
                assert left() == 1
            wait_until(lambda: not left())
    finally:
        gc.enable()


def test_a_stream_of_events_is_ended_in_order_when_the_server_stops(tmp_path: Path) -> None:
    settings = {"TICK": "100ms", "TIMEOUTS_DRAIN_STREAMS": "500ms"}
    with uvicorn(tmp_path / "log", settings) as running, talking(running) as client:
        client.asks("/events")
        client.until(lambda: bool(client.stream(0).body))
        running.stop()
        client.has(0)
        client.rests()


def test_the_request_of_a_stream_that_was_reset_is_cancelled_and_no_other(tmp_path: Path) -> None:
    cancelled: list[str] = []

    async def works(scope: Any, receive: Any, send: Any) -> None:
        """Works for ten seconds, or until the other request was cancelled."""
        if scope["type"] != "lifespan":
            try:
                for _ in range(1000):
                    await asyncio.sleep(0.01)
                    if cancelled:
                        break
            except asyncio.CancelledError:
                cancelled.append(scope["path"])
                raise
        await application(scope, receive, send)

    settings = {"TICK": "100ms", "TIMEOUTS_ABANDONED": "300ms"}
    with uvicorn(tmp_path / "log", settings, works) as running, talking(running) as client:
        client.asks("/left", "/waits")
        client.do(Cancel(0))
        client.has(1)
        assert (cancelled, client.stream(0).status) == (["/left"], 0)


def test_reaper_run_guards_the_http_2_of_an_unchanged_command(tmp_path: Path) -> None:
    environment = os.environ | {f"REAPER_{name}": value for name, value in SETTINGS.items()}
    port = free_port()
    served = f"-m uvicorn --http zttp --http2 --port {port} tests.helpers.asgi:application"
    command = [sys.executable, "-m", "reaper", "run", "--", sys.executable, *served.split()]
    with serving(command, tmp_path / "log", port=port, environment=environment) as running:
        (ended,), lag = played_in_time(running.target, "unopened_pings")
        assert (ended.how, ended.said) == ("closed", STREAM_RESET)
        assert (ended.borne or 0.0) <= LIMIT + LATE + lag
        assert "is guarded from inside" in running.said()


@pytest.mark.parametrize("keep_alive", ["1500ms", "1h"])
def test_headers_after_a_silence_have_their_own_time(keep_alive: str, tmp_path: Path) -> None:
    limits = {"TIMEOUTS_KEEP_ALIVE": keep_alive, "TIMEOUTS_HEADERS": "1500ms", "TICK": "100ms"}

    with uvicorn(tmp_path / "log", limits) as running:
        late_headers_have_their_own_time(running, 1.5)
