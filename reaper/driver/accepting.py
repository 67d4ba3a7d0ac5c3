"""Accepting connections in bursts. *No error of one connection ends a server*: what went wrong with it before it was
accepted is skipped; a process without descriptors or memory pauses and leaves newcomers in the backlog; only an error
of the listening socket itself is raised."""

from __future__ import annotations

import errno
import socket
from typing import Literal, NamedTuple

ACCEPTS_PER_PASS = 64
"""Connections accepted before the loop is let run again."""

ACCEPT_PAUSE = 0.1
"""Seconds until the next attempt after a burst that ended for want of resources, or that brought nothing but errors."""

_NAMES = """
ECONNABORTED ECONNRESET EPROTO ENETDOWN ENETUNREACH ENETRESET ENOPROTOOPT EPROTONOSUPPORT EHOSTDOWN EHOSTUNREACH ENONET
EOPNOTSUPP ESOCKTNOSUPPORT ETIMEDOUT EPERM EPIPE EINTR
"""

PASSED_OVER = frozenset(getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name))
"""Errors of the connection that would have been next: accept(2) reports what the network or a firewall did to it."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process or a machine that has nothing left for one more connection."""


def after(error: OSError) -> Literal["next", "pause", "raise"]:
    """What to do after accept(2) failed with *error*: try the next one, pause, or give up."""
    return "next" if error.errno in PASSED_OVER else "pause" if error.errno in EXHAUSTED else "raise"


class Burst(NamedTuple):
    """What one burst brought."""

    accepted: list[socket.socket]
    """New connections, oldest first; non-blocking. May be empty."""
    errors: list[OSError]
    """What was passed over, and what made it pause."""
    pause: float
    """Seconds to wait before the next burst; 0: none."""


def accept_burst(listening: socket.socket, most: int = ACCEPTS_PER_PASS) -> Burst:
    """Accept what waits at *listening*, a non-blocking socket, but no more than *most*. Never waits.

    Raises:
        OSError: *listening* itself is of no use (closed, not listening). What was accepted before is closed.
    """
    accepted: list[socket.socket] = []
    errors: list[OSError] = []
    for _ in range(most):
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return Burst(accepted, errors, 0.0)
        except OSError as error:
            verdict = after(error)
            if verdict == "raise":
                for connection in accepted:
                    connection.close()
                raise
            errors.append(error)
            if verdict == "pause":
                return Burst(accepted, errors, ACCEPT_PAUSE)
            continue
        connection.setblocking(False)
        accepted.append(connection)
    return Burst(accepted, errors, 0.0 if accepted else ACCEPT_PAUSE)
