"""Where one event of a stream ends and the next may begin.

The rule of this module: *only the end of a piece is looked at*. A stream may be pinged
between two events and never inside one, so its bytes are followed as they are written.
What follows depends on the last three of them at most, so that a long piece costs as
much as a short one.

`text/event-stream` (the HTML standard, "Parsing an event stream"): a line ends with CR,
LF or CRLF, and an event ends with an empty line. `application/x-ndjson`: each line is a
record.

The standard drops a byte order mark at the very beginning, and only there. A stream
that was pinged before its first byte has lost that place. So its mark, which nobody
needs, is taken away: `without_mark`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NEW, EARLY, BOUNDARY, DOUBLE, INSIDE, LINE, RETURN, UNSURE = range(8)
"""Where a stream stands.

`NEW`: nothing was written. `EARLY`: nothing but pings was. `BOUNDARY`: after an event.
`DOUBLE`: after CR CR, which ends an event, too. `INSIDE`: within a line. `LINE`: after
the end of a line. `RETURN`: after CR, which ends a line; an LF may be the other half.
`UNSURE`: after LF CR. That ends an event, but where lines end with CRLF it is half of
the end.
"""

_AFTER: Final = {
    NEW: (BOUNDARY, UNSURE),
    EARLY: (BOUNDARY, UNSURE),
    BOUNDARY: (BOUNDARY, UNSURE),
    DOUBLE: (BOUNDARY, DOUBLE),
    INSIDE: (LINE, RETURN),
    LINE: (BOUNDARY, UNSURE),
    RETURN: (LINE, DOUBLE),
    UNSURE: (BOUNDARY, DOUBLE),
}
"""By where a stream stands: where it stands after an LF, and after a CR. After any
other byte it is INSIDE.
"""

MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark."""

LF, CR = b"\n\r"


def after_events(stands: int, piece: bytes) -> int:
    """Return where an event stream stands after *piece*; before it stood at *stands*.
    O(1).
    """
    if stands == NEW and piece.startswith(MARK):
        piece = piece[len(MARK) :]
        if not piece:
            return BOUNDARY
    for byte in piece[-3:]:
        if byte == LF:
            stands = _AFTER[stands][0]
        elif byte == CR:
            stands = _AFTER[stands][1]
        else:
            stands = INSIDE
    return stands


def after_lines(stands: int, piece: bytes) -> int:
    """Return where a stream of lines stands after *piece*; before it stood at *stands*.
    O(1).
    """
    if not piece:
        return stands
    return BOUNDARY if piece[-1] == LF else INSIDE


class Kind(NamedTuple):
    """A kind of stream that can be pinged."""

    ping: bytes
    """What its readers skip. It begins and ends at a boundary."""
    events: bool
    """Whether it is `text/event-stream`; otherwise each line is a record."""

    def after(self, stands: int, piece: bytes) -> int:
        """Where it stands after *piece*."""
        return after_events(stands, piece) if self.events else after_lines(stands, piece)


EVENTS: Final = Kind(b":\n\n", True)
LINES: Final = Kind(b"\n", False)


def may_ping(stands: int) -> bool:
    """Whether a stream that stands there is at a boundary."""
    return stands <= DOUBLE


NO_BODY: Final = frozenset({204, 205, 304})
"""The statuses of responses that have no body."""

_SPOILS: Final = frozenset({b"content-length", b"content-range"})
"""Headers of a response into which nothing can be written."""


def kind_of(
    method: str,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    lines: bool = False,
    declared: bool = False,
) -> Kind | None:
    """The kind of the stream that a response is; None: nothing can be written into it.

    A response with a length, or of another encoding than `identity`, is none, nor is
    one to HEAD.

    Args:
        method: Of the request.
        status, headers: Of the response.
        lines: Whether streams of lines are wanted, too.
        declared: Whether the application says that it is an event stream, whatever its
            type.
    """
    if method == "HEAD" or status in NO_BODY:
        return None
    found = EVENTS if declared else None
    for name, value in headers:
        name = name.lower()
        if name in _SPOILS:
            return None
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            return None
        if name == b"content-type":
            said = value.partition(b";")[0].strip().lower()
            if said == b"text/event-stream":
                found = EVENTS
            elif said == b"application/x-ndjson":
                found = LINES if lines or declared else None
    return found


def without_mark(held: bytes, piece: bytes) -> tuple[bytes, bytes, bool]:
    """Take the byte order mark away from the beginning of a stream that was pinged
    before it.

    Args:
        held: What was held back of the pieces before.
        piece: The next piece.
    Returns:
        What is to be written, what is to be held back, and whether the beginning is
        over.
    """
    begun = held + piece
    if begun.startswith(MARK):
        return begun[len(MARK) :], b"", True
    if MARK.startswith(begun):
        return b"", begun, False
    return begun, b"", True
