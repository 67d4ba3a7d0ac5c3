"""The connections that wait without a task: for a first byte, for a handshake, for the rest of a head, for a request.

One rule: *a task is made for a whole request head, not for a client*. A client that has connected, and one that has
sent half a head, cost a descriptor, a lease and the bytes they sent. What ends them is the same as with a task.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from ssl import SSLContext

import h11

from reaper.core.lease import Lease
from reaper.policy import ANSWERS, INSTANT, IdlePolicy, Phase
from reaper.trio.handoff import HandoffLot
from reaper.trio.parking import Resting
from reaper.trio.tls import TlsSession

from .connection import HEAD, SERVER, Host, HttpConnection, HttpError, useful_of

HEAD_BYTES = 16384
"""Read at once while there is no task: what is beyond a head that long is the body's, and its task reads it."""

FIRST_OF_A_LINE = 0x21
"""What begins with less than that is no request and never will be one: h11 refuses it at once, and so need not wait."""

_END = re.compile(rb"\n\r?\n")  # of a head, as h11 sees it


class Kept(Resting):
    """What is remembered of a connection beyond its task.

    Attributes:
        opened: Seconds on trio's clock.
        requests, received, sent: Of the time until it was parked.
        head: What has come of the next request; begins with an empty line only after too many of them.
        blank: How many bytes of empty lines have come before it.
        age: The lease of its age limit, over or not; None: it has none.
        policy: While it has a task.
        tls: Its session, from the first byte on; None without TLS.
    """

    __slots__ = ("age", "blank", "head", "opened", "policy", "received", "requests", "sent", "tls")

    def __init__(self, opened: float) -> None:
        super().__init__()
        self.opened = opened
        self.age: Lease | None = None
        self.requests = self.received = self.sent = self.blank = 0
        self.head = b""
        self.policy: IdlePolicy | None = None
        self.tls: TlsSession | None = None

    @property
    def begun(self) -> bool:
        """Whether its peer has begun to ask for something, and we wait for the rest."""
        return bool(self.head) or (self.tls is not None and not self.tls.established)

    @property
    def too_old(self) -> bool:
        """Whether its age limit is over, so that no further request may follow."""
        return self.age is not None and not self.age.alive


class Waiting:
    """The connections of one `HttpServer` that have no task.

    Args:
        server: Theirs.
        tls: Wraps every connection; None: plain.
        closed: Called when one of them has ended.
    Attributes:
        lot: Where they are; what it hears, and whom it has ended, it tells this object. To be set before any use.
    """

    lot: HandoffLot

    def __init__(self, server: Host, tls: SSLContext | None, closed: Callable[[], None]) -> None:
        self._server = server
        self._tls = tls
        self._closed = closed

    def admit(self, connected: socket.socket, kept: Kept) -> None:
        """Wait for the first byte of a connection that has just been accepted."""
        self._park(connected, kept, None, Phase.FIRST_BYTE if self._tls is None else Phase.HANDSHAKE)

    def park(self, connection: HttpConnection, kept: Kept, activity: Lease) -> None:
        """Go on waiting for what *connection* waits for. Its silence goes on where it was."""
        transport, policy = connection.transport, connection.policy
        kept.requests, kept.received, kept.sent = policy.requests, transport.received, transport.sent
        kept.head, kept.blank = connection.unread, connection.blank
        kept.policy = None
        self._park(transport.socket, kept, activity, policy.phase)

    def _park(self, connected: socket.socket, kept: Kept, activity: Lease | None, phase: Phase) -> None:
        self.lot.park(connected, self._limit(phase), kept, activity, phase.value)

    def _limit(self, phase: Phase) -> float:
        seconds: float = getattr(self._server.config.timeouts, phase.value)
        return seconds

    def phase(self, kept: Kept) -> Phase:
        """What it waits for."""
        if self._tls is not None and (kept.tls is None or not kept.tls.established):
            return Phase.HANDSHAKE
        return Phase.HEADERS if kept.head else Phase.KEEP_ALIVE if kept.requests else Phase.FIRST_BYTE

    def reload(self, kept: Kept) -> None:
        """Put the timeout in force that its phase has now, counted from the last activity. A drain's stays."""
        phase = self.phase(kept)
        if kept.lease.reason == phase.value:
            self.lot.retime_one(kept, self._limit(phase))

    # ---- what is heard of them ---------------------------------------------------------------------------------------

    def heard(self, kept: Kept) -> bool:
        """Read once of what has come: of more the epoll tells anew. True: its task may begin."""
        try:
            if self._tls is None or self._is_established(kept, self._tls):
                data = self._read(kept)
                if data:
                    return self._is_whole(kept, data)
                if data is not None:
                    if not kept.head:
                        self.lot.gone(kept)
                    return bool(kept.head)  # its task is told that this is no request
        except OSError:
            self._server.counters.lost += 1
            self.lot.gone(kept, closed=self._tls is not None and kept.tls is None)
            return False
        return kept.tls is not None and kept.tls.wants_other

    def _read(self, kept: Kept) -> bytes | None:
        try:
            data = os.read(kept.fd, HEAD_BYTES) if kept.tls is None else kept.tls.read(HEAD_BYTES)
        except BlockingIOError:
            return None
        kept.received += len(data)
        return data

    def _is_whole(self, kept: Kept, data: bytes) -> bool:
        """Whether a task can do something with the head of *kept* and *data*: serve it, or refuse it."""
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

    def _is_established(self, kept: Kept, context: SSLContext) -> bool:
        if kept.tls is None:
            kept.tls = TlsSession(kept.fd, context)
            kept.tls.detach()
        if kept.tls.established:
            return True
        if kept.tls.shake_hands():
            if self._server.draining:
                self._enter(kept, "drain", self._server.config.timeouts.drain_idle or INSTANT)
            else:
                self._enter(kept, Phase.FIRST_BYTE.value, self._limit(Phase.FIRST_BYTE))
        return kept.tls.established

    def _enter(self, kept: Kept, reason: str, seconds: float) -> None:
        kept.lease.touch()
        self.lot.retime_one(kept, seconds, reason)

    # ---- ends ------------------------------------------------------------------------------------------------------

    def ended(self, kept: Kept, reason: str | None) -> None:
        """One was reaped, or its peer has gone. Where a request had begun it is answered."""
        if kept.age is not None:
            kept.age.release()
        if reason is not None:
            self._server.counters.reaped[reason] += 1
            status = ANSWERS.get(reason)
            if status is not None:
                words = last_words(self._server, HttpError(status, f"{reason} timed out"), kept.head)
                with suppress(OSError):
                    if kept.tls is None:
                        os.write(kept.fd, words)
                    else:
                        kept.tls.write(memoryview(words))
        self._server.counters.closed += 1
        self._closed()


def last_words(server: Host, error: HttpError, head: bytes) -> bytes:
    """The answer to a request of which no more than *head* is to come."""
    body = f"{error}\n".encode()
    headers = [
        *(("date", server.date()), ("server", SERVER)),
        *(("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))),
        ("connection", "close"),
    ]
    answer = h11.Response(status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase)
    server.counters.responses[error.status] += 1
    return (h11.Connection(h11.SERVER).send(answer) or b"") + (b"" if head.startswith(HEAD) else body)
