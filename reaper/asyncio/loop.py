"""When the loop is to run the reaper: one timer for all connections, and two passes before a verdict.

The rule of this module: *nothing is judged before the loop has read*. On asyncio a callback scheduled by `call_soon`
runs before the reads of its iteration, on uvloop after the callbacks come the reads. After two of them in a row, the
sockets have been read once on either loop. It matters most after SIGSTOP and SIGCONT: CPython's `epoll.poll` then
returns an empty list although bytes are ready, and the timers fire first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

COARSE = 0.001
"""Seconds added to a timer of a loop that keeps its time in milliseconds (uvloop), so that it never wakes too soon."""


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock for connections of *loop*: its own, if that is read anew at every call.

    uvloop's `time` is read once an iteration: what is noted late in an iteration would seem to be older than it is, and
    a connection would be closed early by the length of an iteration.
    """
    return loop.time if isinstance(loop, asyncio.BaseEventLoop) else time.monotonic


def after_two_passes(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have *call* called when the loop has read its sockets once more."""
    loop.call_soon(loop.call_soon, call)
