"""A slot: an ordered bag of entries with O(1) add and O(1) remove, made of short lists.

Why not a set: sets never shrink after discard, and a minute of traffic grew them to
1,353 bytes an entry. Why not one long list: removing from its middle is O(n), and
tidying it in one go is a pause. So a slot is a row of chunks of at most `CHUNK`
entries. An entry knows its chunk and its position in it; removing writes a None over it
and drops the reference at once; a chunk that is more than half None is rewritten,
O(CHUNK) work that CHUNK/2 removals have paid for. Order of arrival is kept, so ties
come out the same on every machine.

A slot does not count its entries: that would cost each add and each remove a sixth of
its time. It has chunks exactly while it has entries, which is all that anybody asks of
it often.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

from ..errors import InvariantViolated

CHUNK = 256
"""Entries a chunk. At most 256, because CPython keeps the ints up to 256 ready-made: a
position costs no memory.
"""


class Entry(Protocol):
    """What can lie in a slot: an object with these two attributes, which belong to the
    slot while it lies there.
    """

    _chunk: Any  # Chunk | None; Any, because each user narrows it to chunks of its own kind of slot
    _pos: int


class Chunk:
    """A run of at most `CHUNK` entries of one slot; `None` marks a removed one."""

    __slots__ = ("dead", "items", "slot")

    def __init__(self, slot: Slot) -> None:
        self.items: list[Any] = []
        self.dead: int = 0
        self.slot: Slot = slot


class Slot:
    """An ordered bag of entries. `len(slot)` is exact, and O(chunks); iteration is in
    order of arrival.
    """

    __slots__ = ("chunks", "emptied")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []  # not one of them has entries: there is none
        self.emptied: int = 0  # chunks that removals have emptied since they were last swept out

    def __len__(self) -> int:
        return sum([len(chunk.items) - chunk.dead for chunk in self.chunks])

    def __iter__(self) -> Iterator[Any]:
        for chunk in self.chunks:
            for entry in chunk.items:
                if entry is not None:
                    yield entry

    def room(self) -> Chunk:
        """The last chunk, with room for at least one more entry. For loops that append
        to it themselves.
        """
        chunks = self.chunks
        if chunks:
            last = chunks[-1]
            if len(last.items) < CHUNK:
                return last
        chunk = Chunk(self)
        chunks.append(chunk)
        return chunk

    def add(self, entry: Entry) -> None:
        """Append *entry*, which must lie in no slot. Cost: O(1) amortised.

        Written out in `IdleReaper.register`, once more in `RoundingReaper.register`, in
        `IdleReaper._move` and in `sweep`, which are paid per connection: change all
        five.
        """
        chunk = self.room()
        entry._chunk = chunk
        entry._pos = len(chunk.items)
        chunk.items.append(entry)

    def take(self, enough: int | None = None) -> list[Any]:
        """Remove entries and return them in order of arrival: a new list, possibly
        empty.

        Args:
            enough: Take at most so many. None: all.
        Cost: O(entries taken + `CHUNK`).
        """
        taken: list[Any] = []
        done = 0
        for chunk in self.chunks:
            live = len(chunk.items) - chunk.dead
            if enough is not None and live > (room := enough - len(taken)):
                taken += islice((entry for entry in chunk.items if entry is not None), room)
                chunk.items[: taken[-1]._pos + 1] = [None] * (taken[-1]._pos + 1)
                chunk.dead = len(chunk.items) - (live - room)
                if chunk.dead * 2 > len(chunk.items):
                    tidy(chunk)
                break
            taken += (
                [entry for entry in chunk.items if entry is not None] if chunk.dead else chunk.items
            )
            done += 1
            if enough is not None and len(taken) == enough:
                break
        for entry in taken:
            entry._chunk = None
        self.cut(done)
        return taken

    def cut(self, done: int) -> None:
        """Drop the first *done* chunks, and those behind them that are empty."""
        chunks = self.chunks
        while done < len(chunks) and not chunks[done].items:
            done += 1
        del chunks[:done]

    def check(self) -> None:
        """Verify every invariant, O(entries).

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        empty = 0
        for chunk in self.chunks:
            empty += not chunk.items
            if chunk.slot is not self or len(chunk.items) > CHUNK:
                raise InvariantViolated(
                    f"chunk of {len(chunk.items)} entries does not belong to its slot"
                )
            dead = 0
            for pos, entry in enumerate(chunk.items):
                if entry is None:
                    dead += 1
                elif entry._chunk is not chunk or entry._pos != pos:
                    raise InvariantViolated(
                        f"entry {entry!r} at position {pos} does not know where it lies"
                    )
            if dead != chunk.dead or dead * 2 > len(chunk.items):
                raise InvariantViolated(
                    f"chunk counts {chunk.dead} dead of {len(chunk.items)}, holds {dead}"
                )
        if empty and empty == len(self.chunks):
            raise InvariantViolated(f"slot has {empty} chunks and no entries")
        if empty > self.emptied:
            raise InvariantViolated(f"slot counts {self.emptied} emptied chunks, holds {empty}")


def remove(entry: Entry) -> None:
    """Take *entry* out of the slot it lies in; its reference there is gone at once.
    Cost: O(1) amortised.

    Written out in `IdleReaper._move`, `lease._release` and `Timer` (`wheel`): change
    all four.
    """
    chunk: Chunk = entry._chunk
    chunk.items[entry._pos] = None
    chunk.dead += 1
    entry._chunk = None
    if chunk.dead * 2 > len(chunk.items):
        tidy(chunk)


def tidy(chunk: Chunk) -> None:
    """Rewrite *chunk* without its removed entries, keeping the order. Cost:
    O(CHUNK).
    """
    if chunk.dead < len(chunk.items):
        chunk.items = [entry for entry in chunk.items if entry is not None]
        chunk.dead = 0
        for pos, entry in enumerate(chunk.items):
            entry._pos = pos
    else:
        chunk.items.clear()
        chunk.dead = 0
        # Finding one chunk among those of a million entries would cost too much,
        # leaving it would let a long-lived slot grow with all that ever passed through
        # it: sweep when half of them may be empty, which is O(1) a removal. With the
        # last entry all of them are.
        slot = chunk.slot
        chunks = slot.chunks
        if len(chunks) == 1:
            chunks.clear()
            slot.emptied = 0
            return
        slot.emptied += 1
        if slot.emptied * 2 > len(chunks):
            chunks[:] = [chunk for chunk in chunks if chunk.items]
            slot.emptied = 0
