"""What guards of HTTP/2 have in common, whichever server speaks it: the streams of one connection.

The rule of this module: *a stream ends alone, unless it is the last*. What a stream waits for, and
how the server forgets it, its server says: each derives its own `Connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ...driver.sockets import peer_name
from ...policy import Phase
from .frames import DATA, FRAME_HEAD, HEADER_FRAMES
from .waiting import Waiting, Watch

NO_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 7, 8, 11
"""Error codes of RFC 9113, section 7."""


class Connection:
    """One connection of HTTP/2, and its streams.

    Args:
        connection: h2's `H2Connection`; another's where the methods below that speak of h2 are
            overridden.
        watch: Who watches it.
    Attributes:
        connection: As given.
        watch: As given.
        streams: What each open stream waits for, by number.
        ended: Whether the connection has ended, or is being closed: what comes is not looked at.
    """

    def __init__(self, connection: Any, watch: Watch) -> None:
        self.connection = connection
        self.watch = watch
        self.streams: dict[int, Waiting] = {}
        self.ended: bool = False
        self._shared: set[int] = set()  # they wait for the connection's window, not their own

    # ---- what each server says
    def works(self) -> int:
        """If the server has yet to work off what has come: how often it has read, which is the same
        as long as it does not go on; -1 where that is not known. 0: all is worked off.
        """
        raise NotImplementedError

    def phase_of(self, number: int) -> Phase:
        """What stream *number* waits for now."""
        raise NotImplementedError

    def end(self, number: int, last: bool) -> None:
        """Send what h2 has made, let the server forget stream *number*, and close after the *last*."""
        raise NotImplementedError

    # ---- what h2 says
    def pending(self) -> tuple[int, int]:
        """The type of the frame that has begun to come, and its stream; -1 where there is none."""
        data = self.connection.incoming_buffer._data
        if len(data) < FRAME_HEAD:
            return -1, 0
        return data[3], int.from_bytes(data[5:FRAME_HEAD], "big") & 0x7FFFFFFF

    def in_block(self) -> bool:
        """Whether a header block has begun to come, and has not ended."""
        begun = self.connection.incoming_buffer._headers_buffer
        return bool(begun) or self.pending()[0] in HEADER_FRAMES

    def is_shut(self, number: int) -> bool:
        """Whether the client lets nothing more be sent on stream *number*."""
        from h2.exceptions import ProtocolError

        try:
            return bool(self.connection.local_flow_control_window(number) <= 0)
        except ProtocolError:  # it has ended
            return False

    def window_of(self, number: int) -> int:
        """How many bytes the client takes on stream *number*, whatever the connection's window is."""
        stream = self.connection.streams.get(number)
        return int(stream.outbound_flow_control_window) if stream is not None else 0

    def cancel(self, number: int) -> None:
        """Have RST_STREAM made for stream *number*."""
        tolerant(self.connection.reset_stream, number, CANCEL)

    def part(self) -> None:
        """Have GOAWAY made."""
        tolerant(self.connection.close_connection, NO_ERROR)

    # ---- what it waits for
    def waiting(self, phase: Phase, name: str, end: Callable[[str], object]) -> Waiting:
        """Something of this connection that waits for *phase*; see `Waiting`."""

        def named() -> str:
            return f"{peer_name(self.watch.descriptor()) or 'a client'}{name}"

        return Waiting(self.watch, phase, named, self.works, end)

    def look_at(self, number: int) -> None:
        """Note what stream *number* waits for now."""
        waiting = self.streams.get(number)
        if waiting is not None:
            phase = self.phase_of(number)
            waiting.enter(phase)
            if phase is Phase.WRITE and self.window_of(number) > 0:
                self._shared.add(number)
            else:
                self._shared.discard(number)

    # ---- what moves
    def begin(self, number: int) -> None:
        """Stream *number* begins."""
        end = partial(self._reset, number)
        self.streams[number] = self.waiting(Phase.IN_FLIGHT, f" stream {number}", end)

    def finish(self, number: int) -> None:
        """Stream *number* has ended."""
        waiting = self.streams.pop(number, None)
        self._shared.discard(number)
        if waiting is not None:
            waiting.over()

    def received(self, count: int) -> None:
        """*count* bytes came. Those of a DATA frame that is not complete count for its stream."""
        kind, number = self.pending()
        if kind == DATA and number in self.streams:
            self.streams[number].moved(received=count)

    def sent(self, number: int, count: int) -> None:
        """*count* bytes of stream *number* were sent, because the client made room for them. Those
        that wait for the same window, the connection's, have a client that reads.
        """
        if (waiting := self.streams.get(number)) is not None:
            waiting.moved(sent=count)
        if count:
            for other in self._shared:
                if other != number:
                    self.streams[other].moved(sent=count)

    # ---- ends
    def over(self) -> None:
        """The connection has ended."""
        self.ended = True
        for number in list(self.streams):
            self.finish(number)

    def _reset(self, number: int, _reason: str) -> None:
        """Reset a stream; with the last one the connection goes as well."""
        self.streams.pop(number, None)
        self._shared.discard(number)
        self.cancel(number)
        last = not self.streams
        if last:
            self.over()
            self.part()
        self.end(number, last)


def tolerant(call: Callable[..., object], *arguments: object) -> None:
    """Call what h2 refuses if the stream or the connection has ended meanwhile."""
    from h2.exceptions import ProtocolError

    with suppress(ProtocolError):
        call(*arguments)
