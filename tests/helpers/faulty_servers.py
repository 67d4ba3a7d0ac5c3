"""Servers that close idle connections: a few keep the law, the others are wrong in one
way each, on purpose.

    python tests/helpers/faulty_servers.py NAME TIMEOUT

One rule: they count their own sins. On end of standard input such a process prints one
JSON line with how many connections it closed early, late, wrongly or never, so that a
test can compare the load generator's counts with the truth. A client that speaks before
it is closed was live: what awaited it is no sin.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import sys
import termios
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

TIMEOUT, TICK = 1.5, 0.5
HTTP = "silent=4,chatty=4,pipelined=2,slow_headers=2"
WS = "silent_upgrade=1,chatty=1"
HEAD, BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", b"\r\nok"
AT_ONCE = 0.001


@dataclass(frozen=True)
class Server:
    """One server. Its ways are functions of a connection's number (from 0) and a
    request's (from 0).

    Attributes:
        reason: what the verdict's reasons must say; empty: it is right, and must pass.
        delay: seconds by which the close of an idle connection is late; None: it never
            comes.
        counts: whether a request counts as activity.
        answer: what is sent for a request, given what would be right.
        pause: seconds that an answer waits.
        age: seconds after connecting at which even a live connection is closed;
            *goodbye*: what is sent before.
        max_age: what the scenario says of that.
    """

    reason: str
    protocol: str = "echo"
    mix: str = "silent=5,chatty=4,drip=1,mute=1,pipelined=1"
    delay: Callable[[int], float | None] = lambda number: AT_ONCE
    counts: Callable[[int, int], bool] = lambda number, request: True
    answer: Callable[[int, int, bytes], bytes] = lambda number, request, right: right
    pause: Callable[[int], float] = lambda number: 0.0
    age: Callable[[int], float | None] = lambda number: None
    goodbye: bytes = b""
    first_byte: Callable[[int], float | None] | None = None
    max_age: float | None = None
    crash: float | None = None
    dripped_headers_count: bool = False


def some(number: int) -> bool:
    """One connection in five; the clients of a mix are shuffled."""
    return number % 5 == 2


EARLY = -0.4 * TIMEOUT
KIT = {
    "right": Server(""),
    "right, over HTTP": Server("", "http", HTTP),
    "right, over WebSocket": Server("", "ws", WS),
    "right, and old connections end as the scenario says": Server(
        "", age=lambda number: 2.0, max_age=1.9
    ),
    "early": Server("early", delay=lambda number: EARLY if some(number) else AT_ONCE),
    "early by a tenth": Server("early", delay=lambda number: -0.1 * TIMEOUT),
    "late by 2.5 ticks": Server("late", delay=lambda number: 2.5 * TICK),
    "late, and one connection answered slowly": Server(
        "late",
        delay=lambda number: 2.5 * TICK,
        pause=lambda number: 2.5 * TICK if number == 7 else 0.0,
    ),
    "some late": Server("late", delay=lambda number: 4 * TICK if some(number) else AT_ONCE),
    "some of each": Server(
        "early", delay=lambda number: (EARLY, 4 * TICK, None, AT_ONCE, AT_ONCE)[number % 5]
    ),
    "never": Server("missed", delay=lambda number: None),
    "some never": Server("missed", delay=lambda number: None if some(number) else AT_ONCE),
    "never those that said nothing": Server("missed", first_byte=lambda number: None),
    "too early those that said nothing": Server("early", first_byte=lambda number: EARLY),
    "counts from connecting": Server("false", counts=lambda number, request: False),
    "counts three requests": Server("false", counts=lambda number, request: request < 3),
    "cuts the live": Server("false", age=lambda number: 1.0 if some(number) else None),
    "cuts the old, and nobody said so": Server("false", age=lambda number: 2.0),
    "cuts the young, whatever the scenario says": Server(
        "false", age=lambda number: 1.0, max_age=1.9
    ),
    "crashes": Server("false", crash=1.5),
    "answers the first request alone": Server(
        "never came", answer=lambda n, k, right: b"" if k else right
    ),
    "drops a third": Server(
        "never came", answer=lambda n, k, right: b"" if (n + k) % 3 == 0 else right
    ),
    "answers some connections never": Server(
        "never came", answer=lambda n, k, right: b"" if some(n) else right
    ),
    "answers nothing": Server("never came", answer=lambda n, k, right: b""),
    "answers twice": Server("nobody had asked for", answer=lambda n, k, right: 2 * right),
    "answers something else": Server(
        "that are no echo", answer=lambda n, k, right: b"y" * len(right)
    ),
    "answers in HTTP": Server(
        "that are no echo", answer=lambda n, k, right: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    ),
    "answers half of a burst": Server(
        "never came", answer=lambda n, k, right: right[: (len(right) + 1) // 2]
    ),
    "500 to all": Server(
        "status 500", "http", HTTP, answer=lambda n, k, right: right.replace(b"200", b"500")
    ),
    "503 to some": Server(
        "status 503",
        "http",
        HTTP,
        answer=lambda n, k, right: right.replace(b"200", b"503") if some(n) else right,
    ),
    "404 to all": Server(
        "status 404", "http", HTTP, answer=lambda n, k, right: right.replace(b"200", b"404")
    ),
    "an unasked 408 to the live": Server(
        "false",
        "http",
        HTTP,
        age=lambda number: 1.0 if number % 2 else None,
        goodbye=b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n",
    ),
    "announces a close to the live": Server(
        "false",
        "http",
        HTTP,
        age=lambda number: 1.0,
        answer=lambda n, k, right: right.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
    ),
    "an answer without its end": Server(
        "never came", "http", HTTP, answer=lambda n, k, right: right[:-1]
    ),
    "a second answer": Server(
        "nobody had asked for", "http", "chatty=1", answer=lambda n, k, right: 2 * right
    ),
    "no HTTP": Server("no http", "http", HTTP, answer=lambda n, k, right: b"220 hello\r\n"),
    "early, over HTTP": Server("early", "http", HTTP, delay=lambda number: EARLY),
    "headers without a limit": Server("late", "http", HTTP, dripped_headers_count=True),
    "no pongs": Server("never came", "ws", WS, answer=lambda n, k, right: b""),
    "early, over WebSocket": Server("early", "ws", WS, delay=lambda number: EARLY),
    "never, over WebSocket": Server("missed", "ws", WS, delay=lambda number: None),
}


class Connection(asyncio.Protocol):
    """One connection of *server*: whole requests, answers, a timer. `sins` counts what
    was done to all of them.
    """

    timeout = TIMEOUT
    sins: ClassVar[Counter[str]] = Counter()

    def __init__(
        self,
        server: Server,
        numbers: Iterator[int],
        all_: set[Connection],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.server, self.number, self.all, self.loop = server, next(numbers), all_, loop
        self.touched = loop.time()
        self.data = b""
        self.requests = 0
        self.upgraded = self.server.protocol != "ws"
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.all.add(self)
        self.wait(self.server.first_byte or self.server.delay)
        if (age := self.server.age(self.number)) is not None:
            self.loop.call_later(age, self.end, self.server.goodbye, "")

    def connection_lost(self, error: Exception | None) -> None:
        self.all.discard(self)
        self.sins["never"] += self.timer is None and self.loop.time() - self.touched > self.timeout
        if self.timer:
            self.timer.cancel()

    def wait(self, delay: Callable[[int], float | None]) -> None:
        if self.timer:
            self.timer.cancel()
        late = delay(self.number)
        self.touched = self.loop.time()
        if late is None:
            self.timer = None
            return
        sin = "early" if late < 0 else "late" if late > TICK else "closed"
        self.timer = self.loop.call_later(self.timeout + late, self.end, b"", sin)

    def end(self, goodbye: bytes, sin: str) -> None:
        if sin and unread(
            self.transport
        ):  # it spoke while this process was not run: that is read before the next look
            self.timer = self.loop.call_later(0, self.end, goodbye, sin)
            return
        if not self.transport.is_closing():
            sin = sin or ("false" if self.requests + bool(unread(self.transport)) > 1 else "early")
            over = (
                self.loop.time() - self.touched >= self.timeout
            )  # this process did not run for so long
            self.sins["closed" if over and sin == "early" else sin] += 1
        self.transport.write(goodbye)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        before = self.data
        self.data += data
        if not self.upgraded:
            if b"\r\n\r\n" in self.data:
                self.upgraded, self.data = True, b""
                self.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                self.wait(self.server.delay)
            return
        if self.server.protocol == "http":
            *whole, self.data = self.data.split(b"\r\n\r\n")
            rights = [HEAD + BODY] * len(whole)
            if not before or whole or self.server.dripped_headers_count:
                self.touch()  # the deadline of headers runs from their first byte
        elif self.server.protocol == "ws":
            rights, self.data = [b"\x8a\x01x"] * (len(self.data) // 7), b""
            self.touch()
        else:
            rights, self.data = [self.data], b""
            self.touch()
        for right in rights:
            said = self.server.answer(self.number, self.requests, right)
            self.requests += 1
            if pause := self.server.pause(self.number):
                self.loop.call_later(pause, self.transport.write, said)
            else:
                self.transport.write(said)

    def touch(self) -> None:
        if self.server.counts(self.number, self.requests):
            self.wait(self.server.delay)


def unread(transport: Any) -> int:
    """Bytes that the kernel holds for a connection; of a simulated one none."""
    count = array("i", [0])
    if (sock := transport.get_extra_info("socket")) is not None:
        fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return count[0]


async def main(name: str, timeout: float) -> None:
    """Serve in real time until the end of standard input."""
    Connection.timeout = timeout
    loop, all_, numbers = asyncio.get_running_loop(), set[Connection](), itertools.count()
    server = await loop.create_server(
        lambda: Connection(KIT[name], numbers, all_, loop), "127.0.0.1", 0, backlog=4096
    )
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for connection in all_:
        connection.transport.abort()
    await asyncio.sleep(0)
    print(json.dumps(Connection.sins), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
