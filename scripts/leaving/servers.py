"""How long a handler goes on whose client left: servers as they are, and guarded."""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reaper.driver.sockets import reset_on_close
from scripts.leaving.long import BODY, LONG
from scripts.serving import Server, free_port, serving, stock

COMMANDS = stock("scripts.leaving.long:application", "scripts.leaving.long")
GUARDED_WORKER = {"uvicorn.workers.UvicornWorker": "reaper.gunicorn.UvicornWorker"}
LEFT_AFTER = 1.0
"""Seconds after which each client leaves."""
RAN = re.compile(r"^(/\w+) ran for ([\d.]+)$", re.MULTILINE)


def _close(client: socket.socket) -> None:
    client.close()


def _reset(client: socket.socket) -> None:
    reset_on_close(client)
    client.close()


def _half_close(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


MANNERS: dict[str, Callable[[socket.socket], None]] = {
    "/closes": _close,
    "/resets": _reset,
    "/waits": _half_close,
}


def measured(name: str, abandoned: str) -> tuple[dict[str, float], bool]:
    """Seconds that the handler ran for each of `MANNERS`, and whether the client that
    waits after its FIN had its answer.

    Args:
        name: One of `COMMANDS`.
        abandoned: `timeouts.abandoned` of the guarded server; empty: it is not guarded.
    """
    words = [*COMMANDS[name]]
    port = free_port()
    where = f"127.0.0.1:{port}" if words[-1] == "-b" else str(port)
    if abandoned:
        words = [GUARDED_WORKER.get(word, word) for word in words]
        words = [sys.executable, "-m", "reaper", "run", "--", *words]
    environment = os.environ | {"REAPER_TICK": "250ms", "REAPER_TIMEOUTS_ABANDONED": abandoned}
    if not abandoned:
        del environment["REAPER_TIMEOUTS_ABANDONED"]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving([*words, where], Path(folder) / "log", port=port, environment=environment) as at,
    ):
        heard = b""

        def client(path: str, leave: Callable[[socket.socket], None]) -> None:
            nonlocal heard
            with socket.create_connection(at.address, timeout=60) as asking:
                asking.sendall(b"GET %s HTTP/1.1\r\nhost: h\r\n\r\n" % path.encode())
                time.sleep(LEFT_AFTER)
                leave(asking)
                if leave is _half_close:
                    heard = b"".join(iter(lambda: asking.recv(1000), b""))

        threads = [threading.Thread(target=client, args=each) for each in MANNERS.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return _ran(at), heard.endswith(BODY)


def _ran(server: Server) -> dict[str, float]:
    until = time.monotonic() + 3 * LONG
    while True:
        found = {path: float(ran) for path, ran in RAN.findall(server.log.read_text())}
        if len(found) == len(MANNERS) or time.monotonic() > until:
            return found
        time.sleep(0.1)


def table(abandoned: str) -> Iterator[str]:
    """The rows of the page's table, in Markdown."""
    yield f'| server | stock | guarded, `abandoned = "{abandoned}"` | half-closed, waits: stock | guarded |'
    yield "|---|---|---|---|---|"
    kinds = [(name, each) for name in COMMANDS for each in ("", abandoned)]
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(kinds, pool.map(lambda kind: measured(*kind), kinds), strict=True))
    for name in COMMANDS:
        (stock, stock_heard), (guarded, guarded_heard) = found[name, ""], found[name, abandoned]
        yield (
            f"| {name} | {_both(stock)} | {_both(guarded)} "
            f"| {_word(stock_heard)} | {_word(guarded_heard)} |"
        )


def _both(ran: dict[str, float]) -> str:
    return f"{ran.get('/closes', -1):.1f} s; {ran.get('/resets', -1):.1f} s"


def _word(heard: bool) -> str:
    return "answered" if heard else "no answer"
