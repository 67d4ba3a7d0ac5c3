"""Programs that know nothing of reaper, run as they are below `reaper run`, with real
sockets.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from reaper.run.command import HOOK
from scripts.programs import trial
from scripts.programs.declared import PROGRAMS, Program
from scripts.programs.trial import APPS
from scripts.serving import Server, free_port, serving
from scripts.tools import Missing
from tests.helpers.lagging import Found, Lagged, in_time
from tests.helpers.reaper_run import GET, PATIENCE, ends, guarded

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
OWN = "python {dir}/programs.py"
GUNICORN = "gunicorn -b 127.0.0.1:{port} --no-control-socket"
TESTED = [program for program in PROGRAMS if program.tested]
OUTSIDE = ("django runserver", "twist web", "nginx", "haproxy", "redis")
"""Those of TESTED that are guarded from outside."""
INSIDE = [
    *(program for program in TESTED if program.name not in OUTSIDE),
    Program("uvicorn with workers", f"{OWN} uvicorn_workers {{port}}"),
    Program("uvicorn with reload", f"{OWN} uvicorn_reload {{port}}"),
    Program("uvicorn in a thread", f"{OWN} uvicorn_in_a_thread {{port}}"),
    Program("uvicorn's command, h11", "uvicorn asgi:app --port {port} --http h11"),
    Program("gunicorn, its own asgi worker", f"{GUNICORN} -k asgi asgi:app"),
    Program("gunicorn, reaper's own worker", f"{GUNICORN} -k reaper.gunicorn.ASGIWorker asgi:app"),
    Program(
        "uvicorn, reaper's own protocol", "uvicorn asgi:app --port {port} --http reaper.uvicorn:H11"
    ),
    Program("hypercorn on trio", "hypercorn -k trio -b 127.0.0.1:{port} asgi:app"),
    Program("daphne", "daphne -b 127.0.0.1 -p {port} asgi:app"),
]
INSIDE_BY_NAME = {program.name: program for program in INSIDE}
LIMITS = trial.Limits(
    first_byte=0.5,
    headers=0.5,
    body=0.5,
    keep_alive=0.5,
    idle=2.5,
    tunnel=2.5,
    tick=0.1,
    slow=1.5,
    window=20.0,
)
HELD_UP = 0.25
"""Seconds for which the clients of a trial may be held up: half of the first byte's
limit, and of what a slow answer still takes when the signal comes.
"""


def command_of(program: Program) -> list[str]:
    """*program* in words; the checkout's path may have a space."""
    name, *words = program.command.split(" ")
    return [f"{BIN}/{name}", *(word.replace("{dir}", str(APPS)) for word in words)]


def named(program: Program) -> str:
    """As pytest shows it."""
    return program.name


@pytest.mark.parametrize("program", INSIDE, ids=named)
def test_an_unmodified_program_closes_who_is_silent_and_answers_who_waits(
    program: Program, tmp_path: Path
) -> None:
    needed = program.name.split(",")[0].split()[0].removesuffix("'s")
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed (pip install {needed})")
    command = command_of(program)
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


@pytest.mark.parametrize("program", [each for each in TESTED if each.name in OUTSIDE], ids=named)
def test_from_outside_too_the_silent_are_closed_and_who_waits_is_answered(
    program: Program,
) -> None:
    async def seen(port: int) -> tuple[trial.Seen, ...]:
        asks = program.asks
        return await asyncio.gather(
            trial.closes(port, LIMITS),
            trial.closes(port, LIMITS, ask=asks.now),
            trial.answer(port, asks.slow or asks.now, LIMITS),
        )

    with started(program, guard=True) as (server, how):
        assert how == "outside"
        found = in_time(lambda: held_up(seen(server.port)))
    assert [each["is"] for each in found] == ["closed", "closed", "answered"]


def test_a_silent_websocket_is_closed_after_the_tunnel_that_was_set() -> None:
    (program,) = (program for program in PROGRAMS if program.name == "websockets")
    with started(program, guard=True) as (server, _):
        asks = program.asks
        seen = in_time(lambda: held_up(trial.closes(server.port, LIMITS, ask=asks.now)))
    assert seen["is"] == "closed"


@pytest.mark.parametrize("program", TESTED, ids=named)
def test_a_guarded_program_stops_as_it_does_alone(program: Program) -> None:
    def stopped(guard: bool) -> trial.Seen:
        with started(program, guard=guard) as (server, _):
            return held_up(trial.stopped(program, server, signal.SIGTERM, LIMITS))

    ways = []
    for guard in (False, True):
        found = in_time(partial(stopped, guard))
        ways.append((found["request"], found["status"], found["s"] is None))
    assert ways[0] == ways[1]


def held_up(clients: Coroutine[Any, Any, Found]) -> Found:
    """What *clients* found, which this process did not hold up: one that is too late
    with its request is closed rightly, and a late signal meets no request.
    """

    async def both() -> Found:
        worst = 0.0

        async def measure() -> None:
            nonlocal worst
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.05)
                worst = max(worst, time.monotonic() - before - 0.05)

        measuring = asyncio.create_task(measure())
        await asyncio.sleep(0)  # it has begun
        try:
            found = await clients
        finally:
            measuring.cancel()
        if worst >= HELD_UP:
            raise Lagged
        return found

    return asyncio.run(both())


@contextmanager
def started(program: Program, *, guard: bool) -> Iterator[tuple[Server, str]]:
    """*program* from the packages of the tests, stock or guarded."""
    try:
        with trial.started(program, BIN, guarded=guard, limits=LIMITS) as found:
            yield found
    except Missing as missing:
        pytest.skip(str(missing))


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
            # The server never reads: its side is shut down, and a reset follows only if
            # it closes.
            sock.recv(1)
        assert ends(started.port) == b""


def test_the_environment_alone_guards_too(tmp_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"REAPER_RUN": "1", "PYTHONPATH": f"{HOOK}{os.pathsep}{APPS}"}
    environment |= {"REAPER_TIMEOUTS_FIRST_BYTE": "300ms", "REAPER_TICK": "100ms"}
    log = tmp_path / "log"
    command = [
        word.format(port=port) for word in command_of(INSIDE_BY_NAME["uvicorn with workers"])
    ]
    # One process of its group prints: in the group of the tests that may be another
    # test's.
    with serving(command, log, port=port, environment=environment, session=True):
        assert ends(port) == b""
    assert log.read_text().count("is guarded: first_byte 300ms") == 1, "one line for all workers"
