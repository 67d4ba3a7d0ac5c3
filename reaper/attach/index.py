"""Rows by the cookies of their sockets, in 8 to 16 bytes per connection where a dict of ints takes 116.

One rule: *a cookie is kept once, in its row*. The index is a table of row numbers, by open addressing; the
cookie that it compares is the row's.
"""

from __future__ import annotations

from array import array

_LEAST = 64
_SCATTER = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: cookies in order end up far apart


class Index:
    """An index over *words*.

    Args:
        words: The rows, one after the other; grown by their owner.
        width: Words per row; the last is the row's cookie.
    """

    def __init__(self, words: array[int], width: int) -> None:
        self._words = words
        self._width = width
        self._used = 0
        self._make(_LEAST)

    def _make(self, size: int) -> None:
        self._slots: array[int] = array("I", bytes(4 * size))  # a row's number plus one; 0: free
        self._mask = size - 1

    def __len__(self) -> int:
        return self._used

    def find(self, cookie: int) -> int | None:
        """The row with *cookie*; None: there is none. O(1)."""
        slots, words, width, mask = self._slots, self._words, self._width, self._mask
        at = cookie * _SCATTER >> 32 & mask
        while found := slots[at]:
            if words[found * width - 1] == cookie:
                return found - 1
            at = at + 1 & mask
        return None

    def add(self, cookie: int, row: int) -> None:
        """Note that *row* has *cookie*, which no other has. O(1) amortised."""
        self._used += 1
        if self._used * 3 > len(self._slots) * 2:
            known = self._slots
            self._make(2 * len(known))
            for found in known:
                if found:
                    self._put(self._words[found * self._width - 1], found)
        self._put(cookie, row + 1)

    def _put(self, cookie: int, found: int) -> None:
        slots, mask = self._slots, self._mask
        at = cookie * _SCATTER >> 32 & mask
        while slots[at]:
            at = at + 1 & mask
        slots[at] = found

    def remove(self, cookie: int) -> None:
        """Forget *cookie*, which a row has. O(1)."""
        slots, words, width, mask = self._slots, self._words, self._width, self._mask
        at = cookie * _SCATTER >> 32 & mask
        while words[slots[at] * width - 1] != cookie:
            at = at + 1 & mask
        self._used -= 1
        # Those behind it move up as far as they may, so that none is ever sought past a gap.
        gap = at
        while found := slots[at := at + 1 & mask]:
            home = words[found * width - 1] * _SCATTER >> 32 & mask
            if at - home & mask >= at - gap & mask:
                slots[gap] = found
                gap = at
        slots[gap] = 0
