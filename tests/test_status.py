"""A server's status: what it says of its connections, to whom, and that all workers are
in it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import socket
from collections.abc import Callable, Generator
from typing import Any

import pytest
import trio
import trio.testing

import reaper.asyncio
import reaper.status
import reaper.trio
from reaper.core.introspect import census, places
from reaper.core.reaper import IdleReaper
from reaper.driver.status import survey
from reaper.policy.pressure import Pressure, Resources
from reaper.status import IDLE_BOUNDS, SCHEMA, answer, complete, document
from reaper.trio import open_reaper, serve_status
from reaper.trio.status import serve_pages
from scripts.tools import get
from tests.helpers.server_process import PATIENCE, ROOT, server, wait_until


def label(lease: Any) -> str | None:
    return None if lease.uid == "a timer" else lease.reason


def finished(steps: Generator[None, None, Any]) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def test_connections_are_counted_by_phase_timeout_and_silence() -> None:
    core = IdleReaper(tick=1.0)
    old = [core.register(n, 100.0, 0.0) for n in range(3)]
    core.register("a timer", 5.0, 0.0)
    core.register("no timeout", None, 0.0, reason="keep_alive")
    core.close_epoch(1.0)
    for at in range(2, 13):
        old[0].touch()
        core.close_epoch(float(at))
    core.register("new", 50.0, 12.5)
    found = finished(census(core, 12.5, label, (1.0, 10.0), 0))
    assert found.counts == {
        ("idle", 100.0): [1, 0, 2],
        ("keep_alive", None): [0, 0, 1],
        ("idle", 50.0): [1, 0, 0],
    }
    assert found.due_next == []


@pytest.mark.parametrize("named", [9, 3])
def test_what_is_due_next_is_named_in_order_wherever_it_lies(named: int) -> None:
    core = IdleReaper(tick=1.0, wheel_size=4)
    for timeout in (1000.0, 4.0, 3.0, 5.0):
        core.register(timeout, timeout, 0.0)
    spoke = core.register("spoke", 3.0, 0.0)
    core.register("a timer", 1.0, 0.0)
    core.register("in use", 2.0, 0.0).suspend()
    core.register("no timeout", None, 0.0)
    core.close_epoch(1.0)
    spoke.touch()
    core.register("of the open epoch", 0.5, 1.0)
    core.close_epoch(1.5)
    core.register("of the open epoch, too", 0.5, 1.5)
    wanted = [
        (2.0, "of the open epoch"),
        (4.0, 3.0),
        (4.5, "spoke"),
        (5.0, 4.0),
        (6.0, 5.0),
        (1001.0, 1000.0),
    ]
    found = finished(census(core, 1.5, label, (), named))
    assert [(due, lease.uid) for due, lease in found.due_next] == wanted[:named]
    ring, wheel = places(core, 1.0)
    assert ring == {1: 2, 3: 2, 4: 1}
    assert sum(wheel.values()) == 2


def test_a_census_lets_the_loop_run_and_names_none_as_due_that_speaks_or_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reaper.core.introspect.STEP", 1)
    core = IdleReaper(tick=1.0)
    leases = [core.register(n, 5.0 + n, 0.0) for n in range(6)]
    core.close_epoch(1.0)
    steps = census(core, 1.0, label, (), 9)
    for _ in range(5):
        next(steps)
    leases[0].release()
    leases[1].suspend()
    leases[2].touch()
    leases[3].retime(90.0, 1.0)
    leases[5].release()
    core.register("came meanwhile", 100.0, 1.0)
    found = finished(steps)
    assert found.counts == {("idle", 5.0 + n): [1] for n in range(5)}
    assert [lease.uid for _, lease in found.due_next] == [4]


@pytest.mark.trio
async def test_a_survey_says_who_is_connected_in_which_phase_and_what_is_due(
    autojump_clock: trio.abc.Clock,
) -> None:
    pressure = Pressure(Resources(connections=4))
    pressure.judge(Resources(connections=3))
    async with open_reaper(tick=1.0) as r:
        ours, theirs = socket.socketpair()
        r.register("a timer of the server's", 70)
        with (
            theirs,
            ours,
            r.watch(ours, 30),
            r.watch(None, 5, reason="headers") as busy,
            busy.in_use(),
        ):
            await trio.sleep(12)
            found = await survey(r, pressure, worker=3)
    phases = {row["phase"]: row for row in found["phases"]}
    assert (found["worker"], found["connections"], found["leases"]) == (3, 2, 3)
    assert phases["idle"]["timeout_s"] == 30
    assert phases["idle"]["idle"][IDLE_BOUNDS.index(15.0)] == 1
    assert (phases["in_flight"]["connections"], phases["in_flight"]["timeout_s"]) == (1, None)
    (due,) = found["due_next"]
    assert 17 <= due["due_in_s"] <= 19
    assert due["due_in_s"] + due["idle_s"] == 30
    assert found["pressure"]["load"] == 0.75
    page = (ROOT / "docs" / "production.md").read_text().partition("## The status document")[2]
    inner = [found["loop"], found["lateness"], found["pressure"], found["phases"][0], due]
    keys = set().union({"schema", "server", "workers", "missing"}, found, *inner) - {"connections"}
    assert not [key for key in keys if f"`{key}`" not in page]
    assert json.loads(document("test", [found]))["missing"] == []


@pytest.mark.trio
async def test_a_survey_of_many_connections_lets_the_loop_run_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reaper.core.introspect.STEP", 1)
    ran: list[int] = []

    async def other() -> None:
        for turn in range(5):
            ran.append(turn)
            await trio.sleep(0)

    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        for n in range(20):
            r.register(n, 70)
        nursery.start_soon(other)
        await survey(r)
        assert len(ran) == 5


@pytest.mark.trio
async def test_a_survey_says_nothing_of_a_pressure_that_nobody_has_judged_yet() -> None:
    async with open_reaper(tick=1.0) as r:
        assert (await survey(r, Pressure(Resources(connections=4))))["pressure"] is None


@pytest.mark.trio
async def test_bad_requests_get_an_error_and_a_page_that_fails_a_500_and_a_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def page() -> tuple[str, bytes]:
        return "text/plain", b"hello"

    async def fails() -> tuple[str, bytes]:
        raise ValueError("no such worker")

    async def asked(request: bytes) -> bytes:
        return (await answer(request, {"/status": page, "/fails": fails})).partition(b"\r\n")[0]

    assert await asked(b"GET /status?x=1 HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"
    assert await asked(b"GET /nothing HTTP/1.1\r\n\r\n") == b"HTTP/1.1 404 Not Found"
    assert await asked(b"POST /status HTTP/1.1\r\n\r\n") == b"HTTP/1.1 405 Method Not Allowed"
    assert await asked(b"\x16\x03\x01\r\n\r\n") == b"HTTP/1.1 400 Bad Request"
    assert (await asked(b"GET /" + b"x" * 9000)).endswith(b"Request Header Fields Too Large")
    assert (await answer(b"HEAD /status HTTP/1.1\r\n\r\n", {"/status": page})).endswith(b"\r\n\r\n")
    assert [complete(start) for start in (b"GET / HTTP/1.0\n\n", b"GET /" + b"x" * 9000)] == [
        True,
        True,
    ]
    assert not complete(b"GET / HTTP/1.0\r\n")
    assert caplog.records == []
    assert (await asked(b"GET /fails HTTP/1.1\r\n\r\n")) == b"HTTP/1.1 500 Internal Server Error"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert (record.name, record.exc_info[0]) == ("reaper", ValueError)


@pytest.mark.trio
async def test_a_client_that_leaves_amid_its_request_is_answered_nothing_and_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaper.status, "PATIENCE", 2 * PATIENCE)  # it is let go at once

    async def page() -> tuple[str, bytes]:
        return "text/plain", b"hello"

    async def asks(request: bytes) -> bytes:
        async with await trio.open_tcp_stream(*listening.getsockname()) as client:
            await client.send_all(request)
            await client.send_eof()
            return b"".join([data async for data in client])

    with socket.create_server(("127.0.0.1", 0)) as listening, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_pages, listening, {"/status": page})
            assert await asks(b"GET /status HTTP/1.1\r\n") == b""
            assert (await asks(b"GET /status HTTP/1.1\r\n\r\n")).endswith(b"hello")
            nursery.cancel_scope.cancel()


def served(
    adapter: str, ask: Callable[[socket.socket], Any], pressure: Pressure | None = None
) -> Any:
    """What *ask* returns of a listening socket where a program on *adapter* with one
    connection serves its status.
    """

    async def trio_program() -> Any:
        async with open_reaper() as r, trio.open_nursery() as nursery:
            (listener,) = await nursery.start(
                functools.partial(serve_status, r, 0, name="ours", pressure=pressure)
            )
            with r.watch(None, 3600):
                asked = await trio.to_thread.run_sync(ask, listener.socket)
            nursery.cancel_scope.cancel()
        return asked

    async def asyncio_program() -> Any:
        serve = functools.partial(reaper.asyncio.serve_status, port=0, pressure=pressure)
        async with reaper.asyncio.open_reaper() as r, await serve(r) as server:
            with r.watch(None, 3600):
                return await asyncio.to_thread(ask, server.sockets[0])

    return trio.run(trio_program) if adapter == "trio" else asyncio.run(asyncio_program())


@pytest.mark.parametrize("adapter", ["trio", "asyncio"])
def test_a_client_that_is_slow_with_its_request_is_let_go(
    adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(listener: socket.socket) -> bytes:
        with socket.create_connection(listener.getsockname()[:2], timeout=PATIENCE) as client:
            client.sendall(b"GET /status HTTP/1.1\r\n")
            return client.recv(1)

    monkeypatch.setattr(reaper.status, "PATIENCE", 0.05)
    assert served(adapter, ask) == b""


@pytest.mark.parametrize(("adapter", "name"), [("trio", "ours"), ("asyncio", "asyncio")])
def test_a_program_serves_its_status_and_its_metrics_in_one_line(adapter: str, name: str) -> None:
    pressure = Pressure(Resources(connections=4))
    pressure.judge(Resources(connections=3))

    def ask(listener: socket.socket) -> tuple[dict[str, Any], bytes]:
        address = listener.getsockname()[:2]
        socket.create_connection(address).close()  # a client that is gone at once
        return json.loads(get(address, "/status")[1]), get(address, "/metrics")[1]

    status, metrics = served(adapter, ask, pressure)
    assert (status["schema"], status["workers"][0]["connections"]) == (SCHEMA, 1)
    assert (status["server"], status["workers"][0]["pressure"]["load"]) == (name, 0.75)
    assert b"\nreaper_leases 1\n" in metrics
    assert b"\nreaper_pressure 0.75\n" in metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["echo", "http"])
def test_one_address_answers_for_all_workers(kind: str) -> None:
    patient = ("--idle", "1h", "--first-byte", "1h", "--drain-idle", "0s")
    with server(kind, "--workers", "2", "--status", "127.0.0.1:0", *patient) as process:
        address = ("127.0.0.1", int(process.says("^status on ").split("/")[2].split(":")[1]))
        clients = [socket.create_connection(process.address, timeout=PATIENCE) for _ in range(40)]

        def all_seen() -> bool:
            status = json.loads(get(address, "/status")[1])
            assert status["server"] == kind
            if status["missing"]:  # it was too slow to answer
                return False
            assert [worker["worker"] for worker in status["workers"]] == [0, 1]
            each = [worker["connections"] for worker in status["workers"]]
            named = {row["name"] for worker in status["workers"] for row in worker["due_next"]}
            ours = {f"127.0.0.1:{client.getsockname()[1]}" for client in clients}
            return sum(each) == len(clients) and named == ours

        wait_until(all_seen)
        # By its own port the HTTP server says the same, and holds the connection that
        # asks besides.
        for where, more in [(address, 0)] + [(process.address, 1)] * (kind == "http"):

            def all_counted(where: tuple[str, int] = where, more: int = more) -> bool:
                metrics = get(where, "/metrics")[1].decode()
                leases = dict(
                    re.findall(r'^reaper_leases\{worker="(\d)"\} (\d+)$', metrics, re.MULTILINE)
                )
                return (
                    set(leases) == {"0", "1"}
                    and sum(map(int, leases.values())) == len(clients) + more
                )

            wait_until(all_counted)
        for client in clients:
            client.close()
