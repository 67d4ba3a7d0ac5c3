"""One server, one application, and its clients that leave."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.playing.client import Address
from scripts.leaving.applications import DATABASE, QUERY, WORK
from scripts.leaving.clients import leave, state_of
from scripts.leaving.postgres import postgres
from scripts.serving import free_port, serving

SERVERS = {
    "stock": ["--http", "httptools"],
    "guarded": ["--http", "reaper.uvicorn:HttpTools"],
}
"""uvicorn, as it is and guarded."""


def tried(
    application: str,
    server: str,
    log: Path,
    *,
    clients: int,
    at_once: int,
    abandoned: str,
    query: float = QUERY,
    seed: int = 1,
) -> dict[str, Any]:
    """Run the trial; what the clients saw and what the application knows afterwards.

    Args:
        application: One of `applications.APPLICATIONS`.
        server: One of `SERVERS`.
        log: Where the server's words go.
        clients, at_once: How many there are, and at a time.
        abandoned: The setting of that name.
        query: Seconds for which a request holds a connection to the database.
        seed: Of the instants.
    Raises:
        DidNotStart: it, or the PostgreSQL that it needs.
    """
    port = free_port()
    command = [
        *(sys.executable, "-m", "uvicorn", "--factory"),
        f"scripts.leaving.applications:{application}",
        *("--port", str(port), "--no-access-log", "--backlog", "4096", *SERVERS[server]),
    ]
    settings = {"REAPER_TICK": "100ms", "REAPER_TIMEOUTS_ABANDONED": abandoned}
    environment = os.environ | settings | {"LEAVING_QUERY": str(query)}
    with ExitStack() as stack:
        if application == "postgresql":
            environment[DATABASE] = stack.enter_context(postgres())
        running = stack.enter_context(serving(command, log, port=port, environment=environment))
        outcome = asyncio.run(leave(running.address, clients, at_once, 1.2 * WORK, seed))
        state = asyncio.run(_settled(running.address))
    said = log.read_text()
    return {
        "application": application,
        "server": server,
        **asdict(outcome),
        **state,
        "log_cancelled": said.count(" - cancelled: "),
        "log_errors": said.count("Traceback"),
    }


async def _settled(address: Address) -> dict[str, Any]:
    """The state of the application once no request is under way any more."""
    until = time.monotonic() + 120
    while True:
        state = await state_of(address)
        over = state["begun"] == state["done"] + state["cancelled"] + state["failed"]
        if over or time.monotonic() > until:
            return state
        await asyncio.sleep(0.2)


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with a guarded row; empty: nothing."""
    wrong = []
    if row["answered"] != row["stayed"]:
        wrong.append(f"{row['stayed'] - row['answered']} clients that stayed had no answer")
    if row["heard"] != row["waited"]:
        wrong.append(f"{row['waited'] - row['heard']} half-closed clients had no answer")
    if row.get("out", 0):
        wrong.append(f"{row['out']} connections of the pool leaked")
    if row["begun"] != row["done"] + row["cancelled"] + row["failed"]:
        wrong.append("requests have not ended")
    if row["failed"]:
        wrong.append(f"{row['failed']} requests failed: {row['error']}")
    return wrong
