"""aiosmtpd, guarded by `reaper run`: the protocol factory that it gives asyncio is
wrapped.
"""
