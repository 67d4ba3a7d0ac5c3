"""HTTP/2 under a guarded hypercorn, on asyncio and on trio: real attackers, and clients
that live.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("h2")
pytest.importorskip("hypercorn")

from loadgen.drive.wire import Tls
from loadgen.plan.acts import Ask, Open, Pings, Rest
from loadgen.units import parse_target
from reaper.servers.http2.floods import BURST
from scripts.serving import Server, free_port, serving
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
    RST_STREAM,
    asking,
    frames,
    posting,
)
from tests.helpers.http2_tools import h2load_has_all, nghttp_has_all
from tests.helpers.hypercorn_here import Here, hypercorn_here
from tests.helpers.lagging import speaking_in_time
from tests.helpers.neighbours import all_share_a_window, one_takes_nothing
from tests.helpers.program_trials import connect, heard, rest
from tests.helpers.server_process import installed

pytestmark = pytest.mark.slow


def hypercorn(kind: str, log: Path, *flags: str) -> AbstractContextManager[Server]:
    """hypercorn as a process of `reaper run`; its own keep-alive is switched off."""
    port = free_port()
    environment = os.environ | {f"REAPER_{name}": value for name, value in SETTINGS.items()}
    words = f"-m hypercorn -k {kind} --keep-alive 3600 -b 127.0.0.1:{port}"
    guard = [sys.executable, "-m", "reaper", "run", "--"]
    command = [*guard, sys.executable, *words.split(), *flags]
    return serving(
        [*command, "tests.helpers.asgi:application"], log, port=port, environment=environment
    )


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Here]:
    """A guarded hypercorn of each flavour, in a thread."""
    log = tmp_path_factory.mktemp("hypercorn") / "log"
    settings = SETTINGS | {"TIMEOUTS_DRAIN": "1s"}
    with hypercorn_here(request.param, log, application, settings, 3600) as running:
        yield running


def test_a_client_that_gives_nothing_is_ended_by_its_timeout(server: Here) -> None:
    found, lag = played_in_time(server.target, *ENDS)
    for ended in found:
        assert (ended.how, ENDS[ended.kind] in ended.said) == ("closed", True), ended
        assert ended.borne is not None
        assert LIMIT <= ended.borne <= LIMIT + LATE + lag, ended


def test_a_stream_whose_body_drips_is_reset_by_the_least_rate(tmp_path: Path) -> None:
    with hypercorn("asyncio", tmp_path / "log") as running:  # on trio least rates do not hold
        (ended,), lag = played_in_time(running.target, "dripped_body")
    assert (ended.how, ended.said) == ("closed", STREAM_RESET)
    assert (ended.borne or 0.0) <= 5 + LIMIT + LATE + lag


def test_keep_alive_counts_from_the_last_answer(server: Here) -> None:
    def counts(speaks: Callable[[], None]) -> None:
        with talking(server) as client:
            client.is_answered("/")
            time.sleep(LIMIT / 2)
            asked = time.monotonic()
            client.asks("/")
            speaks()
            client.has(1)
            client.rests()
            assert time.monotonic() - asked >= LIMIT

    speaking_in_time(counts, LIMIT)


@pytest.mark.parametrize("kind", ["rapid_reset", "ping_flood", "settings_flood"])
def test_a_flood_of_frames_that_move_nothing_ends_its_connection(kind: str, server: Here) -> None:
    (ended,) = played(server.target, kind, patience=20.0)
    assert ended.how in ("closed", "reset")
    assert ended.said in (b"", CALM)  # a client that goes on sending may be reset before it reads


def test_each_request_that_is_answered_pays_for_a_frame_that_moves_nothing(server: Here) -> None:
    at_once, times = BURST // 4, 8
    with talking(server) as client:
        for first in range(0, times * at_once, at_once):
            client.do(*(Ask("/"), Pings()) * at_once)
            for stream in range(first, first + at_once):
                client.has(stream)


def test_a_client_that_reads_keeps_all_streams_that_wait_for_its_window(server: Here) -> None:
    assert all_share_a_window(server, 40, 16_384, 2.5 * LIMIT) == 40 * 16_384


def test_a_client_that_sends_a_ping_for_each_frame_it_reads_has_all(server: Here) -> None:
    assert pings_for_each_frame(server, MUCH) == MUCH


def test_a_stream_whose_client_reads_slowly_is_kept(server: Here) -> None:
    (ended,) = played(server.target, "slow_reader", patience=3 * LIMIT)
    assert ended.how == "left"


def test_who_sends_its_end_of_file_in_a_body_is_let_go(server: Here) -> None:
    """hypercorn sends nothing more, and its application waited for that for ever."""
    with connect(server) as client:
        client.sendall(posting("/echo", b"half"))
        client.shutdown(socket.SHUT_WR)
        rest(client)


def test_a_stream_that_is_due_does_not_end_its_neighbour(server: Here) -> None:
    ended = one_takes_nothing(parse_target(server.target), SPEECH, LIMIT, 3 * LIMIT + LATE)
    assert ended == ([1], 1)


def test_curl_has_its_answer(server: Here) -> None:
    command = [installed("curl"), "-sS", "--http2-prior-knowledge", "-w", "%{http_version}"]
    url = f"http://{server.target}/"
    done = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    assert done.stdout == "hello2"


def test_h2load_has_all_of_its_answers(server: Here) -> None:
    h2load_has_all(server.target, connections=2)


def test_nghttp_has_a_long_answer(server: Here) -> None:
    nghttp_has_all(server.target)


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_over_tls_they_are_ended_likewise_and_nothing_fails(
    kind: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    speech = replace(SPEECH, tls=Tls("localhost", certificate[0]))
    held = ("no_stream", "half_body", "unopened_pings")
    flags = ("--certfile", certificate[0], "--keyfile", certificate[1])
    with hypercorn(kind, tmp_path / "log", *flags) as running:
        ends, lag = played_in_time(running.target, *held, speech=speech)
        assert [ended.said for ended in ends] == [ENDS[kind] for kind in held]
        assert max(ended.borne or 0.0 for ended in ends) <= LIMIT + LATE + lag
        assert "Traceback" not in running.said()


def test_no_failure_is_logged(server: Here) -> None:
    assert "Traceback" not in server.said()


NO_ERROR, REFUSED_STREAM = bytes(4), (7).to_bytes(4, "big")


def test_who_is_too_old_begins_no_stream_and_is_answered_on_those_that_are_open(
    tmp_path: Path,
) -> None:
    asked = asking("/slow?3", "/")
    aged = {"TIMEOUTS_MAX_AGE": "500ms", "TIMEOUTS_DRAIN_IDLE": "100ms", "TICK": "100ms"}
    heard = []
    with (
        hypercorn_here("asyncio", tmp_path / "log", application, aged) as running,
        connect(running) as client,
    ):
        client.sendall(asked[0])
        for frame in frames(client):
            heard += [frame] if frame[0] in (DATA, RST_STREAM, GOES_AWAY) else []
            if frame[0] == GOES_AWAY:
                client.sendall(asked[1])
    assert heard[:3] == [
        (GOES_AWAY, 0, (1).to_bytes(4, "big") + NO_ERROR),
        (RST_STREAM, 3, REFUSED_STREAM),
        (DATA, 1, b"hello"),
    ]


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_the_time_for_headers_is_not_cut_short_by_the_silence_before_them(
    kind: str, tmp_path: Path
) -> None:
    limits = {"TIMEOUTS_KEEP_ALIVE": "1500ms", "TIMEOUTS_HEADERS": "1500ms", "TICK": "100ms"}

    with hypercorn_here(kind, tmp_path / "log", application, limits, 3600) as running:
        late_headers_have_their_own_time(running, 1.5)


SIZES = {"before the end is given": 100_000, "when all is given": 95_000}
"""Bytes of the answer, by when the stop comes; of the first trio keeps some until
others are taken.
"""


@pytest.mark.parametrize("when", SIZES)
@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_stop_resets_nobody_who_opens_the_window_as_the_end_of_an_answer_comes(
    kind: str, when: str, tmp_path: Path
) -> None:
    settings = {"TICK": "100ms", "TIMEOUTS_DRAIN": "20s", "TIMEOUTS_DRAIN_IDLE": "1s"}
    with (
        hypercorn_here(kind, tmp_path / "log", application, settings) as running,
        talking(running, STINGY, buffer=16_384) as client,  # the rest waits at the server
    ):
        client.asks(f"/some?{SIZES[when]}")
        client.until(lambda: len(client.stream(0).body) == 65_535)
        steps = [running.stop, lambda: client.do(Open(40_000))]
        for step in steps if when == "before the end is given" else steps[::-1]:
            step()
            time.sleep(0.5)
        client.do(Open(10_000))
        client.rests()
        assert (len(client.stream(0).body), client.stream(0).end) == (SIZES[when], "whole")


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_stop_waits_for_no_idle_client_of_http2(kind: str, tmp_path: Path) -> None:
    kept = {"TIMEOUTS_DRAIN": "2h", "TIMEOUTS_DRAIN_IDLE": "1h"}
    with (
        hypercorn_here(kind, tmp_path / "log", application, kept) as running,
        talking(running) as client,
    ):
        client.is_answered("/")
        client.do(Rest(0.3))  # who has just taken the end of an answer is waited for
        running.stop()
        client.rests()
        running.end()


def test_a_stop_waits_for_a_client_of_http2_that_does_not_leave_no_longer_than_drain(
    tmp_path: Path,
) -> None:
    """On trio: on asyncio hypercorn itself cancels what is left then, whatever we wait
    for.
    """
    kept = {"TIMEOUTS_DRAIN": "2s", "TIMEOUTS_DRAIN_IDLE": "1h"}
    with (
        hypercorn_here("trio", tmp_path / "log", application, kept) as running,
        talking(running) as client,
    ):
        client.asks("/slow?1")
        time.sleep(0.2)
        running.stop()
        running.end()
        client.is_told()


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_over_http1_a_stop_does_not_await_the_goodbye_of_tls_either(
    kind: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    given = (kind, tmp_path / "log", application, {"TIMEOUTS_LINGER": "200ms", "TICK": "100ms"})
    with (
        hypercorn_here(*given, certificate=certificate) as running,
        connect(running) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        heard(client)
        running.stop()
        running.end()
        assert "SSL shutdown timed out" not in running.said()


def test_the_end_of_an_answer_over_tls_is_waited_for_as_long_as_some_is_taken(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    settings = {"TIMEOUTS_LINGER": "100ms", "TICK": "100ms"}
    with (
        hypercorn_here(
            "asyncio", tmp_path / "log", application, settings, certificate=certificate
        ) as running,
        socket.socket() as plain,
    ):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(running.address)
        with trusting.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"GET /some?8000000 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            read = len(client.recv(1000))
            time.sleep(0.5)  # longer than `linger`
            read += len(rest(client))
        assert read > 8_000_000


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_stop_does_not_await_the_goodbye_of_tls(
    kind: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    given = (kind, tmp_path / "log", application, {"TIMEOUTS_DRAIN": "2h"})
    with (
        hypercorn_here(*given, certificate=certificate) as running,
        talking(running, tls=Tls("localhost", certificate[0])) as client,
    ):
        client.is_answered("/")
        running.stop()
        running.end()
        assert "SSL shutdown timed out" not in running.said()
