"""`python -m tests.helpers.one_and_others PORT COUNT HONEST`: one address opens COUNT
connections, each with a request that takes a minute; then HONEST others ask, each from
an address of its own.

Prints a line of JSON: how many of the one's were `refused`, and how many of the others
`answered`.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack, suppress

from loadgen.plan.capacity import raise_descriptor_limit

PATIENCE = 20.0
"""Seconds for one connection, and for its answer."""


def connected(source: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0))


def tried(port: int, count: int, honest: int) -> dict[str, int]:
    """What the clients hear, in numbers."""
    refused = answered = 0
    greedy = []
    with ExitStack() as held:
        for _ in range(count):
            try:
                client = held.enter_context(connected("127.0.0.2", port))
                client.sendall(b"GET /slow?60 HTTP/1.1\r\nhost: x\r\n\r\n")
                greedy.append(client)
            except ConnectionError:
                refused += 1
        # The last ones have been met by the limit, too, once another address has been
        # answered.
        for number in range(1, honest + 1):
            with suppress(OSError), connected(f"127.0.1.{number}", port) as other:
                other.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                answered += other.recv(1000).startswith(b"HTTP/1.1 200 ")
        for client in greedy:
            client.setblocking(False)
            try:
                refused += not client.recv(1000).startswith(b"HTTP/1.1 200 ")
            except BlockingIOError:
                pass
            except ConnectionError:
                refused += 1
    return {"refused": refused, "answered": answered}


if __name__ == "__main__":
    raise_descriptor_limit()
    print(json.dumps(tried(*map(int, sys.argv[1:]))))
