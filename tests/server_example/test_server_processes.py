"""The servers as processes: signals to whole groups, workers that die or stall,
restarts. Nothing accepted is lost.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from reaper.config import ReaperConfig
from scripts.serving import example
from scripts.tools import metrics
from server_example.listening import Listening, empty, turn_away
from server_example.serving import serve
from server_example.status import Doors
from server_example.workers import BURST, DRAIN, LAST, LOOK, RELOAD, WORD, Counters, Worker
from tests.helpers.server_process import (
    PATIENCE,
    ROOT,
    Process,
    answer,
    ask,
    load,
    server,
    wait_until,
)

pytestmark = pytest.mark.slow

FLIGHTS = 10
CLOSE = b"GET /sleep?s=0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def in_flight(process: Process, seconds: str = "1s") -> list[http.client.HTTPConnection]:
    """Clients whose requests the server has begun to answer."""
    clients = [ask(process.address, f"/sleep?s={seconds}") for _ in range(FLIGHTS)]
    looks = 0

    def begun() -> bool:
        nonlocal looks
        looks += 1  # each is a request, too
        return metrics(process.address)["http_requests_total"] >= FLIGHTS + looks

    wait_until(begun, "the requests")
    return clients


def refuses(address: tuple[str, int]) -> bool:
    """Whether nobody listens any more."""
    try:
        socket.create_connection(address, timeout=0.5).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # a newcomer's SYN is dropped first
        return False
    return False


def loses_nothing(first: signal.Signals, *more: signal.Signals) -> None:
    """Requests in flight are answered though the whole group is sent these, 0.1 s
    apart.
    """
    with server("http", "--drain-idle", "100ms") as process:
        clients = in_flight(process)
        process.group(first)
        for number in more:
            time.sleep(0.1)
            process.group(number)
        assert [answer(client) for client in clients] == [200] * FLIGHTS
        assert process.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_loses_no_request(number: signal.Signals) -> None:
    loses_nothing(number)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_burst_of_signals_to_the_whole_group_loses_no_request(first: signal.Signals) -> None:
    loses_nothing(first, first, signal.SIGHUP, signal.SIGTERM)


def test_sigterm_long_after_the_first_still_loses_nothing_but_ctrl_c_does_end_it_now() -> None:
    with server("http") as process:
        clients = in_flight(process, "100s")
        process.group(signal.SIGTERM)
        wait_until(lambda: refuses(process.address), "the drain")  # BURST counts from it on
        time.sleep(BURST + 0.2)
        process.group(signal.SIGTERM)
        time.sleep(0.3)
        assert process.status is None
        process.group(signal.SIGINT)
        assert process.end() == 0
        assert all(isinstance(answer(client), str) for client in clients)
        process.says("ending at once")


def test_a_worker_that_ends_early_in_a_drain_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDEVMODE", "1")  # in which Python warns of sockets that nobody closed
    with server(
        "http", "--workers", "2", "--drain-idle", "100ms", "--status", "127.0.0.1:0"
    ) as process:
        client = ask(
            process.address, "/sleep?s=1s"
        )  # one worker is busy with it, the other ends at once
        time.sleep(0.2)
        process.process.terminate()
        assert answer(client) == 200
        assert process.end() == 0
        assert not re.search("Traceback|Warning", process.said())


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A reaper.toml that closes nothing for an hour."""
    path = tmp_path / "reaper.toml"
    path.write_text('[timeouts]\nidle = "1h"\n[reaper]\ntick = "50ms"\n')
    return path


def shorten(path: Path, process: Process) -> None:
    """Reload *process* with a timeout of 100 ms."""
    path.write_text('[timeouts]\nidle = "100ms"\n[reaper]\ntick = "50ms"\n')
    process.group(signal.SIGHUP)


def closes_the_silent(process: Process) -> None:
    with socket.create_connection(process.address, timeout=PATIENCE) as client:
        assert client.recv(10) == b""


def test_sighup_gives_open_connections_their_new_timeout(settings: Path) -> None:
    with server("echo", "--config", str(settings)) as process:
        with socket.create_connection(process.address, timeout=PATIENCE) as client:
            client.sendall(b"hello")
            assert client.recv(10) == b"hello"
            settings.write_text('[timeouts]\nidle = "never"\n')
            process.group(signal.SIGHUP)
            process.says("nothing was changed")
            shorten(settings, process)
            assert client.recv(10) == b""
        process.says("timeouts.idle: 1h -> 100ms")
        closes_the_silent(process)


def test_a_worker_that_starts_after_a_reload_has_the_new_timeout(settings: Path) -> None:
    with server("echo", "--config", str(settings)) as process:
        shorten(settings, process)
        process.says("timeouts.idle: 1h -> 100ms")
        os.kill(process.workers()[0], signal.SIGKILL)
        process.says("starting it again")
        closes_the_silent(process)


def test_what_waits_in_the_backlog_is_answered_and_a_later_client_is_refused_at_once() -> None:
    with server("http", "--drain-idle", "100ms") as process:
        clients = in_flight(process, "2s")
        (worker,) = process.workers()
        os.kill(worker, signal.SIGSTOP)
        waiting = [ask(process.address) for _ in range(FLIGHTS)]
        process.process.terminate()
        time.sleep(0.2)
        os.kill(worker, signal.SIGCONT)
        assert [answer(client) for client in waiting] == [200] * FLIGHTS

        with pytest.raises(ConnectionRefusedError):
            while True:
                socket.create_connection(process.address, timeout=PATIENCE).close()
                time.sleep(0.02)
        assert [answer(client) for client in clients] == [200] * FLIGHTS
        assert process.end() == 0


def test_a_rolling_restart_under_load_loses_nothing() -> None:
    process = Process("http", "--drain-idle", "50ms", "--workers", "1")
    flags = ("--port", str(process.port), "--share-port", "--drain-idle", "50ms")
    try:
        with load(process.address, 4, keeps=False) as answers:
            for workers in ("2", "1", "2"):
                stopped, process = process, Process("http", *flags, "--workers", workers)
                assert stopped.stop() == 0, stopped.said()
            time.sleep(0.2)
    finally:
        process.stop()
    assert set(answers) == {200}
    assert len(answers) > 50


def refused(*arguments: str) -> str:
    """The line with which a server ends that cannot start."""
    done = subprocess.run(
        example(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    return line


def test_a_second_server_on_the_port_is_refused_and_one_that_follows_a_stop_is_not() -> None:
    with server("echo") as process:
        port = str(process.port)
        assert re.search(
            "Address already in use.*--share-port",
            refused("echo", "--port", port, "--workers", "1"),
        )
        with socket.create_connection(process.address, timeout=PATIENCE) as client:
            client.sendall(b"hello")
            assert client.recv(10) == b"hello"
            process.process.terminate()
            wait_until(lambda: refuses(process.address), "the stop")
            with server("echo", "--port", port) as successor:
                assert successor.address == process.address


def test_a_worker_that_is_killed_or_told_to_end_is_replaced_and_nothing_is_lost() -> None:
    with server("http", "--drain-idle", "50ms") as process:
        clients = in_flight(process)
        (worker,) = process.workers()
        os.kill(worker, signal.SIGTERM)
        process.group(signal.SIGHUP)
        assert [answer(client) for client in clients] == [200] * FLIGHTS
        process.says(rf"worker 0 \(pid {worker}\) was told to end; starting its successor")
        process.says(rf"worker 0 \(pid {worker}\) ended with status 0$")
        assert answer(ask(process.address)) == 200
        (worker,) = process.workers()
        os.kill(worker, signal.SIGSTOP)
        waiting = [ask(process.address) for _ in range(FLIGHTS)]
        os.kill(worker, signal.SIGKILL)
        assert [answer(client) for client in waiting] == [200] * FLIGHTS
        process.says(rf"worker 0 \(pid {worker}\) ended with status -9; starting it again")
        assert process.stop() == 0
        (accepted,) = re.findall(r"accepted (\d+),", process.says("^stopped: "))
        assert int(accepted) > 2 * FLIGHTS  # by all three workers


def test_newcomers_do_not_wait_for_the_drain_of_a_worker_that_is_told_to_end() -> None:
    with server("http", "--drain", "5s", "--drain-delay", "5s") as process:
        clients = in_flight(process, "100s")
        (worker,) = process.workers()
        os.kill(worker, signal.SIGTERM)
        process.says("starting its successor")
        wait_until(lambda: len(process.workers()) == 2, "the successor")
        for _ in range(5):
            assert answer(ask(process.address)) == 200
        assert worker in process.workers(), "newcomers have waited for the end of its drain"
        assert all(isinstance(answer(client), str) for client in clients)


def resets_among_newcomers(*flags: str) -> tuple[int, int]:
    """Stop a server by SIGTERM to its group while clients keep connecting. Returns how
    many of them were reset, and how many were answered.
    """
    stopped = threading.Event()
    said: list[bytes] = []

    def keep_asking(address: tuple[str, int]) -> None:
        while not stopped.is_set():
            with socket.socket() as client:
                client.settimeout(0.5)  # a client whose SYN is dropped would wait for seconds
                try:
                    client.connect(address)
                    client.settimeout(PATIENCE)
                    client.sendall(CLOSE)
                    said.append(client.recv(12))
                except ConnectionResetError:
                    said.append(b"reset")
                except OSError:
                    time.sleep(0.01)  # nobody listens

    with server("http", "--drain-idle", "50ms", *flags) as process:
        asking = [threading.Thread(target=keep_asking, args=[process.address]) for _ in range(8)]
        for each in asking:
            each.start()
        wait_until(lambda: len(said) > 50)
        process.group(signal.SIGTERM)
        assert process.end() == 0
        stopped.set()
        for each in asking:
            each.join()
    assert set(said) <= {b"reset", b"HTTP/1.1 200"}
    return said.count(b"reset"), said.count(b"HTTP/1.1 200")


def test_sigterm_to_the_group_resets_no_newcomer_though_the_drain_begins_at_once() -> None:
    found = [resets_among_newcomers("--workers", "2") for _ in range(3)]
    assert [resets for resets, _ in found] == [0, 0, 0]
    assert all(answered > 50 for _, answered in found)


@pytest.mark.trio
async def test_a_worker_that_gets_sigterm_waits_for_the_word_of_its_supervisor(
    autojump_clock: MockClock,
) -> None:
    orders, supervisor = os.pipe()
    worker = worker_of(orders)

    async def serve(worker: Worker) -> None:
        await trio.testing.wait_all_tasks_blocked()  # the signal would end this process before
        os.kill(os.getpid(), signal.SIGTERM)
        while not worker.counters["told"]:
            await trio.sleep(0.01)
        await trio.sleep(LOOK)
        assert not worker.stop.is_set()
        os.write(supervisor, DRAIN + LAST)
        await worker.stop.wait()
        assert worker.last

    await worker.run(serve)
    for end in (orders, supervisor):
        os.close(end)


@pytest.mark.trio
async def test_a_worker_without_a_word_of_its_supervisor_drains_after_a_bounded_time(
    autojump_clock: MockClock,
) -> None:
    orders, supervisor = os.pipe()
    worker = worker_of(orders)

    async def serve(worker: Worker) -> None:
        await trio.testing.wait_all_tasks_blocked()  # the signal would end this process before
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(2 * WORD):
            await worker.stop.wait()
        assert (worker.last, worker.replaced) == (False, False)

    await worker.run(serve)
    for end in (orders, supervisor):
        os.close(end)


def test_a_stalled_worker_is_killed_and_replaced_but_a_pause_of_all_kills_none() -> None:
    # Longer than a busy machine holds up a worker that starts, or goes on.
    with server("http", "--watchdog", "3s", "--drain-idle", "50ms") as process:
        process.group(signal.SIGSTOP)
        time.sleep(3.5)
        process.group(signal.SIGCONT)
        assert answer(ask(process.address)) == 200
        (worker,) = process.workers()
        os.kill(worker, signal.SIGSTOP)
        waiting = ask(process.address)
        process.says(rf"worker 0 \(pid {worker}\) has stalled for 3 s")
        assert answer(waiting) == 200
        assert process.said().count("has stalled") == 1
        assert process.workers() != [worker]


def worker_of(orders: int, *listening: socket.socket) -> Worker:
    return Worker(0, 1, 30.0, [*listening], Counters(), Doors(1), orders)


@pytest.mark.trio
async def test_a_reload_that_comes_before_there_is_anything_to_reload_is_not_lost(
    autojump_clock: MockClock,
) -> None:
    orders, supervisor = os.pipe()
    worker = worker_of(orders)

    async def serve(worker: Worker) -> None:
        reloaded = trio.Event()

        async def reload() -> None:
            reloaded.set()

        os.write(supervisor, RELOAD)
        await trio.sleep(1)
        worker.reload = reload
        await reloaded.wait()

    with trio.fail_after(10):
        await worker.run(serve)
    for end in (orders, supervisor):
        os.close(end)


SUPERVISED = """
import errno, os
from server_example import workers
from scripts.serving import example
from server_example.listening import Listening
workers.FIRST_DELAY = 0.01
fork, forks = os.fork, []
def failing():
    forks.append(1)
    if len(forks) in {failing}:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = failing
async def serve(worker):
    worker.counters["ready"] = 1
    await workers.trio.sleep(0.3)
    if len(forks) < {good}:
        raise LookupError("on purpose")
    os.kill(os.getppid(), 15)
    await worker.stop.wait()
    print("nobody accepts after it:", worker.last, flush=True)
before = len(os.listdir("/proc/self/fd"))
status = workers.Supervisor(Listening.open("127.0.0.1", 0, 1), 1).run(serve)
raise SystemExit(status or len(os.listdir("/proc/self/fd")) - before)
"""
"""The forks by their numbers: those that fail, and the first whose worker does not
crash.
"""


def supervised(failing: set[int], good: int) -> subprocess.CompletedProcess[str]:
    code = SUPERVISED.format(failing=failing, good=good)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )


def test_a_fork_that_fails_is_tried_again_and_costs_nothing() -> None:
    done = supervised({2, 3}, good=4)
    assert (
        done.stdout.count(
            "worker 0 cannot be started: Resource temporarily unavailable; starting it again"
        )
        == 2
    )
    assert "nobody accepts after it: True" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_for_the_drain_delay_newcomers_are_served_and_told_to_go_elsewhere() -> None:
    with server("http", "--drain-delay", "4s", "--drain-idle", "100ms") as process:
        idle = ask(process.address, "/")
        response = idle.getresponse()
        assert (response.read() != b"", response.getheader("connection")) == (True, None)
        assert answer(ask(process.address, "/ready")) == 200
        process.group(signal.SIGTERM)
        wait_until(lambda: answer(ask(process.address, "/ready")) == 503)
        time.sleep(0.5)  # what waits in the backlog at the end is served too; this comes after that
        newcomer = ask(process.address, "/").getresponse()
        assert (newcomer.status, newcomer.getheader("connection")) == (200, "close")
        newcomer.close()
        idle.request("GET", "/")
        response = idle.getresponse()
        assert (response.status, response.getheader("connection")) == (200, "close")
        idle.close()
        assert process.end() == 0


def test_a_worker_that_keeps_dying_ends_the_server() -> None:
    done = supervised({0}, good=100)
    assert done.returncode == 1
    assert done.stdout.count("starting it again") == 5
    assert "; stopping, for it was the 6th time in a minute" in done.stdout
    assert "on purpose" in done.stderr


class Manager(socket.socket):
    """A service manager, as far as it listens."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, watchdog: float) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.bind(str(path))
        self.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", str(int(watchdog * 1e6)))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)

    def hears(self, wanted: str) -> list[str]:
        """All messages up to the first that begins with *wanted*."""
        heard: list[str] = []
        while not heard or not heard[-1].startswith(wanted):
            heard.append(self.recv(1000).decode())
        return heard

    def has_heard(self) -> list[str]:
        """All messages that have come meanwhile."""
        heard: list[str] = []
        while select.select([self], [], [], 0)[0]:
            heard.append(self.recv(1000).decode())
        return heard

    def is_silent(self, seconds: float) -> bool:
        """Whether no sign of life comes for so long. One does where the supervisor was
        held up itself: it blames no worker for that.
        """
        self.has_heard()
        time.sleep(seconds)
        return "WATCHDOG=1" not in self.has_heard()


def test_a_service_manager_is_notified_of_readiness_life_stall_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Manager(tmp_path / "notify", monkeypatch, watchdog=1.2) as manager:
        with server("echo", "--workers", "2", "--watchdog", "0s", "--drain-idle", "0s") as process:
            first = manager.hears("READY=1")
            assert set(first[:-1]) <= {"WATCHDOG=1"}
            assert manager.hears("STATUS=")[-1].startswith("STATUS=open 0, accepted 0")
            manager.hears("WATCHDOG=1")
            stalled = process.workers()[1]
            os.kill(stalled, signal.SIGSTOP)
            time.sleep(1.5)  # longer than its watchdog
            wait_until(lambda: manager.is_silent(1.0), "silence")
            os.kill(stalled, signal.SIGCONT)
            manager.hears("WATCHDOG=1")
        assert manager.hears("STOPPING=1")


def test_the_echo_server_speaks_tls_when_it_is_given_a_certificate(
    certificate: tuple[str, str],
) -> None:
    cert, key = certificate
    with server("echo", "--tls-cert", cert, "--tls-key", key, "--drain-idle", "0s") as process:
        context = ssl.create_default_context(cafile=cert)
        plain = socket.create_connection(process.address, timeout=PATIENCE)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            for word in (b"hello", b"again"):
                client.sendall(word)
                assert client.recv(10) == word
        with socket.create_connection(process.address, timeout=PATIENCE) as plain:
            plain.sendall(b"hello, this is no TLS\n")
            with suppress(ConnectionResetError):
                assert b"hello" not in plain.recv(100)


@pytest.mark.parametrize(("sockets", "workers"), [(1, 1), (2, 3), (3, 2), (4, 4)])
def test_each_socket_has_a_worker_and_each_worker_a_socket(sockets: int, workers: int) -> None:
    listening = Listening.open("127.0.0.1", 0, sockets)
    shares = [listening.share_of(index, workers) for index in range(workers)]
    assert all(shares)
    assert {each for share in shares for each in share} == set(listening.sockets)
    listening.close()


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_sockets_of_a_service_manager_are_taken_over(tmp_path: Path, unix: bool) -> None:
    path = str(tmp_path / "socket")
    made = f"{path!r}, family=socket.AF_UNIX" if unix else "('127.0.0.1', 0)"
    words = ["-m", "server_example", "http", "--workers", "2"]
    code = f"""
import os, socket, sys
s = socket.create_server({made})
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
print(0 if {unix} else s.getsockname()[1], flush=True)
os.environ |= {{'LISTEN_FDS': '1', 'LISTEN_PID': str(os.getpid())}}
os.execv(sys.executable, [sys.executable, *{words}])
"""
    running = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    try:
        port = int(running.stdout.readline())
        with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as client:
            client.settimeout(PATIENCE)
            client.connect(path if unix else ("127.0.0.1", port))
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        running.terminate()
        running.communicate(timeout=PATIENCE)
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--tls-cert nothing.pem --tls-key nothing.pem", "nothing.pem"),
        ("--status nonsense", "nonsense"),
        ("--status 127.0.0.1:70000", "127.0.0.1:70000"),
        ("--status 192.0.2.1:1", "192.0.2.1:1"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_status_2(flags: str, named: str) -> None:
    assert named in refused("http", *flags.split())
    assert named in refused(*re.sub(" (?!--)", "=", flags).split())  # without a kind: echo


def test_what_waits_at_a_listener_is_admitted_once_that_is_closed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        seen: list[int] = []

        def admit(connected: socket.socket) -> None:
            seen.append(listening.fileno())
            connected.close()

        empty(listening, admit)
    assert seen == [-1]


@pytest.mark.trio
async def test_who_asks_as_a_server_leaves_is_answered_by_the_next_one(
    mock_clock: MockClock,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tried:
        if not turn_away(tried):
            pytest.skip("this kernel lets root alone filter a TCP socket")
    with socket.create_server(("127.0.0.1", 0)) as leaving, socket.socket() as asking:
        address = leaving.getsockname()
        worker = worker_of(-1, leaving)
        worker.last = True
        worker.stop.set()
        before = socket.create_connection(address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, "echo", ReaperConfig(), ReaperConfig, None, worker)
            await trio.testing.wait_all_tasks_blocked(0.01)
            asking.settimeout(0.05)
            assert asking.connect_ex(address) == errno.EAGAIN, "nothing was heard"
            mock_clock.autojump_threshold = 0
        with before:
            assert (before.recv(1), leaving.fileno()) == (b"", -1), "who came before is let in"
        with socket.create_server(address) as following:
            following.settimeout(PATIENCE)
            with following.accept()[0] as answered:
                assert answered.getpeername() == asking.getsockname()


@contextmanager
def answering_once(listening: Listening) -> Iterator[None]:
    """Have *listening* answer one successor that asks meanwhile, in a thread."""

    def answer_one() -> None:
        select.select([listening], [], [])
        listening.answer()

    thread = threading.Thread(target=answer_one)
    thread.start()
    yield
    thread.join()


@contextmanager
def taken_over() -> Iterator[tuple[Listening, Listening]]:
    """The sockets of a server, and those of one that has taken them over."""
    first = Listening.open("127.0.0.1", 0, 2)
    with answering_once(first):
        second = Listening.open("127.0.0.1", first.port, 1, share=True)
    yield first, second
    first.close()
    second.close()


def test_no_one_is_turned_away_from_sockets_that_another_server_has_too() -> None:
    with taken_over() as (first, second):
        assert len(second.sockets) == 2
        assert not first.is_last()


def test_a_server_that_took_its_sockets_over_is_the_last_once_the_other_has_gone() -> None:
    with taken_over() as (first, second):
        first.close()
        assert second.is_last()


def test_a_server_whose_successor_has_died_is_the_last_again() -> None:
    with taken_over() as (first, second):
        second.close()
        assert first.is_last()


def test_of_two_servers_that_leave_at_once_one_is_the_last() -> None:
    with taken_over() as (first, second):
        assert [first.is_last(), second.is_last()] == [False, True]


def test_a_service_manager_keeps_its_sockets_so_nobody_is_the_last() -> None:
    with socket.create_server(("127.0.0.1", 0)) as managed:
        listening = Listening([managed.dup()], None)
        assert not listening.is_last()
        listening.close()
