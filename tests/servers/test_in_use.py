"""What cannot be read is in use, in every guest that is asked what a connection waits
for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reaper.driver.served import Served
from reaper.policy import Phase
from reaper.servers.aiohttp.server import Aiohttp
from reaper.servers.aiosmtpd.phases import Session
from reaper.servers.anyio.phases import Listened
from reaper.servers.gunicorn.asgi import Asgi
from reaper.servers.gunicorn.threads import Threaded
from reaper.servers.hypercorn.phases import Hypercorn
from reaper.servers.sanic.phases import Sanic
from reaper.servers.tornado.phases import Tornado
from reaper.servers.twisted.phases import Twisted
from tests.helpers.served import bare

KINDS = [Aiohttp, Listened, Asgi, Threaded, Hypercorn, Sanic, Session, Tornado, Twisted]


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_whose_state_cannot_be_read_is_in_use(kind: type[Served]) -> None:
    nothing = SimpleNamespace(get_protocol=object)
    made: Any = bare(kind, nothing, conn=object())
    if kind is Hypercorn:
        made._server = lambda: SimpleNamespace(protocol=SimpleNamespace(protocol=1))
    assert made.found(None) is Phase.IN_FLIGHT


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
    assert bare(Sanic, transport).phase() is phase
