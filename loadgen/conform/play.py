"""Plays a client of a kind, from its connect to its end.

One rule: *the client is chosen by what the kind speaks*.
"""

from __future__ import annotations

import asyncio
import socket

from ..plan.acts import Kind
from .client import Address, Client, Seen, Tls


def client_of(kind: Kind) -> type[Client]:
    """The client for what *kind* speaks. HTTP/2 is loaded when it is spoken first: it
    needs hpack and hyperframe.
    """
    if kind.speaks in ("http2", "websocket2"):
        from .client_http2 import Http2

        return Http2
    return Tls if kind.speaks == "tls" else Client


async def played(
    kind: Kind, address: Address, patience: float, after: float = 0.0, stop: float = 0.0
) -> Seen:
    """A client of *kind*, from its connect to its end; it comes *after* so many
    seconds. *stop*: when the server is told to stop, by the loop's clock.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(after)
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind.window:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kind.window)
    began = loop.time()
    try:
        await loop.sock_connect(sock, address)
    except OSError:
        sock.close()
        raise
    client = client_of(kind)(kind, sock, stop)
    try:
        if isinstance(client, Tls):
            await client.shake_or_end()
        client.seen.marks.append((began, loop.time()))
        return await client.play(patience)
    finally:
        if client.sock.fileno() >= 0:
            client.sock.close()
