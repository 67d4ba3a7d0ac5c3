"""Who is told goodbye over TLS, and does not answer it, is closed after
`timeouts.linger`: asyncio would wait for 30 s.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from scripts.guests.columns import COLUMNS, LIMITS
from scripts.guests.trial import pair
from tests.helpers.streams import TlsClient

pytestmark = pytest.mark.slow

PATIENCE = 15.0
"""Seconds: between `linger` and asyncio's own limit."""
SETTINGS = LIMITS | {
    "REAPER_TIMEOUTS_LINGER": "500ms",
    # No other ends a client that the machine holds up before it has said half a head.
    "REAPER_TIMEOUTS_HANDSHAKE": "1h",
    "REAPER_TIMEOUTS_FIRST_BYTE": "1h",
}
GUESTS = [name for name, each in COLUMNS.items() if "tls" in each.speaks and not each.unguarded]


@pytest.mark.parametrize("name", GUESTS)
def test_a_goodbye_that_nobody_answers_is_over_after_linger(name: str, tmp_path: Path) -> None:
    with (
        pair(COLUMNS[name], tmp_path, SETTINGS) as (_, server),
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        session = TlsClient(str(tmp_path / "cert.pem"))
        while not session.shake_hands():
            client.sendall(session.says())
            session.hear(client.recv(65536))
        session.tls.write(b"GET / HTTP/1.1\r\nhost: h\r\nx: ")
        client.sendall(session.says())
        ports = f":{server.address[1]:04X}", f":{client.getsockname()[1]:04X}"
        assert is_held(*ports)
        until = time.monotonic() + PATIENCE
        while is_held(*ports):
            assert time.monotonic() < until
            time.sleep(0.05)


def is_held(local: str, remote: str) -> bool:
    """Whether a process has the server's end: the kernel names the inode only then."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            return fields[9] != "0"
    return False
