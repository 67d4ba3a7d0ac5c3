"""One TCP connection below HTTP and TLS: it reports every byte to the policy, and how far the peer
has got.

One rule: *progress is what the peer took, not what the kernel queued*. A send that returns has only
filled a buffer of up to some megabytes; a slow but living peer may need minutes for it, and is not
idle meanwhile. So the kernel is asked for the size of its queue: when a blocked send goes on, and
by the sweep of the least rates.
"""

from __future__ import annotations

import ipaddress
import os
from typing import ClassVar

import trio

from reaper import Lease
from reaper.driver.sockets import borrowed, peer_has_shut, queued, reset_on_close, waiting
from reaper.policy import IdlePolicy, Phase
from reaper.trio.parking import ParkableStream, TlsStream

RECEIVE_BYTES = 65536

QUEUED_BYTES = 65536
"""With more than this in the kernel's queue a response still counts as being written when the next
request is waited for. Less is on its way at once, and an acknowledgement that is only delayed must
not look like a peer that is slow."""

AWAY_BYTES = 1 << 20
"""Read after the last answer, so that no reset overtakes it. Whoever goes on sending after that is
reset all the same: there is always something of it unread, so no timeout would end it."""

PARKABLE = frozenset({Phase.HEADERS, Phase.KEEP_ALIVE})
"""Phases in which nothing is known of a connection but what it has sent of its next request."""

_SENDING = frozenset(
    {Phase.IN_FLIGHT, Phase.TUNNEL, Phase.HALF_CLOSED}
)  # phases that a blocked send interrupts


class Transport(ParkableStream):
    """A connection of the parking lot of the HTTP server while it has a task: every byte is told to
    the policy.

    It is also the watch that the policy drives. One task may receive while another sends.

    Attributes:
        policy: Notes every byte; None: nothing does any more.
        secure: Whether there is TLS on it.
    """

    __slots__ = ("_deadlines", "_interrupted", "_taken", "_then", "_waits", "policy")

    secure: ClassVar[bool] = False

    def begin(self, ended: bool) -> None:
        """A task is about to serve what has come."""
        super().begin(ended)
        self.policy: IdlePolicy | None = None
        self._deadlines: list[Lease] | None = None
        self._taken = self.sent  # bytes the peer had taken when it was last asked
        self._then: Phase | None = None
        self._interrupted: Phase | None = None
        self._waits = False  # whether a receive waits for bytes, and may not be parked

    def end(self) -> None:
        """The task is over. What is kept of a silent connection with TLS holds nothing of it."""
        self.policy = None
        del self.scope
        for deadline in self._deadlines or ():
            deadline.release()
        self._deadlines = None

    def deadline(self, seconds: float, reason: str) -> Lease:
        """End the connection *seconds* from now for *reason*, whatever bytes come, unless it is
        released.
        """
        lease = self.parked.lot.driver.deadline(self.parked, seconds, reason)
        self._deadlines = [*(self._deadlines or ()), lease]
        return lease

    @property
    def established(self) -> bool:
        """Whether any handshake is over."""
        return True

    @property
    def is_local(self) -> bool:
        """Whether the peer is on this machine."""
        try:
            with borrowed(self.fileno()) as connected:
                address = connected.getpeername()
        except OSError:
            return False
        if not isinstance(address, tuple):
            return True  # a UNIX socket
        host = ipaddress.ip_address(address[0].partition("%")[0])
        return host.is_loopback or (
            host.version == 6 and host.ipv4_mapped is not None and host.ipv4_mapped.is_loopback
        )

    def heard(self, count: int) -> None:
        if self.policy is not None:
            self.policy.bytes_in(count, trio.current_time())

    async def until_readable(self) -> None:
        while True:
            policy = self.policy
            if policy is not None and policy.phase in PARKABLE and policy.retired is None:
                await self.parked.lot.lingering.wait(self)
                return
            self._waits = True
            try:
                await trio.lowlevel.wait_readable(self.fileno())
                return
            except trio.ClosedResourceError:
                if self._waits or self.fileno() < 0:
                    raise
            finally:
                self._waits = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the kernel. While the peer leaves no room for it, the connection is in the
        phase WRITE.
        """
        self._then = None
        try:
            await super().send_all(data)
        finally:
            interrupted, self._interrupted = self._interrupted, None
            if interrupted is not None and self.policy is not None:
                self.policy.enter(interrupted, trio.current_time())

    async def until_writable(self) -> None:
        policy = self.policy
        if policy is not None and self._interrupted is None and policy.phase in _SENDING:
            self._interrupted = policy.phase
            self.progress()
            policy.enter(Phase.WRITE, trio.current_time())
        await super().until_writable()
        if self.policy is not None:
            self.policy.bytes_out(self.progress(), trio.current_time())

    async def read_away(self) -> None:
        """Shut our side, then read what still comes until the end of file, `AWAY_BYTES` of it at
        the most.

        Closing with bytes unread makes the kernel send a reset, which may overtake the last answer
        (RFC 9112, 9.6).
        """
        self.shut_down()
        until = self.received + AWAY_BYTES
        while self.received < until and await self.receive_some():
            pass

    def abort(self) -> None:
        """Close at once by reset, and let the kernel forget what is queued.

        For a peer that does not take its response: after an ordinary close the kernel would go on
        offering it for minutes, and a peer that reads a byte now and then would keep the memory for
        ever (nginx has reset_timedout_connection for that).
        """
        fd = self.fileno()
        if fd >= 0:
            with borrowed(fd) as connected:
                reset_on_close(connected)
            self.close()

    def queued(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return queued(self.fileno())

    def progress(self) -> int:
        """How many bytes the peer has taken since it was last asked."""
        unsent = self.queued()
        taken = self.sent - unsent
        count, self._taken = taken - self._taken, taken
        policy = self.policy
        if policy is not None:
            if self._then is not None:
                if unsent <= self._enough(self._then):
                    self._enter_next(policy)
            elif policy.phase is Phase.WRITE and self._peer_has_shut():
                policy.enter(Phase.HALF_CLOSED, trio.current_time())
        return max(count, 0)

    def _peer_has_shut(self) -> bool:
        fd = self.fileno()
        if fd < 0:
            return False
        with borrowed(fd) as connected:
            return peer_has_shut(connected)

    def wait_for(self, phase: Phase, policy: IdlePolicy) -> None:
        """The response is out of our hands: enter *phase*, or first WRITE while the peer has much
        of it to take yet.
        """
        much = self.queued() > self._enough(phase)
        self._then = phase if much else None
        policy.enter(Phase.WRITE if much else phase, trio.current_time())

    @staticmethod
    def _enough(phase: Phase) -> int:
        """How little must be queued for a response to be out of our hands. Before the end: all of
        it.
        """
        return QUEUED_BYTES if phase is Phase.KEEP_ALIVE else 0

    def _enter_next(self, policy: IdlePolicy) -> None:
        phase, self._then = self._then, None
        if phase is not None and policy.phase is Phase.WRITE:
            policy.enter(phase, trio.current_time())
            if phase is Phase.KEEP_ALIVE and self._waits:
                self._waits = False
                trio.lowlevel.notify_closing(
                    self.fileno()
                )  # the receive begins to wait anew: now it may be parked


class TlsTransport(Transport, TlsStream):
    """The same with TLS on it: it receives and sends what is inside, and a part of a record is
    activity, too.
    """

    __slots__ = ("_ahead",)

    secure = True

    @property
    def established(self) -> bool:
        return self.session.established

    def begin(self, ended: bool) -> None:
        super().begin(ended)
        self._ahead = 0  # bytes that have been heard of, and are part of a record that is not whole

    def heard(self, count: int) -> None:
        count, self._ahead = max(1, count - self._ahead), 0
        super().heard(count)

    def read_now(self, most: int) -> bytes:
        fd = self._open()
        if self.shut:
            return os.read(fd, most)  # whatever still comes, nothing will be made of it
        part = waiting(fd)
        try:
            return self.session.read(most)
        except BlockingIOError:
            if part:
                super().heard(part)
                self._ahead += part
            raise

    async def until_readable(self) -> None:
        if self.session.wants_other:
            await trio.lowlevel.wait_writable(self.fileno())
        else:
            await super().until_readable()

    async def until_writable(self) -> None:
        if self.session.wants_other:
            await trio.lowlevel.wait_readable(self.fileno())
        else:
            await super().until_writable()
