"""`python -m scripts.streams.readers HOST:PORT COUNT SECONDS`: so many readers, each of
a stream that is quiet for so long. At the end a line of JSON says what they heard.

One rule: *a stream is whole if its last event has come, and the last chunk after it*.
Any other end is a cut.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from contextlib import suppress

from .words import FIRST, LAST, PING

PATIENCE = 20.0
"""Seconds that a connection may take, and that the last end may be late."""
LAST_CHUNK = b"0\r\n\r\n"
TAIL = 200
AT_A_TIME = 50
"""Readers that come together."""


class Reader:
    """One reader, and what it has heard."""

    __slots__ = ("began", "ended", "pings", "sock", "tail", "whole")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.tail = b""
        self.began = self.whole = False
        self.pings = 0
        self.ended: float | None = None

    def hear(self) -> bool:
        """Read what has come. False: it was the end."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.whole = LAST in self.tail and self.tail.endswith(LAST_CHUNK)
            self.ended = time.monotonic()
            self.sock.close()
            return False
        self.tail = (self.tail + data)[-TAIL:]
        self.began = self.began or FIRST in self.tail
        self.pings += data.count(PING)
        return True


def come(address: tuple[str, int], count: int, seconds: str) -> list[Reader]:
    """*count* readers, each of whom has asked. They come a few at a time, and the next
    only when these have heard their first event: a proxy would give up what a burst
    keeps waiting.
    """
    found: list[Reader] = []
    request = f"GET /quiet/{seconds} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    while count > 0:
        few = []
        for _ in range(min(count, AT_A_TIME)):
            with suppress(OSError):
                sock = socket.create_connection(address, timeout=PATIENCE)
                sock.sendall(request)
                sock.setblocking(False)
                few.append(Reader(sock))
        listen(few, time.monotonic() + PATIENCE, begun=True)
        found += few
        count -= AT_A_TIME
    return found


def listen(readers: list[Reader], until: float, *, begun: bool = False) -> None:
    """Hear all of *readers* until each has come to its end, or the instant *until*.
    *begun*: until each has heard its first event.
    """
    poll = select.epoll()
    waits = {reader.sock.fileno(): reader for reader in readers if reader.ended is None}
    for descriptor in waits:
        poll.register(descriptor, select.EPOLLIN)
    while waits and time.monotonic() < until:
        for descriptor, _ in poll.poll(1.0):
            reader = waits[descriptor]
            if not reader.hear():
                del waits[descriptor]  # it is closed, and so the poll has forgotten it
            elif begun and reader.began:
                del waits[descriptor]
                poll.unregister(descriptor)
    poll.close()


def main() -> None:
    """Come, listen, tell."""
    target, count, seconds = sys.argv[1:]
    host, _, port = target.rpartition(":")
    readers = come((host, int(port)), int(count), seconds)
    listen(readers, time.monotonic() + float(seconds) + PATIENCE)
    ends = [reader for reader in readers if reader.ended is not None]
    print(
        json.dumps(
            {
                "began": sum(reader.began for reader in readers),
                "whole": sum(reader.whole for reader in readers),
                "cut": sum(reader.began and not reader.whole for reader in ends),
                "pings": sum(reader.pings for reader in readers),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
