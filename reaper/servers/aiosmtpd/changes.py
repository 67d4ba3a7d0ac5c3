"""What `reaper run` changes for aiosmtpd: the factory that it gives asyncio."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ..factories import on_loops
from ..guest import Visit


def change(module: ModuleType, visit: Visit) -> None:
    """Guard the connections of every `SMTP`."""

    def guard(factory: Any) -> Any:
        from ...asyncio.guards import guard_server
        from ...asyncio.reaper import reaper_of
        from ..configured import settings
        from .phases import Session

        reaper = reaper_of(config=settings())
        return guard_server(factory, Session, lambda: reaper)

    on_loops(functools.partial(is_its, module.SMTP), guard, visit)


def is_its(smtp: type[Any], factory: Any) -> bool:
    """Whether *factory* makes objects of *smtp*, or is a controller's."""
    made = getattr(factory, "func", factory)
    if isinstance(made, type):
        return issubclass(made, smtp)
    kinds = type(getattr(made, "__self__", None)).__mro__
    return any(kind.__module__ == "aiosmtpd.controller" for kind in kinds)
