"""uvicorn, aiohttp and workers of gunicorn in a thread of this process, guarded; and
any server by its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest
import uvicorn
from aiohttp import web
from gunicorn import glogging, sock
from gunicorn.config import Config

import reaper.aiohttp
import reaper.gunicorn
import reaper.uvicorn
from reaper.config import ReaperConfig
from tests.helpers.hypercorn_here import Here, configured, hypercorn_here, logged, run_here
from tests.helpers.server_process import wait_until


@contextmanager
def uvicorn_here(
    protocol: Any, log: Path, application: Any, config: ReaperConfig, **given: Any
) -> Iterator[Here]:
    """uvicorn with *application* and the guarded *protocol*, until the end of the
    block.

    Args:
        log: The file that gets what is logged.
        given: More settings of uvicorn's.
    """
    settings = {"http": protocol.configured(config), "loop": "asyncio", "log_config": None, **given}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **settings))

    def stop() -> None:
        server.should_exit = True

    with logged(log):
        end = run_here(server.run)
        wait_until(lambda: server.started)
        try:
            yield Here(server.servers[0].sockets[0].getsockname(), log, stop, end)
        finally:
            stop()
            end()


@contextmanager
def aiohttp_here(app: web.Application, log: Path, config: ReaperConfig) -> Iterator[Here]:
    """`reaper.aiohttp.run_app` with *app*, until the end of the block.

    Args:
        log: The file that gets what is logged.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    loops: list[asyncio.AbstractEventLoop] = []
    stopping: list[bool] = []
    started = threading.Event()

    async def note(app: web.Application) -> None:
        loops.append(asyncio.get_running_loop())
        started.set()

    def leave() -> NoReturn:
        raise web.GracefulExit  # what a signal raises there

    def stop() -> None:
        if stopping or loops[0].is_closed():
            return  # a second signal would end it at once
        stopping.append(True)
        loops[0].call_soon_threadsafe(leave)

    def run() -> None:
        reaper.aiohttp.run_app(app, config=config, sock=listening, handle_signals=False, print=None)

    app.on_startup.append(note)
    with logged(log):
        end = run_here(run)
        started.wait()
        try:
            yield Here(listening.getsockname(), log, stop, end)
        finally:
            stop()
            end()


class Worker(NamedTuple):
    """A worker of gunicorn's that runs in this process.

    Attributes:
        address: Where it listens.
        stop: Tells it to stop, and returns at once; any number of times.
        end: Waits until it has.
    """

    address: tuple[str, int]
    stop: Callable[[], object]
    end: Callable[[], object]


@contextmanager
def worker(kind: Any, application: Any, **options: str) -> Iterator[Worker]:
    """A worker of gunicorn's in a thread of this process, which is sent no signal."""
    settings = Config()
    settings.set("threads", 16)
    for name, value in options.items():
        settings.set(name, value)
    log = glogging.Logger(settings)
    listening = sock.TCPSocket(("127.0.0.1", 0), settings, log)
    made = kind(
        1, os.getppid(), [listening], SimpleNamespace(wsgi=lambda: application), 30, settings, log
    )
    made.init_signals = lambda: None
    end = run_here(made.init_process)

    def stop() -> None:
        made.alive = False

    try:
        yield Worker(listening.getsockname(), stop, end)
    finally:
        stop()
        end()
        _let_go(made, listening)


def _let_go(made: Any, listening: Any) -> None:
    """Close what the worker *made* leaves to the end of its process."""
    made.tmp.close()
    listening.close()
    for fd in getattr(made, "PIPE", ()):
        os.close(fd)
    judging = getattr(made, "_loop", None)  # the worker with threads judges in one more
    if judging is not None:
        asyncio.run_coroutine_threadsafe(_end_tasks(), judging).result()
        judging.call_soon_threadsafe(judging.stop)
        made._judging.join()
        judging.close()


async def _end_tasks() -> None:
    """Cancel every other task of the running loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


SERVERS_HERE = ["HttpTools", "H11", "ASGIWorker", "hypercorn", "hypercorn on trio", "aiohttp"]
"""The servers that run in a thread of the test's process."""


CLEAR = {"http_protocols": "h1,h2", "http2_cleartext": "prior-knowledge"}
"""The settings with which gunicorn speaks HTTP/2 without TLS, too."""


@contextmanager
def server_here(
    kind: str,
    log: Path,
    application: Any,
    app: web.Application,
    settings: dict[str, str],
    **options: str,
) -> Iterator[Here]:
    """The server *kind*, one of `SERVERS_HERE`, in a thread, until the end of the
    block.

    Args:
        log: The file that gets what the server logs, and what the application prints.
        application: For all but aiohttp.
        app: For aiohttp.
        settings: The variables REAPER_*, without that prefix.
        options: Of gunicorn, if it is that.
    """
    config = ReaperConfig.load(
        environ={f"REAPER_{name}": value for name, value in settings.items()}
    )
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(stack.enter_context(log.open("a"))))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter(
            "ignore", web.NotAppKeyWarning
        )  # `request["reaper"]` has no key of a type
        made: AbstractContextManager[Here]
        if kind.startswith("hypercorn"):
            flavour = "trio" if kind.endswith("trio") else "asyncio"
            made = hypercorn_here(flavour, log, application, settings)
        elif kind == "ASGIWorker":
            made = asgi_worker_here(log, application, settings, **options)
        elif kind == "aiohttp":
            made = aiohttp_here(app, log, config)
        else:
            made = uvicorn_here(getattr(reaper.uvicorn, kind), log, application, config)
        yield stack.enter_context(made)


@contextmanager
def asgi_worker_here(
    log: Path, application: Any, settings: dict[str, str], **options: str
) -> Iterator[Here]:
    """gunicorn's ASGI worker in a thread, as `server_here` has it."""
    with (
        configured(settings),
        logged(log),
        worker(reaper.gunicorn.ASGIWorker, application, **options) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(logging.getLogger("gunicorn.error"), "propagate", True)
        yield Here(running.address, log, running.stop, running.end)
