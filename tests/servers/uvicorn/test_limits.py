"""uvicorn, guarded: real servers, real attacks. Nothing is asserted on how fast a
machine is, but never early.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
import websockets.asyncio.client

import reaper.uvicorn
from loadgen.clients import Ended, Speech, behaviour, play
from loadgen.drive.protocols import Paths
from reaper.config import ReaperConfig
from reaper.foreign import Foreign, missing
from reaper.servers.configured import kept_alive
from reaper.servers.uvicorn import names
from scripts.serving import Server, free_port, tree
from scripts.serving import serving as start
from scripts.tools import metrics
from scripts.uvicorn_demo.__main__ import HANDSHAKE
from tests.helpers.asgi import application
from tests.helpers.lagging import speaking_in_time
from tests.helpers.program_trials import connect
from tests.helpers.program_trials import heard as until
from tests.helpers.program_trials import rest as until_closed
from tests.helpers.server_process import installed, wait_until

pytestmark = pytest.mark.slow

SPEECH = Speech(paths=Paths("/", "/echo", "/big"))
ATTACKS = [
    *(
        "mute",
        "slow_headers",
        "slow_second_headers",
        "stalled_body",
        "slow_body",
        "unread",
        "unread_half_closed",
    ),
    *("silent", "slow_upgrade"),
]

SECOND = ["FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "TUNNEL", "HALF_CLOSED"]
SECOND += ["HANDSHAKE", "LINGER", "DRAIN_IDLE"]
QUICK = {f"REAPER_TIMEOUTS_{name}": "1s" for name in SECOND} | {
    "REAPER_TICK": "250ms",
    # counted from the head: more than a late client lets pass before its body
    "REAPER_LIMITS_MIN_IN_GRACE": "2s",
    "REAPER_LIMITS_MIN_OUT_GRACE": "1s",
    "REAPER_LIMITS_MIN_OUT_RATE": "1000000",  # a buffer of 64 KiB hides nobody for long
}
PATIENCE = 45.0
ESTABLISHED = "01"  # in /proc/net/tcp
KINDS = [("HttpTools", "asyncio"), ("HttpTools", "uvloop"), ("H11", "asyncio")]


class Running(NamedTuple):
    """A server in a thread of this process."""

    address: tuple[str, int]


@contextlib.contextmanager
def serving(
    tmp_path: Path,
    protocol: str | None = "HttpTools",
    loop: str = "asyncio",
    *flags: str,
    python: str = sys.executable,
    **environment: str,
) -> Iterator[Server]:
    command = [
        python,
        "-m",
        "uvicorn",
        "tests.helpers.asgi:application",
        "--loop",
        loop,
        "--no-access-log",
        *flags,
    ]
    if protocol is not None:
        command += ["--http", f"reaper.uvicorn:{protocol}"]
    port = free_port()
    whole = os.environ | QUICK | environment
    with start(
        [*command, "--port", str(port)], tmp_path / "server.log", port=port, environment=whole
    ) as server:
        yield server


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def guarded(request: pytest.FixtureRequest) -> Iterator[Running]:
    protocol, loop = request.param
    kind = getattr(reaper.uvicorn, protocol).configured(ReaperConfig.load(environ=QUICK))
    settings = {"http": kind, "loop": loop, "ws": "websockets-sansio", "log_level": "error"}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield Running(server.servers[0].sockets[0].getsockname())
    server.should_exit = True
    thread.join()


def get(path: bytes = b"/", *more: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"host: h", *more, b"", b""])


def answered(client: socket.socket, path: bytes = b"/", end: bytes = b"hello") -> bytes:
    """What *client* hears up to *end* when it has asked for *path*."""
    client.sendall(get(path))
    return until(client, end)


UPGRADE = get(
    *(b"/ws", b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13"),
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


def open_at(pid: int | str = "self") -> list[int]:
    """The local port of each connection that is open in the network of process *pid*,
    by the kernel's word.
    """
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == ESTABLISHED]


def a_pause_loses_no_request(server: Server, count: int) -> None:
    """Of clients that have been served, and ask again while the server's processes
    stand still.
    """
    with contextlib.ExitStack() as stack:
        pids: list[int] = []
        silent = 0.0
        while (
            not pids or silent >= 1
        ):  # the first may have been closed, as it should be, before the last was served
            stack.close()
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)
            count, start = count if not pids else (count + 1) // 2, time.monotonic()
            clients = [stack.enter_context(connect(server)) for _ in range(count)]
            with contextlib.suppress(AssertionError, ConnectionError):
                for client in clients:
                    answered(client)
            pids = tree(server.pid)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            silent = time.monotonic() - start
        for client in clients:
            client.sendall(get())
        time.sleep(3)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        for client in clients:
            until(client)


async def all_end_and_none_early(
    attacks: Iterable[str], address: tuple[str, int], earliest: float = 1
) -> None:
    found = await asyncio.gather(*(play(kind, address, SPEECH, PATIENCE) for kind in attacks))
    assert not [ended.kind for ended in found if ended.borne is None or ended.borne < earliest]


def test_every_kind_of_idleness_ends_and_none_early(guarded: Running) -> None:
    async def all_attacks() -> list[Ended]:
        slow = behaviour("slow_read", every="1s")
        kinds: list[Any] = [*ATTACKS, slow]
        return await asyncio.gather(
            *(play(kind, guarded.address, SPEECH, PATIENCE) for kind in kinds for _ in range(2)),
            *(play("silent_upgrade", guarded.address, HANDSHAKE, PATIENCE) for _ in range(2)),
        )

    found = asyncio.run(all_attacks())
    assert [ended.kind for ended in found if ended.borne is None] == []
    assert [ended.kind for ended in found if ended.borne is not None and ended.borne < 1] == []
    answered_408 = {ended.kind for ended in found if b"HTTP/1.1 408" in ended.said}
    assert answered_408 == {
        "slow_headers",
        "slow_second_headers",
        "stalled_body",
        "slow_body",
        "slow_upgrade",
    }


@pytest.mark.parametrize(
    ("attack", "path", "reasons"),
    [
        ("-H", "/", "headers"),
        ("-B -s 100000", "/echo", "body|min_in_rate"),
        ("-X", "/big", "write|min_out_rate"),
    ],
)
def test_slowhttptest_is_got_rid_of_while_a_healthy_client_is_served(
    tmp_path: Path, attack: str, path: str, reasons: str
) -> None:
    tool = installed("slowhttptest")
    with serving(tmp_path) as server:

        def nearly_all_are_gone() -> bool:
            with connect(server) as client:
                answered(client)
            said = len(re.findall(f"closed: (?:{reasons})", server.log.read_text()))
            return said >= 45 and open_at().count(server.port) <= 5

        command = [
            tool,
            *attack.split(),
            "-u",
            f"http://{server.target}{path}",
            "-c",
            "50",
            "-r",
            "50",
        ]
        with subprocess.Popen(
            [*command, "-i", "1", "-l", "60", "-p", "5"], stdout=subprocess.DEVNULL
        ) as attacking:
            wait_until(nearly_all_are_gone)
            attacking.terminate()


def test_a_request_that_takes_longer_than_every_timeout_is_answered(guarded: Running) -> None:
    with connect(guarded) as client:
        answered(client, b"/slow?3")
        answered(client)


def test_a_body_that_comes_slowly_but_comes_is_waited_for(guarded: Running) -> None:
    answered = False
    while not answered:
        pauses, sent = [0.0], time.monotonic()
        with connect(guarded) as client:
            try:
                client.sendall(b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 4000\r\n\r\n")
                for _ in range(8):
                    time.sleep(0.25)
                    before, sent = sent, time.monotonic()
                    try:
                        client.sendall(b"x" * 500)
                    finally:
                        pauses.append(time.monotonic() - before)  # the call may be late, too
                answered = bool(until(client, b"x" * 4000))
            except (AssertionError, OSError):
                assert max(pauses) > 0.9  # a client that was so late itself proves nothing


def test_a_response_that_is_taken_slowly_but_taken_arrives_whole(guarded: Running) -> None:
    whole = False
    while not whole:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
            client.settimeout(PATIENCE)
            client.connect(guarded.address)
            client.sendall(get(b"/big"))
            start = taken = time.monotonic()
            late, count = 0.0, 0
            try:
                while count < 20_000_000:
                    late = max(late, time.monotonic() - taken)
                    data = client.recv(1_000_000)
                    taken = time.monotonic()
                    assert data, f"closed after {count} bytes"
                    count += len(data)
                    if taken - start < 3:
                        time.sleep(0.05)
                answered(client)
                whole = True
            except (AssertionError, OSError):
                assert late > 0.9  # a client that was so late itself proves nothing


def test_the_last_response_of_a_connection_is_waited_for_no_longer_than_any_other(
    tmp_path: Path,
) -> None:
    """uvicorn has closed the connection then; the loop keeps it until the client takes
    what is left.
    """
    patient = {"REAPER_TIMEOUTS_KEEP_ALIVE": "300s", "REAPER_TIMEOUTS_LINGER": "300s"}
    patient["REAPER_LIMITS_MIN_OUT_GRACE"] = "1m"  # or the least rate may end it first
    with serving(tmp_path, **patient) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.address)
        client.sendall(get(b"/some?180000", b"connection: close"))
        wait_until(lambda: "closed: write" in server.log.read_text())


def test_requests_in_one_packet_are_all_answered(guarded: Running) -> None:
    with connect(guarded) as client:
        client.sendall(get() * 5 + get()[:10])
        assert until(client, b"408").count(b"hello") == 5


def test_a_client_that_asks_before_it_sends_its_body_is_answered_and_then_waited_for(
    guarded: Running,
) -> None:
    with connect(guarded) as client:
        start = time.monotonic()
        client.sendall(
            b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
        )
        until(client, b"100 Continue")
        until(client, b"408")
        assert time.monotonic() - start >= 1


def test_a_body_that_is_not_wanted_is_read_and_the_connection_lives_on(guarded: Running) -> None:
    def is_kept(speaks: Callable[[], None]) -> None:
        with connect(guarded) as client:
            client.sendall(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\n" + b"x" * 5)
            until(client)
            time.sleep(0.2)
            client.sendall(b"x" * 5 + get())
            speaks()
            until(client)

    speaking_in_time(is_kept, 1)


def stalled(server: Server) -> float:
    """Seconds for which the loop of *server* has stalled."""
    return metrics(server.address)["reaper_loop_stalled_seconds_total"]


def test_a_connection_at_its_maximum_age_is_closed_after_a_response_that_says_so(
    tmp_path: Path,
) -> None:
    with serving(
        tmp_path, REAPER_TIMEOUTS_MAX_AGE="2s", REAPER_TIMEOUTS_KEEP_ALIVE="30s"
    ) as server:
        ended = asyncio.run(play("chatty", server.address, SPEECH, PATIENCE))
        assert ended.borne is not None
        assert ended.at - ended.connected >= 1.8  # max_age is shortened by up to a tenth
        with connect(server) as client:
            before = stalled(server)
            while b"connection: close" not in answered(client, b"/slow?3"):
                before, earlier = stalled(server), before
                assert before - earlier > 0.5  # which makes no connection older
            assert client.recv(1) == b""


@pytest.mark.parametrize(("protocol", "loop"), KINDS)
def test_after_a_pause_of_the_process_every_request_that_waited_is_answered(
    tmp_path: Path, protocol: str, loop: str
) -> None:
    with serving(tmp_path, protocol, loop) as server:
        a_pause_loses_no_request(server, 30)


@pytest.mark.parametrize("protocol", ["HttpTools", "H11"])
def test_a_stop_answers_the_request_that_is_on_its_way_and_says_that_it_is_the_last(
    tmp_path: Path, protocol: str
) -> None:
    patient = {"DRAIN": "30s", "DRAIN_IDLE": "4s", "KEEP_ALIVE": "30s", "FIRST_BYTE": "30s"}
    settings = {f"REAPER_TIMEOUTS_{name}": value for name, value in patient.items()}
    with serving(tmp_path, protocol, **settings) as server:
        with connect(server) as idle, connect(server) as slow, connect(server) as silent:
            answered(idle)
            slow.sendall(get(b"/slow?2"))
            time.sleep(0.3)
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: "Shutting down" in server.log.read_text())
            time.sleep(0.2)
            assert b"connection: close" in answered(idle)
            assert b"connection: close" in until(slow)
            assert silent.recv(1) == b""
        assert server.process.wait(PATIENCE) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("sent", "age"), [(get(b"/events"), "0s"), (get(b"/events"), "1s"), (UPGRADE, "0s")]
)
def test_a_stop_cuts_what_has_no_end_when_the_drain_is_over(
    tmp_path: Path, sent: bytes, age: str
) -> None:
    limits = {"REAPER_TIMEOUTS_MAX_AGE": age, "REAPER_TIMEOUTS_DRAIN": "1s"}
    limits["REAPER_TIMEOUTS_DRAIN_STREAMS"] = "0s"  # or a stream would end before
    with (
        serving(tmp_path, "HttpTools", "asyncio", "--ws", "wsproto", **limits) as server,
        connect(server) as client,
    ):
        client.sendall(sent)
        client.recv(1000)
        time.sleep(1.5 if age == "1s" else 0)
        os.kill(server.pid, signal.SIGTERM)
        until_closed(client)
        wait_until(lambda: server.process.poll() is not None)
        assert sent is UPGRADE or "drain_deadline" in server.log.read_text()  # uvicorn says goodbye


@pytest.mark.parametrize(
    ("protocol", "ws"), [("HttpTools", "websockets-sansio"), ("H11", "wsproto")]
)
def test_a_websocket_whose_peer_answers_pings_lives_and_a_silent_one_is_closed(
    tmp_path: Path, ws: str, protocol: str
) -> None:
    flags = ["--ws", ws, "--ws-ping-interval", "0.3", "--ws-ping-timeout", "30"]

    async def talk(port: int) -> None:
        silent = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        silent.sendall(UPGRADE)
        async with websockets.asyncio.client.connect(
            f"ws://127.0.0.1:{port}/ws", ping_interval=None
        ) as client:
            await client.send("one")
            assert await client.recv() == "one"
            await asyncio.sleep(4.5)
            await client.send("two")
            assert await client.recv() == "two"
        silent.close()

    with serving(tmp_path, protocol, "asyncio", *flags, REAPER_TIMEOUTS_TUNNEL="2s") as server:
        asyncio.run(talk(server.port))
        assert server.log.read_text().count("closed: tunnel") == 1


@pytest.mark.parametrize("protocol", ["HttpTools", "H11"])
def test_a_websocket_is_closed_at_its_age_although_it_talks(tmp_path: Path, protocol: str) -> None:
    async def talk(port: int) -> None:
        async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}/ws") as client:
            with contextlib.suppress(websockets.exceptions.ConnectionClosed):
                for _ in range(400):  # 20 s, and more
                    await client.send("x")
                    await client.recv()
                    await asyncio.sleep(0.05)
            assert client.close_code == 1012

    with serving(tmp_path, protocol, "asyncio", REAPER_TIMEOUTS_TUNNEL_AGE="1s") as server:
        asyncio.run(talk(server.port))
        assert "closed: tunnel_age" in server.log.read_text()


def test_uvicorns_own_keep_alive_holds_unless_ours_is_set() -> None:
    for environment, expected in (({}, 5), ({"REAPER_TIMEOUTS_KEEP_ALIVE": "7s"}, 7)):
        assert kept_alive(ReaperConfig.load(environ=environment), 5).timeouts.keep_alive == expected


def test_a_setting_that_cannot_be_used_is_one_line_and_status_2(tmp_path: Path) -> None:
    environment = {**os.environ, "REAPER_TIMEOUTS_BODY": "soon", "PYTHONPATH": "."}
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "tests.helpers.asgi:application",
        "--http",
        "reaper.uvicorn:Auto",
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "INFO" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("reaper.uvicorn: timeouts.body: 'soon'")


def test_every_name_of_uvicorns_that_is_used_is_there() -> None:
    needed = [*names.NEEDS, names.STARTS]
    if importlib.util.find_spec(names.HTTP2_MODULE):  # the lowest that is supported has no HTTP/2
        needed.append(names.HTTP2)
    assert missing(needed) == ""


def test_the_latest_version_that_is_named_is_the_one_that_runs() -> None:
    assert uvicorn.__version__ == os.environ.get("LOWEST_UVICORN", names.TESTED[1])


def test_a_version_that_lacks_a_name_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cycle = "uvicorn.protocols.http.h11_impl:RequestResponseCycle"
    lost = Foreign("uvicorn", names.TESTED, {cycle: "response_finished"})
    monkeypatch.setattr(names, "NEEDS", (lost,))
    with pytest.raises(SystemExit) as refused:
        _ = reaper.uvicorn.H11
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "RequestResponseCycle.response_finished" in said


if hasattr(asyncio, "eager_task_factory"):  # Python 3.12

    def test_with_eager_tasks_it_is_the_same(tmp_path: Path) -> None:
        program = tmp_path / "eager.py"
        program.write_text(
            "import asyncio\ndef loop():\n    made = asyncio.new_event_loop()\n"
            "    made.set_task_factory(asyncio.eager_task_factory)\n    return made\n"
        )
        with serving(
            tmp_path, "HttpTools", "eager:loop", PYTHONPATH=f"{tmp_path}:{os.getcwd()}"
        ) as server:
            asyncio.run(all_end_and_none_early(ATTACKS[:4], server.address))
            with connect(server) as client:
                for _ in range(3):
                    answered(client)
