"""A slot keeps order, counts exactly, and keeps no memory of what has left it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from reaper.core.slots import CHUNK, Slot, remove
from reaper.errors import InvariantViolated


class Item:
    __slots__ = ("_chunk", "_pos", "name")

    _chunk: Any
    _pos: int

    def __init__(self, name: int) -> None:
        self.name = name


def filled(count: int) -> tuple[Slot, list[Item]]:
    slot = Slot()
    items = [Item(number) for number in range(count)]
    for item in items:
        slot.add(item)
    return slot, items


def test_taking_empties_the_slot_and_tells_every_entry() -> None:
    slot, items = filled(2 * CHUNK + 7)
    remove(items[5])
    assert slot.take() == items[:5] + items[6:]
    assert (len(slot), list(slot), slot.take()) == (0, [], [])
    assert all(item._chunk is None for item in items)
    slot.add(items[0])
    slot.check()


@pytest.mark.parametrize("seed", range(5))
def test_order_and_count_survive_any_mixture_of_adds_and_removals(seed: int) -> None:
    choose = random.Random(seed)
    slot = Slot()
    model: dict[Item, None] = {}  # ordered by arrival
    for step in range(6 * CHUNK):
        if model and choose.random() < 0.45:
            gone = choose.choice(list(model)) if step % 7 == 0 else next(iter(model))
            remove(gone)
            del model[gone]
        else:
            item = Item(step)
            slot.add(item)
            model[item] = None
        if step % 50 == 0:
            slot.check()
            assert list(slot) == list(model)
    slot.check()
    assert list(slot) == list(model)


@pytest.mark.parametrize("waiting", [1, 3 * CHUNK])
def test_a_slot_that_is_never_emptied_does_not_grow_with_what_passed_through_it(waiting: int) -> None:
    """A month-long timeout keeps one slot in use while a million connections come and go in it."""
    slot, items = filled(waiting)
    most = 0
    for number in range(60 * CHUNK):
        slot.add(fresh := Item(number))
        items.append(fresh)
        remove(items[number])
        most = max(most, len(slot.chunks))
    slot.check()
    assert len(slot) == waiting
    assert most <= 2 * (waiting // CHUNK + 2) + 1


def test_removing_almost_everything_gives_the_chunks_back() -> None:
    slot, items = filled(64 * CHUNK)
    for item in items[:-1]:
        remove(item)
    slot.check()
    assert (list(slot), len(slot)) == (items[-1:], 1)
    assert len(slot.chunks) <= 2
    remove(items[-1])
    slot.check()
    assert (slot.chunks, len(slot)) == ([], 0)


@pytest.mark.parametrize(
    ("broken", "value"),
    [
        ("items[1]._pos", 0),
        ("slot.chunks[0].slot", None),
        ("slot.chunks[0].dead", 1),
        ("slot.live", 9),
        ("slot.emptied", 0),
    ],
)
def test_check_notices_a_broken(broken: str, value: object) -> None:
    slot, items = filled(4 * CHUNK)
    for item in items[CHUNK : 2 * CHUNK]:
        remove(item)
    slot.check()
    owner, _, name = broken.rpartition(".")
    setattr(eval(owner), name, value)
    with pytest.raises(InvariantViolated):
        slot.check()
