"""Claim: malformed HTTP never kills the server, and never leaks a connection, a lease or a descriptor."""

from __future__ import annotations

import os
from itertools import islice

import pytest
import trio

import reaper.trio
from reaper.config import ReaperConfig
from scripts.interop.fuzz import cases, run
from server_example.http import HttpServer

SECONDS = 10.0
SEED = 20240607


def test_a_fuzz_run_can_be_repeated() -> None:
    assert list(islice(cases(1), 300)) == list(islice(cases(1), 300))
    assert list(islice(cases(1), 300)) != list(islice(cases(2), 300))


@pytest.mark.slow
@pytest.mark.trio
async def test_ten_seconds_of_nonsense_leave_nothing_behind() -> None:
    timeouts = ("first_byte", "headers", "body", "keep_alive", "write", "tunnel", "half_closed", "linger")
    overrides: dict[str, object] = {f"timeouts.{name}": 0.2 for name in timeouts}
    config = ReaperConfig.load(environ={}, overrides={**overrides, "reaper.tick": 0.05})
    async with reaper.trio.open_reaper(config) as watcher, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = HttpServer(config, watcher)
        nursery.start_soon(server.accept, listener, nursery)
        descriptors = len(os.listdir("/proc/self/fd"))
        done = await trio.to_thread.run_sync(run, listener.socket.getsockname()[:2], SECONDS, SEED)
        assert done.cases > 100
        assert done.answered > done.cases / 10
        with trio.fail_after(30):
            while server.connections or watcher.core.statistics().registered:
                await trio.sleep(0.05)
        watcher.core.check()
        assert server.counters.opened == server.counters.closed > done.answered
        assert (server.counters.failures, server.counters.refused) == (0, 0)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        nursery.cancel_scope.cancel()
        listener.socket.close()
