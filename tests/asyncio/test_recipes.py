"""What the guide's table of recipes says of aiosmtpd's own timer, and of the guard."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from aiosmtpd.handlers import Sink
from aiosmtpd.smtp import SMTP

import reaper.asyncio

TIMEOUT = 0.5


def stock() -> Any:
    return SMTP(Sink(), timeout=TIMEOUT)


def guarded() -> Any:
    return reaper.asyncio.guard(lambda: SMTP(Sink(), timeout=86400), idle=TIMEOUT)


async def answered(factory: Any) -> bool:
    """Whether a client that speaks while the loop stands still is answered."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        assert (await loop.sock_recv(client, 100)).startswith(b"220")
        client.send(b"NOOP\r\n")
        time.sleep(2 * TIMEOUT)  # the stall
        found = await loop.sock_recv(client, 100)
    server.close()
    return found.startswith(b"250")


@pytest.mark.slow
def test_after_a_stall_aiosmtpds_own_timer_closes_who_lives_and_the_guard_does_not() -> None:
    assert not asyncio.run(answered(stock))
    assert asyncio.run(answered(guarded()))


@pytest.mark.slow
def test_a_client_of_guarded_aiosmtpd_that_says_nothing_is_closed() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(guarded(), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.setblocking(False)
            began = loop.time()
            while await loop.sock_recv(client, 100):
                pass
        server.close()
        return loop.time() - began

    assert asyncio.run(main()) >= TIMEOUT
