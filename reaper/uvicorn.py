"""uvicorn, guarded: `uvicorn app:app --http reaper.uvicorn:HttpTools` (or `:H11`, or
`:Auto`).

The rule of this door: *what cannot work is said in one line before the server starts*.

Stability: public.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from .config.settings import ReaperConfig
from .errors import ConfigError, NotInstalled, needs
from .foreign import missing

if TYPE_CHECKING:
    from .servers.uvicorn.http import H11, Auto, HttpTools
    from .servers.uvicorn.http2 import Http2
    from .servers.uvicorn.shared import loop, metrics, ready, status

__all__ = ["HttpTools", "H11", "Auto", "Http2", "loop", "metrics", "status", "ready"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"reaper.uvicorn has no {name!r}; it has {', '.join(__all__)}")
    try:
        with needs("reaper.uvicorn", "idle-reaper[uvicorn]"):
            import uvicorn

            from .servers.uvicorn import http, names, shared
        with needs(f"reaper.uvicorn:{name}", "zttp"):
            if name == "Http2":
                if importlib.util.find_spec(names.HTTP2_MODULE) is None:
                    latest = names.TESTED[1]
                    _refuse(
                        f"uvicorn {uvicorn.__version__} has no HTTP/2; install uvicorn {latest}"
                    )
                import zttp  # noqa: F401
    except NotInstalled as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    needs_all = (*names.NEEDS, names.HTTP2) if name == "Http2" else names.NEEDS
    if why := missing(needs_all):
        lowest, latest = names.TESTED
        _refuse(f"{why}; install uvicorn >={lowest}, <={latest}")
    try:
        ReaperConfig.load(os.environ.get("REAPER_CONFIG"))
    except ConfigError as error:
        _refuse("; ".join(str(error).splitlines()))
    if name == "Http2":
        from .servers.uvicorn.http2 import Http2

        return Http2
    found = getattr(http, name, None) or getattr(shared, name, None)
    if found is None:
        _refuse(f"{name} needs httptools: pip install httptools, or use reaper.uvicorn:H11")
    return found


def _refuse(why: str) -> None:
    print(f"reaper.uvicorn: {why}", file=sys.stderr)
    raise SystemExit(2)
