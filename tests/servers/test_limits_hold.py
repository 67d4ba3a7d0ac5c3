"""A byte that is unread in the very instant at which a limit is over: it delays the
close by half a tick, and the next one does not.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from reaper.driver.sockets import unread
from scripts.lifespan import lifespan
from tests.helpers.servers_here import SERVERS_HERE, server_here

pytestmark = pytest.mark.slow

SETTINGS = {
    **{f"TIMEOUTS_{phase}": "300ms" for phase in ("FIRST_BYTE", "HEADERS", "KEEP_ALIVE")},
    "TICK": "100ms",
}
HALF = b"GET / HTTP/1.1\r\nHost: h\r\nX-Never-Ends: "
ENOUGH = 6
"""Checks at which a byte is unread: more than any server needs, so that the test
ends.
"""


async def application(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "lifespan"
    await lifespan(receive, send)


@pytest.mark.parametrize("kind", SERVERS_HERE)
def test_a_dripped_head_does_not_buy_its_limit_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = 0

    def one_more(descriptors: Iterable[int]) -> list[int]:
        nonlocal given
        if given < ENOUGH:
            given += 1
            with contextlib.suppress(OSError):
                client.send(b"x")
        return unread(descriptors)

    with server_here(kind, tmp_path / "log", application, web.Application(), SETTINGS) as here:
        with socket.create_connection(here.address, timeout=10) as client:
            client.sendall(HALF)
            monkeypatch.setattr("reaper.driver.driver.unread", one_more)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1000):
                    pass
        assert given <= 2
