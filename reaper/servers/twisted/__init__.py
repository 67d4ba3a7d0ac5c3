"""Twisted on a loop of asyncio's, guarded by `reaper run`."""
