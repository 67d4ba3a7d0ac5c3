"""gunicorn's worker for ASGI, guarded: `gunicorn app:app -k reaper.gunicorn.UvicornWorker`.

gunicorn's own `--keep-alive` holds where reaper.toml and REAPER_* leave `timeouts.keep_alive` at its default.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import needs

if TYPE_CHECKING:
    from uvicorn.workers import UvicornWorker as _Worker
else:
    with needs("reaper.gunicorn", "uvicorn-worker"):
        try:
            from uvicorn_worker import UvicornWorker as _Worker
        except ImportError:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # uvicorn's own is the same, until it is removed
                from uvicorn.workers import UvicornWorker as _Worker

__all__ = ["UvicornWorker"]


class UvicornWorker(_Worker):
    """uvicorn's worker with guarded connections and TLS handshakes."""

    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # uvicorn forgot to say ClassVar
        "loop": "reaper.uvicorn:loop",
        "http": "reaper.uvicorn:Auto",
    }
