"""Which files of the project one real exchange enters: `python -m tests.helpers.walks
NAME FOLDER`.

`steps.py` says what entering is. What happens before the server listens, or before the
command has its arguments, is not counted, but in the walk of the hook, which is over
when the server listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
import trio.testing

import reaper.trio
from reaper.__main__ import make_parser
from reaper.config import ReaperConfig
from reaper.journal import Journal
from reaper.trio.accepting import accept
from server_example.echo import EchoServer
from tests.helpers.steps import ROOT, Steps

LIMITS = {"timeouts.idle": 0.3, "timeouts.keep_alive": 0.3, "reaper.tick": 0.1}
PATIENCE = 60.0


def speak(address: tuple[str, int], words: bytes) -> None:
    """Connect, say *words*, and read until the server closes the connection."""
    with socket.create_connection(address, timeout=PATIENCE) as client:
        client.sendall(words)
        while client.recv(65536):
            pass


def echo(steps: Steps, folder: Path) -> None:
    """A parked connection says a line to the echo server, and then nothing more."""

    async def serve() -> None:
        config = ReaperConfig.load(environ={}, overrides=LIMITS)
        with Journal(folder / "journal") as journal:
            async with reaper.trio.open_reaper(config, journal=journal) as watcher:
                listener = socket.create_server(("127.0.0.1", 0))
                async with (
                    EchoServer(config, watcher).running() as admit,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(accept, listener, admit)
                    await trio.testing.wait_all_tasks_blocked()  # now it listens
                    steps.counting = True
                    client = partial(speak, listener.getsockname(), b"hello\n")
                    await trio.to_thread.run_sync(client)
                    steps.counting = False
                    nursery.cancel_scope.cancel()
                listener.close()
            steps.counting = True  # the journal's thread turns the rows into Parquet as it ends
        steps.counting = False

    trio.run(serve)


def uvicorn(steps: Steps, folder: Path) -> None:
    """A client asks a guarded uvicorn once, and keeps its connection."""
    from uvicorn.config import Config
    from uvicorn.server import Server

    from reaper.uvicorn import HttpTools
    from tests.helpers.asgi import application

    async def serve() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = Server(Config(application, http=HttpTools, lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        words = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        await asyncio.to_thread(speak, listener.getsockname(), words)  # the first one starts reaper
        with steps.counted():
            await asyncio.to_thread(speak, listener.getsockname(), words)
        server.should_exit = True
        await serving

    os.environ |= {"REAPER_TIMEOUTS_KEEP_ALIVE": "300ms", "REAPER_TICK": "100ms"}
    asyncio.run(serve())


def hypercorn(steps: Steps, folder: Path) -> None:
    """A client asks a guarded hypercorn once over HTTP/2, and keeps its connection."""
    from tests.helpers.asgi import application
    from tests.helpers.http2_frames import asking
    from tests.helpers.hypercorn_here import hypercorn_here

    settings = {"TIMEOUTS_KEEP_ALIVE": "300ms", "TICK": "100ms"}
    (words,) = asking("/")
    with hypercorn_here("asyncio", folder / "log", application, settings) as here:
        speak(here.address, words)  # the first one starts reaper
        with steps.counted():
            speak(here.address, words)


def audit(steps: Steps, folder: Path) -> None:
    """The journals of server and clients are compared."""
    from tests.helpers.pipeline_traffic import write

    server, client, out = folder / "server", folder / "client", folder / "proof"
    write(server, client, connections=40)
    flags = ["--events", str(server), "--client", str(client), "--out", str(out), "--quiet"]
    parsed = make_parser("reaper", "pipeline").parse_args(["pipeline", "audit", *flags])
    with steps.counted():
        parsed.run(parsed)


def hook(steps: Steps, folder: Path) -> None:
    """A Python below `reaper run` starts, imports uvicorn, and listens."""
    out = folder / "entered"
    child = [sys.executable, "-S", str(ROOT / "tests/helpers/walk_of_the_hook.py"), str(out)]
    subprocess.run([sys.executable, "-m", "reaper", "run", "--", *child], cwd=ROOT, check=True)
    steps.files |= dict.fromkeys(out.read_text().splitlines())


WALKS: dict[str, Callable[[Steps, Path], None]] = {
    "echo": echo,
    "uvicorn": uvicorn,
    "hypercorn": hypercorn,
    "audit": audit,
    "hook": hook,
}


if __name__ == "__main__":
    walked = Steps()
    WALKS[sys.argv[1]](walked, Path(sys.argv[2]))
    print(json.dumps(list(walked.files)))
