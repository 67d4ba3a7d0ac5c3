"""anyio's TCP listeners on asyncio, guarded by `reaper run`."""
