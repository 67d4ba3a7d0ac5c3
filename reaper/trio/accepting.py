"""The accept loop of every server here.

The rule of this module: *no error of one connection ends a server*. What went wrong
with it before it was accepted is skipped; a process without descriptors or memory
pauses and leaves newcomers in the backlog; only an error of the listening socket itself
is raised.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Literal, NoReturn

import trio

from ..driver.reaper import Reaper

ACCEPTS_PER_PASS = 64
"""Connections accepted before the loop is let run again."""

ACCEPT_PAUSE = 0.1
"""Seconds until the next attempt after a burst that ended for want of resources, or
that brought nothing but errors.
"""

_NAMES = """
ECONNABORTED ECONNRESET EPROTO ENETDOWN ENETUNREACH ENETRESET ENOPROTOOPT EPROTONOSUPPORT EHOSTDOWN
EHOSTUNREACH ENONET EOPNOTSUPP ESOCKTNOSUPPORT ETIMEDOUT EPERM EPIPE EINTR
"""

PASSED_OVER = frozenset(getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name))
"""Errors of the connection that would have been next: accept(2) reports what the
network or a firewall did to it.
"""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process or a machine that has nothing left for one more connection."""


def after(error: OSError) -> Literal["next", "pause", "raise"]:
    """What to do after accept(2) failed with *error*: try the next one, pause, or give
    up.
    """
    return (
        "next" if error.errno in PASSED_OVER else "pause" if error.errno in EXHAUSTED else "raise"
    )


async def until_welcome(reaper: Reaper) -> None:
    """Return when *reaper* is `accepting`: new connections are welcome. The pressure is
    read anew if more have come than the last reading holds for.
    """
    reaper.reread()
    while not reaper.accepting:
        await trio.sleep(ACCEPT_PAUSE)


async def accept(
    listening: socket.socket,
    serve: Callable[[socket.socket], object],
    *,
    welcome: Callable[[], Awaitable[object]] | None = None,
    failed: Callable[[OSError], object] | None = None,
) -> NoReturn:
    """Accept from *listening* until cancelled, and leave it open then.

    Accepts in bursts: one connection per scheduling pass starves newcomers when
    thousands of others keep each pass busy. Out of descriptors or memory it pauses
    instead of failing: the kernel's backlog holds newcomers meanwhile.

    Args:
        listening: Of the standard library; it is made non-blocking.
        serve: Called with each new connection, a non-blocking socket that is *serve*'s
            to close. Must not block.
        welcome: Awaited before each burst: it may keep the door shut.
        failed: Called with each error that was skipped, or that made it pause.
    Raises:
        OSError: *listening* is of no use any more.
    """
    listening.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(listening)
        if welcome is not None:
            await welcome()
        accepted, errors, pause = accept_burst(listening)
        for connected in accepted:
            serve(connected)
        if failed is not None:
            for error in errors:
                failed(error)
        if pause:
            await trio.sleep(ACCEPT_PAUSE)


def accept_burst(listening: socket.socket) -> tuple[list[socket.socket], list[OSError], bool]:
    """Accept what waits at *listening*, a non-blocking socket, but no more than
    `ACCEPTS_PER_PASS`. Never waits.

    Returns:
        The new connections, oldest first, non-blocking; what went wrong; and whether to
        pause before the next burst.
    Raises:
        OSError: *listening* itself is of no use (closed, not listening). What was
            accepted before is closed.
    """
    accepted: list[socket.socket] = []
    errors: list[OSError] = []
    for _ in range(ACCEPTS_PER_PASS):
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return accepted, errors, False
        except OSError as error:
            verdict = after(error)
            if verdict == "raise":
                for connection in accepted:
                    connection.close()
                raise
            errors.append(error)
            if verdict == "pause":
                return accepted, errors, True
            continue
        connection.setblocking(False)
        accepted.append(connection)
    return accepted, errors, not accepted
