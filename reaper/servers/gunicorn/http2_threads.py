"""HTTP/2 under gunicorn's worker with threads: one thread serves a connection, a stream
at a time.

The rule of this module: *the thread notes what it reads and what it waits for, and ends
what is due itself*. Our thread, which judges, looks at the notes several times a tick.
When a stream is due it leaves a note of its own, and the thread that waits looks for
that as often. Neither waits for the other. Streams whose turn has not come wait for the
server. A connection that is due is closed by its thread, too, by GOAWAY. gunicorn's own
limits of a wait, `--timeout` and `--keep-alive`, stay in force. Tried with gunicorn
27.0.1 and h2 4.4.1.
"""

from __future__ import annotations

import functools
import math
import select
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple

from gunicorn.http2.connection import HTTP2ServerConnection
from gunicorn.http2.stream import HTTP2Stream, StreamState

from ...driver.reaper import LOOKS_PER_TICK
from ...driver.sockets import queued
from ...policy import Phase
from ..http2.engine import CANCEL, Engine
from ..http2.floods import Owed
from ..http2.frames import Frames
from ..http2.waiting import Carrier


class Wait(NamedTuple):
    """What a thread waits for. It is another wait once bytes have moved."""

    number: int
    """The stream."""
    phase: Phase
    received: int
    """Bytes of its body that have come."""
    sent: int
    """Bytes of its answer that were given to h2."""


class Rest(NamedTuple):
    """What the connection itself waits for. A new one is made once a stream has ended,
    or another header block has begun.
    """

    phase: Phase
    turn: int


class Heads:
    """The frames that a thread has read of its client. Only that thread writes here.

    Attributes:
        frames: Their heads.
        useless: How many frames have come that move nothing.
        moved: How many DATA frames with bytes have come, or were sent.
        taken: Which bytes the client may give back.
        opened: How many WINDOW_UPDATE frames have come that it does not owe.
        bodies: By stream, how many bytes of its body have come.
    """

    def __init__(self) -> None:
        self.frames: Frames = Frames()
        self.useless: int = 0
        self.moved: int = 0
        self.taken: Owed = Owed()
        self.opened: int = 0
        self.bodies: dict[int, int] = {}

    def came(self, data: bytes) -> None:
        """*data* has come."""
        frames = self.frames
        self.useless += frames.came(data)
        self.moved += frames.moved
        if frames.windows:
            self.opened += self.taken.beyond(frames.windows)
        for number, count in frames.brought.items():
            if number in frames.unended:
                self.bodies[number] = self.bodies.get(number, 0) + count

    def forget(self, number: int) -> None:
        """Stream *number* has ended."""
        self.bodies.pop(number, None)
        self.frames.unended.discard(number)


class _Fed:
    """h2's connection. It is given all bytes that come."""

    heads: Heads

    def receive_data(self, data: bytes) -> Any:
        self.heads.came(data)
        return super().receive_data(data)  # type: ignore[misc]


@functools.cache
def _fed(base: Hashable) -> Any:
    """Derive from *base*, h2's connection, a class that notes the bytes it is given."""
    kind: Any = base
    return type(kind.__name__, (_Fed, kind), {})


class Judge(Engine):
    """Judges one connection, in the thread of the driver.

    Args:
        serving: gunicorn's connection, guarded.
        carrier: The connection.
        heads: What its thread has read.
    """

    def __init__(self, serving: Any, carrier: Carrier, heads: Heads) -> None:
        super().__init__(carrier, serving.max_concurrent_streams)
        self.frames: Frames = heads.frames
        self._heads = heads
        self._serving = serving
        self._seen: Wait | None = None
        self._rest: Rest | None = None
        self._useless = self._moved = self._opened = 0  # of `heads`, what is charged

    def watched(self) -> None:
        """Judge the connection from now on."""
        if self.ended:
            return
        self.open()
        self.carrier.sweep.add(self)
        self.charge(0)

    def charge(self, _now: float) -> None:
        """Look at what the thread waits for now. The `Sweep` calls it."""
        if self._serving.is_closed:
            self.over()  # its thread ends it
            return
        if self._affords():
            self._look_at_waits()
            self.look()
        else:
            self.flooded()

    def _affords(self) -> bool:
        """Whether the client is within its budget of frames that move nothing."""
        heads = self._heads
        useless, opened = heads.useless - self._useless, heads.opened - self._opened
        moved = heads.moved - self._moved
        self._useless, self._opened = self._useless + useless, self._opened + opened
        self._moved += moved
        self.budget.moved += moved
        return (not useless or self.budget.spend(useless)) and (
            not opened or self._may_open(opened)
        )

    def _look_at_waits(self) -> None:
        """Note for which stream the thread waits now."""
        seen, self._seen = self._seen, self._serving.wait
        for number in [number for number in self.streams if number not in self._serving.streams]:
            self._forget(number)
        if (wait := self._seen) == seen:
            return
        if wait is not None:
            self.streams.setdefault(wait.number, None)
        for number in self.streams:
            self.look_at(number)
        if wait is not None and seen is not None and seen.number == wait.number:
            waiting = self.streams[wait.number]
            received, sent = wait.received - seen.received, wait.sent - seen.sent
            if waiting is not None:
                waiting.moved(max(received, 0), max(sent, 0))

    # ---- as the base says

    def over(self) -> None:
        """See the base class."""
        super().over()
        self.carrier.sweep.discard(self)

    def works(self) -> int:
        """See the base class: the thread may have gone on since it was looked at."""
        return -1 if self._serving.wait != self._seen or self.rest() != self._rest else 0

    def phase_of_stream(self, number: int) -> Phase:
        """See the base class."""
        wait = self._seen
        return wait.phase if wait is not None and wait.number == number else Phase.IN_FLIGHT

    def window_of(self, number: int) -> int:
        """See the base class: no other stream is waited for at the same time."""
        return 0

    def rest(self) -> Rest:
        """What the connection itself waits for, by the notes of its thread."""
        serving = self._serving
        if serving.streams or serving.pending_requests or serving._deferred_events:
            phase = Phase.HEADERS if self.frames.in_block else Phase.IN_FLIGHT
        else:
            phase = self.phase()
        return Rest(phase, self.frames.blocks if phase is Phase.HEADERS else serving.served)

    def look(self) -> None:
        """See the base class."""
        rest, itself = self.rest(), self.itself
        if rest != self._rest and itself is not None:
            if self._rest is not None and self._rest.phase is rest.phase:
                itself.enter(Phase.IN_FLIGHT)  # it has waited for something else meanwhile
            itself.enter(rest.phase)
        self._rest = rest

    def end(self, number: int | None, goaway: bytes) -> None:
        """See the base class; by the thread: h2 is that thread's."""
        if number is not None:
            self._serving.due = self._seen
        else:
            self._serving.code = int.from_bytes(goaway[-4:], "big")
            self.carrier.close()

    def _reset(self, number: int, _reason: str) -> None:
        """See the base class. The thread knows whether it is the last."""
        self._forget(number)
        self.end(number, b"")

    def see_off_within(self, seconds: float) -> None:
        """As `see_off`, for so long at most."""
        self.see_off(self.carrier.driver.now() + seconds)


class _Stream(HTTP2Stream):  # type: ignore[misc]
    """A stream of gunicorn's that counts what was sent on it."""

    sent = 0

    def send_data(self, data: bytes, end_stream: bool = False) -> None:
        super().send_data(data, end_stream)
        self.sent += len(data)
        if data:
            heads = self.connection.heads
            heads.moved += 1
            heads.taken.sent(len(data))


class _Connection(HTTP2ServerConnection):  # type: ignore[misc]
    """A connection of gunicorn's whose streams are guarded.

    Attributes:
        judge: Judges it, in another thread.
        heads: What this thread has read.
        wait: What this thread waits for; None if it works.
        due: The wait that has lasted for too long.
        step: Seconds between two looks at `due`.
        served: How many streams have ended.
        leaving: Whether the client is waited for at the end, which takes the rest of an
            answer.
        told_to_end: Whether the thread that judges has this one say GOAWAY, and close.
        code: The code of that.
    """

    judge: Judge
    heads: Heads
    wait: Wait | None
    due: Wait | None
    step: float
    served: int = 0
    leaving: bool = False
    told_to_end: bool = False
    code: int = 0
    _closed: bool

    def close(self, error_code: int = 0, last_stream_id: int | None = None) -> None:
        if not self._closed and not error_code and queued(self.sock.fileno()):
            self.leaving = True
        super().close(error_code, last_stream_id)

    def receive_data(self, data: bytes | None = None) -> Any:
        """As gunicorn's. A worker that stops asks with no bytes for what has been read
        already; gunicorn itself would take that for the client's end, and send no
        GOAWAY.
        """
        if data == b"":
            if not self.pending_requests and not self._deferred_events:
                return []
            data = None
        return super().receive_data(data)

    def _read_and_process(self, data: bytes | None, number: int | None = None) -> Any:
        waits = data is None and number is None and not self._deferred_events
        if waits and not self._comes(self.idle_timeout, self._is_told):
            if self.told_to_end or not self.streams:
                self.close(self.code, self.h2_conn.highest_inbound_stream_id)
            return []
        return super()._read_and_process(data, number)

    def _is_told(self) -> bool:
        return self.told_to_end

    def _comes(self, own: float | None, is_over: Callable[[], bool]) -> bool:
        """Wait until there is something to read. Several times a tick, *is_over* says
        whether to stop waiting. A socket of TLS must not be shut to wake its thread:
        OpenSSL would answer by an alert, and send nothing more.

        Args:
            own: gunicorn's own limit of the wait, seconds; None if it has none.
        """
        limit = time.monotonic() + own if own else math.inf
        while not is_over():
            if _readable(self.sock, self.step):
                return True
            if time.monotonic() >= limit:
                break
        return False

    def _waits(self, number: int, phase: Phase) -> Wait:
        received, sent = self.heads.bodies.get(number, 0), self.streams[number].sent
        self.wait = wait = Wait(number, phase, received, sent)
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
        had = stream.body_size
        wait = self._waits(stream.stream_id, Phase.TUNNEL if begun else Phase.BODY)
        if not self._comes(self.stream_timeout, lambda: self.due == wait):
            if self.due == wait:
                self._give_up(wait.number)
            else:
                self.wait = None
                self.abort_stream(wait.number, CANCEL)
            return
        super().pump(number)
        if stream.body_size > had or stream.body_complete or self._closed:
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
        super().cleanup_stream(number)
        self.heads.forget(number)
        self.served += 1
        self.wait = None


def _readable(sock: Any, seconds: float) -> bool:
    """Whether there are bytes or an end to read within *seconds*."""
    if hasattr(sock, "pending") and sock.pending():  # bytes that TLS has decrypted
        return True
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
    except ValueError:  # it is closed, which its reader is told
        return True
    return bool(poll.poll(seconds * 1000))


def until_it_has_gone(serving: Any, end: float) -> None:
    """Read what the client of *serving* sends until it closes or the judge stops
    waiting for it; until the instant *end* of `time.monotonic` at the latest.
    """
    sock = serving.sock
    with suppress(OSError, ValueError):  # it is gone, or closed
        sock.settimeout(serving.step)
        while not serving.told_to_end and time.monotonic() < end:
            with suppress(TimeoutError):  # a part of a record of TLS has come
                readable = _readable(sock, serving.step)
                if readable and not sock.recv(HTTP2ServerConnection.READ_BUFFER_SIZE):
                    return


def guard(
    serving: Any,
    carrier: Callable[[], Carrier],
    soon: Callable[[Callable[[], None]], object],
    tick: float,
    come: bytes,
) -> None:
    """Guard *serving*, which the calling thread is about to serve; does nothing if it
    is guarded.

    Args:
        serving: gunicorn's `HTTP2ServerConnection`.
        carrier: Returns its `Carrier`. Called once for each connection.
        soon: Calls its argument in the thread of the driver, soon.
        tick: Seconds; this thread looks `LOOKS_PER_TICK` times as often while it waits.
        come: The bytes that h2 has already been given.
    """
    if type(serving) is HTTP2ServerConnection:
        serving.__class__ = _Connection
        serving.wait = serving.due = None
        serving.step = tick / LOOKS_PER_TICK
        serving.heads = serving.h2_conn.heads = heads = Heads()
        serving.h2_conn.__class__ = _fed(serving.h2_conn.__class__)
        heads.came(come)
        serving.judge = judge = Judge(serving, carrier(), heads)
        soon(judge.watched)


def over(serving: Any) -> None:
    """The connection of *serving* is over: stop watching it. Call it in the thread of
    the driver, once; does nothing if *serving* is not guarded.
    """
    if isinstance(serving, _Connection):
        serving.judge.over()
        del serving.judge  # which refers to it


def guard_stream(stream: Any) -> None:
    """Guard *stream*, of a guarded connection, which the calling thread is about to
    serve.
    """
    if stream.state is not StreamState.CLOSED:
        stream.__class__ = _Stream
