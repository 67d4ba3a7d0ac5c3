"""Follows the frames of a connection, where the library below does not say what has come of them.

The rule of this module: *heads are read, and nothing else*. Whether frames may come in this order,
and what they mean, the library judges.
"""

from __future__ import annotations

from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends before its first frame (RFC 9113, section 3.4)."""

FRAME_HEAD = 9
"""Bytes before the payload of a frame."""

DATA, HEADERS, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 7, 8, 9
"""Types of frames (RFC 9113, section 6)."""

END_STREAM, END_HEADERS, PADDED = 1, 4, 8
"""Flags of a frame."""

HEADER_FRAMES = frozenset({HEADERS, CONTINUATION})
"""The types of frames that have a part of a header block."""

MOVING = frozenset({DATA, GOAWAY, WINDOW_UPDATE, *HEADER_FRAMES})
"""The types of frames that are not bounded in number; see `floods`."""


class Head(NamedTuple):
    """What stands before the payload of a frame."""

    length: int
    kind: int
    flags: int
    stream: int


class Frames:
    """The frames of one client, from its preface on.

    Attributes:
        heard: Whether the whole preface has come.
        moved: How many DATA frames with bytes of a body have begun in the last call of `came`.
        brought: By stream, how many bytes of a body the last call of `came` had, padding excluded;
            0: a part of a header block, or an empty frame.
    """

    __slots__ = (
        "_begun",
        "_block",
        "_head",
        "_left",
        "_padded",
        "_worth",
        "brought",
        "heard",
        "moved",
    )

    def __init__(self) -> None:
        self._begun = b""  # a part of a head
        self._left = len(PREFACE)  # bytes to come of the preface, or of the payload
        self._head: Head | None = None  # of the frame whose payload has yet to come
        self._padded = False  # the next byte says how much of the payload is padding
        self._worth = 0  # bytes of a body to come in this payload
        self._block = False  # a header block has begun, and is not complete
        self.heard: bool = False
        self.moved: int = 0
        self.brought: dict[int, int] = {}

    @property
    def in_block(self) -> bool:
        """Whether a header block, or the preface, has begun to come and is not complete."""
        if self.heard:
            return self._block or (self._head is not None and self._head.kind in HEADER_FRAMES)
        return self._left < len(PREFACE)

    def came(self, data: bytes) -> int:
        """*data* has come. Returns how many frames began in it that move nothing, and are bounded.

        Cost: a step for each frame.
        """
        self.brought, self.moved = {}, 0
        useless, at, size = 0, 0, len(data)
        while at < size:
            if self._left:
                taken = min(self._left, size - at)
                if self._head is not None and self._head.kind == DATA:
                    useless += self._body(self._head, data[at], taken)
                self._left -= taken
                at += taken
            else:
                part = data[at : at + FRAME_HEAD - len(self._begun)]
                self._begun += part
                at += len(part)
                if len(self._begun) < FRAME_HEAD:
                    break
                useless += self._begin()
            if not self._left:
                self._complete()
        return useless

    def _begin(self) -> bool:
        """A head has come. Returns whether its frame moves nothing."""
        begun, self._begun = self._begun, b""
        number = int.from_bytes(begun[5:], "big") & 0x7FFFFFFF
        head = Head(int.from_bytes(begun[:3], "big"), begun[3], begun[4], number)
        self._head, self._left = head, head.length
        if head.kind in HEADER_FRAMES:
            self.brought.setdefault(number, 0)
        if head.kind != DATA:
            return head.kind not in MOVING
        self.brought.setdefault(number, 0)
        self._worth = head.length
        self._padded = bool(head.flags & PADDED and head.length)
        self.moved += head.length > 0 and not self._padded
        return not head.length and not head.flags & END_STREAM

    def _body(self, head: Head, first: int, taken: int) -> bool:
        """*taken* bytes of a DATA frame have come. Returns whether they show that it moves nothing."""
        empty = False
        if self._padded:
            self._padded = False
            taken -= 1
            self._worth -= 1 + first
            empty = self._worth <= 0 and not head.flags & END_STREAM
            self.moved += self._worth > 0
        worth = max(min(taken, self._worth), 0)
        self._worth -= worth
        self.brought[head.stream] = self.brought.get(head.stream, 0) + worth
        return empty

    def _complete(self) -> None:
        """The frame, or the preface, is complete."""
        head, self._head = self._head, None
        if head is None:
            self.heard = True
        elif head.kind in HEADER_FRAMES:
            self._block = not head.flags & END_HEADERS
