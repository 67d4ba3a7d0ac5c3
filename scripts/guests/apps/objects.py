"""How many objects this process holds, by their type."""

from __future__ import annotations

import gc
import json
import os
import time
from collections import Counter


def objects() -> bytes:
    """As JSON: the number of objects of each type that the collector knows, after it ran."""
    for _ in range(3):
        gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return json.dumps(found).encode()


def fork(seconds: float) -> bytes:
    """Have a child for so long, which holds every descriptor that this process has now."""
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    return b"forked"
