"""At a stop, who has half a handshake owes nothing and is owed nothing: no limit and no
drain of ours keeps the server for it.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.guests.columns import COLUMNS, LIMITS, PHASES, Column
from scripts.guests.trial import pair
from tests.helpers.server_process import PATIENCE, wait_until

pytestmark = pytest.mark.slow

HALF = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a ClientHello."""
CLIENTS = 30
NEVER = f"{10 * PATIENCE:g}s"
"""Whoever waits for that has not ended when the test gives up."""
SETTINGS = (
    LIMITS
    | {f"REAPER_TIMEOUTS_{phase}": NEVER for phase in PHASES}
    | {"REAPER_TIMEOUTS_DRAIN": NEVER, "REAPER_TIMEOUTS_DRAIN_IDLE": NEVER}
)
GRACE = {"gunicorn, asgi, TLS": 10 * PATIENCE, "gunicorn, threads, TLS": 3}
"""gunicorn's own, after which it kills a worker; stock threads wait for all of it."""


def with_grace(column: Column) -> Column:
    if (grace := GRACE.get(column.name)) is None:
        return column
    more = f" --graceful-timeout {grace:g}"
    return replace(column, stock=column.stock + more, guarded=column.guarded + more)


GUESTS = [name for name, each in COLUMNS.items() if "tls" in each.speaks and not each.unguarded]
"""Those over TLS; the reference has no server beside it that others wrote."""


@pytest.mark.parametrize("name", GUESTS)
def test_clients_that_never_finish_their_handshake_hold_no_stop(name: str, tmp_path: Path) -> None:
    with pair(with_grace(COLUMNS[name]), tmp_path, SETTINGS) as (_, server), ExitStack() as stack:
        for number in range(CLIENTS):
            client = stack.enter_context(socket.create_connection(server.address))
            if number % 2:
                client.sendall(HALF)
        time.sleep(0.5)  # it has accepted them
        server.stop()
        wait_until(lambda: server.status is not None)
        assert "Traceback" not in server.said()
