"""How many objects this process holds, by their type."""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import os
import sys
import time
from collections import Counter


def objects() -> bytes:
    """As JSON: the number of objects of each type that the collector knows, after it
    ran.
    """
    _sweep_trio()
    _sweep_asyncio()
    for _ in range(3):
        gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return json.dumps(found).encode()


def _sweep_trio() -> None:
    """Have trio forget the deadlines that hold no more. It does so by itself, a
    thousand at a time: hypercorn gives each connection one of 60 s, for TLS, also where
    there is none.
    """
    run = sys.modules.get("trio._core._run")
    runner = None if run is None else getattr(run.GLOBAL_RUN_CONTEXT, "runner", None)
    if runner is not None:
        runner.deadlines._prune()


def _sweep_asyncio() -> None:
    """Have the loop forget the timers that are cancelled. It does so by itself, from a
    hundred on: aiohttp's keep-alive, far away where ours is in force, leaves one for
    each connection.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # a thread
    timers = getattr(loop, "_scheduled", None)
    if timers is None:
        return  # uvloop's forget at once
    timers[:] = [each for each in timers if not each.cancelled()]
    heapq.heapify(timers)
    loop._timer_cancelled_count = 0  # type: ignore[attr-defined]


def fork(seconds: float) -> bytes:
    """Have a child for so long, which holds every descriptor that this process has
    now.
    """
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    return b"forked"
