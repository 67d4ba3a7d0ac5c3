"""Sanic, guarded by `reaper run`: its protocol factory meets asyncio's loop."""
