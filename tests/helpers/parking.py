"""Parking lots on real sockets, and the peers of their connections."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
import trio.testing

from reaper.trio import ParkingLot, open_reaper

Handler = Callable[[Any], Awaitable[object]]

Secure = Callable[..., trio.SSLStream[Any]]
"""Makes a client of TLS of a socket, slow if the second argument is true."""


async def echo(stream: Any) -> None:
    async for data in stream:
        await stream.send_all(data)


peers: list[socket.socket] = []


def pair() -> tuple[socket.socket, socket.socket]:
    """(ours, the peer's); the test need not close the latter."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    peers.append(theirs)
    return ours, theirs


async def heard(theirs: socket.socket, size: int = 65536) -> bytes:
    """What the peer hears next; empty: the connection was closed."""
    await trio.lowlevel.wait_readable(theirs)
    with suppress(ConnectionResetError):  # closed with bytes unread
        return theirs.recv(size)
    return b""


async def echoes(theirs: socket.socket, word: bytes) -> None:
    """The peer says *word*, and hears it."""
    theirs.send(word)
    with trio.fail_after(10):
        assert await heard(theirs) == word


async def echo_in_turn(peers: list[socket.socket], pause: float) -> None:
    """So that the longest silent is always the next."""
    for theirs in peers:
        await echoes(theirs, b"again")
        await trio.sleep(pause)


def dial(lot: ParkingLot) -> tuple[Any, socket.socket]:
    """A connection of *lot* over TCP, and its client, which the test need not close."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        client.setblocking(False)
        peers.append(client)
        return lot.add(listening.accept()[0]), client


@asynccontextmanager
async def several(
    count: int, handler: Handler = echo, idle: float = 30, **options: Any
) -> AsyncIterator[tuple[ParkingLot, list[socket.socket]]]:
    """A parking lot of *count* connections, and their peers; each is closed at the end
    of the block.
    """
    async with open_reaper(tick=1.0) as r, r.parking_lot(handler, idle, **options) as lot:
        pairs = [pair() for _ in range(count)]
        for ours, _ in pairs:
            lot.add(ours)
        yield lot, [theirs for _, theirs in pairs]
        r.core.check()
    with trio.fail_after(10):
        for _, theirs in pairs:
            while theirs.fileno() >= 0 and await heard(theirs):
                pass
    assert (len(lot), len(r), len(r.core)) == (0, 0, 0)


@asynccontextmanager
async def one(
    handler: Handler = echo, said: bytes = b"", idle: float = 30, **options: Any
) -> AsyncIterator[tuple[ParkingLot, socket.socket]]:
    """The same of one, and its peer, which has *said* something."""
    async with several(1, handler, idle, **options) as (lot, (theirs,)):
        theirs.send(said)
        yield lot, theirs
