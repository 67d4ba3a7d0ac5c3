"""What becomes of a slot that is due: its silent leases are taken out, the others move
on, a chunk at a time.

At a million connections nearly all of the time here is spent waiting for memory: every
lease is a cache line that has not been looked at for a timeout. So each chunk is read
twice. The first pass only asks for the epochs, which lets the processor wait for many
lines at once and leaves them in its nearest cache; the second does the work. Where all
leases of a chunk share one epoch, as those of clients with one heartbeat come to do,
the chunk moves and no lease is written.
"""

from __future__ import annotations

from collections.abc import Callable

from .lease import Epoch, IdleSlot, Key, Lease
from .slots import CHUNK, Chunk, tidy

WORTH_MOVING = CHUNK // 2
"""Leases from which on a chunk moves whole: a slot made of smaller ones would cost more
memory than that saves.
"""

STEPS_PER_SLOT = 32
"""A slot of one lease costs so many times what a lease costs that moves with others."""

STEPS_PER_CHUNK = 4
"""So does a chunk of one lease."""


def sweep(
    slot: IdleSlot, slot_of: Callable[[Epoch, Key], IdleSlot], room: int | None, steps: float
) -> tuple[list[Lease], int, float]:
    """Take silent leases out of *slot*, in order of arrival, and move those that were
    touched to their epochs' slots.

    Args:
        slot: Its epoch is closed. Whole chunks are worked off at a time, the last one
        in part.
        slot_of: Gives, and makes where there is none, the slot of an epoch and a key.
        room: Most leases to take; None for all.
        steps: Stop after the chunk with which so many steps are spent. A lease that is
            moved is one; a chunk that is looked at, or moved to, `STEPS_PER_CHUNK`; a
            slot that is made for it, `STEPS_PER_SLOT`.
    Returns:
        The leases taken, which lie in no slot any more, how many were moved, and what
        is left of *steps*. What is left of *slot* stays due.
    Cost: O(leases looked at).
    """
    epoch, key = slot.epoch, slot.key
    chunks = slot.chunks
    taken: list[Lease] = []
    # Where the next lease of an epoch goes.
    tails: dict[Epoch, tuple[Chunk, list[Lease | None]]] = {}
    moved = done = 0
    for chunk in chunks:
        items: list[Lease] = (
            [lease for lease in chunk.items if lease is not None] if chunk.dead else chunk.items
        )
        epochs = [lease._epoch for lease in items]
        count = len(items)
        if count and epochs.count(common := epochs[0]) == count and common is not epoch:
            target = slot_of(common, key)
            if count >= WORTH_MOVING or not target.chunks:
                tails.pop(common, None)
                chunk.slot = target
                target.chunks.append(chunk)
                moved += count
                done += 1
                steps -= count + STEPS_PER_CHUNK
                if steps <= 0:
                    break
                continue
        before = len(taken)
        stay: list[Lease] = []
        for lease, last in zip(items, epochs, strict=True):
            if last is epoch:
                if room is None or len(taken) < room:
                    lease._chunk = None
                    taken.append(lease)
                else:
                    stay.append(lease)
                continue
            try:
                home, there = tails[last]
                if (position := len(there)) == CHUNK:
                    raise KeyError
            except KeyError:
                target = slot_of(last, key)
                steps -= STEPS_PER_CHUNK if target.chunks else STEPS_PER_SLOT
                home = target.room()
                there = home.items
                position = len(there)
                tails[last] = home, there
            # `Slot.add`, written out.
            lease._chunk = home
            lease._pos = position
            there.append(lease)
        gone = count - (len(taken) - before) - len(stay)
        moved += gone
        steps -= gone + STEPS_PER_CHUNK
        if stay:
            chunk.items = stay
            chunk.dead = 0  # it holds no None; `tidy` gives each its new position
            tidy(chunk)
            break
        done += 1
        if len(taken) == room or steps <= 0:
            break
    slot.cut(done)
    return taken, moved, steps
