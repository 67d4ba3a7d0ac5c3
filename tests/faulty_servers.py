"""Echo servers that close idle connections: one keeps the law, the others each break it in one way, on purpose.

    python tests/faulty_servers.py MODE TIMEOUT TICK

One rule: it counts its own sins. On end of standard input it prints one JSON line with how many connections it closed
early, late, wrongly or never, so that a test can compare the load generator's counts with the truth. A client that the
machine kept from speaking in time, and that speaks before it is closed, was live: what awaited it is no sin.

Correct here means: last read + timeout, rounded up to a tick grid of the server's own, after the socket was looked at
once more.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
from heapq import heappop, heappush
from math import ceil
from time import monotonic

MODES = ("correct", "early", "late", "never", "random", "wrong")
EARLY = 0.3
"""Share of the timeout by which an early close is too early: more than any scheduler of a busy machine takes."""
LATE = 3.0
"""Ticks by which a late close is too late."""
EARLY_MODES = ("early", "random")
FAULT_SHARE = 0.2
"""In every mode but `never`, this share of the closes is faulty: counts must come out right, not just a verdict."""


class Server:
    """A single-threaded selectors loop; one heap entry per connection, re-pushed lazily."""

    def __init__(self, mode: str, timeout: float, tick: float) -> None:
        self.mode = mode
        self.timeout = timeout
        self.tick = tick
        self.random = random.Random(1)
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin, selectors.EVENT_READ)
        self.last: dict[socket.socket, float] = {}
        self.reads: dict[socket.socket, int] = {}
        self.condemned: dict[socket.socket, str] = {}  # what will have been done to it, unless it speaks again
        self.due: list[tuple[float, int, socket.socket]] = []
        self.sequence = 0
        self.sins = {"closed": 0, "early": 0, "late": 0, "never": 0, "false": 0}

    def serve(self) -> None:
        print(f"listening on 127.0.0.1:{self.listener.getsockname()[1]}", flush=True)
        while True:
            wait = self.due[0][0] - monotonic() if self.due else 1.0
            for key, _ in self.selector.select(max(wait, 0.0)):
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj is sys.stdin:
                    for sock in list(self.condemned):
                        self.close(sock)
                    print(json.dumps(self.sins), flush=True)
                    return
                else:
                    self.read(key.fileobj)  # type: ignore[arg-type]
            self.reap()

    def accept(self) -> None:
        for _ in range(200):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            self.selector.register(sock, selectors.EVENT_READ)
            self.last[sock] = monotonic()
            self.reads[sock] = 0
            self.push(sock)

    def read(self, sock: socket.socket) -> None:
        if sock not in self.last:
            return
        try:
            data = sock.recv(65536)
            if data:
                sock.send(data)
        except BlockingIOError:
            return
        except OSError:  # a client that leaves with answers unread resets the connection, before or after recv(2)
            data = b""
        if not data:
            self.close(sock)
            return
        if self.condemned.pop(sock, None) == "never":
            self.push(sock)  # of others the heap still knows
        self.last[sock] = monotonic()
        self.reads[sock] += 1

    def push(self, sock: socket.socket) -> None:
        deadline = self.last[sock] + self.timeout
        if self.mode in EARLY_MODES:
            deadline -= EARLY * self.timeout  # when it is looked at; whether it then sins is decided there
        else:
            deadline = ceil(deadline / self.tick) * self.tick
        self.sequence += 1
        heappush(self.due, (deadline, self.sequence, sock))

    def again(self, sock: socket.socket, when: float) -> None:
        self.sequence += 1
        heappush(self.due, (when, self.sequence, sock))

    def reap(self) -> None:
        while self.due and self.due[0][0] <= monotonic():
            sock = heappop(self.due)[2]
            if sock not in self.last:
                continue
            self.read(sock)  # what waits in the kernel counts as activity
            if sock not in self.last:
                continue
            if sock in self.condemned:
                self.close(sock)
                continue
            now = monotonic()
            idle = now - self.last[sock]
            if idle < self.timeout - (EARLY * self.timeout if self.mode in EARLY_MODES else 0.0):
                self.push(sock)
                continue
            self.expire(sock, now, idle)

    def expire(self, sock: socket.socket, now: float, idle: float) -> None:
        mode = self.mode
        sinful = self.random.random() < FAULT_SHARE
        if mode == "random" and idle < self.timeout:
            mode = self.random.choice(("early", "late", "never", "wrong")) if sinful else "early"
        if mode == "never":
            self.condemned[sock] = "never"
            return
        if mode == "early" and idle < self.timeout:
            if sinful:
                self.sins["early"] += 1
                self.close(sock)
            else:
                self.condemned[sock] = "closed"
                self.again(sock, self.last[sock] + self.timeout)
            return
        if mode == "late" and sinful:
            self.condemned[sock] = "late"
            self.again(sock, self.last[sock] + self.timeout + LATE * self.tick)
            return
        if mode == "wrong" and sinful:
            victims = [other for other, reads in self.reads.items() if reads > 2 and other is not sock]
            if victims:
                self.sins["false"] += 1
                self.condemned[sock] = "never"
                self.close(self.random.choice(victims))
                return
        self.sins["closed"] += 1
        self.close(sock)

    def close(self, sock: socket.socket) -> None:
        del self.last[sock]
        del self.reads[sock]
        if sock in self.condemned:
            self.sins[self.condemned.pop(sock)] += 1
        self.selector.unregister(sock)
        sock.close()


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in MODES:
        sys.exit(f"usage: faulty_servers.py {'|'.join(MODES)} TIMEOUT TICK")
    Server(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])).serve()
