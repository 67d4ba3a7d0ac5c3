"""Follows the frames that a client sends: where a block of headers begins and ends,
what each brings.

The rule of this module: *heads are read, and nothing else*. Whether frames may come in
this order, and what they mean, the library of the server judges.
"""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes that a client sends before its first frame (RFC 9113, section 3.4)."""

FRAME_HEAD = 9
"""Bytes before the payload of a frame."""

DATA, HEADERS, RST_STREAM, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 6, 7, 8, 9
"""Types of frames (RFC 9113, section 6)."""

END_STREAM, END_HEADERS, PADDED = 1, 4, 8
"""Flags of a frame."""

HEADER_FRAMES = frozenset({HEADERS, CONTINUATION})
"""The types of frames that have a part of a header block."""

MOVING = frozenset({DATA, WINDOW_UPDATE, *HEADER_FRAMES})
"""The types of frames that `floods.BURST` does not bound."""

WINDOW_BYTES = 4
"""Bytes of the payload of a WINDOW_UPDATE frame."""

MOST_WINDOW = 0x7FFFFFFF
"""The bytes that one of them opens its window by at most; its first bit means
nothing.
"""

_NO_FRAME = -1
_NO_WINDOW = -1


class Frames:
    """The frames of one client, from its preface on.

    Attributes:
        heard: Whether the whole preface has come.
        brought: By stream, how many bytes of a body the last call of `came` had,
            padding excluded; 0: a part of a header block, or an empty frame.
        moved: How many DATA frames with bytes of a body have begun in the last call of
            `came`.
        windows: By how many bytes each WINDOW_UPDATE frame that the last call of `came`
            completed opens its window; 0: it is none that may be.
        blocks: How many blocks of headers have begun.
        unended: The streams that the client has not ended yet.
        cancelled: The streams that the last call of `came` began and reset, and that
            brought no byte of a body: those of a body have to be acknowledged.
    """

    __slots__ = (
        "_begun",
        "_block",
        "_flags",
        "_highest",
        "_kind",
        "_left",
        "_new",
        "_padded",
        "_stream",
        "_worth",
        "blocks",
        "brought",
        "cancelled",
        "heard",
        "moved",
        "unended",
        "windows",
    )

    def __init__(self) -> None:
        self._begun = b""  # a part of a head
        self._left = len(PREFACE)  # bytes to come of the preface, or of the payload
        self._kind = (
            _NO_FRAME  # of the frame whose payload has yet to come, and its flags and stream
        )
        self._flags = self._stream = 0
        self._padded = False  # the next byte says how much of the payload is padding
        self._worth = 0  # bytes of a body to come in this payload
        self._block = False  # a header block has begun, and is not complete
        self._highest = 0  # the last stream that was begun
        self._new: set[int] = set()  # those that the last call of `came` has begun
        self.heard: bool = False
        self.moved: int = 0
        self.windows: list[int] = []
        self.blocks: int = 0
        self.brought: dict[int, int] = {}
        self.unended: set[int] = set()
        self.cancelled: set[int] = set()

    @property
    def in_block(self) -> bool:
        """Whether the preface or a header block has begun and is not complete."""
        if self.heard:
            return self._block or self._kind in HEADER_FRAMES
        return self._left < len(PREFACE)

    def came(self, data: bytes) -> int:
        """*data* has come. Returns how many frames began in it that are bounded because
        they move nothing.

        Cost: a step for each frame.
        """
        self.brought, self.moved = {}, 0
        if self.windows:
            self.windows.clear()
        if self._new:
            self._new.clear()
        if self.cancelled:
            self.cancelled.clear()
        useless, at, size = 0, 0, len(data)
        while at < size:
            left = self._left
            if not left and not self._begun and size - at > FRAME_HEAD:
                kind = data[at + 3]
                if kind == HEADERS:
                    at = self._whole_blocks(data, at)
                elif kind == DATA:
                    at = self._whole_bodies(data, at)
                if at >= size:
                    break
            if left:
                taken = min(left, size - at)
                if self._kind == DATA:
                    useless += self._body(data[at], taken)
                elif self._kind == WINDOW_UPDATE and self._worth >= 0:
                    self._worth = self._worth << 8 * taken | int.from_bytes(
                        data[at : at + taken], "big"
                    )
                at += taken
                self._left = left - taken
            elif size - at >= FRAME_HEAD and not self._begun:
                useless += self._begin(data, at)
                at += FRAME_HEAD
            else:  # a head that comes apart
                part = data[at : at + FRAME_HEAD - len(self._begun)]
                self._begun += part
                at += len(part)
                if len(self._begun) < FRAME_HEAD:
                    break
                begun, self._begun = self._begun, b""
                useless += self._begin(begun, 0)
            if not self._left:
                self._complete()
        return useless

    def _whole_bodies(self, data: bytes, at: int) -> int:
        """Note the DATA frames that lie whole in *data* from *at* on, up to another
        frame, or one that is padded, empty or not whole. Returns where that begins.

        Cost: a third of what `came` takes for others. A client that sends a byte in
        each frame has 26,000 of them in one read, and all others wait for that.
        """
        brought, new, last = self.brought, self._new, len(data) - FRAME_HEAD
        begun = at
        while at < last and data[at + 3] == DATA:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            flags = data[at + 4]
            if not length or flags & PADDED or at + length > last:
                break
            number = int.from_bytes(data[at + 5 : at + FRAME_HEAD], "big") & 0x7FFFFFFF
            brought[number] = brought.get(number, 0) + length
            self.moved += 1
            if flags & END_STREAM:
                self.unended.discard(number)
            if new:
                new.discard(number)
            at += FRAME_HEAD + length
        if at > begun:
            self._stream = number
        return at

    def _whole_blocks(self, data: bytes, at: int) -> int:
        """As `_whole_bodies`, of the HEADERS frames that have all of their block.

        Cost: half of what `came` takes for others. Each request has one.
        """
        brought, last = self.brought, len(data) - FRAME_HEAD
        begun = at
        while at < last and data[at + 3] == HEADERS:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            flags = data[at + 4]
            if not flags & END_HEADERS or at + length > last:
                break
            number = int.from_bytes(data[at + 5 : at + FRAME_HEAD], "big") & 0x7FFFFFFF
            if number not in brought:
                brought[number] = 0
            self.blocks += 1
            if number > self._highest:
                self._highest = number
                self._new.add(number)
                if not flags & END_STREAM:
                    self.unended.add(number)
            elif flags & END_STREAM:
                self.unended.discard(number)
            at += FRAME_HEAD + length
        if at > begun:
            self._stream = number
            self._block = False
        return at

    def _begin(self, data: bytes, at: int) -> bool:
        """A head has come, the bytes of *data* from *at* on. Returns whether its frame
        moves nothing.
        """
        self._left = length = int.from_bytes(data[at : at + 3], "big")
        self._kind, self._flags = kind, flags = data[at + 3], data[at + 4]
        self._stream = number = int.from_bytes(data[at + 5 : at + FRAME_HEAD], "big") & 0x7FFFFFFF
        if kind == DATA:
            self.brought.setdefault(number, 0)
            self._worth = length
            self._padded = bool(flags & PADDED and length)
            self.moved += length > 0 and not self._padded
            return not length and not flags & END_STREAM
        if kind in HEADER_FRAMES:
            self.brought.setdefault(number, 0)
            if kind == HEADERS:
                self.blocks += 1
            elif not length and not flags & END_HEADERS:
                return True
            if number > self._highest:
                self._highest = number
                self._new.add(number)
                self.unended.add(number)
        elif kind == WINDOW_UPDATE:
            self._worth = 0 if length == WINDOW_BYTES else _NO_WINDOW
        return kind not in MOVING

    def _body(self, first: int, taken: int) -> bool:
        """*taken* bytes of a DATA frame have come. Returns whether they show that it
        moves nothing.
        """
        empty = False
        if self._padded:
            self._padded = False
            taken -= 1
            self._worth -= 1 + first
            empty = self._worth <= 0 and not self._flags & END_STREAM
            self.moved += self._worth > 0
        worth = max(min(taken, self._worth), 0)
        self._worth -= worth
        number = self._stream
        self.brought[number] = self.brought.get(number, 0) + worth
        return empty

    def _complete(self) -> None:
        """The frame, or the preface, is complete."""
        kind, self._kind = self._kind, _NO_FRAME
        number = self._stream
        if kind in HEADER_FRAMES:
            self._block = not self._flags & END_HEADERS
            if kind == HEADERS and self._flags & END_STREAM:
                self.unended.discard(number)
        elif kind == DATA:
            self._new.discard(number)
            if self._flags & END_STREAM:
                self.unended.discard(number)
        elif kind == WINDOW_UPDATE:
            self.windows.append(max(self._worth, 0) & MOST_WINDOW)
        elif kind == RST_STREAM:
            self.unended.discard(number)
            if number in self._new:
                self.cancelled.add(number)
        elif kind == _NO_FRAME:
            self.heard = True
