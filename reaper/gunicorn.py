"""gunicorn's workers, guarded: `gunicorn app:app -k reaper.gunicorn.UvicornWorker`, `ASGIWorker` or
`ThreadWorker`.

gunicorn's own `--keep-alive` holds where reaper.toml and REAPER_* leave `timeouts.keep_alive` at
its default.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import needs

if TYPE_CHECKING:
    from .servers.gunicorn_asgi import ASGIWorker
    from .servers.gunicorn_threads import ThreadWorker
    from .servers.gunicorn_uvicorn import UvicornWorker

__all__ = ["UvicornWorker", "ASGIWorker", "ThreadWorker"]

_WHERE = {
    "UvicornWorker": ("gunicorn_uvicorn", "uvicorn-worker"),
    "ASGIWorker": ("gunicorn_asgi", "gunicorn>=27"),
    "ThreadWorker": ("gunicorn_threads", "gunicorn>=27"),
}


def __getattr__(name: str) -> Any:
    # Each worker is imported by itself: whoever runs one need not have what the others need.
    if name not in __all__:
        raise AttributeError(f"reaper.gunicorn has no {name!r}; it has {', '.join(__all__)}")
    module, package = _WHERE[name]
    with needs(f"reaper.gunicorn.{name}", package):
        return getattr(import_module(f".servers.{module}", __package__), name)
