"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)`, or `guard(runner.server)`.

Stability: public.
"""

from __future__ import annotations

from .errors import needs
from .foreign import require
from .servers.aiohttp.names import ALL

with needs("reaper.aiohttp", "aiohttp"):
    import aiohttp  # noqa: F401

    require("reaper.aiohttp", ALL)

    from .servers.aiohttp.server import guard, run_app

__all__ = ["run_app", "guard"]
