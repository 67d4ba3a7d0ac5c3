"""IdleRing: the single-layer ring in whole ticks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reaper import ClockWentBackwards, IdleRing, InvalidArgument, InvariantViolated

UIDS = st.sampled_from("abcdef")


def test_the_clock_does_not_go_backwards_and_a_refusal_changes_nothing() -> None:
    ring = IdleRing(timeout_ticks=1, start=5)
    ring.add("a")
    with pytest.raises(ClockWentBackwards, match="got 4 after 5"):
        ring.advance(4)
    assert (ring.tick, list(ring.advance(7))) == (5, ["a"])


HUGE = [pytest.param(10**400, id="huge"), pytest.param(10**5000, id="longer"), (1 << 24) + 1]


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, float("nan"), *HUGE])
def test_a_bad_number_is_refused_by_name_and_value(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"timeout_ticks must be an integer [<>]= \d+, got"):
        IdleRing(timeout_ticks=bad)
    if type(bad) is not int:
        with pytest.raises(InvalidArgument, match="tick must be an integer"):
            IdleRing().advance(bad)


FAULTS: dict[str, Callable[[Any], object]] = {
    "lies in two slots": lambda ring: ring._slots[0].append("a"),
    "or in none": lambda ring: ring._slots[0].clear(),
    "len is 2": lambda ring: setattr(ring, "_len", 2),
    "outlived its timeout": lambda ring: ring._index.update(a=-31),
    "in tick 1 outlived": lambda ring: ring._index.update(a=1),
}


@pytest.mark.parametrize("message", FAULTS)
def test_check_finds(message: str) -> None:
    ring = IdleRing()
    ring.add("a")
    ring.check()
    FAULTS[message](ring)
    with pytest.raises(InvariantViolated, match=message):
        ring.check()


class RingMachine(RuleBasedStateMachine):
    """The ring against a dict of last touches."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = IdleRing(timeout_ticks=4)
        self.last: dict[int, int] = {}
        self.now = 0

    @rule(uid=UIDS)
    def add(self, uid: int) -> None:
        assert self.ring.add(uid) == (uid not in self.last)
        self.last[uid] = self.now

    @rule(uid=UIDS)
    def touch(self, uid: int) -> None:
        assert self.ring.touch(uid) == (uid in self.last)
        if uid in self.last:
            self.last[uid] = self.now

    @rule(uid=UIDS)
    def discard(self, uid: int) -> None:
        assert self.ring.discard(uid) == (self.last.pop(uid, None) is not None)

    @rule(jump=st.sampled_from([0, 1, 1, 2, 3, 4, 5, 6, 11, 1000]))
    def advance(self, jump: int) -> None:
        self.now += jump
        expired = self.ring.advance(self.now)
        due = {uid: touched for uid, touched in self.last.items() if touched + 4 < self.now}
        assert sorted(expired) == sorted(due)
        assert [due[uid] for uid in expired] == sorted(due.values())
        for uid in due:
            del self.last[uid]

    @invariant()
    def agrees(self) -> None:
        self.ring.check()
        assert len(self.ring) == len(self.last)
        for uid in range(6):
            assert (uid in self.ring) == (uid in self.last) == (self.ring.slot_of(uid) is not None)
        assert all(self.ring.slot_of(uid) == touched % 5 for uid, touched in self.last.items())


TestRingAgainstADict = RingMachine.TestCase


def test_a_uid_whose_hash_changes_harms_only_itself() -> None:
    class Name:
        hash = 3

        def __hash__(self) -> int:
            return self.hash

    ring = IdleRing(timeout_ticks=2)
    changing = Name()
    # Integers are their own hash: where in its table a dict looks for each of the three
    # is known, so it cannot find the one whose hash changed by chance (a dict asks for
    # identity before it compares hashes).
    for uid in (0, changing, 1):
        ring.add(uid)
    changing.hash = 4
    assert ring.advance(3) == [0, 1]
    assert ring.advance(10) == []
