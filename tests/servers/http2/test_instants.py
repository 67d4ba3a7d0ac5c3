"""A PING that comes in the very instant in which a timeout is over, over real
sockets.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("h2")
pytest.importorskip("hypercorn")

import reaper.driver.driver
from reaper.driver.sockets import unread
from tests.helpers import asgi
from tests.helpers.http2_frames import GOES_AWAY, asking, frames
from tests.helpers.hypercorn_here import Here, hypercorn_here
from tests.helpers.lagging import speaking_in_time
from tests.helpers.program_trials import connect, heard
from tests.helpers.servers_here import server_here

pytestmark = pytest.mark.slow

LIMIT = 2.0
SETTINGS = {
    f"TIMEOUTS_{phase}": f"{LIMIT}s" for phase in ("FIRST_BYTE", "HEADERS", "KEEP_ALIVE")
} | {"TICK": "100ms"}
PING = b"\0\0\x08\x06\0\0\0\0\0are you?"


@contextmanager
def hypercorn(kind: str, log: Path) -> Iterator[Here]:
    with hypercorn_here(kind, log, asgi.application, SETTINGS, 3600) as running:
        yield running


def uvicorn(_: str, log: Path) -> AbstractContextManager[Here]:
    pytest.importorskip("uvicorn.protocols.http.zttp_h2_impl", exc_type=ImportError)
    return server_here("Http2", log, asgi.application, None, SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("begin", "kind"),
    [(uvicorn, ""), (hypercorn, "asyncio"), (hypercorn, "trio")],
    ids=["uvicorn", "hypercorn", "hypercorn on trio"],
)
def test_a_ping_in_the_instant_in_which_keep_alive_is_over_does_not_restart_it(
    begin: Callable[[str, Path], AbstractContextManager[Here]],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A neighbour that was answered half of the time later says when the time is over
    once more.
    """
    (asked,) = asking("/")
    spared: list[int] = []
    pings: list[socket.socket] = []
    waits = threading.Event()

    def sends_at_the_last_moment(descriptors: Iterable[int]) -> list[int]:
        due = list(descriptors)
        if waits.is_set() and not spared:
            pings[-1].sendall(PING)
            while not spared:
                spared.extend(unread(due))
        return unread(due)

    monkeypatch.setattr(reaper.driver.driver, "unread", sends_at_the_last_moment)
    for name in ("reaper", "uvicorn.error"):
        caplog.set_level(logging.INFO, name)

    def ends_in_time(speaks: Callable[[], None]) -> None:
        caplog.clear()
        with connect(running) as first, connect(running) as second:
            pings.append(first)
            began = time.monotonic()
            first.sendall(asked)
            heard(first)
            waits.wait(LIMIT / 2)
            try:
                second.sendall(asked)
                heard(second)
                took = time.monotonic() - began
            finally:
                speaks()
            assert took < LIMIT  # or the next that is due may be the second
            waits.set()
            ports = (first.getsockname()[1], second.getsockname()[1])
            assert GOES_AWAY in {frame[0] for frame in frames(second)}
        said = [message for message in caplog.messages if "keep_alive" in message]
        assert len(spared) == 1
        ended = [[port for port in ports if f":{port} " in line] for line in said]
        assert ended == [[port] for port in ports]

    with begin(kind, tmp_path / "log") as running:
        speaking_in_time(ends_in_time, LIMIT)
