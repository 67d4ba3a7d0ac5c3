"""HTTP/2 by the frame: what a client sends that does as no library would, and what it
hears.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

from h2.connection import H2Connection

DATA, HEADERS, RST_STREAM, SETTINGS_FRAME, GOES_AWAY = 0, 1, 3, 4, 7
"""Types of frames."""


def frames(client: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Type, stream and payload of each frame until the server ends the connection."""
    with client.makefile("rb") as said:
        while head := said.read(9):
            payload = said.read(int.from_bytes(head[:3], "big"))
            yield head[3], int.from_bytes(head[5:], "big"), payload


def asking(*paths: str) -> list[bytes]:
    """What a client sends that asks for *paths*, one after the other."""
    speaks = H2Connection()
    speaks.initiate_connection()
    asked = []
    for number, path in enumerate(paths):
        names = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "h"}
        speaks.send_headers(2 * number + 1, list(names.items()), end_stream=True)
        asked.append(speaks.data_to_send())
    return asked


def posting(path: str, begun: bytes) -> bytes:
    """What a client sends that asks for *path* with a body, of which it sends *begun*
    and no more.
    """
    speaks = H2Connection()
    speaks.initiate_connection()
    names = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "h"}
    speaks.send_headers(1, list(names.items()))
    speaks.send_data(1, begun)
    return speaks.data_to_send()


def opening(count: int) -> bytes:
    """What a client sends to open its window, and that of stream 1, by *count*
    bytes.
    """
    return b"".join(
        b"\0\0\4\10\0" + stream.to_bytes(4, "big") + count.to_bytes(4, "big") for stream in (0, 1)
    )


def pings_for_each_frame(client: socket.socket, size: int) -> int:
    """Ask over *client* for *size* bytes, and send a PING for each DATA frame that
    comes.

    Returns: how many bytes came before the end of the stream, or of the connection.
    """
    (asked,) = asking(f"/some?{size}")
    client.sendall(asked + opening(size))
    read = 0
    for frame, _, payload in frames(client):
        if frame != DATA:
            continue
        if not payload:
            break
        read += len(payload)
        with suppress(OSError):  # the server has closed it: what it said before is read
            client.sendall(b"\0\0\10\6\0" + bytes(12))
    return read
