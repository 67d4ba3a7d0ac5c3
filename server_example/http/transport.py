"""One TCP connection below HTTP and TLS: it reports every byte to the policy, and how far the peer has got.

One rule: *progress is what the peer took, not what the kernel queued*. A send that returns has only filled a buffer of
up to some megabytes; a slow but living peer may need minutes for it, and is not idle meanwhile. So the kernel is asked
for the size of its queue: when a blocked send goes on, and by the sweep of the least rates.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar

import trio

from reaper.driver.sockets import TCP_NOTSENT_LOWAT, peer_has_shut, peer_name, queued, reset_on_close, waiting
from reaper.policy import IdlePolicy, Phase
from reaper.trio.streams import SocketStream
from reaper.trio.tls import TlsSession

RECEIVE_BYTES = 65536

QUEUED_BYTES = 65536
"""With more than this in the kernel's queue a response still counts as being written when the next request is waited
for. Less is on its way at once, and an acknowledgement that is only delayed must not look like a peer that is slow."""

UNSENT_BYTES = 131072
"""What the kernel may hold that is not even on its way. Without this limit a peer that takes nothing costs up to some
megabytes: a thousand of them had a gigabyte copied in vain, and the loop with it."""

AWAY_BYTES = 1 << 20
"""Read after the last answer, so that no reset overtakes it. Whoever goes on sending after that is reset all the same:
there is always something of it unread, so no timeout would end it."""

PARKABLE = frozenset({Phase.FIRST_BYTE, Phase.HEADERS, Phase.KEEP_ALIVE})
"""Phases in which nothing is known of a connection but what it has sent of its next request."""

_SENDING = frozenset({Phase.IN_FLIGHT, Phase.TUNNEL, Phase.HALF_CLOSED})  # phases that a blocked send interrupts


class Transport(SocketStream):
    """A connected socket as a trio stream. One task may receive while another sends.

    Attributes:
        socket: The socket; the reaper looks at it before a reap.
        peer: Its peer, as text.
        policy: Notes every byte.
        linger: Waits for the next request instead of `wait_readable`, and may give up by raising; None: nothing does.
        secure: Whether there is TLS on it.
    Args:
        fresh: Whether this is the first transport on that connection.
    """

    __slots__ = ("_interrupted", "_taken", "_then", "_waits", "linger", "policy", "socket")

    secure: ClassVar[bool] = False

    def __init__(self, connected: socket.socket, *, fresh: bool = True) -> None:
        super().__init__()
        if connected.gettimeout() != 0.0:
            connected.setblocking(False)
        if fresh:
            with suppress(OSError):  # it is no TCP
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.socket = connected
        self.policy: IdlePolicy | None = None
        self.linger: Callable[[int], Awaitable[None]] | None = None
        self._taken = 0  # bytes the peer had taken when it was last asked
        self._then: Phase | None = None
        self._interrupted: Phase | None = None
        self._waits = False  # whether a receive waits for bytes, and may not be parked

    def __repr__(self) -> str:
        return self.peer

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def peer(self) -> str:
        """Its peer, as text: asked for when somebody looks, for most requests are looked at by nobody."""
        return peer_name(self.fileno())

    @property
    def is_local(self) -> bool:
        """Whether the peer is on this machine."""
        try:
            address = self.socket.getpeername()
        except OSError:
            return False
        if not isinstance(address, tuple):
            return True  # a UNIX socket
        host = ipaddress.ip_address(address[0].partition("%")[0])
        return host.is_loopback or (host.version == 6 and host.ipv4_mapped is not None and host.ipv4_mapped.is_loopback)

    def heard(self, count: int) -> None:
        if self.policy is not None:
            self.policy.bytes_in(count, trio.current_time())

    async def until_readable(self) -> None:
        while True:
            policy = self.policy
            may_park = policy is not None and policy.phase in PARKABLE and policy.retired is None
            if self.linger is not None and may_park:
                await self.linger(self.fileno())
                return
            self._waits = True
            try:
                await super().until_readable()
                return
            except trio.ClosedResourceError:
                if self._waits or self.fileno() < 0:
                    raise
            finally:
                self._waits = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the kernel. While the peer leaves no room for it, the connection is in the phase WRITE."""
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
        """Shut our side, then read what still comes until the end of file, `AWAY_BYTES` of it at the most.

        Closing with bytes unread makes the kernel send a reset, and a reset may overtake the last answer (RFC 9112
        section 9.6).
        """
        self.shut_down()
        until = self.received + AWAY_BYTES
        while self.received < until and await self.receive_some():
            pass

    def close(self) -> None:
        """Close at once; any number of times."""
        if self.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def abort(self) -> None:
        """Close at once by reset, and let the kernel forget what is queued.

        For a peer that does not take its response: after an ordinary close the kernel would go on offering it for
        minutes, and a peer that reads a byte now and then would keep the memory for ever (nginx has
        reset_timedout_connection for that).
        """
        reset_on_close(self.socket)
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
            elif policy.phase is Phase.WRITE and peer_has_shut(self.socket):
                policy.enter(Phase.HALF_CLOSED, trio.current_time())
        return max(count, 0)

    def wait_for(self, phase: Phase, policy: IdlePolicy) -> None:
        """The response is out of our hands: enter *phase*, or first WRITE while the peer has much of it to take yet."""
        much = self.queued() > self._enough(phase)
        self._then = phase if much else None
        policy.enter(Phase.WRITE if much else phase, trio.current_time())

    @staticmethod
    def _enough(phase: Phase) -> int:
        """How little must be queued for a response to be out of our hands. Before the end: all of it."""
        return QUEUED_BYTES if phase is Phase.KEEP_ALIVE else 0

    def _enter_next(self, policy: IdlePolicy) -> None:
        phase, self._then = self._then, None
        if phase is not None and policy.phase is Phase.WRITE:
            policy.enter(phase, trio.current_time())
            if phase is Phase.KEEP_ALIVE and self.linger is not None and self._waits:
                self._waits = False
                trio.lowlevel.notify_closing(self.socket)  # the receive begins to wait anew: now it may be parked


class TlsTransport(Transport):
    """The same with TLS on it: it receives and sends what is inside, and a part of a record is activity, too.

    Args:
        session: On the descriptor of *connected*, and detached from it.
    """

    __slots__ = ("_ahead", "_session")

    secure = True

    def __init__(self, connected: socket.socket, session: TlsSession, *, fresh: bool = True) -> None:
        super().__init__(connected, fresh=fresh)
        self._session = session
        self._ahead = 0  # bytes that have been heard of, and are part of a record that is not whole

    async def shake_hands(self) -> None:
        """The handshake; nothing if it is over.

        Raises:
            trio.BrokenResourceError: it failed, or the connection is lost.
        """
        session = self._session
        try:
            while not (session.established or session.shake_hands()):
                await (self.until_writable() if session.wants_other else self.until_readable())
        except OSError as error:
            self.hung_up = isinstance(error, ConnectionError)
            raise trio.BrokenResourceError(f"shaking hands with {self!r}: {error}") from error

    def heard(self, count: int) -> None:
        count, self._ahead = max(1, count - self._ahead), 0
        super().heard(count)

    def read_now(self, most: int) -> bytes:
        fd = self._open()
        if self.shut:
            return os.read(fd, most)  # whatever still comes, nothing will be made of it
        part = waiting(fd)
        try:
            return self._session.read(most)
        except BlockingIOError:
            if part:
                super().heard(part)
                self._ahead += part
            raise

    def write_now(self, data: memoryview) -> int:
        self._open()
        return self._session.write(data)

    async def until_readable(self) -> None:
        if self._session.wants_other:
            await trio.lowlevel.wait_writable(self.fileno())
        else:
            await super().until_readable()

    async def until_writable(self) -> None:
        if self._session.wants_other:
            await trio.lowlevel.wait_readable(self.fileno())
        else:
            await super().until_writable()


HANGUPS_PER_PASS = 256

_GONE = select.EPOLLHUP | select.EPOLLERR

Heard = Callable[[bool], object]
"""Called with whether the connection is gone (True), or the peer has only said that it will send no more (False)."""


class Hangups:
    """Who is to be called when which descriptor's peer hangs up: one epoll for all connections that have a task.

    A task that computes an answer reads nothing, and so learns neither of an end of file nor of a reset; without this a
    client that went long ago would hold its descriptor, its task and its place until the answer is ready. It costs a
    connection two system calls, however many requests it makes.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._heard: dict[int, Heard] = {}

    def watch(self, fd: int, heard: Heard) -> None:
        """Call *heard* once with False when the peer shuts its side, and once with True when the connection is gone."""
        self._heard[fd] = heard
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, fd: int) -> None:
        """Nothing if it is not watched. Before the descriptor is closed, or is another's to watch."""
        if self._heard.pop(fd, None) is not None:
            with suppress(OSError, ValueError):  # the connection, or all of this, is closed
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Call until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, events in self._epoll.poll(0, HANGUPS_PER_PASS):
                    heard = self._heard.get(fd)
                    if heard is None:
                        continue
                    gone = bool(events & _GONE)
                    if not gone:
                        self._epoll.modify(fd, select.EPOLLONESHOT)  # what remains to be heard is that it is gone
                    heard(gone)
        finally:
            self._epoll.close()
