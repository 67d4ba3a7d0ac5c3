"""gunicorn's worker that runs uvicorn, guarded."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from uvicorn.workers import UvicornWorker as _Worker
else:
    try:
        from uvicorn_worker import UvicornWorker as _Worker
    except ImportError:
        with warnings.catch_warnings():
            # uvicorn's own worker is deprecated, and the same until it is removed.
            warnings.simplefilter("ignore", DeprecationWarning)
            from uvicorn.workers import UvicornWorker as _Worker


class UvicornWorker(_Worker):
    """uvicorn's worker with guarded connections and TLS handshakes."""

    # The base class does not declare it as a ClassVar, although it is one.
    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "loop": "reaper.uvicorn:loop",
        "http": "reaper.uvicorn:Auto",
    }
