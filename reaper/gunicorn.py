"""gunicorn's workers, guarded: `gunicorn app:app -k reaper.gunicorn.UvicornWorker`,
`ASGIWorker` or `ThreadWorker`.

gunicorn's own `--keep-alive` holds where reaper.toml and REAPER_* leave
`timeouts.keep_alive` at its default.

Stability: public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import needs
from .foreign import require
from .servers.gunicorn.names import NEEDS

if TYPE_CHECKING:
    from .servers.gunicorn.asgi import ASGIWorker
    from .servers.gunicorn.threads import ThreadWorker
    from .servers.gunicorn.uvicorn import UvicornWorker

__all__ = ["UvicornWorker", "ASGIWorker", "ThreadWorker"]

_NEEDS = {
    "UvicornWorker": "uvicorn-worker",
    "ASGIWorker": "gunicorn>=27",
    "ThreadWorker": "gunicorn>=27",
}


def __getattr__(name: str) -> Any:
    # Each worker is imported by itself: to run one, you need not have what the others
    # need.
    if name not in __all__:
        raise AttributeError(f"reaper.gunicorn has no {name!r}; it has {', '.join(__all__)}")
    with needs(f"reaper.gunicorn.{name}", _NEEDS[name]):
        if name == "UvicornWorker":
            from .servers.gunicorn import uvicorn

            return uvicorn.UvicornWorker
        import gunicorn  # noqa: F401

        require(f"reaper.gunicorn.{name}", NEEDS[name])
        found: Any
        if name == "ASGIWorker":
            from .servers.gunicorn import asgi as found
        else:
            from .servers.gunicorn import threads as found
    return getattr(found, name)
