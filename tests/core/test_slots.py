"""A slot keeps order, counts exactly, and keeps no memory of what has left it; a due
one is worked off right whatever its chunks hold: one epoch, many, the silent, the
released.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest

from reaper import IdleReaper, Lease
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
    assert slot.take() == list(model)
    assert (len(slot), list(slot), slot.take()) == (0, [], [])
    assert all(item._chunk is None for item in model)
    slot.add(item)
    slot.check()


@pytest.mark.parametrize("waiting", [1, 3 * CHUNK, 64 * CHUNK])
def test_a_slot_does_not_grow_with_what_passes_through_it_and_gives_its_chunks_back(
    waiting: int,
) -> None:
    """A month-long timeout keeps one slot in use while a million connections come and
    go in it.
    """
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
    for item in items[60 * CHUNK : -1]:
        remove(item)
    slot.check()
    assert (list(slot), len(slot), len(slot.chunks) <= 2) == (items[-1:], 1, True)
    remove(items[-1])
    slot.check()
    assert (slot.chunks, len(slot)) == ([], 0)


@pytest.mark.parametrize(
    ("broken", "value"),
    [
        ("items[1]._pos", 0),
        ("slot.chunks[0].slot", None),
        ("slot.chunks[0].dead", 1),
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


def test_a_slot_from_which_all_are_taken_keeps_no_empty_chunk() -> None:
    slot, items = filled(2 * CHUNK)
    for item in items[CHUNK:]:
        remove(item)
    assert len(slot.chunks) == 2
    assert slot.take(CHUNK) == items[:CHUNK]
    assert slot.chunks == []


def test_check_notices_a_slot_that_keeps_chunks_and_has_no_entries() -> None:
    slot = Slot()
    slot.room()
    slot.emptied = 1
    with pytest.raises(InvariantViolated, match="1 chunks and no entries"):
        slot.check()


# ---- the sweep of one that is due
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "silent",
    [(), (CHUNK - 2, 2 * CHUNK), range(CHUNK)],
    ids=["whole chunks", "mixed chunks", "a silent chunk"],
)
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("limit", [None, 100])
def test_leases_keep_the_order_of_their_arrival_whether_they_or_their_chunk_moved(
    limit: int | None, holes: bool, silent: Collection[int]
) -> None:
    core = IdleReaper(tick=1.0)
    leases = [core.register(uid, 10.0, now=0.0) for uid in range(3 * CHUNK)]
    if holes:  # in the first chunk; next to nothing is left in the second
        for lease in leases[:CHUNK:3] + leases[CHUNK : 2 * CHUNK]:
            lease.release()
    core.advance(1.0)
    alive = [lease for lease in leases if lease.alive]
    rest = [lease for lease in alive if lease.uid not in silent]
    chunks = {id(lease._chunk) for lease in rest}
    for lease in rest:
        lease.touch()
    core.close_epoch(11.0)  # the slot of their first epoch is due
    found = []
    while batch := core.expire(11.0, limit):
        core.check()
        found += [expiry.lease for expiry in batch]
    core.check()
    assert found == [lease for lease in alive if lease.uid in silent]
    assert core.statistics().moved == len(rest)
    if not silent:
        assert {id(lease._chunk) for lease in rest} == chunks
    rest.pop(7).release()
    core.check()
    assert [expiry.lease for expiry in core.advance(21.0)] == rest


def test_small_chunks_are_poured_together_so_that_slots_do_not_fall_to_pieces() -> None:
    core = IdleReaper(tick=1.0)
    leases = []
    for second in range(8):  # eight slots with a few leases each
        leases += [core.register((second, i), 10.0, now=second) for i in range(5)]
        core.advance(second + 1.0)
    for lease in leases:
        lease.touch()
    for second in range(10, 19):
        core.advance(second + 0.0)
    core.check()
    assert len({id(lease._chunk) for lease in leases}) == 1


@pytest.mark.parametrize("limit", [None, 100, 5 * CHUNK])
@pytest.mark.parametrize("seed", range(2))
def test_any_mixture_of_heartbeats_silences_and_releases_is_reaped_by_the_law(
    seed: int, limit: int | None
) -> None:
    chance = random.Random(seed)
    core = IdleReaper(tick=1.0, wheel_size=8)
    by_uid = core._leases
    due: dict[Lease, float] = {}  # of those that live
    count = reaped = 0
    now = 0.0
    while now < 60.0:
        for _ in range(chance.randrange(300) if now < 30.0 else 0):
            lease = core.register(
                (count, chance.choice([2, 3, 4, 100])), chance.choice([5.0, 20.0]), now
            )
            due[lease] = now + 1.0 + (lease.timeout or 0.0)
            count += 1
        for lease in list(due):
            number, beat = lease.uid
            if chance.random() < 0.005:
                lease.release()
                del due[lease]
            elif int(now) % beat == number % 2 or (beat == 4 and chance.random() < 0.2):
                lease.touch()
                due[lease] = now + 1.0 + (lease.timeout or 0.0)
        now += 1.0
        core.close_epoch(now)
        while True:
            expired = core.expire(now, limit)
            assert limit is None or len(expired) <= limit
            for expiry in expired:
                assert expiry.due == due.pop(expiry.lease) <= now
            reaped += len(expired)
            if (upcoming := core.next_wakeup()) is None or upcoming > now:
                break
        core.check()
        assert not [lease for lease in due if due[lease] <= now]
    assert reaped > 500
    assert {lease for slot in core._agenda.slots for lease in slot} == set(due)
    assert (
        core._leases is by_uid
    )  # each was found by its uid: all are gone through only for one that cannot be found
