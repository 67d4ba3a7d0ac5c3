"""What a guest has changed is as it was after a test, also what loops share."""

from __future__ import annotations

import sys
from asyncio.base_events import BaseEventLoop
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from reaper.servers import factories
from reaper.servers.guest import SERVING


@contextmanager
def given_back(objects: Iterable[Any]) -> Iterator[list[dict[str, Any]]]:
    """What each of *objects*, classes and modules, has; it has that again after the
    block, and so has every loop, whose `create_server` guests wrap.
    """
    uvloop = sys.modules.get("uvloop")
    loops = [BaseEventLoop, *([uvloop.Loop] if uvloop is not None else [])]
    changed = [*objects, *loops]
    before = [dict(vars(each)) for each in changed]
    lists = [list(each) for each in (factories._FACTORIES, factories._LOOPS)]
    serving = set(SERVING)
    try:
        yield before[: -len(loops)]
    finally:
        for each, had in zip(changed, before, strict=True):
            for name, value in list(vars(each).items()):
                if name in had and value is not had[name]:
                    setattr(each, name, had[name])
                elif name not in had and isinstance(each, type) and not name.startswith("__"):
                    delattr(each, name)  # it was inherited
        factories._FACTORIES[:], factories._LOOPS[:] = lists
        SERVING.clear()
        SERVING.update(serving)
