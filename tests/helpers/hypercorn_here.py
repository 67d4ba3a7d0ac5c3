"""hypercorn in a thread of this process, guarded by what `reaper run` does to it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hypercorn.asyncio.tcp_server
import hypercorn.trio.tcp_server
import pytest
import trio
from hypercorn.config import Config
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from reaper.run import report
from reaper.servers.cards import card_of
from reaper.servers.guest import Visit
from reaper.servers.hypercorn.application import OWN_KEEP_ALIVE
from scripts.serving import PATIENCE
from tests.helpers.given_back import given_back

FLAVOURS: dict[str, Any] = {
    "asyncio": hypercorn.asyncio.tcp_server,
    "trio": hypercorn.trio.tcp_server,
}
CHANGED: tuple[Any, ...] = (
    *(module.TCPServer for module in FLAVOURS.values()),
    *(Config, H11Protocol, H2Protocol, StreamBuffer, HTTPStream),
)
"""The classes of hypercorn that are changed, and have to be as they were afterwards."""


class Here(NamedTuple):
    """A hypercorn that runs in this process.

    Attributes:
        address: Where it listens.
        log: What it, asyncio and this library have logged.
        stop: Tells it to stop, and returns at once; any number of times.
        end: Waits until it has.
    """

    address: tuple[str, int]
    log: Path
    stop: Callable[[], object]
    end: Callable[[], object]

    @property
    def target(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def said(self) -> str:
        return self.log.read_text()


def run_here(body: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """Call *body* in a thread; returns what waits until that has ended, for `PATIENCE`
    at most. A server that does not end does not keep this process.
    """
    thread = threading.Thread(target=body, args=arguments, daemon=True)
    thread.start()

    def end() -> None:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"

    return end


@contextmanager
def configured(settings: dict[str, str]) -> Iterator[None]:
    """Within the block the variables REAPER_* are *settings*, which are named without
    that prefix.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"REAPER_{name}", value)
        yield


@contextmanager
def changed(kind: str) -> Iterator[None]:
    """Within the block hypercorn of the flavour *kind* is guarded, as in a program that
    `reaper run` starts.
    """
    module = FLAVOURS[kind]
    with pytest.MonkeyPatch.context() as patch, given_back(CHANGED):
        patch.setattr(report, "_say", lambda message, text: None)
        Visit(card_of("hypercorn"), report, strict=True).guard(module)
        yield


@contextmanager
def logged(log: Path) -> Iterator[None]:
    """Within the block *log* gets what is logged in this process."""
    handler = logging.FileHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextmanager
def hypercorn_here(
    kind: str,
    log: Path,
    application: Any,
    settings: dict[str, str],
    keep_alive: float = OWN_KEEP_ALIVE,
    certificate: tuple[str, str] | None = None,
) -> Iterator[Here]:
    """hypercorn of the flavour *kind* with *application*, until the end of the block.

    Args:
        log: The file that gets what is logged.
        settings: The variables REAPER_*, without that prefix.
        keep_alive: hypercorn's own, in seconds.
        certificate: The files with its certificate and its key; None: it speaks in
            clear text.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    address = listening.getsockname()
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.keep_alive_timeout = keep_alive
    if certificate is not None:
        config.certfile, config.keyfile = certificate
    config.errorlog = logging.getLogger("hypercorn.error")
    started = threading.Event()
    stops: list[Callable[[], object]] = []
    body = on_trio if kind == "trio" else on_asyncio
    with configured(settings), logged(log), changed(kind):
        end = run_here(body, application, config, stops, started)
        started.wait()
        try:
            yield Here(address, log, stops[0], end)
        finally:
            stops[0]()
            end()


def on_asyncio(
    application: Any, config: Config, stops: list[Callable[[], object]], started: threading.Event
) -> None:
    async def main() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.is_closed() or loop.call_soon_threadsafe(stopped.set))
        started.set()
        await hypercorn.asyncio.serve(application, config, shutdown_trigger=stopped.wait)

    asyncio.run(main())


def on_trio(
    application: Any, config: Config, stops: list[Callable[[], object]], started: threading.Event
) -> None:
    async def main() -> None:
        stopped, token = trio.Event(), trio.lowlevel.current_trio_token()

        def stop() -> None:
            with suppress(trio.RunFinishedError):  # it has stopped
                token.run_sync_soon(stopped.set)

        stops.append(stop)
        started.set()
        await hypercorn.trio.serve(application, config, shutdown_trigger=stopped.wait)

    trio.run(main)
