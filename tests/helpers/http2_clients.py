"""The load generator's clients of HTTP/2: those that live, and those that give nothing,
with what each of these hears at its end.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from loadgen.clients import Ended, Speech
from loadgen.conform.control import control
from loadgen.drive.protocols import Paths
from loadgen.drive.wire import Tls
from loadgen.http2 import play
from loadgen.plan.acts import Ask, Begin, Done, Open, Rest, Settled
from loadgen.playing.http2 import Stream
from loadgen.units import parse_target
from scripts.acting import PATIENCE, Actor
from tests.helpers.http2_frames import NO_END_OF_HEADERS, spoken
from tests.helpers.lagging import speaking_in_time
from tests.helpers.program_trials import Addressed, connect, rest

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


def played_in_time(target: str, *kinds: str, speech: Speech = SPEECH) -> tuple[list[Ended], float]:
    """The same, with patience for the busiest machine; and by how many seconds at most
    a server that only closes in time was late beside them.
    """

    async def all_of_them() -> tuple[list[Ended], float]:
        where = parse_target(target)
        async with control() as lag:
            plays = (play(kind, where, speech, 10 * (LIMIT + LATE)) for kind in kinds)
            return await asyncio.gather(*plays), lag.seconds

    return asyncio.run(all_of_them())


PLAIN, STINGY = Begin(), Begin(opens=False)
"""How a client begins; one that opens its window by its acts alone."""


class Http2(Actor):
    """A client whose settings are exchanged before it asks; a test may do something
    else between two of its acts.
    """

    def __init__(self, sock: socket.socket, begins: Begin = PLAIN, tls: Tls | None = None) -> None:
        super().__init__(sock, "http2", tls)
        self._asked = 0
        try:
            self.do(begins, Settled())
        except BaseException:
            self.close()  # or another test hears of a loop that nobody has closed
            raise

    def asks(self, *paths: str) -> None:
        """Ask for each of *paths*, on a stream of its own."""
        self.do(*map(Ask, paths))
        self._asked += len(paths)

    def is_answered(self, path: str) -> None:
        """Ask for *path*, and wait for the whole answer."""
        self.asks(path)
        self.has(self._asked - 1)

    def has(self, stream: int) -> None:
        """Wait for the whole answer on the stream with that number, from 0 on."""
        self.do(Done(stream))
        assert self.stream(stream).end == "whole", self.stream(stream)

    def stream(self, number: int) -> Stream:
        """What it knows of the stream with that number."""
        found: Stream = self.client.stream(number)
        return found

    @property
    def told(self) -> bool:
        """Whether it was told that its connection ends, by GOAWAY."""
        return self.client.goaway is not None

    def is_told(self) -> None:
        """Wait for that."""
        self.until(lambda: self.told)


def late_headers_have_their_own_time(server: Addressed, seconds: float) -> None:
    """Headers that begin after half a second of silence, and have no end, end the
    connection *seconds* later at the soonest, which is the limit of both.
    """

    def own_time(speaks: Callable[[], None]) -> None:
        with connect(server) as client:
            client.sendall(spoken(Begin())[0])
            client.recv(1000)  # the connection is idle from now on
            time.sleep(0.5)
            began = time.monotonic()
            client.sendall(NO_END_OF_HEADERS)
            speaks()
            rest(client)
            assert time.monotonic() - began >= seconds

    speaking_in_time(own_time, seconds)


@contextmanager
def talking(
    server: Addressed, begins: Begin = PLAIN, tls: Tls | None = None, buffer: int = 0
) -> Iterator[Http2]:
    """A client of *server* that has begun; its kernel holds *buffer* bytes that it does
    not read; 0: as many as it likes.
    """
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.settimeout(PATIENCE)
    sock.connect(server.address)
    with closing(Http2(sock, begins, tls)) as client:
        yield client


def pings_for_each_frame(server: Addressed, size: int) -> int:
    """Ask for *size* bytes, and send a PING for each DATA frame that comes; the window
    for all is open at once.

    Returns: how many bytes came before the end of the stream. Raises Gone: its
    connection was ended, be it behind the last byte.
    """
    with talking(server, Begin(opens=False, pings=True)) as client:
        client.do(Ask(f"/some?{size}"), Open(size), Done(0))
        client.do(Rest(0.5), Ask(), Done(1))  # all of its PINGs have been read
        return len(client.stream(0).body)
