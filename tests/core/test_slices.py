"""Loops over connections, a slice at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.core.slices import AT_ONCE, slices, walk


class Passes:
    """A loop: what is to be called in its next passes."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()

    def run(self) -> int:
        """All passes; returns how many."""
        count = 0
        while self.calls:
            count += 1
            self.calls.popleft()()
        return count


@given(st.integers(0, 1000), st.integers(1, 300))
def test_each_is_met_once_in_order_and_no_pass_has_more_than_a_slice(count: int, size: int) -> None:
    loop = Passes()
    met: list[int] = []
    ends: list[int] = []
    walk(loop.calls.append, range(count), met.append, lambda: ends.append(len(met)), size)
    assert met == list(range(min(size, count)))
    assert loop.run() == count // size
    assert (met, ends) == (list(range(count)), [count])
    assert [one for some in slices(range(count), size) for one in some] == met
    assert all(len(some) <= size for some in slices(range(count), size))


def test_each_slice_may_have_a_size_of_its_own() -> None:
    sizes = iter([2, 0, 3, 9])
    assert list(slices(range(6), lambda: next(sizes))) == [[0, 1], [], [2, 3, 4], [5]]


def test_what_comes_in_between_is_not_met() -> None:
    loop, things = Passes(), dict.fromkeys(range(2 * AT_ONCE))
    met: list[int] = []
    walk(loop.calls.append, things, met.append)
    things[-1] = None
    loop.run()
    assert met == list(range(2 * AT_ONCE))


def test_one_that_raises_does_not_keep_the_rest() -> None:
    loop = Passes()
    met: list[int] = []

    def act(one: int) -> None:
        if one in (1, AT_ONCE + 1):
            raise ValueError(one)
        met.append(one)

    with pytest.raises(ValueError, match="1"):
        walk(loop.calls.append, range(2 * AT_ONCE), act)
    with pytest.raises(ValueError, match=str(AT_ONCE + 1)):
        loop.run()
    loop.run()
    assert met == [one for one in range(2 * AT_ONCE) if one not in (1, AT_ONCE + 1)]
