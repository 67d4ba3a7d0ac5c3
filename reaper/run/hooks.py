"""Calls back when a module is imported for the first time: how `reaper run` gets to a server before
it starts.

The modules that are waited for are named in `servers`; importing any other costs one look into a
dict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

Callback = Callable[[ModuleType], object]


class AfterImport(MetaPathFinder):
    """Stands before the other finders and lets them find; then calls back when what they found was
    loaded.

    Args:
        callbacks: By module name. Each is called once.
    """

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._waiting = dict(callbacks)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the others find it, with a loader that calls back."""
        callback = self._waiting.pop(name, None)
        if callback is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _then(spec.loader, name, callback)
                return cast(ModuleSpec, spec)
        self._waiting[name] = callback  # it is not there; perhaps later, when the path is another
        return None


def _then(loader: Any, name: str, callback: Callback) -> None:
    """Have *callback* called when *loader* has loaded the module *name*, which it is about to."""
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        if module.__name__ == name:  # one loader may load many: a zip file's
            vars(loader).pop("exec_module", None)
            callback(module)

    loader.exec_module = exec_module


def begin() -> None:
    """Wait for the servers of `servers.SERVERS`. Called once per process, by
    `hook/sitecustomize.py`.
    """
    from . import report
    from .servers import SERVERS, Server

    def callback(server: Server) -> Callback:
        return lambda module: server.guard(module, strict=os.environ.get("REAPER_RUN") == "strict")

    waiting: dict[str, Callback] = {}
    for server in SERVERS:
        if (loaded := sys.modules.get(server.module)) is not None:
            callback(server)(loaded)
        else:
            waiting[server.module] = callback(server)
    sys.meta_path.insert(0, AfterImport(waiting))
    report.begun()
