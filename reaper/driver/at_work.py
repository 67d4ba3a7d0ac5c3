"""A mark for who looks from outside: in this process a request is being worked on,
whether or not its client is still there. `reaper run --exit-when-idle` looks for it.

The rule of this module: *a mark is a descriptor*. As long as anything is worked on, the
process holds an empty file in memory, whose name `/proc` shows; with the process it is
gone. Unless the environment asks for it, nothing is marked and nothing is counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

WANTED = "REAPER_RUN_MARKS"
"""The variable that asks for marks."""

NAME = "reaper-at-work"
"""The name of the file, as it stands in `/proc/PID/fd`."""


class Mark:
    """How many requests are worked on, of which a descriptor shows whether any is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._descriptor = -1

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                with suppress(OSError):  # no descriptor is left: then it is not seen
                    self._descriptor = os.memfd_create(NAME)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


_mark = Mark()


def is_wanted() -> bool:
    """Whether somebody looks for marks."""
    return WANTED in os.environ and hasattr(os, "memfd_create")


def marked(app: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """*app*, an ASGI application or a handler of aiohttp's, whose calls are marked;
    *app* itself if nobody looks for that. A lifespan is no request.
    """
    if not is_wanted():
        return app

    async def call(*arguments: Any) -> Any:
        first = arguments[0]
        if isinstance(first, dict) and first.get("type") == "lifespan":
            return await app(*arguments)
        with _mark:
            return await app(*arguments)

    return call
