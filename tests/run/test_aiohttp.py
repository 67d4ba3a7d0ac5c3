"""aiohttp below `reaper run`: one keep-alive is in force, and it is the one that is
said.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.program_trials import heard, rest
from tests.helpers.reaper_run import PATIENCE, guarded

pytestmark = pytest.mark.slow

PROGRAM = """
from aiohttp import web
async def answer(request):
    return web.Response(text="hello")
app = web.Application()
app.router.add_get("/", answer)
web.run_app(app, host="127.0.0.1", port=int({port}), keepalive_timeout=1, print=None)
"""
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def test_the_keep_alive_of_the_command_is_in_force_instead_of_the_programs(tmp_path: Path) -> None:
    with (
        guarded([sys.executable, "-c", PROGRAM], tmp_path, limits=["--keep-alive", "20s"]) as (
            server,
            log,
        ),
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client,
    ):
        assert "keep_alive 20s" in log.read_text()
        for _ in range(2):
            client.sendall(GET)
            assert heard(client).count(b"Keep-Alive: timeout=19\r\n") == 1
            time.sleep(2.2)
        client.sendall(GET)
        heard(client)


def test_the_keep_alive_of_the_program_is_in_force_and_said_where_none_is_set(
    tmp_path: Path,
) -> None:
    with (
        guarded([sys.executable, "-c", PROGRAM], tmp_path, limits=["--tick", "100ms"]) as (
            server,
            log,
        ),
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client,
    ):
        assert "keep_alive 1s" in log.read_text()
        client.sendall(GET)
        assert b"Keep-Alive" not in heard(client)  # there is no whole second to name
        rest(client)
