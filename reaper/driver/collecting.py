"""The garbage collector of a process with many connections: *no collection walks all of them*.

A connection with a task is some forty objects; with its usual thresholds the collector visits all of them again and
again while connections come. What was there before the first connection is set apart for good, and of the rest only
what is new is visited.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InvalidArgument, shown

THRESHOLDS = (10_000, 5, 2_000)
"""New objects before a young collection, young ones before a middle one, middle ones before a full one: a middle one
visits some 60,000 objects at the most, and a full one comes after a hundred million that stay."""


@contextmanager
def taming(tame_gc: bool = True) -> Iterator[None]:
    """Within the block, if *tame_gc*, the collector visits only what is new.

    It frees by itself, later, what refers to itself in a circle and has grown old; nothing here does. What refers to
    nothing of the kind is freed at once as ever. Of the whole process, so use it in one place.

    Raises:
        InvalidArgument: *tame_gc* is neither True nor False.
    """
    if tame_gc is not True and tame_gc is not False:
        raise InvalidArgument(f"tame_gc must be True or False, got {shown(tame_gc)}")
    if not tame_gc:
        yield
        return
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
