"""HTTP/2 by the frame, over a socket of the test's own: for who asks where no client
would, stops amid its reading, or wants the order of what it hears. All others are
`http2_clients.talking`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

from loadgen.plan.acts import Act, Ask, Begin, Body
from scripts.acting import Actor

DATA, HEADERS, RST_STREAM, SETTINGS_FRAME, GOES_AWAY = 0, 1, 3, 4, 7
"""Types of frames."""

NO_END_OF_HEADERS = b"\x00\x00\x01\x01\x01" + (1).to_bytes(4, "big") + b"\x82"
"""HEADERS of stream 1 behind which a CONTINUATION has to come."""


def frames(client: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Type, stream and payload of each frame until the server ends the connection."""
    with client.makefile("rb") as said:
        while head := said.read(9):
            payload = said.read(int.from_bytes(head[:3], "big"))
            yield head[3], int.from_bytes(head[5:], "big"), payload


def spoken(*acts: Act) -> list[bytes]:
    """What the load generator's client sends for each of *acts*, one after the other,
    to a server that says nothing.
    """
    near, far = socket.socketpair()
    with closing(Actor(near, "http2")) as client, far:
        said = []
        for act in acts:
            client.do(act)
            said.append(far.recv(1 << 20))
        return said


def asking(*paths: str) -> list[bytes]:
    """What a client sends that asks for *paths*, one after the other."""
    begins, first, *others = spoken(Begin(), *map(Ask, paths))
    return [begins + first, *others]


def posting(path: str, begun: bytes) -> bytes:
    """What a client sends that asks for *path* with a body, of which it sends *begun*
    and no more.
    """
    return b"".join(spoken(Begin(), Ask(path, "POST", end=False), Body(0, begun, end=False)))
