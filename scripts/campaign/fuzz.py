"""A fuzzer for HTTP servers: malformed requests, random bytes, mutated requests, odd splits, rude goodbyes.

One rule: *a run can be repeated*. Everything is drawn from a seed. It speaks to a loopback address only, from a few
sockets at a time, and ends by itself.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SEED = 20240607
WAIT = 0.05  # seconds that a case waits for an answer; the server has timeouts of its own for the rest

GOOD = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /download?bytes=10 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;a\r\nb\r\n0\r\nT: v\r\n\r\n",
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
    b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET / http/1.1\r\nHost: x\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET //[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX",
    b"GET /sleep?s=nan HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /sleep?s=1" + b"0" * 400 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /download?bytes=inf&rate=-0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /download?bytes=%s&rate=%x HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /sleep?s=-5 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
)


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What a run has done: cases sent, and how many of them were answered by something that is HTTP."""

    cases: int
    answered: int
    seconds: float


def cases(seed: int) -> Iterator[bytes]:
    """What to send on one connection each, without end; the corpus first, then whatever the seed gives."""
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
            changed[at:at] = draw.choice((b"\r\n", b"\n", b"\x00", b":", b" ", b"\xff", b"0", b"%", b";"))
        elif kind == 1:
            del changed[at : at + draw.randrange(1, 20)]
        elif kind == 2 and at < len(changed):
            changed[at] = draw.randrange(256)
        else:
            end = draw.randrange(at, min(len(changed), at + 40) + 1)
            changed[at:at] = changed[at:end]
    return bytes(changed)


def run(address: tuple[str, int], seconds: float, seed: int, clients: int = 4) -> Fuzzed:
    """Send cases to the server at *address*, one connection each, for *seconds*, from *clients* threads."""
    start = time.monotonic()
    with ThreadPoolExecutor(clients) as threads:
        done = list(threads.map(lambda index: _send(address, start + seconds, seed + index), range(clients)))
    return Fuzzed(sum(count for count, _ in done), sum(answered for _, answered in done), time.monotonic() - start)


def _send(address: tuple[str, int], until: float, seed: int) -> tuple[int, int]:
    draw = random.Random(~seed)
    count = answered = 0
    for data in cases(seed):
        if time.monotonic() >= until:
            break
        count += 1
        answered += _one(address, data, draw)
    return count, answered


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
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # goodbye by reset
        except OSError:
            pass  # closed on us, or no answer in time: both are the server's right
        return answer.startswith(b"HTTP/1.1 ")
