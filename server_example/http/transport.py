"""One TCP connection below HTTP and TLS: it tells the policy of every byte that comes,
and of every byte that the peer has taken.

One rule: *progress is what the peer took, not what the kernel queued*. A send that
returns has only filled a buffer of up to some megabytes; a slow but living peer may
need minutes for it, and is not idle meanwhile. So the kernel is asked for the size of
its queue: when a blocked send goes on, and by the sweep of the least rates.
"""

from __future__ import annotations

import ipaddress
import os
from typing import ClassVar

import trio

from reaper import Lease
from reaper.driver.sockets import (
    borrowed,
    peer_has_shut,
    queued,
    reset_on_close,
    tcp_info_of,
    waiting,
)
from reaper.policy import IdlePolicy, Phase
from reaper.trio.parked_streams import ParkableStream, TlsStream

RECEIVE_BYTES = 65536

QUEUED_BYTES = 65536
"""With more than this in the kernel's queue a response still counts as being written
when the next request is waited for. Less is on its way at once, and an acknowledgement
that is only delayed must not look like a peer that is slow.
"""

AWAY_BYTES = 1 << 20
"""Bytes to read after the last answer, so that no reset overtakes it. A client that
sends more is reset all the same. No timeout would end it, because there would always be
something of it unread.
"""

PARKABLE = frozenset({Phase.HEADERS, Phase.KEEP_ALIVE})
"""Phases in which nothing is known of a connection but what it has sent of its next
request.
"""

_SENDING = frozenset({Phase.IN_FLIGHT, Phase.TUNNEL, Phase.HALF_CLOSED})
"""Phases that a blocked send interrupts."""


class Transport(ParkableStream):
    """A connection of the HTTP server's parking lot while it has a task.

    It is also the watch that the policy drives. One task may receive while another
    sends.

    Attributes:
        policy: Is told of every byte; None: the connection has ended for the reaper and
            the journal.
        secure: Whether there is TLS on it.
    """

    __slots__ = ("_deadlines", "_interrupted", "_taken", "_then", "_waits", "policy")

    secure: ClassVar[bool] = False

    def begin(self, ended: bool) -> None:
        """Get ready: a task is about to serve what has come."""
        super().begin(ended)
        self.policy: IdlePolicy | None = None
        self._deadlines: list[Lease] | None = None
        self._taken = self.sent  # bytes the peer had taken when it was last asked
        self._then: Phase | None = None
        self._interrupted: Phase | None = None
        self._waits = False  # whether a receive waits for bytes, and may not be parked

    def end(self) -> None:
        """The task is over: let go of all that belongs to it.

        The transport itself stays with a silent connection that has TLS.
        """
        self.policy = None
        del self.scope
        for deadline in self._deadlines or ():
            deadline.release()
        self._deadlines = None

    def deadline(self, seconds: float, reason: str) -> Lease:
        """End the connection *seconds* from now for *reason*, whatever bytes come.

        Release the lease that is returned to call it off.
        """
        lease = self.parked.lot.driver.deadline(self.parked, seconds, reason)
        self._deadlines = [*(self._deadlines or ()), lease]
        return lease

    @property
    def established(self) -> bool:
        """Whether the TLS handshake is over; always True without TLS."""
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
        """Hand *data* to the kernel. The phase is WRITE while the peer leaves no room
        for it.
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
        """Shut our side, then read until the end of file, at most `AWAY_BYTES`.

        If bytes are unread at the close, the kernel sends a reset, which may overtake
        the last answer (RFC 9112, 9.6).
        """
        self.shut_down()
        until = self.received + AWAY_BYTES
        while self.received < until and await self.receive_some():
            pass

    def abort(self) -> None:
        """Close at once by reset, and let the kernel forget what is queued.

        This is for a peer that does not take its response. After an ordinary close the
        kernel would go on offering it for minutes, and a peer that reads a byte now and
        then would hold the memory for ever (nginx has reset_timedout_connection for
        that).
        """
        fd = self.fileno()
        if fd >= 0:
            with borrowed(fd) as connected:
                reset_on_close(connected)
            self.close()

    def queued(self) -> int:
        """How many bytes the peer has not acknowledged."""
        return queued(self.fileno())

    def hidden(self) -> int:
        """How many bytes the peer may have read without our seeing it."""
        fd = self.fileno()
        info = tcp_info_of(fd) if fd >= 0 else None
        return 0 if info is None else info.hidden

    def progress(self) -> int:
        """Ask how far the peer has got, and enter the phase that follows from it.

        Returns how many bytes it has taken since this was last asked, never less
        than 0.
        """
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
        """The response is handed to the kernel: enter *phase*.

        While the peer has much of the response still to take, the phase is WRITE, and
        then *phase*.
        """
        much = self.queued() > self._enough(phase)
        self._then = phase if much else None
        policy.enter(Phase.WRITE if much else phase, trio.current_time())

    @staticmethod
    def _enough(phase: Phase) -> int:
        """How many bytes may be queued when *phase* begins. Before the last close:
        none.
        """
        return QUEUED_BYTES if phase is Phase.KEEP_ALIVE else 0

    def _enter_next(self, policy: IdlePolicy) -> None:
        phase, self._then = self._then, None
        if phase is not None and policy.phase is Phase.WRITE:
            policy.enter(phase, trio.current_time())
            if phase is Phase.KEEP_ALIVE and self._waits:
                self._waits = False
                # Wake the receive: it begins to wait anew, and now it may be parked.
                trio.lowlevel.notify_closing(self.fileno())


class TlsTransport(Transport, TlsStream):
    """A `Transport` with TLS: it hands out plain bytes, and a part of a record is
    activity.
    """

    __slots__ = ("_ahead",)

    secure = True

    @property
    def established(self) -> bool:
        return self.session.established

    def begin(self, ended: bool) -> None:
        super().begin(ended)
        self._ahead = 0  # bytes of a record that is not whole yet, which the policy was told of

    def heard(self, count: int) -> None:
        count, self._ahead = max(1, count - self._ahead), 0
        super().heard(count)

    def read_now(self, most: int) -> bytes:
        fd = self._open()
        if self.shut:
            return os.read(fd, most)  # what still comes is thrown away, so it need not be decrypted
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
