"""One connection of HTTP/2 under a guard, whichever server speaks it: its frames, its
streams, what it waits for, and its end.

The rule of this module: *a stream costs nothing until its client is waited for*. The
engine is given every byte that comes and reads the heads of frames in it. An adapter,
one for each server, derives from it and says four things: where bytes come in (`came`,
then `worked`; gunicorn's threads note them for the thread that judges), what a stream
waits for (`phase_of_stream`), how a stream is reset, and how the connection is closed
(both in `end`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ...driver.sockets import peer_name, queued
from ...policy import Phase
from ...policy.reasons import FLOOD
from .floods import BURST, STREAMS, WINDOWS, Budget, Owed
from .frames import Frames
from .leaving import LOOKS_PER_TICK, Leaving
from .waiting import Carrier, Waiting

NO_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 7, 8, 11
"""Error codes of RFC 9113, section 7."""


class Engine:
    """One connection of HTTP/2, and its streams.

    Args:
        carrier: What the engine needs of the driver and the settings.
        most: How many streams the server lets its client have open at once.
    Attributes:
        carrier: As given.
        frames: The heads of what its client sends.
        budget: What its client may send that moves nothing.
        taken: Which bytes it may give back by WINDOW_UPDATE.
        openings: How many of those frames it may send besides.
        streams: The open streams, by number, each with what it waits for; None: its
            client has not been waited for yet.
        itself: What the connection waits for between its streams; None: the engine does
            not time that, see `open`.
        highest: The number of the last stream that was accepted; 0 before the first.
        ended: Whether the connection has ended, or is being closed: what comes is not
            looked at.
        leaving: Whether GOAWAY was sent: no further stream is accepted.
    """

    def __init__(self, carrier: Carrier, most: int = STREAMS) -> None:
        self.carrier = carrier
        self.frames: Frames = Frames()
        self.budget: Budget = Budget(carrier.driver.now, max(2 * most, BURST))
        self.taken: Owed = Owed()
        self.openings: Budget = Budget(carrier.driver.now, WINDOWS)
        self.streams: dict[int, Waiting | None] = {}
        self.itself: Waiting | None = None
        self.highest: int = 0
        self.ended: bool = False
        self.leaving: bool = False
        self._begun = 0  # blocks of headers that have paid for a window
        self._given: dict[int, int] = {}  # bytes sent before their client was waited for
        self._ahead: dict[int, int] = {}  # bytes of a body that came before they were waited for
        self._shared: set[int] = set()  # they wait for the connection's window, not their own
        self._goodbye: Leaving | None = None

    # ---- what each server says
    def works(self) -> int:
        """0: the server has processed all that came. Otherwise a count of its reads,
        which stays the same while the server makes no progress; -1 if that is unknown.
        """
        raise NotImplementedError

    def phase_of_stream(self, number: int) -> Phase:
        """What stream *number* waits for now."""
        raise NotImplementedError

    def window_of(self, number: int) -> int:
        """How many bytes the window of stream *number* has room for, whatever the
        connection's window is.
        """
        raise NotImplementedError

    def owes(self) -> bool:
        """Whether the client still has to take some of an answer."""
        return queued(self.carrier.descriptor()) > 0

    def send(self, data: bytes) -> None:
        """Send *data*, a frame that the server's library does not know about."""
        raise NotImplementedError

    def end(self, number: int | None, goaway: bytes) -> None:
        """Reset stream *number*, unless it is None, and let the server forget it. Then
        send *goaway* and close the connection, unless it is empty.
        """
        raise NotImplementedError

    # ---- what comes
    def open(self) -> None:
        """The connection has begun. From now on the engine times it between its
        streams.
        """
        self.itself = self._waiting(Phase.FIRST_BYTE, "", self._rested)

    def came(self, data: bytes) -> bool:
        """*data* came. Returns whether the server may process it: not if it is a flood,
        which ends the connection.

        Cost: a step for each frame.
        """
        frames = self.frames
        useless = frames.came(data)
        if frames.moved:
            self.budget.moved += frames.moved
        beyond = self.taken.beyond(frames.windows) if frames.windows else 0
        if (not useless or self.budget.spend(useless)) and (not beyond or self._may_open(beyond)):
            return True
        self.flooded()
        return False

    def _may_open(self, windows: int) -> bool:
        """Whether so many WINDOW_UPDATE frames that it does not owe may come."""
        begun, self._begun = self._begun, self.frames.blocks
        self.openings.moved += self._begun - begun
        return self.openings.spend(windows)

    def worked(self) -> None:
        """The server has processed what came last."""
        if self.ended:
            return
        streams, unended = self.streams, self.frames.unended
        for number, count in self.frames.brought.items():
            waiting = streams.get(number)
            if waiting is not None:
                waiting.moved(received=count)
                self.look_at(number)
            elif number not in streams:
                unended.discard(number)  # nobody waits for the rest
            elif number in unended:
                self._ahead[number] = self._ahead.get(number, 0) + count
                self.look_at(number)
        self.look()

    # ---- what is waited for
    def look(self) -> None:
        """Note what the connection itself waits for now."""
        itself = self.itself
        if itself is not None:
            itself.enter(self.phase())

    def phase(self) -> Phase:
        """What the connection itself waits for now."""
        if self._goodbye is not None:
            return Phase.IN_FLIGHT  # that has limits of its own
        if self.frames.in_block:
            return Phase.HEADERS
        if self.streams:
            return Phase.IN_FLIGHT
        return Phase.KEEP_ALIVE if self.frames.heard else Phase.FIRST_BYTE

    def look_at(self, number: int) -> None:
        """Note what stream *number* waits for now."""
        streams = self.streams
        if number not in streams:
            return
        phase = self.phase_of_stream(number)
        waiting = streams[number]
        if waiting is not None:
            waiting.enter(phase)
        elif phase is Phase.IN_FLIGHT:
            return
        else:
            name = f" stream {number}"
            given = self._given.pop(number, 0)
            end = partial(self._reset, number)
            streams[number] = waiting = self._waiting(phase, name, end, given)
            waiting.moved(received=self._ahead.pop(number, 0))
        if phase is Phase.WRITE and self.window_of(number) > 0:
            self._shared.add(number)
        else:
            self._shared.discard(number)

    def _waiting(
        self, phase: Phase, name: str, end: Callable[[str], object], given: int = 0
    ) -> Waiting:
        return Waiting(self.carrier, phase, partial(self._named, name), self.works, end, given)

    def _named(self, name: str) -> str:
        return f"{peer_name(self.carrier.descriptor()) or 'a client'}{name}"

    # ---- what moves
    def begin(self, number: int) -> None:
        """Stream *number* begins."""
        self.streams[number] = None
        if number > self.highest:
            self.highest = number
        if self.itself is not None and len(self.streams) == 1:
            self.look()

    def finish(self, number: int) -> None:
        """Stream *number* has ended."""
        if number in self.streams:
            self._forget(number)
            if not self.streams:
                self.look()

    def _forget(self, number: int) -> None:
        waiting = self.streams.pop(number)
        self.frames.unended.discard(number)
        if self._ahead:
            self._ahead.pop(number, None)
        if waiting is None:
            self._given.pop(number, None)
        else:
            self._shared.discard(number)
            waiting.over()

    def sent(self, number: int, count: int, frames: int = 1) -> None:
        """*count* bytes of stream *number* were sent in so many DATA *frames*, because
        the client has made room for them. Those that wait for the same window, the
        connection's, have a client that reads.
        """
        if not count:
            return
        self.budget.moved += frames
        self.taken.bytes += 2 * count  # `Owed.sent`, written out: each answer pays for it
        if (waiting := self.streams.get(number)) is not None:
            waiting.moved(sent=count)
        elif number in self.streams:
            self._given[number] = self._given.get(number, 0) + count
        for other in self._shared:
            if other != number and (waiting := self.streams[other]) is not None:
                waiting.moved(sent=count)

    def answered(self, number: int) -> None:
        """All of the answer on stream *number* has been given, unless the stream was
        reset.
        """
        if number in self.streams:
            self.budget.left += 1

    # ---- ends
    def over(self) -> None:
        """The connection has ended."""
        self.ended = True
        for number in list(self.streams):
            self._forget(number)
        if (itself := self.itself) is not None:
            self.itself = None  # the two would be a circle
            itself.over()

    def flooded(self) -> None:
        """The client sends too many frames that move nothing: end the connection at
        once.
        """
        itself = self.itself
        if itself is not None and itself.policy is not None:
            self.carrier.driver.books.reaped(itself.lease, self._named(""), FLOOD, None)
            self.over()
            self.end(None, self.goaway(ENHANCE_YOUR_CALM))

    def leave(self) -> None:
        """Tell the client by GOAWAY that no further stream is accepted. Open streams
        are answered.
        """
        if not self.leaving:
            self.leaving = True
            self.send(self.goaway(NO_ERROR))

    def see_off(self, until: float = math.inf) -> None:
        """Close the connection, whose client was told GOAWAY, when `Leaving` says so.
        The server has to read what the client sends meanwhile.

        Args:
            until: The instant by which it is closed at the latest, by the driver's
                clock.
        """
        if self._goodbye is None:
            self._goodbye = Leaving(self.carrier.config.timeouts.drain_idle, until)
            self.look()
            self._seen_off()

    def _seen_off(self) -> None:
        """Check whether to wait for the client any longer."""
        driver = self.carrier.driver
        goodbye = self._goodbye
        if goodbye is None or self.carrier.descriptor() < 0:
            return
        left = goodbye.seconds(self.owes(), driver.now())
        if left:
            step = self.carrier.config.reaper.tick / LOOKS_PER_TICK
            driver.after(min(left, step), self._seen_off)
        else:
            self.over()
            self.carrier.close()

    def goaway(self, code: int) -> bytes:
        """The GOAWAY frame, written by hand: after its own GOAWAY, h2 would send no
        answer on open streams.
        """
        payload = self.highest.to_bytes(4, "big") + code.to_bytes(4, "big")
        return len(payload).to_bytes(3, "big") + bytes((7, 0)) + bytes(4) + payload

    def _rested(self, _reason: str) -> None:
        """The time of the connection is over."""
        self.over()
        self.end(None, self.goaway(NO_ERROR))

    def _reset(self, number: int, _reason: str) -> None:
        """The time of stream *number* is over; with the last one the connection goes as
        well.
        """
        self._forget(number)
        last = not self.streams
        if last:
            self.over()
        self.end(number, self.goaway(NO_ERROR) if last else b"")


def tolerant(call: Callable[..., object], *arguments: object) -> None:
    """Make a call that h2 refuses if the stream or the connection has ended."""
    from h2.exceptions import ProtocolError

    with suppress(ProtocolError):
        call(*arguments)


def window_of(connection: object, number: int) -> int:
    """How many bytes the window of stream *number* of h2's *connection* has room for; 0
    if the stream has ended.
    """
    stream = connection.streams.get(number)  # type: ignore[attr-defined]
    return int(stream.outbound_flow_control_window) if stream is not None else 0


def is_shut(connection: object, number: int) -> bool:
    """Whether stream *number* of h2's *connection* has no window left."""
    from h2.exceptions import ProtocolError

    try:
        return bool(connection.local_flow_control_window(number) <= 0)  # type: ignore[attr-defined]
    except ProtocolError:  # it has ended
        return False
