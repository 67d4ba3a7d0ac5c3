"""HTTP/2 under gunicorn's worker with threads: one thread serves a connection, a stream at a time.

The rule of this module: *the thread notes what it waits for, and ends what is due itself*. The thread
of ours that judges looks at the note several times a tick, and leaves another when a stream is due;
the thread that waits looks for that one as often. Neither waits for the other. Streams whose turn has
not come wait for the server. Between streams the thread counts `keep_alive` and `headers` by itself: the
kernel, which the guard of the connection asks, takes the answer to a PING for an answer. gunicorn's
own limits of a wait, `--timeout` and `--keep-alive`, stay in force. Tried with gunicorn 27.0.1 and
h2 4.4.1.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from gunicorn.http2.connection import HTTP2ServerConnection
from gunicorn.http2.stream import HTTP2Stream, StreamState

from ...asyncio.reaper import LOOKS_PER_TICK
from ...driver.sockets import queued
from ...policy import Phase
from ..http2.connection import CANCEL, Connection
from ..http2.frames import DATA, FRAME_HEAD
from ..http2.leaving import Leaving
from ..http2.waiting import Watch

MOMENT = 0.001
"""Seconds for which a thread waits whose time is over: enough to read what has come already."""


class Wait(NamedTuple):
    """What a thread waits for. It is another wait once bytes have moved."""

    number: int
    """The stream."""
    phase: Phase
    received: int
    """Bytes of its body that have come."""
    sent: int
    """Bytes of its answer that were given to h2."""


class Judge(Connection):
    """Judges one connection, in the thread of the driver.

    Args:
        serving: gunicorn's connection, guarded.
        watch: Who watches it.
    Attributes:
        watching: Whether the sweep looks at it.
    """

    def __init__(self, serving: Any, watch: Watch) -> None:
        super().__init__(serving.h2_conn, watch)
        self._serving = serving
        self._seen: Wait | None = None
        self.watching: bool = False

    def watched(self) -> None:
        """Look at it from now on."""
        self.watch.sweep.add(self)
        self.charge(0)

    def charge(self, _now: float) -> None:
        """Look what the thread waits for now. The `Sweep` calls it."""
        serving, seen = self._serving, self._seen
        wait: Wait | None = serving.wait
        for number in [number for number in self.streams if number not in serving.streams]:
            self.finish(number)
        if wait is None:
            self._seen = None
            for waiting in self.streams.values():
                waiting.enter(Phase.IN_FLIGHT)
            if not self.streams:
                self.watching = False
                self.watch.sweep.discard(self)
                if serving.wait is not None and not self.watching:  # it has begun meanwhile
                    self.watching = True
                    self.watch.sweep.add(self)
            return
        if wait == seen:
            return
        self._seen = wait
        number = wait.number
        if number not in self.streams:
            self.begin(number)
        elif seen is not None:
            self.streams[number].enter(Phase.IN_FLIGHT)
        waiting = self.streams[number]
        waiting.enter(wait.phase)
        if seen is not None and seen.number == number:
            received, sent = wait.received - seen.received, wait.sent - seen.sent
            waiting.moved(max(received, 0), max(sent, 0))

    def works(self) -> int:
        """As the base says: the thread may have gone on since it was looked at."""
        return -1 if self._serving.wait != self._seen else 0

    def over(self) -> None:
        super().over()
        self.watch.sweep.discard(self)

    def _reset(self, number: int, _reason: str) -> None:
        """Have the thread reset the stream: h2 is that thread's."""
        self.streams.pop(number, None)
        self._serving.due = self._seen


class _Stream(HTTP2Stream):  # type: ignore[misc]
    """A stream of gunicorn's that counts what was sent on it."""

    sent = 0

    def send_data(self, data: bytes, end_stream: bool = False) -> None:
        super().send_data(data, end_stream)
        self.sent += len(data)


class _Connection(HTTP2ServerConnection):  # type: ignore[misc]
    """A connection of gunicorn's whose streams are guarded.

    Attributes:
        judge: Judges it, in another thread.
        wait: What this thread waits for; None: for nothing.
        due: The wait that has lasted for too long.
        step: Seconds between two looks whether it has.
        tick: Seconds for which what has come is read after the time for a request is over.
        begin: Has the other thread look at the judge.
        leaving: Whether the client is waited for at the end, which takes the rest of an answer.
        rests_since: When its last stream ended, or it began, by `time.monotonic`.
        block_since: When the header block that now comes was first seen; 0: none comes.
        late_since: When its time was first seen to be over; inf: it is not.
        own: gunicorn's limit of a wait for a request, seconds.
        told_to_end: Whether the thread that judges has ended what this one reads.
    """

    judge: Judge
    wait: Wait | None
    due: Wait | None
    step: float
    tick: float
    begin: Callable[[], object]
    leaving: bool = False
    rests_since: float
    block_since: float = 0.0
    late_since: float = math.inf
    own: float
    told_to_end: bool = False
    _closed: bool

    def close(self, error_code: int = 0, last_stream_id: int | None = None) -> None:
        if not self._closed and not error_code and queued(self.sock.fileno()):
            self.leaving = True
        super().close(error_code, last_stream_id)

    def receive_data(self, data: bytes | None = None) -> Any:
        """As gunicorn's. A worker that stops asks with no bytes for what has been read already;
        gunicorn itself would take that for the client's end, and send no GOAWAY.
        """
        if data == b"":
            if not self.pending_requests and not self._deferred_events:
                return []
            data = None
        return super().receive_data(data)

    def _read_and_process(self, data: bytes | None, number: int | None = None) -> Any:
        """As gunicorn's, which closes, by GOAWAY, when nothing comes for `idle_timeout` seconds. What
        comes may be PINGs: once the time is over, what has come before is read, for a tick at most,
        and then the connection is closed if that has begun no stream.
        """
        if data is not None or number is not None or self._deferred_events:
            return super()._read_and_process(data, number)
        left, was_in_block = self._left(), self.block_since > 0
        if left > 0:
            self.late_since = math.inf
        elif self.late_since == math.inf:
            self.late_since = time.monotonic()
        self.idle_timeout = None if left == math.inf else max(left, MOMENT)
        requests = super()._read_and_process(data, number)
        if self._closed and self.told_to_end:  # it took our end for the client's
            self._closed = False
            self.close(last_stream_id=self.h2_conn.highest_inbound_stream_id)
        waits = requests or self.pending_requests or self.streams or self._closed
        if left > 0 or waits or (self.judge.in_block() and not was_in_block):
            return requests
        if time.monotonic() > self.late_since + self.tick or not _readable(self.sock, 0.0):
            self.close(last_stream_id=self.h2_conn.highest_inbound_stream_id)
        return requests

    def _left(self) -> float:
        """Seconds for which a request may yet be waited for, none or less: its time is over."""
        timeouts, now = self.judge.watch.config.timeouts, time.monotonic()
        if self.judge.in_block():
            self.block_since = self.block_since or now
            limit, since = timeouts.headers, self.block_since
        else:
            self.block_since = 0.0
            limit, since = timeouts.keep_alive, now if self.streams else self.rests_since
        return min(self.own, since + limit - now) if limit else self.own

    def _waits(self, number: int, phase: Phase) -> Wait:
        stream = self.streams[number]
        kind, pending = self.judge.pending()
        ahead = 0
        if kind == DATA and pending == number:  # a part of its next frame has come
            ahead = len(self.h2_conn.incoming_buffer._data) - FRAME_HEAD
        self.wait = wait = Wait(number, phase, stream.body_size + ahead, stream.sent)
        if not self.judge.watching:
            self.judge.watching = True
            self.begin()
        return wait

    def _give_up(self, number: int) -> None:
        """Reset a stream; with the last one the connection goes as well."""
        self.wait = self.due = None
        self.streams[number].reset(CANCEL)
        self._reset_quietly(number, CANCEL)
        asked = any(type(event).__name__ == "RequestReceived" for event in self._deferred_events)
        if len(self.streams) == 1 and not asked:
            # It has had its time: for this client nobody waits.
            super().close(last_stream_id=self.h2_conn.highest_inbound_stream_id)
        self.cleanup_stream(number)

    def pump(self, number: int | None = None) -> None:
        stream = self.streams.get(number)
        if stream is None or not isinstance(stream, _Stream) or self._deferred_events:
            super().pump(number)
            return
        begun = stream.response_headers_sent
        wait = self._waits(stream.stream_id, Phase.TUNNEL if begun else Phase.BODY)
        limit = time.monotonic() + self.stream_timeout if self.stream_timeout else None
        while self.due != wait and not _readable(self.sock, self.step):
            if limit is not None and time.monotonic() >= limit:
                self.wait = None
                self.abort_stream(wait.number, CANCEL)
                return
        if self.due == wait:
            self._give_up(wait.number)
            return
        super().pump(number)
        if stream.body_size > wait.received or stream.body_complete or self._closed:
            self.wait = None

    def _wait_for_flow_control_window(self, number: int, deadline: float | None = None) -> int:
        if not isinstance(self.streams.get(number), _Stream):
            return int(super()._wait_for_flow_control_window(number, deadline))
        wait = self._waits(number, Phase.WRITE)
        while True:
            now = time.monotonic()
            step = now + self.step if deadline is None else min(now + self.step, deadline)
            left: int = super()._wait_for_flow_control_window(number, step)
            if left:
                self.wait = None
                return left
            if self.due == wait:
                self._give_up(number)
                return -1
            if deadline is not None and time.monotonic() >= deadline:
                self.wait = None
                return 0

    def cleanup_stream(self, number: int) -> None:
        self.rests_since = time.monotonic()
        super().cleanup_stream(number)
        self.wait = None


def _readable(sock: Any, seconds: float) -> bool:
    """Whether there is something to read, an end included, within *seconds*."""
    if hasattr(sock, "pending") and sock.pending():  # bytes that TLS has decrypted
        return True
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
    except ValueError:  # it is closed, which its reader is told
        return True
    return bool(poll.poll(seconds * 1000))


def until_it_has_gone(sock: Any, leaving: Leaving, step: float) -> None:
    """Read what the client of *sock* sends, until it closes, or is no longer waited for.

    Args:
        leaving: Says how long it is, by `time.monotonic`.
        step: Seconds between two looks whether it has taken everything.
    """
    with suppress(OSError, ValueError):  # it is gone, or closed
        sock.settimeout(step)
        while left := leaving.seconds(queued(sock.fileno()) > 0, time.monotonic()):
            with suppress(TimeoutError):  # a part of a record of TLS has come
                readable = _readable(sock, min(step, left))
                if readable and not sock.recv(HTTP2ServerConnection.READ_BUFFER_SIZE):
                    return


def guard(
    serving: Any,
    watch: Callable[[], Watch],
    soon: Callable[[Callable[[], None]], object],
    tick: float,
) -> None:
    """Guard *serving*, which the calling thread is about to serve; does nothing if it is guarded.

    Args:
        serving: gunicorn's `HTTP2ServerConnection`.
        watch: Returns who watches it. Called once for each connection.
        soon: Has its argument called in the thread of the driver.
        tick: Seconds; this thread looks `LOOKS_PER_TICK` times as often while it waits.
    """
    if type(serving) is HTTP2ServerConnection:
        serving.__class__ = _Connection
        serving.wait = serving.due = None
        serving.step = tick / LOOKS_PER_TICK
        serving.tick = tick
        serving.judge = judge = Judge(serving, watch())
        serving.begin = lambda: soon(judge.watched)
        serving.rests_since = time.monotonic()
        serving.own = serving.idle_timeout or math.inf


def over(serving: Any) -> None:
    """The connection of *serving* is over: nothing of it is watched any more. Call it in the thread
    of the driver, once; does nothing if *serving* is not guarded.
    """
    if isinstance(serving, _Connection):
        serving.judge.over()
        del serving.judge, serving.begin  # the judge refers to it


def guard_stream(stream: Any) -> None:
    """Guard *stream*, of a guarded connection, which the calling thread is about to serve."""
    if stream.state is not StreamState.CLOSED:
        stream.__class__ = _Stream
