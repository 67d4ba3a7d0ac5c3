"""Claims about the HTTP server over real sockets: the protocol, and who is closed in
which phase and why.

Real time passes in these tests, since sockets know no other; but nothing is asserted of
how much, except that no connection is closed before its timeout.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest
import trio

from reaper.config import ReaperConfig
from reaper.driver.status import survey
from reaper.metrics import families as library_families
from server_example.http.connection import Exchange, Route
from server_example.http.routes import ROUTES
from server_example.http.transport import Transport
from server_example.serving import reload_from
from tests.helpers import http_world
from tests.helpers.http_world import PATIENCE, Running, head_of, rest

pytestmark = pytest.mark.trio

TICK = 0.05
CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /upload HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def running(
    routes: Mapping[str, Route] = ROUTES, /, **overrides: Any
) -> AsyncIterator[Running]:
    """A server whose books balance at the end."""
    async with http_world.running(routes, reaper__tick=TICK, **overrides) as server:
        with trio.fail_after(PATIENCE):
            yield server
            await server.settled()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    stream: trio.SocketStream,
    target: str = "/",
    method: str = "GET",
    headers: bytes = b"",
    body: bytes = b"",
) -> Answer:
    """The answer to a request."""
    await stream.send_all(
        f"{method} {target} HTTP/1.1\r\nhost: test\r\n".encode() + headers + b"\r\n" + body
    )
    return await answer(stream, method)


async def answer(stream: trio.SocketStream, method: str = "GET") -> Answer:
    head, _, body = (await head_of(stream)).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    found = dict(line.split(": ", 1) for line in lines)
    while method != "HEAD" and len(body) < int(found["content-length"]):
        body += await stream.receive_some()
    return Answer(int(status.split()[1]), found, body)


# ---- the protocol


async def test_many_requests_share_a_connection() -> None:
    async with running(max_age="1h") as run, await run.connect() as stream:
        for _ in range(3):
            response = await ask(stream)
            assert response.status == 200
            assert b"/download" in response.body
        assert run.counters.opened == 1


async def test_the_index_says_of_every_route_a_whole_sentence() -> None:
    async with running() as run, await run.connect() as stream:
        lines = (await ask(stream)).body.decode().splitlines()
    assert [line.split()[0] for line in lines] == list(ROUTES)
    assert [line for line in lines if not line.endswith(".")] == []


@pytest.mark.parametrize(("margin", "advertised"), [("2s", "timeout=7"), ("0s", None)])
async def test_keep_alive_is_advertised_below_the_truth(
    margin: str, advertised: str | None
) -> None:
    async with (
        running(keep_alive="9s", keep_alive_margin=margin, max_age="1h") as run,
        await run.connect() as stream,
    ):
        for _ in range(3):
            assert (await ask(stream)).headers.get("keep-alive") == advertised


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as run, await run.connect() as stream:
        targets = ("/sleep?s=20ms", "/", "/nowhere", "/sleep?s=0")
        await stream.send_all(
            b"".join(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for target in targets)
        )
        await stream.send_eof()
        answers = await rest(stream)
        found = re.findall(rb"HTTP/1\.1 (\d+)", answers)
        assert found == [b"200", b"200", b"404", b"200"]
        assert (
            answers.index(b"slept 0.02")
            < answers.index(b"/download")
            < answers.rindex(b"slept 0 s")
        )


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with running() as run, await run.connect() as stream:
        got = await ask(stream, "/download?bytes=1000")
        events, head = [
            await ask(stream, target, "HEAD") for target in ("/events", "/download?bytes=1000")
        ]
        assert (events.status, head.status, events.body, head.body) == (200, 200, b"", b"")
        assert (
            head.headers["content-length"]
            == got.headers["content-length"]
            == str(len(got.body))
            == "1000"
        )


async def test_chunked_upload_after_100_continue() -> None:
    async with running() as run, await run.connect() as stream:
        await stream.send_all(POST + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        with trio.fail_after(PATIENCE):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
        response = await answer(stream)
        assert (response.status, json.loads(response.body)["bytes"]) == (200, 11)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),  # TLS where there is none is refused at once
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /sleep?s=-1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
        (b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413),
        (
            b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffff0\r\n"
            + b"a" * 1200000,
            413,
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", 405),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 426),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505),
        (b"GET /tunnel HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n", 426),
        (b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: close\r\nUpgrade: echo\r\n\r\n", 426),
        (b"GET /sleep?s=86400 HTTP/1.1\r\nHost: x\r\n\r\n", 400),  # five minutes are the most
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"\r\n" + CLOSE, 200),  # empty lines before a request are nothing
        (b"\r\n\n\r\n" + CLOSE, 200),
        (POST + b"Content-Length: 1\r\n\r\nx\r\n" + CLOSE, 200),
        (b"HEAD /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"HEAD /sleep?s=-1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\n\r\n", 400),
        (b"HEAD / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
    ],
)
async def test_what_cannot_be_served_is_answered_and_the_answer_is_not_lost(
    request_bytes: bytes, status: int
) -> None:
    async with running() as run, await run.connect() as stream:
        await stream.send_all(request_bytes)
        answer = await rest(stream)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in answer.lower()
        assert status != 200 or b"keep-alive" not in answer.lower().rpartition(b"http/1.1 ")[2]
        assert answer.count(b"HTTP/1.1 ") == max(1, request_bytes.count(b" HTTP/"))
        assert status == 400 or b" 400 " not in answer
        assert answer.endswith(b"\r\n\r\n") == request_bytes.startswith(b"HEAD")
        assert b"content-length: " in answer


async def test_nothing_that_follows_a_length_with_a_transfer_encoding_is_trusted() -> None:
    framing = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with running() as run:
        answer = await run.ask(POST + framing + CLOSE)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert (answer.count(b"HTTP/1.1 "), b"connection: close" in answer.lower()) == (1, True)


async def test_an_unwanted_body_is_read_away_if_it_is_little() -> None:
    async with running() as run, await run.connect() as stream:
        assert (
            await ask(stream, "/nowhere", "POST", b"content-length: 5\r\n", b"hello")
        ).status == 404
        assert (await ask(stream)).status == 200


async def test_a_route_that_raises_is_answered_500_and_hurts_no_other_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(exchange: Exchange) -> None:
        raise LookupError("on purpose")

    async with running({**ROUTES, "/broken": broken}) as run:
        for method in ("GET", "HEAD"):
            answer = await run.ask(f"{method} /broken HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 500 ")
            assert b"content-length: " in answer
            assert answer.endswith(b"\r\n\r\n") == (method == "HEAD")
        async with await run.connect() as stream:
            assert (await ask(stream)).status == 200
        assert "on purpose" in caplog.text
        assert run.counters.failures == 2
        run.counters.failures = 0


async def test_the_last_of_max_requests_closes_the_connection() -> None:
    async with running(limits__max_requests=2) as run, await run.connect() as stream:
        assert "connection" not in (await ask(stream)).headers
        assert (await ask(stream)).headers["connection"] == "close"
        assert await rest(stream) == b""


async def test_events_end_when_the_client_goes_and_pings_come_when_nothing_else_does() -> None:
    async with running() as run:
        async with await run.connect() as stream:
            await stream.send_all(b"GET /events?every=1h&ping=60ms HTTP/1.1\r\nHost: x\r\n\r\n")
            data = b""
            with trio.fail_after(PATIENCE):
                while data.count(b": ping") < 3:
                    data += await stream.receive_some()
        await run.settled()


# ---- what is shown


async def test_who_is_connected_is_for_this_machine_and_for_no_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as run, await run.connect() as stream:
        for target in ("/status", "/metrics", "/ready"):
            response = await ask(stream, target)
            assert (response.status, response.headers["cache-control"]) == (200, "no-store")
        for target, allow in (("/status", "GET, HEAD"), ("/upload", "POST, PUT")):
            response = await ask(stream, target, "DELETE")
            assert (response.status, response.headers["allow"]) == (405, allow)
        for local, proxied in ((False, b""), (True, b"x-forwarded-for: 192.0.2.1\r\n")):
            monkeypatch.setattr(Transport, "is_local", local)
            for target in ("/status", "/metrics"):
                async with await run.connect() as other:
                    assert (await ask(other, target, headers=proxied)).status == 403
            async with await run.connect() as other:
                assert (await ask(other, "/ready", headers=proxied)).status == 200
        ready = await ask(stream, "/ready")
        run.leaving = True
        unready = await ask(stream, "/ready")
        assert (ready.status, unready.status) == (200, 503)
        assert (ready.headers.get("connection"), unready.headers.get("connection")) == (
            None,
            "close",
        )


async def test_connections_are_surveyed_for_a_status_and_not_for_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surveyed: list[object] = []

    async def counted(*words: Any) -> dict[str, Any]:
        surveyed.append(words)
        return await survey(*words)

    monkeypatch.setattr("server_example.status.survey", counted)
    async with running() as run, await run.connect() as stream:
        for target, surveys in (("/metrics", 0), ("/status", 1)):
            assert (await ask(stream, target)).status == 200
            assert len(surveyed) == surveys


async def test_metrics_can_be_read_by_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    async with running() as run, await run.connect() as stream:
        await ask(stream, "/nowhere")
        body = (await ask(stream, "/metrics")).body
        families = {
            family.name: family for family in parser.text_string_to_metric_families(body.decode())
        }
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for f in families.values()
            for sample in f.samples
        }
        assert samples["http_connections",] == 1
        assert samples["http_connections_in_phase", "in_flight"] == 1
        assert samples["http_responses_total", "404"] == 1
        assert samples["reaper_leases",] == 1
        for family in library_families(run.watcher.statistics()):
            assert families[family.name].type == family.kind
        assert ("reaper_lateness_seconds_bucket", "+Inf") in samples


# ---- every kind of idleness

SHORT = 0.2


@pytest.mark.parametrize(
    ("phase", "sent", "status"),
    [
        ("first_byte", b"", b""),
        ("headers", b"GET / HT", b"408"),
        ("body", b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc", b"408"),
        ("keep_alive", b"GET /sleep?s=0 HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (
            "tunnel",
            b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nabc",
            b"101",
        ),
        ("linger", b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
    ],
)
async def test_silence_in_each_phase_ends_the_connection_for_its_own_reason(
    phase: str, sent: bytes, status: bytes
) -> None:
    async with running(**{phase: SHORT}) as run:
        start = trio.current_time()  # before the server can begin to count
        stream = await run.connect()
        await stream.send_all(sent)
        answer = await rest(stream)
        assert phase == "linger" or trio.current_time() - start >= SHORT
        assert (answer.split(b" ")[1] if answer else b"") == status
        assert await run.reaped() == {phase: 1}
        await stream.aclose()


@asynccontextmanager
async def run_download(run: Running) -> AsyncIterator[socket.socket]:
    """A client that lets the server send little ahead, and has asked for much."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(run.address)
        made.setblocking(False)
        made.send(b"GET /download?bytes=50000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        yield made


@pytest.mark.parametrize(
    ("reads", "shuts", "limits", "reason"),
    [
        (0, False, {"write": SHORT}, "write"),
        (
            100,
            False,
            {"write": "9s", "limits__min_out_rate": 1e9, "limits__min_out_grace": SHORT},
            "min_out_rate",
        ),
        (0, True, {"half_closed": SHORT}, "half_closed"),
    ],
    ids=["takes nothing", "takes too little", "has shut its side and takes nothing"],
)
async def test_a_peer_that_does_not_take_its_response_is_reset(
    reads: int, shuts: bool, limits: dict[str, object], reason: str
) -> None:
    async with running(**{"limits__min_out_rate": 0} | limits) as run, run_download(run) as client:
        if shuts:
            client.shutdown(socket.SHUT_WR)
        with trio.fail_after(PATIENCE):
            while run.counters.closed == 0:
                await trio.sleep(TICK / 2)
                with suppress(BlockingIOError):
                    client.recv(reads) if reads else None
        assert await run.reaped() == {reason: 1}
        if not shuts:
            with pytest.raises(ConnectionResetError):  # the kernel does not go on offering the rest
                while client.recv(65536):
                    pass


async def test_a_slow_but_living_download_is_never_idle_though_no_send_returns() -> None:
    """The kernel takes megabytes at once: no send returns for many timeouts, and the
    peer reads.
    """
    async with running(write=SHORT, limits__min_out_rate=0) as run, run_download(run) as client:
        end = trio.current_time() + 8 * SHORT
        while trio.current_time() < end:
            await trio.sleep(TICK / 2)
            with suppress(BlockingIOError):
                client.recv(2000)
        assert (run.counters.closed, dict(run.lot.reaped)) == (0, {})


async def test_a_peer_that_reads_behind_a_full_buffer_is_not_idle() -> None:
    """Its kernel opens the window after some 90,000 bytes: longer than `write`, at the
    rate that is enough.
    """
    async with running(write=SHORT, limits__min_out_rate=300_000) as run:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.connect(run.address)
            client.setblocking(False)
            client.send(b"GET /download?bytes=50000000 HTTP/1.1\r\nHost: x\r\n\r\n")
            begun, got = trio.current_time(), 0
            while got < 900_000:
                await trio.sleep(TICK / 10)
                with suppress(BlockingIOError):
                    due = int((trio.current_time() - begun) * 320_000) - got
                    got += len(client.recv(max(1, due)))
            assert (run.counters.closed, dict(run.lot.reaped)) == (0, {})


# ---- reloading


async def test_a_reload_reaches_open_connections_and_a_bad_file_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load(**overrides: object) -> Callable[[], ReaperConfig]:
        return lambda: ReaperConfig.load(environ={}, overrides={"reaper.tick": TICK, **overrides})

    async with running(keep_alive="1h") as run, await run.connect() as stream:
        await ask(stream)
        before = run.config
        assert not await reload_from(run, load(**{"timeouts.keep_alive": "soon"}))
        assert "timeouts.keep_alive: 'soon'" in caplog.text
        assert "nothing was changed" in caplog.text
        assert run.config is before
        assert await reload_from(run, load(**{"timeouts.keep_alive": SHORT}))
        assert "timeouts.keep_alive: 1h -> 200ms" in caplog.text
        assert await rest(stream) == b""
        assert await run.reaped() == {"keep_alive": 1}
