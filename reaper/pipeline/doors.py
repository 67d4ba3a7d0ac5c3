"""A room of the pipeline that can be called: `reaper.pipeline.audit(events)`.

One rule: *a question has one name*, that of its room. A room is a package, and a
question was public as a function before it had one: so the package answers to the call.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class Door(ModuleType):
    """A package that answers when it is called, by the function of its name in
    `notebook`.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from . import notebook

        return getattr(notebook, self.__name__.rpartition(".")[2])(*arguments, **options)


def callable_room(name: str) -> None:
    """Let the package *name* be called."""
    sys.modules[name].__class__ = Door
