"""Clients of HTTP/2: one that lives, and those of the load generator that give nothing,
with what each of these hears at its end.
"""

from __future__ import annotations

import asyncio
import socket
import time

import h2.config
import h2.connection
import h2.events

from loadgen.clients import Ended, Speech
from loadgen.conform.control import control
from loadgen.drive.protocols import Paths
from loadgen.http2 import play
from loadgen.units import parse_target

LIMIT = 2.0
"""Seconds: every timeout of the server."""
LATE = 3.0
"""Seconds after its timeout by which a client is ended at the latest, on a machine that
is busy; and those by which a control was late beside it.
"""
PHASES = ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "TUNNEL")
SETTINGS = {f"TIMEOUTS_{phase}": f"{LIMIT:g}s" for phase in PHASES} | {"TICK": "250ms"}
# A full buffer then hides no reader for long, and this rate cuts nobody.
SETTINGS |= {"LIMITS_MIN_OUT_RATE": "1000000", "LIMITS_MIN_OUT_GRACE": "1m"}
SPEECH = Speech("http2", Paths("/", post="/echo", much="/big"))
STREAM_RESET, GOAWAY, CALM = b"RST_STREAM 8", b"GOAWAY 0", b"GOAWAY 11"

MUCH = 10_000_000
"""Bytes of an answer in three times as many DATA frames as a burst has."""

ENDS = {
    "mute": b"",  # no GOAWAY before a preface has come
    "no_stream": GOAWAY,
    "half_headers": GOAWAY,
    "dripped_headers": GOAWAY,
    "half_body": STREAM_RESET,
    "empty_body": STREAM_RESET,
    "unopened": STREAM_RESET,
    "unopened_pings": STREAM_RESET,
    "silent": GOAWAY,
    "pings": GOAWAY,
}
"""What a client hears at its end that gives nothing, by what it does."""


def played(
    target: str, *kinds: str, patience: float = LIMIT + LATE, speech: Speech = SPEECH
) -> list[Ended]:
    """What became of a client of each of *kinds* at *target*, all at the same time."""

    async def all_of_them() -> list[Ended]:
        where = parse_target(target)
        return await asyncio.gather(*(play(kind, where, speech, patience) for kind in kinds))

    return asyncio.run(all_of_them())


def played_in_time(target: str, *kinds: str) -> tuple[list[Ended], float]:
    """The same, with patience for the busiest machine; and by how many seconds at most
    a server that only closes in time was late beside them.
    """

    async def all_of_them() -> tuple[list[Ended], float]:
        where = parse_target(target)
        async with control() as lag:
            plays = (play(kind, where, SPEECH, 10 * (LIMIT + LATE)) for kind in kinds)
            return await asyncio.gather(*plays), lag.seconds

    return asyncio.run(all_of_them())


class Http2:
    """A client with prior knowledge, whose settings are exchanged before it asks.

    Attributes:
        heard: The kinds of all events that have come.
    """

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.heard: set[type] = set()
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.state.initiate_connection()
        self._flush()
        self.hears(h2.events.SettingsAcknowledged)

    def _flush(self) -> None:
        self.client.sendall(self.state.data_to_send())

    def asks(self, path: str, method: str = "GET") -> None:
        """Ask for *path*; with another method a body is yet to come."""
        names = {":method": method, ":path": path, ":scheme": "http", ":authority": "h"}
        stream = self.state.get_next_available_stream_id()
        self.state.send_headers(stream, list(names.items()), end_stream=method == "GET")
        self._flush()

    def asks_in_two(self, path: str, pause: float) -> None:
        """Ask for *path*; *pause* seconds after the first bytes of the header block
        come the others.
        """
        self._flush()
        time.sleep(0.1)  # the kernel's stamps tell who spoke last
        names = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "h"}
        self.state.send_headers(1, list(names.items()), end_stream=True)
        frame = self.state.data_to_send()
        self.client.sendall(frame[:12])
        time.sleep(pause)
        self.client.sendall(frame[12:])

    def is_answered(self, path: str) -> None:
        """Ask for *path*, and wait for the whole answer."""
        self.asks(path)
        self.hears(h2.events.StreamEnded)

    def opens(self, count: int) -> None:
        """Open the window, and that of stream 1, by *count* bytes."""
        for stream in (None, 1):
            self.state.increment_flow_control_window(count, stream)
        self._flush()

    def pings(self) -> None:
        self.state.ping(b"are you?")
        self._flush()

    def hears(self, *kinds: type) -> list[type]:
        """Wait until events of one of *kinds* come, and return the kinds of all that
        came with them; an end of the connection is an error.
        """
        while True:
            data = self.client.recv(65536)
            assert data, f"closed before {kinds}"
            events = self.state.receive_data(data)
            self.heard |= {type(event) for event in events}
            if any(isinstance(event, kinds) for event in events):
                return [type(event) for event in events]
            self._flush()

    def is_told_of_the_end(self) -> None:
        """Wait for GOAWAY; it may have come with what was waited for before."""
        if h2.events.ConnectionTerminated not in self.heard:
            self.hears(h2.events.ConnectionTerminated)
