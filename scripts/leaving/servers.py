"""How long a handler goes on whose client left: servers as they are, and guarded."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadgen.conform.judge import judged
from loadgen.plan.acts import Act, Kind, Reset, Rest, Send, Shut, Want
from loadgen.plan.requests import get
from loadgen.playing.client import Address, Seen
from loadgen.playing.play import played
from scripts.leaving.long import BODY, LONG
from scripts.serving import Server, free_port, serving, stock

COMMANDS = stock("scripts.leaving.long:application", "scripts.leaving.long")
GUARDED_WORKER = {"uvicorn.workers.UvicornWorker": "reaper.gunicorn.UvicornWorker"}
LEFT_AFTER = 1.0
"""Seconds after which each client leaves."""
RAN = re.compile(r"^(/\w+) ran for ([\d.]+)$", re.MULTILINE)


ASKED: dict[str, tuple[Act, ...]] = {
    "/closes": (Rest(LEFT_AFTER),),
    "/resets": (Reset(), Rest(LEFT_AFTER)),
    "/waits": (Rest(LEFT_AFTER), Shut()),
}
"""What each client does after it has asked for that path."""
KINDS = {
    path: Kind(
        name=path, acts=(Send(get(path)), *more), answers=(Want(BODY),) if path == "/waits" else ()
    )
    for path, more in ASKED.items()
}


def measured(name: str, abandoned: str) -> tuple[dict[str, float], bool]:
    """Seconds that the handler ran for each of `KINDS`, and whether the client that
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
        waits = asyncio.run(_played(at.address))["/waits"]
        return _ran(at), bool(judged(KINDS["/waits"], waits).kept)


async def _played(address: Address) -> dict[str, Seen]:
    found = await asyncio.gather(*(played(kind, address, 60.0) for kind in KINDS.values()))
    return dict(zip(KINDS, found, strict=True))


def _ran(server: Server) -> dict[str, float]:
    until = time.monotonic() + 3 * LONG
    while True:
        found = {path: float(ran) for path, ran in RAN.findall(server.log.read_text())}
        if len(found) == len(KINDS) or time.monotonic() > until:
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
