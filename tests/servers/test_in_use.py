"""What cannot be read is in use, in every guest that is asked what a connection waits
for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reaper.policy import Phase
from reaper.servers.aiohttp import server as aiohttp
from reaper.servers.anyio import phases as anyio
from reaper.servers.gunicorn import asgi as gunicorn
from reaper.servers.hypercorn import phases as hypercorn
from reaper.servers.polled import readable
from reaper.servers.sanic import phases as sanic
from reaper.servers.tornado import phases as tornado
from reaper.servers.twisted import phases as twisted

BARE = SimpleNamespace(get_protocol=object, whose=object(), protocol=SimpleNamespace(protocol=1))
"""Stands for a transport, a face and a server that have nothing of what is read."""


@pytest.mark.parametrize("module", [aiohttp, anyio, gunicorn, hypercorn, sanic, tornado, twisted])
def test_a_connection_whose_state_cannot_be_read_is_in_use(module: Any) -> None:
    ask: Callable[[Any], Phase] = module.phase_of
    assert readable(ask)(BARE) is Phase.IN_FLIGHT


@pytest.mark.parametrize(
    ("came", "left", "phase"),
    [
        (b"", 0, Phase.BODY),
        (b"\r\n", 0, Phase.BODY),  # what ends the chunk before
        (b"\r\n2;x", 0, Phase.BODY),
        (b"\r\n2\r\n", 0, Phase.IN_FLIGHT),
        (b"\r\n0\r\n", 0, Phase.IN_FLIGHT),
        (b"a", 2, Phase.IN_FLIGHT),
        (b"", 2, Phase.BODY),
    ],
)
def test_sanic_waits_for_a_chunk_of_which_no_whole_size_has_come(
    came: bytes, left: int, phase: Phase
) -> None:
    http = SimpleNamespace(
        stage=SimpleNamespace(name="HANDLER"),
        request_body="chunked",
        recv_buffer=bytearray(came),
        request_bytes_left=left,
    )
    transport = SimpleNamespace(get_protocol=lambda: SimpleNamespace(_http=http))
    assert sanic.phase_of(transport) is phase
