"""One connection of a parking lot: what remains of it while it is silent, and its streams while a handler runs.

The rule of this module: *what is kept of a silent connection is what its next byte needs*: a descriptor and a lease,
and with TLS its session.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import trio

from ..core.lease import Expiry
from ..driver.driver import Driver
from ..driver.sockets import peer_name
from ..driver.watched import Reapable
from .linger import Lingering
from .streams import SocketStream


class Lot(Protocol):
    """What a connection needs of its parking lot."""

    driver: Driver
    lingering: Lingering

    def reap(self, parked: Any, reason: str, expiry: Expiry | None = None) -> None:
        """End *parked*."""

    def close(self, parked: Any) -> None:
        """Close its descriptor."""


class Resting(Reapable):
    """What is left of a connection while it has no task, and the reaper's uid for it.

    Attributes:
        fd: Its descriptor; -1 while it is not parked.
        lease: The lease in force, or the last that was.
    """

    __slots__ = ("fd", "lease")

    probe: ClassVar[None] = None  # type: ignore[misc]
    lot: ClassVar[Lot]
    stream: ParkableStream | None = None
    transport: ParkableStream | None = None

    def __init__(self, fd: int = -1) -> None:
        self.fd: int = fd

    @property
    def descriptor(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self.fd

    @property
    def busy(self) -> bool:
        """Whether a handler runs."""
        return self.transport is not None

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*; nothing if it has ended."""
        self.lot.reap(self, reason, expiry)

    @property
    def peer(self) -> str:
        """The peer's address as text; empty if the connection is gone."""
        return peer_name(self.fd)

    def __repr__(self) -> str:
        return f"fd {self.fd}"


class Parked(Resting):
    """One connection of a parking lot.

    Attributes:
        fd: Its descriptor; -1 once it is closed.
        lease: The lease in force.
        stream: What its handler was given; None while it is parked, unless TLS keeps it.
        transport: The stream on its descriptor, while a handler runs, or None.
    """

    __slots__ = ("stream", "transport")

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.stream: ParkableStream | None = None
        self.transport: ParkableStream | None = None


class ParkableStream(SocketStream):
    """A connection of a parking lot while its handler runs: a stream, and the handler's way to the reaper.

    Every receive touches the connection by itself. A receive that would have to wait raises `Silent`.

    Attributes:
        parked: What remains of it when the handler is gone.
        reaped: Whether the reaper ended the handler.
        reason: Why, or None.
        disturbed, silenced: As in `Lingerer`.
        ended: Whether the peer had sent its end of file when the handler was started.
        may_park: Whether a receive may park it. Switch it off where the handler is in the middle of something.
    """

    __slots__ = ("_drained", "disturbed", "ended", "may_park", "parked", "reaped", "reason", "scope", "silenced")

    scope: trio.CancelScope
    reaped: bool
    reason: str | None
    disturbed: bool
    silenced: bool
    ended: bool

    def __init__(self, parked: Parked) -> None:
        super().__init__(fresh=True)
        self.parked: Parked = parked
        self.may_park: bool = True

    def begin(self) -> None:
        """A handler is about to run, in a `scope` to be set."""
        self.reaped = False
        self.reason = None
        self.disturbed = False
        self.silenced = False
        self.ended = False
        self._drained = False
        self._fresh = self._prompt = True

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self.parked.fd

    def read_now(self, most: int) -> bytes:
        """As in `SocketStream`."""
        # A read that was given less than it asked for has taken all there was. The next one need not find that out: an
        # epoll tells of what came since. Not so once the end of file is there.
        fd = self.parked.fd
        if self._drained and fd >= 0:
            self._drained = False
            raise BlockingIOError
        data = os.read(fd, most)
        self._drained = 0 < len(data) < most and not self.ended
        return data

    def heard(self, count: int) -> None:
        """Note activity."""
        self.parked.lease.touch()

    def touch(self) -> None:
        """Note activity other than received bytes."""
        self.parked.lease.touch()

    def until_readable(self) -> Awaitable[None]:
        """Wait for bytes, or raise `Silent`."""
        if self.may_park:
            return self.parked.lot.lingering.wait(self)
        return trio.lowlevel.wait_readable(self.parked.fd)

    def close(self) -> None:
        """Close at once; any number of times."""
        self.parked.lot.close(self.parked)

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout in force, counted from the last activity; 0 switches it off. False if it was reaped."""
        driver = self.parked.lot.driver
        retimed = self.parked.lease.retime(driver.in_force(idle), driver.now(), reason)
        driver.poke()
        return retimed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Exempt the connection from reaping and parking for the length of the block. Its end counts as activity."""
        could_park, self.may_park = self.may_park, False
        suspended = self.parked.lease.suspend()
        try:
            yield
        finally:
            self.may_park = could_park
            if suspended:
                driver = self.parked.lot.driver
                self.parked.lease.resume(driver.now())
                driver.poke()

    def __repr__(self) -> str:
        return f"<ParkableStream {self.parked!r}>"
