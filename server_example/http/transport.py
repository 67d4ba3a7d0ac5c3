"""One TCP connection below HTTP and TLS: it tells the policy of every byte, and how far the peer has got.

One rule: *progress is what the peer took, not what the kernel queued*. A send that returns has only filled a buffer of
up to some megabytes; a slow but living peer may need minutes for it, and is not idle meanwhile. So the size of the
kernel's queue is asked for: when a blocked send goes on, and by the sweep of the least rates.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Awaitable, Callable

import trio

from reaper.policy import IdlePolicy, Phase

RECEIVE_BYTES = 65536

QUEUED_BYTES = 65536
"""With more than this in the kernel's queue a response still counts as being written when the next request is waited
for. Less is on its way at once, and an acknowledgement that is only delayed must not look like a peer that is slow."""

UNSENT_BYTES = 131072
"""What the kernel may hold that is not even on its way. Without this limit a peer that takes nothing costs up to some
megabytes: a thousand of them had a gigabyte copied in vain, and the loop with it."""

TCP_NOTSENT_LOWAT = 25  # linux/tcp.h; the socket module of CPython 3.11 does not name it
_CLOSE_WAIT = 8  # tcp_info.tcpi_state: the peer has shut its sending side
_SENDING = frozenset({Phase.IN_FLIGHT, Phase.TUNNEL, Phase.HALF_CLOSED})  # phases that a blocked send interrupts


class Transport(trio.abc.HalfCloseableStream):
    """A connected socket as a trio stream. One task may receive while another sends.

    Receiving and sending raise `trio.BrokenResourceError` when the connection is lost.

    Attributes:
        socket: The socket; the reaper looks at it before a reap.
        peer: Its peer, as text.
        policy: Is told of every byte.
        linger: Waits for the next request instead of `wait_readable`, and may give up by raising; None: nothing does.
        received, sent: Bytes so far.
        hung_up: Whether the peer ended the connection, before we did.
    """

    def __init__(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.socket = connected
        self.peer = peer
        self.policy: IdlePolicy | None = None
        self.linger: Callable[[int], Awaitable[None]] | None = None
        self.received = 0
        self.sent = 0
        self.hung_up = False
        self._shut = False
        self._taken = 0  # bytes the peer had taken when it was last asked
        self._then: Phase | None = None
        self._streak = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes as they come, at most 64 KiB at once; empty at the end of file."""
        if self._streak:
            await trio.lowlevel.checkpoint()  # whoever always has data ready must not have the loop for itself
        self._streak = True
        while True:
            try:
                data = self.socket.recv(RECEIVE_BYTES if max_bytes is None else max_bytes)
                break
            except BlockingIOError:
                self._streak = False
                if self.linger is not None and self._may_park():
                    await self.linger(self.socket.fileno())
                else:
                    await trio.lowlevel.wait_readable(self.socket)
            except OSError as error:
                self.hung_up = not self._shut
                raise trio.BrokenResourceError(f"receiving from {self.peer}: {error}") from error
        if not data:
            self.hung_up = not self._shut
        self.received += len(data)
        if self.policy is not None:
            self.policy.bytes_in(len(data), trio.current_time())
        return data

    def _may_park(self) -> bool:
        policy = self.policy
        return policy is not None and policy.phase is Phase.KEEP_ALIVE and policy.retired is None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the kernel. While the peer leaves no room for it, the connection is in the phase WRITE."""
        self._then = None
        left = memoryview(data)
        interrupted: Phase | None = None
        blocked = False
        try:
            while left:
                try:
                    count = self.socket.send(left)
                except BlockingIOError:
                    blocked = True
                    if interrupted is None and self.policy is not None and self.policy.phase in _SENDING:
                        interrupted = self.policy.phase
                        self.progress()
                        self.policy.enter(Phase.WRITE, trio.current_time())
                    await trio.lowlevel.wait_writable(self.socket)
                    if self.policy is not None:
                        self.policy.bytes_out(self.progress(), trio.current_time())
                    continue
                self.sent += count
                left = left[count:]
        except OSError as error:
            self.hung_up = not self._shut
            raise trio.BrokenResourceError(f"sending to {self.peer}: {error}") from error
        finally:
            if interrupted is not None and self.policy is not None:
                self.policy.enter(interrupted, trio.current_time())
        if not blocked:
            await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Nothing is queued here, so there is nothing to wait for."""
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Shut our sending side."""
        self.shut()
        await trio.lowlevel.checkpoint()

    def shut(self) -> None:
        """Shut our sending side: what is queued goes out, then the end of file."""
        self._shut = self._shut or not self.hung_up
        with contextlib.suppress(OSError):  # the connection is gone already: there is nobody left to tell
            self.socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close at once. What is queued still goes out, unless unread bytes are waiting: then the kernel resets."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once; any number of times."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def abort(self) -> None:
        """Close at once by reset, and let the kernel forget what is queued.

        For a peer that does not take its response: after an ordinary close the kernel would go on offering it for
        minutes, and a peer that reads a byte now and then would keep the memory for ever (nginx has
        reset_timedout_connection for that).
        """
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def queued(self) -> int:
        """Bytes that the peer has not acknowledged."""
        try:
            return int.from_bytes(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except (OSError, ValueError):
            return 0

    def progress(self) -> int:
        """How many bytes the peer has taken since it was last asked."""
        queued = self.queued()
        taken = self.sent - queued
        count, self._taken = taken - self._taken, taken
        policy = self.policy
        if policy is not None:
            if self._then is not None:
                if queued <= self._enough(self._then):
                    self._enter_next(policy)
            elif policy.phase is Phase.WRITE and self._peer_has_shut():
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

    def _peer_has_shut(self) -> bool:
        try:
            return self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT
        except OSError:
            return False
