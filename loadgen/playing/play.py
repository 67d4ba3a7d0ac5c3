"""Plays a client of a kind, or a crowd of them, from its connect to its end.

One rule: *the client is chosen by what the kind speaks*, and by whether it comes over
TLS.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

from ..drive import wire
from ..plan.acts import Kind
from .client import ANY, PATIENCE, Address, Client, Seen, Tls

GAP = 0.0005
"""Seconds between two of a crowd: each speaks as soon as it is connected. At one
instant all would connect first, and speak then.
"""


def client_of(kind: Kind, sock: socket.socket, stop: float, tls: wire.Tls | None) -> Client:
    """The client for what *kind* speaks, with a connection that is up. HTTP/2 is loaded
    when it is spoken first: it needs hpack and hyperframe.
    """
    tls = ANY if tls is None and kind.speaks == "tls" else tls
    if kind.speaks in ("http2", "websocket2"):
        from .http2 import Http2, Http2OverTls

        if tls is None:
            return Http2(kind, sock, stop)
        return Http2OverTls(kind, sock, stop, replace(tls, alpn=Http2.alpn))
    return Client(kind, sock, stop) if tls is None else Tls(kind, sock, stop, tls)


async def played(
    kind: Kind,
    address: Address,
    patience: float,
    after: float = 0.0,
    stop: float = 0.0,
    tls: wire.Tls | None = None,
    authority: str = Client.authority,
    seen: Seen | None = None,
) -> Seen:
    """A client of *kind*, from its connect to its end; it comes *after* so many
    seconds. *stop*: when the server is told to stop, by the loop's clock; *tls*: how
    TLS is spoken, None: only by who speaks nothing else; *seen*: where it keeps what it
    sees, for who looks on while it plays. Raises OSError: it cannot connect, a
    TimeoutError if nobody says so.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(after)
    if kind.crowd > 1:
        one = replace(kind, crowd=1)
        crowd = (
            played(one, address, patience, n * GAP, stop, tls, authority) for n in range(kind.crowd)
        )
        return min(await asyncio.gather(*crowd), key=_had)
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind.window:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kind.window)
    began = loop.time()
    try:
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(sock, address)
    except OSError:
        sock.close()
        raise
    client = client_of(kind, sock, stop, tls)
    client.authority = authority
    client.seen = client.seen if seen is None else seen
    try:
        if isinstance(client, Tls):
            async with asyncio.timeout(max(patience, PATIENCE)):
                await client.shake_or_end()
        client.seen.marks.append((began, loop.time()))
        return await client.play(patience)
    finally:
        if client.sock.fileno() >= 0:
            client.sock.close()


def _had(seen: Seen) -> tuple[bool, int, int]:
    """What a client that lives has had: the least is that of one that lost a request,
    or saw a law broken, then of the one with the fewest answers.
    """
    return not (seen.lost or seen.broke), len(seen.answers), len(seen.data)
