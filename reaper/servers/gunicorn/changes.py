"""What `reaper run` changes in gunicorn. The worker class is replaced, as `-k` would do
on the command line.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...errors import one_line
from ..guest import PACKAGE, Visit, around

WORKERS = {
    "gunicorn.workers.gasgi.ASGIWorker": "ASGIWorker",
    "gunicorn.workers.gthread.ThreadWorker": "ThreadWorker",
}
"""The class of `reaper.gunicorn` that stands for each of gunicorn's."""

KINDS = {"ASGIWorker": "gunicorn-asgi", "ThreadWorker": "gunicorn-gthread"}
"""By class of `reaper.gunicorn`, the kind of the card."""


def is_ours(kind: Any) -> bool:
    """Whether *kind* is a class of this library: of this copy, or of the copy that the
    program imports.
    """
    return kind.__module__.partition(".")[0] in (PACKAGE, "reaper")


def worker_of(name: str) -> Any:
    """The class *name* of this room, whose needs are met. The other is not imported:
    it may need what is not there.
    """
    if name == "ASGIWorker":
        from . import asgi as found
    else:
        from . import threads as found  # type: ignore[no-redef]
    return getattr(found, name)


def config(module: ModuleType, visit: Visit) -> None:
    """Have each `Config` name a guarded worker class."""
    read = module.Config.worker_class.fget
    said: set[type] = set()

    def worker_class(self: Any) -> Any:
        found = read(self)
        name = WORKERS.get(f"{found.__module__}.{found.__qualname__}")
        if name is None:
            guards = is_ours(found) or found.__module__.startswith("uvicorn")
            # Where somebody watches from outside, he says what becomes of it.
            if not guards and visit.host.alone() and found not in said:
                said.add(found)  # gunicorn reads the class again and again
                kind = f"'s worker {found.__qualname__}"
                visit.left_alone("-k asgi or gthread can be, from inside", kind)
            return found
        if not visit.fits(KINDS[name]):
            return found
        try:
            return worker_of(name)
        except Exception as error:  # gunicorn goes on with its own
            visit.left_alone(one_line(error), f"'s {name}")
            return found

    module.Config.worker_class = property(worker_class, doc=module.Config.worker_class.__doc__)


def worker(module: ModuleType, visit: Visit) -> None:
    """Say on which sockets each worker listens."""

    @around(module.Worker, "init_process")
    def init_process(method: Any) -> Any:
        def instead(self: Any) -> None:
            kind = type(self)
            if is_ours(kind) and kind.__name__ in KINDS:
                seconds = getattr(self, "own_keep_alive", self.cfg.keepalive)
                found = (each.sock for each in self.sockets)
                visit.listens(found, KINDS[kind.__name__], float(seconds) if seconds else None)
            method(self)  # this returns when the worker has ended

        return instead
