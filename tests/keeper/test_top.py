"""`reaper top` shows a keeper: what is idle, what is in use, and what is due next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import reaper.asyncio
import reaper.threads
from reaper.top.picture import Picture, picture_of
from reaper.top.sources import Http

pytestmark = pytest.mark.slow


def end(key: str, thing: object, reason: str) -> None:
    """An end."""


def seen(port: int) -> Picture:
    return picture_of(Http(f"http://127.0.0.1:{port}").ask())


def check(picture: Picture) -> None:
    assert picture.connections == 3
    assert {row.phase: row.connections for row in picture.phases} == {"idle": 2, "in_flight": 1}
    assert {row["name"].split()[0] for row in picture.due_next} <= {"alice", "bob"}


def test_it_shows_a_keeper_of_a_loop() -> None:
    async def main() -> Picture:
        async with reaper.asyncio.open_keeper(str.upper, end, idle=600) as keeper:
            served: Any = await reaper.asyncio.serve_status(keeper.reaper, 0)
            async with served:
                for key in ("alice", "bob"):
                    async with keeper.use(key):
                        pass
                async with keeper.use("carol"):
                    port = served.sockets[0].getsockname()[1]
                    return await asyncio.to_thread(seen, port)

    check(asyncio.run(main()))


def test_it_shows_a_keeper_of_threads() -> None:
    with reaper.threads.open_keeper(str.upper, end, idle=600) as keeper:
        served = reaper.threads.serve_status(keeper, 0)
        try:
            for key in ("alice", "bob"):
                with keeper.use(key):
                    pass
            with keeper.use("carol"):
                check(seen(served.server_address[1]))
        finally:
            served.shutdown()
            served.server_close()
