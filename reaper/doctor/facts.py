"""What one look at a server shows, as plain values: the findings are made of nothing
else.

The rule of this module: *what could not be seen is None, and no finding comes of it*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Process(NamedTuple):
    """A process of the server."""

    pid: int
    name: str
    open: int | None
    """Its descriptors in use; None: they may not be seen."""
    most: int
    """How many it may have: its soft limit."""
    hard: int = 0
    """How many it may ask for, or anybody for it: its hard limit."""
    sockets: int = 0
    """How many of the descriptors are sockets."""
    files: int = 0
    """How many of them are files or devices; the others are pipes, timers and the
    like.
    """
    command: tuple[str, ...] = ()
    """By what it was started; empty: that may not be seen."""


class Connection(NamedTuple):
    """A connection that the server holds. Lengths of time are seconds."""

    local: str
    remote: str
    pid: int
    """Who holds it; 0: that could not be seen."""
    inode: int
    """The kernel's number for its socket."""
    incoming: bool | None
    """Whether a client opened it; None if it is too busy to tell."""
    loopback: bool
    """Whether the other side is on this machine."""
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
    """Whether SO_KEEPALIVE is set; None: that could not be seen, or was not asked
    for.
    """


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
    overflows: int = 0
    """Connections that this network namespace has dropped so far because a queue was
    full.
    """


@dataclass(frozen=True)
class Glances:
    """What was seen again and again between the two looks, because it comes and
    goes.
    """

    doors: tuple[Door, ...] = ()
    """Each listening socket when its queue was fullest."""
    handshakes: Mapping[str, float] = field(default_factory=dict)
    """The handshakes that a client has not completed, by its address: for how long that
    was seen, seconds.
    """
    somebody: float | None = None
    """The latest instant at which anybody was connected, or waited for that; None: at
    no glance.
    """


@dataclass(frozen=True)
class Guards:
    """What of reaper stands around the server, as far as that shows from outside."""

    watcher: int | None = None
    """The watcher of a `reaper run` around it that is alive; 0: there is none."""
    ended: int = 0
    """The watcher that one of its processes names and that has ended; 0: none."""
    inside: bool | None = None
    """Whether REAPER_RUN is in the environment of a process of it, so that a Python
    server guards itself.
    """
    closing: tuple[int, ...] = ()
    """The processes of `reaper attach --close` that look at it."""
    looking: tuple[int, ...] = ()
    """Those without `--close`."""

    @property
    def run(self) -> str | None:
        """What `reaper run` does: "watches"; "ended", its watcher has; "inside", it has
        none; "no", it is not around the server. None: that cannot be seen.
        """
        if self.watcher:
            return "watches"
        if self.ended:
            return "ended"
        if self.inside:
            return None if self.watcher is None else "inside"
        return "no" if self.inside is False else None

    def record(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        found = [(pid, True) for pid in self.closing] + [(pid, False) for pid in self.looking]
        return {
            "run": self.run,
            "watcher": self.watcher or self.ended or None,
            "attach": [{"pid": pid, "closes": closes} for pid, closes in sorted(found)],
        }


@dataclass(frozen=True)
class Examination:
    """Two looks at a server, and what was asked about it."""

    target: str
    """The server as `reaper attach` names it: `--pid 812` or `--listen
    127.0.0.1:80`.
    """
    first: Look
    last: Look
    idle: float
    """Silence that is too long, seconds."""
    glances: Glances = Glances()
    proxy: tuple[str, str] | None = None
    """What is wrong with the keep-alive timeout for the proxy in front, and the command
    that mends it; None: nothing.
    """
    ends: bool = False
    """Whether the server ends with the examination: no command can reach its process
    then.
    """
    within: int = 0
    """The process whose network namespace is meant, if that is not ours; 0: ours."""
    guards: Guards = Guards()

    @property
    def seconds(self) -> float:
        """How far the looks are apart."""
        return self.last.at - self.first.at

    @property
    def deserted(self) -> float | None:
        """Seconds for which nobody has been connected: as long as the looking if nobody
        ever was, and then it may be longer. None: somebody is.
        """
        if _clients(self.last):
            return None
        latest = [self.first.at] if _clients(self.first) else []
        if self.glances.somebody is not None:
            latest.append(self.glances.somebody)
        return self.last.at - max(latest, default=self.first.at)

    @property
    def ever_visited(self) -> bool:
        """Whether anybody was connected at any look or glance."""
        return self.glances.somebody is not None or _clients(self.first) or _clients(self.last)


def _clients(seen: Look) -> bool:
    """Whether a client was connected. One that is too busy to tell is taken for one."""
    return any(one.incoming is not False for one in seen.connections.values())
