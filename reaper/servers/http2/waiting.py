"""A stream, or another part of a connection, that may be idle by itself.

The rule of this module: *it ends once, and then nothing refers to it*. To the core it
is a lease; the policy says which timeout is in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...config.settings import ReaperConfig
from ...core.lease import Expiry, Lease
from ...driver.driver import Driver
from ...driver.watched import Probe, Reapable, release, with_one_more
from ...policy import IdlePolicy, Phase
from ...policy.min_rate import Sweep, hidden


class Carrier(NamedTuple):
    """What the streams of a connection need: the driver, the settings, the socket.

    It is no `Served`: a connection of uvicorn's is none, because its guard hears each
    byte, and one engine serves both. Five rooms make it of five things: a protocol, a
    transport, a stream of trio's, a thread's socket, a gunicorn connection.
    """

    driver: Driver
    config: ReaperConfig
    sweep: Sweep
    descriptor: Callable[[], int]
    """Returns the descriptor of the connection's socket; -1 once that is closed."""
    close: Callable[[], object]
    """Closes the connection. GOAWAY still goes out if the kernel has taken it."""


class Waiting(Reapable):
    """A stream, or anything else on a connection that waits for its client.

    Args:
        carrier: The connection.
        phase: What it waits for to begin with.
        name: Its name in the log.
        works: See `Connection.works`. Nothing is due while it says that the server
            works.
        end: Called with the reason when the time is over.
        given: Bytes that its client was sent before.
    Attributes:
        policy: Knows what it waits for; None once it has ended.
    """

    __slots__ = (
        "_carrier",
        "_deadlines",
        "_end",
        "_given",
        "_is_held",
        "_name",
        "_turn",
        "_works",
        "lease",
        "policy",
        "probe",
    )

    def __init__(
        self,
        carrier: Carrier,
        phase: Phase,
        name: Callable[[], str],
        works: Callable[[], int],
        end: Callable[[str], object],
        given: int = 0,
    ) -> None:
        self._carrier = carrier
        self._given = given
        self._name = name
        self._works = works
        self._end = end
        self._turn = 0  # what `works` said at the last check
        self._is_held = False  # whether it said so at the check before that, too
        self._deadlines: list[Lease] = []
        self.probe: Probe | None = None
        driver = carrier.driver
        self.lease: Lease = driver.register(self, None, reason=phase.value)
        self.policy: IdlePolicy | None = IdlePolicy(
            carrier.config, self, driver.now(), carrier.sweep, phase=phase, hides=self._hidden
        )

    # ---- what moves it
    def enter(self, phase: Phase) -> None:
        """Wait for *phase* from now on. Does nothing if that is so already, or it has
        ended.
        """
        if self.policy is not None:
            self.policy.enter(phase, self._carrier.driver.now())

    def moved(self, received: int = 0, sent: int = 0) -> None:
        """So many bytes came, or could be sent because the client made room for
        them.
        """
        if self.policy is not None:
            now = self._carrier.driver.now()
            self._given += sent
            self.policy.bytes_in(received, now)
            self.policy.bytes_out(sent, now)

    def _hidden(self) -> int:
        return hidden(self._given)

    # ---- what the policy drives
    def touch(self) -> None:
        """Note activity."""
        self.lease.touch()

    def suspend(self) -> bool:
        """Exempt it from being ended. True if it was not exempt before."""
        return self.lease.suspend()

    def resume(self) -> bool:
        """End the exemption, which counts as activity. True if it was exempt."""
        return self._carrier.driver.resume(self.lease)

    def retime(self, idle: float, reason: str | None = None) -> bool:
        """Put another timeout in force, in seconds; 0 switches it off."""
        return self._carrier.driver.retime(self.lease, idle, reason)

    def deadline(self, seconds: float, reason: str) -> Lease:
        """End it *seconds* from now, whatever bytes come, unless the lease is
        released.
        """
        made = self._carrier.driver.deadline(self, seconds, reason)
        self._deadlines = with_one_more(self._deadlines, made)
        return made

    # ---- what the driver asks
    @property
    def descriptor(self) -> int:
        """The descriptor of the connection: the bytes unread there may be what is
        waited for.
        """
        return self._carrier.descriptor()

    @property
    def stays_due(self) -> bool:
        """See the base class: the unread bytes may be PING, or of another stream. If
        the server has read nothing since the last check, the server is the slow one; do
        not charge the client.
        """
        return not self._is_held

    @property
    def link(self) -> int:
        """None (-1): the guard of the connection looks for peers that have vanished."""
        return -1

    @property
    def busy(self) -> bool:
        """Whether the server works on it."""
        return self.policy is not None and self.policy.phase is Phase.IN_FLIGHT

    def pardon(self, lease: Lease) -> bool:
        """Whether the server still processes what has come: that may be what is waited
        for.
        """
        turn = self._works()
        self._is_held = 0 < turn == self._turn
        self._turn = turn
        return turn != 0

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*. Does nothing if it has ended."""
        if self.policy is not None:
            self._carrier.driver.books.reaped(self.lease, self._name(), reason, expiry)
            end = self._end
            self.over()
            end(reason)

    def over(self) -> None:
        """It has ended. Release the lease, and part from the policy, so that no circle
        is left.
        """
        if self.policy is not None:
            self.policy.close()
            self.policy = None
            release(self._deadlines)
            self.end_lease()
