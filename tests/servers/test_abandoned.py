"""Requests whose clients are gone are cancelled; nobody else's are."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.plan.acts import Cancel
from reaper.config.settings import ReaperConfig
from reaper.driver.driver import Call
from reaper.driver.sockets import is_over
from reaper.servers.abandoned import QUESTION, Abandoned, Link
from scripts.serving import Server, free_port
from scripts.serving import serving as start
from tests.helpers import leaving, namespaces
from tests.helpers.driver_loop import Loop
from tests.helpers.http2_clients import talking
from tests.helpers.hypercorn_here import Here
from tests.helpers.leaving import BEGAN, CANCELLED, ENDED
from tests.helpers.program_trials import connect, reset, rest
from tests.helpers.server_process import wait_until
from tests.helpers.servers_here import SERVERS_HERE, server_here

RUNS = re.compile(r"Uvicorn running on http://([^\s:]+):(\d+)")
"""What uvicorn says when it listens."""
AFTER = 1.0
"""Seconds that a request has when its client is gone."""


# ---- when it is decided, in virtual time


class Request:
    """A request that notes when it is given up."""

    began: float
    settled: bool
    left: float | None
    call: Call | None

    def __init__(self, loop: Loop, *, wanted: bool = False) -> None:
        self.given_up: list[float] = []
        self._loop = loop
        self._wanted = wanted

    def route(self) -> str:
        return "GET /"

    def may_be_cancelled(self) -> bool:
        return not self._wanted

    def may_be_asked(self) -> bool:
        return True

    def give_up(self) -> None:
        self.given_up.append(self._loop.time)


@pytest.fixture
def loop() -> Loop:
    timeouts = replace(ReaperConfig().timeouts, abandoned=5.0)
    return Loop(config=replace(ReaperConfig(), timeouts=timeouts), tick=0.25)


@pytest.fixture
def abandoned(loop: Loop) -> Abandoned:
    return Abandoned(loop.driver)


def begun(loop: Loop, abandoned: Abandoned, **options: Any) -> Request:
    request = Request(loop, **options)
    abandoned.begin(request)
    return request


def test_a_request_is_given_up_when_its_time_is_over_not_before(
    loop: Loop, abandoned: Abandoned
) -> None:
    request = begun(loop, abandoned)
    loop.run_until(2.0)
    abandoned.lost(request)
    loop.run_until(60.0)
    (at,) = request.given_up
    assert 7.0 <= at <= 7.25
    assert loop.driver.statistics().abandoned == 1


def test_time_in_which_the_loop_stalls_is_not_charged(loop: Loop, abandoned: Abandoned) -> None:
    request = begun(loop, abandoned)
    abandoned.lost(request)
    loop.driver.after(2.0, lambda: None)  # that this is late says that the loop has stalled
    loop.run_until(1.0)
    loop.time = 32.0
    loop.wake()
    assert not request.given_up
    loop.run_until(60.0)
    assert 35.0 <= request.given_up[0] <= 35.25


def test_a_request_that_is_answered_in_time_is_not_given_up(
    loop: Loop, abandoned: Abandoned
) -> None:
    request = begun(loop, abandoned)
    abandoned.lost(request)
    abandoned.is_answered(request)
    loop.run_until(60.0)
    assert not request.given_up


def test_a_request_that_was_answered_before_is_not_given_up(
    loop: Loop, abandoned: Abandoned
) -> None:
    request = begun(loop, abandoned)
    abandoned.is_answered(request)
    abandoned.lost(request)
    loop.run_until(60.0)
    assert not request.given_up


def test_a_request_is_given_up_once(loop: Loop, abandoned: Abandoned) -> None:
    request = begun(loop, abandoned)
    abandoned.lost(request)
    loop.run_until(30.0)
    abandoned.lost(request)
    loop.run_until(60.0)
    assert len(request.given_up) == 1


def test_a_request_that_is_wanted_nevertheless_is_not_given_up(
    loop: Loop, abandoned: Abandoned
) -> None:
    request = begun(loop, abandoned, wanted=True)
    abandoned.lost(request)
    loop.run_until(60.0)
    assert not request.given_up
    assert loop.driver.statistics().abandoned == 0


def test_the_log_says_what_a_cancelled_request_would_have_cost(
    loop: Loop, abandoned: Abandoned, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reaper")
    first = begun(loop, abandoned)
    loop.run_until(20.0)
    abandoned.is_answered(first)
    second = begun(loop, abandoned)
    loop.run_until(21.0)
    abandoned.lost(second)
    loop.run_until(60.0)
    (line,) = caplog.messages
    assert line.startswith("GET / - cancelled: its client has been gone for 5.0 s")
    assert line.endswith(
        "it had run for 6.0 s; answers took 20.0 s (1 of them): about 14.0 s saved"
    )


def test_the_log_owns_that_it_does_not_know_what_was_saved(
    loop: Loop, abandoned: Abandoned, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reaper")
    abandoned.lost(begun(loop, abandoned))
    loop.run_until(60.0)
    assert "what that saves is unknown" in caplog.text


# ---- whether a client that has sent a FIN is gone: real sockets, virtual time


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: the client's side, and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        served, _ = listening.accept()
    with client, served:
        yield client, served


def hung_up(abandoned: Abandoned, request: Request, served: socket.socket) -> None:
    assert served.recv(1) == b""
    abandoned.hung_up(request, Link(served.fileno, lambda: True, served.close))


def is_reset(served: socket.socket) -> Callable[[], bool]:
    return lambda: is_over(served.fileno())


def test_a_client_that_has_closed_is_told_by_the_reset_of_its_kernel(
    loop: Loop, abandoned: Abandoned, pair: tuple[socket.socket, socket.socket]
) -> None:
    client, served = pair
    request = begun(loop, abandoned)
    client.close()
    hung_up(abandoned, request, served)
    wait_until(is_reset(served))
    loop.run_until(60.0)
    assert 5.0 <= request.given_up[0] <= 5.25


def test_a_client_that_waits_for_its_answer_is_not_gone(
    loop: Loop, abandoned: Abandoned, pair: tuple[socket.socket, socket.socket]
) -> None:
    client, served = pair
    request = begun(loop, abandoned)
    client.shutdown(socket.SHUT_WR)
    hung_up(abandoned, request, served)
    assert client.recv(1000) == QUESTION
    loop.run_until(600.0)
    assert not request.given_up


def test_a_client_that_waited_and_then_leaves_has_its_whole_time(
    loop: Loop, abandoned: Abandoned, pair: tuple[socket.socket, socket.socket]
) -> None:
    client, served = pair
    request = begun(loop, abandoned)
    client.shutdown(socket.SHUT_WR)
    hung_up(abandoned, request, served)
    loop.run_until(12.0)
    client.close()  # nothing is sent: its FIN was
    loop.run_until(60.0)
    assert 17.0 <= request.given_up[0] <= 22.5


def test_a_dead_connection_is_dropped_before_its_request_is_given_up(
    loop: Loop, abandoned: Abandoned, pair: tuple[socket.socket, socket.socket]
) -> None:
    client, served = pair
    request = begun(loop, abandoned)
    client.close()
    hung_up(abandoned, request, served)
    wait_until(is_reset(served))
    loop.run_until(1.0)
    assert served.fileno() < 0
    assert not request.given_up


def test_nothing_is_asked_while_something_may_still_be_written(
    loop: Loop, abandoned: Abandoned, pair: tuple[socket.socket, socket.socket]
) -> None:
    client, served = pair
    client.shutdown(socket.SHUT_WR)
    link = Link(served.fileno, lambda: False, served.close)
    abandoned.hung_up(begun(loop, abandoned), link)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1000)


# ---- servers

APP = "tests.helpers.leaving:application"
GUNICORN = ["gunicorn", APP, "--no-control-socket", "-k"]
RUN = ["reaper", "run", "--", sys.executable, "-m"]
HYPERCORN = [*RUN, "hypercorn", APP, "-k"]
COMMANDS = {
    "HttpTools": ["uvicorn", APP, "--http", "reaper.uvicorn:HttpTools", "--port"],
    "uvloop": ["uvicorn", APP, "--http", "reaper.uvicorn:Auto", "--loop", "uvloop", "--port"],
    "UvicornWorker": [*GUNICORN, "reaper.gunicorn.UvicornWorker", "-b"],
    "hypercorn": [*HYPERCORN, "asyncio", "-b"],
    "hypercorn on trio": [*HYPERCORN, "trio", "-b"],
    "aiohttp below reaper run": [*RUN, "tests.helpers.leaving", "--stock"],
}
THREADS = [
    "gunicorn",
    "tests.helpers.wsgi:application",
    *GUNICORN[2:],
    "reaper.gunicorn.ThreadWorker",
    "-b",
]


@contextlib.contextmanager
def serving(kind: str, log: Path, **timeouts: str) -> Iterator[Server]:
    port = free_port()
    limits = {f"REAPER_TIMEOUTS_{name}": value for name, value in timeouts.items()}
    environment = os.environ | {"REAPER_TICK": "250ms"} | limits
    words = (COMMANDS | {"threads": THREADS})[kind]
    where = f"127.0.0.1:{port}" if words[-1] == "-b" else str(port)
    command = [sys.executable, "-m", *words, where]
    with start(command, log, port=port, environment=environment) as server:
        yield server


def half_close(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


Leave = Callable[[socket.socket], None]
LEAVERS: dict[str, Leave] = {
    "/closes": socket.socket.close,
    "/resets": reset,
    "/kept": socket.socket.close,
    "/background": socket.socket.close,
    "/waits": half_close,
    "/begun": half_close,
    "/old": half_close,
    "/hasty": half_close,
}
"""How the client leaves that asks for a path; `/old` is asked for by HTTP/1.0, `/hasty`
in one go with the FIN.
"""


def _is_over(path: str, log: str) -> bool:
    return f"{path} {ENDED}" in log or f"{path} {CANCELLED}" in log


class Trial:
    """What became of the requests of all `LEAVERS`: what each client heard, and the
    log.
    """

    def __init__(self, server: Server | Here) -> None:
        clients = {path: connect(server) for path in LEAVERS}
        for path, client in clients.items():
            version = b"1.0" if path == "/old" else b"1.1"
            client.sendall(b"GET %s HTTP/%s\r\nhost: h\r\n\r\n" % (path.encode(), version))
            if path == "/hasty":
                half_close(client)
        wait_until(lambda: all(f"{path} {BEGAN}" in server.log.read_text() for path in LEAVERS))
        for path, client in clients.items():
            if path != "/hasty":
                LEAVERS[path](client)
        waiting = {path: client for path, client in clients.items() if client.fileno() >= 0}
        self.heard = {path: rest(client) for path, client in waiting.items()}
        for client in waiting.values():
            client.close()
        wait_until(lambda: all(_is_over(path, server.log.read_text()) for path in LEAVERS))
        self.log = server.log.read_text()


SETTINGS = {"TICK": "250ms", "TIMEOUTS_ABANDONED": f"{AFTER:g}s", "TIMEOUTS_DRAIN": "1s"}
PROCESSES = ["uvloop", "UvicornWorker", "aiohttp below reaper run"]


@pytest.fixture(scope="module", params=[*SERVERS_HERE, *PROCESSES])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    log = tmp_path_factory.mktemp("leaving") / "log"
    if request.param in SERVERS_HERE:
        app = leaving.application
        with server_here(request.param, log, app, leaving.aiohttp_app(), SETTINGS) as running:
            return Trial(running)
    with serving(request.param, log, ABANDONED=f"{AFTER:g}s") as server:
        return Trial(server)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/closes", "/resets"])
def test_the_request_of_a_client_that_has_left_is_cancelled(trial: Trial, path: str) -> None:
    assert f"{path} {CANCELLED}" in trial.log


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/waits", "/begun", "/old", "/hasty"])
def test_a_half_closed_client_that_waits_gets_its_whole_answer(trial: Trial, path: str) -> None:
    assert trial.heard[path].endswith(b"done")
    assert path != "/old" or QUESTION not in trial.heard[path]  # HTTP/1.0 does not know it
    assert f"{path} {ENDED}" in trial.log


async def answers_soon(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await anyio.sleep(0.3)
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HttpTools", "H11", "hypercorn"])
def test_a_half_closed_client_gets_the_answers_to_all_that_it_has_asked(
    kind: str, tmp_path: Path
) -> None:
    app = leaving.aiohttp_app()
    with (
        server_here(kind, tmp_path / "log", answers_soon, app, SETTINGS) as server,
        connect(server) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * 3)
        half_close(client)
        assert rest(client).count(b"done") == 3


@pytest.mark.slow
def test_a_route_that_says_so_is_not_cancelled(trial: Trial) -> None:
    assert f"/kept {ENDED}" in trial.log


@pytest.mark.slow
def test_what_a_handler_does_after_its_answer_is_not_cancelled(trial: Trial) -> None:
    assert f"/background {ENDED}" in trial.log


@pytest.mark.slow
def test_no_error_is_logged_for_a_cancelled_request(trial: Trial) -> None:
    assert "Traceback" not in trial.log
    assert "without starting response" not in trial.log


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hypercorn", "hypercorn on trio"])
def test_a_reset_stream_of_http2_is_cancelled_and_its_neighbour_answered(
    kind: str, tmp_path: Path
) -> None:
    with serving(kind, tmp_path / "log", ABANDONED=f"{AFTER:g}s") as server:
        with talking(server) as client:
            client.asks("/closes", "/stays")
            wait_until(lambda: server.log.read_text().count(BEGAN) == 2)
            client.do(Cancel(0))
            client.has(1)
            bodies = [bytes(client.stream(each).body) for each in (0, 1)]
        paths = ("/closes", "/stays")
        wait_until(lambda: all(_is_over(path, server.log.read_text()) for path in paths))
        log = server.log.read_text()
    assert f"/closes {CANCELLED}" in log
    assert f"/stays {ENDED}" in log
    assert bodies == [b"", b"done"]


ASKS = """
import socket, sys
client = socket.create_connection((sys.argv[1], int(sys.argv[2])))
client.sendall(b"GET %s HTTP/1.1\\r\\nhost: h\\r\\n\\r\\n" % sys.argv[3].encode())
while client.recv(1000):
    pass
"""


@pytest.mark.slow
def test_a_machine_that_vanishes_has_its_request_cancelled_and_no_other_one(tmp_path: Path) -> None:
    limits = {"REAPER_TICK": "250ms", "REAPER_TIMEOUTS_VANISHED": "3s", "LEAVING_LONG": "12"}
    environment = os.environ | limits | {"REAPER_TIMEOUTS_ABANDONED": f"{AFTER:g}s"}
    log = tmp_path / "log"
    with namespaces.opened() as link, contextlib.ExitStack() as stack:
        uvicorn = [sys.executable, "-m", *COMMANDS["HttpTools"], "0", "--host", "0.0.0.0"]
        server = Server([*link.server, *uvicorn], log, says=RUNS, environment=environment)
        stack.callback(server.end)
        stack.callback(server.stop)
        server.wait_until_it_listens()

        def ask(where: list[str], address: str, path: str) -> None:
            command = [*where, sys.executable, "-c", ASKS, address, str(server.port), path]
            client = stack.enter_context(subprocess.Popen(command))
            stack.callback(client.kill)

        ask(link.client, link.address, "/vanishes")
        ask(link.server, "127.0.0.1", "/lives")
        paths = ("/vanishes", "/lives")
        wait_until(lambda: all(f"{path} {BEGAN}" in server.said() for path in paths))
        link.down()
        wait_until(lambda: all(_is_over(path, server.said()) for path in paths))
        said = server.said()
    assert f"/vanishes {CANCELLED}" in said
    assert f"/lives {ENDED}" in said
    gone = re.search(r"GET /vanishes - cancelled: its client has been gone for ([\d.]+) s", said)
    assert gone is not None
    assert float(gone[1]) >= AFTER
    assert said.index(f"/vanishes {CANCELLED}") < said.index(f"/lives {ENDED}")


@pytest.mark.slow
def test_threads_say_that_they_cannot_be_cancelled(tmp_path: Path) -> None:
    with serving("threads", tmp_path / "log", ABANDONED="1s") as server:
        wait_until(lambda: "a request in a thread cannot be cancelled" in server.log.read_text())
