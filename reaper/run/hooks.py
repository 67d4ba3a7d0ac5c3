"""Calls back when a module has been imported: how `reaper run` gets to a server before
it starts.

`hook/sitecustomize.py` imports this when the program imports the first of the servers.
The modules that are waited for are named by the cards of the servers; the import of any
other costs one look into a dict.

What a guest may change here: `sys.meta_path` gets a finder, and the loader of a module
that is waited for has another `exec_module` until that has returned.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from ..foreign import PYTHON, Foreign
from ..servers.cards import cards
from ..servers.factories import UVLOOP, on_uvloop
from ..servers.guest import Visit, around
from . import report

Callback = Callable[[ModuleType], object]
TCP = (socket.AF_INET, socket.AF_INET6)

LISTENS = Foreign(PYTHON, ("3.11", "3.14"), {"socket:socket": "=listen"})
"""What `refuse_strangers` replaces."""


class AfterImport(MetaPathFinder):
    """Stands before the other finders and lets them find; calls back when the module is
    loaded.

    Args:
        callbacks: By module name. Each is called once.
    """

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._waiting = dict(callbacks)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, with a loader that calls
        back.
        """
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

    def forget(self, name: str) -> None:
        """Wait for the module *name* no longer."""
        self._waiting.pop(name, None)


def _then(loader: Any, name: str, callback: Callback) -> None:
    """Have *callback* called when *loader* has loaded the module *name*, which it is
    about to.
    """
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        if module.__name__ == name:  # one loader may load many: a zip file's
            vars(loader).pop("exec_module", None)
            callback(module)

    loader.exec_module = exec_module


def begin() -> AfterImport:
    """Wait for the servers that have a card from now on, and change those that are
    imported.

    Called once per process, by `hook/sitecustomize.py`. Returns the finder that waits.
    """
    waiting: dict[str, Callback] = {}
    how = os.environ.get(report.RUN)
    for card in cards():
        visit = Visit(card, report, strict=how != report.LENIENT)
        waiting |= dict.fromkeys(card.changes, visit.guard)
    waiting[UVLOOP] = on_uvloop
    if how == report.STRICT_INSIDE:
        waiting["socket"] = refuse_strangers
    finder = AfterImport(waiting)
    sys.meta_path.insert(0, finder)
    for name in list(waiting):
        if (loaded := sys.modules.get(name)) is not None:
            finder.forget(name)
            waiting[name](loaded)
    return finder


def refuse_strangers(module: ModuleType) -> None:
    """Have the program end when it listens and none of the servers that are known is
    imported.

    Args:
        module: The module `socket`.
    """

    @around(module.socket, "listen")
    def listen(method: Any) -> Any:
        def instead(self: Any, *arguments: Any) -> Any:
            if self.family in TCP and not any(card.is_there for card in cards()):
                where = report.address(self.getsockname())
                report.refuse(
                    f"what listens on {where} cannot be guarded from inside: no server that is known"
                )
            return method(self, *arguments)

        return instead
