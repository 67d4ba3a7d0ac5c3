"""What is asked of every stream of ours, and a bound for tests in which a wrong one would wait for ever."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
import trio.testing

SECONDS = 30
"""Far more than a test takes, on a busy machine too."""


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """*test*, an async one, fails where it would hang."""

    @functools.wraps(test)
    async def run(**fixtures: Any) -> None:
        with trio.fail_after(SECONDS):
            await test(**fixtures)

    return run


async def check_stream(pair: Callable[[], tuple[Any, Any]]) -> None:
    """All that trio demands of a stream, of the ends that *pair* makes: connected, on non-blocking sockets."""

    async def make() -> tuple[Any, Any]:
        return pair()

    async def make_clogged() -> tuple[Any, Any]:
        ends = pair()
        for stream in ends:
            with suppress(BlockingIOError):
                while True:
                    os.write(stream.fileno(), b"x" * 65536)
        return ends

    await trio.testing.check_half_closeable_stream(make, make_clogged)
