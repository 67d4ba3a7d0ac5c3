"""`reaper run --exit-when-idle`: a server ends when nobody has been connected, and not
while anybody is.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from scripts.serving import free_port, tree
from tests.helpers.reaper_run import PATIENCE, REAPER, run
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.slow

IDLE, TICK = 2.0, 0.2

SERVER = """
import os, socketserver, socket, sys, time
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(4096):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
place = ("127.0.0.1", int(sys.argv[1]))
activated = os.environ.get("LISTEN_PID") == str(os.getpid())
server = Server(place, Echo, bind_and_activate=not activated)
if activated:
    server.socket.close()
    server.socket = socket.socket(fileno=3)
if len(sys.argv) > 2:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
server.serve_forever()
"""


UNTIL_IDLE = [*REAPER, "run", "--inside", "--exit-when-idle", "2s", "--tick", "200ms", "--"]


class Life:
    """One run of *command*, arguments of Python, below `reaper run --exit-when-idle`;
    it listens on *port*.

    Args:
        below: The command that starts all that; none: it is started as it is.
        options: Of `Popen`.
    Attributes:
        asked: When `listens` began to ask last.
    """

    def __init__(
        self, port: int, command: Sequence[str], below: Sequence[str] = (), **options: Any
    ) -> None:
        self.port = port
        self.asked = time.monotonic()
        words = [*below, *UNTIL_IDLE, sys.executable, *command]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def listens(self) -> bool:
        self.asked = time.monotonic()
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def ends(self) -> tuple[int, str]:
        """Its status and what it said, once it has ended."""
        said = self.process.communicate(timeout=PATIENCE)[1]
        return self.process.returncode, said


def echoes(folder: Path, *words: str) -> Life:
    """A life of the server above, with *words*: its port, and what else it takes."""
    return Life(int(words[0]), [_server(folder), *words])


def _server(folder: Path) -> str:
    program = folder / "server.py"
    program.write_text(SERVER)
    return str(program)


@pytest.fixture
def lives() -> Iterator[list[Life]]:
    started: list[Life] = []
    yield started
    for life in started:
        if life.process.poll() is None:
            for pid in tree(life.process.pid):  # its server holds the pipe as well
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        life.process.communicate(timeout=PATIENCE)


def test_it_ends_with_0_once_nobody_has_been_connected(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(life := echoes(tmp_path, str(free_port())))
    wait_until(life.listens)
    chance, leaves = random.Random(5), life.asked
    for _ in range(4):
        time.sleep(chance.uniform(0, 0.6))
        heard = b""
        with suppress(ConnectionError), closing(life.connect()) as client:
            client.sendall(b"x")
            if heard := client.recv(1):
                time.sleep(chance.choice([0, 0.3, 1.5 * IDLE]))
                assert life.process.poll() is None
                leaves = time.monotonic()  # it may be seen before we are told that we have left
        if heard != b"x":
            assert time.monotonic() - leaves >= IDLE, "it ended while we were not late"
            break
    status, said = life.ends()
    assert status == 0
    assert time.monotonic() - leaves >= IDLE
    assert "nobody has been connected for 2s: SIGTERM" in said


def test_who_waits_to_be_accepted_keeps_it(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(life := echoes(tmp_path, str(free_port())))
    wait_until(life.listens)
    server = next(iter(_children(life.process.pid)))
    os.kill(server, signal.SIGSTOP)
    with closing(life.connect()) as client:
        client.sendall(b"x")
        time.sleep(2 * IDLE)
        os.kill(server, signal.SIGCONT)
        assert client.recv(1) == b"x"
    assert life.ends()[0] == 0


def test_what_cannot_be_seen_keeps_it_and_is_named(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(life := echoes(tmp_path, str(free_port()), "udp"))
    wait_until(life.listens)
    time.sleep(2 * IDLE)
    assert life.process.poll() is None
    life.process.terminate()
    status, said = life.ends()
    assert status == -signal.SIGTERM  # as the server's own
    assert "keeps it running: UDP port" in said


def test_between_two_lives_nobody_is_lost(tmp_path: Path, lives: list[Life]) -> None:
    """systemd holds the socket: whoever comes in between is served by the next life."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for _ in range(2):
            client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            client.sendall(b"x")
            activated = _activated(tmp_path, port, listening.fileno())
            lives.append(activated)
            assert client.recv(1) == b"x"
            client.close()
            assert activated.ends()[0] == 0


def test_its_status_and_signals_are_the_commands_own() -> None:
    done = run("--exit-when-idle", "1h", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    looping = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    command = [*REAPER, "run", "--inside", "--exit-when-idle", "1h", "--", "sh", "-c", looping]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.wait(PATIENCE) == 9


@pytest.mark.parametrize("value", ["0s", "soon", "-1m"])
def test_a_wrong_duration_is_one_line(value: str) -> None:
    done = run(f"--exit-when-idle={value}", "--", "true")
    assert done.returncode == 2
    assert "--exit-when-idle" in done.stderr


WORKS = """
import asyncio, reaper, time
def wsgi(environ, start_response):
    path = environ["PATH_INFO"]
    open(path + "-begun", "w").close()
    time.sleep(5)
    with open(path, "w") as file:
        file.write("told to stop" if reaper.stopping() else "in peace")
    start_response("200 OK", [("Content-Length", "4")])
    return [b"done"]
async def work(path):
    open(path + "-begun", "w").close()
    await asyncio.sleep(5)
    with open(path, "w") as file:
        file.write("told to stop" if reaper.stopping() else "in peace")
async def app(scope, receive, send):
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await work(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
async def handle(request):
    await work(request.path)
    return web.Response(text="done")
if __name__ == "__main__":
    import sys
    from aiohttp import web
    served = web.Application()
    served.router.add_get("/{path:.*}", handle)
    web.run_app(served, host="127.0.0.1", port=int(sys.argv[1]))
"""
THREADS = ["--no-control-socket", "--threads", "2"]
GUARDED = {
    "uvicorn": ["-m", "uvicorn", "works:app", "--lifespan", "off", "--port", "PORT"],
    "aiohttp": ["works.py", "PORT"],
    "hypercorn": ["-m", "hypercorn", "works:app", "--bind", "127.0.0.1:PORT"],
    "threads": ["-m", "gunicorn", *THREADS, "works:wsgi", "--bind", "127.0.0.1:PORT"],
}


TWO_WORKERS = {
    "uvicorn": [*GUARDED["uvicorn"], "--workers", "2"],
    "hypercorn": [*GUARDED["hypercorn"], "--workers", "2"],
}


def _guarded(folder: Path, command: list[str]) -> Life:
    """A life of *command*, arguments of Python, in *folder*."""
    port = free_port()
    return Life(port, [word.replace("PORT", str(port)) for word in command], cwd=folder)


@pytest.mark.parametrize("name", GUARDED)
def test_a_request_whose_client_has_left_keeps_it(
    tmp_path: Path, lives: list[Life], name: str
) -> None:
    (tmp_path / "works.py").write_text(WORKS)
    lives.append(life := _guarded(tmp_path, GUARDED[name]))
    wait_until(life.listens)
    with closing(life.connect()) as client:
        client.sendall(b"GET %s/done HTTP/1.1\r\nHost: a\r\n\r\n" % os.fsencode(tmp_path))
        wait_until((tmp_path / "done-begun").exists)
    wait_until((tmp_path / "done").exists)
    assert life.ends()[0] == 0
    assert (tmp_path / "done").read_text() == "in peace"
    assert time.time() - (tmp_path / "done").stat().st_mtime >= IDLE


@pytest.mark.parametrize("name", GUARDED)
def test_one_that_begins_slowly_is_not_ended_before_it_listens(
    tmp_path: Path, lives: list[Life], name: str
) -> None:
    """hypercorn says that it is guarded before its worker has imported what it
    serves.
    """
    (tmp_path / "works.py").write_text(f"import time; time.sleep({2 * IDLE})\n{WORKS}")
    lives.append(life := _guarded(tmp_path, GUARDED[name]))
    wait_until(life.listens)
    status, said = life.ends()
    assert status == 0
    assert time.monotonic() - life.asked >= IDLE  # it may be alone before we are told that it is
    assert "keeps it running" not in said


@pytest.mark.parametrize("name", TWO_WORKERS)
def test_workers_that_find_each_other_do_not_keep_it(
    tmp_path: Path, lives: list[Life], name: str
) -> None:
    (tmp_path / "works.py").write_text(WORKS)
    lives.append(life := _guarded(tmp_path, TWO_WORKERS[name]))
    wait_until(life.listens)
    status, said = life.ends()
    assert status == 0
    assert "keeps it running" not in said


def _children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _activated(folder: Path, port: int, descriptor: int) -> Life:
    """A life that is started as systemd starts it: the socket is its descriptor 3."""
    script = f'exec 3<&{descriptor}; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
    command = [_server(folder), str(port)]
    return Life(port, command, below=["bash", "-c", script, "bash"], pass_fds=[descriptor])
