"""The parking lot of the HTTP server: connections that wait for a first byte, a
handshake, the rest of a head, or a next request.

One rule: *a task is made for a whole request head, not for a client*. A client that has
connected, and one that has sent half a head, cost a descriptor, a lease and the bytes
they sent. The same limits end them as if they had a task.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from reaper.core.lease import Lease
from reaper.driver.sockets import TCP_NOTSENT_LOWAT
from reaper.policy import ANSWERS, IDLE_PHASES, INSTANT, Phase, reasons
from reaper.trio.parking import PARKED, READABLE, WRITABLE, Parked, ParkingLot

from .connection import HttpConnection, HttpError, last_words, useful_of
from .shared import Shared
from .transport import TlsTransport, Transport

HEAD_BYTES = 16384
"""How much is read at once while a connection has no task. Its task reads what is left
of a longer head, and the body.
"""

FIRST_OF_A_LINE = 0x21
"""The least first byte of a request. Bytes that begin with less are no request and
never will be one: they get a task at once, in which h11 refuses them.
"""

UNSENT_BYTES = 131072
"""Bytes of a response that the kernel may hold before they are even on their way.
Without this limit a peer that takes nothing costs up to some megabytes: for a thousand
of them a gigabyte was copied in vain, and the loop stood still for as long.
"""

WAITS = (Phase.HANDSHAKE, Phase.FIRST_BYTE, Phase.HEADERS, Phase.KEEP_ALIVE)
"""What a connection without a task waits for. No byte starts these limits again."""

_END = re.compile(rb"\n\r?\n")
"""The end of a head, as h11 sees it."""


class Kept(Parked):
    """One connection from its accept to its end, with a task or without.

    Attributes:
        opened: When it was accepted, in seconds on trio's clock.
        requests: How many requests had come when it was parked.
        head: The bytes of the next request so far. They begin with an empty line only
            if there were too many of them.
        blank: How many bytes of empty lines have come before the next request.
        age: The lease of its age limit, over or not; None if it has none.
        connection: The connection while it has a task; None while it is parked.
    """

    __slots__ = ("age", "blank", "connection", "head", "opened", "requests")

    stream: Any

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.opened = trio.current_time()
        self.age: Lease | None = None
        self.requests = self.blank = 0
        self.head = b""
        self.connection: HttpConnection | None = None

    @property
    def busy(self) -> bool:
        """Whether anything has been asked for."""
        connection = self.connection
        return self.state is not PARKED and (
            connection is None or connection.policy.phase not in IDLE_PHASES
        )

    @property
    def stays_due(self) -> bool:
        """See the base class: a byte does not extend what is waited for as a whole."""
        return any(self.lease.reason == phase.value for phase in WAITS)

    @property
    def begun(self) -> bool:
        """Whether its client has begun a head, and we wait for the rest.

        Who has half a handshake has asked for nothing.
        """
        return bool(self.head)

    @property
    def too_old(self) -> bool:
        """Whether its age limit is over, so that no further request may follow."""
        return self.age is not None and not self.age.alive


class Waiting(ParkingLot):
    """The connections of one `HttpServer`.

    Args:
        server: What all connections share.
        serve: Is called in a task, with the transport, when a whole head has come.
        linger: As in `ParkingLot`.
        tls: Wraps every connection; None: plain.
    """

    kind, plain, secure = Kept, Transport, TlsTransport

    def __init__(
        self,
        server: Shared,
        serve: Callable[[Any], Awaitable[object]],
        linger: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(server.watcher, serve, 0.0, linger=linger, tls=tls)
        self._server = server

    def admit(self, connected: socket.socket) -> Kept:
        """Wait for the first byte of a connection that has just been accepted."""
        with suppress(OSError):  # it is no TCP
            connected.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        phase = Phase.FIRST_BYTE if self._tls is None else Phase.HANDSHAKE
        kept: Kept = self.add(connected, self._limit(phase), phase.value)
        return kept

    def _limit(self, phase: Phase) -> float:
        seconds: float = getattr(self._server.config.timeouts, phase.value)
        return seconds

    def reload(self, kept: Kept) -> None:
        """Put the timeout in force that its phase has now, counted from the last
        activity.

        A connection that is being drained keeps the timeout of the drain.
        """
        for phase in WAITS:
            if kept.lease.reason == phase.value:
                self.driver.retime(kept.lease, self._limit(phase))

    # ---- what clients say

    def waits_for_more(self, parked: Kept) -> bool:
        """Whether *parked* waits for the rest of something; see
        `ParkingLot.waits_for_more`.
        """
        return parked.begun

    def spoken(self, parked: Kept, ended: bool) -> None:
        """Read once; if more has come, the epoll says so again. Begin a task if there
        is work for one.
        """
        try:
            if self._tls is not None and not self._is_established(parked, self._tls):
                return
            data = self._read(parked)
        except OSError:
            self._server.counters.lost += 1
            # The descriptor is closed already if no TLS session could be made, and only
            # then.
            self.gone(parked, closed=self._tls is not None and parked.stream is None)
            return
        if data == b"" and not parked.head:
            self.gone(parked)
        elif data == b"" or (data and self._is_whole(parked, data)):
            self.start(parked)  # after an end of file its task answers that this is no request
        else:
            self.listen(parked)

    def _read(self, kept: Kept) -> bytes | None:
        try:
            return (
                os.read(kept.fd, HEAD_BYTES)
                if kept.stream is None
                else kept.stream.session.read(HEAD_BYTES)
            )
        except BlockingIOError:
            return None

    def _is_whole(self, kept: Kept, data: bytes) -> bool:
        """Add *data* to the head of *kept*. Returns whether a task can now serve or
        refuse it.
        """
        before = len(kept.head)
        if not before:
            data, kept.blank = useful_of(data, kept.blank)
            if not data:
                return False
        head = kept.head = kept.head + data
        if (
            _END.search(head, max(0, before - 2))
            or len(head) > self._server.config.limits.max_header_bytes
            or head[0] < FIRST_OF_A_LINE
        ):
            return True
        if not before:
            self._enter(kept, Phase.HEADERS.value, self._limit(Phase.HEADERS))
        return False

    def _is_established(self, kept: Kept, context: ssl.SSLContext) -> bool:
        """Do a step of the handshake. Returns whether it is over."""
        if kept.stream is None:
            kept.stream = TlsTransport(kept, context)
        if kept.stream.established:
            return True
        session = kept.stream.session
        if not session.shake_hands():
            self.listen(kept, WRITABLE if session.wants_other else READABLE)
        elif self._server.draining:
            self._enter(kept, reasons.DRAIN, self._server.config.timeouts.drain_idle or INSTANT)
        else:
            self._enter(kept, Phase.FIRST_BYTE.value, self._limit(Phase.FIRST_BYTE))
        return bool(session.established)

    def _enter(self, kept: Kept, reason: str, seconds: float) -> None:
        kept.lease.touch()
        self.driver.retime(kept.lease, seconds, reason)

    # ---- ends

    def hung_up(self, parked: Kept, gone: bool) -> None:
        """The client has shut its side, and may still want its answer; or it is
        *gone*.
        """
        connection = parked.connection
        if connection is None:
            return
        if not gone:
            # That it has shut its side is known now; listen only for its being gone.
            self.listen_for_its_end(parked, shut=False)
            connection.policy.hang_up(trio.current_time())
            if self._server.draining:
                connection.nudge()
        elif not connection.transport.shut:  # otherwise both sides have shut: an orderly end
            connection.transport.hung_up = True
            self._server.counters.lost += 1
            connection.transport.scope.cancel(reason="the peer has gone")

    def left(self, parked: Kept, reason: str | None) -> None:
        """The connection ends. If half a request has come, and its time is over, answer
        it.
        """
        if parked.age is not None:
            parked.age.release()
        status = None if reason is None or parked.state is not PARKED else ANSWERS.get(reason)
        if status is not None:
            words = last_words(self._server, HttpError(status, f"{reason} timed out"), parked.head)
            with suppress(OSError):
                if parked.stream is None:
                    os.write(parked.fd, words)
                else:
                    parked.stream.session.write(memoryview(words))
        self._server.counters.closed += 1
