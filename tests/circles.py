"""What only the collector could free, found."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_circles(*kinds: type) -> Iterator[None]:
    """The collector would find none of *kinds* that was made within the block."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(thing).__name__ for thing in gc.garbage if isinstance(thing, kinds))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found, dict(found)
