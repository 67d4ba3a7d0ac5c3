"""Loops over connections, a slice at a time.

The rule of this module: *no loop over connections holds the event loop for longer
because there are more of them*. Whoever has something to do with each of many
connections does it by `walk` or `slices`; `tests/house/test_slices.py` finds who does
not. What is bounded in itself, such as the streams of one connection, needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

AT_ONCE = 128
"""Connections before the loop is let run again: what is done with one takes between
one microsecond and, for its close, 80: less than 10 ms in all.
"""

Each = TypeVar("Each")


def slices(things: Iterable[Each], size: int | Callable[[], int] = AT_ONCE) -> Iterator[list[Each]]:
    """*things* as they are at the first slice, *size* at a time, or as many as it
    returns, which may be none. Let the loop run after each. What was among them may
    have ended meanwhile.
    """
    every = list(things)
    start = 0
    while start < len(every):
        end = start + (size() if callable(size) else size)
        yield every[start:end]
        start = end


def walk(
    soon: Callable[[Callable[[], None]], object],
    things: Iterable[Each],
    act: Callable[[Each], object],
    then: Callable[[], object] = lambda: None,
    size: int = AT_ONCE,
) -> None:
    """Call *act* with each of *things* as they are now: with the first *size* before
    this returns, and with as many after each pass of the loop. Then call *then*; before
    this returns, if they were fewer than *size*.

    What *act* raises comes out, and the rest is done nevertheless.

    Args:
        soon: Has its argument called once the loop has run: `loop.call_soon`, or
            `Driver.soon`.
        act: One that it is called with may have ended in between.
    """
    left = iter(list(things))

    def step() -> None:
        done, whole = 0, False
        try:
            for one in islice(left, size):
                done += 1
                act(one)
            whole = True
        finally:
            if done == size or not whole:
                soon(step)
        if done < size:
            then()

    step()
