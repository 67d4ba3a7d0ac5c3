"""A fuzzer for HTTP servers: malformed requests, random bytes, mutated requests, odd
splits, rude goodbyes.

One rule: *a run can be repeated*. Everything is drawn from a seed. It speaks to a
loopback address only, from a few sockets at a time, and ends by itself.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile

SEED = 20240607
WAIT = 0.05
"""Seconds that a case waits for an answer; the server has timeouts of its own for the
rest.
"""

GOOD = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /download?bytes=10 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    (
        b"PUT /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n1;a\r\nb\r\n0\r\nT: v\r\n\r\n"
    ),
    b"PUT /upload HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
    b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nabc",
    b"GET /events?every=10ms&count=2 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /sleep?s=1ms HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET /download?bytes=200000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
)

BAD = (
    b"\r\n\r\n\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),  # TLS to a plain port
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET //[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    (
        b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    b"GET /sleep?s=nan HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /sleep?s=1" + b"0" * 400 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /download?bytes=inf&rate=-0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
)
"""What few small changes of a good request would not make of it."""


def cases(seed: int) -> Iterator[bytes]:
    """What to send on one connection each, without end; the corpus first, then whatever
    the seed gives.
    """
    draw = random.Random(seed)
    yield from BAD
    yield from GOOD
    corpus = (*GOOD, *BAD)
    while True:
        kind = draw.random()
        if kind < 0.15:
            yield draw.randbytes(draw.randrange(1, 2000))
        elif kind < 0.3:
            yield b"".join(draw.choice(corpus) for _ in range(draw.randrange(2, 6)))  # pipelined
        elif kind < 0.4:
            whole = draw.choice(GOOD)
            yield whole[: draw.randrange(len(whole))]  # cut off
        else:
            yield mutated(draw, draw.choice(corpus))


def mutated(draw: random.Random, data: bytes) -> bytes:
    """*data* with up to five small changes."""
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            changed[at:at] = draw.choice(
                (b"\r\n", b"\n", b"\x00", b":", b" ", b"\xff", b"0", b"%", b";")
            )
        elif kind == 1:
            del changed[at : at + draw.randrange(1, 20)]
        elif kind == 2 and at < len(changed):
            changed[at] = draw.randrange(256)
        else:
            end = draw.randrange(at, min(len(changed), at + 40) + 1)
            changed[at:at] = changed[at:end]
    return bytes(changed)


def run(address: tuple[str, int], seconds: float, seed: int, clients: int = 4) -> tuple[int, int]:
    """Send cases to the server at *address*, one connection each, for *seconds*, from
    *clients* threads: how many, and how many of them were answered by something that is
    HTTP.
    """
    until = time.monotonic() + seconds

    def send(seed: int) -> list[bool]:
        draw = random.Random(~seed)
        return [
            _one(address, data, draw)
            for data in takewhile(lambda _: time.monotonic() < until, cases(seed))
        ]

    with ThreadPoolExecutor(clients) as threads:
        answered = [
            each for found in threads.map(send, range(seed, seed + clients)) for each in found
        ]
    return len(answered), sum(answered)


def _one(address: tuple[str, int], data: bytes, draw: random.Random) -> bool:
    with socket.create_connection(address, timeout=WAIT) as client:
        answer = b""
        try:
            at = 0
            while at < len(data):
                step = len(data) if draw.random() < 0.7 else draw.randrange(1, 50)
                client.sendall(data[at : at + step])
                at += step
            ending = draw.random()
            if ending < 0.3:
                client.shutdown(socket.SHUT_WR)
            if ending < 0.8:
                answer = client.recv(65536)
            elif ending < 0.9:
                client.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )  # goodbye by reset
        except OSError:
            pass  # closed on us, or no answer in time: both are the server's right
        return answer.startswith(b"HTTP/1.1 ")
