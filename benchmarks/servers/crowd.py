"""A crowd of clients in a process of its own, told what to do line by line on stdin.

`connect N` opens N connections, `ask` has each ask once and reads the answers, `gone S`
waits until all have been closed, for S seconds at the most, `leave` closes them. Each
is answered by a line on stdout: how many were concerned.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable

from loadgen.plan.capacity import raise_descriptor_limit

from .idle import IN_FLIGHT

PATIENCE = 120.0
"""Seconds for an answer."""
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
END = b"hello"


class Crowd:
    """Clients of the server at *port* of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[socket.socket] = []

    def connect(self, number: float) -> int:
        """Open so many; how many there are."""
        for _ in range(int(number)):
            self._clients.append(socket.create_connection(("127.0.0.1", self._port), PATIENCE))
        return len(self._clients)

    def ask(self, _: float) -> int:
        """A request of each, `IN_FLIGHT` at a time; how many were answered."""
        answered = 0
        for begin in range(0, len(self._clients), IN_FLIGHT):
            some = self._clients[begin : begin + IN_FLIGHT]
            asked = [client for client in some if self._send(client)]
            answered += sum(map(self._answer, asked))
        return answered

    def _send(self, client: socket.socket) -> bool:
        try:
            client.sendall(REQUEST)
        except OSError:
            return False
        return True

    def _answer(self, client: socket.socket) -> bool:
        said = b""
        try:
            while END not in said:
                if not (got := client.recv(4096)):
                    return False
                said += got
        except OSError:
            return False
        return True

    def gone(self, seconds: float) -> int:
        """Wait until the server has closed all; how many it has closed."""
        until = time.monotonic() + seconds
        poll = select.poll()
        for client in self._clients:
            poll.register(client, select.POLLRDHUP)
        closed = 0
        while closed < len(self._clients) and (left := until - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                poll.unregister(descriptor)
                closed += 1
        return closed

    def leave(self, _: float) -> int:
        """Close all; how many there were."""
        count = len(self._clients)
        while self._clients:
            self._clients.pop().close()
        return count


def main(port: int) -> None:
    """Do what stdin says, until it ends."""
    raise_descriptor_limit()
    crowd = Crowd(port)
    commands: dict[str, Callable[[float], int]] = {
        each.__name__: each for each in (crowd.connect, crowd.ask, crowd.gone, crowd.leave)
    }
    for line in sys.stdin:
        word, _, number = line.partition(" ")
        print(commands[word.strip()](float(number or 0)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
