"""What one look at a server shows, as plain values: the findings are made of nothing else.

The rule of this module: *what could not be seen is None, and no finding comes of it*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Process(NamedTuple):
    """A process of the server."""

    pid: int
    name: str
    open: int
    """Its descriptors in use."""
    most: int
    """How many it may have: its soft limit."""


class Connection(NamedTuple):
    """A connection that the server holds. Lengths of time are seconds."""

    local: str
    remote: str
    pid: int
    """Who holds it; 0: that could not be seen."""
    incoming: bool | None
    """Whether a client opened it; None: it is too busy to tell."""
    loopback: bool
    half_closed: bool
    """Whether the other side has closed, and the server has not (CLOSE_WAIT)."""
    silent: float
    """How long the other side has sent nothing."""
    quiet: float
    """How long neither side has sent anything."""
    received: int
    """Bytes from the other side so far."""
    acked: int
    """Bytes that the other side's kernel has acknowledged so far."""
    queued: int
    """Bytes that it has not."""
    unread: int
    """Bytes that the server has not read."""
    waits_for_us: bool
    """Whether the other side may be waiting for the server."""
    keeps_alive: bool | None
    """Whether SO_KEEPALIVE is set; None: that could not be seen, or was not asked for."""


class Door(NamedTuple):
    """A listening socket of the server."""

    address: str
    waiting: int
    """Connections that wait to be accepted."""
    room: int
    """How many may wait."""


@dataclass(frozen=True)
class Look:
    """The server at one instant."""

    at: float
    """Seconds, monotonic."""
    processes: tuple[Process, ...] = ()
    connections: Mapping[bytes, Connection] = field(default_factory=dict)
    """By what names each for as long as it lives."""
    doors: tuple[Door, ...] = ()
    half_open: int = 0
    """Handshakes that the client has not completed."""
    overflows: int = 0
    """Connections that this network namespace has dropped so far because a queue was full."""


@dataclass(frozen=True)
class Examination:
    """Two looks at a server, and what was asked about it."""

    target: str
    """The server as `reaper attach` names it: `--pid 812` or `--listen 127.0.0.1:80`."""
    first: Look
    last: Look
    idle: float
    """Silence that is too long, seconds."""
    proxy_trouble: str = ""
    """What `reaper check` says of the timeout of the proxy in front; empty: nothing."""
    config: str = ""
    """The file in which that is set."""
