"""gunicorn's worker for ASGI, guarded: `gunicorn app:app -k reaper.gunicorn.UvicornWorker`.

gunicorn's own `--keep-alive` holds where reaper.toml and REAPER_* leave `timeouts.keep_alive` at its default.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from .errors import needs

with needs("reaper.gunicorn", "uvicorn-worker"):
    try:
        from uvicorn_worker import UvicornWorker as _Worker  # type: ignore[import-not-found]
    except ImportError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # uvicorn's own is the same, until it is removed
            from uvicorn.workers import UvicornWorker as _Worker

__all__ = ["UvicornWorker"]


class UvicornWorker(_Worker):  # type: ignore[misc]
    """uvicorn's worker with guarded connections and TLS handshakes."""

    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {"loop": "reaper.uvicorn:loop", "http": "reaper.uvicorn:Auto"}
