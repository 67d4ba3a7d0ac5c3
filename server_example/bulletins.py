"""What each worker says of itself, where every worker can read it: so any of them can answer for all.

One rule: *a reader never waits and never sees half a text*. Each place has one writer, which makes the version odd,
writes, and makes it even; a reader that saw it change, or odd, reads again. A writer that was killed in the middle
leaves nothing to read until its successor has written.
"""

from __future__ import annotations

import mmap
import struct

SIZE = 65536
"""Bytes of one place. A text that does not fit is not written."""

TRIES = 3

_HEADER = struct.Struct("<QI")


class Bulletins:
    """One text per worker, in memory they share. Made before the first of them is forked."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, SIZE * workers)

    def put(self, worker: int, text: bytes) -> bool:
        """Write what *worker* says. False: it is too long. Only *worker* itself may call this."""
        if len(text) > SIZE - _HEADER.size:
            return False
        start = worker * SIZE
        version, _ = _HEADER.unpack_from(self._memory, start)
        version += 1 + version % 2  # odd, also after a predecessor that was killed in the middle
        _HEADER.pack_into(self._memory, start, version, 0)
        self._memory[start + _HEADER.size : start + _HEADER.size + len(text)] = text
        _HEADER.pack_into(self._memory, start, version + 1, len(text))
        return True

    def get(self, worker: int) -> bytes:
        """What *worker* said last; empty if it has said nothing, or is in the middle of it."""
        start = worker * SIZE
        for _ in range(TRIES):
            before = _HEADER.unpack_from(self._memory, start)
            text = self._memory[start + _HEADER.size : start + _HEADER.size + before[1]]
            if before[0] % 2 == 0 and _HEADER.unpack_from(self._memory, start) == before:
                return text
        return b""

    def all(self) -> list[bytes]:
        """What each worker said last, by index."""
        return [self.get(worker) for worker in range(self.workers)]
