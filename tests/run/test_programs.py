"""Programs that know nothing of reaper, run as they are below `reaper run`, with real sockets."""

from __future__ import annotations

import os
import socket
import sys
import threading
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from reaper.run.command import HOOK
from scripts.serving import free_port, serving
from tests.helpers.reaper_run import APPS, GET, PATIENCE, ends, guarded
from tests.helpers.server_process import installed

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
OWN = "python APPS/programs.py"
GUNICORN = "gunicorn -b 127.0.0.1:{port} --no-control-socket"
PROGRAMS = {
    "uvicorn": f"{OWN} uvicorn {{port}}",
    "uvicorn with workers": f"{OWN} uvicorn_workers {{port}}",
    "uvicorn with reload": f"{OWN} uvicorn_reload {{port}}",
    "uvicorn in a thread": f"{OWN} uvicorn_in_a_thread {{port}}",
    "uvicorn's command, h11": "uvicorn asgi:app --port {port} --http h11",
    "gunicorn, uvicorn's worker": f"{GUNICORN} -k uvicorn.workers.UvicornWorker asgi:app",
    "gunicorn, its own asgi worker": f"{GUNICORN} -k asgi asgi:app",
    "gunicorn, reaper's own worker": f"{GUNICORN} -k reaper.gunicorn.ASGIWorker asgi:app",
    "uvicorn, reaper's own protocol": "uvicorn asgi:app --port {port} --http reaper.uvicorn:H11",
    "gunicorn's threads": f"{GUNICORN} --threads 8 asgi:wsgi",
    "hypercorn": "hypercorn -b 127.0.0.1:{port} asgi:app",
    "hypercorn on trio": "hypercorn -k trio -b 127.0.0.1:{port} asgi:app",
    **{name: f"{OWN} {name} {{port}}" for name in ("aiohttp", "tornado", "sanic")},
    "daphne": "daphne -b 127.0.0.1 -p {port} asgi:app",
}


def command_of(name: str) -> list[str]:
    """The program *name* in words; the checkout's path may have a space."""
    program, *words = PROGRAMS[name].split()
    return [f"{BIN}/{program}", *(word.replace("APPS", str(APPS)) for word in words)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unmodified_program_closes_who_is_silent_and_answers_who_waits(
    name: str, tmp_path: Path
) -> None:
    needed = name.split(",")[0].split()[0].removesuffix("'s")
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed (pip install {needed})")
    command = command_of(name)
    with guarded(command, tmp_path, said=["is guarded from inside"]) as (started, _):
        answers: dict[str, bytes] = {}

        def wait_for_an_answer() -> None:
            answers["slow"] = ends(started.port, GET % b"/slow", answered=b"ok")

        slow = threading.Thread(target=wait_for_an_answer)
        slow.start()
        for what, sent in {
            "silent": b"",
            "half a head": b"GET / HTTP/1.1\r\nHost:",
            "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
            "idle": GET % b"/",
        }.items():
            answers[what] = ends(started.port, sent)
        slow.join()
        assert answers["silent"] == b""
        assert b" 200" not in answers["half a head"] + answers["half a body"]
        assert answers["idle"].startswith(b"HTTP/1.1 200")
        assert answers["slow"].startswith(b"HTTP/1.1 200"), "a request in flight is not idle"


def test_another_language_is_guarded_from_outside(tmp_path: Path) -> None:
    command = [installed("redis-server"), "--port", "{port}", "--save", "", "--dir", str(tmp_path)]
    said = ["is guarded from outside: idle 500ms"]
    with guarded(command, tmp_path, "--idle", "500ms", said=said) as (started, log):
        assert ends(started.port) == b""
        assert ends(started.port, b"PING\r\n") == b"+PONG\r\n"
        assert "guarded from inside" not in log.read_text()


TWO = """
import socket, sys, threading, uvicorn
plain = socket.create_server(('127.0.0.1', 0))
print('plain', plain.getsockname()[1], flush=True)
kept = []
def accept():
    while True:
        kept.append(plain.accept())
threading.Thread(target=accept, daemon=True).start()
uvicorn.run('asgi:app', port=int(sys.argv[1]), log_level='warning')
"""


def test_what_listens_beside_a_guarded_server_is_guarded_from_outside(tmp_path: Path) -> None:
    program = tmp_path / "two.py"
    program.write_text(TWO)
    # Whichever comes first: a Python server has ten seconds to say what it guards.
    words = ["is guarded from inside", "is guarded from outside"]
    command = [sys.executable, str(program), "{port}"]
    with guarded(command, tmp_path, "--idle", "500ms", said=words) as (started, log):
        text = log.read_text()
        plain = int(text.partition("plain ")[2].split()[0])
        assert (
            f"uvicorn {version('uvicorn')} on 127.0.0.1:{started.port} is guarded from inside"
            in text
        )
        assert f"127.0.0.1:{plain} is guarded from outside" in text
        with socket.create_connection(("127.0.0.1", plain)) as sock:
            sock.settimeout(PATIENCE)
            # The server never reads: its side is shut down, and a reset follows only if it closes.
            sock.recv(1)
        assert ends(started.port) == b""


def test_the_environment_alone_guards_too(tmp_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"REAPER_RUN": "1", "PYTHONPATH": f"{HOOK}{os.pathsep}{APPS}"}
    environment |= {"REAPER_TIMEOUTS_FIRST_BYTE": "300ms", "REAPER_TICK": "100ms"}
    log = tmp_path / "log"
    command = [word.format(port=port) for word in command_of("uvicorn with workers")]
    with serving(command, log, port=port, environment=environment):
        assert ends(port) == b""
    assert log.read_text().count("is guarded: first_byte 300ms") == 1, "one line for all workers"
