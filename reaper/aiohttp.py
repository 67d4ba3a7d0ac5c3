"""aiohttp's server, guarded: `reaper.aiohttp.run_app(app)`, or `guard(runner.server)`.

Stability: public.
"""

from __future__ import annotations

from .errors import needs

with needs("reaper.aiohttp", "aiohttp"):
    from .servers.aiohttp.server import guard, run_app

__all__ = ["run_app", "guard"]
